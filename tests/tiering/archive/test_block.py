from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.messages import StoredMessage
from kvstore.core.names import BORN_HOST_V6, STORE_HOST_V6
from kvstore.core.records import facts
from kvstore.errors import ArchiveDamaged, RecordDamaged
from kvstore.record.compression import codec_flags, compress
from tests.fixtures import NAMES, unpack_fixture
from tests.reference.encode import encode_record
from tests.support.decoding import decode as decode_record
from tests.support.property_crc import with_property_crc
from tests.tiering.archive.samples import (
    TOPIC,
    Encoded,
    decode,
    encode,
    messages,
    read,
    record,
    records_in,
)
from tiering.archive.block import BlockGroup, GroupBlocks
from tiering.archive.block_writer import BlockSpan, cut, encode_blocks
from tiering.archive.coder import Coder
from tiering.archive.columns.header_codec import VERBATIM_FORMAT
from tiering.archive.columns.header_fields import OffsetRanges
from tiering.archive.columns.properties import COLUMNS_FORMAT
from tiering.archive.columns.records import Fields, RecordBatch
from tiering.archive.layout import PartKind

STRETCHES = st.lists(st.lists(messages(), min_size=1, max_size=8), min_size=1, max_size=4)


def expected(raw: bytes, check_crc: bool = True) -> StoredMessage | str:
    """The result of `decode` for a record that stands alone: a message or its fault."""
    position = int.from_bytes(raw[28:36], "big", signed=True)
    try:
        return decode_record(raw, 0, len(raw), position, check_crc)
    except RecordDamaged as error:
        return str(error)


@given(STRETCHES, st.sampled_from(["zstd", "lz4"]), st.sampled_from([0, 500, 1 << 20]))
def test_the_bytes_of_any_records_come_back(
    stretches: list[list[StoredMessage]], codec: str, group_bytes: int
) -> None:
    coder = Coder("lz4" if codec == "lz4" else "zstd")
    records = [[encode_record(message) for message in part] for part in stretches]
    encoded = encode(records, coder, group_bytes=group_bytes)
    blocks = decode(encoded, coder)
    assert [block.records() for block in blocks] == records
    groups = read(encoded, coder)
    assert [raw for group in groups for raw in group.records().values()] == [
        raw for part in records for raw in part
    ]
    for block, part in zip(blocks, stretches, strict=True):
        assert block.offsets.tolist() == [message.offset for message in part]
        assert block.positions.tolist() == [message.position for message in part]
        assert block.stored_at.tolist() == [message.stored_at for message in part]


@given(STRETCHES, st.booleans())
def test_messages_are_what_the_records_decode_to(
    stretches: list[list[StoredMessage]], check_crc: bool
) -> None:
    coder = Coder()
    for part in stretches:
        records = [encode_record(message) for message in part]
        (block,) = decode(encode([records], coder), coder)
        for row, raw in enumerate(records):
            want = expected(raw, check_crc)
            if isinstance(want, str):
                with pytest.raises(RecordDamaged, match=re.escape(want)):
                    block.messages(row, row + 1, check_crc=check_crc)
            else:
                assert block.messages(row, row + 1, check_crc=check_crc) == [want]


