"""The tail finds entries by queue and by key, in whatever order they come; held to lists."""

from __future__ import annotations

import gc
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.queue_offsets import QueueOffsets
from kvstore.core.tail import Tail
from kvstore.message import Message, PutStatus
from tests.core.test_encoding import encoder
from tests.support.tails import keys_of

TOPIC = 7
QUEUE = TOPIC << 32 | 3
END = 1 << 62
Key = tuple[int, int, int]
"""Queue, position, hash."""


def add(tail: Tail, *rows: list[int], queue: int = QUEUE) -> None:
    """Add rows, each with these hashes of keys; row n of all stands at position 100 * n."""
    first = len(tail)
    numbers = range(first, first + len(rows))
    entries = [(queue, n, 100 * n, 100, 0, 5) for n in numbers]
    keys = [(queue, 100 * n, found) for n, row in zip(numbers, rows, strict=True) for found in row]
    tail.add_found(np.array(entries, np.int64), np.array(keys, np.int64))


def test_keys_are_found_as_they_come() -> None:
    tail = Tail(0)
    add(tail, [1, 2], [], [1])
    assert tail.find_key(1 << 8) == [0, 200]
    add(tail, [2], [1, 3])
    assert tail.find_key(1 << 8 | 77) == [0, 200, 400]
    assert tail.find_key(2 << 8) == [0, 300]
    assert tail.find_key(4 << 8) == []
    assert (len(tail), tail.keys_held) == (5, 6)


@pytest.mark.parametrize("looked", [False, True])
def test_what_a_failed_put_added_is_gone_in_every_way_of_looking(looked: bool) -> None:
    """Also where somebody looked in between."""
    tail = Tail(0)
    add(tail, [1], [])
    add(tail, [1, 2], [2])
    if looked:
        assert tail.find_key(2 << 8) == [200, 300]
        assert tail.bounds(QUEUE, END) == (0, 4)
        assert tail.topic_bytes() == {TOPIC: 400}
    batch = encoder().prepare([Message("t", b"x")], 0)
    tail.take_back(batch, QueueOffsets(lambda queue: 0), 200)
    assert len(tail) == 2
    assert tail.find_key(2 << 8) == []
    assert tail.bounds(QUEUE, END) == (0, 2)
    assert tail.topic_bytes() == {TOPIC: 200}
    assert keys_of(tail) == [(TOPIC, 0, 1)]
    add(tail, [2])
    assert tail.find_key(2 << 8) == [200]
    assert tail.bounds(QUEUE, END) == (0, 3)
    assert tail.topic_bytes() == {TOPIC: 300}
    assert keys_of(tail) == [(TOPIC, 0, 1), (TOPIC, 200, 2)]
    assert tail.entry_columns()[1].tolist() == [0, 1, 2]


def test_offsets_of_a_failed_put_are_given_again() -> None:
    """To each of its queues, of which one occurs twice and one is new."""
    tail, offsets = Tail(0), QueueOffsets(lambda queue: 10)
    first = encoder().prepare([Message("t", b"", queue=0)], 0)
    tail.add(first, offsets, 0, 1 << 30, 0)
    failed = encoder().prepare([Message("t", b"", queue=n) for n in (0, 1, 0)], 0)
    tail.add(failed, offsets, 500, 1 << 30, 0)
    for _ in range(2):  # as often as one likes
        tail.take_back(failed, offsets, 500)
    assert len(tail) == 1
    again = encoder().prepare([Message("t", b"", queue=n) for n in (1, 0)], 0)
    tail.add(again, offsets, 500, 1 << 30, 0)
    assert [found.offset for found in again.results(PutStatus.WRITTEN)] == [10, 11]


def test_offsets_learn_of_the_queues_that_a_tail_has() -> None:
    tail, offsets = Tail(0), QueueOffsets(lambda queue: 0)
    batch = encoder().prepare([Message("t", b"", queue=1)], 0)
    entries = [(batch.queue_keys[0], 40 + n, 100 * n, 100, 0, 5) for n in range(3)]
    tail.add_found(np.array(entries, np.int64), np.zeros(0, np.int64))
    tail.tell_ends(offsets)
    tail.add(batch, offsets, 300, 1 << 30, 0)
    assert batch.results(PutStatus.WRITTEN)[0].offset == 43


def test_a_tail_refuses_half_an_entry() -> None:
    with pytest.raises(ValueError, match="six numbers"):
        Tail(0).add_found(np.zeros(7, np.int64), np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="six numbers"):
        Tail(0).add_found(np.zeros(0, np.int64), np.zeros(2, np.int64))


