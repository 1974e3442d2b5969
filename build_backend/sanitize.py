"""Runs tests over a core that was built with the sanitizers for addresses and undefined behaviour.

The idea: the sources are copied to `build/sanitized`, the core is compiled there, and pytest runs
there with the arguments of the command line; by default tests/core, fuzzing included, and tests of
logs that RocketMQ wrote. Python itself has no sanitizer, so its library is preloaded, and Python
allocates each object by malloc, so that a byte read behind one is noticed.

Invariant: nothing is compiled beside the sources of the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / "build/sanitized"
COPIED: Final = (
    "kvstore", "tiering", "pyspark_kvmq", "kombu_kvmq", "tests", "build_backend", "docs", "bench",
)  # fmt: skip
COPIED_FILES: Final = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
# Without the long ones, which build wheels and start Java: that is no code of the sanitized core.
TESTS: Final = ("tests/core", "tests/rocketmq", "tests/record", "tests/log", "-m", "not long")
FLAGS: Final = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g"
NEEDS: Final = (
    "make sanitize: needs gcc or clang with their sanitizers; on Debian and Ubuntu: apt install gcc"
)


def _library(compiler: str, name: str) -> str | None:
    """The path of a library that comes with the compiler; None if there is none."""
    asked = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return str(Path(found).resolve()) if Path(found).is_absolute() else None


def _compiler() -> tuple[str, str] | None:
    """A compiler that links with the sanitizers, and the libraries that Python must preload."""
    for compiler, name in (
        ("gcc", "libasan.so"),
        ("clang", "libclang_rt.asan-x86_64.so"),
        ("clang", "libclang_rt.asan-aarch64.so"),
    ):
        if shutil.which(compiler) and (library := _library(compiler, name)):
            # RocksDB throws: the sanitizer must find what throws before RocksDB does.
            thrower = _library(compiler, "libstdc++.so.6")
            return compiler, " ".join(filter(None, (library, thrower)))
    return None


def _build(compiler: str) -> None:
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "out", ".cache")
    shutil.rmtree(PLACE, ignore_errors=True)
    for folder in COPIED:
        shutil.copytree(ROOT / folder, PLACE / folder, ignore=ignored)
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, PLACE)
    # Shared: clang's sanitizer is otherwise one for programs, not for libraries.
    flags = f"{FLAGS} -shared-libasan" if compiler == "clang" else FLAGS
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "-i"],
        cwd=PLACE,
        env={**os.environ, "CC": compiler, "CFLAGS": flags, "LDFLAGS": flags},
        check=True,
    )


def main(arguments: list[str]) -> int:
    """Builds, and runs pytest; gives its code."""
    found = _compiler()
    if found is None:
        print(NEEDS, file=sys.stderr)
        return 1
    compiler, preloaded = found
    _build(compiler)
    return subprocess.run(
        # Pytest would keep the report of a sanitizer, which ends the process, to itself.
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=sys"),
            *(arguments or TESTS),
        ],
        cwd=PLACE,
        env={
            **os.environ,
            "LD_PRELOAD": preloaded,
            # Python keeps much until it ends; a size that no memory has is a MemoryError.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
            # Before the checkout, also for processes that tests start.
            "PYTHONPATH": str(PLACE),
        },
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
