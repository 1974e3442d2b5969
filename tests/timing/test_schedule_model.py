"""Schedules against plain arithmetic: each message comes once, at its time, whatever happens.

The model knows the times of each schedule, and counts those that passed while the store was open.
The store is closed, killed, rebuilt and checkpointed in between.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvstore
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import killed, settings

GRACE: Final = 60_000
NAMES: Final = ("one", "two", "three")


@dataclass
class Model:
    """A schedule: when it was made, its interval in ms, and the times that were put."""

    begin: int
    every: int
    missed: str
    done: int
    """No time up to here is put any more."""
    is_paused: bool = False
    came: list[int] = field(default_factory=list)

    def settle(self, now: int) -> None:
        """Puts what is due."""
        if self.is_paused:
            return
        first = self.begin + ((self.done - self.begin) // self.every + 1) * self.every
        due = list(range(first, now + 1, self.every))
        if due and self.missed != "all":
            due = due[-1:]
            if self.missed == "skip" and now - due[0] > GRACE:
                due = []
        self.came += due
        self.done = now


class ScheduleMachine(RuleBasedStateMachine):
    """The store and the models."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvmq-schedules-"))
        self.clock = VirtualClock()
        self.config = settings(clock=self.clock)
        self.path = self.folder / "store"
        self.copies = 0
        self.models: dict[str, Model] = {}
        self.store = kvstore.open(self.path, self.config)
        for name in NAMES:
            self.store.create_topic(name, queues=1)
        self.gone: dict[str, list[int]] = {name: [] for name in NAMES}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def _settle(self) -> None:
        inside.deliver_due(self.store)
        for model in self.models.values():
            model.settle(self.clock.now_ms())

    # --- calls ---

    @rule(
        name=st.sampled_from(NAMES),
        every=st.sampled_from([1, 7, 60, 1.5]),
        missed=st.sampled_from(["skip", "once", "all"]),
    )
    def create(self, name: str, every: float, missed: Any) -> None:
        self._settle()
        if name in self.models:
            return
        self.store.schedule(name, name, b"x", every=every, missed=missed)
        now = self.clock.now_ms()
        self.models[name] = Model(now, round(every * 1000), missed, now)

    @rule(name=st.sampled_from(NAMES))
    def pause_or_resume(self, name: str) -> None:
        self._settle()
        model = self.models.get(name)
        if model is None:
            return
        if model.is_paused:
            assert not self.store.resume_schedule(name).is_paused
            model.done = self.clock.now_ms()
        else:
            assert self.store.pause_schedule(name).is_paused
        model.is_paused = not model.is_paused

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self._settle()
        model = self.models.pop(name, None)
        if model is not None:
            self.store.delete_schedule(name)
            self.gone[name] += model.came

    # --- time ---

    @rule(seconds=st.sampled_from([1, 2, 5, 30]))
    def advance(self, seconds: int) -> None:
        self._settle()
        for _ in range(seconds):
            self.clock.advance(0.5)
            self._settle()
            self.clock.advance(0.5)
            self._settle()

    # --- openings ---

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def seal(self) -> None:
        self.store.seal()

    @rule(seconds=st.sampled_from([0, 1, 20, 90, 400]))
    def reopen(self, seconds: int) -> None:
        self._settle()
        self.store.close()
        self.clock.step(seconds)
        self.store = kvstore.open(self.path, self.config)

    @rule(seconds=st.sampled_from([0, 1, 20, 90, 400]))
    def kill(self, seconds: int) -> None:
        self._settle()
        self.copies += 1
        self.path = killed(self.store, self.folder / f"killed-{self.copies}")
        self.store.close()
        self.clock.step(seconds)
        self.store = kvstore.open(self.path, self.config)

    @rule(seconds=st.sampled_from([0, 5]))
    def rebuild(self, seconds: int) -> None:
        self._settle()
        self.store.close()
        self.clock.step(seconds)
        kvstore.rebuild(self.path, config=self.config)
        self.store = kvstore.open(self.path, self.config)

    # --- what holds ---

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def each_time_came_once_and_the_next_one_waits(self) -> None:
        self._settle()
        now = self.clock.now_ms()
        for name in NAMES:
            model = self.models.get(name)
            came = self.gone[name] + ([] if model is None else model.came)
            found = self.store.pull(name, 0, 0, limit=10_000).messages
            assert [int(m.properties["SCHEDULED_AT"]) for m in found] == came
            waiting = [one.deliver_at for one in self.store.timers(name).messages]
            if model is None or model.is_paused:
                assert waiting == []
            else:
                ahead = (now - model.begin) // model.every + 1
                assert waiting == [model.begin + ahead * model.every]
                assert self.store.schedule_info(name).next_at == waiting[0]


TestSchedules = ScheduleMachine.TestCase
TestSchedules.settings = hypothesis_settings(
    hypothesis_settings.default, max_examples=40, stateful_step_count=30
)
