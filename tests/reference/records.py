"""Records, one at a time, written down once more in plain Python.

The idea: the layout of docs/log-format.md read field by field, each length compared before it is
followed. Errors have the core's words.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from kvstore.core.hashing import xxh32
from kvstore.errors import RecordDamaged

V1: Final = 0xDAA320A7
V2: Final = 0xDAA320AB
BLANK: Final = 0xCBD43194
CRC_MASK: Final = 0x7FFFFFFF
BORN_V6: Final = 0x10
STORE_V6: Final = 0x20
MOST: Final = 32767
"""Bytes of properties, and of a V2 record's topic."""
PAGE: Final = 4096

_PREFIX: Final = Struct(">II")
_BEFORE_HOSTS: Final = Struct(">IIIIIqqIq")
_TAIL: Final = Struct(">iqI")
"""Reconsume times, prepared position, body length."""


class Record(NamedTuple):
    """The fields of a record, in the order in which they are in it."""

    size: int
    version: int
    body_crc: int
    queue: int
    flags: int
    offset: int
    position: int
    system_flags: int
    born_at: int
    born_host: bytes
    stored_at: int
    store_host: bytes
    reconsume_times: int
    prepared_position: int
    body: bytes
    topic: bytes
    properties: bytes


def damaged(position: int, what: str, expected: object, found: object) -> RecordDamaged:
    """The error for a wrong field."""
    text = f"record at {position} is damaged: {what} should be {expected}, but is {found}"
    return RecordDamaged(text, position)


def read(data: bytes, position: int) -> Record:
    """The record that `data` begins with; its CRCs are not looked at. Raises RecordDamaged."""
    if len(data) < 91:
        raise RecordDamaged(f"{len(data)} bytes at {position} are too few for a record", position)
    size, magic, crc, queue, flags, offset, stated, system_flags, born_at = (
        _BEFORE_HOSTS.unpack_from(data)
    )
    if magic not in (V1, V2):
        raise damaged(position, "magic", f"{V1:#x} or {V2:#x}", f"{magic:#x}")
    version = 1 if magic == V1 else 2
    born, store = 20 if system_flags & BORN_V6 else 8, 20 if system_flags & STORE_V6 else 8
    store_at = 48 + born + 8
    body_at = store_at + store + _TAIL.size
    least = body_at + version + 2
    if not least <= size <= len(data):
        raise damaged(position, "size", f"{least} to {len(data)}", size)
    if stated != position:
        raise damaged(position, "position field", position, stated)
    reconsume_times, prepared, body_size = _TAIL.unpack_from(data, store_at + store)
    rest = size - least
    if body_size > rest:
        raise damaged(position, "body length", f"at most {rest}", body_size)
    rest -= body_size
    topic_at = body_at + body_size + version
    topic_size = int.from_bytes(data[topic_at - version : topic_at], "big")
    most = min(rest, 127 if version == 1 else MOST)
    if topic_size > most:
        raise damaged(position, "topic length", f"at most {most}", topic_size)
    rest -= topic_size
    properties_at = topic_at + topic_size + 2
    stated_rest = int.from_bytes(data[properties_at - 2 : properties_at], "big")
    if stated_rest != rest or rest > MOST:
        raise damaged(position, "properties length", f"{rest}, at most {MOST}", stated_rest)
    return Record(
        size, version, crc, queue, flags, offset, stated, system_flags, born_at,
        data[48 : 48 + born], int.from_bytes(data[48 + born : store_at], "big", signed=True),
        data[store_at : store_at + store], reconsume_times, prepared,
        data[body_at : body_at + body_size], data[topic_at : topic_at + topic_size],
        data[properties_at:size],
    )  # fmt: skip


