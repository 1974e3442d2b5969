"""Check: whether a whole record begins at a place, and how large it is.

The idea: recovery and verification look at every record of a segment and need only its size. `scan`
is the loop for ordinary records; `check_record` looks carefully at one, and says what is wrong with
it. (RocketMQ: CommitLog.checkMessageAndReturnSize.)

Invariants: any bytes give a size, "no record here" or RecordDamaged; no length field is followed
beyond `end`; `scan` takes exactly the records that `check_record` takes. Two facts that only a
reader needs are not checked: whether the topic is UTF-8, and whether a compressed body can be
decompressed.
"""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from kvstore.errors import RecordDamaged
from kvstore.record.layout import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    BODY_AT,
    BODY_SIZE,
    CHECKED,
    CHECKED_BY_HOSTS,
    CHECKED_HEAD,
    CRC_MASK,
    FIXED_V1,
    HEADS,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_MAX,
    PROPERTIES_SIZE,
    SYSTEM_FLAGS_LOW_AT,
    TOPIC_MAX,
    TOPIC_MAX_V2,
    TOPIC_SIZE_V1,
    TOPIC_SIZE_V2,
    head_size,
    record_size,
)
from kvstore.record.properties import PROPERTY_CRC_HEAD, PROPERTY_CRC_SIZE, property_crc_suffix

if TYPE_CHECKING:
    from mmap import mmap  # noqa: TID251 -- its type; kvstore.files does the mapping

    Buffer = mmap | bytes | bytearray | memoryview
    """Where records are; a memoryview must be one of single bytes."""

_COPY_MAX: Final = 64 * 1024
"""Bytes of a body up to which a copy for its CRC costs no more than a view of it."""


class ScanStop(StrEnum):
    """The reason why a scan stopped."""

    END = "end"
    """The end it was given, exactly behind a record."""
    BLANK = "blank"
    """A blank record: the rest of the segment is unused."""
    ZEROS = "zeros"
    """Nothing was written here yet: size and magic are 0."""
    DAMAGED = "damaged"
    """Neither a record nor one of the above; `check_record` says why."""
    LIMIT = "limit"
    """As many records as were asked for."""


class RecordParts(NamedTuple):
    """The places of a record's parts: buffer indexes, and sizes in bytes."""

    size: int
    body_crc: int
    body_at: int
    body_size: int
    properties_at: int
    properties_size: int


def check_record(
    buffer: Buffer, at: int, end: int, position: int, *, property_crc: bool = False
) -> int:
    """The size of the record at index `at` of `buffer`, if it is whole and valid.

    The record must end at or before `end` and say that its position in the log is `position`. Of
    its CRCs the body's is checked, or with `property_crc` the one over the whole record instead (a
    record without it is then damaged). Returns 0 where nothing was written (size and magic 0). For
    a blank record, which takes 8 bytes or more and ends at or before `end`, it returns the negative
    size. Raises RecordDamaged, saying what was expected and found.
    """
    end = min(end, len(buffer))
    left = end - at
    if at < 0 or left < BLANK_SIZE:
        raise RecordDamaged(
            f"{max(left, 0)} bytes at {position} are too few for a record", position
        )
    size: int
    size, magic = BLANK.unpack_from(buffer, at)
    if magic == 0 and size == 0:
        return 0
    if magic == BLANK_MAGIC:
        if not BLANK_SIZE <= size <= left:
            raise _damaged(position, "blank record's size", f"{BLANK_SIZE} to {left}", size)
        return -size
    parts = measure(buffer, at, end, position)
    if property_crc:
        _check_property_crc(buffer, at, parts, position)
    else:
        check_body_crc(buffer, parts, position)
    return parts.size


def scan(
    buffer: Buffer,
    at: int,
    end: int,
    base: int,
    out_positions: array[int],
    out_sizes: array[int],
    *,
    limit: int,
    property_crc: bool = False,
) -> tuple[int, ScanStop]:
    """Check records one after the other, from index `at` of `buffer` on, and list where they are.

    `base` is the log position of the buffer's index 0. Appends the position of each good record to
    `out_positions` (an `array("Q")`) and its size to `out_sizes` (an `array("I")`), for at most
    `limit` records. Returns the index behind the last good record, and why it stopped there. The
    checks are those of `check_record`.
    """
    end = min(end, len(buffer))
    kind, body_offset, unpack = 0, BODY_AT, CHECKED.unpack_from
    last = -1 if property_crc else end - FIXED_V1
    add_position, add_size = out_positions.append, out_sizes.append
    for _ in range(limit):
        if 0 <= at <= last:
            # The ordinary record, with hosts like the one before, takes no call. All others are
            # looked at below.
            size, magic, body_crc, position, flags, body_size = unpack(buffer, at)
            body_at = at + body_offset
            topic_at = body_at + body_size
            stop = at + size
            if (
                magic == MAGIC_V1
                and position == base + at
                and flags & HOSTS_V6 == kind
                and topic_at < stop <= end
                and body_size <= _COPY_MAX
            ):
                topic_size = buffer[topic_at]
                length_at = topic_at + 1 + topic_size
                rest = stop - length_at - 2
                if (
                    topic_size <= TOPIC_MAX
                    and 0 <= rest <= PROPERTIES_MAX
                    and buffer[length_at] << 8 | buffer[length_at + 1] == rest
                    and crc32(buffer[body_at:topic_at]) & CRC_MASK == body_crc
                ):
                    add_position(position)
                    add_size(size)
                    at = stop
                    continue
        reason, size = _classify(buffer, at, end, base + at, property_crc)
        if reason is not None:
            return at, reason
        kind = buffer[at + SYSTEM_FLAGS_LOW_AT] & HOSTS_V6
        body_offset, unpack = HEADS[kind].size, CHECKED_BY_HOSTS[kind].unpack_from
        if not property_crc:
            last = end - body_offset - (FIXED_V1 - BODY_AT)
        add_position(base + at)
        add_size(size)
        at += size
    return at, ScanStop.END if at == end else ScanStop.LIMIT


