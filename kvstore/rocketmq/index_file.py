"""Index files: RocketMQ's hash tables from message keys to positions in the log.

The idea: kvmq has a key index of its own and reads these only to show them. The header does not say
how many slots and items the file was made for. Unless the sizes are RocketMQ's defaults, they are
found by trial: in the right split the first and the last item agree with the header.

Invariant: any bytes give items or FormatError; memory is bounded by a chunk of items.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kvstore.errors import FormatError
from kvstore.files import Files
from kvstore.rocketmq.file_layouts import (
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_ITEMS_DEFAULT,
    INDEX_SLOT,
    INDEX_SLOTS_DEFAULT,
)

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
