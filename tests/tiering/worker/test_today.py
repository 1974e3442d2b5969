"""Archives are judged by the policy and the topics as they are today; looks see what is new."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvstore import Retention, Store, TopicConfig
from kvstore.errors import ArchiveDamaged
from tests.support import inside, inside_tiering
from tests.support.clock import FineClock, VirtualClock
from tests.tiering.stores import QUEUES, fill, filled, held
from tiering import Policy, Worker
from tiering.archive.manifest import Manifest
from tiering.catalog.catalog import ArchiveRow, decode_rows, encode_row
from tiering.worker.store_snapshot import Snapshotter, StoreSnapshot

DAY = 86_400.0
WARM = Policy(hot_for=DAY, warm_for=10 * DAY, warm="archive", clock_doubt=0.0)
BOTH = Policy(
    hot_for=DAY, warm_for=10 * DAY, cold_for=30 * DAY, warm="archive", cold="cold", clock_doubt=0.0
)


pytestmark = pytest.mark.filled(days=0)


def as_of_an_older_version(store: Store) -> None:
    """Takes the topics out of the catalog's rows."""
    side = store.handover
    rows = [msgspec.structs.replace(row, topics=None) for row in decode_rows(side.rows())]
    side.set_rows([(row.catalog_key, encode_row(row)) for row in rows])


