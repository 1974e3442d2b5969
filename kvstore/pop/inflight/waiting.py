"""Pops that found nothing wait here until a put, or a lock that runs out, wakes them.

The idea: a waiter stands with its in-flight table. A put wakes as many waiters of each table of its
topic as can take the messages that it brought (all of them if one asks for a certain queue or
filter): the others would look in vain. If nobody waits, a put only finds that out. A waiter brings
its own way to be woken: a thread has an event, a coroutine a future.

Locks run out by the wall clock, but waiters sleep by a clock that is never stepped. So one of the
waiters, any one, keeps watch: it sleeps `TICK` at a time, and wakes all when the two clocks have
come apart. However many wait, the clock is looked at once in each `TICK`.

Invariants: no wake-up is lost: a waiter registers before it looks, and one that leaves wakes the
next, which looks for the messages it left. While any waiter sleeps, one keeps watch, or was woken
to do so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from kvstore.clock import Clock
from kvstore.errors import StoreClosed
from kvstore.pop.inflight.table import InflightTable, Waiter

TICK: Final = 0.1
"""Seconds between two glances at the clock."""
_APART: Final = 0.05
"""Seconds by which the clocks have to come apart to be told from their usual drift."""


class Waiting:
    """The waiters of a store, by topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._apart = 0.0
        """Seconds by which the wall clock was ahead of the other clock at the last look."""
        self._watch: Waiter | None = None
        """The waiter that keeps watch."""
        self.topics: dict[int, list[InflightTable]] = {}
        """Topic id -> the tables that have waiters. Empty if nobody waits."""
        self.short: set[int] = set()
        """Groups that may have found no room under their cap since room was made last: a caller
        that gives any back calls `made_room`. A group is here before it counts its locked messages.
        """
        self._expecting: set[Callable[[], None]] = set()
        """The wake-ups of pops to which topics may be added that are yet to be made."""
        self._lock = threading.Lock()
        self._closed = False

    def check_open(self) -> None:
        """Raises `StoreClosed` after `close`."""
        if self._closed:
            raise StoreClosed("the store was closed while this pop waited; open it again")

    def close(self) -> None:
        """Wakes all waiters, to learn that the store closes."""
        self._closed = True
        self.everybody()

    def enter(self, table: InflightTable, waiter: Waiter) -> None:
        """Begins to wait."""
        with self._lock:
            if not self.topics:
                self._apart = self._clocks_apart()
            if not table.waiters:
                self.topics.setdefault(table.topic, []).append(table)
            table.waiters.add(waiter)
            table.asleep[waiter] = None
            table.selective += waiter.selective

    def expect_topics(self, wake: Callable[[], None]) -> None:
        """Wakes a pop when topics were made, until `expect_no_topics`; once more does nothing."""
        with self._lock:
            self._expecting.add(wake)

    def expect_no_topics(self, wake: Callable[[], None]) -> None:
        """Ends `expect_topics`; once more does nothing."""
        if self._expecting:
            with self._lock:
                self._expecting.discard(wake)

    def topics_made(self) -> None:
        """Wakes the pops to which new topics may belong."""
        if self._expecting:
            with self._lock:
                for wake in self._expecting:
                    wake()

    def rest(self, table: InflightTable, waiter: Waiter) -> None:
        """Makes a waiter ready to be woken again; called before each look. The longest wait is
        woken first.
        """
        with self._lock:
            # One that was cancelled may have left before this last look: it would be woken in vain.
            if waiter in table.waiters:
                table.asleep[waiter] = None

    def leave(self, table: InflightTable, waiter: Waiter) -> None:
        """Stops waiting; a leave that failed can be done again."""
        with self._lock:
            if waiter not in table.waiters:
                return
            table.asleep.pop(waiter, None)
            if self._watch is waiter or self._watch is None:
                self._watch = None
                self._wake_one()
            # It may have been woken for more than it took, or know of a lock that runs out.
            self._wake(table, 1)
            if len(table.waiters) == 1:
                tables = [other for other in self.topics.get(table.topic, ()) if other is not table]
                if tables:
                    self.topics[table.topic] = tables
                else:
                    self.topics.pop(table.topic, None)
            table.waiters.remove(waiter)
            table.selective -= waiter.selective

    # --- the clock ---

    def keeps_watch(self, waiter: Waiter) -> bool:
        """Whether this waiter, which is about to sleep, is to call `glance` every `TICK`."""
        if self._watch is None:
            with self._lock:
                if self._watch is None:
                    self._watch = waiter
        return self._watch is waiter

    def glance(self) -> None:
        """Wakes all if the wall clock was stepped: locks run out at other times than the waiters
        think.
        """
        apart = self._clocks_apart()
        if abs(apart - self._apart) > _APART:
            self._apart = apart
            self.everybody()

    def _clocks_apart(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.monotonic()

    def _wake_one(self) -> None:
        for tables in self.topics.values():
            for table in tables:
                if table.asleep:
                    self._wake(table, 1)
                    return

    # --- waking ---

    def arrived(self, queue_keys: Iterable[int]) -> None:
        """Wakes the waiters for new messages of these queues (topic id << 32 | queue id each)."""
        counts: dict[int, int] = {}
        for key in queue_keys:
            topic = key >> 32
            if topic in self.topics:
                counts[topic] = counts.get(topic, 0) + 1
        with self._lock:
            for topic, count in counts.items():
                for table in self.topics.get(topic, ()):
                    self._wake(table, count)

    def freed(self, table: InflightTable, count: int) -> None:
        """Wakes waiters for messages that were given back, or whose turn has come."""
        if table.waiters:
            with self._lock:
                self._wake(table, count)

    def changed(self, table: InflightTable) -> None:
        """Wakes all waiters of a table: nobody knows how much became visible."""
        if table.waiters:
            with self._lock:
                self._wake_all(table)

    def made_room(self, group: int) -> None:
        """Wakes the waiters that found too many of a group's messages locked."""
        self.short.discard(group)
        if self.topics:
            with self._lock:
                for tables in self.topics.values():
                    for table in tables:
                        if table.group == group:
                            self._wake_all(table)

    def everybody(self) -> None:
        """Wakes all waiters: much became visible at once."""
        with self._lock:
            for tables in self.topics.values():
                for table in tables:
                    self._wake_all(table)
            for wake in self._expecting:
                wake()

    def _wake(self, table: InflightTable, count: int) -> None:
        """Wakes waiters that can take so many messages."""
        if table.selective:
            self._wake_all(table)
        while count > 0 and table.asleep:
            waiter, _ = table.asleep.popitem(last=False)
            count -= waiter.limit
            waiter.wake()

    def _wake_all(self, table: InflightTable) -> None:
        while table.asleep:
            waiter, _ = table.asleep.popitem(last=False)
            waiter.wake()
