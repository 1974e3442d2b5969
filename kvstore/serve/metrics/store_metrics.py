"""Store metrics: a collector that reads a store's figures when Prometheus asks.

The idea: nothing is counted for metrics while messages are put and taken. Totals of the store are
always there. Series of topics, and of groups in topics, are there for all where these are few, else
for the busiest (`chosen`); two metrics say how many are left out.

Bounds of one scrape, whatever the store holds: `TOPICS_MAX` topics and `PAIRS_MAX` groups in
topics, with `QUEUES_MAX` queues each, `QUEUES_AHEAD` looks more, and `LISTED_MAX` seeks that list
the topics of groups. Lists of all topics and groups are read again when their number has changed,
and once a minute.

Invariants: a scrape changes nothing; two scrapes at once are one after the other; what is deleted
while it is read is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kvstore.api.store import Store
from kvstore.clock import Clock
from kvstore.engine.stats import StoreStats
from kvstore.errors import GroupNotFound, TopicNotFound
from kvstore.pop.progress import GroupStats
from kvstore.process.durations import DurationStats
from kvstore.serve.metrics.chosen import Chosen
from kvstore.serve.metrics.server_counts import ServerCounts

TOPICS_MAX: Final = 200
PAIRS_MAX: Final = 200
QUEUES_MAX: Final = 4096
QUEUES_AHEAD: Final = 1024
LISTED_MAX: Final = 1000
_LIST_AGAIN: Final = 60.0
"""Seconds."""

Pair = tuple[str, str]
"""A group and a topic."""
TierCosts = Callable[[StoreStats], tuple[str, Mapping[str, float]]]
"""A currency, and what each tier costs a month at a policy's prices."""


class TopicFigures(NamedTuple):
    """Messages put to a topic so far, and those that it holds."""

    put: int
    held: int


