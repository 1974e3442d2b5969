"""The worker and an object store: archives in a bucket read the same, go cold, merge and are erased
while the server fails now and then, and nothing is in the bucket that the catalog does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

import kvstore
from kvstore import ArchiveUnavailable, Store
from tests.support.clock import VirtualClock
from tests.tiering.places.buckets import SECRET
from tests.tiering.places.faulty import Fault, FaultyServer
from tests.tiering.stores import QUEUES, config, fill, held, tiers
from tiering import PlaceDenied, Policy, Worker

DAY = 86_400.0


pytestmark = pytest.mark.filled(days=0)


def cold(bucket: str) -> Policy:
    return Policy(
        hot_for=DAY, cold_for=100 * DAY, cold=f"s3://{bucket}/a", clock_doubt=0.0, grace=0.0
    )


def access(endpoint: str) -> Mapping[str, object]:
    return {
        "endpoint": endpoint,
        "access_key_id": "tester",
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }


def now_and_then() -> list[Fault]:
    """The faults of a server on a bad day; each request is tried again."""
    return [
        Fault("status", "GET", times=2),
        Fault("status", "PUT", times=2, status=503, code="SlowDown"),
        Fault("short", times=2),
        Fault("drop", "HEAD"),
        Fault("drop", "GET"),
        Fault("lose", "PUT"),
        Fault("lose", "DELETE"),
    ]


def check_bucket(worker: Worker) -> None:
    """Nothing but what the catalog has, and all of that whole."""
    report = worker.verify()
    assert (report.problems, report.orphans, report.retired) == ([], [], 0)
    assert report.archives == len(worker.archives())


def without_key(found: dict[tuple[str, int], list[kvstore.StoredMessage]], key: str) -> object:
    return {queue: [m for m in some if key not in m.keys] for queue, some in found.items()}


def test_segments_go_to_a_bucket_and_read_the_same_from_there(
    store: Store,
    clock: VirtualClock,
    s3: str,
    bucket: str,
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, cold(bucket), options=access(s3)) as worker:
        report = worker.run_once()
        assert report.failed == {}
        assert {a.tier for a in worker.archives()} == {"cold"}
    assert tiers(store) == (0, len(report.archives))
    assert held(store) == before
    assert len(store.query("orders", "n8")) == 1


def test_a_store_finds_its_bucket_by_the_usual_environment(
    tmp_path: Path,
    store: Store,
    clock: VirtualClock,
    s3: str,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, cold(bucket), options=access(s3)) as worker:
        worker.run_once()
    store.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with kvstore.open(tmp_path / "store", config(clock)) as again:
        assert held(again) == before


def test_a_server_that_fails_now_and_then_costs_tries_and_no_message(
    store: Store,
    clock: VirtualClock,
    faulty: FaultyServer,
    bucket: str,
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, cold(bucket), options=access(faulty.url)) as worker:
        faulty.faults += [
            Fault("status", "PUT", times=2),
            Fault("short", times=2),
            Fault("lose", "PUT"),
            Fault("status", status=503, code="SlowDown"),
        ]
        assert worker.run_once().failed == {}
    assert held(store) == before


def test_a_server_that_is_gone_leaves_segments_hot_and_says_so_where_archives_are_read(
    store: Store,
    clock: VirtualClock,
    faulty: FaultyServer,
    bucket: str,
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, cold(bucket), options=access(faulty.url)) as worker:
        assert worker.run_once().failed == {}
        faulty.faults.append(Fault("drop", "*", times=10_000))
        with pytest.raises(ArchiveUnavailable):
            store.get("orders", 0, 0)
        number = store.put("orders", b"still taken", queue=0).offset
        assert store.get("orders", 0, number).body == b"still taken"
    assert number == len(before["orders", 0])


def test_wrong_credentials_are_told_before_anything_moves(
    store: Store,
    clock: VirtualClock,
    faulty: FaultyServer,
    bucket: str,
) -> None:
    before = tiers(store)
    clock.advance(2 * DAY)
    with Worker(store, cold(bucket), options=access(faulty.url)) as worker:
        faulty.faults.append(Fault("status", "*", times=50, status=403, code="AccessDenied"))
        with pytest.raises(PlaceDenied):
            worker.run_once()
    assert tiers(store) == before


def test_archives_in_a_bucket_merge_and_are_erased_on_a_bad_day(
    store: Store, clock: VirtualClock, faulty: FaultyServer, bucket: str
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, cold(bucket), options=access(faulty.url)) as worker:
        worker.run_once()
        count = len(worker.archives())
        faulty.faults += now_and_then()
        report = worker.merge()
        assert report.failed == {}
        assert len(report.merged) == count >= 2
        assert held(store) == before
        clock.advance(1)
        assert len(worker.run_once().removed) == count
        check_bucket(worker)
        assert all(fault.times == 0 for fault in faulty.faults)
        faulty.faults += now_and_then()
        erased = worker.erase(key="k3")
        assert erased.is_proven, erased.failed
        assert len(erased.rewritten) == 1
        assert all(fault.times == 0 for fault in faulty.faults)
        check_bucket(worker)
        assert held(store) == without_key(before, "k3")
        assert store.verify(archives=True).problems == []


def test_archives_go_from_the_disk_to_a_bucket_on_a_bad_day(
    store: Store, clock: VirtualClock, faulty: FaultyServer, bucket: str
) -> None:
    before = held(store)
    policy = msgspec.structs.replace(cold(bucket), warm="archive", warm_for=DAY)
    clock.advance(1.5 * DAY)
    with Worker(store, policy, options=access(faulty.url)) as worker:
        count = len(worker.run_once().archives)
        clock.advance(DAY)
        faulty.faults += [
            fault for fault in now_and_then() if (fault.kind, fault.method) != ("lose", "DELETE")
        ]
        report = worker.run_once()
        assert report.failed == {}
        assert len(report.relocated) == count
        assert {a.tier for a in worker.archives()} == {"cold"}
        assert held(store) == before
        clock.advance(1)
        worker.run_once()
        check_bucket(worker)
    assert list((store.path / "archive").rglob("*.kvarc")) == []
    assert not (store.path / "tiering" / "shifting").exists(), "no copy was made on the disk"


def test_a_server_that_is_gone_in_the_middle_leaves_merge_and_erasure_to_the_next_run(
    store: Store, clock: VirtualClock, faulty: FaultyServer, bucket: str
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    short = {**access(faulty.url), "retry_for": 0}
    with Worker(store, cold(bucket), options=short) as worker:
        worker.run_once()
        archives = worker.archives()
        gone = Fault("status", "PUT", part=".kvarc", times=10_000)
        faulty.faults.append(gone)
        assert len(worker.merge().failed) == 1
        report = worker.erase(key="k3")
        assert not report.is_proven
        assert len(report.failed) >= len(archives)
        assert worker.archives() == archives
        assert held(store) == before
        gone.times = 0
        assert worker.merge().failed == {}
        erased = worker.erase(key="k3")
        assert erased.is_proven, erased.failed
        check_bucket(worker)
    assert held(store) == without_key(before, "k3")


def test_rewriting_what_a_server_has_damaged_is_refused(
    store: Store, clock: VirtualClock, faulty: FaultyServer, bucket: str
) -> None:
    before = held(store)
    clock.advance(2 * DAY)
    short = {**access(faulty.url), "retry_for": 0}
    with Worker(store, cold(bucket), options=short) as worker:
        worker.run_once()
        archives = worker.archives()
        # Every answer ends before its end.
        faulty.faults.append(Fault("short", "GET", part=".kvarc", times=10_000))
        assert worker.merge().failed
        faulty.faults.clear()
        assert worker.archives() == archives
        check_bucket(worker)
    assert held(store) == before


def test_two_stores_of_two_machines_in_one_bucket_leave_each_other_alone(
    tmp_path: Path, store: Store, clock: VirtualClock, s3: str, bucket: str
) -> None:
    with kvstore.open(tmp_path / "other", config(clock)) as other:
        for topic, queues in QUEUES.items():
            other.create_topic(topic, queues=queues)
        fill(other, 120, first=50)
        before = held(store), held(other)
        clock.advance(2 * DAY)
        with (
            Worker(store, cold(bucket), options=access(s3)) as mine,
            Worker(other, cold(bucket), options=access(s3)) as theirs,
        ):
            mine.run_once()
            theirs.run_once()
            assert mine.merge().failed == theirs.merge().failed == {}
            clock.advance(1)
            mine.run_once()
            theirs.run_once()
            assert mine.erase(key="n60").is_proven
            for worker in (mine, theirs):
                report = worker.verify(remove_orphans=True)
                assert (report.problems, report.orphans) == ([], [])
        assert held(store) == without_key(before[0], "n60")
        assert held(other) == before[1]


@pytest.mark.parametrize("verb", ["merge", "erase", "run_once"])
def test_wrong_credentials_are_told_by_every_verb_before_anything_is_rewritten(
    store: Store, clock: VirtualClock, faulty: FaultyServer, bucket: str, verb: str
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, cold(bucket), options=access(faulty.url)) as worker:
        worker.run_once()
        archives = worker.archives()
    denied = Fault("status", "*", times=10_000, status=403, code="AccessDenied")
    faulty.faults.append(denied)
    with Worker(store, cold(bucket), options=access(faulty.url)) as worker:
        with pytest.raises(PlaceDenied):
            getattr(worker, verb)(**({"topic": "events"} if verb == "erase" else {}))
        assert worker.archives() == archives


def test_wrong_credentials_are_told_by_a_worker_that_runs_by_itself_and_nothing_is_rewritten(
    store: Store, clock: VirtualClock, faulty: FaultyServer, bucket: str
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, cold(bucket), options=access(faulty.url)) as worker:
        worker.run_once()
        archives = worker.archives()
    faulty.faults.append(Fault("status", "*", times=10_000, status=403, code="AccessDenied"))
    with Worker(store, cold(bucket), options=access(faulty.url)) as worker:
        report = worker.run_and_merge()
        assert "AccessDenied" in report.failed[f"s3://{bucket}/a"]
        assert report.merged == []
        assert worker.archives() == archives
        assert [t.tier for t in store.stats().tiers if t.waiting] == ["cold"]
