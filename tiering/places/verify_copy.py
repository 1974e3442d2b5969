"""Verify copy: reads an archive whole, to compare its crc32c or to have its bytes in a file.

The idea: it reads in steps of 8 MiB, each after `pace` was asked, and sums up the crc32c of all.

Invariant: never more than one step is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c

from kvstore.errors import ArchiveDamaged
from kvstore.files import Files
from tiering.archive.tail import Source
from tiering.places.objects import CHUNK, Pace


def checksum(
    source: Source, *, pace: Pace | None = None, take: Callable[[bytes], object] | None = None
) -> int:
    """Reads a source whole; returns its crc32c. `take` is given each step's bytes."""
    crc = 0
    for data in _steps(source, pace):
        crc = google_crc32c.extend(crc, data)
        if take is not None:
            take(data)
    return crc


def verify_copy(
    source: Source, size: int, crc: int, otherwise: str, *, pace: Pace | None = None,
    into: tuple[Path, Files] | None = None,
) -> None:  # fmt: skip
    """Raises `ArchiveDamaged` if a source has another size or crc32c than were put there; the error
    ends with `otherwise`. The bytes are also put `into` a file, if one is given.
    """
    found = None
    if source.size == size:
        found = checksum(source, pace=pace) if into is None else fetch(source, *into, pace=pace)
    if found != crc:
        has = f"{source.size} bytes" if found is None else f"crc32c {found:#010x}"
        due = f"{size} bytes" if found is None else f"{crc:#010x}"
        raise ArchiveDamaged(
            f"{source.name} is not what was put there: it has {has}, not {due}; {otherwise}",
            source.name,
        )


def fetch(source: Source, path: Path, files: Files, *, pace: Pace | None = None) -> int:
    """Copies a source to a file, which is there whole or not at all; returns its crc32c."""
    crc = 0

    def chunks() -> Iterator[bytes]:
        nonlocal crc
        for data in _steps(source, pace):
            crc = google_crc32c.extend(crc, data)
            yield data

    files.write_new(path, chunks(), replace=True)
    return crc


def _steps(source: Source, pace: Pace | None) -> Iterator[bytes]:
    for at in range(0, source.size, CHUNK):
        wanted = min(CHUNK, source.size - at)
        if pace is not None:
            pace(wanted)
        yield source.read(at, wanted)
