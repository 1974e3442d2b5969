"""Stores of tests are kept in memory, where the machine has a file system of memory with room.

Tests open and sync small stores thousands of times, and a disk takes half of the suite's time for
that. No test needs the disk: those of power cuts have a file layer that forgets unsynced writes.
`PYTEST_DEBUG_TEMPROOT=/tmp make test` runs them on a disk.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")  # a folder for each user is made in it by pytest
_WANTED: Final = 6 << 30
"""Free bytes; the stores of all tests that run side by side took 2 GiB at most."""


def stores_in_memory() -> None:
    """From here on, pytest and `tempfile` make folders in memory if there is room."""
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    disk = os.statvfs(_MEMORY)
    free = min(disk.f_bavail * disk.f_frsize, _available())
    if free >= _WANTED:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # it looks again


def _available() -> int:
    """Bytes of memory that programs can have without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
