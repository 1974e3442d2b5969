"""The metrics of a store: their values, page and dashboard, and that a scrape stays short."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kvstore import GroupConfig, Message, Store, StoreConfig, TopicConfig
from kvstore.errors import GroupNotFound, StoreBusy
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.metrics import store_metrics
from kvstore.serve.metrics.server_counts import ServerCounts
from kvstore.serve.metrics.store_metrics import StoreMetrics
from tests.support.clock import VirtualClock
from tests.support.stores import SMALL, Opens
from tests.support.waiting import until

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"


class Scraped:
    """A store's metrics, as Prometheus would have read them."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.counts = ServerCounts()
        self.collector = StoreMetrics(
            store, self.counts, clock, "1.2.3", lambda stats: ("EUR", {"hot": 0.5})
        )
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self.collector)
        self.samples: list[Sample] = []

    def scrape(self) -> Scraped:
        text = generate_latest(self._registry).decode()
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]
        return self

    def value(self, name: str, **labels: str) -> float | None:
        found = [s.value for s in self.samples if s.name == name and s.labels == labels]
        return found[0] if found else None

    def labels(self, name: str) -> list[dict[str, str]]:
        return [s.labels for s in self.samples if s.name == name]

    def names(self) -> dict[str, set[str]]:
        """The names that are exported, each with its labels."""
        found: dict[str, set[str]] = {}
        for sample in self.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        return found


Opened = Callable[[], tuple[Store, Scraped]]


@pytest.fixture
def opened(opens: Opens, clock: VirtualClock) -> Opened:
    """Opens a store on the test's clock, with its metrics."""

    def make() -> tuple[Store, Scraped]:
        store = opens(StoreConfig(segment_size=SMALL.segment_size, clock=clock))
        return store, Scraped(store, clock)

    return make


def test_progress_of_a_group_is_read_at_the_scrape(opened: Opened, clock: VirtualClock) -> None:
    store, found = opened()
    store.create_topic("orders", queues=2)
    store.create_group("billing")
    store.put_batch([Message("orders", b"x")] * 5)
    first, second = store.pop("billing", "orders", limit=2, invisible_for=10)
    store.ack(first.receipt)
    found.scrape()
    pair = {"group": "billing", "topic": "orders"}
    assert found.value("kvmq_topic_put_messages_total", topic="orders") == 5
    assert found.value("kvmq_topic_held_messages", topic="orders") == 5
    assert found.value("kvmq_group_popped_messages_total", **pair) == 2
    assert found.value("kvmq_group_done_messages_total", **pair) == 1
    assert found.value("kvmq_group_in_flight_messages", **pair) == 1
    assert found.value("kvmq_group_lag_messages", **pair) == 4
    assert found.value("kvmq_group_overdue_seconds", **pair) == 0
    assert found.value("kvmq_group_lag_seconds", **pair) == 0
    clock.advance(13)
    assert found.scrape().value("kvmq_group_overdue_seconds", **pair) == 3
    assert found.value("kvmq_group_due_messages", **pair) == 1
    assert second.attempt == 1
    assert found.value("kvmq_group_lag_seconds", **pair) == 13


def test_the_lag_in_seconds_is_the_age_of_the_oldest_message_to_be_done(
    opened: Opened, clock: VirtualClock
) -> None:
    store, found = opened()
    store.create_topic("orders", queues=2)
    store.create_group("billing")
    pair = {"group": "billing", "topic": "orders"}
    store.put("orders", b"x", queue=0)
    clock.advance(10)
    store.put_batch([Message("orders", b"x", queue=1)] * 2)
    popped = {p.message.queue: p for p in store.pop("billing", "orders", limit=2, invisible_for=60)}
    clock.advance(5)
    assert found.scrape().value("kvmq_group_lag_seconds", **pair) == 15
    store.ack(popped[0].receipt)
    assert found.scrape().value("kvmq_group_lag_seconds", **pair) == 5
    store.ack(popped[1].receipt)
    assert found.scrape().value("kvmq_group_lag_seconds", **pair) == 5
    (last,) = store.pop("billing", "orders")
    store.ack(last.receipt)
    assert found.scrape().value("kvmq_group_lag_seconds", **pair) == 0


