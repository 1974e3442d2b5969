"""Refusals: what the operating system refuses is an error of kvmq's own; what any error says.

The idea: a step asks for many files, and some hand an `OSError` through. Whoever calls the step
waits for a `StoreError`; so the outermost call of each says it here, once.

Invariant: nothing but an `OSError` is changed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvstore.errors import DiskFull, StoreError
from tiering.errors import FileRefused

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def typed(folder: Path) -> Iterator[None]:
    """Have what the operating system refuses as `DiskFull`, or as `FileRefused`; `folder` is what
    is named where the refusal names no file.
    """
    try:
        yield
    except OSError as e:
        what, why = e.filename or folder, e.strerror or str(e)
        if e.errno in _FULL:
            raise DiskFull(f"no room for {what}: {why}; free disk space, then try again") from e
        raise FileRefused(f"{what} is refused: {why}; see to the disk, then try again") from e


def told_of(why: Exception) -> str:
    """What an error says; of one that nobody expected also its kind, since it may say nothing."""
    is_known = isinstance(why, StoreError | OSError)
    return str(why) if is_known else f"{type(why).__name__}: {why}"
