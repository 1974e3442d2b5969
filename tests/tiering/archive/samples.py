"""Records for the tests of archives: some at random, some as RocketMQ wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from hypothesis import strategies as st
from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import StoredMessage
from kvstore.core.names import BORN_HOST_V6, STORE_HOST_V6
from kvstore.record.layout import CRC_MASK, HOSTS_V6
from kvstore.record.walk import Kind, extents, walk
from tests.record.strategies import I32, I64, POSITIONS, U32, hosts
from tests.reference.encode import encode_record
from tiering.archive.block import Block, BlockGroup, GroupBlocks, GroupOrigin
from tiering.archive.block_writer import BlockRows, BlockSpan, EncodedGroup, encode_blocks
from tiering.archive.coder import Coder
from tiering.archive.columns.header_fields import OffsetRanges
from tiering.archive.columns.records import Fields, RecordBatch

TOPIC: Final = "orders"
ORDINARY: Final = b"UNIQ_KEY\x01%032X\x02KEYS\x01o-%d\x02TAGS\x01t%d\x02"


def record(
    number: int,
    topic: str = TOPIC,
    queue: int = 0,
    body: bytes | None = None,
    properties: bytes | None = None,
    system_flags: int = 0,
    version: int = 1,
    crc: int | None = None,
) -> bytes:
    """The ordinary record `number` of a queue, but for what is given."""
    body = b'{"order":%d,"state":"new"}' % number if body is None else body
    if properties is None:
        properties = ORDINARY % (0x7F000001 << 96 | number << 4, number, number % 3)
    message = StoredMessage(
        topic=topic,
        queue=queue,
        offset=number,
        position=number * 1000 + queue,
        size=0,
        body=body,
        raw_properties=properties,
        flags=0,
        system_flags=system_flags,
        born_at=1_700_000_000_000 + number,
        stored_at=1_700_000_000_001 + number,
        raw_born_host=bytes(range(20 if system_flags & BORN_HOST_V6 else 8)),
        raw_store_host=bytes(range(20 if system_flags & STORE_HOST_V6 else 8)),
        reconsume_times=0,
        prepared_position=0,
        body_crc=crc32(body) & CRC_MASK if crc is None else crc,
        version=version,
    )
    return encode_record(message)


_TEXTS: Final = st.sampled_from(
    [b"", b"x", b"o-1", b"o-22", b"007", b"9" * 18, b"9" * 19, b"%d", "ü".encode(), b"\x01"]
)
_IDS: Final = st.binary(min_size=16, max_size=16).map(lambda raw: raw.hex().upper().encode())
_PAIRS: Final = st.tuples(
    st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"", b"a%b"]), _TEXTS | _IDS
).map(b"\x01".join)
PROPERTY_FIELDS: Final = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda pairs, end: b"\x02".join(pairs) + end,
        st.lists(_PAIRS, max_size=4),
        st.sampled_from([b"", b"\x02"]),
    ),
    st.builds(lambda *found: ORDINARY % found, *[st.integers(0, 10**6)] * 3),
)


@st.composite
def messages(draw: st.DrawFn) -> StoredMessage:
    """A message of TOPIC's queue 7, every other field at random."""
    flags = draw(st.sampled_from([0, 0, 0, 1, BORN_HOST_V6, STORE_HOST_V6, HOSTS_V6]) | U32)
    body = draw(st.binary(max_size=60))
    return StoredMessage(
        topic=TOPIC,
        queue=7,
        offset=draw(I64),
        position=draw(POSITIONS),
        size=0,
        body=body,
        raw_properties=draw(PROPERTY_FIELDS),
        flags=draw(U32),
        system_flags=flags,
        born_at=draw(I64),
        stored_at=draw(I64),
        raw_born_host=draw(hosts(flags & BORN_HOST_V6)),
        raw_store_host=draw(hosts(flags & STORE_HOST_V6)),
        reconsume_times=draw(I32),
        prepared_position=draw(I64),
        body_crc=crc32(body) & CRC_MASK if draw(st.booleans()) else draw(U32),
        version=draw(st.sampled_from([1, 1, 2])),
    )


class Encoded(NamedTuple):
    """Groups, and what a directory would say of their blocks."""

    groups: list[EncodedGroup]
    rows: BlockRows


def encode(
    stretches: Sequence[Sequence[bytes]],
    coder: Coder,
    *,
    group_bytes: int = 0,
    queue: int = 7,
    secret: bytes | None = None,
) -> Encoded:
    """Each of `stretches`, which are records of TOPIC's queue `queue`, as a block."""
    fields = Fields(RecordBatch.of_records([found for part in stretches for found in part]))
    ends = np.cumsum([len(part) for part in stretches]).tolist()
    spans = [
        BlockSpan(TOPIC, queue, end - len(part), end, 5, secret)
        for part, end in zip(stretches, ends, strict=True)
    ]
    return Encoded(*encode_blocks(fields, spans, coder, group_bytes=group_bytes))


def decode(
    encoded: Encoded,
    coder: Coder,
    *,
    queue: int = 7,
    secret: bytes | None = None,
) -> list[Block]:
    """The blocks of one or more groups."""
    out: list[Block] = []
    for group in read(encoded, coder, queue=queue, secret=secret):
        out += [group.block(i) for i in range(group.blocks)]
    return out


def read(
    encoded: Encoded, coder: Coder, *, queue: int = 7, secret: bytes | None = None
) -> list[BlockGroup]:
    """The groups."""
    out, rows, at = [], encoded.rows, 0
    for group in encoded.groups:
        mine = slice(at, at + group.blocks)
        ranges = OffsetRanges(rows.messages[mine], rows.first_offset[mine], rows.last_offset[mine])
        blocks = GroupBlocks([TOPIC] * group.blocks, [queue] * group.blocks, ranges)
        out.append(
            BlockGroup(
                group.data, group.part_sizes, group.decoded_sizes, coder, blocks,
                GroupOrigin("a.kvmq", at, 5, secret),
            )
        )  # fmt: skip
        at += group.blocks
    return out


def records_in(segment: bytes, base: int) -> list[bytes]:
    """All records of a segment."""
    return [
        segment[found.position - base : found.stop - base]
        for found in extents(walk(segment, base, 0, len(segment)))
        if found.kind is Kind.RECORD
    ]
