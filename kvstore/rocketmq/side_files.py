"""Side files: consume queues, index files and the checkpoint, which RocketMQ keeps beside its log.

The idea: units of fixed size. A queue file's name says at which byte of the whole queue it begins,
so the name divided by the unit's size is the queue offset of its first unit, and any offset is
found without reading the units before it. Files are preallocated: unwritten units are zeros, and a
queue that did not begin at a file's start is padded up to there. Both are recognised, and each such
part comes as one `Unused`, whatever its length. The header of an index file does not say how
many slots and items the file was made for: unless the sizes are RocketMQ's defaults, they are found
by trial: in the right split the first and the last item agree with the header.

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
    CHECKPOINT,
    CHECKPOINT_MARGIN_MS,
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_ITEMS_DEFAULT,
    INDEX_SLOT,
    INDEX_SLOTS_DEFAULT,
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
    """A part without entries: `units` of them from byte `at` of the file.

    "unwritten": preallocated zeros; "skipped": the padding before a queue's first offset;
    "invalid": not an entry, and nothing else that RocketMQ writes; "partial": the file ends within
    a unit, of which it has `units` bytes.
    """

    at: int
    units: int
    reason: Literal["unwritten", "skipped", "invalid", "partial"]


def first_offset(path: Path) -> int:
    """The queue offset of a file's first unit, by its name.

    Raises FormatError if the name is not 20 digits or not a multiple of the unit's size.
    """
    start = named_position(path.name)
    if start is None or start % QUEUE_UNIT_SIZE:
        raise FormatError(
            f"{path} is not named as a consume-queue file: 20 digits, the byte of its queue at "
            f"which it begins, a multiple of {QUEUE_UNIT_SIZE}"
        )
    return start // QUEUE_UNIT_SIZE


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


_CHUNK_ITEMS: Final = 4096
_GUESS_BYTES_MAX: Final = 64 << 20
"""Up to this size of file the slots are looked for; above it they are the default's or unknown."""


class IndexHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of an index file; `item_count` counts item 0, which is never used."""

    begin_time: int
    end_time: int
    begin_position: int
    end_position: int
    slots_used: int
    item_count: int


class IndexItem(msgspec.Struct, frozen=True, gc=False):
    """One key of one message; `previous` is the item before it in the same slot, 0 if none."""

    number: int
    key_hash: int
    position: int
    seconds: int
    previous: int


def read_header(path: Path, files: Files) -> IndexHeader:
    """The header. Raises FormatError if the file is too short or the header can't be one."""
    data = files.read(path, 0, INDEX_HEADER.size)
    if len(data) < INDEX_HEADER.size:
        raise FormatError(f"{path} has {len(data)} bytes, an index file's header alone has 40")
    header = IndexHeader(*INDEX_HEADER.unpack(data))
    size = files.size(path) or 0
    if not 0 <= header.item_count <= size // INDEX_ITEM.size or header.slots_used < 0:
        raise FormatError(
            f"{path} is not an index file: {header.item_count} items can't be in {size} bytes"
        )
    return header


def read_items(path: Path, files: Files) -> Iterator[IndexItem]:
    """The items in order, from number 1. Raises FormatError if their place can't be found."""
    header = read_header(path, files)
    if header.item_count <= 1:
        return
    start = INDEX_HEADER.size + _slots(path, files, header) * INDEX_SLOT.size
    for first in range(1, header.item_count, _CHUNK_ITEMS):
        count = min(_CHUNK_ITEMS, header.item_count - first)
        data = files.read(path, start + first * INDEX_ITEM.size, count * INDEX_ITEM.size)
        whole = len(data) - len(data) % INDEX_ITEM.size
        for number, item in enumerate(INDEX_ITEM.iter_unpack(data[:whole]), first):
            yield IndexItem(number, *item)


def _slots(path: Path, files: Files, header: IndexHeader) -> int:
    """The number of slots before the items."""
    size = files.size(path) or 0
    body = size - INDEX_HEADER.size
    default = INDEX_SLOTS_DEFAULT * INDEX_SLOT.size
    if body == default + INDEX_ITEMS_DEFAULT * INDEX_ITEM.size:
        return INDEX_SLOTS_DEFAULT
    if size <= _GUESS_BYTES_MAX:
        data = files.read(path, INDEX_HEADER.size)
        step = INDEX_ITEM.size // INDEX_SLOT.size  # the rest must be whole items
        first = body % INDEX_ITEM.size // INDEX_SLOT.size
        last = (body - header.item_count * INDEX_ITEM.size) // INDEX_SLOT.size
        for slots in range(first, last + 1, step):
            if _agrees(data, slots, header):
                return slots
    raise FormatError(
        f"{path}: {size} bytes are not those of an index file with {INDEX_SLOTS_DEFAULT} slots, "
        f"and no other number of slots agrees with its header"
    )


def _agrees(data: bytes, slots: int, header: IndexHeader) -> bool:
    """Whether the first and the last item are where that many slots would put them."""
    base = slots * INDEX_SLOT.size
    first = INDEX_ITEM.unpack_from(data, base + INDEX_ITEM.size)
    last = INDEX_ITEM.unpack_from(data, base + (header.item_count - 1) * INDEX_ITEM.size)
    used = sum(map(bool, memoryview(data)[:base].cast("i"))) if slots else 0
    return bool(
        first[1:] == (header.begin_position, 0, 0)
        and last[1] == header.end_position
        and used == header.slots_used
    )


class CheckpointPage(msgspec.Struct, frozen=True, gc=False):
    """Times are store times in ms since the epoch, 0 if never; positions are bytes of the log."""

    log_time: int
    queue_time: int
    index_time: int
    master_flushed_position: int
    confirmed_position: int

    @property
    def safe_time(self) -> int:
        """The store time up to which messages are on disk, and dispatched (RocketMQ:
        getMinTimestamp).
        """
        return max(0, min(self.log_time, self.queue_time) - CHECKPOINT_MARGIN_MS)


def read_checkpoint(path: Path, files: Files) -> CheckpointPage | None:
    """The page; None if there is no such file. Raises FormatError if it is too short."""
    if files.size(path) is None:
        return None
    data = files.read(path, 0, CHECKPOINT.size)
    if len(data) < CHECKPOINT.size:
        raise FormatError(
            f"{path} has {len(data)} bytes, a checkpoint has at least {CHECKPOINT.size}"
        )
    return CheckpointPage(*CHECKPOINT.unpack(data))
