"""Staging: a folder is made beside its target, and gets the target's name when it is whole.

The idea: everything is made in `NAME.importing` (or another ending) and renamed at the end. While
there is a file `NAME.importing.started`, that folder holds unfinished work of ours, which the next
try removes.

Invariants: a target is there whole or not at all; a folder that no unfinished work left is never
touched.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvstore.errors import CallerError, DiskFull
from kvstore.files import Files
from kvstore.rocketmq.file_layouts import COMMITLOG

STARTED: Final = ".started"
"""Added to the staging folder's name: the file that marks it as unfinished work."""


def check_target(source: Path, target: Path, files: Files) -> None:
    """`CallerError` if the target is there and not empty, or lies inside the source."""
    if target.resolve().is_relative_to(source.resolve()):
        raise CallerError(f"{target} lies in {source}, which is not to be changed; name another")
    with target_errors(target):
        if _is_used(target, files):
            raise CallerError(
                f"{target} is there and not empty; name a folder that is new or empty"
            )


def begin_staging(target: Path, files: Files, ending: str, work: str) -> Path:
    """Makes an empty staging folder for a store, with the file that marks it; `work` is what is
    done there, for people ("import"). Raises `CallerError`, `DiskFull`.
    """
    staging = target.with_name(target.name + ending)
    with target_errors(target):
        _begin(staging, files, work)
    return staging


@contextmanager
def target_errors(target: Path) -> Iterator[None]:
    """Turns the disk's errors about a target that is being made into ours."""
    try:
        yield
    except OSError as e:
        why = e.strerror or e
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room for {target}: {why}; free disk space") from e
        where = e.filename or target
        raise CallerError(f"{target} can't be made: {why} ({where}); name a folder that can") from e


def publish(staging: Path, target: Path, files: Files) -> None:
    """Renames the staging folder to the target, atomically and durably."""
    files.rename(staging, target)
    files.remove(_marker(staging))


def _begin(staging: Path, files: Files, work: str) -> None:
    marker = _marker(staging)
    if _is_used(staging, files) and files.size(marker) is None:
        raise CallerError(
            f"{staging} is there and no {work} left it; move it away, or name another target"
        )
    files.make_dir(staging.parent)
    text = f"An {work} into this folder was not finished. It can be removed.\n"
    files.write_whole(marker, text.encode())
    _empty(staging, files)
    files.make_dir(staging / COMMITLOG)


def _marker(staging: Path) -> Path:
    return staging.with_name(staging.name + STARTED)


def _is_used(path: Path, files: Files) -> bool:
    """Whether the path is a file, or a folder with something in it."""
    try:
        return bool(files.list_dir(path))
    except NotADirectoryError:
        return path.exists()  # otherwise a parent of the path is no folder


def _empty(folder: Path, files: Files) -> None:
    """Removes every file below a folder; its folders stay, and are empty."""
    for name in files.list_dir(folder):
        path = folder / name
        try:
            _empty(path, files)
        except NotADirectoryError:
            files.remove(path)
