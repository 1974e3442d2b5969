"""Walk: everything in a part of the log, in order, and past damage.

The idea: `scan` takes good records in batches. Where it stops, the bytes are the blank record that
ends a segment, zeros up to the end (nothing was written there yet), or damage. Behind damage the
walk goes on at the next place that holds a magic number and a record that checks out *and* says
that it is at that place. So a magic number inside a body is skipped, and so is a whole record that
somebody sent as a body. (It would count only if its position fields fitted as well and the record
around it were damaged.)

Invariants: the extents found are in order, without gaps or overlaps, from `start` to `end` or to
the end of a blank record; any bytes are walked without an error; memory is bounded by two chunks.
Damage is never called unwritten: `END` is zeros, all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from kvstore.core.records import check_record
from kvstore.core.scan import Scan, scan
from kvstore.errors import RecordDamaged
from kvstore.record.layout import (
    BLANK_MAGIC,
    FIXED_V1,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    POSITION,
    POSITION_AT,
)

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_BATCH: Final = 16384
"""Records checked at once."""
_CHUNK: Final = 1 << 20
"""Bytes copied at a time to be searched: finding in `bytes` is many times faster than in a map."""

_FIRST_CHUNK: Final = 4096
"""The size of the first copy: most damage is one record, and the next good one is near."""
_ZEROS: Final = bytes(_CHUNK)

_MAGIC_SIZE: Final = 4
_V1: Final = MAGIC_V1.to_bytes(_MAGIC_SIZE, "big")
_V2: Final = MAGIC_V2.to_bytes(_MAGIC_SIZE, "big")
_BLANK: Final = BLANK_MAGIC.to_bytes(_MAGIC_SIZE, "big")
_MAGIC: Final = re.compile(b"|".join(map(re.escape, (_V1, _V2, _BLANK))))


class Kind(StrEnum):
    """The kind of an extent."""

    RECORD = "record"
    """A whole record that checks out."""
    BLANK = "blank"
    """The blank record that ends a segment; nothing comes behind it."""
    DAMAGE = "damage"
    """Bytes that are neither, up to the next good record, to the zeros behind, or to the end."""
    END = "end"
    """Zeros up to the end: nothing was written there yet."""


class Extent(NamedTuple):
    """An extent: `size` bytes from `position` of the log; `reason` names the fault of damage."""

    kind: Kind
    position: int
    size: int
    reason: str = ""

    @property
    def stop(self) -> int:
        """The position behind it."""
        return self.position + self.size


def walk(
    buffer: Buffer, base: int, start: int, end: int, *, with_names: bool = False
) -> Iterator[Scan | Extent]:
    """Everything from index `start` of `buffer` to index `end`, which is the end of the segment:
    records that follow on each other as scans, `with_names` if asked for, and what is no record.

    `base` is the log position of the buffer's index 0; the positions found are positions of the
    log. Records are checked as `check_record` checks them. The walk ends behind a blank record.
    """
    end = min(end, len(buffer))
    at, used = start, -1
    while at < end:
        found = scan(buffer, at, end, base, _BATCH, with_names=with_names)
        at = found.end
        if len(found):
            yield found
        if found.stop == "blank":
            yield Extent(Kind.BLANK, base + at, -check_record(buffer, at, end, base + at))
            return
        if found.stop in ("zeros", "damaged"):
            if used < at:
                used = _behind_last_set(buffer, at, end)
            resume = _next_good(buffer, base, at + 1, end, used, property_crc=False)
            bad_end = resume if resume >= 0 else used
            if bad_end > at:
                yield Extent(Kind.DAMAGE, base + at, bad_end - at, _reason(buffer, base, at, end))
            if resume < 0:
                if used < end:
                    yield Extent(Kind.END, base + used, end - used)
                return
            at = resume


def extents(walked: Iterable[Scan | Extent]) -> Iterator[Extent]:
    """The findings of a walk, with each scan as an extent for each record."""
    for found in walked:
        if isinstance(found, Extent):
            yield found
            continue
        for position, size in zip(found.positions.tolist(), found.sizes.tolist(), strict=True):
            yield Extent(Kind.RECORD, position, size)


def next_good(
    buffer: Buffer, base: int, start: int, end: int, *, property_crc: bool = False
) -> int:
    """The first index from `start` on where a good record begins, or the segment's blank record;
    else -1.

    Each must end at or before index `end`, and a blank one exactly there.
    """
    end = min(end, len(buffer))
    return _next_good(buffer, base, start, end, end, property_crc=property_crc)


def _next_good(
    buffer: Buffer, base: int, start: int, end: int, used: int, *, property_crc: bool
) -> int:
    """`next_good`, where it is known that from index `used` on all bytes are zero."""
    for magic_at in magics(buffer, start + MAGIC_AT, used):
        at = magic_at - MAGIC_AT
        if _is_good(buffer, base, at, end, property_crc):
            return at
    return -1


def _is_good(buffer: Buffer, base: int, at: int, end: int, property_crc: bool) -> bool:
    blank = buffer[at + MAGIC_AT] == _BLANK[0]
    if not blank and (
        at + FIXED_V1 > end or POSITION.unpack_from(buffer, at + POSITION_AT)[0] != base + at
    ):
        return False  # cheaper than a call of `check_record`: the usual stray magic
    try:
        size = check_record(buffer, at, end, base + at, property_crc=property_crc)
    except RecordDamaged:
        return False
    return size > 0 or at - size == end


def magics(buffer: Buffer, start: int, end: int) -> Iterator[int]:
    """The indexes of all magic numbers, also of blank records, between `start` and `end`."""
    at, size = start, _FIRST_CHUNK
    while at < end:
        # The next chunk's first bytes are included: a number may lie across the border.
        chunk = bytes(buffer[at : min(end, at + size + _MAGIC_SIZE - 1)])
        if _V1 in chunk or _V2 in chunk or _BLANK in chunk:
            for match in _MAGIC.finditer(chunk):
                yield at + match.start()
        at += size
        size = min(2 * size, _CHUNK)


def _reason(buffer: Buffer, base: int, at: int, end: int) -> str:
    try:
        check_record(buffer, at, end, base + at)
    except RecordDamaged as e:
        return str(e)
    return f"zeros at {base + at}, where a record should begin"


def _behind_last_set(buffer: Buffer, start: int, end: int) -> int:
    """The index behind the last byte that is not zero; `start` if all are."""
    at = end
    while at > start:
        chunk_at = max(start, at - _CHUNK)
        chunk = bytes(buffer[chunk_at:at])
        if chunk != _ZEROS[: len(chunk)]:
            return chunk_at + len(chunk.rstrip(b"\0"))
        at = chunk_at
    return start
