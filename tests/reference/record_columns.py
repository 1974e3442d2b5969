"""Fields and records, joined one by one.

The idea: a field is its names and values in turn, and a record is packed with one Struct a part.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

_HEAD = Struct(">IIIIIqqI")
_V6 = (0x10, 0x20)


def join_fields(
    shapes: list[tuple[bytes, ...]], shape_of: list[int], columns: dict[bytes, list[bytes]]
) -> list[bytes] | None:
    """See `kvstore.core.columns.record_columns`; None where a value is missing."""
    turns = {name: iter(values) for name, values in columns.items()}
    found = []
    try:
        for number in shape_of:
            *names, end = shapes[number]
            if end == b"\2":
                found.append(next(turns[b""]))
            else:
                field = b"\2".join(name + b"\1" + next(turns[name]) for name in names)
                found.append(field + (b"\2" if names and end == b"\1" else b""))
    except StopIteration:
        return None
    return found


def join_record(
    numbers: list[int], crc: int | None, topic: bytes, body: bytes, properties: bytes,
    more: tuple[bytes, bytes],
) -> bytes:  # fmt: skip
    """See `kvstore.core.columns.record_columns`: one record, with the other bytes of its hosts."""
    queue, flags, offset, position, system_flags, born_at, born, stored_at, store = numbers[:9]
    reconsume_times, prepared_position, version = numbers[9:]
    hosts = [
        host.to_bytes(8, "big", signed=True) + (rest if system_flags & bit else b"")
        for host, rest, bit in zip((born, store), more, _V6, strict=True)
    ]
    rest = b"".join(
        (
            born_at.to_bytes(8, "big", signed=True), hosts[0],
            stored_at.to_bytes(8, "big", signed=True), hosts[1],
            reconsume_times.to_bytes(4, "big", signed=True),
            prepared_position.to_bytes(8, "big", signed=True),
            len(body).to_bytes(4, "big"), body, len(topic).to_bytes(version, "big"), topic,
            len(properties).to_bytes(2, "big"), properties,
        )
    )  # fmt: skip
    head = _HEAD.pack(
        _HEAD.size + len(rest), (0xDAA320A7, 0xDAA320AB)[version - 1],
        crc32(body) & 0x7FFFFFFF if crc is None else crc,
        queue, flags, offset, position, system_flags,
    )  # fmt: skip
    return head + rest
