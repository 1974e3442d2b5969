"""Views: the tables that operators ask, by name, of one store or one place of archives.

The idea: each view is a query that has not run; making all of them reads nothing. `archives` needs
a catalog or manifests; `volume` and `retention` need directories, the store times of blocks that
span midnight, and the log. The others read the columns they need; only `messages` reads bodies.
Days are UTC; costs are a month's costs of all that is stored now.

Invariant: Spark sums up the rows of a view; no message passes through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it

from kvstore.clock import Clock, SystemClock
from kvstore.core.names import (
    DLQ_ATTEMPTS,
    DLQ_ORIGIN_GROUP,
    DLQ_ORIGIN_TOPIC,
    DLQ_PREFIX,
    PRODUCER_GROUP,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_DELETE_ID,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    TRANSACTION_CHECK_MS,
    TRANSACTION_CHECKS,
    TRANSACTION_DISCARD_TOPIC,
    TRANSACTION_FIRST_POSITION,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_ROLLBACK,
    TRANSACTION_SINCE_MS,
)
from tiering.policy.policy import GB, Prices, check_prices
from tiering.spark.report import tables
from tiering.spark.report.tables import DAY_MS
from tiering.spark.source import data_source

VIEWS: Final = {
    "messages": "every message",
    "archives": "every archive: what the catalog, or the archive itself, says",
    "volume": "messages, bytes and cost by topic, tier and day",
    "dead_letters": "dead letters by topic, group, attempts and day",
    "delays": "milliseconds from born to stored by topic and day: median, p90, p99, most",
    "timers": "delayed messages by topic and day: waiting, overdue, delivered, how late, cancelled",
    "transactions": "prepared messages by topic, group and day: waiting, committed, rolled back",
    "keys": "how many messages of a topic have a key",
    "retention": "what of each topic is older than so many days, and what that costs",
}
KEPT_DAYS: Final = (1, 7, 30, 90, 180, 365)
"""The times of retention that `retention` asks about."""
ACCURACY: Final = 10_000
"""The rank of a percentile is off by at most one in so many."""
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_COLUMNS: Final = {
    "dead_letters": ("topic", "properties", "stored_at"),
    "delays": ("topic", "born_at", "stored_at"),
    "timers": ("topic", "message_id", "properties", "stored_at"),
    "transactions": (
        "topic",
        "message_id",
        "position",
        "prepared_position",
        "properties",
        "stored_at",
    ),
    "keys": ("topic", "keys"),
}


def create_views(
    spark: SparkSession,
    path: str,
    *,
    options: Mapping[str, str] | None = None,
    prices: Prices | None = None,
    now_ms: int | None = None,
    clock: Clock | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Makes the views (`VIEWS`, or `only` some) of a store's folder, or of a folder or bucket of
    archives.

    `options` are those of `spark.read.format("kvmq")`; `prices` (default: the examples of
    `tiering.Prices`) make costs of bytes; `retention` counts ages back from `now_ms`, or the
    clock's time. Views of these names that the session had are replaced. Raises PolicyIllegal for
    prices that are none; a query raises what reading raises.

    >>> create_views(spark, "data")  # doctest: +SKIP
    >>> spark.sql("SELECT topic, sum(cost_per_month) FROM volume GROUP BY topic")  # doctest: +SKIP
    """
    prices = prices or Prices()
    check_prices(prices)
    now = now_ms if now_ms is not None else (clock or SystemClock()).now_ms()
    spark.dataSource.register(tables.ReportSource)
    given = dict(options or {})
    of = _Of(spark, path, given)
    # One table for both: Spark starts a Python for each.
    volume = cache(lambda: _volume(of.table("volume"), prices))
    makers: dict[str, Callable[[], DataFrame]] = {
        "messages": of.messages,
        "archives": lambda: of.table("archives"),
        "volume": volume,
        "dead_letters": lambda: _dead_letters(of.messages(*_COLUMNS["dead_letters"])),
        "delays": lambda: delays_of(spark, path, given),
        "timers": lambda: timers_of(spark, path, given, now),
        "transactions": lambda: transactions_of(spark, path, given, now),
        "keys": lambda: _keys(of.messages(*_COLUMNS["keys"])),
        "retention": lambda: _retention(volume(), now),
    }
    assert makers.keys() == VIEWS.keys(), "VIEWS names them all"
    for name, make in makers.items():
        if only is None or name in only:
            make().createOrReplaceTempView(name)


class _Of:
    """The store or place that the views are of."""

    def __init__(self, spark: SparkSession, path: str, options: Mapping[str, str]) -> None:
        self._spark, self._path = spark, path
        self._options = dict(options)
        self._mine = {k: v for k, v in options.items() if k.lower() != "columns"}

    def messages(self, *columns: str) -> DataFrame:
        """Messages, with these columns or with those that the options name."""
        reader = self._spark.read.format(data_source.NAME)
        if not columns:
            return reader.options(**self._options).load(self._path)
        return reader.options(**self._mine, columns=",".join(columns)).load(self._path)

    def table(self, name: str) -> DataFrame:
        """The table of volumes, or of archives."""
        reader = self._spark.read.format(tables.NAME).options(**self._mine)
        return reader.option(tables.TABLE, name).load(self._path)


