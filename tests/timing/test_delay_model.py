"""Delayed messages against a plain dictionary: each comes once, at its time, or is cancelled.

The model knows when each message is due, and in which order messages came. The store is closed,
killed, rebuilt and checkpointed in between; its clock is stepped.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvstore
from kvstore import DelayEnded, Message, Store
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import killed, settings

TOPICS: Final = ("a", "b")
DELAYS: Final = st.sampled_from([1, 2, 2, 3, 5, 60])


class DelayMachine(RuleBasedStateMachine):
    """The store and the dictionary."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvmq-delays-"))
        self.clock = VirtualClock()
        self.config = settings(clock=self.clock)
        self.path = self.folder / "store"
        self.number = 0
        self.waiting: dict[int, tuple[int, int]] = {}
        """Of each message: when it is due, and its place among records that say so."""
        self.order = 0
        self.topic_of: dict[int, str] = {}
        self.ids: dict[int, str] = {}
        self.came: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.cancelled: set[int] = set()
        self.ended = [0, 0]
        """How many were delivered and cancelled since the opening."""
        self.store = kvstore.open(self.path, self.config)
        for topic in TOPICS:
            self.store.create_topic(topic, queues=1)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def _note(self, number: int, due: int) -> None:
        self.waiting[number] = due, self.order
        self.order += 1

    def _settle(self) -> None:
        """Has all that is due delivered, in the store and in the dictionary."""
        inside.deliver_due(self.store)
        now = self.clock.now_ms()
        due = sorted((when, n) for n, when in self.waiting.items() if when[0] <= now)
        for _, number in due:
            del self.waiting[number]
            self._deliver(number)

    def _deliver(self, number: int) -> None:
        self.came[self.topic_of[number]].append(number)
        self.ended[0] += 1

    def _cancel(self, number: int) -> None:
        del self.waiting[number]
        self.cancelled.add(number)
        self.ended[1] += 1

    # --- puts ---

    @rule(drafts=st.lists(st.tuples(st.sampled_from(TOPICS), DELAYS), min_size=1, max_size=5))
    def put(self, drafts: list[tuple[str, int]]) -> None:
        self._settle()
        now = self.clock.now_ms()
        messages = []
        first = self.number
        for topic, seconds in drafts:
            messages.append(Message(topic, b"%d" % self.number, delay=seconds))
            self.topic_of[self.number] = topic
            self._note(self.number, now + 1000 * seconds)
            self.number += 1
        for number, result in enumerate(self.store.put_batch(messages), first):
            self.ids[number] = result.message_id

    @rule(data=st.data())
    @precondition(lambda self: self.ids)
    def cancel(self, data: Any) -> None:
        self._settle()
        number = data.draw(st.sampled_from(sorted(self.ids)))
        will_not_come = number in self.waiting or number in self.cancelled
        assert self.store.cancel(self.ids[number]) is will_not_come
        if number in self.waiting:
            self._cancel(number)

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self._settle()
        went = [number for number in self.waiting if self.topic_of[number] == topic]
        assert self.store.delete_topic(topic) == len(went)
        for number in went:
            self._cancel(number)
        self.came[topic] = []
        self.store.create_topic(topic, queues=1)

    @rule(data=st.data(), seconds=st.sampled_from([0, 1, 4, 30]))
    @precondition(lambda self: self.ids)
    def change(self, data: Any, seconds: int) -> None:
        self._settle()
        number = data.draw(st.sampled_from(sorted(self.ids)))
        if number not in self.waiting:
            with pytest.raises(DelayEnded) as e:
                self.store.change_delay(self.ids[number], delay=seconds)
            assert e.value.is_cancelled is (number in self.cancelled)
            return
        due = self.store.change_delay(self.ids[number], delay=seconds)
        assert due == self.clock.now_ms() + 1000 * seconds
        del self.waiting[number]
        if seconds:
            self._note(number, due)
        else:
            self._deliver(number)

    # --- time ---

    @rule(seconds=st.sampled_from([1, 1, 2, 5]))
    def advance(self, seconds: int) -> None:
        self._settle()
        self.clock.advance(seconds)
        self._settle()

    @rule(seconds=st.sampled_from([-7200, -3, 2, 600]))
    def step(self, seconds: int) -> None:
        self._settle()
        self.clock.step(seconds)
        self._settle()

    # --- openings ---

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def seal(self) -> None:
        self.store.seal()

    def _opened(self, path: Path) -> Store:
        self.path = path
        self.ended = [0, 0]
        return kvstore.open(path, self.config)

    @rule()
    def reopen(self) -> None:
        self._settle()
        self.store.close()
        self.store = self._opened(self.path)

    @rule()
    def kill(self) -> None:
        self._settle()
        path = killed(self.store, self.folder / f"killed-{self.order}-{self.clock.now_ms()}")
        self.store.close()
        self.order += 1
        self.store = self._opened(path)

    @rule()
    def rebuild(self) -> None:
        self._settle()
        self.store.close()
        kvstore.rebuild(self.path, config=self.config)
        self.store = self._opened(self.path)

    # --- what holds ---

    @invariant()
    def each_came_once_in_order_and_the_others_wait(self) -> None:
        if not hasattr(self, "store"):
            return
        self._settle()
        for topic in TOPICS:
            found = self.store.pull(topic, 0, 0, limit=1000).messages
            assert [int(m.body) for m in found] == self.came[topic]
            mine = {n: when for n, when in self.waiting.items() if self.topic_of[n] == topic}
            page = self.store.timers(topic, limit=1000)
            assert [int(one.message.body) for one in page.messages] == sorted(
                mine, key=mine.__getitem__
            )
            assert page.count == len(mine)
        stats = self.store.stats().delays
        assert [stats.delivered, stats.cancelled] == self.ended
        assert stats.waiting == len(self.waiting)


TestDelays = DelayMachine.TestCase
TestDelays.settings = hypothesis_settings(
    hypothesis_settings.default, max_examples=40, stateful_step_count=30
)
