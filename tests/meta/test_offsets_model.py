"""Offsets and their history against a dictionary, with a clock of the test's, over reopenings."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kvstore
from kvstore import GroupConfig, StoreConfig
from tests.support import inside
from tests.support.clock import START_MS, VirtualClock
from tests.support.segment_files import batch
from tests.support.stores import SEGMENT

GROUPS: Final = ("a", "b")
QUEUES: Final = 2
KEPT: Final = 100.0
INTERVAL: Final = 2.0
groups = st.sampled_from(GROUPS)
queues = st.integers(0, QUEUES - 1)
shares = st.floats(0, 1)

Key = tuple[str, int]


class OffsetsMachine(RuleBasedStateMachine):
    """The model: what is committed, and per stretch of time the last commit and when it was."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = VirtualClock(START_MS)
        self.ends = [0] * QUEUES
        self.committed: dict[Key, int] = {}
        self.history: dict[Key, dict[int, tuple[int, int]]] = {}
        self.last_ms = 0
        self.newest_ms = 0
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            segment_size=SEGMENT,
            clock=self.clock,
            offset_history_for=KEPT,
            offset_history_interval=INTERVAL,
        )
        self.store = kvstore.open(Path(self.folder.name) / "store", config)

    @initialize()
    def make(self) -> None:
        self.store.create_topic("t", queues=QUEUES)
        self.store.create_groups([GroupConfig(name=name) for name in GROUPS])

    def note(self, key: Key, offset: int) -> None:
        self.last_ms = max(self.last_ms, self.clock.now_ms())
        stretch = self.last_ms // round(INTERVAL * 1000)
        self.committed[key] = offset
        self.history.setdefault(key, {})[stretch] = (self.last_ms, offset)

    @rule(queue=queues, count=st.integers(1, 5))
    def put(self, queue: int, count: int) -> None:
        self.store.put_batch(batch("t", count, queue=queue))
        self.ends[queue] += count

    @rule(group=groups, queue=queues, share=shares)
    def commit(self, group: str, queue: int, share: float) -> None:
        offset = round(share * self.ends[queue])
        if self.committed.get((group, queue)) != offset:
            self.store.commit_offset(group, "t", queue, offset)
            self.note((group, queue), offset)

    @rule(given=st.lists(st.tuples(groups, queues, shares), max_size=6), sync=st.booleans())
    def commit_batch(self, given: list[tuple[str, int, float]], sync: bool) -> None:
        wanted = {(g, q): round(share * self.ends[q]) for g, q, share in given}
        wanted = {k: offset for k, offset in wanted.items() if self.committed.get(k) != offset}
        self.store.commit_offsets([(g, "t", q, o) for (g, q), o in wanted.items()], sync=sync)
        for key, offset in wanted.items():
            self.note(key, offset)

    @rule(group=groups, to_end=st.booleans())
    def reset(self, group: str, to_end: bool) -> None:
        found = self.store.reset_offset(group, "t", to="end" if to_end else "begin")
        assert found == {q: self.ends[q] if to_end else 0 for q in range(QUEUES)}
        for queue, offset in found.items():
            self.note((group, queue), offset)

    @rule(seconds=st.sampled_from([0.001, 0.5, 1.9, 2, 7, 60, 101]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-50, -3, 30]))
    def step(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule()
    def sweep(self) -> None:
        inside.offsets(self.store).history_rows.sweep()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.last_ms = 0
        self.open()

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        self.store.delete_group(group)
        self.store.create_group(group)
        self.forget(group)

    @rule()
    def delete_topic(self) -> None:
        self.store.delete_topic("t")
        self.store.create_topic("t", queues=QUEUES)
        self.ends = [0] * QUEUES
        for group in GROUPS:
            self.forget(group)

    def forget(self, group: str) -> None:
        for queue in range(QUEUES):
            self.committed.pop((group, queue), None)
            self.history.pop((group, queue), None)

    @invariant()
    def is_as_the_model(self) -> None:
        now = self.clock.now_ms()
        self.newest_ms = max(self.newest_ms, now)
        oldest, gone = (at - round(KEPT * 1000) for at in (now, self.newest_ms))
        for group in GROUPS:
            for queue in range(QUEUES):
                key = (group, queue)
                assert self.store.committed_offset(group, "t", queue) == self.committed.get(key)
                found = self.store.offset_history(group, "t", queue)
                kept = sorted(self.history.get(key, {}).values(), key=lambda row: row[0])
                rows = [(c.committed_at, c.offset) for c in found]
                # A row that was too old before the clock was set back may have been swept away.
                assert [r for r in rows if r[0] >= gone] == [r for r in kept if r[0] >= gone]
                assert rows == [r for r in kept if r in rows and r[0] >= oldest]

    @invariant()
    def lag_is_what_is_left(self) -> None:
        for group in GROUPS:
            for lag in self.store.lag(group, "t"):
                wanted = self.ends[lag.queue] - self.committed.get((group, lag.queue), 0)
                assert (lag.lag, lag.end) == (wanted, self.ends[lag.queue])

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


TestOffsets = OffsetsMachine.TestCase
TestOffsets.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
