"""Consume queues: files of units of fixed size, read as entries.

The idea: a file's name says at which byte of the whole queue it begins, so the name divided by the
unit's size is the queue offset of its first unit, and any offset is found without reading the units
before it. Files are preallocated: unwritten units are zeros, and a queue that did not begin at a
file's start is padded up to there. Both are recognised, and each such stretch comes as one
`Unused`, whatever its length.

Invariants: any bytes are read without an error other than FormatError; memory is bounded by a chunk
of units, whatever the size of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from kvstore.errors import FormatError
from kvstore.files import Files
from kvstore.log.segments import named_position
from kvstore.rocketmq.file_layouts import (
    BATCH_UNIT,
    BATCH_UNIT_SIZE,
    QUEUE_UNIT,
    QUEUE_UNIT_SIZE,
    SKIPPED_UNIT,
)

_CHUNK_UNITS: Final = 4096
E = TypeVar("E")


class QueueEntry(msgspec.Struct, frozen=True, gc=False):
    """One unit: the message at `offset` of the queue is `size` bytes at `position` of the log."""

    offset: int
    position: int
    size: int
    tags_code: int


class BatchEntry(msgspec.Struct, frozen=True, gc=False):
    """One unit of a batch queue: `count` messages from `offset` on are one record of the log."""

    offset: int
    count: int
    position: int
    size: int
    tags_code: int
    stored_at: int
    compacted_offset: int


class Unused(msgspec.Struct, frozen=True, gc=False):
    """A stretch without entries: `units` of them from byte `at` of the file.

    "unwritten": preallocated zeros; "skipped": the padding before a queue's first offset;
    "invalid": not an entry, and nothing else that RocketMQ writes; "partial": the file ends within
    a unit, of which it has `units` bytes.
    """

    at: int
    units: int
    reason: Literal["unwritten", "skipped", "invalid", "partial"]


def first_offset(path: Path, unit_size: int = QUEUE_UNIT_SIZE) -> int:
    """The queue offset of a file's first unit, by its name.

    Raises FormatError if the name is not 20 digits or not a multiple of the unit's size.
    """
    start = named_position(path.name)
    if start is None or start % unit_size:
        raise FormatError(
            f"{path} is not named as a consume-queue file: 20 digits, the byte of its queue at "
            f"which it begins, a multiple of {unit_size}"
        )
    return start // unit_size


def read_batch_queue(path: Path, files: Files) -> Iterator[BatchEntry]:
    """The entries of a batch consume-queue file, in order."""
    return (unit for unit in read_batch_units(path, files) if isinstance(unit, BatchEntry))


def entry_at(path: Path, files: Files, offset: int) -> QueueEntry | None:
    """The entry of one queue offset; None if it lies outside the file or in an unused part."""
    index = offset - first_offset(path)
    if index < 0:
        return None
    data = files.read(path, index * QUEUE_UNIT_SIZE, QUEUE_UNIT_SIZE)
    return _entry(data, 0, offset) if len(data) == QUEUE_UNIT_SIZE else None


def read_units(path: Path, files: Files, first: int | None = None) -> Iterator[QueueEntry | Unused]:
    """Everything in a consume-queue file, in order. `first` overrules the name."""
    base = first_offset(path) if first is None else first

    def decode(chunk: bytes, at: int, index: int) -> QueueEntry | None:
        return _entry(chunk, at, base + index)

    return _read(path, files, QUEUE_UNIT_SIZE, decode)


def read_batch_units(path: Path, files: Files) -> Iterator[BatchEntry | Unused]:
    """Everything in a batch consume-queue file, in order; its units say their offsets."""
    return _read(path, files, BATCH_UNIT_SIZE, _batch_entry)


def _entry(data: bytes, at: int, offset: int) -> QueueEntry | None:
    unit = QUEUE_UNIT.unpack_from(data, at)
    position, size, tags_code = unit
    if position < 0 or size <= 0 or unit == SKIPPED_UNIT:
        return None
    return QueueEntry(offset, position, size, tags_code)


def _batch_entry(data: bytes, at: int, _index: int) -> BatchEntry | None:
    position, size, tags_code, stored_at, offset, count, compacted, _ = BATCH_UNIT.unpack_from(
        data, at
    )
    if position < 0 or size <= 0 or offset < 0 or count <= 0:
        return None
    return BatchEntry(offset, count, position, size, tags_code, stored_at, compacted)


def _read(
    path: Path, files: Files, unit_size: int, decode: Callable[[bytes, int, int], E | None]
) -> Iterator[E | Unused]:
    """Every unit of the file, passed through `decode`; units for which it gives None come
    merged.
    """
    pending: Unused | None = None
    for start, chunk in _chunks(path, files, unit_size):
        for found in _units(chunk, start, unit_size, decode):
            if not isinstance(found, Unused):
                if pending is not None:
                    yield pending
                    pending = None
                yield found
            elif pending is not None and pending.reason == found.reason != "partial":
                pending = Unused(pending.at, pending.units + found.units, found.reason)
            else:
                if pending is not None:
                    yield pending
                pending = found
    if pending is not None:
        yield pending


def _chunks(path: Path, files: Files, unit_size: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while chunk := files.read(path, at, _CHUNK_UNITS * unit_size):
        yield at, chunk
        at += len(chunk)


def _units(
    chunk: bytes, start: int, unit_size: int, decode: Callable[[bytes, int, int], E | None]
) -> Iterator[E | Unused]:
    whole = len(chunk) - len(chunk) % unit_size
    if chunk.count(0) == len(chunk) == whole:
        yield Unused(start, whole // unit_size, "unwritten")  # most of a file is unwritten
        return
    for at in range(0, whole, unit_size):
        found = decode(chunk, at, (start + at) // unit_size)
        if found is None:
            yield Unused(start + at, 1, _reason(chunk[at : at + unit_size]))
        else:
            yield found
    if whole < len(chunk):
        yield Unused(start + whole, len(chunk) - whole, "partial")


def _reason(unit: bytes) -> Literal["unwritten", "skipped", "invalid"]:
    if not any(unit):
        return "unwritten"
    skipped = len(unit) == QUEUE_UNIT_SIZE and QUEUE_UNIT.unpack(unit) == SKIPPED_UNIT
    return "skipped" if skipped else "invalid"
