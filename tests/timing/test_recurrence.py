"""The times of schedules: cron expressions in zones, intervals, and expressions that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import ScheduleIllegal
from kvstore.timing.recurrence import Cron, Interval, first_after, newest, recurrence_of

BERLIN: Final = ZoneInfo("Europe/Berlin")
NEW_YORK: Final = ZoneInfo("America/New_York")
LORD_HOWE: Final = ZoneInfo("Australia/Lord_Howe")
CHATHAM: Final = ZoneInfo("Pacific/Chatham")
ST_JOHNS: Final = ZoneInfo("America/St_Johns")
"""Its clock changed a minute behind midnight, until 2011."""
NOW: Final = 1_700_000_000_000
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)


def ms(text: str, zone: Any = UTC) -> int:
    """The time that a text says, in a zone if it says none itself."""
    found = datetime.fromisoformat(text)
    return round((found if found.tzinfo else found.replace(tzinfo=zone)).timestamp() * 1000)


def times(expression: str, zone: ZoneInfo, after: str, count: int) -> list[str]:
    """The next times, as texts with their distance from UTC."""
    found = islice(Cron(expression, zone).times_after(ms(after, zone)), count)
    return [datetime.fromtimestamp(one / 1000, zone).isoformat(" ", "minutes") for one in found]


# --- changes of the clock ---


def test_a_time_in_the_skipped_hour_comes_at_its_end() -> None:
    assert times("30 2 * * *", BERLIN, "2026-03-28T12:00", 2) == [
        "2026-03-29 03:00+02:00",
        "2026-03-30 02:30+02:00",
    ]
    assert times("0,30 2 * * *", BERLIN, "2026-03-28T12:00", 2) == [
        "2026-03-29 03:00+02:00",
        "2026-03-30 02:00+02:00",
    ], "of two times in it there is one message"
    assert times("30 2 * * *", NEW_YORK, "2026-03-07T12:00", 1) == ["2026-03-08 03:00-04:00"]


def test_a_time_in_the_doubled_hour_comes_once() -> None:
    wanted = ["2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"]
    assert times("30 2 * * *", BERLIN, "2026-10-24T12:00", 2) == wanted
    assert times("30 1 * * *", NEW_YORK, "2026-10-31T12:00", 2) == [
        "2026-11-01 01:30-04:00",
        "2026-11-02 01:30-05:00",
    ]


@pytest.mark.parametrize("after", ["2026-10-25T02:30+02:00", "2026-10-25T02:10+01:00"])
def test_asked_within_the_doubled_hour_the_next_time_is_the_next_days(after: str) -> None:
    assert times("30 2 * * *", BERLIN, after, 1) == ["2026-10-26 02:30+01:00"]


def test_times_of_every_hour_go_on_as_the_wall_clock_does() -> None:
    assert times("30 * * * *", BERLIN, "2026-03-29T01:00", 3) == [
        "2026-03-29 01:30+01:00",
        "2026-03-29 03:30+02:00",
        "2026-03-29 04:30+02:00",
    ]
    assert times("30 * * * *", BERLIN, "2026-10-25T01:00", 4) == [
        "2026-10-25 01:30+02:00",
        "2026-10-25 02:30+02:00",
        "2026-10-25 02:30+01:00",
        "2026-10-25 03:30+01:00",
    ]


def test_a_clock_that_changes_by_half_an_hour() -> None:
    assert times("15 2 * * *", LORD_HOWE, "2026-10-03T12:00", 2) == [
        "2026-10-04 02:30+11:00",
        "2026-10-05 02:15+11:00",
    ]


@pytest.mark.parametrize(
    ("zone", "expression", "after", "wanted"),
    [
        (LORD_HOWE, "0 */2 * * *", "2027-04-04T00:30", "02:00+10:30, 04:00+10:30"),
        (LORD_HOWE, "*/15 2 * * *", "2027-04-04T01:45", "02:00+10:30, 02:15+10:30"),
        (LORD_HOWE, "*/30 1 * * *", "2027-04-04T01:00", "01:30+11:00, 01:30+10:30"),
        (LORD_HOWE, "*/30 */3 * * *", "2027-10-03T00:30", "03:00+11:00, 03:30+11:00"),
        (LORD_HOWE, "*/15 2 * * *", "2027-10-03T00:30", "02:30+11:00, 02:45+11:00"),
        (CHATHAM, "*/15 2 * * *", "2027-04-04T02:30", "02:45+13:45, 02:45+12:45"),
        (CHATHAM, "*/7 */3 * * *", "2027-09-26T02:30", "03:49+13:45, 03:56+13:45"),
        (ST_JOHNS, "*/7 */3 * * *", "1998-10-25T00:00", "00:00-03:30, 00:07-03:30"),
    ],
)
def test_times_go_on_as_a_wall_clock_does_that_changes_within_an_hour(
    zone: ZoneInfo, expression: str, after: str, wanted: str
) -> None:
    found = times(expression, zone, after, 2)
    assert found == [f"{after[:10]} {one}" for one in wanted.split(", ")]


@cache
def changes() -> tuple[list[tuple[str, datetime]], list[tuple[str, datetime]]]:
    """Changes of clocks, by zone and by the moment of the change: those that are not by whole
    hours or not at a full hour of the wall clock, and the others.
    """
    odd, others = list[tuple[str, datetime]](), list[tuple[str, datetime]]()
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)

        def offset(moment: datetime, zone: ZoneInfo = zone) -> timedelta | None:
            return moment.astimezone(zone).utcoffset()

        week = datetime(2025, 1, 1, tzinfo=UTC)
        while week.year < 2029:
            low, week = week, week + 168 * HOUR
            if offset(low) != offset(week):
                at = _first(low, week, lambda moment, low=low: offset(moment) != offset(low))  # type: ignore[misc]
                by = at.astimezone(zone).replace(tzinfo=None) - (at - MINUTE).astimezone(
                    zone
                ).replace(tzinfo=None)
                is_odd = (by - MINUTE) % HOUR or (at - MINUTE).astimezone(zone).minute != 59
                (odd if is_odd else others).append((name, at))
    return odd, others


def _first(low: datetime, high: datetime, holds: Callable[[datetime], bool]) -> datetime:
    """The first whole minute behind `low` at which it holds, as it does from then on to `high`."""
    while high - low > MINUTE:
        middle = low + (high - low) // MINUTE // 2 * MINUTE
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def numbers_of(field: str, end: int) -> set[int]:
    """The numbers of a field of an expression, which are before `end`."""
    found = set[int]()
    for term in field.split(","):
        stretch, _, step = term.partition("/")
        first, _, last = stretch.partition("-")
        low, high = (0, end - 1) if first == "*" else (int(first), int(last or first))
        found.update(range(low, high + 1, int(step or 1)))
    return found


def minute_by_minute(
    expression: str, zone: ZoneInfo, begin: datetime, end: datetime
) -> Iterator[int]:
    """The times of an expression by their definition (docs/timing.md), of all minutes behind
    `begin`; none of the clock's changes is in the ten hours before.
    """
    minute, hour, *_, weekday = expression.split()
    of = numbers_of(minute, 60), numbers_of(hour, 24), numbers_of(weekday, 7)

    def is_one(wall: datetime) -> bool:
        return all(
            x in y for x, y in zip((wall.minute, wall.hour, wall.isoweekday() % 7), of, strict=True)
        )

    is_daily = "*" not in (minute[0], hour[0])
    moment = begin - 10 * HOUR
    latest = moment.astimezone(zone).replace(tzinfo=None)
    while moment < end:
        moment += MINUTE
        wall = moment.astimezone(zone).replace(tzinfo=None)
        shown = [wall]
        if is_daily:  # all that the clock has come to, or passed over, for the first time
            shown = [latest + n * MINUTE for n in range(1, (wall - latest) // MINUTE + 1)]
            latest = max(latest, wall)
        if any(map(is_one, shown)) and moment > begin:
            yield round(moment.timestamp() * 1000)


def fields(end: int) -> st.SearchStrategy[str]:
    """Fields of expressions whose numbers are before `end`."""
    number = st.integers(0, end - 1)
    step = st.integers(1, end - 1)
    stretch = st.lists(number, min_size=2, max_size=2, unique=True).map(sorted)
    return st.one_of(
        st.just("*"),
        step.map("*/{}".format),
        number.map(str),
        st.builds(lambda one, by: f"{one[0]}-{one[1]}/{by}", stretch, step),
        st.lists(number, min_size=2, max_size=4).map(lambda some: ",".join(map(str, some))),
    )


@settings(max_examples=150)
@given(data=st.data(), is_odd=st.booleans(), minutes=st.integers(-240, 240))
def test_around_each_change_of_a_clock_the_times_are_those_of_all_minutes(
    data: st.DataObject, is_odd: bool, minutes: int
) -> None:
    name, change = data.draw(st.sampled_from(changes()[0 if is_odd else 1]))
    hours = st.one_of(st.just("1-4"), st.sampled_from(["*", "*/2", "*/3"]), fields(24))
    parts = data.draw(fields(60)), data.draw(hours), data.draw(st.just("*") | fields(7))
    expression = "{} {} * * {}".format(*parts)
    begin = change + minutes * MINUTE
    end = begin + 9 * HOUR
    found = Cron(expression, ZoneInfo(name)).times_after(round(begin.timestamp() * 1000))
    until = end.timestamp() * 1000
    wanted = list(minute_by_minute(expression, ZoneInfo(name), begin, end))
    assert list(takewhile(lambda time: time <= until, found)) == wanted, (name, expression)


@given(
    zone=st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, UTC]),
    after=st.integers(ms("2025-01-01"), ms("2027-12-31")),
    expression=st.sampled_from(
        [
            "30 2 * * *",
            "*/7 * * * *",
            "0,30 1,2,3 * * *",
            "15 2 * * SUN",
            "0 */2 * * *",
            "5 4 31 * *",
        ]
    ),
)
def test_times_rise_and_do_not_depend_on_who_asks(zone: Any, after: int, expression: str) -> None:
    cron = Cron(expression, zone)
    found = list(islice(cron.times_after(after), 40))
    assert found == sorted(set(found))
    assert found[0] > after
    for one, following in pairwise(found):
        assert first_after(cron, one) == following
    middle = (found[3] + found[4]) // 2
    assert first_after(cron, middle) == found[4]


# --- intervals ---


def test_an_interval_is_counted_from_its_beginning() -> None:
    interval = Interval(1000, 300)
    assert list(islice(interval.times_after(0), 3)) == [1300, 1600, 1900]
    assert list(islice(interval.times_after(1300), 2)) == [1600, 1900]
    assert list(islice(interval.times_after(1299), 2)) == [1300, 1600]
    assert first_after(interval, 1_000_000_000) == 1_000_000_000 + 300 - 999_999_000 % 300


@given(
    begin=st.integers(0, 10**6),
    every=st.integers(1000, 10**7),
    after=st.integers(0, 10**8),
    length=st.integers(0, 10**8),
    most=st.integers(1, 20),
)
def test_the_newest_times_are_the_last_of_all(
    begin: int, every: int, after: int, length: int, most: int
) -> None:
    interval = Interval(begin, every)
    every_time = range(begin + every, after + length + 1, every)
    wanted = [one for one in every_time if one > after][-most:]
    assert newest(interval, after, after + length, most) == wanted


def test_the_newest_times_of_a_month_are_found_without_the_others() -> None:
    asked: list[int] = []

    class Watched(Interval):
        def times_after(self, time: int) -> Any:
            for one in super().times_after(time):
                asked.append(one)
                yield one

    month = 30 * 86_400_000
    found = newest(Watched(0, 1000), 0, month, 1000)
    assert (len(found), found[-1]) == (1000, month)
    assert len(asked) < 5000


# --- mistakes ---


@pytest.mark.parametrize(
    ("expression", "position", "says"),
    [
        ("0 25 * * *", 2, "no hour is '25'"),
        ("60 * * * *", 0, "no minute is '60'"),
        ("0  0 1,99 * *", 7, "no day of the month is '99'"),
        ("0 0 1 13 *", 6, "no month is '13'"),
        ("0 0 1 * MON,FUN", 12, "no day of the week is 'FUN'"),
        ("*/0 * * * *", 0, "no minute is '*/0'"),
        ("5-1 * * * *", 0, "no minute is '5-1'"),
        ("1,,2 * * * *", 2, "no minute is ''"),
        ("0 4 * *", 7, "4 fields"),
        ("0 0 4 * * *", 10, "6 fields, and not 5 (for seconds there is every=)"),
        ("", 0, "0 fields"),
        ("@daily", 6, "1 fields"),
        ("0 0 30 2 *", 4, "none of its months has that day"),
        ("* * */20 * 1L", 4, "that day never comes"),
        ("0 " * 200, 200, "longer than 200"),
    ],
)
def test_a_wrong_expression_is_refused_with_its_place(
    expression: str, position: int, says: str
) -> None:
    with pytest.raises(ScheduleIllegal) as e:
        recurrence_of(expression, None, "UTC", NOW)
    assert (e.value.expression, e.value.position) == (expression, position)
    assert says in str(e.value)
    assert '"0 4 * * *" (at 4:00 each day)' in str(e.value)


@given(st.text(max_size=40) | st.text("0123456789*/,-#LW \t", max_size=30))
def test_any_text_is_an_expression_or_refused(expression: str) -> None:
    position = 0
    try:
        found = recurrence_of(expression, None, "UTC", NOW)
    except ScheduleIllegal as e:
        position = e.position
    else:
        assert first_after(found, NOW) is not None
    assert 0 <= position <= len(expression)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((None, None, "UTC"), "neither is given"),
        (("0 4 * * *", 5, "UTC"), "both are given"),
        ((7, None, "UTC"), "cron is 7"),
        (("0 4 * * *", None, "Europe/Nowhere"), "zone is 'Europe/Nowhere'"),
        (("0 4 * * *", None, "Europe"), "zone is 'Europe'"),
        (("0 4 * * *", None, "../../etc/passwd"), "no time zone"),
        (("0 4 * * *", None, ""), "no time zone"),
        (("0 4 * * *", None, None), "zone is None"),
        (("0 4 * * *", None, "\ud800"), "no time zone"),
        ((None, 30, "Europe/Berlin"), "an interval is the same in all zones"),
        ((None, 0.999, "UTC"), "1 to 1262304000 seconds"),
        ((None, 1_262_304_001, "UTC"), "40 years"),
        ((None, float("nan"), "UTC"), "every is nan"),
        ((None, True, "UTC"), "every is True"),
        ((None, "5", "UTC"), "every is '5'"),
    ],
)
def test_times_that_are_none_are_refused(asked: tuple[Any, Any, Any], says: str) -> None:
    with pytest.raises(ScheduleIllegal, match=says.replace("(", r"\(")):
        recurrence_of(*asked, NOW)
