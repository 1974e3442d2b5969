"""A poll: one pop that waits for something to hand out.

The idea: it stands with its in-flight table, looks, and says how long nothing will happen by
itself. Its caller lets that time pass: a thread waits for an event, a coroutine for a future.

Invariants: it is among the waiters from its first look until `end`, and a poll that was only made
is not; a message that comes between a look and the sleep after it wakes the sleeper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic
from kvstore.pop.context import PopContext
from kvstore.pop.inflight.table import Waiter
from kvstore.pop.inflight.waiting import TICK
from kvstore.pop.popped import Popped

_PAUSE: Final = 0.02
"""Seconds until another look where a row stays due that is not for this poll."""


class PollResult(NamedTuple):
    """The messages a look found; `looks_again` if there is more to look at than one call may."""

    popped: list[Popped]
    looks_again: bool = False


class Poll:
    """One waiting pop, see the module. After a look, `end` is to be called in any case. `due_in`
    says, as of the last look that found nothing, in how many seconds the table's first lock runs
    out; 0 is to look again.
    """

    __slots__ = (
        "_claim",
        "_clock",
        "_due_at",
        "_tables",
        "_until",
        "_waiter",
        "_waiting",
        "due_in",
        "table",
    )

    def __init__(
        self,
        context: PopContext,
        group: GroupInfo,
        topic: Topic,
        claim: Callable[[], PollResult],
        wait: float,
        wake: Callable[[], None],
        *,
        selective: bool,
    ) -> None:
        self.table = context.tables.get(group.id, topic.id)
        self.due_in = 0.0
        self._due_at = 0.0
        self._waiting = context.waiting
        self._clock = context.clock
        self._claim = claim
        self._tables = context.tables
        self._until = self._clock.monotonic() + wait
        self._waiter = Waiter(wake, selective=selective)

    def look(self) -> list[Popped]:
        """Hands out the messages there are now. A caller that sleeps on something that `wake` sets
        clears it before. `StoreClosed` if the store closes.
        """
        self._waiting.check_open()
        if self._waiter not in self.table.waiters:
            # Under the table's lock: a table that is let go has no waiters, and gets none.
            with self._tables.locked(self.table.group, self.table.topic) as self.table:
                self._waiting.enter(self.table, self._waiter)
        self._waiting.rest(self.table, self._waiter)
        found = self._claim()
        if not found.popped:
            self.due_in = 0.0 if found.looks_again else self._until_due()
            self._due_at = self._clock.monotonic() + self.due_in
        return found.popped

    def _until_due(self) -> float:
        due = self._tables.next_due(self.table)
        if due is None:
            return float("inf")
        # A row that is due by now was not for this poll: it is of another queue.
        left = due - self._clock.now_ms()
        return left / 1000 if left > 0 else _PAUSE

    def nap(self, *, until_due: bool) -> float:
        """Seconds to sleep, and then to call `rested`; 0 or less if it is time to look. With
        `until_due` no longer than to when the first lock runs out.
        """
        left = self.left()
        if until_due:
            left = min(left, self._due_at - self._clock.monotonic())
        if left > TICK and self._waiting.keeps_watch(self._waiter):
            return TICK
        return left

    def rested(self) -> None:
        """Marks that a nap ended without an interruption; to be called after each such nap."""
        self._waiting.glance()

    def left(self) -> float:
        """Seconds until its time is over; 0 or less afterwards."""
        return self._until - self._clock.monotonic()

    def end(self) -> None:
        """Stops waiting; once more does nothing."""
        self._waiting.leave(self.table, self._waiter)
