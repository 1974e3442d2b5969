"""Rows: whatever messages are taken from, the same ones give the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tests.record.strategies import I32, I64, U32
from tests.reference.encode import encode_record
from tests.support.decoding import decode
from tests.tiering.archive.samples import TOPIC, encode, read, record
from tiering.archive.coder import Coder
from tiering.spark.arrow import SCHEMA, batch_of
from tiering.spark.rows import MessageRows, decode_group, group_columns


class Head(NamedTuple):
    """The fields that differ seldom."""

    flags: int
    reconsume_times: int
    prepared_position: int
    born: bytes
    store: bytes


HOSTS = st.binary(min_size=8, max_size=8)
HEADS = st.builds(Head, U32, I32, I64, HOSTS, HOSTS)
PROPERTIES = st.sampled_from([None, b"", b"KEYS\x01a b\x02"])


def with_head(number: int, head: Head, properties: bytes | None) -> bytes:
    """An ordinary record with these in its head; properties None: as ordinary ones have."""
    plain = record(number, queue=7, properties=properties)
    message = decode(plain, 0, len(plain), number * 1000 + 7)
    message.flags, message.reconsume_times, message.prepared_position = head[:3]
    message.raw_born_host, message.raw_store_host = head[3:]
    return encode_record(message)


@st.composite
def stretches(draw: st.DrawFn) -> list[list[bytes]]:
    """Records of some blocks, of few different heads."""
    heads = draw(st.lists(HEADS, min_size=1, max_size=3))
    properties = draw(PROPERTIES)
    out, number = [], 0
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 5))
        is_constant = draw(st.booleans())
        first = draw(st.sampled_from(heads))
        out.append(
            [
                with_head(
                    number + i, first if is_constant else draw(st.sampled_from(heads)), properties
                )
                for i in range(rows)
            ]
        )
        number += rows
    return out


@given(stretches(), st.sampled_from([0, 1 << 20]))
def test_groups_of_an_archive_give_the_batch_that_their_messages_give_one_by_one(
    blocks: Sequence[Sequence[bytes]], group_bytes: int
) -> None:
    coder = Coder()
    found = read(encode(blocks, coder, group_bytes=group_bytes), coder)
    batch = batch_of(
        group_columns([decode_group(group, properties=True) for group in found]), SCHEMA.names
    )
    records = [each for block in blocks for each in block]
    positions = [position for group in found for position in group.columns.position.tolist()]
    assert batch.to_pylist() == batch_of(MessageRows(records, positions), SCHEMA.names).to_pylist()
    assert set(batch.column("topic").to_pylist()) == {TOPIC}
