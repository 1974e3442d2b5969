"""Recurrence: the times at which a schedule puts its message.

The idea: a time follows from the time before, so nothing is kept of them. An interval is counted
from the making of the schedule. A cron expression is read by `cronsim`, on the wall clock of a time
zone; a zone's changes of the clock are treated as Debian's cron treats them (docs/timing.md). For
an expression that goes on as the wall clock does, `cronsim` sees a clock that never changes, and
each time on it is turned into the moments at which the zone's clock shows it: none, one or two.

Invariants: times rise; each is a whole millisecond; the times after one do not depend on when
somebody asks.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import takewhile
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo

from kvstore.clock import whole_ms
from kvstore.errors import ScheduleIllegal, shown
from kvstore.record.put.explain import DELAY_MAX

UTC_NAME: Final = "UTC"
_FIELDS: Final = ("minute", "hour", "day of the month", "month", "day of the week")
_EXAMPLE: Final = (
    'write minute, hour, day, month and weekday, such as "0 4 * * *" (at 4:00 each day)'
)
LENGTH_MAX: Final = 200
_STRETCH: Final = 60_000
"""The first stretch of time, ms, in which the newest times are looked for."""


class Recurrence(Protocol):
    """Rising times, in ms since the epoch."""

    def times_after(self, time: int) -> Iterator[int]:
        """The times after one."""
        ...


def first_after(recurrence: Recurrence, time: int) -> int | None:
    """The first time after one; None if none follows within 50 years."""
    return next(recurrence.times_after(time), None)


def newest(recurrence: Recurrence, after: int, until: int, most: int) -> list[int]:
    """The newest of the times behind `after` that are not behind `until`, `most` at most, rising.
    They are found without going through all: in a stretch before `until`, which doubles.
    """
    stretch = _STRETCH
    while True:
        begin = max(after, until - stretch)
        found = list(takewhile(lambda time: time <= until, recurrence.times_after(begin)))
        if len(found) >= most or begin == after:
            return found[-most:]
        stretch *= 2


class Interval:
    """Every so many ms, counted from a time on, which is not one of the times."""

    def __init__(self, begin: int, every: int) -> None:
        self._begin = begin
        self._every = every

    def times_after(self, time: int) -> Iterator[int]:
        """See `Recurrence`."""
        count = max((time - self._begin) // self._every, 0)
        while True:
            count += 1
            yield self._begin + count * self._every


class Cron:
    """The times of a cron expression in a zone."""

    def __init__(self, expression: str, zone: tzinfo) -> None:
        self._expression = expression
        self._zone = zone

    def times_after(self, time: int) -> Iterator[int]:
        """See `Recurrence`."""
        from cronsim import CronSim  # noqa: PLC0415  # who has no schedule doesn't wait for it

        begin = datetime.fromtimestamp(time / 1000, self._zone)
        minute, hour, *_ = self._expression.split()
        is_daily = not minute.startswith("*") and not hour.startswith("*")
        times = CronSim(self._expression, begin) if is_daily else _shown(self._expression, begin)
        last = time
        for found in times:
            # Behind the first of two equal stretches it begins with times of that one.
            at = round(found.timestamp() * 1000)
            if at > last:
                yield at
                last = at


def _shown(expression: str, begin: datetime) -> Iterator[datetime]:
    """The moments, rising, at which the wall clock of a zone shows a time of an expression; those
    after `begin`, and maybe some before.
    """
    from cronsim import CronSim  # noqa: PLC0415  # as above

    # A stretch that the clock is to show once more lies before `begin` on it.
    shown_again = begin.replace(fold=1).astimezone(UTC) - begin.astimezone(UTC)
    again = deque[datetime]()
    for wall in CronSim(expression, begin.replace(tzinfo=None, fold=0) - shown_again):
        first, second = (
            wall.replace(tzinfo=begin.tzinfo, fold=fold).astimezone(UTC) for fold in (0, 1)
        )
        while again and again[0] < first:
            yield again.popleft()
        if first.astimezone(begin.tzinfo).replace(tzinfo=None, fold=0) == wall:  # not skipped
            yield first
            if first != second:
                again.append(second)
    yield from again


def recurrence_of(cron: Any, every: Any, zone: Any, begin: int) -> Recurrence:
    """The times that a caller asked for, an interval's counted from `begin` on. Raises
    `ScheduleIllegal` unless there is either a cron expression or an interval, and it is legal.
    """
    if (cron is None) == (every is None):
        given = "neither is given" if cron is None else "both are given"
        raise ScheduleIllegal(f"a schedule has either cron or every, and {given}; {_EXAMPLE}")
    if cron is not None:
        found = zone_named(zone)
        check_cron(cron)
        return Cron(cron, found)
    if zone != UTC_NAME:
        raise ScheduleIllegal(
            f"zone is {shown(zone)}, and every is {shown(every)}; an interval is the same in all "
            "zones: leave the zone out, or use cron="
        )
    if type(every) not in (int, float) or not 1 <= every <= DELAY_MAX:
        raise ScheduleIllegal(
            f"every is {shown(every)}; it must be 1 to {DELAY_MAX:.0f} seconds (40 years)"
        )
    return Interval(begin, whole_ms(every))


def zone_named(name: Any) -> tzinfo:
    """The time zone with a name; `ScheduleIllegal` if none has it."""
    if name == UTC_NAME:
        return UTC
    try:
        return ZoneInfo(name)
    except (AttributeError, LookupError, OSError, TypeError, ValueError):
        raise ScheduleIllegal(
            f"zone is {shown(name)}, which is no time zone here; zones have names such as "
            '"Europe/Berlin" or "UTC", and come from the system, or from the package tzdata'
        ) from None


def check_cron(expression: Any) -> None:
    """Raises `ScheduleIllegal`, with the place, unless a text is a cron expression of five fields
    that has times.
    """
    if not isinstance(expression, str):
        raise ScheduleIllegal(f"cron is {shown(expression)}; it must be a text: {_EXAMPLE}")
    if len(expression) > LENGTH_MAX:
        raise _fault(expression, LENGTH_MAX, f"it is longer than {LENGTH_MAX} characters")
    fields = list(re.finditer(r"\S+", expression))
    if len(fields) != len(_FIELDS):
        place = fields[len(_FIELDS)].start() if len(fields) > len(_FIELDS) else len(expression)
        problem = f"it has {len(fields)} fields, and not 5 (for seconds there is every=)"
        raise _fault(expression, place, problem)
    for number, field in enumerate(fields):
        _check_field(expression, number, field)
    if not _is_readable(expression):
        raise _fault(expression, fields[2].start(), "none of its months has that day")
    if first_after(Cron(expression, UTC), 0) is None:
        raise _fault(expression, fields[2].start(), "that day never comes")


def _check_field(expression: str, number: int, field: re.Match[str]) -> None:
    place = field.start()
    for term in field.group().split(","):
        others = ["*"] * len(_FIELDS)
        others[number] = term
        if not term or not _is_readable(" ".join(others)):
            raise _fault(expression, place, f"no {_FIELDS[number]} is {shown(term)}")
        place += len(term) + 1


def _is_readable(expression: str) -> bool:
    from cronsim import CronSim, CronSimError  # noqa: PLC0415  # as above

    try:
        CronSim(expression, datetime.fromtimestamp(0, UTC))
    except (CronSimError, ValueError):
        return False
    return True


def _fault(expression: str, position: int, problem: str) -> ScheduleIllegal:
    near = expression[position : position + 16]
    place = f"at character {position}, near {shown(near)}" if near else f"at its end, {position}"
    return ScheduleIllegal(
        f"cron {shown(expression)} is wrong {place}: {problem}; {_EXAMPLE}", expression, position
    )