def test_an_offset_beyond_the_largest_number_goes_round() -> None:
    tail = Tail(0)
    largest = (1 << 63) - 1
    entries = [(QUEUE, largest, 100 * n, 100, 0, 5) for n in range(2)]
    tail.add_found(np.array(entries, np.int64), np.zeros(0, np.int64))
    assert tail.bounds(QUEUE, 1) == (largest, -largest - 1)
    assert tail.first_within(QUEUE, 1, END) == -largest - 1


QUEUES = st.sampled_from([0, 1, QUEUE, 1 << 40, (1 << 63) + 5])


@given(
    st.lists(st.tuples(QUEUES, st.lists(st.integers(0, 5), max_size=3)), max_size=60),
    st.lists(st.integers(0, 60), max_size=3),
)
def test_a_tail_finds_what_lists_find(rows: list[tuple[int, list[int]]], looks: list[int]) -> None:
    tail = Tail(0)
    queues: dict[int, list[int]] = defaultdict(list)
    keys: list[Key] = []
    entries = []
    for n, (queue, found) in enumerate(rows):
        entry = (queue, 9 + len(queues[queue]), 10 * n, 10, n, n)
        queues[queue].append(10 * n)
        mine = [(queue, 10 * n, key) for key in found]
        added = np.array([entry], np.uint64), np.array(mine, np.uint64)
        tail.add_found(*(column.view(np.int64) for column in added))
        entries.append(entry)
        keys += mine
        if n in looks:
            assert tail.bounds(queue, END) == (9, 9 + len(queues[queue]))
            assert tail.find_key(3 << 8) == [position for _, position, key in keys if key == 3]
    for queue, positions in queues.items():
        assert queue in tail
        for end in (0, 1, 10, 300, END):
            below = [p for p in positions if p < end]
            assert tail.bounds(queue, end) == (9, 9 + len(below))
            within = [9 + i for i, p in enumerate(positions) if 200 <= p < end]
            assert tail.first_within(queue, 200, end) == (within[0] if within else None)
        for offset in range(7, 12 + len(positions)):
            expected = positions[offset - 9 :][:4] if offset >= 9 else []
            assert tail.positions(queue, offset, 4) == expected
    assert 999 not in tail
    assert tail.bounds(999, END) is None
    assert tail.positions(QUEUE, 9, -1) == []
    by_queue = sorted(entries, key=lambda entry: entry[0])
    assert [tuple(row) for row in tail.entry_columns().view(np.uint64).T.tolist()] == by_queue


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 0xFFFFFFFF)), max_size=40),
    st.lists(st.integers(0, 300), min_size=40, max_size=40),
    st.integers(1, 500),
)
def test_the_keys_of_a_tail_come_by_segment_with_their_topics_bytes(
    found: list[tuple[int, int]], steps: list[int], segment_size: int
) -> None:
    tail = Tail(0)
    positions = [sum(steps[: n + 1]) for n in range(len(found))]
    keys = [(t << 32, at, key) for (t, key), at in zip(found, positions, strict=True)]
    tail.add_found(np.zeros(0, np.int64), np.array(keys, np.int64).reshape(-1, 3))
    pairs = tail.key_pairs(segment_size, b"\x05\x00\xff\x80")
    assert [segment for segment, *_ in pairs] == sorted({at // segment_size for at in positions})
    assert [
        (segment * segment_size + position, digest)
        for segment, *columns in pairs
        for digest, position in zip(*(column.tolist() for column in columns), strict=True)
    ] == [
        (at, key << 8 | b"\x05\x00\xff\x80"[t])
        for (t, key), at in zip(found, positions, strict=True)
    ]
    if found:
        with pytest.raises(IndexError):
            tail.key_pairs(segment_size, b"")


def test_a_tail_in_a_cycle_of_garbage_is_collected() -> None:
    """The collector clears the members of a cycle's objects before it frees them."""

    class Holder:
        def __init__(self) -> None:
            self.tail = Tail(0)
            self.offsets = QueueOffsets(self.end)

        def end(self, queue: int) -> int:
            return queue

    holder: Holder | None = None
    for _ in range(100):
        holder = Holder()
        add(holder.tail, [1], [2])
        assert holder.tail.find_key(1 << 8) == [0]
        assert QUEUE in holder.tail
    holder = None
    gc.collect()
