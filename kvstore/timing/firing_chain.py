"""Firing chain: the messages of a schedule that wait, and the step from each to the next.

The idea: a step is taken when a message is due. It says whether the message is delivered, or passed
over since its time was missed, and which time comes after. Usually both are plain: it is, and the
next one of the schedule. After a store was closed, or a disk was full, times have passed meanwhile;
then the schedule's word about missed times decides.

Invariant: a step depends on the times of the schedule, the message's time and the present alone, so
a step that was cut short is taken again with the messages that it would have put.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvstore.timing.recurrence import Recurrence, first_after, newest
from kvstore.timing.schedule_rows import Missed, ScheduleRow

MISSED_MAX: Final = 1000
"""Messages that missed="all" puts for missed times: the newest. A schedule of each second in a
store that was closed for a month would else put 2.6 million at once.
"""
GRACE_MS: Final = 60_000
"""By how many ms a time may be late that missed="skip" still takes."""


class FiringChain:
    """The messages of a schedule that wait; see the module."""

    def __init__(self, name: str, row: ScheduleRow, topic_id: int) -> None:
        self.name = name
        self.message_id: Callable[[int], str] = row.message_id
        self.topic_id = topic_id
        self._missed: Missed = row.missed
        self._recurrence: Recurrence = row.recurrence()
        self.times: list[int] = []
        """Their times, rising: one; two while the first of them is delivered."""
        self.ended: list[tuple[int, int]] = []
        """The times before them that were delivered, each with the log's end by then: until the
        disk has the log to there, a power cut may take that back.
        """
        self._counted_until = 0
        """The missed times up to here are not too many."""

    def known_times(self, durable: int) -> list[int]:
        """The times whose messages wait, or will wait again after a power cut, if the disk has the
        log to a position.
        """
        self.ended = [one for one in self.ended if one[1] > durable]
        return [time for time, _ in self.ended] + self.times

    def step(self, time: int, now: int) -> tuple[bool, int | None]:
        """Whether the message of a time that is due is delivered, and the time of the next one;
        None if there is none.
        """
        following = first_after(self._recurrence, time)
        if following is None or following > now:
            return self._missed != "skip" or now - time <= GRACE_MS, following
        # Others have come meanwhile.
        if self._missed == "all":
            return self._step_of_each(time, following, now)
        # The last of them has a step of its own, which "skip" may pass over too.
        return False, newest(self._recurrence, time, now, 1)[0]

    def _step_of_each(self, time: int, following: int, now: int) -> tuple[bool, int]:
        if self._counted_until < time:
            self._counted_until = now
            others = newest(self._recurrence, time, now, MISSED_MAX)
            if len(others) == MISSED_MAX:
                return False, others[0]
        return True, following
