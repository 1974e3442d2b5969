"""The worker and an object store: cold archives in a bucket, and a server that fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import kvstore
from kvstore import ArchiveUnavailable, Store
from tests.support.clock import VirtualClock
from tests.tiering.places.buckets import SECRET
from tests.tiering.places.faulty import Fault, FaultyServer
from tests.tiering.stores import config, held, tiers
from tiering import PlaceDenied, Policy, Worker

DAY = 86_400.0


pytestmark = pytest.mark.filled(days=0)


def cold(bucket: str) -> Policy:
    return Policy(hot_for=DAY, cold_for=10 * DAY, cold=f"s3://{bucket}/a", clock_doubt=0.0)


def access(endpoint: str) -> Mapping[str, object]:
    return {
        "endpoint": endpoint,
        "access_key_id": "tester",
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }


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
