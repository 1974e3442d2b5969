"""The worker merges archives: nobody who reads can tell, and old objects go after the grace."""

from __future__ import annotations

from pathlib import Path

import kvstore
from kvstore import Message, Retention, Store, StoredMessage
from tests.support.clock import VirtualClock
from tests.tiering.stores import config, fill, held
from tiering import Policy, Worker

DAY = 86_400.0
WARM = Policy(hot_for=DAY, warm_for=100 * DAY, warm="archive", grace=60.0, clock_doubt=0.0)


def table(store: Store) -> list[StoredMessage]:
    low = store.bounds("table", 0).min_offset
    return store.pull("table", 0, low, limit=100).messages


def test_archives_become_one_that_reads_the_same(
    tmp_path: Path, store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    with Worker(store, WARM) as worker:
        worker.run_once()
        count = len(worker.archives())
        assert count >= 2
        report = worker.merge()
        assert report.failed == {}
        assert len(report.merged) == count
        (archive,) = worker.archives()
        assert (archive.generation, archive.messages) == (1, 300)
        assert held(store) == before
        assert store.verify(archives=True).problems == []
        assert worker.merge().merged == []
        objects = list((store.path / "archive").rglob("*.kvarc"))
        assert len(objects) == count + 1
        clock.advance(61)
        assert len(worker.run_once().removed) == count
        assert len(list((store.path / "archive").rglob("*.kvarc"))) == 1
    store.close()
    with kvstore.open(tmp_path / "store", config(clock)) as again:
        assert held(again) == before


def test_the_target_size_is_kept(store: Store) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        assert worker.merge(target_bytes=1).merged == []
        assert len(worker.archives()) >= 2


def test_an_archive_that_cannot_be_read_stays_and_is_noted_and_the_others_merge(
    store: Store, clock: VirtualClock
) -> None:
    fill(store, 300, first=300)
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
        damaged = worker.archives()[1]
        path = store.path / "archive" / damaged.key
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        report = worker.merge()
        assert set(report.failed) == {damaged.key}
        assert len(report.merged) >= 2
        assert {a.key for a in worker.archives()} == {damaged.key, *report.archives}


def test_what_is_over_by_the_policy_of_today_is_left_out_of_a_merge(
    store: Store, clock: VirtualClock
) -> None:
    before = held(store)
    with Worker(store, WARM) as worker:
        worker.run_once()
        assert len(worker.archives()) >= 2
        clock.advance(10 * DAY)
        store.alter_topic("events", retention=Retention(warm_for=5 * DAY))
        assert worker.run_once().expired == []
        report = worker.merge()
        assert report.failed == {}
        assert len(report.archives) == 1
    assert held(store) == {
        queue: some if queue[0] == "orders" else [] for queue, some in before.items()
    }
    assert store.verify(archives=True).problems == []


def test_a_topic_that_was_deleted_is_gone_after_a_merge(store: Store) -> None:
    with Worker(store, WARM) as worker:
        worker.run_once()
        store.delete_topic("events")
        worker.merge()
        (archive,) = worker.archives()
        assert archive.messages < 300
        assert worker.history.last(1)[0].what == "merged"


def test_a_compacted_topic_keeps_the_newest_message_of_each_key(
    store: Store, clock: VirtualClock
) -> None:
    store.create_topic("table", queues=1, kind="compacted")
    for n in range(30):
        body = b"" if n in (27, 28) else b"value %d" % n
        store.put_batch([Message("table", body, queue=0, keys=(f"k{n % 5}",))])
        if n % 10 == 9:
            store.seal()
    before = table(store)
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        worker.run_once()
        assert worker.merge().failed == {}
        left = table(store)
        assert left == before[25:]
        fill(store, 30, first=700)
        store.put_batch([Message("table", b"last", queue=0, keys=("k0",))])
        store.seal()
        clock.advance(8 * DAY)
        worker.run_once()
        for n in range(2):
            store.put_batch([Message("table", b"more %d" % n, queue=0, keys=("k1",))])
            store.seal()
        clock.advance(2 * DAY)
        worker.run_once()
        assert worker.merge().failed == {}
    found = {m.keys[0]: m.body for m in table(store)}
    assert found["k0"] == b"last"
    assert found["k4"] == b"value 29"
    assert found["k1"] == b"more 1"


def test_a_queue_of_which_the_first_archive_has_nothing_left_is_found_after_a_merge(
    store: Store, clock: VirtualClock
) -> None:
    store.create_topic("table", queues=1, kind="compacted")
    store.put_batch([Message("table", b"old", queue=0, keys=("k",))])
    store.seal()
    store.put_batch(
        [Message("table", b"%d" % n, queue=0, keys=(f"k{n}" if n else "k",)) for n in range(5)]
    )
    store.seal()
    clock.advance(2 * DAY)
    with Worker(store, WARM) as worker:
        assert worker.run_once().failed == {}
        assert worker.merge().failed == {}
    assert [m.offset for m in table(store)] == [1, 2, 3, 4, 5]
    assert store.bounds("table", 0) == (1, 6)
    assert store.verify(archives=True).problems == []
