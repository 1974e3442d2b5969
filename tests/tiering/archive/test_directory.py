"""Directory, key index and position index: rows come back, bad bytes are an error."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import FormatError
from tiering.archive import indexes
from tiering.archive.columns.integers import bounds_of
from tiering.archive.columns.properties import split_properties
from tiering.archive.directory import (
    GROUP_MIN,
    Directory,
    Group,
    Row,
    decode_rows,
    encode_directory,
)
from tiering.archive.indexes import KeyFences, PositionFences, digests_of, digests_of_many
from tiering.archive.layout import HEADER_SIZE


def total_of(sizes: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    fixed, properties, bodies = zip(*sizes, strict=True) if sizes else ((), (), ())
    return sum(fixed), sum(properties), sum(bodies)


COUNTS = st.integers(0, 3)


class Made(NamedTuple):
    """A directory's topic ids, rows and groups."""

    ids: list[int]
    rows: list[Row]
    groups: list[Group]

    def encoded(self) -> tuple[bytes, int]:
        columns = np.array([row[:10] for row in self.rows], np.int64).reshape(-1, 10).T
        groups = [(group.blocks, *group.part_sizes, *group.decoded_sizes) for group in self.groups]
        group_columns = np.array(groups, np.int64).reshape(-1, 7).T
        payload = encode_directory(self.ids, list(columns), list(group_columns))
        return payload, sum(sum(group.part_sizes) for group in self.groups)


@st.composite
def directories(draw: st.DrawFn) -> Made:
    """Ids of topics, and rows: queues of many blocks and few, with gaps in and between them; groups
    of many blocks and of one.
    """
    ids = draw(st.lists(st.integers(1, (1 << 32) - 1), max_size=5, unique=True))
    shared = draw(st.booleans())
    sizes = st.tuples(*[st.integers(9, 70_000)] * 3)
    rows: list[Row] = []
    groups: list[Group] = []
    for number in range(len(ids)):
        queues = st.sets(st.one_of(st.integers(0, 9), st.just((1 << 32) - 1)), min_size=1)
        for queue in sorted(draw(queues)):
            offset = draw(st.sampled_from([0, 5, 1 << 40]))
            for _ in range(draw(st.integers(1, 6))):
                first = offset + draw(COUNTS)
                messages = draw(st.integers(1, 300))
                offset = first + messages + draw(COUNTS)
                times = sorted(draw(st.tuples(*[st.integers(0, 1 << 42)] * 2)))
                if groups and shared and draw(st.booleans()):
                    groups[-1] = groups[-1]._replace(blocks=groups[-1].blocks + 1)
                else:
                    groups.append(Group(1, draw(sizes), draw(sizes)))
                rows.append(
                    Row(
                        number, queue, first, offset - 1, messages, first * 50, offset * 50,
                        times[0], times[1], messages * 91, len(groups) - 1,
                    )
                )  # fmt: skip
    return Made(ids, rows, groups)


@given(directories())
def test_every_row_comes_back(made: Made) -> None:
    ids, rows, _ = made
    payload, size = made.encoded()
    found = decode_rows(payload, size)
    assert found.topic_ids.tolist() == ids
    assert [found.row(block) for block in range(len(rows))] == rows
    sizes = [tuple(column.tolist()) for column in found.decoded_sizes]
    assert list(zip(*sizes, strict=True)) == [group.decoded_sizes for group in made.groups]


@given(directories())
def test_blocks_are_found_by_topic_queue_and_offset(made: Made) -> None:
    ids, rows, groups = made
    directory = Directory(*made.encoded())
    assert [directory.number_of(topic_id) for topic_id in ids] == list(range(len(ids)))
    assert directory.number_of(0) is None
    ends = np.cumsum([0] + [sum(group.part_sizes) for group in groups]) + HEADER_SIZE
    for block, row in enumerate(rows):
        number, queue = row.topic_number, row.queue
        mine = [b for b, other in enumerate(rows) if other[:2] == row[:2]]
        assert directory.queue_of(block) == (number, queue)
        assert list(directory.blocks_of(number, queue)) == mine
        assert directory.count(block) == row.messages
        assert directory.group_of(block) == row.group
        assert directory.extent(block) == (ends[row.group], groups[row.group].part_sizes)
        fellows = [b for b, other in enumerate(rows) if other.group == row.group]
        shared = range(fellows[0], fellows[-1] + 1)
        assert directory.within(block) == (shared if len(fellows) > 1 else None)
        members = directory.members(block)
        assert members.first == fellows[0]
        found = zip(*(list(column) for column in members[1:]), strict=True)
        assert list(found) == [
            (r.topic_number, r.queue, r.messages, r.first_offset, r.last_offset)
            for r in (rows[b] for b in fellows)
        ]
        assert directory.stored_within(block) == (
            min(rows[b].least_stored_at for b in fellows),
            max(rows[b].greatest_stored_at for b in fellows),
        )
        for offset in (row.first_offset - 1, row.first_offset, row.last_offset):
            wanted = next(b for b in mine if rows[b].last_offset >= offset)
            assert directory.block_at(number, queue, offset) == wanted
        assert directory.block_at(number, queue, rows[mine[-1]].last_offset + 1) is None
    assert directory.blocks == len(rows)
    assert directory.messages == sum(row.messages for row in rows)


