"""A store restored from archives alone reads as the one that they are of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvstore
import tiering
from kvstore import (
    ArchiveAccess,
    Message,
    OffsetNotFound,
    Retention,
    Store,
    StoreConfig,
    TopicNotFound,
)
from kvstore.opening.store_folder import is_marked
from tests.support.clock import VirtualClock
from tests.support.stores import killed
from tests.tiering.catalog.moving import answers
from tiering.catalog.bucket import objects_of
from tiering.catalog.catalog import decode_rows
from tiering.places.place import open_place

POLICY = tiering.Policy(hot_for=60, warm="archive", watermarks=None)
SEGMENT = 64 << 10


def config(clock: VirtualClock, keys: object = None) -> StoreConfig:
    return StoreConfig(
        segment_size=SEGMENT,
        clock=clock,
        checkpoint_interval=1e9,
        retention_interval=1e9,
        archives=ArchiveAccess(keys=keys),
    )


def filled(path: Path, clock: VirtualClock, messages: int = 160) -> Store:
    store = kvstore.open(path, config(clock))
    store.create_topic("gone")
    store.create_topic("orders", queues=2, attributes={"team": "a"})
    store.create_topic("visits", queues=3, retention=Retention(warm_for=1e9))
    store.delete_topic("gone")
    put(store, clock, messages)
    return store


def put(store: Store, clock: VirtualClock, messages: int) -> None:
    for n in range(messages):
        body = b"%d" % n + bytes(1200)
        topic = "visits" if n % 4 == 0 else "orders"
        store.put_batch([Message(topic, body, queue=n % 2, tag="ab"[n % 2], keys=["all", f"{n}"])])
        clock.advance(1)


@pytest.fixture
def place(tmp_path: Path, clock: VirtualClock) -> Path:
    """The archives of a whole store, moved to the last segment; the store itself is at "lost"."""
    with filled(tmp_path / "lost", clock) as store:
        tier(store, clock)
    return tmp_path / "lost" / "archive"


def tier(store: Store, clock: VirtualClock, policy: tiering.Policy = POLICY) -> tiering.RunReport:
    store.seal()
    clock.advance(120)
    with tiering.Worker(store, policy) as worker:
        done = worker.run_once()
    assert done.segments
    assert not done.failed
    return done


def facts(store: Store) -> list[Any]:
    return [(t.name, t.id, t.read_queues, t.kind, t.retention, t.attributes, t.since)
            for t in store.topics()]  # fmt: skip


@pytest.mark.parametrize("copy", [False, True])
def test_everything_archived_reads_as_before(
    tmp_path: Path, place: Path, clock: VirtualClock, copy: bool
) -> None:
    with kvstore.open(tmp_path / "lost", config(clock), read_only=True) as lost:
        expected, topics = answers(lost), facts(lost)
    report = tiering.restore(place, tmp_path / "new", copy=copy)
    assert report.problems == []
    assert (report.messages, report.topics) == (160, ["orders", "visits"])
    if copy:
        shutil.rmtree(tmp_path / "lost")
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        assert facts(store) == topics
        found = answers(store)
        assert [asked for asked, answer in found.items() if answer != expected[asked]] == []
        assert found.keys() == expected.keys()
        assert store.verify().problems == []


def test_puts_go_on_behind_what_was_archived(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    report = tiering.restore(place, tmp_path / "new")
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        end = store.bounds("orders", 1).next_offset
        result = store.put("orders", b"new", queue=1)
        assert (result.offset, result.position) == (end, report.position)
        assert store.create_topic("more").id == 4
        assert [m.offset for m in store.pull("orders", 1, end - 1).messages] == [end - 1, end]
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        assert store.get("orders", 1, end).body == b"new"
        put(store, clock, 100)
        tier(store, clock)
        assert store.get("orders", 1, end).body == b"new"


def test_only_the_topics_that_were_asked_for_are_there(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    report = tiering.restore(place, tmp_path / "new", topics=["visits"])
    with (
        kvstore.open(tmp_path / "lost", config(clock), read_only=True) as lost,
        kvstore.open(tmp_path / "new", config(clock)) as store,
    ):
        assert [topic.name for topic in store.topics()] == ["visits"]
        assert report.messages == len(store.query("visits", "all", limit=1000)) == 40
        position = lost.get("orders", 1, 0).position
        with pytest.raises(kvstore.StoreError):
            store.read_at(position)
        assert store.create_topic("orders").id == 4
    with pytest.raises(TopicNotFound, match="orders, visits"):
        tiering.restore(place, tmp_path / "other", topics=["nothing"])
    assert not (tmp_path / "other").exists()


def test_what_was_stored_later_is_left_out(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "lost", config(clock), read_only=True) as lost:
        until = lost.get("orders", 1, 30).stored_at
        every = lost.query("orders", "all", limit=1000) + lost.query("visits", "all", limit=1000)
    report = tiering.restore(place, tmp_path / "new", until=until)
    assert report.left_out > 0
    assert report.rewritten > 0
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        found = store.query("orders", "all", limit=1000) + store.query("visits", "all", limit=1000)
        assert sorted(m.position for m in found) == sorted(
            m.position for m in every if m.stored_at <= until
        )
        assert store.bounds("orders", 1).next_offset == 31
        with pytest.raises(OffsetNotFound):
            store.get("orders", 1, 31)
        assert store.put("orders", b"again", queue=1).offset == 31


def test_a_damaged_archive_is_told_and_costs_itself_alone(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    damaged = sorted(place.rglob("*.kvarc"))[0]
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-5])
    report = tiering.restore(place, tmp_path / "new", copy=True)
    assert [damaged.name in problem.archive for problem in report.problems] == [True]
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        found = store.query("orders", "all", limit=1000) + store.query("visits", "all", limit=1000)
        assert 0 < len(found) == report.messages < 160
        end = store.bounds("orders", 1).next_offset
        assert store.get("orders", 1, end - 1).topic == "orders"


@pytest.mark.parametrize("topics", [None, ["orders"]])
def test_what_damaged_archives_or_topics_left_out_have_is_not_given_again(
    tmp_path: Path, place: Path, topics: list[str] | None
) -> None:
    """The archives may be mended, and brought back."""
    with kvstore.open(tmp_path / "lost") as lost:
        ids = max(topic.id for topic in lost.topics())
        behind = max(row.last_position for row in decode_rows(lost.handover.rows()))
        number = max(row.number for row in decode_rows(lost.handover.rows()))
    paths = {path: int(path.name[:20]) // SEGMENT for path in place.rglob("*.kvarc")}
    last = [path for path, segment in paths.items() if segment == max(paths.values())]
    for path in last:
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-5])
    report = tiering.restore(place, tmp_path / "new", topics=topics)
    assert len(report.problems) == len(last)
    with kvstore.open(tmp_path / "new") as store:
        assert store.put("orders", b"new", queue=0).position > behind
        assert store.create_topic("new").id > ids
        assert store.handover.take_number() > number


def test_of_a_merge_and_what_it_replaced_the_merge_counts(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "lost", config(clock)) as lost:
        with tiering.Worker(lost, POLICY) as worker:
            worker.erase(topic="orders", key="33")
            merged = worker.merge().archives
        assert merged
        expected = lost.query("orders", "all", limit=1000)
    assert len(list(place.rglob("*.kvarc"))) > len(merged)
    report = tiering.restore(place, tmp_path / "new")
    assert (report.attached, report.messages) == (len(merged), 159)
    assert report.superseded > 0
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        assert store.query("orders", "all", limit=1000) == expected
        assert store.query("orders", "33") == []
        assert store.verify().problems == []


def test_of_two_that_hold_the_same_one_counts(tmp_path: Path, place: Path) -> None:
    first, *_ = sorted(place.rglob("*.kvarc"))
    # The same again under another number, as a worker that was cut off leaves it.
    again = first.with_name(first.name.replace("-0000000", "-0000900"))
    shutil.copy(first, again)
    report = tiering.restore(place, tmp_path / "new")
    assert (report.superseded, report.messages) == (1, 160)


def test_of_several_stores_one_has_to_be_named(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    with filled(tmp_path / "second", clock) as second:
        tier(second, clock, tiering.Policy(hot_for=60, warm=str(place), watermarks=None))
        own = second.handover.store_id.hex()
    with pytest.raises(tiering.StoresAmbiguous) as raised:
        tiering.restore(place, tmp_path / "new")
    assert own in raised.value.stores
    report = tiering.restore(place, tmp_path / "new", options={"store_id": own})
    assert (report.source_id, report.messages) == (own, 160)
    assert report.store_id != own


@pytest.mark.parametrize("take_over", [False, True])
def test_only_a_store_that_is_taken_over_removes_objects_of_the_source(
    tmp_path: Path, clock: VirtualClock, take_over: bool
) -> None:
    policy = tiering.Policy(
        hot_for=60, warm_for=600, warm=str(tmp_path / "place"), grace=0, watermarks=None
    )
    with kvstore.open(tmp_path / "lost", config(clock)) as store:
        store.create_topic("orders", queues=2)
        for n in range(80):
            store.put("orders", bytes(1200), queue=n % 2)
        tier(store, clock, policy)
    objects = sorted((tmp_path / "place").rglob("*.kvarc"))
    assert len(objects) == 2
    report = tiering.restore(tmp_path / "place", tmp_path / "new", take_over=take_over)
    assert (report.store_id == report.source_id) is take_over
    clock.advance(1000)
    with (
        kvstore.open(tmp_path / "new", config(clock)) as store,
        tiering.Worker(store, policy) as worker,
    ):
        assert len(worker.run_once().expired) == 2
        assert store.bounds("orders", 1).min_offset == store.bounds("orders", 1).next_offset == 40
    left = sorted((tmp_path / "place").rglob("*.kvarc"))
    assert left == ([] if take_over else objects)


def test_a_restored_store_is_marked_as_ours_before_it_was_ever_opened(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    tiering.restore(place, tmp_path / "new")
    assert is_marked(tmp_path / "new", config(clock))


@pytest.mark.parametrize("topics", [None, ["orders"], ["visits"]])
def test_a_restored_store_gives_its_new_archives_numbers_that_nothing_had(
    tmp_path: Path, place: Path, clock: VirtualClock, topics: list[str] | None
) -> None:
    """Not even the archives that were left out."""
    _, objects = objects_of(open_place(place), None)
    tiering.restore(place, tmp_path / "new", topics=topics)
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        assert store.handover.take_number() > max(one.number for one in objects)


def test_store_times_of_a_restored_store_go_on_behind_those_of_its_archives(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    tiering.restore(place, tmp_path / "new")
    clock.step(-3600)
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        last = max(row.last_stored_at for row in decode_rows(store.handover.rows()))
        put_at = store.put("orders", b"new", queue=1)
        assert store.get("orders", 1, put_at.offset).stored_at >= last


def test_a_restored_store_that_is_killed_makes_up_no_topic_that_was_deleted(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    tiering.restore(place, tmp_path / "new")
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        store.create_topic("brief", queues=1)
        store.put("brief", b"x", queue=0)
        store.delete_topic("brief")
        store.flush()
        left = killed(store, tmp_path / "killed")
    with kvstore.open(left, config(clock)) as again:
        assert sorted(topic.name for topic in again.topics()) == ["orders", "visits"]


def test_a_restored_store_that_is_killed_makes_up_no_topic_that_a_damaged_record_names(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    tiering.restore(place, tmp_path / "new")
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        store.put("orders", b"x", queue=0)
        store.flush()
        left = killed(store, tmp_path / "killed")
    (segment,) = (left / "commitlog").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"orders", b"orderz", 1))
    with kvstore.open(left, config(clock)) as again:
        assert again.recovery.damage
        assert sorted(topic.name for topic in again.topics()) == ["orders", "visits"]


def test_of_a_topic_that_was_deleted_and_made_again_the_last_one_is_restored(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with kvstore.open(tmp_path / "lost", config(clock)) as store:
        for team in ("first", "second"):
            store.create_topic("orders", queues=1, attributes={"team": team})
            store.put("orders", team.encode())
            clock.advance(1)
            tier(store, clock, msgspec.structs.replace(POLICY, clock_doubt=0.0))
            if team == "first":
                store.delete_topic("orders")
        expected = facts(store)
        assert len(list((tmp_path / "lost" / "archive").rglob("*.kvarc"))) == 2
    tiering.restore(tmp_path / "lost" / "archive", tmp_path / "new")
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        assert facts(store) == expected
        assert [m.body for m in store.pull("orders", 0, 0).messages] == [b"second"]


def test_an_archive_that_goes_while_a_restore_is_under_way_costs_itself_alone(
    tmp_path: Path, place: Path, clock: VirtualClock
) -> None:
    """It was opened by then, and is missed when it is taken along."""
    first, *others = sorted(place.rglob("*.kvarc"))

    def remove(what: str, *_: int) -> None:
        if what == "restoring archives":
            first.unlink(missing_ok=True)

    report = tiering.restore(place, tmp_path / "new", copy=True, progress=remove)
    assert [first.name in problem.archive for problem in report.problems] == [True]
    assert report.copied == len(others)
    with kvstore.open(tmp_path / "new", config(clock)) as store:
        found = store.query("orders", "all", limit=1000) + store.query("visits", "all", limit=1000)
        assert 0 < len(found) == report.messages < 160


@pytest.mark.parametrize("was_there", [False, True])
def test_a_restore_that_fails_leaves_the_target_as_it_was(
    tmp_path: Path, place: Path, was_there: bool
) -> None:
    """Whatever it had made by then: archives that were taken along, or half a store."""
    new = tmp_path / "new"
    if was_there:
        new.mkdir()
    begun: list[bool] = []

    def stop(what: str, done: int, total: int) -> None:
        if what == "restoring archives" and done == 1:
            begun.append(new.exists() and any(new.iterdir()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiering.restore(place, new, copy=True, progress=stop)
    assert begun == [True]
    assert new.exists() is was_there
    assert not was_there or list(new.iterdir()) == []
    assert tiering.restore(place, new, copy=True).messages == 160


def test_a_target_that_holds_something_and_a_place_without_archives_are_refused(
    tmp_path: Path, place: Path
) -> None:
    with pytest.raises(tiering.TargetNotEmpty):
        tiering.restore(place, tmp_path / "lost")
    (tmp_path / "none").mkdir()
    with pytest.raises(tiering.NothingToRestore, match="archive"):
        tiering.restore(tmp_path / "none", tmp_path / "new")
    assert not (tmp_path / "new").exists()
