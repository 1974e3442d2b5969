"""Gathers a report's figures from Spark.

The idea: the views are made, and each is asked for as much as a page can show: the largest topics
and all others as one, the most frequent, sums by day. Spark keeps meanwhile the rows that are asked
for several times.

Invariant: the rows that come to the driver are bounded by days and by `top`, not by messages or
keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it

from kvstore.clock import Clock, SystemClock
from kvstore.core.names import DLQ_PREFIX, SYSTEM_TOPICS
from tiering.policy.policy import Prices
from tiering.spark.listing import Opener, listing
from tiering.spark.options import read_options
from tiering.spark.report.figures import (
    TIERS,
    DayVolume,
    DeadLetters,
    Delays,
    Figures,
    KeyCount,
    Sums,
    TimerCounts,
    TransactionCounts,
    freed_of,
    topics_of,
    total_of,
)
from tiering.spark.report.views import (
    KEPT_DAYS,
    SUMS,
    create_views,
    delays_of,
    timers_of,
    transactions_of,
)
from tiering.spark.splits import inspect_archives

TOP: Final = 20


def gather(
    spark: SparkSession,
    path: str,
    *,
    options: Mapping[str, str] | None = None,
    prices: Prices | None = None,
    now_ms: int | None = None,
    top: int = TOP,
    clock: Clock | None = None,
) -> Figures:
    """The figures of a store's folder, or of a folder or bucket of archives; see `create_views`.
    Of topics, keys and dead letters the largest `top`. Raises what reading raises.
    """
    prices = prices or Prices()
    now = now_ms if now_ms is not None else (clock or SystemClock()).now_ms()
    asked = ("volume", "dead_letters", "keys")
    create_views(spark, path, options=options, prices=prices, now_ms=now, only=asked)
    with _kept(spark.table("volume")) as volume:
        names = _largest(volume, top)
        days = _days(volume, names)
        topics = topics_of(days, names)
        keys_count, keys = _keys(spark.table("keys"), volume, top)
        topics_count = volume.select("topic").distinct().count()
    dead_count, dead = _dead_letters(spark.table("dead_letters"), top)
    return Figures(
        path=path,
        now_ms=now,
        currency=prices.currency,
        prices={tier: float(getattr(prices, tier).gb_month) for tier in TIERS},
        archives=_archives(path, options or {}),
        top=top,
        topics_count=topics_count,
        total=total_of(topics),
        topics=topics,
        days=days,
        dead_letters_count=dead_count,
        dead_letters=dead,
        delays=_delays(spark, path, options or {}, names),
        timers=_timers(timers_of(spark, path, options or {}, now, by_day=False), top),
        transactions=_transactions(
            transactions_of(spark, path, options or {}, now, by_day=False), top
        ),
        keys_count=keys_count,
        keys=keys,
        retention=list(freed_of(days, topics, now, KEPT_DAYS)),
    )


@contextmanager
def _kept(found: DataFrame) -> Iterator[DataFrame]:
    """Keeps rows that are asked for more than once."""
    kept = found.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _sums() -> list[Column]:
    return [F.sum(name).alias(name) for name in SUMS]


def _largest(volume: DataFrame, top: int) -> list[str]:
    order = [F.desc("cost_per_month"), F.desc("stored_bytes"), F.asc("topic")]
    found = volume.groupBy("topic").agg(*_sums()).orderBy(*order).limit(top)
    return [row.topic for row in found.collect()]


def _days(volume: DataFrame, names: Sequence[str]) -> list[DayVolume]:
    named = F.when(F.col("topic").isin(list(names)), F.col("topic"))
    found = volume.withColumn("topic", named).groupBy("topic", "tier", "day").agg(*_sums())
    rows = found.orderBy("day", "tier", "topic").collect()
    return [
        DayVolume(row.topic, row.tier, row.day, Sums(*(row[name] for name in SUMS)))
        for row in rows
    ]  # fmt: skip


def _keys(keys: DataFrame, volume: DataFrame, top: int) -> tuple[int, list[KeyCount]]:
    of_topics = volume.groupBy("topic").agg(F.sum("messages").alias("of"))
    asked = keys.where(~F.col("topic").startswith(DLQ_PREFIX))
    with _kept(asked) as kept:
        order = [F.desc("messages"), F.asc("topic"), F.asc("key")]
        most = kept.orderBy(*order).limit(top).join(of_topics, "topic", "left").orderBy(*order)
        rows = most.collect()
        return kept.count(), [
            # A topic may be created between the two queries; then only its keys are known.
            KeyCount(row.topic, row.key, row.messages, row.messages / (row["of"] or row.messages))
            for row in rows
        ]


def _dead_letters(found: DataFrame, top: int) -> tuple[int, list[DeadLetters]]:
    with _kept(found) as kept:
        by_day = kept.groupBy("topic", "group", "day").agg(
            F.sum("messages").alias("messages"), F.max("attempts").alias("attempts")
        )
        each = by_day.groupBy("topic", "group").agg(
            F.sum("messages").alias("messages"),
            F.max("attempts").alias("attempts"),
            F.sort_array(F.collect_list(F.struct("day", "messages"))).alias("days"),
        )
        rows = each.orderBy(F.desc("messages"), F.asc("topic"), F.asc("group")).limit(top).collect()
        count = kept.agg(F.sum("messages")).collect()[0][0] or 0
    return count, [
        DeadLetters(
            row.topic, row.group, row.messages, row.attempts,
            [(one.day, one.messages) for one in row.days],
        )
        for row in rows
    ]  # fmt: skip


def _delays(
    spark: SparkSession, path: str, options: Mapping[str, str], names: Sequence[str]
) -> list[Delays]:
    """Delays of the named topics, but for those whose messages were born long before: dead letters,
    and messages that the store writes for itself.
    """
    asked = [n for n in names if not n.startswith(DLQ_PREFIX) and n not in SYSTEM_TOPICS]
    if not asked:
        return []
    found = delays_of(spark, path, options, of=asked, with_sums=True)
    rows = found.orderBy(F.asc_nulls_first("topic"), F.asc_nulls_first("day")).collect()
    return [
        Delays(row.topic, row.day, row.messages, row.p50, row.p90, row.p99, row.max)
        for row in rows
        if row.messages
    ]


def _timers(found: DataFrame, top: int) -> list[TimerCounts]:
    counts = ("waiting", "overdue", "delivered", "cancelled")
    return [TimerCounts(**row.asDict()) for row in _most(found, counts, top)]


def _transactions(found: DataFrame, top: int) -> list[TransactionCounts]:
    counts = ("waiting", "overdue", "committed", "rolled_back", "given_up")
    return [TransactionCounts(**row.asDict()) for row in _most(found, counts, top, "group")]


def _most(found: DataFrame, counts: Sequence[str], top: int, *order: str) -> list[Row]:
    """The `top` rows with most messages."""
    most = sum((F.col(name) for name in counts[1:]), F.col(counts[0]))
    return found.orderBy(F.desc(most), "topic", *order).limit(top).collect()


def _archives(path: str, options: Mapping[str, str]) -> dict[str, int]:
    """The number of archives in each tier, which needs no query of Spark."""
    given = {name: value for name, value in options.items() if name.lower() != "columns"}
    asked = read_options({**given, "path": path})
    found = listing(asked)
    held = found.archives
    if found.topics is None:
        # In a place some may be superseded.
        held = [one.held for one in inspect_archives(found, asked, Opener(asked), lambda _: None)]
    counts: Counter[str] = Counter(one.tier for one in held)
    return {tier: counts[tier] for tier in TIERS if tier in counts}
