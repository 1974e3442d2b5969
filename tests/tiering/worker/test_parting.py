"""A topic whose retention changed is parted from the topics that it shares archives with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import kvstore
import tiering
from kvstore import CallerError, Retention, Store
from tests.support.clock import VirtualClock
from tests.tiering.stores import QUEUES, config, held
from tiering import Policy, Worker
from tiering.catalog.catalog import TOPICS_MAX, decode_rows
from tiering.executor.pool import Inline
from tiering.operations.inspection import Together, held_together, together

DAY = 86_400.0
POLICY = Policy(hot_for=DAY, warm_for=100 * DAY, warm="archive", grace=60.0, clock_doubt=0.0)
SHORT = Retention(warm_for=5 * DAY)


pytestmark = pytest.mark.filled(count=200)


@pytest.fixture
def store(store: Store) -> Store:
    """All messages are in archives that both topics share."""
    with Worker(store, POLICY, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
    return store


def classes(worker: Worker) -> list[str]:
    return sorted(archive.retention_class for archive in worker.archives())


def test_what_a_topic_shares_is_told_with_its_end(store: Store, clock: VirtualClock) -> None:
    rows = decode_rows(store.handover.rows())
    assert len(rows) > 1
    last = max(row.last_stored_at for row in rows)
    found = held_together(store, "events")
    assert found == Together([row.name for row in rows], last + round(101 * DAY * 1000))
    assert held_together(store, "nobody's") == Together([], None)
    store.create_topic("new", queues=1)
    assert held_together(store, "new") == Together([], None)


def test_of_an_archive_of_very_many_topics_the_index_says_whether_it_holds_one(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "many", config(clock)) as store:
        for number in range(TOPICS_MAX + 2):
            store.create_topic(f"t{number}", queues=1)
            store.put(f"t{number}", b"x", queue=0)
        store.create_topic("hot", queues=1)
        store.seal()
        clock.advance(2 * DAY)
        with Worker(store, POLICY, executor=Inline()) as worker:
            worker.run_once()
        store.put("hot", b"x", queue=0)
        store.checkpoint()
        (row,) = decode_rows(store.handover.rows())
        assert row.topics is None
        assert held_together(store, "t3").archives == [row.name]
        assert held_together(store, "hot") == Together([], None)


def test_an_archive_without_an_end_or_of_a_foreign_class_has_none(store: Store) -> None:
    rows = decode_rows(store.handover.rows())
    (events,) = (info.id for info in store.topics() if info.name == "events")
    for name in ("warmever", "of another tool"):
        changed = [msgspec.structs.replace(rows[0], retention_class=name), *rows[1:]]
        assert together(changed, events, ()) == Together([row.name for row in rows], None)


def test_a_parted_topic_goes_when_its_own_time_is_over_and_all_else_stays(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    store.alter_topic("events", retention=SHORT)
    with Worker(store, POLICY, executor=Inline()) as worker:
        count = len(worker.archives())
        report = worker.part("events")
        assert report.failed == {}
        assert (len(report.merged), len(report.archives)) == (count, 2 * count)
        assert classes(worker) == ["warm101d"] * count + ["warm6d"] * count
        assert held(store) == before
        assert store.verify(archives=True).problems == []
        assert held_together(store, "events") == Together([], None)
        assert worker.part("events").merged == []
        assert worker.history.last(1)[0].what == "parted"
        clock.advance(5 * DAY)
        done = worker.run_once()
        assert (len(done.expired), done.failed) == (count, {})
        assert classes(worker) == ["warm101d"] * count
        after = held(store)
    assert after == {queue: some if queue[0] == "orders" else [] for queue, some in before.items()}


def test_a_topic_that_would_go_no_sooner_than_its_neighbours_is_not_parted(store: Store) -> None:
    with Worker(store, POLICY, executor=Inline()) as worker:
        before = {archive.key for archive in worker.archives()}
        assert worker.part("events").merged == []
        for topic in QUEUES:
            store.alter_topic(topic, retention=SHORT)
        assert worker.part("events").merged == []
        assert {archive.key for archive in worker.archives()} == before


def test_where_all_topics_changed_one_part_keeps_the_class_of_the_archive(
    store: Store, tmp_path: Path, clock: VirtualClock
) -> None:
    """By its class a list of the place alone shows that the parted archive is superseded."""
    before = held(store)
    store.alter_topic("events", retention=SHORT)
    store.alter_topic("orders", retention=Retention(warm_for=20 * DAY))
    with Worker(store, POLICY, executor=Inline()) as worker:
        count = len(worker.archives())
        assert worker.part("events").failed == {}
        assert classes(worker) == ["warm101d"] * count + ["warm6d"] * count
    assert held(store) == before
    report = tiering.restore(store.path / "archive", tmp_path / "again", config=config(clock))
    assert (report.problems, report.messages) == ([], 200)


def test_the_store_that_a_part_failed_for_reads_as_before(store: Store) -> None:
    before = held(store)
    store.alter_topic("events", retention=SHORT)
    path = next((store.path / "archive").rglob("*.kvarc"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with Worker(store, POLICY, executor=Inline()) as worker:
        count = len(worker.archives())
        report = worker.part("events")
        assert [path.name in name for name in report.failed] == [True]
        assert len(report.merged) == count - 1
        assert not list((store.path / "tiering" / "made").rglob("*.merged*"))
        with pytest.raises(CallerError, match="no topic"):
            worker.part("none")
    data[200] ^= 1
    path.write_bytes(data)
    assert held(store) == before


def test_a_place_that_is_restored_from_while_both_are_there_gives_each_message_once(
    store: Store, tmp_path: Path, clock: VirtualClock
) -> None:
    before = held(store)
    store.alter_topic("events", retention=SHORT)
    with Worker(store, POLICY, executor=Inline()) as worker:
        assert worker.part("events").failed == {}
    report = tiering.restore(store.path / "archive", tmp_path / "again", config=config(clock))
    assert report.problems == []
    with kvstore.open(tmp_path / "again", config(clock)) as again:
        found = {queue: [m.body for m in some] for queue, some in held(again).items()}
        assert found == {queue: [m.body for m in some] for queue, some in before.items()}
        assert sum(row.messages for row in decode_rows(again.handover.rows())) == 200