@given(directories())
def test_queues_are_listed_in_order(made: Made) -> None:
    _, rows, _ = made
    directory = Directory(*made.encoded())
    listed = list(directory.queues())
    assert [block for _, _, blocks in listed for block in blocks] == list(range(len(rows)))
    assert all(one[:2] < other[:2] for one, other in pairwise(listed))


def test_a_queue_that_is_not_there_has_no_blocks() -> None:
    row = Row(0, 7, 0, 9, 10, 0, 999, 5, 6, 910, 0)
    directory = Directory(*Made([33], [row], [Group(1, (9, 9, 9), (9, 9, 9))]).encoded())
    for queue in (0, 6, 8):
        assert not directory.blocks_of(0, queue)
        assert directory.block_at(0, queue, 0) is None


def test_a_block_takes_few_bytes_of_memory_even_where_each_queue_has_but_one() -> None:
    draw = np.random.default_rng(5)
    rows = []
    for queue in range(40_000):
        first, position, time = (int(n) for n in draw.integers(0, (1 << 20, 1 << 30, 1 << 22)))
        rows.append(
            Row(
                queue // 8, queue % 8, first, first + 24, 25, position, position + 1000,
                time, time + 5000, 27_000, queue // 8,
            )
        )  # fmt: skip
    groups = [Group(8, (1000, 5000, 50_000), (2000, 9000, 200_000))] * 5000
    directory = Directory(*Made(list(range(1, 5001)), rows, groups).encoded())
    assert directory.memory_bytes / len(rows) < 5


@given(st.binary(max_size=120), st.integers(0, 1 << 20))
def test_any_bytes_are_a_directory_or_a_format_error(data: bytes, size: int) -> None:
    try:
        directory = Directory(data, size)
    except FormatError:
        return
    assert directory.groups * GROUP_MIN <= size


@given(directories(), st.data())
def test_a_changed_directory_is_one_or_a_format_error(made: Made, data: st.DataObject) -> None:
    payload, size = made.encoded()
    at = data.draw(st.integers(0, len(payload) - 1))
    changed = payload[:at] + bytes([payload[at] ^ data.draw(st.integers(1, 255))])
    with suppress(FormatError):
        Directory(changed + payload[at + 1 :], size)


def test_a_count_that_the_file_has_no_room_for_is_an_error() -> None:
    with pytest.raises(FormatError, match="that can't be"):
        Directory(b"\0\0\0\1\0\0\0\1" + b"\xff" * 8, 1 << 20)


DIGEST_MAX = (1 << 32) - 1
PAIRS = st.lists(
    st.tuples(st.one_of(st.integers(0, 3), st.integers(0, DIGEST_MAX)), st.integers(0, 5000)),
    min_size=1, max_size=300,
)  # fmt: skip


def key_index(pairs: list[tuple[int, int]]) -> tuple[KeyFences, list[bytes]]:
    digests, ranks = np.array(pairs, np.uint64).T
    joint = np.unique(digests << np.uint64(32) | ranks)
    chunks = list(indexes.encode_key_chunks([joint], len(joint)))
    firsts = np.array([first for first, _ in chunks], np.int64)
    sizes = np.array([len(payload) for _, payload in chunks], np.int64)
    payload = indexes.encode_key_fences(len(joint), firsts, sizes)
    return KeyFences(payload, int(sizes.sum())), [payload for _, payload in chunks]


def find(index: tuple[KeyFences, list[bytes]], low: int, high: int) -> set[int]:
    fences, chunks = index
    return {
        rank
        for chunk in fences.chunks_of(low, high)
        for rank in fences.find(chunk, chunks[chunk], low, high).tolist()
    }


@given(PAIRS, st.integers(0, DIGEST_MAX), st.integers(0, DIGEST_MAX))
def test_a_digest_and_a_range_of_digests_give_all_their_messages(
    pairs: list[tuple[int, int]], one: int, other: int
) -> None:
    index = key_index(pairs)
    for digest, rank in pairs:
        assert rank in find(index, digest, digest)
    low, high = sorted((one, other))
    assert {rank for digest, rank in pairs if low <= digest <= high} <= find(index, low, high)


