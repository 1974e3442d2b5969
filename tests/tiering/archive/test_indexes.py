"""Key and position index: pairs and places come back chunk by chunk; bad bytes are an error."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import FormatError
from tiering.archive import indexes
from tiering.archive.columns.properties import split_uniform
from tiering.archive.indexes import KeyFences, PositionFences, digests_in_columns, digests_of

DIGEST_MAX = (1 << 32) - 1
PAIRS = st.lists(
    st.tuples(st.one_of(st.integers(0, 3), st.integers(0, DIGEST_MAX)), st.integers(0, 5000)),
    min_size=1, max_size=300,
)  # fmt: skip


def key_index(pairs: list[tuple[int, int]]) -> tuple[KeyFences, list[bytes]]:
    digests, ranks = np.array(pairs, np.uint32).T
    joint = indexes.sort_pairs(digests, ranks)
    chunks = list(indexes.encode_key_chunks(joint))
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
    ((first, payload),) = indexes.encode_position_chunks(rising, order, starts)
    assert first == 0
    placed = indexes.decode_position_chunk(payload, total)
    for position, block, row in zip(*(column.tolist() for column in placed), strict=True):
        assert where[int(starts[block]) + row] == position


def test_positions_are_found_over_many_chunks() -> None:
    count = 3 * indexes.CHUNK + 17
    rising = np.cumsum(np.random.default_rng(3).integers(91, 3000, count))
    order = np.arange(count)
    starts = np.arange(0, count, 250)
    chunks = list(indexes.encode_position_chunks(rising, order, starts))
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
        ),
        min_size=1,
        max_size=20,
    )
)
def test_keys_of_many_messages_are_those_of_each(rows: list[tuple[bytes, bytes, int]]) -> None:
    fields = [b"UNIQ_KEY\1%b\2KEYS\1%b\2TAGS\1t\2" % row[:2] for row in rows]
    even = split_uniform(fields)
    assert even is not None
    digests, at = digests_in_columns(even.columns, np.array([row[2] for row in rows], np.int64))
    found: list[set[int]] = [set() for _ in rows]
    for digest, row in zip(digests.tolist(), at.tolist(), strict=True):
        found[row].add(digest)
    assert found == [digests_of(field, row[2]) for field, row in zip(fields, rows, strict=True)]
