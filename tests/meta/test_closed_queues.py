"""Closed queues, held to a plain list of all that was closed and opened."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import TopicNotFound
from kvstore.meta.closed_queues import ClosedQueues

TOPICS = st.integers(1, 20)
CHANGES = st.lists(st.tuples(st.frozensets(TOPICS, min_size=1), st.none() | st.integers(0, 4)))


def is_closed(closed: ClosedQueues, topic: int, queue: int) -> bool:
    """Whether a late put to a queue is refused."""
    try:
        closed.check([topic << 32 | queue])
    except TopicNotFound:
        return True
    return False


@given(CHANGES)
def test_queues_are_closed_as_the_last_change_of_their_topic_says(
    changes: list[tuple[frozenset[int], int | None]],
) -> None:
    closed = ClosedQueues()
    first_closed = dict.fromkeys(range(1, 22), 1 << 32)
    for topics, queues in changes:
        if queues is None:
            closed.open(topics)
        else:
            closed.keep(topics, queues)
        first_closed |= dict.fromkeys(topics, 1 << 32 if queues is None else queues)
    for topic, first in first_closed.items():
        for queue in (0, 1, 3, 4, 0xFFFFFFFF):
            assert is_closed(closed, topic, queue) is (queue >= first)


def test_one_closed_queue_among_others_refuses_a_late_put() -> None:
    closed = ClosedQueues()
    closed.keep([7], 2)
    closed.check(None)
    closed.check([7 << 32, 7 << 32 | 1, 8 << 32 | 9])
    with pytest.raises(TopicNotFound, match="nothing was put, try again"):
        closed.check([8 << 32, 7 << 32 | 2])


def test_a_hundred_thousand_deleted_topics_take_a_bit_each() -> None:
    closed = ClosedQueues()
    tracemalloc.start()
    try:
        for topic in range(1, 100_001):
            closed.keep([topic], 2)  # it lost queues first
            closed.keep([topic], 0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20_000
