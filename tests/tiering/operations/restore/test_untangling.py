"""Archives that have a queue's offsets by turns: each offset is found where it is."""

from __future__ import annotations

from pathlib import Path

import kvstore
import tiering
from kvstore import Message, Retention, Store
from tests.support.clock import VirtualClock
from tests.tiering.stores import config
from tiering import Policy, Worker

DAY = 86_400.0
POLICY = Policy(hot_for=600.0, warm_for=30 * DAY, warm="archive", clock_doubt=0.0)


def by_turns(store: Store, worker: Worker, clock: VirtualClock) -> None:
    """Has two archives, each with three messages in six of queue 0."""
    for n in range(6):
        # Of two classes by turns; each merges over what the other has.
        store.alter_topic("a", retention=Retention(warm_for=(20 + n % 2) * DAY))
        store.put_batch([Message("a", b"%d" % m, queue=0) for m in range(n, n + 3)])
        store.seal()
        clock.advance(1000.0)
        assert worker.run_once().failed == {}
    assert worker.merge().failed == {}
    assert len(worker.archives()) == 2


def test_a_restored_store_and_a_rebuilt_one_find_what_two_archives_have_by_turns(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        with Worker(store, POLICY) as worker:
            by_turns(store, worker, clock)
        before = store.pull("a", 0, 0, limit=100).messages
        assert [m.offset for m in before] == list(range(18))
        assert store.verify(archives=True).problems == []
    report = tiering.restore(path / "archive", tmp_path / "restored")
    assert report.problems == []
    kvstore.rebuild(path, config(clock))
    for folder in (tmp_path / "restored", path):
        with kvstore.open(folder, config(clock)) as store:
            assert store.pull("a", 0, 0, limit=100).messages == before
            assert store.verify(archives=True).problems == []


def test_damage_costs_none_of_the_messages_that_another_archive_has_between(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        store.create_group("g")
        with Worker(store, POLICY) as worker:
            by_turns(store, worker, clock)
            damaged, _ = worker.archives()
    file = path / "archive" / damaged.key
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    with kvstore.open(path, config(clock)) as store:
        found, at = [], 0
        while at < 18:
            try:
                page = store.pull("a", 0, at)
            except kvstore.ArchiveDamaged as e:
                at = max(at + 1, e.next_offset or 0)
            else:
                found += [m.offset for m in page.messages]
                at = page.next_offset
        assert found == [m for m in range(18) if m // 3 % 2]
        assert [p.message.offset for p in store.pop("g", "a", limit=32)] == found