ODD = {
    "ordinary": record(3),
    "empty body": record(3, body=b""),
    "no properties": record(3, properties=b""),
    "version 2": record(3, version=2),
    "IPv6 born host": record(3, system_flags=BORN_HOST_V6),
    "IPv6 store host": record(3, system_flags=STORE_HOST_V6),
    "IPv6 hosts": record(3, system_flags=BORN_HOST_V6 | STORE_HOST_V6, version=2),
    "compressed": record(3, body=compress(b"x" * 999, "zlib"), system_flags=codec_flags("zlib")),
    "compressed to nothing": record(3, body=b"", system_flags=codec_flags("lz4")),
    "not what its flags say": record(3, body=b"plain", system_flags=codec_flags("zstd")),
    "wrong body CRC": record(3, crc=5),
    "another queue": record(3, queue=2),
    "another topic": record(3, topic="order"),
    "large": record(3, body=bytes(1 << 20)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_an_odd_record_comes_back_alone_and_among_others(name: str, codec: str) -> None:
    coder = Coder("lz4" if codec == "lz4" else "zstd")
    records = [ODD[name], *(record(i) for i in range(4, 20)), ODD[name]]
    for part in (records, [ODD[name]]):
        (block,) = decode(encode([part], coder, queue=0), coder, queue=0)
        assert block.records() == part
        assert [block.record(row) for row in range(block.count)] == part
        for row, raw in enumerate(part):
            want = expected(raw)
            if isinstance(want, str):
                with pytest.raises(RecordDamaged):
                    block.messages(row, row + 1)
            else:
                assert block.messages(row, row + 1) == [want]


def test_a_record_with_a_crc_over_all_of_it_comes_back() -> None:
    raw = bytearray(record(3))
    with_property_crc(raw)
    coder = Coder()
    (block,) = decode(encode([[bytes(raw)]], coder, queue=0), coder, queue=0)
    assert block.records() == [bytes(raw)]


def test_a_record_that_contradicts_itself_is_kept_as_it_is() -> None:
    raw = bytearray(record(3))
    raw[3] ^= 1  # its size
    coder = Coder()
    encoded = encode([[bytes(raw), record(4)], [record(5)]], coder, queue=0, group_bytes=1 << 20)
    blocks = decode(encoded, coder, queue=0)
    assert [block.records() for block in blocks] == [[bytes(raw), record(4)], [record(5)]]
    formats = []
    for group in encoded.groups:
        first = group.data[: group.part_sizes[0]]
        formats.append(coder.decode(first, group.decoded_sizes[0], kind=PartKind.FIXED)[0])
    assert formats == [VERBATIM_FORMAT, COLUMNS_FORMAT]


@pytest.mark.parametrize("name", NAMES)
def test_what_rocketmq_wrote_comes_back(name: str, tmp_path: Path) -> None:
    fixture = unpack_fixture(name, tmp_path)
    queues: dict[tuple[bytes, int], list[bytes]] = {}
    for base, segment in fixture.segments():
        for raw in records_in(segment, base):
            queues.setdefault(facts(raw, 0, len(raw))[:2], []).append(raw)
    assert queues
    parts = [queues[key] for key in sorted(queues)]
    fields = Fields(RecordBatch.of_records([raw for part in parts for raw in part]))
    coder = Coder()
    spans, at = [], 0
    for (topic, queue), part in zip(sorted(queues), parts, strict=True):
        spans.append(BlockSpan(topic.decode(), queue, at, at + len(part)))
        at += len(part)
    for group_bytes in (0, 1 << 20):
        groups, rows = encode_blocks(fields, spans, coder, group_bytes=group_bytes)
        at = 0
        for group in groups:
            mine = slice(at, at + group.blocks)
            blocks = GroupBlocks(
                [span.topic for span in spans[mine]],
                [span.queue for span in spans[mine]],
                OffsetRanges(rows.messages[mine], rows.first_offset[mine], rows.last_offset[mine]),
            )
            opened = BlockGroup(group.data, group.part_sizes, group.decoded_sizes, coder, blocks)
            assert opened.records().values() == [raw for part in parts[mine] for raw in part]
            for index, part in enumerate(parts[mine]):
                block = opened.block(index)
                assert block.records() == part
                assert block.messages(0, block.count) == [expected(raw) for raw in part]
            at += group.blocks
        assert at == len(spans)


def test_blocks_share_a_group_of_up_to_two_blocks_bytes() -> None:
    parts = [[record(i)] for i in range(10)]
    size = len(record(0))
    coder = Coder()
    encoded = encode(parts, coder, queue=0, group_bytes=4 * size)
    assert [group.blocks for group in encoded.groups] == [8, 2]
    assert sum(len(group.data) for group in encoded.groups) < sum(
        len(group.data) for group in encode(parts, coder, queue=0).groups
    )
    assert [block.records() for block in decode(encoded, coder, queue=0)] == parts


def test_a_group_of_several_blocks_takes_no_more_than_one_block_has_bytes() -> None:
    draw = random.Random(1)
    parts = [[record(i, body=draw.randbytes(4000))] for i in range(10)]
    size = len(parts[0][0])
    encoded = encode(parts, coder := Coder(), queue=0, group_bytes=4 * size)
    assert [group.blocks for group in encoded.groups] == [4, 4, 2]
    assert all(len(group.data) <= 4 * size for group in encoded.groups)
    assert [block.records() for block in decode(encoded, coder, queue=0)] == parts


@pytest.mark.parametrize(
    ("blocks_a_topic", "group_records", "shared"),
    [
        # Half of a group's bytes, and another topic: the group ends.
        (2, 4, [2, 2, 2, 2, 2]),
        # Less than half: it goes on; and ends where that topic does.
        (1, 4, [2, 2, 2, 2, 2]),
        # Blocks of which eight are one go on whatever the topic.
        (1, 8, [10]),
        # As long as the topic goes on, so does the group.
        (10, 4, [8, 2]),
    ],
)
def test_a_group_that_has_half_a_block_ends_with_its_topic_unless_blocks_are_small(
    blocks_a_topic: int, group_records: int, shared: list[int]
) -> None:
    records = [record(i) for i in range(10)]
    fields = Fields(RecordBatch.of_records(records))
    spans = [
        BlockSpan(f"topic-{i // blocks_a_topic}", 0, i, i + 1, i // blocks_a_topic)
        for i in range(10)
    ]
    most = group_records * max(map(len, records))
    groups, _ = encode_blocks(fields, spans, Coder(), group_bytes=most)
    assert [group.blocks for group in groups] == shared


def test_blocks_of_topics_with_keys_of_their_own_do_not_share_a_group() -> None:
    fields = Fields(RecordBatch.of_records([record(i) for i in range(4)]))
    keys = [None, b"a" * 32, b"b" * 32, b"b" * 32]
    numbers = [0, 1, 2, 2]
    spans = [BlockSpan(TOPIC, 0, i, i + 1, numbers[i], key) for i, key in enumerate(keys)]
    groups, _ = encode_blocks(fields, spans, Coder(), group_bytes=1 << 20)
    assert [group.blocks for group in groups] == [1, 1, 2]


def test_the_row_for_the_directory_says_what_is_in_the_block() -> None:
    records = [record(i) for i in (5, 6, 9)]
    rows = encode([records], Coder(), queue=0).rows
    assert rows.messages.tolist() == [3]
    assert rows.raw_bytes.tolist() == [sum(map(len, records))]
    assert (rows.first_offset.tolist(), rows.last_offset.tolist()) == ([5], [9])
    assert (rows.first_position.tolist(), rows.last_position.tolist()) == ([5000], [9000])
    assert (rows.greatest_stored_at - rows.least_stored_at).tolist() == [4]


def test_a_block_takes_as_many_records_as_fit_and_one_at_least() -> None:
    sizes = Fields(RecordBatch.of_records([record(1, body=bytes(n)) for n in (0, 5, 900, 5)])).sizes
    assert cut(sizes, 0, 4, int(sizes[0] + sizes[1])) == [(0, 2), (2, 3), (3, 4)]
    assert cut(sizes, 1, 3, 1) == [(1, 2), (2, 3)]
    assert cut(sizes, 2, 2) == []


def test_rows_outside_a_block_are_nobodys_messages() -> None:
    coder = Coder()
    (block,) = decode(encode([[record(1)]], coder, queue=0), coder, queue=0)
    assert block.messages(1, 5) == []
    assert len(block.messages(-3, 5)) == 1
    with pytest.raises(IndexError):
        block.record(1)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_every_flipped_byte_of_a_group_is_found(codec: str) -> None:
    coder = Coder("lz4" if codec == "lz4" else "zstd")
    encoded = encode([[record(i) for i in range(6)]], coder, queue=0)
    (group,) = encoded.groups
    for at in range(len(group.data)):
        data = bytearray(group.data)
        data[at] ^= 1 << at % 8
        damaged = Encoded([group._replace(data=bytes(data))], encoded.rows)
        with pytest.raises(ArchiveDamaged, match=r"block 0 of archive a\.kvmq") as found:
            decode(damaged, coder, queue=0)[0].records()
        assert (found.value.archive, found.value.block) == ("a.kvmq", 0)


def test_a_group_cut_short_is_damage() -> None:
    coder = Coder()
    encoded = encode([[record(i) for i in range(6)]], coder, queue=0)
    (group,) = encoded.groups
    for size in (1, 5, len(group.data) - 1):
        cut_short = Encoded([group._replace(data=group.data[:size])], encoded.rows)
        with pytest.raises(ArchiveDamaged):
            decode(cut_short, coder, queue=0)


@pytest.mark.parametrize("shift", [1, -1])
def test_a_group_with_other_messages_than_the_directory_says_is_damage(shift: int) -> None:
    coder = Coder()
    encoded = encode([[record(i) for i in range(6)]] * 2, coder, queue=0, group_bytes=1 << 20)
    rows = encoded.rows
    fewer = rows._replace(messages=rows.messages - np.array([1, 0]))
    with pytest.raises(ArchiveDamaged, match="12 messages instead of 11"):
        decode(Encoded(encoded.groups, fewer), coder, queue=0)
    others = rows._replace(messages=rows.messages + np.array([shift, -shift]))
    with pytest.raises(ArchiveDamaged, match="the directory does not say"):
        decode(Encoded(encoded.groups, others), coder, queue=0)
    none = rows._replace(messages=np.array([12, 0]))
    with pytest.raises(ArchiveDamaged):
        decode(Encoded(encoded.groups, none), coder, queue=0)


@given(
    st.binary(max_size=120), st.sampled_from([1, 255]), st.sampled_from(list(PartKind)),
    st.sampled_from([0, 1 << 20]),
)  # fmt: skip
def test_any_payload_is_a_group_or_damage(
    payload: bytes, form: int, kind: PartKind, group_bytes: int
) -> None:
    coder = Coder()
    encoded = encode([[record(0), record(1)], [record(2)]], coder, queue=0, group_bytes=group_bytes)
    group = encoded.groups[0]
    parts, at = [], 0
    for size in group.part_sizes:
        parts.append(group.data[at : at + size])
        at += size
    payload = bytes((form, 3 if group_bytes else 2)) + payload
    parts[kind - 1] = coder.encode(payload, kind=kind)
    sizes = list(group.decoded_sizes)
    sizes[kind - 1] = len(payload)
    damaged = group._replace(
        data=b"".join(parts),
        part_sizes=(len(parts[0]), len(parts[1]), len(parts[2])),
        decoded_sizes=(sizes[0], sizes[1], sizes[2]),
    )
    with contextlib.suppress(ArchiveDamaged, RecordDamaged):
        for block in decode(Encoded([damaged], encoded.rows), coder, queue=0):
            block.records()
            block.messages(0, block.count)


def test_a_block_that_shares_its_group_takes_memory_for_itself_alone() -> None:
    coder = Coder()
    encoded = encode([[record(i)] for i in range(50)], coder, queue=0, group_bytes=1 << 20)
    (group,) = read(encoded, coder, queue=0)
    assert group.block(7).memory_bytes < group.memory_bytes / 25