def test_few_messages_are_found_by_a_digest_that_they_do_not_have() -> None:
    drawn = np.random.default_rng(7).integers(0, 1 << 32, 40_000)
    index = key_index([(int(digest), rank) for rank, digest in enumerate(drawn[:20_000])])
    assert sum(len(find(index, digest, digest)) for digest in drawn[20_000:].tolist()) < 2000


def test_a_key_of_many_messages_is_found_over_several_chunks() -> None:
    others = [(digest, 1) for digest in range(1000, 9_000_000, 1500)]
    index = key_index([(4_000_000, rank) for rank in range(10_000)] + others)
    assert len(index[1]) > 3
    assert set(range(10_000)) <= find(index, 4_000_000, 4_000_000)


def test_a_key_takes_about_a_byte_beside_the_number_of_its_message() -> None:
    drawn = np.random.default_rng(7).integers(0, 1 << 32, 100_000)
    _, chunks = key_index([(int(digest), rank % 2**15) for rank, digest in enumerate(drawn)])
    assert sum(map(len, chunks)) * 8 / 100_000 - 15 < 7.5


@given(st.binary(max_size=80), st.integers(0, 1 << 20))
def test_any_bytes_are_fences_or_a_format_error(data: bytes, size: int) -> None:
    for kind in (KeyFences, PositionFences):
        with suppress(FormatError):
            kind(data, size)


@given(st.binary(max_size=80), st.integers(1, 4096))
def test_any_bytes_are_a_chunk_or_a_format_error(data: bytes, count: int) -> None:
    try:
        placed = indexes.decode_position_chunk(data, count)
    except FormatError:
        return
    assert [len(column) for column in placed] == [count] * 3


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.randoms(), st.booleans())
def test_every_position_says_its_block_and_row(
    counts: list[int], random: object, is_shuffled: bool
) -> None:
    """Blocks' positions rise in a log; nothing breaks where they don't."""
    total = sum(counts)
    shuffle = random.shuffle  # type: ignore[attr-defined]
    where = list(range(0, total * 100, 100))
    shuffle(where)
    starts = np.cumsum(counts) - np.array(counts)
    if not is_shuffled:
        for start, count in zip(starts.tolist(), counts, strict=True):
            where[start : start + count] = sorted(where[start : start + count])
    order = np.argsort(np.array(where))
    rising = np.array(where)[order]
    ((first, payload),) = indexes.encode_position_chunks([(rising, order)], starts)
    assert first == 0
    placed = indexes.decode_position_chunk(payload, total)
    for position, block, row in zip(*(column.tolist() for column in placed), strict=True):
        assert where[int(starts[block]) + row] == position


def test_positions_are_found_over_many_chunks() -> None:
    count = 3 * indexes.CHUNK + 17
    rising = np.cumsum(np.random.default_rng(3).integers(91, 3000, count))
    order = np.arange(count)
    starts = np.arange(0, count, 250)
    chunks = list(indexes.encode_position_chunks([(rising, order)], starts))
    sizes = np.array([len(payload) for _, payload in chunks])
    firsts = np.array([first for first, _ in chunks])
    payload = indexes.encode_position_fences(count, firsts, sizes)
    fences = PositionFences(payload, int(sizes.sum()))
    assert fences.chunk_of(int(rising[0]) - 1) is None
    for rank in range(0, count, 997):
        chunk = fences.chunk_of(int(rising[rank]))
        assert chunk is not None
        placed = indexes.decode_position_chunk(chunks[chunk][1], fences.count(chunk))
        at = rank - chunk * indexes.CHUNK
        assert (placed.positions[at], placed.blocks[at]) == (rising[rank], rank // 250)
        assert placed.rows[at] == rank % 250


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=3).filter(lambda v: b"\2" not in v),
            st.sampled_from([b"", b" ", b"k", b"a b", b" a  b c ", b"\xff"]),
            st.integers(0, 2),
            st.sampled_from(
                [
                    b"UNIQ_KEY\1%b\2KEYS\1%b\2TAGS\1t\2",
                    b"UNIQ_KEY\1%b\2KEYS\1%b",
                    b"KEYS\1x\2UNIQ_KEY\1%b\2KEYS\1%b\2",
                    b"UNIQ_KEY%b\2\2KEYS\1%b\2",
                ]
            ),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_keys_of_many_messages_are_those_of_each(
    rows: list[tuple[bytes, bytes, int, bytes]],
) -> None:
    fields = [row[3] % row[:2] for row in rows]
    ends = bounds_of(list(map(len, fields)))
    found_of = split_properties(b"".join(fields), ends[:-1], ends[1:])
    digests, at = digests_of_many(
        found_of, fields.__getitem__, np.array([row[2] for row in rows], np.int64)
    )
    found: list[set[int]] = [set() for _ in rows]
    for digest, row in zip(digests.tolist(), at.tolist(), strict=True):
        found[row].add(digest)
    assert found == [digests_of(field, row[2]) for field, row in zip(fields, rows, strict=True)]
