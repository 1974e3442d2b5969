"""Needs: finds the Java and the packages that Spark needs, or says in a line what is missing.

The idea: Spark fails with pages of Java where something is missing or too old. Here each need is
checked before, and said in a line. Java is looked for where it is usually installed, so that nobody
has to set JAVA_HOME on a laptop.

Invariant: a Java of JAVA_HOME or the PATH that doesn't say its version is left to Spark to judge;
one that was looked for elsewhere is passed over.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from tiering.errors import ExtraMissing, SparkUnsuitable

PYSPARK: Final = (4, 2)
"""The first version that limits a stream's batches (`latestOffset` with a limit)."""
PYARROW: Final = (18,)
JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""
_HOMES: Final = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "~/.sdkman/candidates/java")
_MAC: Final = "Contents/Home"
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS: Final = 30


def check_packages() -> None:
    """Raises ExtraMissing, SparkUnsuitable."""
    for name, least in (("pyspark", PYSPARK), ("pyarrow", PYARROW)):
        needed = ".".join(map(str, least))
        try:
            found = version(name)
        except PackageNotFoundError as e:
            raise ExtraMissing(
                f"this takes {name} {needed} or newer, which is not installed: "
                "pip install 'kvmq[spark]'", "spark",
            ) from e  # fmt: skip
        if _numbers(found) < least:
            raise SparkUnsuitable(
                f"{name} is {found}; this takes {needed} or newer: pip install -U 'kvmq[spark]'"
            )


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The home of a Java that Spark runs on: that of JAVA_HOME, of the PATH, or one that is
    installed where Java usually is; of these the oldest that is new enough, which Spark knows best.
    Raises SparkUnsuitable.
    """
    env = os.environ if environment is None else environment
    seen: list[str] = []
    for home in _asked_for(env):
        number = java_version(home)
        if number is None or number >= JAVA:
            return home
        seen.append(f"{home} is Java {number}")
    usual = [(number, home) for home in _installed() if (number := java_version(home)) is not None]
    fit = sorted((number, home) for number, home in usual if number >= JAVA)
    if fit:
        return fit[0][1]
    seen += [f"{home} is Java {number}" for number, home in usual]
    found = "; ".join(seen) or "no Java was found by JAVA_HOME, on the PATH, or where it usually is"
    raise SparkUnsuitable(
        f"Spark takes Java {JAVA} or newer: {found}. Install one, such as openjdk-17-jre-headless, "
        "or set JAVA_HOME"
    )


def _asked_for(env: Mapping[str, str]) -> Iterator[Path]:
    """Homes that the environment names."""
    named = env.get("JAVA_HOME")
    if named:
        home = Path(named)
        if not (home / "bin" / "java").is_file():
            raise SparkUnsuitable(
                f"JAVA_HOME is {named}, where there is no bin/java; unset it, or name a Java's home"
            )
        yield home
        return
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path:
        # /usr/bin/java on a Mac is a stub that has no home.
        home = Path(on_path).resolve().parent.parent
        if (home / "lib").is_dir():
            yield home


def _installed() -> Iterator[Path]:
    for root in map(Path, map(os.path.expanduser, _HOMES)):
        for home in sorted(root.iterdir()) if root.is_dir() else ():
            for one in (home, home / _MAC):
                if (one / "bin" / "java").is_file() and not home.is_symlink():
                    yield one


def java_version(home: Path) -> int | None:
    """The version of the Java at a home; None if that can't be told."""
    try:
        said = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        said = ""
    found = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', said)
    if found is None:
        try:
            command = [str(home / "bin" / "java"), "-version"]
            run = subprocess.run(
                command, capture_output=True, timeout=_SECONDS, check=False, text=True
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = _JAVA_VERSION.search(run.stderr + run.stdout)
    return int(found[1]) if found else None
