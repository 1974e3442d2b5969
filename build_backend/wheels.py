"""Builds wheels for Linux, x86-64 and arm64, into `dist` or the folder that is named.

The idea: zig compiles for either processor against glibc 2.17, so the tag manylinux_2_17 holds. The
headers are those of the running Python: its `pyconfig.h` has the sizes of types, which both
processors share. Each wheel is built in a copy of the sources, and then read back.

Invariants: a wheel holds compiled files for its processor alone, one for each module of the core,
named as its Python looks for them; none of them needs a newer glibc.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
GLIBC: Final = (2, 17)
MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""The processors, by the number that ELF gives them."""
COPIED: Final = ("kvstore", "tiering", "pyspark_kvmq", "kombu_kvmq", "build_backend")
COPIED_FILES: Final = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
_BUILD: Final = """
import sys
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1], {"--build-option": sys.argv[2]})
"""
_MACHINE_AT: Final = 18


def build(machine: str, into: Path) -> Path:
    """The wheel for one processor."""
    tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    compiler = f"{shlex.quote(sys.executable)} -m ziglang cc -target {target} -mcpu=baseline"
    with tempfile.TemporaryDirectory(prefix="kvmq-wheel-") as folder:
        sources = Path(folder) / "sources"
        ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
        for name in COPIED:
            shutil.copytree(ROOT / name, sources / name, ignore=ignored)
        for name in COPIED_FILES:
            shutil.copy(ROOT / name, sources)
        built = subprocess.run(
            [sys.executable, "-c", _BUILD, folder, f"--plat-name={tag}"],
            cwd=sources,
            env={
                **os.environ,
                "CC": compiler,
                "LDSHARED": f"{compiler} -shared -s",
                "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
                "SETUPTOOLS_EXT_SUFFIX": _suffix(machine),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            sys.exit(built.stderr)
        [wheel] = Path(folder).glob("*.whl")
        faults = check(wheel, machine)
        if faults:
            sys.exit(f"{wheel.name}: {'; '.join(faults)}")
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, into))


def _suffix(machine: str) -> str:
    """The end of a compiled file's name, for this Python on that processor."""
    own = str(sysconfig.get_config_var("EXT_SUFFIX"))
    return re.sub("|".join(MACHINES), machine, own)


def check(wheel: Path, machine: str) -> list[str]:
    """The faults of a wheel; most often none."""
    with zipfile.ZipFile(wheel) as archive:
        compiled = {n: archive.read(n) for n in archive.namelist() if ".so" in Path(n).suffixes}
    wanted = {
        f"{path.relative_to(ROOT).with_suffix('')}{_suffix(machine)}"
        for path in (ROOT / "kvstore/core").rglob("*.pyx")
    }
    faults = [f"{name} is not there, or should not be" for name in sorted(wanted ^ compiled.keys())]
    for name, data in compiled.items():
        found = int.from_bytes(data[_MACHINE_AT : _MACHINE_AT + 2], "little")
        if not data.startswith(b"\x7fELF") or found != MACHINES[machine]:
            faults.append(f"{name} is for another processor")
        versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", data)
        newest = max(((int(a), int(b)) for a, b in versions), default=(0, 0))
        if newest > GLIBC:
            faults.append(f"{name} needs glibc {newest[0]}.{newest[1]}")
    return faults


if __name__ == "__main__":
    for each in MACHINES:
        print(build(each, Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"))
