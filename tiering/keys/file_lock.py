"""File lock: lets one process at a time change a file.

The idea: a process changes such a file as a whole: it reads the file, and replaces it. Without a
lock another process could do the same in between, and one of the changes would be lost. The lock is
a file beside the file, held by `flock`, which ends with the process that holds it. The lock file is
removed when the lock is released, so nothing is left in the user's folder.

Invariants: one thread of all processes holds the lock at a time; a process that only reads the file
never waits, and needs no right to write beside it.
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
def file_lock(path: Path) -> Iterator[None]:
    """Holds the lock of a file; waits for its present holder. A thread that holds it waits for ever
    if it asks again.
    """
    lock = path.with_name(path.name + _SUFFIX)
    fd = _take(lock)
    try:
        yield
    finally:
        # Removed while it is still held: a waiting process sees that it is not the file of that
        # name any more.
        with suppress(FileNotFoundError):
            lock.unlink()
        # A child process that was forked meanwhile has the file open, too.
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