def test_bytes_of_a_topic_are_those_of_its_records_before_and_behind_checkpoints(
    opened: Opened,
) -> None:
    store, found = opened()
    store.create_topics([TopicConfig(name="orders", queues=2), TopicConfig(name="visits")])
    sizes = {"orders": 0, "visits": 0}
    end = 0
    for count in (1, 5, 3):
        for topic in ("orders", "visits"):
            store.put_batch([Message(topic, b"x" * 100)] * count)
            end, before = store.stats().end_position, end
            sizes[topic] += end - before
            found.scrape()
            assert found.value("kvmq_topic_appended_bytes_total", topic=topic) == sizes[topic]
        store.checkpoint()
    store.delete_topic("visits")
    store.create_topic("visits")
    store.put("visits", b"y")
    found.scrape()
    size = store.stats().end_position - end
    assert found.value("kvmq_topic_appended_bytes_total", topic="visits") == size
    assert found.value("kvmq_topic_appended_bytes_total", topic="orders") == sizes["orders"]


def test_figures_of_the_store_and_of_what_waits(opened: Opened, clock: VirtualClock) -> None:
    store, found = opened()
    store.create_topic("orders")
    store.create_topic("paid", kind="transaction")
    store.put("orders", b"later", delay=60)
    store.prepare("paid", b"maybe", group="pay")
    store.flush()
    store.checkpoint()
    found.scrape()
    assert found.value("kvmq_delayed_messages") == 1
    assert found.value("kvmq_prepared_messages") == 1
    assert found.value("kvmq_store_appended_messages_total") == 2
    assert found.value("kvmq_store_appended_bytes_total") == store.stats().end_position
    assert found.value("kvmq_store_refuses_puts") == 0
    assert found.value("kvmq_tier_bytes", tier="hot") == store.stats().log_bytes
    assert found.value("kvmq_tier_cost_per_month", tier="hot", currency="EUR") == 0.5
    assert found.value("kvmq_store_checkpoint_duration_seconds_count") == 1
    assert found.value("kvmq_build_info", version="1.2.3") == 1


def test_deliveries_and_second_attempts_are_counted(opened: Opened, clock: VirtualClock) -> None:
    store, found = opened()
    store.create_topic("orders", queues=1)
    store.create_group("billing", backoff=[0.0])
    store.put("orders", b"later", delay=60)
    clock.advance(63)
    until(lambda: store.stats().delays.delivered == 1)
    for _ in range(3):
        (popped,) = store.pop("billing", "orders")
        store.nack(popped.receipt, delay=0.0)
    found.scrape()
    assert found.value("kvmq_delayed_delivery_lateness_seconds_count") == 1
    assert found.value("kvmq_delayed_delivery_lateness_seconds_sum") == 3
    assert found.value("kvmq_delayed_delivery_lateness_seconds_bucket", le="2.5") == 0
    assert found.value("kvmq_delayed_delivery_lateness_seconds_bucket", le="5.0") == 1
    assert found.value("kvmq_store_redelivered_messages_total") == 2


