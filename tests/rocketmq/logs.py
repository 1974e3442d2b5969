"""Small logs made by hand, for what no RocketMQ store happens to have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import StoredMessage
from kvstore.record.layout import CRC_MASK
from tests.reference.encode import blank, encode_record

SEGMENT: Final = 4096
NOW: Final = 1_795_000_000_000


def record(
    position: int,
    body: bytes = b"hello",
    *,
    topic: str = "T",
    queue: int = 0,
    offset: int = 0,
    stored_at: int = NOW,
    system_flags: int = 0,
    properties: bytes = b"",
    prepared_position: int = 0,
) -> bytes:
    """The bytes of a record for that position of a log."""
    host = bytes((127, 0, 0, 1, 0, 0, 42, 159))
    return encode_record(
        StoredMessage(
            topic=topic,
            queue=queue,
            offset=offset,
            position=position,
            size=0,
            body=body,
            raw_properties=properties,
            flags=0,
            system_flags=system_flags,
            born_at=stored_at,
            stored_at=stored_at,
            raw_born_host=host,
            raw_store_host=host,
            reconsume_times=0,
            prepared_position=prepared_position,
            body_crc=crc32(body) & CRC_MASK,
        )
    )


def segment(
    base: int, bodies: list[bytes], *, full: bool = False, stored_at: int = NOW, size: int = SEGMENT
) -> bytes:
    """A file of a log: a record for each body, then a blank record if `full`, else zeros."""
    data = b""
    for offset, body in enumerate(bodies):
        data += record(base + len(data), body, offset=offset, stored_at=stored_at)
    left = size - len(data)
    return data + (blank(left) + bytes(left))[:left] if full else data + bytes(left)


def make_store(root: Path, segments: list[bytes], first: int = 0) -> Path:
    """A store folder with these files as its log."""
    (root / "commitlog").mkdir(parents=True)
    for number, data in enumerate(segments):
        (root / "commitlog" / f"{first + number * len(data):020}").write_bytes(data)
    return root


def log_of(tmp_path: Path, *makers: Callable[[int], bytes], size: int = 1 << 16) -> Path:
    """A store folder whose log has one file, with a record of each maker, given its position."""
    data = b""
    for make in makers:
        data += make(len(data))
    return make_store(tmp_path / "source", [data + bytes(size - len(data))])
