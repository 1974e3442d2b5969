"""Flush, visibility and write modes; several threads; and why a call fails fast."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import (
    CallerError,
    DiskFull,
    Message,
    MessageNotFound,
    OffsetNotFound,
    PullStatus,
    PutStatus,
    Store,
    StoreBusy,
    StoreClosed,
    StoreConfig,
    StoreLocked,
    StoreNotFound,
    StoreReadOnly,
    TopicConfig,
)
from kvstore.files import FolderLock, LocalFiles, LocalLock, MappedFile
from kvstore.index.index import Index
from kvstore.log.commitlog import CommitLog
from kvstore.opening.restoring import Restored, found_store
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.files import Effect, WatchedFiles
from tests.support.segment_files import batch, bodies, records
from tests.support.stores import SEGMENT, SMALL, Opens, opened, put, settings

NEVER = 1e9


def quiet(**settings: Any) -> StoreConfig:
    """Nothing is flushed by itself."""
    return StoreConfig(
        segment_size=SEGMENT,
        flush_interval=NEVER,
        flush_thorough_interval=NEVER,
        checkpoint_interval=NEVER,
        **settings,
    )


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_what_is_not_flushed_is_not_seen_with_visibility_flushed(opens: Opens, mode: Any) -> None:
    store = opens(quiet(visibility="flushed", write_mode=mode, stage_interval=NEVER))
    store.create_topic("t")
    for part in range(3):
        first = 4 * part
        results = store.put_batch(batch("t", 4, keys=["k"]))
        assert store.bounds("t", 0) == (0, first)
        assert len(store.query("t", "k")) == first
        pulled = store.pull("t", 0, first)
        beyond = PullStatus.OFFSET_OVERFLOW_ONE if first else PullStatus.NO_MESSAGE_IN_QUEUE
        assert (pulled.status, pulled.messages) == (beyond, [])
        assert len(store.pull("t", 0, 0).messages) == first
        assert store.offset_at("t", 0, results[0].position + (1 << 50)) == first
        with pytest.raises(OffsetNotFound):
            store.get("t", 0, first)
        with pytest.raises(MessageNotFound):
            store.read_at(results[0].position)
        with pytest.raises(MessageNotFound):
            store.find(results[0].message_id)
        with pytest.raises(ValueError, match="offset"):
            store.commit_offset("g", "t", 0, first + 1)
        if part == 1:
            store.checkpoint()
        else:
            store.flush()
        assert store.bounds("t", 0) == (0, first + 4)
        assert store.find(results[0].message_id).offset == first
        assert len(store.query("t", "k")) == first + 4


def test_what_is_written_is_seen_at_once_by_default(opens: Opens) -> None:
    store = opens(quiet())
    store.create_topic("t")
    result = store.put("t", b"x", queue=0)
    assert result.status is PutStatus.WRITTEN
    assert store.get("t", 0, 0).body == b"x"
    assert store.stats().durable_position == 0


@pytest.mark.parametrize("visibility", ["written", "flushed"])
@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_a_sync_put_returns_when_it_is_on_the_disk(
    opens: Opens, mode: Any, visibility: Any
) -> None:
    store = opens(quiet(flush="sync", write_mode=mode, visibility=visibility))
    store.create_topic("t")
    results = store.put_batch(batch("t", 3))
    assert [r.status for r in results] == [PutStatus.FLUSHED] * 3
    assert store.stats().durable_position == store.stats().end_position
    assert bodies(store, "t", 0) == [b"0", b"1", b"2"]


def test_puts_that_arrive_during_a_sync_share_the_next_one(opens: Opens) -> None:
    files = WatchedFiles()
    store = opens(quiet(flush="sync", files=files))
    store.create_topic("t")

    began = threading.Event()

    def hold_the_first(effect: Effect) -> None:
        if effect.kind == "sync" and store.stats().syncs == 0:
            began.set()
            wait_until(lambda: sum(store.bounds("t", queue)[1] for queue in range(4)) == 8)

    def put_one(number: int) -> None:
        assert number == 0 or began.wait(60)
        store.put("t", b"x", queue=number % 4)

    files.before = hold_the_first
    run_threads(8, put_one)
    assert store.stats().syncs == 2
    assert store.stats().durable_position == store.stats().end_position


def test_flush_brings_everything_to_the_disk(opens: Opens) -> None:
    store = opens(quiet())
    store.create_topic("t")
    store.flush()
    store.put_batch(batch("t", 3))
    store.flush()
    stats = store.stats()
    assert stats.durable_position == stats.end_position > 0


def wait_until(condition: Callable[[], bool]) -> None:
    """A second at most, for what another thread does."""
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")


def test_async_puts_reach_the_disk_when_enough_is_dirty_or_at_the_thorough_interval(
    opens: Opens,
) -> None:
    clock = VirtualClock()
    store = opens(StoreConfig(segment_size=SEGMENT, clock=clock, flush_dirty_bytes=5000))
    store.create_topic("t")
    store.put("t", b"small", queue=0)
    clock.advance(0.6)
    store.put("t", bytes(6000), queue=0)
    end = store.stats().end_position

    def reached(position: int) -> bool:
        clock.advance(0.6)
        return store.stats().durable_position >= position

    wait_until(lambda: reached(end))
    store.put("t", b"small", queue=0)
    clock.advance(11)
    wait_until(lambda: reached(store.stats().end_position))


def test_staged_messages_are_read_at_once_in_every_way(opens: Opens) -> None:
    store = opens(quiet(write_mode="staged", stage_interval=NEVER))
    store.create_topic("t")
    results = store.put_batch(
        [Message("t", bytes([i]) * 999, queue=0, keys=["k"]) for i in range(200)]
    )
    assert results[-1].position > 2 * SEGMENT
    assert not any((store.path / "commitlog" / f"{0:020d}").read_bytes())
    expected = [bytes([i]) * 999 for i in range(200)]
    for _ in range(2):
        assert bodies(store, "t", 0) == expected
        assert [store.read_at(r.position).body for r in results] == expected
        assert store.find(results[150].message_id).offset == 150
        assert len(store.query("t", "k", limit=500)) == 200
        assert store.offset_at("t", 0, 0) == 0
        store.flush()
    assert [r.body for r in records(store)] == expected


def test_messages_that_a_stage_is_writing_out_are_read_from_memory(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opens(quiet(write_mode="staged", stage_interval=NEVER))
    store.create_topic("t")
    store.put_batch([Message("t", bytes([i]), queue=0) for i in range(5)])
    segments = inside.log(store).segments
    map_of, seen = segments.map, []

    def read_first(number: int) -> MappedFile:
        monkeypatch.undo()
        seen.append(bodies(store, "t", 0))
        return map_of(number)

    monkeypatch.setattr(segments, "map", read_first)
    store.flush()
    assert seen == [[bytes([i]) for i in range(5)]]


def test_a_write_that_the_system_cuts_short_is_gone_on_with(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opens(quiet(write_mode="staged", stage_interval=NEVER))
    store.create_topic("t")
    put(store, 0, 20)
    write, sizes = os.pwrite, []

    def write_some(fd: int, data: bytes | memoryview, offset: int) -> int:
        sizes.append(write(fd, memoryview(data)[:777], offset))
        return sizes[-1]

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", write_some)
        store.flush()
    assert sizes.count(777) > 2
    assert len(bodies(store, "t", 0)) == 20
    store.close()
    assert len(bodies(opens(), "t", 0)) == 20


def test_puts_are_refused_while_both_buffers_of_a_stage_are_full(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opens(quiet(write_mode="staged", stage_interval=NEVER, stage_bytes=4000))
    store.create_topic("t")
    store.put("t", b"0", queue=0)
    segments = inside.log(store).segments
    map_of, taken = segments.map, 0

    def put_first(number: int) -> MappedFile:
        nonlocal taken
        monkeypatch.undo()
        with suppress(StoreBusy):
            while taken < 100:
                store.put("t", bytes(500), queue=0)
                taken += 1
        return map_of(number)

    monkeypatch.setattr(segments, "map", put_first)
    store.flush()
    assert 4000 < taken * 600 < 12_000
    store.put("t", b"there is room again", queue=0)
    assert len(bodies(store, "t", 0)) == taken + 2


def test_what_a_stage_was_writing_out_when_it_was_interrupted_is_written_by_the_next_flush(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quiet(write_mode="staged", stage_interval=NEVER)
    store = opens(config)
    store.create_topic("t")
    put(store, 0, 5)

    def interrupt(number: int) -> MappedFile:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(inside.log(store).segments, "map", interrupt)
    with pytest.raises(KeyboardInterrupt):
        inside.log(store).drain()
    put(store, 5, 5)
    assert len(bodies(store, "t", 0)) == 10
    store.close()
    assert len(bodies(opens(config), "t", 0)) == 10


@pytest.mark.parametrize(
    ("settings", "count"),
    [({"stage_count": 5}, 5), ({"stage_bytes": 1000}, 8), ({"stage_interval": 3.0}, 1)],
)
def test_a_stage_is_written_out_at_its_limit_of_bytes_count_or_time(
    opens: Opens, settings: dict[str, Any], count: int
) -> None:
    clock = VirtualClock()
    limits: dict[str, Any] = {"stage_count": 1000, "stage_bytes": 100_000, "stage_interval": NEVER}
    store = opens(
        StoreConfig(
            segment_size=SEGMENT,
            clock=clock,
            write_mode="staged",
            flush_interval=NEVER,
            flush_thorough_interval=NEVER,
            checkpoint_interval=NEVER,
            **(limits | settings),
        )
    )
    store.create_topic("t")
    path = store.path / "commitlog" / f"{0:020d}"
    for _ in range(count - 1):
        store.put("t", b"x", queue=0)
    threading.Event().wait(0.05)
    assert not any(path.read_bytes()[:200])
    store.put("t", b"x", queue=0)

    def written() -> bool:
        if "stage_interval" in settings:
            clock.advance(1)
        return any(path.read_bytes()[:200])

    wait_until(written)
    assert bodies(store, "t", 0) == [b"x"] * count


@pytest.mark.parametrize("mode", ["mapped", "staged"])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_store_of_every_mode_comes_back_as_it_was_closed(
    opens: Opens, mode: Any, flush: Any
) -> None:
    config = StoreConfig(segment_size=SEGMENT, write_mode=mode, flush=flush)
    store = opens(config)
    store.create_topic("t")
    expected = []
    for part in range(3):
        store.put_batch([Message("t", bytes([i, part]) * 300, queue=0) for i in range(100)])
        expected += [bytes([i, part]) * 300 for i in range(100)]
        store.close()
        store = opens(config)
        assert store.recovery.damage == []
        assert bodies(store, "t", 0) == expected
        assert store.verify().problems == []


# --- threads ---


def test_a_store_is_not_given_to_another_process(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_namespace("n")
        for given in (store, store.namespace("n")):
            for take in (pickle.dumps, copy.copy, copy.deepcopy):
                if given is not store and take is copy.copy:
                    continue  # another view of the same store, in the same process
                with pytest.raises(CallerError, match="the process that opened it"):
                    take(given)


def run_threads(count: int, work: Callable[[int], object]) -> None:
    """Run `work(0)` ... at once; what one of them raised is raised here."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_threads_putting_at_once_get_dense_offsets_and_whole_batches(
    opens: Opens, mode: Any
) -> None:
    store = opens(
        StoreConfig(segment_size=SEGMENT, write_mode=mode, checkpoint_bytes=50_000, busy_timeout=60)
    )
    store.create_topic("t", queues=3)
    results: dict[int, list[list[kvstore.PutResult]]] = {n: [] for n in range(5)}
    stop = threading.Event()

    def put(n: int) -> None:
        for i in range(30):
            size = 1 + (i * 7 + n) % 11
            results[n].append(
                store.put_batch(
                    [
                        Message("t", f"{n} {i} {j}".encode(), queue=i % 3, keys=[f"w{n}"])
                        for j in range(size)
                    ]
                )
            )

    def read() -> None:
        while not stop.is_set():
            for queue in range(3):
                assert all(m.queue == queue for m in store.pull("t", queue, 0, 1000).messages)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        run_threads(5, put)
    finally:
        stop.set()
        reader.join()
    every = [r for batches in results.values() for b in batches for r in b]
    for queue in range(3):
        offsets = sorted(r.offset for r in every if r.queue == queue)
        assert offsets == list(range(len(offsets)))
        assert len(bodies(store, "t", queue)) == len(offsets)
    for n, batches in results.items():
        for i, b in enumerate(batches):
            assert [r.offset for r in b] == list(range(b[0].offset, b[0].offset + len(b)))
            assert store.get("t", i % 3, b[0].offset).body == f"{n} {i} 0".encode()
        assert len(store.query("t", f"w{n}", limit=10_000)) == sum(map(len, batches))
    assert sorted(r.position for r in every) == [r.position for r in records(_flushed(store))]
    assert store.verify().problems == []