def _volume(counted: DataFrame, prices: Prices) -> DataFrame:
    stored = F.sum("stored_bytes")
    price = F.lit(None).cast("double")
    for tier in ("hot", "warm", "cold"):
        price = F.when(F.col("tier") == tier, float(getattr(prices, tier).gb_month)).otherwise(
            price
        )
    summed = counted.groupBy("topic", "tier", "day").agg(
        F.sum("messages").alias("messages"),
        F.sum("raw_bytes").alias("raw_bytes"),
        F.round(stored).cast("bigint").alias("stored_bytes"),
        (stored / GB).alias("_gb"),
    )
    return summed.withColumn("cost_per_month", F.col("_gb") * price).drop("_gb")


def _dead_letters(messages: DataFrame) -> DataFrame:
    origin = F.col("properties")
    of_group = origin[DLQ_ORIGIN_GROUP]
    is_one = of_group.isNotNull() | F.col("topic").startswith(DLQ_PREFIX)
    named = F.substring(F.col("topic"), len(DLQ_PREFIX) + 1, 1 << 16)
    return (
        messages.where(is_one)
        .select(
            # RocketMQ names the group by the topic alone, and the origin as a retry does.
            F.coalesce(origin[DLQ_ORIGIN_TOPIC], origin[RETRY_TOPIC]).alias("topic"),
            F.coalesce(of_group, named).alias("group"),
            F.expr(f"try_cast(properties['{DLQ_ATTEMPTS}'] AS INT)").alias("attempts"),
            _day().alias("day"),
            F.col("topic").alias("kept_in"),
        )
        .groupBy("topic", "group", "day", "attempts", "kept_in")
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def delays_of(
    spark: SparkSession,
    path: str,
    options: Mapping[str, str],
    *,
    of: Sequence[str] | None = None,
    with_sums: bool = False,
) -> DataFrame:
    """Delays by topic and day, of some topics or of all; `with_sums`: those of each topic on any
    day (day null), and of all topics (topic null), as well.
    """
    messages = _Of(spark, path, options).messages(*_COLUMNS["delays"])
    if of is not None:
        messages = messages.where(F.col("topic").isin(list(of)))
    delay = F.unix_millis("stored_at") - F.unix_millis("born_at")
    found = messages.select("topic", _day().alias("day"), delay.alias("_delay"))
    by = found.rollup("topic", "day") if with_sums else found.groupBy("topic", "day")
    asked = F.percentile_approx("_delay", list(SHARES.values()), ACCURACY)
    summed = by.agg(
        F.count(F.lit(1)).alias("messages"),
        asked.alias("_shares"),
        F.max("_delay").alias("max"),
    )
    shares = [F.col("_shares")[i].alias(name) for i, name in enumerate(SHARES)]
    return summed.select("topic", "day", "messages", *shares, "max")


def timers_of(
    spark: SparkSession, path: str, options: Mapping[str, str], now_ms: int, *, by_day: bool = True
) -> DataFrame:
    """Delayed messages by topic and the day on which they are due, or by topic alone: how many
    wait, are overdue, were delivered, how late, and were cancelled.
    """
    messages = _Of(spark, path, options).messages(*_COLUMNS["timers"])
    said = F.col("properties")
    is_held = F.col("topic") == TIMER_TOPIC
    ended = F.when(~is_held, 2).when(said[TIMER_DELETE_ID].isNotNull(), 1).otherwise(0)
    records = messages.where(said[TIMER_OUT_MS].isNotNull()).select(
        F.when(is_held, said[REAL_TOPIC]).otherwise(F.col("topic")).alias("topic"),
        "message_id",
        F.struct(
            ended.alias("ended"),
            F.unix_millis("stored_at").alias("stored"),
            _number(TIMER_OUT_MS).alias("due"),
        ).alias("_record"),
    )
    # The record that ended a message's wait, or else the last by which it waits.
    each = records.groupBy("topic", "message_id").agg(F.max("_record").alias("_last"))
    ended, due = F.col("_last.ended"), F.col("_last.due")
    is_waiting, is_delivered = ended == 0, ended == 2
    grouped = each.groupBy("topic", *([_day_of(due).alias("day")] if by_day else []))
    late = F.when(is_delivered, F.col("_last.stored") - due)
    summed = grouped.agg(
        F.count_if(is_waiting & (due > now_ms)).alias("waiting"),
        F.count_if(is_waiting & (due <= now_ms)).alias("overdue"),
        F.count_if(is_delivered).alias("delivered"),
        F.count_if(ended == 1).alias("cancelled"),
        F.percentile_approx(late, list(SHARES.values()), ACCURACY).alias("_shares"),
        F.max(late).alias("max"),
    )
    shares = [F.col("_shares")[i].alias(name) for i, name in enumerate(SHARES)]
    days = ["day"] if by_day else []
    counts = ["waiting", "overdue", "delivered", "cancelled"]
    return summed.select("topic", *days, *counts, *shares, "max")


def transactions_of(
    spark: SparkSession, path: str, options: Mapping[str, str], now_ms: int, *, by_day: bool = True
) -> DataFrame:
    """Prepared messages by topic, producer group and the day on which they were prepared, or
    without the day: how many wait, or should have been asked about, were committed, rolled back,
    given up, how often a check did not end one, and how long they waited.
    """
    messages = _Of(spark, path, options).messages(*_COLUMNS["transactions"])
    said = F.col("properties")
    is_own = ~F.col("topic").isin(TRANSACTION_HALF_TOPIC, TRANSACTION_DISCARD_TOPIC)
    ended = (
        F.when(is_own, 3)
        .when(F.col("topic") == TRANSACTION_DISCARD_TOPIC, 2)
        .when(said[TRANSACTION_ROLLBACK].isNotNull(), 1)
        .otherwise(0)
    )
    stored = F.unix_millis("stored_at")
    prepared, position = F.col("prepared_position"), F.col("position")
    before = F.when(prepared > 0, prepared - 1).otherwise(position)
    records = messages.where(said[TRANSACTION_CHECK_MS].isNotNull()).select(
        F.when(is_own, F.col("topic")).otherwise(said[REAL_TOPIC]).alias("topic"),
        "message_id",
        # Where the message was prepared tells transactions apart that have one id.
        F.coalesce(_number(TRANSACTION_FIRST_POSITION), before).alias("_first"),
        said[PRODUCER_GROUP].alias("group"),
        F.struct(
            ended.alias("ended"), stored.alias("stored"), _number(TRANSACTION_CHECK_MS).alias("due")
        ).alias("_record"),
        F.coalesce(_number(TRANSACTION_SINCE_MS), stored).alias("_since"),
        F.coalesce(_number(TRANSACTION_CHECKS), F.lit(0)).alias("_checks"),
    )
    # As in `timers_of`. A note of a rollback says no group and no checks; its message does.
    each = records.groupBy("topic", "message_id", "_first").agg(
        F.max("_record").alias("_last"),
        F.max("group").alias("group"),
        F.min("_since").alias("_since"),
        F.max("_checks").alias("_checks"),
        F.count(F.lit(1)).alias("_records"),
    )
    ended, is_due = F.col("_last.ended"), F.col("_last.due") <= now_ms
    days = [_day_of(F.col("_since")).alias("day")] if by_day else []
    # If retention took the record by which a message waited, nobody knows since when.
    waited = F.when((ended > 0) & (F.col("_records") > 1), F.col("_last.stored") - F.col("_since"))
    summed = each.groupBy("topic", "group", *days).agg(
        F.count_if((ended == 0) & ~is_due).alias("waiting"),
        F.count_if((ended == 0) & is_due).alias("overdue"),
        F.count_if(ended == 3).alias("committed"),
        F.count_if(ended == 1).alias("rolled_back"),
        F.count_if(ended == 2).alias("given_up"),
        F.sum("_checks").alias("checks"),
        F.percentile_approx(waited, list(SHARES.values()), ACCURACY).alias("_shares"),
        F.max(waited).alias("max"),
    )
    shares = [F.col("_shares")[i].alias(name) for i, name in enumerate(SHARES)]
    counts = ["waiting", "overdue", "committed", "rolled_back", "given_up", "checks"]
    named = ["topic", "group", *(["day"] if by_day else [])]
    return summed.select(*named, *counts, *shares, "max")


def _keys(messages: DataFrame) -> DataFrame:
    # A key that a message has twice counts once.
    each = messages.select("topic", F.explode(F.array_distinct("keys")).alias("key"))
    return each.groupBy("topic", "key").agg(F.count(F.lit(1)).alias("messages"))


def _retention(volume: DataFrame, now_ms: int) -> DataFrame:
    kept = F.explode(F.array(*[F.lit(days) for days in KEPT_DAYS]))
    each = volume.withColumn("kept_days", kept)
    # A day is over when its last message expires.
    over = F.unix_date("day").cast("bigint") + 1 + F.col("kept_days") <= F.lit(now_ms / DAY_MS)
    return (
        each.where(over)
        .groupBy("topic", "kept_days")
        .agg(*[F.sum(name).alias(name) for name in SUMS])
    )


SUMS: Final = ("messages", "raw_bytes", "stored_bytes", "cost_per_month")
"""The columns of `volume` that can be added up."""


def _day() -> Column:
    """The day of `stored_at`, UTC whatever the session's time zone is."""
    return _day_of(F.unix_millis("stored_at"))


def _day_of(ms: Column) -> Column:
    """The day of a time in ms, UTC."""
    return F.date_from_unix_date(F.floor(ms / DAY_MS).cast("int"))


def _number(name: str) -> Column:
    """The number that a property says; null if it says none."""
    return F.expr(f"try_cast(properties['{name}'] AS BIGINT)")
