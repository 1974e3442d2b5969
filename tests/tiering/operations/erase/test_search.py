"""An erasure reads, rewrites and lists the archives with messages to erase, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Message, Store, TopicConfig
from tests.support.clock import VirtualClock
from tests.tiering.stores import config, held
from tiering import Policy, Worker
from tiering.catalog.catalog import TOPICS_MAX
from tiering.executor.pool import Inline
from tiering.operations.erase import count_in_archive, count_in_segment

DAY = 86_400.0
NOW = Policy(hot_for=0, warm="archive", clock_doubt=0.0)


class Noting(Inline):
    """Notes how often which work was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, check: Callable[[], None], work: Callable[..., Any], *args: Any) -> Any:
        self.asked.append(work.__name__)
        return super().run(check, work, *args)


@pytest.fixture
def store(empty: Store, clock: VirtualClock) -> Store:
    """Six archives with messages of "events", the last of which has some of "orders" as well; and
    one of each in the active segment.
    """
    for topic in ("events", "orders"):
        empty.create_topic(topic, queues=3)
    with Worker(empty, NOW, executor=Inline()) as worker:
        for number in range(6):
            put(empty, "events", 20)
            if number == 5:
                put(empty, "orders", 3)
            empty.seal()
            clock.advance(1)
            assert worker.run_once().failed == {}
        assert len(worker.archives()) == 6
    put(empty, "events", 1)
    put(empty, "orders", 1)
    return empty


def put(store: Store, topic: str, count: int) -> None:
    store.put_batch([Message(topic, b"%d" % n, queue=n % 2, keys=(f"k{n}",)) for n in range(count)])


def test_of_a_topic_only_the_archives_that_hold_it_are_read_and_rewritten(store: Store) -> None:
    noting = Noting()
    with Worker(store, NOW, executor=noting) as worker:
        last = worker.archives()[-1]
        plan = worker.erasure_plan(topic="orders")
        assert (plan.messages, plan.archive_bytes, plan.failed) == (4, last.bytes, {})
        assert [name.endswith(last.key) for name in plan.archives] == [True]
        assert (len(plan.segments), plan.segment_bytes) == (1, store.config.segment_size)
        noting.asked.clear()
        report = worker.erase(topic="orders")
        assert report.is_proven, report.failed
        assert (report.messages, report.checked) == (4, 121)
        assert [name.endswith(last.key) for name in report.rewritten] == [True]
    assert noting.asked.count(count_in_archive.__name__) == 1
    assert noting.asked.count(count_in_segment.__name__) == 1
    assert held(store)["orders", 0] == []
    assert len(held(store)["events", 0] + held(store)["events", 1]) == 121


def test_a_plan_changes_nothing(store: Store) -> None:
    def files() -> dict[Path, bytes]:
        folders = (store.path / name for name in ("commitlog", "archive"))
        return {p: p.read_bytes() for f in folders for p in f.rglob("*") if p.is_file()}

    with Worker(store, NOW, executor=Inline()) as worker:
        before, rows = files(), worker.archives()
        assert worker.erasure_plan(key="k1").messages == 6 + 1
        assert worker.erasure_plan(before=0).messages == 0
        assert worker.erasure_plan(topic="none").archives == []
        assert (files(), worker.archives()) == (before, rows)
        assert store.segments() == []


def test_copies_are_found_where_groups_put_their_dead_letters_and_everywhere_if_asked(
    store: Store,
) -> None:
    for topic in ("graveyard", "copies"):
        store.create_topic(topic, queues=1)
        store.put(topic, b"a copy", queue=0, properties={"DLQ_ORIGIN_TOPIC": "orders"})
    store.create_group("g", dead_letter_topic="graveyard")
    store.seal()
    with Worker(store, NOW, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
        assert worker.erasure_plan(topic="orders").messages == 5
        assert worker.erasure_plan(topic="orders", everywhere=True).messages == 6
        assert worker.erase(topic="orders").messages == 5
        assert [m.body for m in store.pull("copies", 0, 0).messages] == [b"a copy"]
        assert worker.erase(topic="orders", everywhere=True).messages == 1
        assert store.pull("copies", 0, 0).messages == []


def test_copies_are_found_in_the_topics_that_groups_put_their_dead_letters_in_before(
    store: Store,
) -> None:
    store.create_topic("graveyard", queues=1)
    store.create_group("g", dead_letter_topic="graveyard")
    store.put("graveyard", b"a copy", queue=0, properties={"DLQ_ORIGIN_TOPIC": "orders"})
    store.alter_group("g", dead_letter_topic="another")
    store.seal()
    with Worker(store, NOW, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
        assert worker.erase(topic="orders").messages == 5
    assert store.pull("graveyard", 0, 0).messages == []


def test_what_is_left_of_a_deleted_topic_is_found_by_its_name(store: Store) -> None:
    store.delete_topic("orders")
    store.create_topic("orders", queues=1)
    with Worker(store, NOW, executor=Inline()) as worker:
        report = worker.erase(topic="orders")
        assert (report.messages, report.is_proven) == (4, True)


def test_an_archive_of_very_many_topics_is_searched_too(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """The catalog does not say which: they are more than it notes."""
    with kvstore.open(tmp_path / "many", config(clock)) as store:
        names = [f"t{n}" for n in range(TOPICS_MAX + 1)]
        store.create_topics([TopicConfig(name=name, queues=1) for name in names])
        store.put_batch([Message(name, b"m", queue=0) for name in names])
        store.seal()
        clock.advance(1)
        with Worker(store, NOW, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
            assert worker.erasure_plan(topic="t7").messages == 1
            report = worker.erase(topic="t7")
            assert (report.is_proven, report.messages) == (True, 1)
            assert report.checked == TOPICS_MAX
        assert store.pull("t7", 0, 0).messages == []
        assert len(store.pull("t8", 0, 0).messages) == 1