def _flushed(store: Store) -> Store:
    store.flush()
    return store


def wrong_with_reads(store: Store) -> list[str]:
    """The contradictions between the answers of bounds, pull, query and get of queue 0."""
    low, high = store.bounds("t", 0)
    problems = []
    pulled = store.pull("t", 0, low, 10_000)
    if [m.offset for m in pulled.messages] != list(range(low, pulled.next_offset)):
        problems.append("pull left something out")
    if pulled.next_offset < high:
        problems.append(f"pull of {low} to {high} gave {pulled.next_offset}")
    if high:
        found = store.query("t", "k", limit=10_000)
        if len(found) < high:
            problems.append(f"query gave {len(found)} of {high}")
        if [m.offset for m in found] != list(range(len(found) - 1, -1, -1)):
            problems.append("query gave a wrong order, or one twice")
        if store.get("t", 0, high - 1).offset != high - 1:
            problems.append("get gave another offset")
    return problems


def test_reads_stay_right_while_another_thread_checkpoints_seals_and_puts(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, checkpoint_bytes=20_000, busy_timeout=60))
    store.create_topic("t", queues=2)
    stop = threading.Event()
    problems: list[str] = []

    def look() -> None:
        while not stop.is_set():
            problems.extend(wrong_with_reads(store))

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for i in range(60):
            store.put_batch([Message("t", bytes(100), queue=0, keys=["k"]) for _ in range(8)])
            if i % 3 == 0:
                store.checkpoint()
            if i % 20 == 19:
                store.seal()
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert problems == []


