"""The memory for archives has bounds: ten times as much is asked for, and no more is kept."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kvstore
import tiering.catalog.tiers
import tiering.operations.attach_conflicts
from kvstore import ArchiveAccess, Message, Store
from tests.support import inside_tiering
from tests.support.clock import VirtualClock
from tests.tiering.archive.making import make, plain_queues
from tests.tiering.catalog.moving import config, hand_over, sealed, tiers
from tiering import Policy, Worker
from tiering.archive.archive_reader import Archive
from tiering.archive.block import BlockGroup
from tiering.catalog.tiers import Tiers
from tiering.executor.pool import Inline
from tiering.worker import runs

QUEUES, SEGMENTS = 40, 4
BOUND = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of archives whose groups have blocks of many queues."""
    path, clock = tmp_path_factory.mktemp("bounds") / "store", VirtualClock()
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("t", queues=QUEUES)
        for n in range(SEGMENTS):
            store.put_batch([
                Message("t", b"%d " % i * 60, queue=i % QUEUES, keys=(f"k{n}",))
                for i in range(3 * QUEUES)
            ])  # fmt: skip
            clock.advance(1)
            store.seal()
        for number in sealed(store):
            hand_over(store, [number])
    return path


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    access = ArchiveAccess(cache_bytes=0)
    with kvstore.open(path, config(archives=access)) as opened:
        yield opened


def read_everything(store: Store) -> int:
    """Each queue from its first offset on, then each message by its position and by its keys."""
    found = 0
    for queue in range(QUEUES):
        low, high = store.bounds("t", queue)
        while low < high:
            page = store.pull("t", queue, low, limit=2)
            low = page.next_offset
            for message in page.messages:
                assert store.read_at(message.position) == message
                found += 1
    for n in range(SEGMENTS):
        found += len(store.query("t", f"k{n}", limit=1000))
    return found


class Kept(NamedTuple):
    """A structure of `Tiers`, its bound, and how many entries are asked for."""

    name: str
    bound: str
    asked: int


KEPT = [
    Kept("scans", "SCANS_CACHED_MAX", QUEUES * SEGMENTS),
    Kept("found", "FOUND_CACHED_MAX", 3 * QUEUES * SEGMENTS),
    Kept("queues", "QUEUE_BLOCKS_CACHED_MAX", QUEUES * SEGMENTS),
]


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_what_is_known_of_readers_and_queues_is_bounded(
    store: Store, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering.catalog.tiers, kept.bound, 2 * BOUND)
    assert kept.asked >= 20 * BOUND
    most = 0
    step = inside_tiering.reading_of_messages()
    real = step.now

    def looked(self: Tiers, *args: Any) -> Any:
        nonlocal most
        most = max(most, getattr(inside_tiering.memory_of(self), kept.name))
        return real(self, *args)

    step.replace(looked, monkeypatch)
    assert read_everything(store) == 2 * 3 * QUEUES * SEGMENTS
    assert 0 < most <= 2 * BOUND


def test_of_archives_that_have_left_nothing_is_kept(tmp_path: Path, clock: VirtualClock) -> None:
    policy = Policy(hot_for=1.0, warm_for=100.0, warm="archive", clock_doubt=0.0, grace=0.0)
    with kvstore.open(tmp_path / "gone", config(clock)) as store:
        store.create_topic("t", queues=1)
        with Worker(store, policy, executor=Inline()) as worker:
            sizes = []
            for _ in range(20):
                store.put("t", b"m", queue=0, keys=["k"])
                store.seal()
                clock.advance(60.0)
                assert worker.run_once().failed == {}
                assert store.query("t", "nowhere") == []
                assert store.query("t", "k")
                there = tiers(store)
                sizes.append((
                    inside_tiering.filters_of(there).memory_bytes,
                    len(inside_tiering.open_archives(there).sizes()), there.cache_stats().blocks,
                    inside_tiering.memory_of(there).queues,
                ))  # fmt: skip
            assert len(worker.archives()) <= 3
    for each in zip(*sizes, strict=True):
        assert max(each) == max(each[:5])


def groups_read(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[BlockGroup]:
    """All groups that are read from here on, as long as somebody has them."""
    found: weakref.WeakSet[BlockGroup] = weakref.WeakSet()
    real = Archive.read_group

    def noted(self: Archive, number: int) -> BlockGroup:
        group = real(self, number)
        found.add(group)
        return group

    monkeypatch.setattr(Archive, "read_group", noted)
    return found


@pytest.mark.parametrize(
    ("name", "bound", "kept"), [("GROUPS_CACHED_MAX", 2, 2), ("GROUPS_CACHED_BYTES_MAX", 1, 1)]
)
def test_groups_that_are_kept_are_bounded_in_number_and_in_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, bound: int, kept: int
) -> None:
    monkeypatch.setattr(tiering.catalog.tiers, name, bound)
    there = tiers(store)
    groups = 0
    for archive in map(there.archive, there.numbers()):
        directory = archive.directory
        groups += len({directory.group_of(block) for block in range(directory.blocks)})
    assert groups >= 10 * kept
    seen = groups_read(monkeypatch)
    most = 0
    for queue in range(QUEUES):
        low, high = store.bounds("t", queue)
        for offset in range(low, high):
            assert store.get("t", queue, offset).offset == offset
            most = max(most, inside_tiering.memory_of(there).groups)
            assert len(seen) <= kept + 1, "and nobody else holds on to them"
    assert most == kept


def test_an_attach_keeps_the_times_of_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering.operations.attach_conflicts, "_KEPT", BOUND)
    times = tiering.operations.attach_conflicts.BlockTimes()
    expected = []
    for round_ in range(2):
        for n in range(10 * BOUND):
            made = make(plain_queues(topics=2, queues=1, messages=5)).open()[0]
            made.name = f"archive {n}"
            row = made.rows().row(1)
            times.within(made, 1, row.first_offset, row.last_offset)
            found = times.of(made, 1)
            assert max(inside_tiering.blocks_with_times(times)) <= BOUND
            if not round_:
                expected.append((row.least_stored_at, row.greatest_stored_at))
            assert found == expected[n]


def test_a_history_of_many_deeds_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_BYTES_MAX", 1000)
    clock, path = VirtualClock(), tmp_path / "history"
    history = runs.History(path, config(clock).files, clock)
    done, written = [], 0
    for n in range(100):
        done.append(history.add("archived", f"segment {n}", note="x" * (n % 7 * 40)))
        size = path.stat().st_size
        line = len(path.read_bytes().splitlines(keepends=True)[-1])
        written += line
        assert size <= 1000 + line
        kept = history.last()
        assert kept == done[-len(kept) :]
    assert written >= 10 * 1000
