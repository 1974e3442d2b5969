"""Pops that wait without a thread: in the loop of asyncio, for `kvstore.aio` and for the server.

The idea: a pop's looks are made by a thread, which its owner provides. Between two looks the pop
stands among the store's waiters like a thread would, but its wake-up rings a bell in the loop. One
timer for each group and topic serves all pops that wait for the next lock there to run out.

Invariants: a pop that waits holds no thread; a cancelled pop leaves no waiter behind, and the
messages that it took meanwhile are given back at once, as if they had not been handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from kvstore.api.store import Store
from kvstore.core.popping.receipts import Popped
from kvstore.errors import StoreError
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.pop import Poll

_TIMER_MAX: Final = 24 * 3600.0
"""Seconds of the longest timer."""

Looked = tuple[list[Popped], Poll | None]
Look = Callable[[], Looked]
Run = Callable[[Look, Callable[[Looked], None]], Awaitable[Looked]]
"""Has a thread look. If the caller is cancelled meanwhile, and the look is made all the same, its
result goes to the second function, in whatever thread.
"""


class Bell:
    """Wakes one coroutine, from any thread."""

    __slots__ = ("_future", "_loop", "_rung")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self._rung = False

    def ring(self) -> None:
        """Ring from any thread."""
        with suppress(RuntimeError):  # the loop is gone, and its waiters with it
            self._loop.call_soon_threadsafe(self.ring_here)

    def ring_here(self) -> None:
        """Ring from the loop's thread."""
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Waits until it rings, or has rung since the last wait; False if the time passes first."""
        if not self._rung:
            self._future = self._loop.create_future()
            timer = self._loop.call_later(min(seconds, _TIMER_MAX), self._wake)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        rang, self._rung = self._rung, False
        return rang


class LoopPops:
    """The pops of one loop that wait; see the module."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self.bells: set[Bell] = set()
        """Those of the pops that wait."""
        self.alarms: dict[InflightTable, asyncio.TimerHandle] = {}
        self._are_ended = False

    def first_look(
        self, bell: Bell, group: str, topic: str | Sequence[str], wait: float, *asked: Any
    ) -> Look:
        """The first look of a pop; `asked` is as `Pop.asking` takes it."""
        return partial(self._store._begin_pop, bell.ring, group, topic, wait, *asked)

    async def pop(
        self, run: Run, group: str, topic: str | Sequence[str], wait: float, *asked: Any, keep: bool
    ) -> list[Popped]:
        """A whole pop, whose looks `run` makes; `keep` if a later pop can have what this one takes,
        by its attempt id.
        """
        bell = Bell(self._loop)
        look = self.first_look(bell, group, topic, wait, *asked)
        found, poll = await run(look, partial(self.abandon, keep))
        return found if poll is None else await self.wait(bell, poll, found, run=run, keep=keep)

    async def wait(
        self,
        bell: Bell,
        poll: Poll,
        found: list[Popped],
        *,
        run: Run,
        keep: bool,
    ) -> list[Popped]:
        """Goes on after a first look: waits until the poll has messages, or its time is over. The
        look that `run` was given last may be running when the pop is cancelled.
        """
        try:
            while not found and poll.left() > 0 and not self._are_ended:
                self.bells.add(bell)
                if poll.due_in:
                    self._set_alarms(poll)
                    # The alarm rings when a lock runs out: one alarm serves all waiting pops.
                    while (nap := poll.nap(until_due=False)) > 0 and not await bell.wait(nap):
                        poll.rested()
                again = partial(_look_again, poll)
                found, _ = await run(again, partial(self.abandon, keep))
            return found
        finally:
            self.bells.discard(bell)
            poll.end()
            for table in poll.tables:
                if not table.waiters:
                    self._stop_alarm(table)

    def end(self) -> None:
        """Lets all pops that wait look once more, and end with what they find."""
        self._are_ended = True
        self.ring()

    def ring(self) -> None:
        """Lets all pops that wait look once more."""
        for bell in self.bells:
            bell.ring_here()
        for table in list(self.alarms):
            self._stop_alarm(table)

    def abandon(self, keep: bool, looked: Looked) -> None:
        """Undoes a look whose pop was cancelled. In any thread, which may wait for the disk."""
        try:
            self._undo(keep, looked)
        except BaseException:
            # A waiter that never left would take wake-ups from others.
            with suppress(BaseException):
                self._undo(keep, looked)

    def _undo(self, keep: bool, looked: Looked) -> None:
        """Undoes a look; the second time does nothing more."""
        found, poll = looked
        if poll is not None:
            poll.end()
        if found and not keep:
            # A message that can't be given back comes back when its lock runs out.
            with suppress(StoreError):
                self._store.undo_pop([one.receipt for one in found])

    def _set_alarms(self, poll: Poll) -> None:
        """Sets the alarm for the first lock of each in-flight table to run out, as this poll found
        it. A pop that finds something wakes the next by leaving; one that doesn't sets the alarm
        anew.
        """
        for table, due_in in poll.dues:
            when, alarm = self._loop.time() + due_in, self.alarms.get(table)
            if due_in <= _TIMER_MAX and (alarm is None or alarm.when() > when):
                self._stop_alarm(table)
                self.alarms[table] = self._loop.call_at(when, self._alarmed, table)

    def _alarmed(self, table: InflightTable) -> None:
        del self.alarms[table]
        self._store._engine.waiting.freed(table, 1)

    def _stop_alarm(self, table: InflightTable) -> None:
        alarm = self.alarms.pop(table, None)
        if alarm is not None:
            alarm.cancel()


def _look_again(poll: Poll) -> Looked:
    return poll.look(), None
