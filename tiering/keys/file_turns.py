"""Turns: a file that several processes change is changed by one at a time.

The idea: whoever changes such a file as a whole reads it, and replaces it. Between the two another
one may have done the same, and be undone. A lock file beside it is held meanwhile, by `flock`,
which ends with the process that holds it. The lock file goes with the turn, so nothing is left in
somebody's folder.

Invariants: two turns at one file never overlap, in one process or several; whoever only reads the
file waits for nobody, and needs no right to write beside it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".lock"


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Hold the turn at a file; waits for whoever has it. Not to be taken twice by one thread."""
    lock = path.with_name(path.name + _SUFFIX)
    fd = _take(lock)
    try:
        yield
    finally:
        # While it is still held: who waits for it sees that it is not the file of that name.
        with suppress(FileNotFoundError):
            lock.unlink()
        # A child that was forked meanwhile has the file open, too.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _take(lock: Path) -> int:
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, lock):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, lock: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(fd), lock.stat())
    except FileNotFoundError:
        return False
