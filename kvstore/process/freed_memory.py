"""Freed memory: how many bytes the C library keeps for later, and which the system gets back.

The idea: by itself the library keeps the more bytes, the larger the pieces of memory that a program
has freed. A process says here how many suit its work. And pieces that lie between others in use are
kept until somebody asks for their pages.

Invariant: only the GNU C library has the options; with others nothing is changed.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Options of mallopt(3): the free bytes that are kept, and the size from which on a piece is taken
from the system by itself, and given back when it is freed.
"""


def keep_freed(most: int, largest: int) -> None:
    """Keeps about `most` freed bytes for each thread that takes memory, of pieces below `largest`
    bytes (32 MiB at most).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, most)
        mallopt(_MMAP_THRESHOLD, largest)


def give_back_freed() -> None:
    """Gives the pages of freed memory back to the system, those between pieces in use as well."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
