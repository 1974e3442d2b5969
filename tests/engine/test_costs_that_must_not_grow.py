"""A call takes as many operations in a log of 10 or 100 segments as in one of 1 segment.

Operations are counted, times are not: RocksDB's seeks, steps and gets, and maps and reads of files.
Of what may grow with the logarithm of the log's length the allowance is said beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, Store, StoreConfig, TopicConfig
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.costs import Costs
from tests.support.stores import SEGMENT

SIZES = (1, 10, 100)
EACH = 12
"""Messages of a segment."""


class Growing:
    """A store that gets more segments, quiet beside what a test asks."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, VirtualClock()
        self.segments = 0
        self.asked = 0
        self.store = self.open()
        self.store.create_topic("t", queues=2)
        self.store.create_group("g")

    def open(self) -> Store:
        config = StoreConfig(
            segment_size=SEGMENT,
            clock=self.clock,
            checkpoint_interval=1e9,
            retention_interval=1e9,
            offset_sync_interval=1e9,
        )
        self.store = kvstore.open(self.path, config)
        inside.stop_housekeepers(self.store)
        return self.store

    def grow(self, segments: int) -> None:
        """Have so many segments, their keys merged; the groups keep up."""
        store = self.store
        for number in range(self.segments, segments):
            store.put_batch(
                [
                    Message("t", b"x" * 200, queue=n % 2, keys=(f"k{number}-{n}", "all"))
                    for n in range(EACH)
                ]
            )
            self.clock.advance(10)
            store.seal()
            while inside.index(store).merge_due():
                inside.index(store).merge_next()
            if number < segments - 1:
                popped = store.pop("g", "t", limit=EACH * 2)
                store.ack_batch([one.receipt for one in popped])
        self.segments = segments

    # --- what is asked; each leaves the store as it was, or nearly ---

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def put(self) -> None:
        self.store.put_batch([Message("t", b"x", queue=0, keys=("late",))])

    def get_oldest(self) -> None:
        self.store.get("t", 0, self.store.bounds("t", 0).min_offset)

    def get_newest(self) -> None:
        self.store.get("t", 0, self.store.bounds("t", 0).next_offset - 1)

    def get_in_the_middle(self) -> None:
        self.store.get("t", 1, self.store.bounds("t", 1).next_offset // 2)

    def pop_and_ack(self) -> None:
        (popped,) = self.store.pop("g", "t", limit=1)
        self.store.ack(popped.receipt)

    def query_oldest(self) -> None:
        assert len(self.store.query("t", "k0-3")) == 1

    def query_newest(self) -> None:
        assert len(self.store.query("t", f"k{self.segments - 1}-3")) == 1

    def query_nowhere(self) -> None:
        self.asked += 1
        for n in range(20):
            assert self.store.query("t", f"nowhere-{self.asked}-{n}") == []

    def query_common(self) -> None:
        assert len(self.store.query("t", "all", limit=5)) == 5

    def query_of_a_time(self) -> None:
        now = self.clock.now_ms()
        assert self.store.query("t", "all", begin=now - 10_000, end=now - 9_000, limit=5)

    def offset_at_a_time(self) -> None:
        self.store.offset_at("t", 0, self.clock.now_ms() - self.segments * 5_000)

    def lag(self) -> None:
        self.store.lag("g", "t")


ASKED: dict[str, tuple[Callable[[Growing], None], int]] = {
    "open": (Growing.reopen, 0),
    "put": (Growing.put, 0),
    "get the oldest": (Growing.get_oldest, 0),
    "get the newest": (Growing.get_newest, 0),
    "get one in the middle": (Growing.get_in_the_middle, 0),
    "pop and ack": (Growing.pop_and_ack, 0),
    "lag": (Growing.lag, 0),
    # A filter in forty says yes; the log of 100 segments has 1 + 4 + 4 parts.
    "query the oldest": (Growing.query_oldest, 2),
    "query the newest": (Growing.query_newest, 2),
    "twenty queries for nothing": (Growing.query_nowhere, 12),
    "query a common key": (Growing.query_common, 2),
    "query within a time": (Growing.query_of_a_time, 2),
    # Bisected: the logarithm of the offsets, in seeks.
    "an offset by time": (Growing.offset_at_a_time, 16),
}
"""The call, and how many more operations it may take in ten times as many segments."""


def test_no_call_costs_more_in_a_hundred_segments_than_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(monkeypatch)
    growing = Growing(tmp_path / "a")
    found: dict[str, list[Counter[str]]] = {name: [] for name in ASKED}
    for size in SIZES:
        growing.grow(size)
        for name, (ask, _) in ASKED.items():
            ask(growing)  # what is kept in memory is there from here on
            with costs.counting() as counts:
                ask(growing)
            found[name].append(counts)
    growing.store.close()
    for name, (_, more) in ASKED.items():
        one, ten, hundred = (counts.total() for counts in found[name])
        # The first segment is also the one behind which nothing comes.
        assert ten <= one + more + 3, f"{name}: {found[name]}"
        assert hundred <= ten + more, f"{name}: {found[name]}"


def test_the_first_look_for_a_key_costs_a_filter_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a store that was just opened: the parts' heads, then a piece of each filter."""
    costs = Costs(monkeypatch)
    growing = Growing(tmp_path / "a")
    growing.grow(70)
    growing.reopen()
    parts = len(inside.keys(growing.store).parts())
    assert parts <= 1 + 7
    with costs.counting() as counts:
        growing.store.query("t", "nowhere")
    assert counts.total() <= 3 * parts
    with costs.counting() as again:
        growing.store.query("t", "nowhere")
    assert again.total() <= 2
    growing.store.close()


def test_stats_do_not_cost_more_with_more_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look counted all topics' rows: 34 ms with 40,000 of them."""
    costs = Costs(monkeypatch)
    growing = Growing(tmp_path / "a")
    store, found = growing.store, []
    for topics in (10, 100, 1000):
        there = store.stats().topics
        store.create_topics([TopicConfig(name=f"t{n}") for n in range(there, topics)])
        store.delete_topic(f"t{there}")
        store.create_topic(f"t{there}")
        with costs.counting() as counts:
            assert store.stats().topics == topics
        found.append(counts.total())
    assert found[0] == found[1] == found[2]
    assert len(store.topics()) == 1000
    growing.store.close()
