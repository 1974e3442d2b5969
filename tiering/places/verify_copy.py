"""Verify copy: reads an object whole, to compare its crc32c or to have it in a file.

The idea: it reads in steps of a few megabytes, each after `pace` was asked, with the crc32c of all.

Invariant: never more than one step of an object is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c

from kvstore.files import Files
from tiering.places.objects import CHUNK, Pace, ReadablePlace


def read_whole(
    place: ReadablePlace,
    key: str,
    size: int,
    *,
    pace: Pace | None = None,
    take: Callable[[bytes], object] | None = None,
) -> int:
    """Reads an object of `size` bytes; returns its crc32c. `take` is given each step's bytes."""
    crc = 0
    for data in _steps(place, key, size, pace):
        crc = google_crc32c.extend(crc, data)
        if take is not None:
            take(data)
    return crc


def fetch(
    place: ReadablePlace, key: str, size: int, path: Path, files: Files, *, pace: Pace | None = None
) -> int:
    """Copies an object to a file, which is there whole or not at all; returns its crc32c."""
    crc = 0

    def chunks() -> Iterator[bytes]:
        nonlocal crc
        for data in _steps(place, key, size, pace):
            crc = google_crc32c.extend(crc, data)
            yield data

    files.write_new(path, chunks(), replace=True)
    return crc


def _steps(place: ReadablePlace, key: str, size: int, pace: Pace | None) -> Iterator[bytes]:
    for at in range(0, size, CHUNK):
        wanted = min(CHUNK, size - at)
        if pace is not None:
            pace(wanted)
        yield place.read(key, at, wanted)
