"""Figures made by hand, for pages that need no Spark."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from tiering.spark.report.figures import (
    DayVolume,
    DeadLetters,
    Delays,
    Figures,
    KeyCount,
    Sums,
    TopicVolume,
    freed_of,
    topics_of,
    total_of,
)

TODAY = date(2026, 11, 21)
NOW_MS = (TODAY.toordinal() - date(1970, 1, 1).toordinal()) * 86_400_000 + 43_200_000


def ago(days: int) -> date:
    return TODAY - timedelta(days)


def volume(topic: str | None, tier: str, days_ago: int, size: int = 1000) -> DayVolume:
    return DayVolume(topic, tier, ago(days_ago), Sums(size // 10, size * 5, size, size / 1e6))


def nothing(**changed: Any) -> Figures:
    """What an empty store has, with changes."""
    empty: dict[str, Any] = {
        "path": "data", "now_ms": NOW_MS, "currency": "USD",
        "prices": {"hot": 0.08, "warm": 0.045, "cold": 0.023}, "archives": {}, "top": 2,
        "topics_count": 0, "total": TopicVolume(None, Sums(), {}), "topics": [], "days": [],
        "dead_letters_count": 0, "dead_letters": [], "delays": [], "keys_count": 0, "keys": [],
        "retention": [],
    }  # fmt: skip
    return Figures(**{**empty, **changed})


def something(name: str = "orders", days: int = 40) -> Figures:
    """Two topics by name and others, some of everything; `name` is wherever a name can be."""
    rows = [volume(name, "cold" if n > 9 else "hot", n, 1000 + n) for n in range(days)]
    rows += [volume("events", "warm", n, 500) for n in range(3, 9)]
    rows += [volume(None, "hot", 1, 100)]
    topics = topics_of(rows, [name, "events"])
    return nothing(
        path=f"/{name}",
        archives={"warm": 2, "cold": 7},
        topics_count=9,
        total=total_of(topics),
        topics=topics,
        days=rows,
        dead_letters_count=12,
        dead_letters=[DeadLetters(name, name, 9, 3, [(ago(5), 4), (ago(1), 5)]),
                      DeadLetters(None, None, 1, None, [(ago(2), 1)])],
        delays=[Delays(None, None, 90, 2, 30, 4000, 90_000),
                Delays(name, None, 80, 2, 30, 4000, 90_000),
                Delays("events", None, 10, -5, 3, 9, 10),
                *(Delays(name, ago(n), 8, 2, 30, 4000 + n, 90_000) for n in range(10)),
                Delays("events", ago(3), 10, -5, 3, 9, 10)],
        keys_count=77,
        keys=[KeyCount(name, name, 60, 0.6), KeyCount("events", "k2", 3, 0.001)],
        retention=list(freed_of(rows, topics, NOW_MS, (1, 7, 30, 90))),
    )  # fmt: skip
