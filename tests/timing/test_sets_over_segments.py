"""Sets whose records stand in two segments end as a whole, however the log is written and flushed.

A model knows of each set its messages and its end. Messages are so large that every few sets cross
the end of a segment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import kvstore
from kvstore import Message, Retention, Store, StoreConfig, StoredMessage, TransactionEnded
from kvstore.core.names import TRANSACTION_DISCARD_TOPIC
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import SEGMENT, killed, settings

TOPICS: Final = ("a", "b")
SETS: Final = 60
Bodies = list[tuple[str, bytes]]
"""The topics and bodies of the messages of a set."""


@pytest.fixture(params=[(w, f) for w in ("mapped", "staged") for f in ("async", "sync")])
def config(clock: VirtualClock, request: pytest.FixtureRequest) -> StoreConfig:
    write_mode, flush = request.param
    return settings(clock=clock, write_mode=write_mode, flush=flush, transaction_checks=1)


class Model:
    """The sets that were prepared, and how they ended."""

    def __init__(self, store: Store) -> None:
        self._random = random.Random(17)
        self.waiting: dict[str, Bodies] = {}
        self.committed: list[Bodies] = []
        self.rolled_back: list[str] = []
        for topic in TOPICS:
            store.create_topic(topic, queues=1)

    def prepare(self, store: Store) -> str:
        draw = self._random
        count = draw.choice([2, 3, 3, 5, 40])
        found = [
            (draw.choice(TOPICS), b"%d " % number + bytes(draw.randrange(2000)))
            for number in range(count)
        ]
        with_block = store.transaction(group="pay")
        with_block.put_batch([Message(topic, body, queue=0) for topic, body in found])
        name = with_block.prepare()[0].message_id
        self.waiting[name] = found
        return name

    def commit(self, store: Store, name: str) -> None:
        expected = self.waiting.pop(name)
        self.committed.append(expected)
        (result,) = [one for one in store.commit_batch([name]) if one.message_id == name]
        assert result.topic == expected[0][0]

    def roll_back(self, store: Store, name: str) -> None:
        del self.waiting[name]
        self.rolled_back.append(name)
        store.rollback(name)

    def assert_is(self, store: Store) -> None:
        """All messages of the committed sets came, once, each set together; the others wait."""
        for topic in TOPICS:
            came = [m.body for m in everything(store, topic)]
            assert came == [b for one in self.committed for t, b in one if t == topic]
        waits = [m.message.body for m in store.transactions(limit=10_000).messages]
        assert sorted(waits) == sorted(b for one in self.waiting.values() for _, b in one)
        for name in self.rolled_back:
            with pytest.raises(TransactionEnded):
                store.commit(name)
        assert store.verify().problems == []


def everything(store: Store, topic: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    low, high = store.bounds(topic, 0)
    while low < high:
        page = store.pull(topic, 0, low, limit=1000)
        found += page.messages
        low = page.next_offset
    return found


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_sets_that_cross_the_ends_of_segments_end_as_a_whole(
    tmp_path: Path, config: StoreConfig, is_checkpointed: bool
) -> None:
    with kvstore.open(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        model = Model(store)
        ends: list[Callable[[Store, str], None]] = [model.commit, model.roll_back]
        for n in range(SETS):
            name = model.prepare(store)
            if is_checkpointed and n % 7 == 0:
                store.checkpoint()
            if n % 5:
                ends[n % 2](store, name)
        assert inside.log(store).end > 10 * SEGMENT
        model.assert_is(store)
        for n, name in enumerate(list(model.waiting)):
            ends[n % 2](store, name)
        model.assert_is(store)
        path = store.path
    kvstore.rebuild(path, config=config)
    with kvstore.open(path, config) as again:
        model.assert_is(again)


@pytest.mark.parametrize("answer", ["commit", "rollback", "unknown"])
def test_sets_that_cross_the_ends_of_segments_are_asked_about_and_given_up_as_a_whole(
    tmp_path: Path, clock: VirtualClock, config: StoreConfig, answer: Any
) -> None:
    with kvstore.open(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        model = Model(store)
        names = [model.prepare(store) for _ in range(SETS)]
        asked: list[str] = []

        def check(message: StoredMessage) -> Any:
            asked.append(message.message_id)
            return answer

        store.on_check("pay", check)
        clock.advance(7)
        inside.ask_about_transactions(store)
        assert sorted(asked) == sorted(names)
        if answer == "commit":
            model.committed = [model.waiting.pop(name) for name in asked]
        elif answer == "rollback":
            model.rolled_back, model.waiting = names, {}
        model.assert_is(store)
        if answer == "unknown":
            clock.advance(100)
            inside.ask_about_transactions(store)
            given_up = [m.body for m in everything(store, TRANSACTION_DISCARD_TOPIC)]
            assert sorted(given_up) == sorted(b for one in model.waiting.values() for _, b in one)
            model.rolled_back, model.waiting = names, {}
            model.assert_is(store)


def test_sets_that_cross_the_ends_of_segments_are_moved_as_a_whole_before_these_leave(
    tmp_path: Path, config: StoreConfig
) -> None:
    kept = Retention(max_bytes=8 * SEGMENT)
    config = msgspec.structs.replace(config, retention=kept, delete_interval=0.0)
    with kvstore.open(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        model = Model(store)
        names = [model.prepare(store) for _ in range(12)]
        store.create_topic("c", queues=1)
        for _ in range(2):
            last = inside.log(store).end
            while inside.log(store).end < last + 10 * SEGMENT:
                store.put_batch([Message("c", bytes(2000))] * 20)
            store.apply_retention()
            assert inside.log(store).first >= last // SEGMENT * SEGMENT
        model.assert_is(store)
        for n, name in enumerate(names[:8]):
            (model.roll_back if n % 2 else model.commit)(store, name)
        model.assert_is(store)
        inside.log(store).sync_to_end()
        path = killed(store, tmp_path / "k")
    with kvstore.open(path, config) as again:
        for name in names[8:]:
            model.commit(again, name)
        model.assert_is(again)
