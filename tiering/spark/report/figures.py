"""Figures: the values of a report, and those that follow from the volume of days.

The idea: Spark is asked for sums (`gather`), the page is made of values (`page`). Between them is
this module, pure and without either. Topics beyond the largest are one, without a name. A program
gets these values as JSON.

Invariants: sums of topics and days are sums of the same rows; costs are those of a month, bytes are
bytes, delays ms, instants ms since the epoch, days are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from operator import add
from typing import Final

import msgspec
from msgspec.structs import astuple

TIERS: Final = ("hot", "warm", "cold")
_EPOCH: Final = date(1970, 1, 1).toordinal()


class Sums(msgspec.Struct, frozen=True):
    """Messages, bytes and costs. `raw_bytes` are bytes of records, `stored_bytes` the bytes that
    they take now.
    """

    messages: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    cost_per_month: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*map(add, astuple(self), astuple(other)))


class DayVolume(msgspec.Struct, frozen=True):
    """The volume stored on a day, of a topic (None: of all the others together), in a tier."""

    topic: str | None
    tier: str
    day: date
    sums: Sums


class TopicVolume(msgspec.Struct, frozen=True):
    """The volume of a topic (None: of all the others), in all tiers and in each."""

    topic: str | None
    sums: Sums
    tiers: dict[str, Sums]


class DeadLetters(msgspec.Struct, frozen=True):
    """The dead letters of a group and topic; None where a dead letter does not say."""

    topic: str | None
    group: str | None
    messages: int
    attempts: int | None
    days: list[tuple[date, int]]


class Delays(msgspec.Struct, frozen=True):
    """Milliseconds from born to stored of a topic (None: of all), on a day (None: ever)."""

    topic: str | None
    day: date | None
    messages: int
    p50: int
    p90: int
    p99: int
    max: int


class TimerCounts(msgspec.Struct, frozen=True):
    """A topic's delayed messages: how many wait, are due and not delivered, were delivered, and
    were cancelled; and by how many ms deliveries were late (None if there were none).
    """

    topic: str
    waiting: int
    overdue: int
    delivered: int
    cancelled: int
    p50: int | None
    p90: int | None
    p99: int | None
    max: int | None


class TransactionCounts(msgspec.Struct, frozen=True):
    """The prepared messages of a topic and a producer group: how many wait, wait and should have
    been asked about, were committed, rolled back, and given up; how often a check did not end one;
    and the ms until transactions ended (None if none did).
    """

    topic: str
    group: str | None
    waiting: int
    overdue: int
    committed: int
    rolled_back: int
    given_up: int
    checks: int
    p50: int | None
    p90: int | None
    p99: int | None
    max: int | None


class KeyCount(msgspec.Struct, frozen=True):
    """How many messages of a topic have a key, and what share of the topic's they are."""

    topic: str
    key: str
    messages: int
    share: float


class Freed(msgspec.Struct, frozen=True):
    """The volume that would go of a topic (None: of all the others) if kept for so many days."""

    topic: str | None
    kept_days: int
    sums: Sums


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A report. `topics` are the largest `top` by cost, then all others as one; `topics_count` is
    the number of topics. `dead_letters`, `keys`, `delays`, `timers` and `transactions` are the
    largest ones.
    """

    path: str
    now_ms: int
    currency: str
    prices: dict[str, float]
    archives: dict[str, int]
    top: int
    topics_count: int
    total: TopicVolume
    topics: list[TopicVolume]
    days: list[DayVolume]
    dead_letters_count: int
    dead_letters: list[DeadLetters]
    delays: list[Delays]
    timers: list[TimerCounts]
    transactions: list[TransactionCounts]
    keys_count: int
    keys: list[KeyCount]
    retention: list[Freed]


def topics_of(days: Iterable[DayVolume], names: Sequence[str]) -> list[TopicVolume]:
    """The volume of each topic: in the order of `names`, and the others last."""
    tiers: dict[str | None, dict[str, Sums]] = {}
    for one in days:
        found = tiers.setdefault(one.topic, {})
        found[one.tier] = found.get(one.tier, Sums()) + one.sums
    every: list[str | None] = [*names, None]
    return [_topic(name, tiers[name]) for name in every if name in tiers]


def total_of(topics: Iterable[TopicVolume]) -> TopicVolume:
    """All topics as one."""
    tiers: dict[str, Sums] = {}
    for tier, sums in (pair for topic in topics for pair in topic.tiers.items()):
        tiers[tier] = tiers.get(tier, Sums()) + sums
    return _topic(None, tiers)


def _topic(name: str | None, tiers: dict[str, Sums]) -> TopicVolume:
    sums = sum(tiers.values(), Sums())
    return TopicVolume(name, sums, {tier: tiers[tier] for tier in TIERS if tier in tiers})


def age_of(day: date, now_ms: int) -> float:
    """How many days ago a day ended: as long ago as its last message may be."""
    return now_ms / 86_400_000 - (day.toordinal() - _EPOCH + 1)


def freed_of(
    days: Sequence[DayVolume],
    topics: Iterable[TopicVolume],
    now_ms: int,
    kept: Sequence[int],
) -> Iterator[Freed]:
    """The volume of each topic that would go, for each time that it might be kept; where nothing
    would, no row.
    """
    for topic in topics:
        mine = [(age_of(one.day, now_ms), one.sums) for one in days if one.topic == topic.topic]
        for limit in kept:
            gone = [sums for age, sums in mine if age >= limit]
            if gone:
                yield Freed(topic.topic, limit, sum(gone, Sums()))


def curve_of(days: Iterable[DayVolume], now_ms: int) -> list[tuple[float, float]]:
    """The cost (y) of a month if all is kept for x days, rising: one point for each day that has
    messages, and the first at nothing.
    """
    costs: dict[float, float] = {}
    for one in days:
        age = max(age_of(one.day, now_ms) + 1, 0.0)
        costs[age] = costs.get(age, 0.0) + one.sums.cost_per_month
    points, cost = [(0.0, 0.0)], 0.0
    for age in sorted(costs):
        cost += costs[age]
        points.append((age, cost))
    return points