def test_what_became_of_messages_in_time_is_counted_as_it_was(
    opened: Opened, clock: VirtualClock
) -> None:
    """Every way in which a wait ends, once each or more; the figures add up to what was put."""
    store, found = opened()
    for topic in ("orders", "gone", "paid"):
        store.create_topic(topic, queues=1)
    store.create_topic("once", queues=1, dedup_window=3600)
    store.create_group("billing")
    waits = [store.put("orders", b"%d" % n, delay=60).message_id for n in range(8)]
    store.put("orders", b"now", delay=0)  # it never waits
    for message_id in waits[:2]:
        store.change_delay(message_id, delay=0)
        store.change_delay(waits[2], delay=5)
    for _ in range(2):
        store.cancel(waits[3])
    store.put_batch([Message("gone", b"", delay=60)] * 2)
    store.delete_topic("gone")
    store.schedule("beat", "orders", b"beat", every=3600)
    store.schedule("idle", "orders", b"", every=3600)
    store.pause_schedule("idle")
    store.put("orders", b"late", delay=7, expires_at=clock.now_ms() + 1000)
    clock.advance(10)
    until(lambda: store.bounds("orders", 0).next_offset == 5)

    prepared = [store.prepare("paid", b"", group="pay") for _ in range(3)]
    store.commit(prepared[0])
    store.rollback(prepared[1])
    with store.transaction(group="pay") as t:
        t.put("paid", b"")
        t.put("paid", b"")
        t.prepare()
        found.scrape()
        assert found.value("kvmq_prepared_messages") == 3
    for _ in range(3):
        store.put("once", b"", dedup_id="a")

    popped = store.pop("billing", "orders", limit=10)
    assert sorted(one.message.body for one in popped) == [b"0", b"1", b"2", b"now"]
    found.scrape()
    assert found.value("kvmq_delayed_messages") == len(waits[4:]) + 1 == 5, "and the schedule's"
    assert found.value("kvmq_delayed_delivered_messages_total") == 4
    assert found.value("kvmq_delayed_cancelled_messages_total") == 1 + 2 + 1
    puts = found.value("kvmq_delayed_delivery_lateness_seconds_count")
    assert puts in (3, 4), "those that are due at once may come in one put"
    assert found.value("kvmq_prepared_messages") == 1
    assert found.value("kvmq_schedules") == 2
    pair = {"group": "billing", "topic": "orders"}
    assert found.value("kvmq_store_expired_messages_total") == 1
    assert found.value("kvmq_group_expired_messages_total", **pair) == 1
    assert found.value("kvmq_topic_put_messages_total", topic="orders") == 5
    assert found.value("kvmq_topic_put_messages_total", topic="paid") == 3
    assert found.value("kvmq_topic_put_messages_total", topic="once") == 1


def test_calls_of_the_server_are_counted_by_name_and_result(opened: Opened) -> None:
    _, found = opened()
    found.counts.gathered("put_batch")([1] * 32 + [StoreBusy("…")])
    found.counts.called("HTTP door", "metrics")
    found.counts.watch(SimpleNamespace(name="HTTP door", connections=3))
    found.scrape()
    calls = {"door": "gathered", "call": "put_batch"}
    assert found.value("kvmq_server_calls_total", **calls, result="ok") == 32
    assert found.value("kvmq_server_calls_total", **calls, result="StoreBusy") == 1
    assert found.value("kvmq_server_connections", door="HTTP door") == 3


def test_calls_that_doors_make_together_are_counted(store: Store) -> None:
    async def calls() -> dict[tuple[str, str, str], int]:
        gatherer = Gatherer(store)
        puts = [gatherer.put([Message(topic, b"x")], 1) for topic in ("t", "none", "t")]
        await asyncio.gather(*puts, return_exceptions=True)
        await gatherer.call("topics")
        with pytest.raises(GroupNotFound):
            await gatherer.pop("none", "t")
        await gatherer.close()
        return dict(gatherer.counts.calls)

    assert asyncio.run(calls()) == {
        ("gathered", "put_batch", "ok"): 2,
        ("gathered", "put_batch", "TopicNotFound"): 1,
        ("gathered", "topics", "ok"): 1,
        ("gathered", "pop", "GroupNotFound"): 1,
    }


