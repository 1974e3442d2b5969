"""A compacted topic keeps the newest message of each key, and a deleted key stays deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvstore
import tiering
from kvstore import Message, Store
from kvstore.record.properties import encode_properties
from tests.rocketmq.logs import record
from tests.support.clock import VirtualClock
from tests.tiering.archive.making import Queue
from tests.tiering.merge.merging import deal, made_of, merged, records_in
from tests.tiering.stores import config
from tiering import Policy, Worker
from tiering.archive.manifest import ArchivedTopic
from tiering.executor.pool import Executor, Inline
from tiering.merge.compact import Compaction, QueueCompaction
from tiering.merge.merge import merge_with
from tiering.merge.partition import Dropped

GRACE = 1_000_000
"""Store times before it are past the grace time."""


class Entry(NamedTuple):
    """A message: its first key (None: it has none), whether its body is empty, its store time."""

    key: str | None
    is_empty: bool = False
    stored_at: int = GRACE
    archive: int = 0


def queue_of(entries: list[Entry], name: str = "table", kind: str = "compacted") -> Queue:
    queue = Queue(ArchivedTopic(name=name, id=7, kind=kind), 0, {})
    for number, entry in enumerate(entries):
        keys = {"KEYS": f"{entry.key} other"} if entry.key is not None else {}
        offset = 5 + 2 * number
        queue.records[offset] = record(
            1000 * (number + 1), b"" if entry.is_empty else b"value %d" % number, topic=name,
            queue=0, offset=offset, stored_at=entry.stored_at,
            properties=encode_properties({"UNIQ_KEY": f"ID{number}", **keys}),
        )  # fmt: skip
    return queue


def compacted(
    entries: list[Entry], *, is_whole: bool = True, kind: str = "compacted"
) -> tuple[list[int], Dropped]:
    """Which of the entries are left, by number, and what was dropped."""
    queue = queue_of(entries, kind=kind)
    dealt = deal([queue], lambda _, offset: entries[(offset - 5) // 2].archive)
    below = {(7, 0): 5 + 2 * len(entries)} if is_whole else {}
    result = merged(
        made_of(dealt), compaction=Compaction(tombstones_before=GRACE, whole_below=below)
    )
    if result.merged.made is None:
        return [], result.merged.dropped
    found = records_in(result.open())["table", 0]
    assert all(queue.records[offset] == raw for offset, raw in found.items())
    return [(offset - 5) // 2 for offset in found], result.merged.dropped


def model(entries: list[Entry], *, is_whole: bool) -> list[int]:
    newest = {entry.key: number for number, entry in enumerate(entries)}
    return [
        number
        for number, entry in enumerate(entries)
        if entry.key is None
        or (
            newest[entry.key] == number
            and not (is_whole and entry.is_empty and entry.stored_at < GRACE)
        )
    ]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.builds(
            Entry, st.sampled_from([None, "a", "b", "c", "d"]), st.booleans(),
            st.sampled_from([GRACE - 1, GRACE]), st.integers(0, 2),
        ),
        min_size=1, max_size=25,
    ),
    st.booleans(),
)  # fmt: skip
def test_what_is_left_is_what_a_dictionary_would_have(entries: list[Entry], is_whole: bool) -> None:
    left, dropped = compacted(entries, is_whole=is_whole)
    assert left == model(entries, is_whole=is_whole)
    assert dropped.total == len(entries) - len(left)


def test_the_newest_message_of_a_key_stays_with_its_offset() -> None:
    left, dropped = compacted([Entry("a"), Entry("b"), Entry("a"), Entry("a")])
    assert left == [1, 3]
    assert dropped == Dropped(superseded=2)


def test_a_message_without_a_key_stays() -> None:
    assert compacted([Entry(None), Entry(None)])[0] == [0, 1]


def test_a_tombstone_supersedes_at_once_and_stays_for_the_grace_time() -> None:
    left, dropped = compacted([Entry("a"), Entry("a", is_empty=True)])
    assert left == [1]
    assert dropped == Dropped(superseded=1)


def test_a_tombstone_past_its_grace_goes() -> None:
    left, dropped = compacted([Entry("a"), Entry("a", True, GRACE - 1)])
    assert left == []
    assert dropped == Dropped(superseded=1, tombstones=1)


def test_a_tombstone_stays_while_something_older_is_elsewhere() -> None:
    assert compacted([Entry("a", True, GRACE - 1)], is_whole=False)[0] == [0]


def test_a_tombstone_that_was_written_over_is_superseded_like_any_other() -> None:
    assert compacted([Entry("a", True, GRACE - 1), Entry("a")])[0] == [1]


def test_topics_of_other_kinds_are_not_compacted() -> None:
    assert compacted([Entry("a"), Entry("a")], kind="normal")[0] == [0, 1]


def test_letting_go_of_what_is_superseded_on_the_way_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [Entry("abc"[n % 3], n % 5 == 0, GRACE - n % 2) for n in range(40)]
    at_once = compacted(entries)
    monkeypatch.setattr("tiering.merge.compact.FOLD_ROWS", 3)
    assert compacted(entries) == at_once


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            Entry, st.sampled_from([None, "a", "b", "c"]), st.booleans(),
            st.sampled_from([GRACE - 1, GRACE]),
        ),
        max_size=30,
    ),
    st.lists(st.integers(0, 30), max_size=4),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_queue_in_stretches_put_together_in_any_order_is_what_one_pass_gives(
    entries: list[Entry], cuts: list[int], draw: Random
) -> None:
    compaction = Compaction(tombstones_before=GRACE, whole_below={(7, 0): 5 + 2 * len(entries)})
    records = list(queue_of(entries).records.items())
    at_once = QueueCompaction(compaction, (7, 0))
    at_once.add([raw for _, raw in records], np.array([n for n, _ in records], np.int64))
    bounds = sorted({0, *(min(cut, len(records)) for cut in cuts), len(records)})
    tables = []
    for begin, end in pairwise(bounds):
        some = QueueCompaction(compaction, (7, 0))
        mine = records[begin:end]
        some.add([raw for _, raw in mine], np.array([n for n, _ in mine], np.int64))
        tables.append(some.table())
    draw.shuffle(tables)
    together = QueueCompaction(compaction, (7, 0))
    for table in tables:
        together.take(table)
    assert [found.tolist() for found in together.finish()] == [
        found.tolist() for found in at_once.finish()
    ]


DAY = 86_400.0
POLICY = Policy(hot_for=DAY, warm="archive", clock_doubt=0.0, tombstones_for=DAY, watermarks=None)
Table = dict[str, bytes]


@pytest.fixture
def store(empty: Store) -> Store:
    empty.create_topic("table", queues=1, kind="compacted")
    empty.create_topic("other", queues=1)
    return empty


def put(store: Store, key: str, body: bytes) -> None:
    store.put_batch([Message("table", body, queue=0, keys=(key,))])


def archive(store: Store, clock: VirtualClock, worker: Worker) -> None:
    """Archives all messages that were put so far."""
    store.seal()
    clock.advance(2 * DAY)
    assert worker.run_once().failed == {}


def current(store: Store) -> Table:
    """The newest value of each key that is not deleted."""
    found: Table = {}
    low, high = store.bounds("table", 0)
    while low < high:
        page = store.pull("table", 0, low, limit=50)
        found |= {m.keys[0]: m.body for m in page.messages}
        low = page.next_offset
    return {key: body for key, body in found.items() if body}


def erased_beside_a_tombstone(
    store: Store, clock: VirtualClock, worker: Worker, backup: Path
) -> None:
    """A store that has a tombstone of "k" and not its value, which `backup` has; a segment in the
    log keeps what is attached from being merged with the tombstone.
    """
    put(store, "k", b"secret")
    put(store, "x", b"stays")
    archive(store, clock, worker)
    shutil.copytree(store.path / "archive", backup)
    before = store.config.clock.now_ms()
    put(store, "k", b"")
    put(store, "y", b"newer")
    archive(store, clock, worker)
    assert worker.erase(topic="table", before=before).messages == 2
    store.put("other", b"in the log")
    store.seal()


def test_a_tombstone_stays_while_an_attached_archive_has_an_older_value(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    with Worker(store, POLICY, executor=Inline()) as worker:
        erased_beside_a_tombstone(store, clock, worker, tmp_path / "backup")
        assert tiering.attach(store, tmp_path / "backup", topics=["table"]).messages == 2
        assert current(store) == {"x": b"stays", "y": b"newer"}
        assert worker.compact().failed == {}
        assert current(store) == {"x": b"stays", "y": b"newer"}
        archive(store, clock, worker)
        assert worker.compact().failed == {}
    assert current(store) == {"x": b"stays", "y": b"newer"}
    left = store.pull("table", 0, store.bounds("table", 0)[0], limit=50)
    assert [m.offset for m in left.messages] == [1, 3], "both are gone now"


def test_a_tombstone_stays_while_the_log_has_an_older_value(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    put(store, "k", b"secret")
    with kvstore.open(tmp_path / "source", config(clock)) as source:
        source.create_topic("table", queues=1, kind="compacted")
        put(source, "z", b"")
        put(source, "k", b"")
        with Worker(source, POLICY, executor=Inline()) as worker:
            archive(source, clock, worker)
            assert worker.erase(key="z").messages == 1
    tiering.attach(store, tmp_path / "source" / "archive")
    patient = Policy(
        hot_for=100 * DAY, warm="archive", clock_doubt=0.0, tombstones_for=DAY, watermarks=None
    )
    clock.advance(2 * DAY)
    with Worker(store, patient, executor=Inline()) as worker:
        assert worker.run_once().segments == []
        assert worker.compact().failed == {}
        assert current(store) == {}
    with Worker(store, POLICY, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
        assert worker.compact().failed == {}
    assert current(store) == {}


def test_a_tombstone_stays_if_an_older_value_is_attached_while_it_is_compacted(
    store: Store, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attached_meanwhile(executor: Executor, check: Callable[[], None], *rest: object) -> object:
        made = merge_with(executor, check, *rest)  # type: ignore[arg-type]  # handed on
        monkeypatch.undo()
        tiering.attach(store, tmp_path / "backup", topics=["table"])
        return made

    with Worker(store, POLICY, executor=Inline()) as worker:
        erased_beside_a_tombstone(store, clock, worker, tmp_path / "backup")
        monkeypatch.setattr("tiering.worker.replace.merge_with", attached_meanwhile)
        (why,) = worker.compact().failed.values()
        assert "messages from offset 0 on were attached" in str(why)
        assert current(store) == {"x": b"stays", "y": b"newer"}
        clock.advance(2 * DAY)
        assert worker.compact().failed == {}
    assert current(store) == {"x": b"stays", "y": b"newer"}
    assert store.verify(archives=True).problems == []


@pytest.mark.parametrize("seed", range(8))
def test_compacting_changes_no_current_value_whatever_came_in_any_order(
    store: Store, clock: VirtualClock, tmp_path: Path, seed: int
) -> None:
    """Archives of one table are attached in any order, with segments of the log between some."""
    draw = Random(seed)
    parts = 4
    with kvstore.open(tmp_path / "source", config(clock)) as source:
        source.create_topic("table", queues=1, kind="compacted")
        with Worker(source, POLICY, executor=Inline()) as worker:
            known: set[str] = set()
            for part in range(parts):
                for n in range(4):
                    put(source, draw.choice("abc"), draw.choice([b"", b"%d.%d" % (part, n)]))
                archive(source, clock, worker)
                place = tmp_path / f"part{part}"
                shutil.copytree(source.path / "archive", place)
                for path in place.rglob("*.kvarc"):
                    if path.name in known:
                        path.unlink()
                    known.add(path.name)
    clock.advance(2 * DAY)
    with Worker(store, POLICY, executor=Inline()) as worker:
        for part in draw.sample(range(parts), parts):
            tiering.attach(store, tmp_path / f"part{part}")
            if draw.random() < 0.6:
                store.put("other", b"in the log")
                store.seal()
            before = current(store)
            assert worker.compact().failed == {}
            assert current(store) == before
    assert store.verify(archives=True).problems == []
