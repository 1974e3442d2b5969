"""Archives in an object store: checked from there, and restored from there."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
import tiering
from kvstore import StoreConfig
from tests.support.clock import VirtualClock
from tests.tiering.places.buckets import SECRET
from tests.tiering.stores import fill, held

DAY = 86_400.0


def test_a_store_comes_back_from_a_bucket(
    tmp_path: Path, s3: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("ENDPOINT_URL", s3), ("ACCESS_KEY_ID", "tester"), ("SECRET_ACCESS_KEY", SECRET),
        ("REGION", "us-east-1"), ("ALLOW_HTTP", "true"),
    ):  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    clock = VirtualClock()
    config = StoreConfig(segment_size=64 << 10, clock=clock)
    url = f"s3://{bucket}/a"
    policy = tiering.Policy(hot_for=DAY, cold=url, watermarks=None, clock_doubt=0.0)
    with kvstore.open(tmp_path / "lost", config) as store:
        store.create_topic("orders", queues=3)
        store.create_topic("events", queues=2)
        fill(store)
        expected = held(store)
        clock.advance(2 * DAY)
        with tiering.Worker(store, policy) as worker:
            assert worker.run_once().failed == {}
            report = worker.verify()
        assert (report.problems, report.orphans, report.messages) == ([], [], 300)
    attached = tiering.restore(url, tmp_path / "attached")
    assert (attached.messages, attached.attached, attached.problems) == (300, report.archives, [])
    with kvstore.open(tmp_path / "attached", config) as store:
        assert held(store) == expected
        assert [tier.tier for tier in store.stats().tiers] == ["cold"]
    copied = tiering.restore(url, tmp_path / "copied", copy=True)
    assert copied.copied == report.archives
    for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    with kvstore.open(tmp_path / "copied", config) as store:
        assert held(store) == expected
        assert [tier.tier for tier in store.stats().tiers] == ["warm"]
