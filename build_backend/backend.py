"""The backend by which pip builds the project: setuptools, with a C compiler found for it.

The idea: the compiler is the one that `CC` names, else the one that Python was built with, else one
of the usual names on the PATH. Where there is none, `ziglang`, a package that holds one, becomes a
build requirement, and its compiler is used. Without that package either, the error says what to do.

Invariant: only what pip asked for is built, and by setuptools; nothing but the compiler differs.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from typing import Any, Final

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_USUAL: Final = ("cc", "gcc", "clang")
_PACKAGE: Final = "ziglang>=0.13"
_NONE: Final = (
    "kvmq: there is no C compiler. Install one (on Debian and Ubuntu: apt install gcc), or name one"
    " by CC, or install the package ziglang into this environment."
)

Settings = dict[str, str | list[str] | None] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """The packages that a build needs beside those of pyproject.toml."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_package()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """The packages that a build in place needs beside those of pyproject.toml."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_package()]


def build_wheel(directory: str, *args: Any) -> str:
    """Builds a wheel into `directory`; gives its name."""
    _choose()
    return str(build_meta.build_wheel(directory, *args))


def build_editable(directory: str, *args: Any) -> str:
    """Compiles in place, and builds a wheel that points there."""
    _choose()
    return str(build_meta.build_editable(directory, *args))


def _package() -> list[str]:
    return [] if is_there() else [_PACKAGE]


def is_there() -> bool:
    """Whether this machine has a C compiler."""
    return _is_chosen() or _usual() is not None


def _is_chosen() -> bool:
    """Whether setuptools finds one by itself."""
    if os.environ.get("CC"):
        return True
    command = shlex.split(sysconfig.get_config_var("CC") or "")
    return bool(command) and shutil.which(command[0]) is not None


def _usual() -> str | None:
    return next((name for name in _USUAL if shutil.which(name)), None)


def _choose() -> None:
    """Name the compiler to setuptools."""
    if _is_chosen():
        return
    command = _usual()
    if command is None:
        if importlib.util.find_spec("ziglang") is None:
            sys.exit(_NONE)
        # It compiles for the processor that it runs on unless told otherwise.
        command = f"{shlex.quote(sys.executable)} -m ziglang cc -mcpu=baseline"
    os.environ["CC"] = command
    os.environ["LDSHARED"] = f"{command} -shared"


if __name__ == "__main__":
    sys.exit(0 if is_there() else 1)
