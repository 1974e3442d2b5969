"""A reader of segment files of the tests' own, and what fills a segment to the byte.

The reader is written from the layout in the documents, with `struct` alone, so that it can't
share a mistake with `kvstore.record`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvstore import Message, Store


@dataclass(frozen=True)
class Raw:
    """A record's fields as they stand in the file."""

    size: int
    magic: int
    crc: int
    queue: int
    flag: int
    offset: int
    position: int
    system_flags: int
    born_at: int
    born_host: bytes
    stored_at: int
    store_host: bytes
    reconsume_times: int
    prepared: int
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def pairs(self) -> dict[bytes, bytes]:
        found = {}
        for pair in self.properties.split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            if value:
                found[name] = value
        return found


@dataclass(frozen=True)
class Blank:
    """The blank record at the end of a segment."""

    size: int
    position: int


MAGICS: Final = {0xDAA320A7: 1, 0xDAA320AB: 2}


def read_record(data: bytes, at: int) -> Raw:
    """Take a record apart, and hold its own lengths and sum against it."""
    numbers: tuple[int, ...] = struct.unpack_from(">IIIIIQQIQ", data, at)
    size, magic, crc, queue, flag, offset, position, system_flags, born_at = numbers
    i = at + 48
    width = 20 if system_flags & 0x10 else 8
    born_host = data[i : i + width]
    i += width
    (stored_at,) = struct.unpack_from(">Q", data, i)
    i += 8
    width = 20 if system_flags & 0x20 else 8
    store_host = data[i : i + width]
    i += width
    reconsume_times, prepared, length = struct.unpack_from(">iQI", data, i)
    i += 16
    body = data[i : i + length]
    i += length
    width = MAGICS[magic]
    length = int.from_bytes(data[i : i + width], "big")
    i += width
    topic = data[i : i + length]
    i += length
    (length,) = struct.unpack_from(">H", data, i)
    i += 2
    properties = data[i : i + length]
    assert i + length - at == size
    assert crc == zlib.crc32(body) & 0x7FFFFFFF
    return Raw(
        size,
        magic,
        crc,
        queue,
        flag,
        offset,
        position,
        system_flags,
        born_at,
        born_host,
        stored_at,
        store_host,
        reconsume_times,
        prepared,
        body,
        topic,
        properties,
    )


def read_log(store: Store) -> Iterator[Raw | Blank]:
    """Everything in a store's segment files, in order, up to the end of the log."""
    stats = store.stats()
    at = stats.first_position
    while at < stats.end_position:
        base = at - at % stats.segment_size
        data = segment_path(store.path, base).read_bytes()
        assert len(data) == stats.segment_size
        while at < min(base + stats.segment_size, stats.end_position):
            size, magic = struct.unpack_from(">II", data, at - base)
            if magic == 0xCBD43194:
                yield Blank(size, at)
            else:
                yield read_record(data, at - base)
            at += size


def records(store: Store) -> list[Raw]:
    return [found for found in read_log(store) if isinstance(found, Raw)]


def blanks(store: Store) -> list[Blank]:
    return [found for found in read_log(store) if isinstance(found, Blank)]


def segment_path(folder: Path, base: int) -> Path:
    return folder / "commitlog" / f"{base:020d}"


def fill_segment(store: Store, leave: int, topic: str = "t", queue: int = 0) -> None:
    """Put messages until exactly `leave` bytes of the active segment are left."""
    probe = store.put(topic, b"", queue=queue).size
    end = store.stats().end_position
    free = store.stats().segment_size - end % store.stats().segment_size
    store.put(topic, bytes(free - leave - probe), queue=queue)
    assert -store.stats().end_position % store.stats().segment_size == leave


def bodies(store: Store, topic: str, queue: int) -> list[bytes]:
    """All bodies of a queue, by pulling from its first offset on."""
    found: list[bytes] = []
    at = store.bounds(topic, queue).min_offset
    while True:
        pulled = store.pull(topic, queue, at)
        if not pulled.messages:
            return found
        found += [m.body for m in pulled.messages]
        at = pulled.next_offset


def batch(topic: str, count: int, queue: int = 0, **fields: object) -> list[Message]:
    """Messages with bodies b"0", b"1" ... in one queue."""
    return [Message(topic, str(i).encode(), queue=queue, **fields) for i in range(count)]  # type: ignore[arg-type]  # the caller's
