"""Whatever happens to a store, a put is a duplicate if and only if its topic got its id within the
window; a dictionary says so.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import kvstore
from kvstore import Message, PutResult, Retention
from kvstore.engine import repeats
from tests.support.clock import VirtualClock
from tests.support.contents import read_all
from tests.support.stores import SEGMENT, killed, settings

TOPICS = {"short": 5.0, "long": 60.0, "unindexed": 20.0}
IDS = st.none() | st.sampled_from("abcdefgh")
MESSAGES = st.tuples(st.sampled_from(sorted(TOPICS)), IDS, st.sampled_from([0, 100, 6000]))


class DedupModel(RuleBasedStateMachine):
    """A store, and what it should remember."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.name = 0
        self.clock = VirtualClock()
        self.windows = dict(TOPICS)
        self.known: dict[tuple[str, str], tuple[int, PutResult]] = {}
        """When an id was put, and its result."""
        self.count = 0
        """How many messages there should be."""
        self.last_stored = 0
        self.store = self.open()
        for topic, window in TOPICS.items():
            key_index: Any = "off" if topic == "unindexed" else None
            self.store.create_topic(topic, queues=2, dedup_window=window, key_index=key_index)

    def config(self) -> kvstore.StoreConfig:
        return settings(
            clock=self.clock,
            checkpoint_interval=1e9,
            retention_interval=1e9,
            retention=Retention(hot_for=0),
        )

    @property
    def path(self) -> Path:
        return self.folder / str(self.name)

    def open(self) -> kvstore.Store:
        return kvstore.open(self.path, self.config())

    @rule(messages=st.lists(MESSAGES, min_size=1, max_size=12))
    def put(self, messages: list[tuple[str, str | None, int]]) -> None:
        given = [Message(topic, bytes(size), dedup_id=one) for topic, one, size in messages]
        self._check(given, self.store.put_batch(given))

    @rule(topic=st.sampled_from(sorted(TOPICS)), ids=st.lists(IDS, min_size=1, max_size=12))
    def put_columns(self, topic: str, ids: list[str | None]) -> None:
        rows = {"body": [b""] * len(ids), "dedup_id": pa.array(ids, pa.string())}
        done = self.store.put_columns(topic, pa.record_batch(rows))
        results = done.results()
        assert done.duplicates == sum(result.duplicate for result in results)
        self._check([Message(topic, b"", dedup_id=one) for one in ids], results)

    def _check(self, given: list[Message], results: list[PutResult]) -> None:
        now = self.last_stored = max(self.clock.now_ms(), self.last_stored)
        for message, result in zip(given, results, strict=True):
            if message.dedup_id is None:
                assert not result.duplicate
                self.count += 1
                continue
            key = message.topic, message.dedup_id
            known = self.known.get(key)
            if known is not None and now - known[0] <= self.windows[message.topic] * 1000:
                first = known[1]
                assert result == PutResult(
                    first.message_id, first.topic, first.queue, first.offset, first.position,
                    first.size, first.status, True,
                )  # fmt: skip
            else:
                assert not result.duplicate, (key, known, now)
                self.known[key] = now, result
                self.count += 1

    @rule(seconds=st.sampled_from([0.001, 1, 5, 20, 61]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-30, -3, 3]))
    def step_clock(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule(topic=st.sampled_from(sorted(TOPICS)), window=st.sampled_from([1.0, 5.0, 60.0]))
    def alter(self, topic: str, window: float) -> None:
        self.store.alter_topic(topic, dedup_window=window)
        self.windows[topic] = window

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def seal(self) -> None:
        self.store.seal()

    @rule()
    def close(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule()
    def kill(self) -> None:
        before, self.name = self.store, self.name + 1
        killed(before, self.path)
        before.close()
        self.store = self.open()

    @rule()
    def rebuild(self) -> None:
        self.store.close()
        kvstore.rebuild(self.path, self.config())
        self.store = self.open()

    @invariant()
    def is_whole(self) -> None:
        assert sum(len(found) for found in read_all(self.store).values()) == self.count

    def teardown(self) -> None:
        problems = self.store.verify().problems
        self.store.close()
        shutil.rmtree(self.folder)
        assert problems == []


@pytest.mark.parametrize("most", [3, 1 << 20])
def test_a_put_is_a_duplicate_where_a_dictionary_says_so(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where memory has room for few ids."""
    assert SEGMENT >= 12 * 6000 / 2
    monkeypatch.setattr(repeats, "IDS_MAX", most)
    case = DedupModel.TestCase
    case.settings = hypothesis_settings(max_examples=10, stateful_step_count=25, deadline=None)
    case().runTest()