def _classify(
    buffer: Buffer, at: int, end: int, position: int, property_crc: bool
) -> tuple[ScanStop | None, int]:
    """Classify bytes that aren't an ordinary record: a reason to stop, or None and a record's
    size.
    """
    if at == end:
        return ScanStop.END, 0
    try:
        size = check_record(buffer, at, end, position, property_crc=property_crc)
    except RecordDamaged:
        # Fewer bytes than a blank record has can still be bytes that were never written.
        if at >= 0 and end - at < BLANK_SIZE and not any(buffer[at:end]):
            return ScanStop.ZEROS, 0
        return ScanStop.DAMAGED, 0
    if size > 0:
        return None, size
    return (ScanStop.BLANK if size else ScanStop.ZEROS), 0


def measure(buffer: Buffer, at: int, end: int, position: int) -> RecordParts:
    """Find a record's parts; check all but the CRCs. `end` is at most the buffer's length.

    Raises RecordDamaged, saying what was expected and found.
    """
    left = end - at
    if at < 0 or left < FIXED_V1:
        raise RecordDamaged(
            f"{max(left, 0)} bytes at {position} are too few for a record", position
        )
    size, magic, body_crc, stated, flags = CHECKED_HEAD.unpack_from(buffer, at)
    if magic == MAGIC_V1:
        version, width, topic_max, topic_length = 1, TOPIC_SIZE_V1.size, TOPIC_MAX, TOPIC_SIZE_V1
    elif magic == MAGIC_V2:
        version, width, topic_max, topic_length = 2, TOPIC_SIZE_V2.size, TOPIC_MAX_V2, TOPIC_SIZE_V2
    else:
        raise _damaged(position, "magic", f"{MAGIC_V1:#x} or {MAGIC_V2:#x}", f"{magic:#x}")
    smallest = record_size(0, 0, 0, flags, version)
    if not smallest <= size <= left:
        raise _damaged(position, "size", f"{smallest} to {left}", size)
    if stated != position:
        raise _damaged(position, "position field", position, stated)
    body_at = at + head_size(flags)
    (body_size,) = BODY_SIZE.unpack_from(buffer, body_at - BODY_SIZE.size)
    rest = size - smallest - body_size
    if rest < 0:
        raise _damaged(position, "body length", f"at most {size - smallest}", body_size)
    (topic_size,) = topic_length.unpack_from(buffer, body_at + body_size)
    if topic_size > min(rest, topic_max):
        raise _damaged(position, "topic length", f"at most {min(rest, topic_max)}", topic_size)
    length_at = body_at + body_size + width + topic_size
    (properties_size,) = PROPERTIES_SIZE.unpack_from(buffer, length_at)
    rest -= topic_size
    if properties_size != rest or rest > PROPERTIES_MAX:
        expected = f"{rest}, at most {PROPERTIES_MAX}"
        raise _damaged(position, "properties length", expected, properties_size)
    properties_at = length_at + PROPERTIES_SIZE.size
    return RecordParts(size, body_crc, body_at, body_size, properties_at, properties_size)


def check_body_crc(buffer: Buffer, parts: RecordParts, position: int) -> None:
    """Raise RecordDamaged if the body's CRC isn't the one in the head."""
    with memoryview(buffer)[parts.body_at : parts.body_at + parts.body_size] as body:
        found = crc32(body) & CRC_MASK
    if found != parts.body_crc:
        raise _damaged(position, "body CRC", f"{parts.body_crc:#010x}", f"{found:#010x}")


def property_crc_problem(
    buffer: Buffer, at: int, size: int, position: int, *, required: bool = False
) -> str:
    """The fault that the CRC over a whole, checked record of `size` bytes at index `at` shows;
    empty if there is none, or if the record carries no such CRC and that is not `required`.
    """
    end = at + size
    head_at = end - PROPERTY_CRC_SIZE
    if not required and buffer[head_at : head_at + len(PROPERTY_CRC_HEAD)] != PROPERTY_CRC_HEAD:
        return ""
    try:
        _check_property_crc(buffer, at, measure(buffer, at, end, position), position)
    except RecordDamaged as e:
        return str(e)
    return ""


def _check_property_crc(buffer: Buffer, at: int, parts: RecordParts, position: int) -> None:
    suffix_at = at + parts.size - PROPERTY_CRC_SIZE
    # Where the properties are shorter than the CRC property, their length stands among these bytes,
    # and no length that small looks like any two bytes of the property.
    found = bytes(buffer[suffix_at : suffix_at + PROPERTY_CRC_SIZE])
    if not found.startswith(PROPERTY_CRC_HEAD):
        raise RecordDamaged(f"record at {position} has no CRC property at its end", position)
    with memoryview(buffer)[at:suffix_at] as covered:
        expected = property_crc_suffix(covered)
    if found != expected:
        raise _damaged(position, "CRC property", expected, found)


def _damaged(position: int, what: str, expected: object, found: object) -> RecordDamaged:
    return RecordDamaged(
        f"record at {position} is damaged: {what} should be {expected}, but is {found}", position
    )