class StoreMetrics(Collector):
    """The metrics of a store; see the module. `costs` is None without a policy."""

    def __init__(
        self,
        store: Store,
        counts: ServerCounts,
        clock: Clock,
        version: str,
        costs: TierCosts | None = None,
    ) -> None:
        self._store = store
        self._counts = counts
        self._clock = clock
        self._version = version
        self._costs = costs
        self._lock = threading.Lock()
        self._topics: dict[str, int] = {}
        """The queues of each topic."""
        self._groups: list[str] = []
        self._schedules = 0
        self._listed_at: float | None = None
        self._group_at = 0
        self._topics_of: dict[str, list[str]] = {}
        self._pairs: dict[Pair, int] = {}
        self._chosen_topics = Chosen[str, TopicFigures](TOPICS_MAX, QUEUES_MAX, QUEUES_AHEAD)
        self._chosen_pairs = Chosen[Pair, GroupStats](PAIRS_MAX, QUEUES_MAX, QUEUES_AHEAD)

    @property
    def looks(self) -> int:
        """How many looks at queues the last scrape took."""
        return self._chosen_topics.looks + self._chosen_pairs.looks

    def now_ms(self) -> int:
        """The time of the store's clock, ms since the epoch."""
        return self._clock.now_ms()

    def costs_of(self, stats: StoreStats) -> tuple[str, Mapping[str, float]] | None:
        """The currency and the cost of each tier for a month; None without a policy."""
        return None if self._costs is None else self._costs(stats)

    def group_figures(self) -> list[GroupStats]:
        """The groups in topics that have series of their own, as they are now."""
        with self._lock:
            self._list(self._store.stats().topics)
            return list(self._chosen_pairs.look(self._pairs, self._pair).values())

    def describe(self) -> Iterable[Metric]:
        """See `Collector`: nothing, so that a registration reads nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        with self._lock:
            found = list(self._collect())
        yield from found

    def _collect(self) -> Iterator[Metric]:
        stats = self._store.stats()
        self._list(stats.topics)
        yield InfoMetricFamily("kvmq_build", "The version of kvmq.", {"version": self._version})
        yield from _of_store(stats, len(self._groups))
        yield from self._of_waiting(stats)
        yield from self._of_tiers(stats)
        yield from self._of_topics()
        yield from self._of_groups()
        yield from self._of_server()

    # --- lists ---

    def _list(self, topics: int) -> None:
        """Reads the lists of topics and groups again where that is due."""
        now = self._clock.monotonic()
        is_due = self._listed_at is None or now >= self._listed_at + _LIST_AGAIN
        is_listed_anew = is_due or topics != len(self._topics)
        if is_listed_anew:
            self._listed_at = now
            self._topics = {info.name: info.read_queues for info in self._store.topics()}
            self._groups = [info.name for info in self._store.groups()]
            self._schedules = len(self._store.schedules())
            known = set(self._groups)
            self._topics_of = {g: t for g, t in self._topics_of.items() if g in known}
        self._list_pairs(has_changed=is_listed_anew)

    def _list_pairs(self, *, has_changed: bool) -> None:
        """Lists the topics of some groups, in turn; the pairs are made anew if any are new, or the
        lists of topics and groups have changed.
        """
        listed = 0
        for _ in range(len(self._groups)):
            self._group_at = (self._group_at + 1) % len(self._groups)
            group = self._groups[self._group_at]
            try:
                found = self._store.group_topics(group)
            except GroupNotFound:
                found = []
            if found != self._topics_of.get(group):
                self._topics_of[group] = found
                has_changed = True
            listed += len(found) + 1
            if listed >= LISTED_MAX:
                break
        if has_changed:
            self._pairs = {
                (group, topic): self._topics[topic]
                for group, topics in self._topics_of.items()
                for topic in topics
                if topic in self._topics
            }

    # --- looks ---

    def _topic(self, name: str) -> tuple[TopicFigures, int] | None:
        try:
            bounds = [self._store.bounds(name, queue) for queue in range(self._topics[name])]
        except TopicNotFound:
            return None
        put = sum(b.next_offset for b in bounds)
        return TopicFigures(put, put - sum(b.min_offset for b in bounds)), put

    def _pair(self, pair: Pair) -> tuple[GroupStats, int] | None:
        try:
            (found,) = self._store.group_stats(*pair)
        except (GroupNotFound, TopicNotFound):
            return None
        return found, found.end + found.taken + found.in_flight

    # --- families ---

    def _of_waiting(self, stats: StoreStats) -> Iterator[Metric]:
        delays, now = stats.delays, self._clock.now_ms()
        overdue = 0 if delays.next_due is None else max(0, now - delays.next_due)
        yield _gauge("kvmq_delayed_messages", "Delayed messages that wait.", delays.waiting)
        yield _gauge(
            "kvmq_delayed_damaged_messages",
            "Delayed messages that are due and can't be read.",
            delays.damaged,
        )
        yield _gauge(
            "kvmq_delayed_overdue_seconds",
            "By how much the next delayed message is overdue; 0 if it is not.",
            overdue / 1000,
        )
        yield _gauge(
            "kvmq_delayed_lateness_seconds",
            "By how much the last delivery of a delayed message was late.",
            delays.late_ms / 1000,
        )
        yield _histogram(
            "kvmq_delayed_delivery_lateness_seconds",
            "By how much deliveries were late, each by its first message.",
            delays.lateness,
        )
        yield _counter(
            "kvmq_delayed_delivered_messages", "Delayed messages delivered.", delays.delivered
        )
        yield _counter(
            "kvmq_delayed_cancelled_messages", "Delayed messages cancelled.", delays.cancelled
        )
        prepared = self._store.transactions(limit=1).count
        yield _gauge("kvmq_prepared_messages", "Prepared messages that wait.", prepared)
        yield _gauge("kvmq_schedules", "Schedules, paused ones included.", self._schedules)

    def _of_tiers(self, stats: StoreStats) -> Iterator[Metric]:
        archives = GaugeMetricFamily("kvmq_tier_archives", "Archives.", labels=["tier"])
        messages = GaugeMetricFamily("kvmq_tier_messages", "Messages there.", labels=["tier"])
        raw = GaugeMetricFamily(
            "kvmq_tier_raw_bytes", "Bytes of its records before compression.", labels=["tier"]
        )
        size = GaugeMetricFamily("kvmq_tier_bytes", "Bytes stored there.", labels=["tier"])
        waiting = GaugeMetricFamily(
            "kvmq_tier_waiting_segments", "Segments that could not be moved.", labels=["tier"]
        )
        raw.add_metric(["hot"], stats.log_bytes)
        size.add_metric(["hot"], stats.log_bytes)
        for tier in stats.tiers:
            archives.add_metric([tier.tier], tier.archives)
            messages.add_metric([tier.tier], tier.messages)
            raw.add_metric([tier.tier], tier.raw_bytes)
            size.add_metric([tier.tier], tier.bytes)
            waiting.add_metric([tier.tier], len(tier.waiting))
        yield from (archives, messages, raw, size, waiting)
        costs_now = self.costs_of(stats)
        if costs_now is not None:
            currency, costs = costs_now
            cost = GaugeMetricFamily(
                "kvmq_tier_cost_per_month",
                "Cost of the bytes stored there, at the policy's prices.",
                labels=["tier", "currency"],
            )
            for tier_name, amount in costs.items():
                cost.add_metric([tier_name, currency], amount)
            yield cost

    def _of_topics(self) -> Iterator[Metric]:
        found = self._chosen_topics.look(self._topics, self._topic)
        put = CounterMetricFamily(
            "kvmq_topic_put_messages",
            "Messages put to a topic so far.",
            labels=["topic"],
        )
        held = GaugeMetricFamily(
            "kvmq_topic_held_messages", "Messages that a topic holds.", labels=["topic"]
        )
        appended = CounterMetricFamily(
            "kvmq_topic_appended_bytes",
            "Bytes of the records of a topic that came since the store was opened.",
            labels=["topic"],
        )
        for topic, figures in found.items():
            put.add_metric([topic], figures.put)
            held.add_metric([topic], figures.held)
        for topic, size in self._store._appended_bytes(found).items():
            appended.add_metric([topic], size)
        yield from (put, held, appended)
        yield _gauge(
            "kvmq_topics_left_out",
            "Topics without series of their own, as there are too many.",
            len(self._topics) - len(found),
        )

    def _of_groups(self) -> Iterator[Metric]:
        found = self._chosen_pairs.look(self._pairs, self._pair)
        now = self._clock.now_ms()
        for family, value in _of_pairs(now):
            for pair, figures in found.items():
                family.add_metric(list(pair), value(figures))
            yield family
        letters = GaugeMetricFamily(
            "kvmq_group_dead_letter_messages",
            "Dead letters of a group that were neither taken nor put back.",
            labels=["group"],
        )
        for group, count in {g: figures.dead_letters for (g, _), figures in found.items()}.items():
            letters.add_metric([group], count)
        yield letters
        yield _gauge(
            "kvmq_group_topics_left_out",
            "Groups in topics without series of their own, as there are too many.",
            len(self._pairs) - len(found),
        )

    def _of_server(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily(
            "kvmq_server_connections", "Open connections.", labels=["door"]
        )
        for door, count in self._counts.connections().items():
            connections.add_metric([door], count)
        calls = CounterMetricFamily(
            "kvmq_server_calls",
            "Calls that were answered; the result is ok, or the name of an error.",
            labels=["door", "call", "result"],
        )
        for labels, count in list(self._counts.calls.items()):
            calls.add_metric(list(labels), count)
        yield from (connections, calls)


Labelled = CounterMetricFamily | GaugeMetricFamily


def _of_pairs(now: int) -> Iterator[tuple[Labelled, Callable[[GroupStats], float]]]:
    """The families of a group in a topic, each with its figure; the time is in ms."""
    names = ["group", "topic"]

    def counter(name: str, text: str) -> Labelled:
        return CounterMetricFamily(f"kvmq_group_{name}_messages", text, labels=names)

    def gauge(name: str, text: str) -> Labelled:
        return GaugeMetricFamily(f"kvmq_group_{name}", text, labels=names)

    yield (
        counter("popped", "Messages handed out once at least, or passed over."),
        lambda f: f.taken,
    )
    yield (
        counter("done", "Messages done: acked, dead or passed over."),
        lambda f: f.taken - f.in_flight,
    )
    yield counter("passed_over", "Messages that filters refused."), lambda f: f.passed_over
    yield counter("expired", "Messages passed over as expired."), lambda f: f.expired
    yield gauge("lag_messages", "Messages still to be done."), lambda f: f.lag
    yield (
        gauge("lag_seconds", "Age of the oldest message still to be done; 0 if there is none."),
        lambda f: 0 if f.oldest_at is None else max(0, now - f.oldest_at) / 1000,
    )
    yield gauge("unread_messages", "Messages not yet handed out."), lambda f: f.unread
    yield gauge("in_flight_messages", "Messages handed out, not done."), lambda f: f.in_flight
    yield gauge("due_messages", "Messages in flight whose lock ran out."), lambda f: f.due
    yield (
        gauge("redelivered_messages", "Messages in flight at their second attempt or later."),
        lambda f: f.redelivered,
    )
    yield (
        gauge("overdue_seconds", "Since when the first lock has run out; 0 if none has."),
        lambda f: 0 if f.oldest_due is None else max(0, now - f.oldest_due) / 1000,
    )


def _of_store(stats: StoreStats, groups: int) -> Iterator[Metric]:
    yield _counter(
        "kvmq_store_appended_messages",
        "Records appended since the store was opened, of its own topics too.",
        stats.appended,
    )
    yield _counter(
        "kvmq_store_appended_bytes", "Bytes of the log ever appended.", stats.end_position
    )
    yield _counter(
        "kvmq_store_deleted_unread_messages",
        "Messages that retention deleted and no group had read.",
        stats.deleted_unread,
    )
    yield _counter(
        "kvmq_store_expired_messages", "Messages that pops passed over as expired.", stats.expired
    )
    yield _counter(
        "kvmq_store_redelivered_messages",
        "Messages that pops handed out for a second attempt or a later one.",
        stats.redelivered,
    )
    yield _gauge("kvmq_store_log_bytes", "Bytes of the log that are held.", stats.log_bytes)
    yield _gauge("kvmq_store_segments", "Segments of the log.", stats.segments)
    yield _gauge("kvmq_store_topics", "Topics.", stats.topics)
    yield _gauge("kvmq_store_groups", "Consumer groups.", groups)
    yield _gauge(
        "kvmq_store_unflushed_bytes",
        "Bytes of the log that are not known to be on the disk.",
        stats.end_position - stats.durable_position,
    )
    yield _gauge(
        "kvmq_store_uncheckpointed_bytes",
        "Bytes of the log that the index has in memory only.",
        stats.end_position - stats.checkpointed_position,
    )
    yield _gauge("kvmq_store_disk_used_ratio", "Share of the disk in use.", stats.disk_used)
    yield _gauge(
        "kvmq_store_refuses_puts",
        "1 while puts are refused, else 0.",
        0 if stats.refuses_puts is None else 1,
    )
    index = GaugeMetricFamily(
        "kvmq_store_index_bytes", "Bytes of the index by family of RocksDB.", labels=["family"]
    )
    for family, size in stats.index_bytes.items():
        index.add_metric([family], size)
    yield index
    yield _histogram(
        "kvmq_store_flush_duration_seconds",
        "How long putting the log on the disk took.",
        stats.sync_durations,
    )
    yield _histogram(
        "kvmq_store_checkpoint_duration_seconds",
        "How long checkpoints took.",
        stats.checkpoint_durations,
    )
    alive = GaugeMetricFamily(
        "kvmq_store_thread_alive", "1 while a thread of the store works.", labels=["thread"]
    )
    failures = CounterMetricFamily(
        "kvmq_store_thread_failures", "Failed turns of a thread of the store.", labels=["thread"]
    )
    for thread in stats.threads:
        alive.add_metric([thread.name], 1 if thread.alive else 0)
        failures.add_metric([thread.name], thread.failures)
    yield from (alive, failures)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, found: DurationStats) -> Metric:
    buckets, below = list[tuple[str, float]](), 0
    limits = [*map(str, found.limits), "+Inf"]
    for limit, count in zip(limits, found.counts, strict=True):
        below += count
        buckets.append((limit, below))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=found.seconds)