def test_what_was_deleted_has_no_series_any_more(opened: Opened) -> None:
    store, found = opened()
    store.create_topics([TopicConfig(name="a"), TopicConfig(name="b")])
    store.create_group("g")
    for topic in "ab":
        store.put(topic, b"x")
        store.pop("g", topic)
    assert len(found.scrape().labels("kvmq_group_lag_messages")) == 2
    store.delete_topic("a")
    found.scrape()
    assert found.labels("kvmq_topic_put_messages_total") == [{"topic": "b"}]
    assert found.labels("kvmq_group_lag_messages") == [{"group": "g", "topic": "b"}]
    store.delete_group("g")
    assert found.scrape().labels("kvmq_group_lag_messages") == []
    assert found.value("kvmq_topics_left_out") == 0


def test_a_topic_that_replaced_another_one_gets_its_series_within_a_minute(
    opened: Opened, clock: VirtualClock
) -> None:
    store, found = opened()
    store.create_topic("old")
    store.create_group("g")
    found.scrape()
    store.delete_topic("old")
    store.create_topic("new")
    store.put("new", b"x")
    store.pop("g", "new")
    found.scrape()
    clock.advance(61)
    assert found.scrape().labels("kvmq_group_lag_messages") == [{"group": "g", "topic": "new"}]


def test_a_label_of_any_name_is_escaped(opened: Opened) -> None:
    store, found = opened()
    store.create_group("a%b|c")
    store.create_topic("%weird|name")
    store.put("%weird|name", b"x")
    found.scrape()
    assert found.value("kvmq_topic_put_messages_total", topic="%weird|name") == 1


@pytest.mark.parametrize("topics", [100, 1000, 10_000])
def test_a_scrape_looks_at_no_more_queues_for_very_many_topics(
    opened: Opened, topics: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_metrics, "TOPICS_MAX", 50)
    monkeypatch.setattr(store_metrics, "PAIRS_MAX", 50)
    monkeypatch.setattr(store_metrics, "QUEUES_MAX", 200)
    monkeypatch.setattr(store_metrics, "QUEUES_AHEAD", 40)
    monkeypatch.setattr(store_metrics, "LISTED_MAX", 60)
    store, found = opened()
    store.create_topics([TopicConfig(name=f"t{n:05}", queues=4) for n in range(topics)])
    store.create_groups([GroupConfig(name="g"), GroupConfig(name="h")])
    store.commit_offsets([("g", f"t{n:05}", 0, 0) for n in range(topics)])
    for _ in range(3):
        found.scrape()
        assert len(found.labels("kvmq_topic_put_messages_total")) == 50
        assert len(found.labels("kvmq_group_lag_messages")) == 50
        assert found.value("kvmq_topics_left_out") == topics - 50
        assert found.collector.looks <= 2 * (200 + 40)
    assert len(found.samples) < 900


def test_a_topic_that_becomes_busy_gets_its_series(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_metrics, "TOPICS_MAX", 10)
    monkeypatch.setattr(store_metrics, "QUEUES_AHEAD", 40)
    store, found = opened()
    store.create_topics([TopicConfig(name=f"t{n:03}", queues=4) for n in range(100)])
    scrapes = 0
    while found.scrape().value("kvmq_topic_put_messages_total", topic="t077") is None:
        store.put("t077", b"x")
        scrapes += 1
        assert scrapes <= 2 * 100 * 4 // 40 + 1
    assert found.value("kvmq_topic_put_messages_total", topic="t077") == scrapes


# --- the page and the dashboard ---


@pytest.fixture
def everything(opened: Opened) -> Scraped:
    """Metrics of a store in which each of them has a value."""
    store, found = opened()
    store.create_topic("orders")
    store.create_group("billing")
    store.put("orders", b"x")
    store.pop("billing", "orders")
    found.counts.called("HTTP door", "metrics")
    found.counts.watch(SimpleNamespace(name="HTTP door", connections=1))
    return found.scrape()


