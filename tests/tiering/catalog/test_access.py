"""A store that is opened with keys and settings of places reads what takes them, by any call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import ArchiveAccess, KeyMissing, Store
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import tiers as archives_of
from tests.tiering.places.buckets import SECRET
from tests.tiering.stores import config, held, tiers
from tiering import KeyFile, PlaceError, Policy, Worker, restore
from tiering.archive.archive_reader import Archive
from tiering.archive.block import BlockGroup
from tiering.executor.pool import Inline

DAY = 86_400.0
WARM = Policy(hot_for=DAY, warm_for=10 * DAY, warm="archive", clock_doubt=0.0)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key file with a key of one of the two topics."""
    KeyFile(tmp_path / "keys.json").make("orders")
    return tmp_path / "keys.json"


def reopened(store: Store, clock: VirtualClock, access: ArchiveAccess, **how: Any) -> Store:
    store.close()
    return kvstore.open(store.path, config(clock, archives=access), **how)


def test_encrypted_topics_read_with_the_keys_of_the_settings_and_only_with_them(
    store: Store, clock: VirtualClock, keys: Path
) -> None:
    before = held(store)
    with reopened(store, clock, ArchiveAccess(keys=keys)) as again:
        with Worker(again, WARM) as worker:
            assert worker.run_once().failed == {}
            assert any("encrypted" in a.retention_class for a in worker.archives())
        assert held(again) == before
    with reopened(again, clock, ArchiveAccess(keys=str(keys)), read_only=True) as reader:
        assert held(reader) == before
        assert [m.topic for m in reader.query("orders", "n4")] == ["orders"]
    with reopened(reader, clock, ArchiveAccess(keys=KeyFile(keys)), read_only=True) as reader:
        assert held(reader) == before
    with reopened(reader, clock, ArchiveAccess(), read_only=True) as locked:
        with pytest.raises(KeyMissing, match="no keys were given"):
            locked.pull("orders", 0, 0)
        assert locked.pull("events", 0, 0).messages


def test_what_a_worker_is_given_goes_before_the_stores(
    store: Store, clock: VirtualClock, keys: Path, tmp_path: Path
) -> None:
    other = KeyFile(tmp_path / "other.json")
    other.make("events")
    with (
        reopened(store, clock, ArchiveAccess(keys=keys)) as again,
        Worker(again, WARM, keys=other) as worker,
    ):
        worker.run_once()
        with pytest.raises(kvstore.ConfigError, match="orders"):
            worker.destroy_key("orders")
        assert worker.destroy_key("events").archives


def test_a_bucket_is_read_with_the_options_of_the_settings(
    store: Store, clock: VirtualClock, s3: str, bucket: str, tmp_path: Path
) -> None:
    policy = Policy(hot_for=DAY, cold_for=10 * DAY, cold=f"s3://{bucket}/a", clock_doubt=0.0)
    options = {
        "endpoint": s3,
        "access_key_id": "tester",
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }
    before = held(store)
    access = ArchiveAccess(options=options)
    with reopened(store, clock, access) as again, Worker(again, policy) as worker:
        assert worker.run_once().failed == {}
        assert tiers(again)[1] > 0
    with reopened(again, clock, access, read_only=True) as reader:
        assert held(reader) == before
    settings = config(clock, archives=access)
    assert restore(f"s3://{bucket}/a", tmp_path / "new", config=settings).problems == []
    with kvstore.open(tmp_path / "new", settings) as restored:
        assert held(restored) == before


@pytest.mark.parametrize("tier", ["warm", "cold"])
def test_a_folder_is_given_no_settings_of_object_stores_however_it_is_named(
    store: Store, clock: VirtualClock, tmp_path: Path, tier: str
) -> None:
    before = held(store)
    where: dict[str, Any] = {tier: f"file://{tmp_path}/place", f"{tier}_for": 10 * DAY}
    policy = Policy(hot_for=DAY, clock_doubt=0.0, **where)
    access = ArchiveAccess(options={"region": "eu-central-1"})
    with reopened(store, clock, access) as again, Worker(again, policy) as worker:
        assert worker.run_once().failed == {}
        assert held(again) == before
    wrong = Policy(hot_for=DAY, **{**where, tier: f"file://{tmp_path}/place?region=eu"})
    with reopened(again, clock, access) as last, pytest.raises(PlaceError, match="retry_for"):
        Worker(last, wrong)


@pytest.mark.parametrize(
    "access",
    [
        ArchiveAccess(cache_bytes=0, read_ahead=0, readers=1),
        ArchiveAccess(cache_bytes=1 << 30, read_ahead=8, readers=16),
    ],
)
def test_the_sizes_of_the_cache_change_no_answer(
    store: Store, clock: VirtualClock, access: ArchiveAccess
) -> None:
    before = held(store)
    with reopened(store, clock, access) as again, Worker(again, WARM) as worker:
        worker.run_once()
        assert held(again) == before
        assert held(again) == before


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_was_read_beside_a_message_is_not_given_once_its_key_is_destroyed(
    store: Store, clock: VirtualClock, keys: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Small queues share a group, which is decoded as a whole."""
    access = ArchiveAccess(keys=keys)
    with reopened(store, clock, access) as again, Worker(again, WARM, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
        real = Archive.read_group

        def read(archive: Archive, number: int) -> BlockGroup:
            group = real(archive, number)
            if when == "meanwhile":
                monkeypatch.setattr(Archive, "read_group", real)
                worker.destroy_key("orders")
            return group

        monkeypatch.setattr(Archive, "read_group", read)
        there = archives_of(again)
        (first, *_) = (row.number for row in there.rows() if row.is_encrypted)
        assert there.archive(first).directory.within(0) == range(3), "one group has three queues"
        assert again.pull("orders", 0, 0, limit=1).messages
        if when == "before":
            worker.destroy_key("orders")
        for queue in range(3):
            with pytest.raises(kvstore.KeyDestroyed):
                again.pull("orders", queue, 0)