@pytest.mark.parametrize("is_old", [False, True])
def test_a_shorter_policy_frees_space_before_the_time_that_archives_were_made_for(
    store: Store, clock: VirtualClock, is_old: bool
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        count = len(worker.run_once().archives)
    if is_old:
        as_of_an_older_version(store)
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        assert worker.plan().moves == []
    with Worker(store, msgspec.structs.replace(WARM, warm_for=2 * DAY)) as worker:
        assert [move.to for move in worker.plan().moves] == [None] * count
        assert len(worker.run_once().expired) == count
        assert worker.archives() == []


def test_a_topic_that_is_kept_shorter_goes_sooner_and_holds_no_neighbour(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    store.create_topics([TopicConfig(name="brief", queues=1, retention=Retention(warm_for=90.0))])
    for number in range(20):
        store.put("brief", b"brief %d" % number)
    store.alter_topic("brief", retention=Retention(warm_for=5 * DAY))
    store.seal()
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
        clock.advance(2 * DAY)
        assert worker.run_once().expired == []
        store.alter_topic("brief", retention=Retention(warm_for=2 * DAY))
        assert len(worker.run_once().expired) == 1
    assert store.bounds("brief", 0) == (20, 20)
    assert held(store) == before


def test_a_policy_of_today_that_has_less_time_in_warm_moves_archives_on(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, BOTH) as worker:
        count = len(worker.run_once().archives)
        clock.advance(2 * DAY)
        assert worker.run_once().relocated == []
    with Worker(store, msgspec.structs.replace(BOTH, warm_for=2 * DAY)) as worker:
        assert len(worker.run_once().relocated) == count
        assert {a.tier for a in worker.archives()} == {"cold"}
    assert held(store) == before


def test_a_longer_policy_saves_archives_and_merges_what_it_keeps(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
    clock.advance(20 * DAY)
    with Worker(store, msgspec.structs.replace(WARM, warm_for=100 * DAY)) as worker:
        assert worker.run_once().expired == []
        assert len(worker.merge().merged) >= 2
    assert held(store) == before


def test_an_archive_of_deleted_topics_goes_by_the_class_it_was_made_as(
    store: Store, clock: VirtualClock
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        count = len(worker.run_once().archives)
    for topic in ("orders", "events"):
        store.delete_topic(topic)
    clock.advance(2 * DAY)
    with Worker(store, msgspec.structs.replace(WARM, warm_for=2 * DAY)) as worker:
        assert worker.run_once().expired == []
        clock.advance(10 * DAY)
        assert len(worker.run_once().expired) == count


def test_the_history_says_how_many_records_of_no_topic_were_left_out(
    store: Store, clock: VirtualClock
) -> None:
    gone = sum(len(messages) for (topic, _), messages in held(store).items() if topic == "events")
    store.seal()
    store.delete_topic("events")
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
        notes = [done.note.partition("; ")[2] for done in worker.history.last()]
    assert sum(int(note.split()[0]) for note in notes if "of no topic" in note) == gone > 0


def test_an_archive_that_could_not_be_looked_into_expires_only_if_its_topics_say_so(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name it is over; it can be read again when it is to go."""
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
    as_of_an_older_version(store)
    clock.advance(20 * DAY)
    with Worker(store, msgspec.structs.replace(WARM, warm_for=100 * DAY)) as worker:
        judge = inside.snapshots(worker).resolver
        step, tried = inside_tiering.reading_of_manifests(judge), set[str]()
        read = step.now

        def once_away(row: ArchiveRow) -> Manifest:
            if row.name not in tried:
                tried.add(row.name)
                raise ArchiveDamaged(f"{row.name} can't be read just now", row.name)
            manifest: Manifest = read(row)
            return manifest

        step.replace(once_away, monkeypatch)
        assert worker.run_once().expired == []
        assert tried
    assert held(store) == before


def test_what_a_look_sees_is_what_one_without_a_memory_sees(
    store: Store, clock: VirtualClock
) -> None:
    with Worker(store, WARM) as worker:
        snapshots = inside.snapshots(worker)

        def check() -> StoreSnapshot:
            store.checkpoint()
            fresh = Snapshotter(inside.work_context(worker))
            seen, anew = snapshots.take(clock.now_ms()), fresh.take(clock.now_ms())
            assert (seen.segments, seen.archives) == (anew.segments, anew.archives)
            assert seen.today.traits == anew.today.traits
            return seen

        first = check()
        store.create_topic("more", queues=1)
        fill(store, 90, first=400)
        store.put("more", b"a message")
        store.seal()
        second = check()
        # They are the same objects: what was seen is not looked at again.
        assert all(a is b for a, b in zip(first.segments, second.segments, strict=False))
        assert any("more" in part.topics for part in second.segments[-1].parts)
        store.alter_topic("events", retention=Retention(hot_for=3 * DAY))
        assert check().segments[0].leaves_hot == 3 * DAY * 1000
        store.delete_topic("events")
        store.create_topic("events", queues=2)
        assert not any("events" in p.topics for s in check().segments for p in s.parts)
        clock.advance(2 * DAY)
        worker.run_once()
        assert check().segments == []


def test_a_topic_that_is_deleted_while_its_segment_is_read_is_no_damage_of_the_index(
    store: Store, clock: VirtualClock
) -> None:
    before = {key: messages for key, messages in held(store).items() if key[0] == "orders"}
    clock.advance(2 * DAY)
    doomed = ["events"]

    def delete(what: str, *_: int) -> None:
        if what.startswith("encoding") and doomed:
            store.delete_topic(doomed.pop())

    with Worker(store, WARM, progress=delete) as worker:
        (why,) = worker.run_once().failed.values()
        assert "was deleted" in why
        assert worker.run_once().failed == {}
    store.create_topic("events", queues=2)
    assert {key: messages for key, messages in held(store).items() if messages} == before
    assert store.verify(archives=True).problems == []


def test_what_goes_unread_with_an_archive_or_without_one_is_told_with_its_count_and_topics(
    store: Store, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    counts = {topic: _count(store, topic) for topic in ("orders", "events")}
    store.create_group("g")
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        assert worker.run_once().archives
        store.commit_offset("g", "orders", 0, 7)
        store.commit_offset("g", "events", 0, store.bounds("events", 0).next_offset)
        left = counts["events"] - store.bounds("events", 0).next_offset
        clock.advance(20 * DAY)
        assert worker.run_once().expired
        assert _told(caplog) == {"orders": counts["orders"] - 7, "events": left}
        assert store.stats().deleted_unread == counts["orders"] - 7 + left
        assert _count(store, "orders") == 0
    caplog.clear()
    fill(store, 30, first=400)
    before = store.stats().deleted_unread
    lost = {topic: _count(store, topic) for topic in ("orders", "events")}
    clock.advance(30 * DAY)
    with Worker(store, WARM) as worker:
        assert worker.run_once().archives == []  # they are over before they leave hot
    assert _told(caplog) == lost
    assert store.stats().deleted_unread == before + sum(lost.values())
    caplog.clear()
    fill(store, 30, first=500)
    for topic, queues in QUEUES.items():
        for queue in range(queues):
            store.commit_offset("g", topic, queue, store.bounds(topic, queue).next_offset)
    clock.advance(30 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
    assert _told(caplog) == {}


def test_an_object_that_was_replaced_late_in_a_millisecond_stays_for_the_whole_grace(
    tmp_path: Path,
) -> None:
    fine = FineClock()
    policy = Policy(hot_for=1.0, warm="archive", watermarks=None, clock_doubt=0.0, grace=0.3)
    with filled(tmp_path / "fine", fine) as store:
        fine.pass_us(10_000_000)
        with Worker(store, policy) as worker:
            old = worker.run_once().archives
            fine.pass_us(900)
            assert worker.merge().merged == old
            fine.pass_us(299_999)
            assert worker.run_once().removed == []
            fine.pass_us(1_001)
            assert len(worker.run_once().removed) == len(old)


@pytest.mark.parametrize("how", ["merge", "erase"])
def test_what_goes_unread_because_its_time_was_over_as_its_neighbours_were_rewritten_is_told(
    store: Store, clock: VirtualClock, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    counts = {topic: _count(store, topic) for topic in ("orders", "events")}
    store.create_group("g")
    store.commit_offset("g", "orders", 0, 7)
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        if how == "merge":
            worker.run_once()
        store.alter_topic("orders", retention=Retention(warm_for=DAY))
        clock.advance(2 * DAY)
        if how == "merge":
            assert worker.merge().merged
        else:
            assert worker.erase(topic="events", key="k3").is_proven
    assert _count(store, "orders") == 0
    assert _told(caplog) == {"orders": counts["orders"] - 7}
    assert store.stats().deleted_unread == counts["orders"] - 7


def _count(store: Store, topic: str) -> int:
    return sum(high - low for low, high in (store.bounds(topic, q) for q in range(QUEUES[topic])))


def _told(caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    """How many unread messages of which topic the warnings speak of."""
    found: dict[str, int] = {}
    for record in caplog.records:
        text = record.getMessage()
        if "no group had read: " in text:
            for named in text.partition("no group had read: ")[2].split(", "):
                topic, _, count = named.rstrip(")").partition(" (")
                found[topic] = found.get(topic, 0) + int(count)
    return found