# --- failing fast ---


def test_a_put_fails_when_the_log_is_busy_for_longer_than_the_limit(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, busy_timeout=0.02))
    store.create_topic("t")
    store.put("t", b"a", queue=0)
    with inside.log(store).lock, pytest.raises(StoreBusy):
        store.put("t", b"b", queue=0)
    assert store.put("t", b"c", queue=0).offset == 1


class FullDisk(LocalFiles):
    """A disk as full as a test says."""

    share = 0.5

    def disk_used(self, path: Path) -> float:
        return self.share


def test_a_put_fails_above_the_write_watermark_until_there_is_room(opens: Opens) -> None:
    clock, files = VirtualClock(), FullDisk()
    store = opens(StoreConfig(segment_size=SEGMENT, clock=clock, files=files))
    store.create_topic("t")
    store.put("t", b"a", queue=0)
    files.share = 0.9
    clock.advance(2)
    for _ in range(3):
        with pytest.raises(DiskFull):
            store.put("t", b"b", queue=0)
    assert store.get("t", 0, 0).body == b"a"
    files.share = 0.89
    clock.advance(2)
    assert store.put("t", b"c", queue=0).offset == 1


CALLS: dict[str, Callable[[Store], object]] = {
    "put": lambda s: s.put("t", b"x"),
    "put_batch": lambda s: s.put_batch([Message("t", b"x")]),
    "put_batch of none": lambda s: s.put_batch([]),
    "create_topic": lambda s: s.create_topic("new"),
    "create_topics": lambda s: s.create_topics([TopicConfig(name="new")]),
    "alter_topic": lambda s: s.alter_topic("t", queues=9),
    "delete_topic": lambda s: s.delete_topic("t"),
    "create_group": lambda s: s.create_group("new"),
    "commit_offset": lambda s: s.commit_offset("g", "t", 0, 0),
    "flush": lambda s: s.flush(),
    "checkpoint": lambda s: s.checkpoint(),
    "seal": lambda s: s.seal(),
    "apply_retention": lambda s: s.apply_retention(),
}
"""Those that write."""