def check(data: bytes, position: int, property_crc: bool = False) -> int:
    """See `kvstore.core.records.check_record`, of all of `data`."""
    if len(data) < 8:
        raise RecordDamaged(f"{len(data)} bytes at {position} are too few for a record", position)
    size, magic = _PREFIX.unpack_from(data)
    if size == magic == 0:
        return 0
    if magic == BLANK:
        if not 8 <= size <= len(data):
            raise damaged(position, "blank record's size", f"8 to {len(data)}", size)
        return -int(size)
    found = read(data, position)
    if property_crc:
        check_property_crc(data[: found.size], position)
    elif crc32(found.body) & CRC_MASK != found.body_crc:
        crc = crc32(found.body) & CRC_MASK
        raise damaged(position, "body CRC", f"{found.body_crc:#010x}", f"{crc:#010x}")
    return found.size


def property_crc(data: bytes) -> bytes:
    """The CRC property for some bytes: a decimal number of ten digits, the lowest first."""
    return b"__CRC32#\x01" + f"{crc32(data) & CRC_MASK:010d}"[::-1].encode() + b"\x02"


def check_property_crc(record: bytes, position: int) -> None:
    """Raises RecordDamaged if a whole record has no CRC property at its end, or a wrong one."""
    expected, found = property_crc(record[:-20]), record[-20:]
    if not found.startswith(b"__CRC32#\x01"):
        raise RecordDamaged(f"record at {position} has no CRC property at its end", position)
    if found != expected:
        raise damaged(position, "CRC property", expected, found)


# --- properties ---


def pairs(raw: bytes) -> list[tuple[bytes, bytes]]:
    """The pairs of a properties field that have a name and a value."""
    split = (pair.partition(b"\x01") for pair in raw.split(b"\x02"))
    return [(name, value) for name, _, value in split if name and value]


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """See `kvstore.core.records.find_property`."""
    return dict(pairs(raw)).get(name)


def decode_properties(raw: bytes) -> dict[str, str]:
    """See `kvstore.core.records.decode_properties`."""
    text = raw.decode("utf-8", "replace")
    split = (pair.partition("\x01") for pair in text.split("\x02"))
    return {name: value for name, _, value in split if name and value}


def expires_at(raw: bytes) -> int | None:
    """When a record with these properties expires, in ms since the epoch; None if never."""
    name, _, rest = raw.partition(b"\x01")
    digits, end, _ = rest.partition(b"\x02")
    if name != b"__EXPIRES_AT" or not end or len(digits) != 13:
        return None
    # The digits of other scripts are no bytes of these.
    return int(digits) if digits.isdigit() else None


def java_hash(text: str) -> int:
    """Java's `String.hashCode`."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = 31 * value + (high << 8 | low) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def tag_hash(properties: bytes) -> int:
    """The number that a queue entry carries for a record's tag."""
    return java_hash((find_property(properties, b"TAGS") or b"").decode("utf-8", "replace"))


def digests(properties: bytes) -> dict[int, int]:
    """The XXH32 of a record's keys, unique id and dedup id, and the least level of each."""
    keys = (find_property(properties, b"KEYS") or b"").split(b" ")
    unique = find_property(properties, b"UNIQ_KEY")
    dedup_id = find_property(properties, b"__DEDUP")
    found = {xxh32(key): 2 for key in keys if key}
    if unique is not None:
        found[xxh32(unique)] = 1
    if dedup_id is not None:
        found[xxh32(b"__DEDUP\x01" + dedup_id)] = 0
    return found


# --- many ---


def scan(
    data: bytes, base: int, limit: int, property_crc: bool, whole_from: int
) -> tuple[list[Record], str]:
    """The records of a log one by one, and why there are no more: see `kvstore.core.scan`."""
    found: list[Record] = []
    at = 0
    while len(found) < limit and at < len(data):
        try:
            size = check(data[at:], base + at, property_crc)
        except RecordDamaged:
            unwritten = len(data) - at < 8 and not any(data[at:])
            return found, "zeros" if unwritten else "damaged"
        if size <= 0:
            return found, "blank" if size else "zeros"
        record = read(data[at:], base + at)
        is_late = base + at >= whole_from and (size > PAGE or not data[at + size - 1])
        if is_late and 0 in record.topic + record.properties:
            return found, "torn"
        found.append(record)
        at += size
    return found, "end" if at == len(data) else "limit"