def rows() -> dict[str, tuple[str, set[str]]]:
    """The metrics that the page lists: type and labels of each."""
    found = re.findall(
        r"^\| `(kvmq_\w+)` \| (\w+) \|([\w, ]*)\|[^|]*\| [^|]+ \|$",
        (DOCS / "metrics.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in found}


def page_name(sample: str) -> str:
    """The metric that a sample belongs to, as the page lists it."""
    return re.sub("_(duration|lateness)_seconds_(bucket|count|sum)$", r"_\1_seconds", sample)


LACKING: Final = {"kvmq_tier_archives", "kvmq_tier_messages", "kvmq_tier_waiting_segments"}
"""Without archives, these have no sample."""


def test_the_page_lists_exactly_what_is_exported_with_its_labels(everything: Scraped) -> None:
    listed = rows()
    exported: dict[str, set[str]] = {}
    for name, labels in everything.names().items():
        if not name.endswith("_created"):
            exported.setdefault(page_name(name), set()).update(labels - {"le"})
    assert exported.keys() | LACKING == listed.keys()
    assert {name: listed[name][1] for name in exported} == exported


def test_the_page_says_each_type_as_it_is_exported(everything: Scraped) -> None:
    listed = rows()
    kinds = {f.name: f.type for f in everything.collector.collect()}
    for name, (kind, _) in listed.items():
        bare = name.removesuffix("_total").removesuffix("_info")
        assert kinds[bare] == kind, name
        assert (kind == "counter") == name.endswith("_total"), name


UNITS: Final = ("seconds", "bytes", "ratio", "messages", "info")
"""The base units of Prometheus that are used here, and what counts things that have no unit."""


def test_the_strict_reader_of_openmetrics_takes_all_that_is_exported(everything: Scraped) -> None:
    """It refuses, among others, series that come twice, buckets that fall, counters without their
    ending, and families that are torn apart.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(everything.collector)
    text = openmetrics(registry).decode()  # type: ignore[no-untyped-call]  # it has no types
    families = list(strict_families(text))  # type: ignore[no-untyped-call]  # it has no types
    assert len(families) >= 50
    names = [family.name for family in families]
    assert len(set(names)) == len(names)


def test_names_and_texts_are_as_promtool_wants_them(everything: Scraped) -> None:
    for family in everything.collector.collect():
        name = family.name
        assert re.fullmatch("kvmq_[a-z]+(_[a-z]+)*", name), name
        assert family.documentation.endswith("."), name
        words = name.split("_")
        assert not {"metric", "total", "count", "sum", "bucket", "counter", "gauge"} & set(words)
        assert not {"ms", "milliseconds", "minutes", "kb", "percent"} & set(words), name
        held = [w for w in words if w in UNITS]
        assert not held or words[-1] in UNITS or words[-2:] == ["per", "month"], name
        for sample in family.samples:
            if family.type != "histogram":
                assert "le" not in sample.labels
            assert all(re.fullmatch("[a-z]+", label) for label in sample.labels), name


def test_each_query_of_the_dashboard_uses_metrics_and_labels_that_are_exported() -> None:
    listed = rows()
    dashboard = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
    queries = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    queries += [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert len(queries) > 20
    used = set[str]()
    for query in queries:
        names = set(re.findall(r"\bkvmq_\w+", query))
        used |= {page_name(name) for name in names}
        labels = set[str]().union(*(listed[page_name(name)][1] for name in names))
        asked = re.findall(r"(\w+)=~?\"", query) + re.findall(r"by \(([\w, ]+)\)", query)
        wanted = set(re.findall(r"\w+", " ".join(asked))) - {"le", "job", "instance"}
        assert wanted <= labels, query
    assert used <= listed.keys()
    groups = {"lag", "in_flight", "dead_letter", "redelivered", "overdue", "popped", "done"}
    assert "kvmq_group_lag_seconds" in used
    assert {f"kvmq_group_{g}" for g in groups} <= {
        re.sub("_(messages|seconds)(_total)?$", "", name) for name in used
    }


def test_the_dashboard_lays_its_panels_out_without_overlaps() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