READS: dict[str, Callable[[Store], object]] = {
    "get": lambda s: s.get("t", 0, 0),
    "pull": lambda s: s.pull("t", 0, 0),
    "query": lambda s: s.query("t", "k"),
    "read_at": lambda s: s.read_at(0),
    "find": lambda s: s.find("id"),
    "offset_at": lambda s: s.offset_at("t", 0, 0),
    "bounds": lambda s: s.bounds("t", 0),
    "topics": lambda s: s.topics(),
    "topic": lambda s: s.topic("t"),
    "groups": lambda s: s.groups(),
    "group": lambda s: s.group("g"),
    "committed_offset": lambda s: s.committed_offset("g", "t", 0),
    "stats": lambda s: s.stats(),
    "verify": lambda s: s.verify(),
}
REST: dict[str, Callable[[Store], object]] = {
    "get of a topic never used": lambda s: s.get("unused", 0, 0),
    "pull of a topic never used": lambda s: s.pull("unused", 0, 0),
    "query of a topic never used": lambda s: s.query("unused", "k"),
    "bounds of a topic never used": lambda s: s.bounds("unused", 0),
    "offset_at of a topic never used": lambda s: s.offset_at("unused", 0, 0),
    "committed_offset of a topic never used": lambda s: s.committed_offset("g", "unused", 0),
    "get of a topic that is not there": lambda s: s.get("nowhere", 0, 0),
    "put to a topic that is not there": lambda s: s.put("nowhere", b""),
    "pull with a wrong limit": lambda s: s.pull("nowhere", 0, 0),
}


