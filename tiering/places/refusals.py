"""Refusals: turns the operating system's refusals into kvmq's own errors; gives any error's text.

The idea: a step uses many files, and some calls let an `OSError` through. The caller of a step
expects a `StoreError`; so the outermost call of each step converts it here, once.

Invariant: only an `OSError` is changed.
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
    """Raises the operating system's refusals as `DiskFull`, or as `FileRefused`; `folder` is named
    where the refusal names no file.
    """
    try:
        yield
    except OSError as e:
        what, why = e.filename or folder, e.strerror or str(e)
        if e.errno in _FULL:
            raise DiskFull(f"no room for {what}: {why}; free disk space, then try again") from e
        raise FileRefused(f"{what} is refused: {why}; see to the disk, then try again") from e


def told_of(why: Exception) -> str:
    """The text of an error; with its kind if the error was not expected, since its text may be
    empty.
    """
    is_known = isinstance(why, StoreError | OSError)
    return str(why) if is_known else f"{type(why).__name__}: {why}"
