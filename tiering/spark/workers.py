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
"""Options of mallopt(3): the free bytes that are kept, and the size from which on a piece is taken
from the system by itself."""
_KEPT: Final = 64 << 20
"""64 MiB: some batches of messages, which a task has in several forms."""
_LARGEST: Final = 32 << 20
"""32 MiB, the most that mallopt takes."""


@cache
def tune_process() -> None:
    """Keeps the objects loaded by now, and freed memory, for good. Tasks call it as they begin;
    only the first call has an effect.
    """
    gc.freeze()
    # Only the GNU C library has it; others do without.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