@pytest.fixture
def filled(opens: Opens) -> Store:
    store = opens()
    store.create_topics([TopicConfig(name="t"), TopicConfig(name="unused")])
    store.put("t", b"x", queue=0, keys=["k"], message_id="id")
    store.commit_offset("g", "t", 0, 1)
    store.close()
    return opens()


@pytest.mark.parametrize("name", [*CALLS, *READS, *REST])
@pytest.mark.parametrize("used", [False, True])
def test_every_call_says_that_the_store_is_closed(filled: Store, name: str, used: bool) -> None:
    if used:
        for read in READS.values():
            read(filled)
    filled.close()
    with pytest.raises(StoreClosed):
        (CALLS | READS | REST)[name](filled)


@pytest.mark.parametrize("name", CALLS)
def test_every_write_says_that_the_store_is_read_only(
    filled: Store, opens: Opens, name: str
) -> None:
    filled.close()
    store = opens(read_only=True)
    with pytest.raises(StoreReadOnly):
        CALLS[name](store)
    assert [t.name for t in store.topics()] == ["t", "unused"]


def test_a_read_only_store_reads_everything_and_changes_nothing(
    filled: Store, opens: Opens
) -> None:
    filled.close()
    before = {
        p: p.read_bytes() for p in filled.path.rglob("*") if p.is_file() and "LOG" not in p.name
    }
    store = opens(read_only=True)
    for name, read in READS.items():
        read(store)
        assert name
    assert store.find("id").body == b"x"
    store.close()
    with pytest.raises(StoreClosed):
        store.get("t", 0, 0)
    after = {
        p: p.read_bytes() for p in filled.path.rglob("*") if p.is_file() and "LOG" not in p.name
    }
    assert after == before


@pytest.mark.parametrize("name", [*CALLS])
def test_a_read_only_store_that_was_closed_says_so(filled: Store, opens: Opens, name: str) -> None:
    filled.close()
    store = opens(read_only=True)
    store.close()
    with pytest.raises(StoreClosed):
        CALLS[name](store)


def test_a_store_that_is_not_there_can_not_be_opened_read_only(opens: Opens) -> None:
    with pytest.raises(StoreNotFound):
        opens(SMALL, "nothing", read_only=True)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(StoreNotFound):
        kvstore.open(tmp_path / "f")


def test_a_folder_is_held_by_one_store_at_a_time(store: Store, opens: Opens) -> None:
    import os

    with pytest.raises(StoreLocked) as caught:
        opens()
    assert caught.value.pid == os.getpid()
    assert str(os.getpid()) in str(caught.value)
    assert store.put("t", b"x", queue=0).offset == 0
    store.close()
    assert opens().bounds("t", 0) == (0, 1)


def test_closing_twice_does_nothing_and_a_with_block_closes(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        assert repr(store).endswith("open>")
    store.close()
    assert repr(store).endswith("closed>")


@pytest.mark.parametrize("part", [Index, CommitLog])
def test_a_close_ends_threads_before_files_and_lets_the_folder_go_last(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, part: type[Index] | type[CommitLog]
) -> None:
    close, alive = part.close, []

    def look_first(closing: Any) -> None:
        alive.append([thread.is_alive for thread in inside.engine(store).threads])
        with pytest.raises(StoreLocked):
            kvstore.open(store.path)
        close(closing)

    monkeypatch.setattr(part, "close", look_first)
    store = opens()
    assert all(thread.is_alive for thread in inside.engine(store).threads)
    store.close()
    assert len(alive) == 1
    assert len(alive[0]) > 1
    assert not any(alive[0])


def test_a_segment_size_is_the_stores_own_whatever_is_asked_for(store: Store, opens: Opens) -> None:
    store.close()
    again = opens(StoreConfig(segment_size=1 << 20))
    assert again.config.segment_size == SEGMENT == again.stats().segment_size


class StruckLocks(LocalFiles):
    """An interrupt comes just after the folder's lock was taken."""

    def lock(self, path: Path) -> FolderLock:
        class Struck(LocalLock):
            def acquire(self) -> None:
                super().acquire()
                raise KeyboardInterrupt

        return Struck(path)


def _restore(path: Path, config: StoreConfig) -> None:
    found_store(path / "restored", Restored(None, 0, 0, 1, 1, (), (), ()), config)


@pytest.mark.parametrize("begin", [kvstore.open, kvstore.rebuild, _restore])
def test_an_interrupt_behind_the_taking_of_a_folders_lock_leaves_it_free(
    tmp_path: Path, begin: Callable[[Path, StoreConfig], object]
) -> None:
    with opened(tmp_path) as store:
        put(store, 0, 1)
    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path, settings(files=StruckLocks()))
    for folder in (tmp_path, tmp_path / "restored"):
        with opened(folder):
            pass
