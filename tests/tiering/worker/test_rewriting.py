"""Compacting and re-encrypting: archives anew because somebody asks for it, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvstore import ConfigError, Message, Store
from kvstore.errors import CallerError, KeyMissing
from kvstore.files import LocalFiles
from tests.support.clock import VirtualClock
from tiering import ArchiveInfo, KeyFile, Policy, Worker
from tiering.archive.archive_reader import Archive
from tiering.archive.tail import FileSource

DAY = 86_400.0
POLICY = Policy(hot_for=DAY, warm="archive", clock_doubt=0.0, tombstones_for=DAY, watermarks=None)


@pytest.fixture
def store(empty: Store) -> Store:
    """A table of a few keys, and a topic beside it."""
    empty.create_topic("table", queues=1, kind="compacted")
    empty.create_topic("plain", queues=1)
    return empty


def archive(store: Store, clock: VirtualClock, worker: Worker, *keys: str) -> None:
    """An archive with a message of each key, an empty one for `-key`, and a plain one beside it."""
    for key in keys:
        body = b"" if key.startswith("-") else f"{key} at {clock.now_ms()}".encode()
        store.put_batch([Message("table", body, queue=0, keys=(key.lstrip("-"),))])
    store.put("plain", b"in the clear")
    store.seal()
    clock.advance(2 * DAY)
    assert worker.run_once().failed == {}


def table(store: Store) -> dict[int, str]:
    """The messages of the table: first keys, by offset."""
    low, high = store.bounds("table", 0)
    found: dict[int, str] = {}
    while low < high:
        page = store.pull("table", 0, low, limit=50)
        found |= {m.offset: m.keys[0] for m in page.messages}
        low = page.next_offset
    return found


def compacted(worker: Worker) -> list[ArchiveInfo]:
    return [a for a in worker.archives() if "compacted" in a.retention_class]


def test_a_table_keeps_the_newest_of_each_key_and_other_archives_stay(
    store: Store, clock: VirtualClock
) -> None:
    with Worker(store, POLICY) as worker:
        archive(store, clock, worker, "a", "b", "c")
        archive(store, clock, worker, "b", "-c")
        archive(store, clock, worker, "d")
        others = {a.key for a in worker.archives()} - {a.key for a in compacted(worker)}
        report = worker.compact()
        assert (len(report.merged), len(report.archives), report.failed) == (3, 1, {})
        assert table(store) == {0: "a", 3: "b", 5: "d"}
        assert {a.key for a in worker.archives()} == others | set(report.archives)
        assert worker.compact() == type(report)()
        archive(store, clock, worker, "a")
        assert len(worker.compact("table").merged) == 2
    assert table(store) == {3: "b", 5: "d", 6: "a"}


def test_an_archive_that_stands_alone_is_compacted_if_it_is_worth_it(
    store: Store, clock: VirtualClock
) -> None:
    with Worker(store, POLICY) as worker:
        archive(store, clock, worker, "a", "b", "a", "a")
        assert len(worker.compact().merged) == 1
        assert table(store) == {1: "b", 3: "a"}
        assert worker.compact().merged == []
        assert worker.compact().archives == []


def test_what_can_not_be_compacted_is_refused(store: Store, clock: VirtualClock) -> None:
    with Worker(store, POLICY) as worker:
        with pytest.raises(CallerError, match="of kind normal"):
            worker.compact("plain")
        with pytest.raises(CallerError, match="no topic 'none'"):
            worker.compact("none")


def test_a_damaged_archive_is_told_and_left_alone(store: Store, clock: VirtualClock) -> None:
    with Worker(store, POLICY) as worker:
        archive(store, clock, worker, "a", "a")
        path = store.path / "archive" / compacted(worker)[0].key
        data = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:200] + bytes(40) + data[240:])
        report = worker.compact()
    assert list(report.failed) == [compacted(worker)[0].key]
    assert report.merged == []


def test_topics_that_get_a_key_are_encrypted_afterwards_and_others_are_not_touched(
    tmp_path: Path, store: Store, clock: VirtualClock
) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    with Worker(store, POLICY, keys=keys) as worker:
        archive(store, clock, worker, "a", "b")
        archive(store, clock, worker, "a")
        before = table(store)
        assert worker.reencrypt().merged == []
        keys.make("plain")
        report = worker.reencrypt("table")
        assert report.merged == []
        report = worker.reencrypt()
        assert (len(report.merged), len(report.archives), report.failed) == (2, 2, {})
        assert worker.reencrypt().merged == []
        assert worker.reencrypt("plain").merged == []
        assert [d.what for d in worker.history.last()].count("reencrypted") == 2
        clock.advance(POLICY.grace + 1)
        assert sorted(worker.run_once().removed) == sorted(f"archive/{k}" for k in report.merged)
        assert worker.verify().ok
        assert store.get("plain", 0, 1).body == b"in the clear"
        assert table(store) == before
        assert not any(b"in the clear" in r for r in given_without_keys(store.path / "archive"))
        worker.destroy_key("plain")
        # Messages that nobody can read any more, or that can't be encrypted yet, stay.
        assert worker.reencrypt().merged == []
        keys.make("plain")
        assert worker.reencrypt().merged == []


def given_without_keys(place: Path) -> Iterator[bytes]:
    """Records that archives give to a reader without keys."""
    for path in place.rglob("*.kvarc"):
        found = Archive.open(FileSource(path, LocalFiles()))
        for number in range(found.directory.blocks):
            with suppress(KeyMissing):
                yield from found.read_block(number).records()


def test_without_keys_nothing_is_re_encrypted(store: Store, clock: VirtualClock) -> None:
    with Worker(store, POLICY) as worker, pytest.raises(ConfigError, match="without keys"):
        worker.reencrypt()
