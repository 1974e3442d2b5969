"""A refused message never comes back, whatever bytes it left behind the log's end."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvstore import FlushFailed, Message, Store, StoreError
from kvstore.log.commitlog import Piece
from kvstore.process.locks import Signal
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_found_by_key, assert_whole
from tests.support.files import WatchedFiles, every, none
from tests.support.stores import SEGMENT, body, killed, message, opened, put, settings

SIZE = 700
"""Bytes of a body: a batch of 32 is written by a system call, one message through the map."""
BATCH = 32
MODES = pytest.mark.parametrize("mode", ["mapped", "staged"])


def batch(first: int, count: int = BATCH) -> list[Message]:
    return [message(n, SIZE) for n in range(first, first + count)]


def assert_holds(store: Store, count: int) -> None:
    """The queue has the first `count` messages and nothing else, in every way of reading."""
    found = assert_whole(store).get(("t", 0), [])
    assert [m.body for m in found] == [body(n, SIZE) for n in range(count)]
    assert_found_by_key(store, found[-2:])
    assert len(store.query("t", "all", limit=1000)) == count


def images(store: Store, files: WatchedFiles, folder: Path) -> list[Path]:
    """The folder as a kill leaves it, and as a power cut does that loses all it may, or nothing."""
    return [
        killed(store, folder / "killed"),
        files.power_cut(store.path, folder / "lost", none),
        files.power_cut(store.path, folder / "kept", every),
    ]


@pytest.mark.parametrize("visibility", ["written", "flushed"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_refused_batch_never_comes_back_after_a_smaller_put_and_a_crash(
    tmp_path: Path, flush: str, visibility: str
) -> None:
    """The put ends where the second of the refused records begins."""
    files = WatchedFiles()
    config = settings(files=files, flush=flush, visibility=visibility, clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 10, SIZE)
        files.fail("write", half=True)
        with pytest.raises(StoreError, match="nothing was put"):
            store.put_batch(batch(10))
        put(store, 10, 1, SIZE)
        store.flush()
        assert_holds(store, 11)
        left = images(store, files, tmp_path)
    for path in (*left, tmp_path / "a"):
        with opened(path) as store:
            assert_holds(store, 11)


def test_a_refused_batch_is_not_there_if_the_power_goes_before_the_next_put(tmp_path: Path) -> None:
    """The half that was written may have reached the disk by itself: so do the zeros over it."""
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        put(store, 0, 10, SIZE)
        store.flush()
        files.fail("write", half=True)
        with pytest.raises(StoreError, match="nothing was put"):
            store.put_batch(batch(10))
        assert files.dirty() == []
        left = images(store, files, tmp_path)
    for path in left:
        with opened(path) as store:
            assert_holds(store, 10)


def test_a_store_whose_disk_takes_no_zeros_either_is_read_only_from_then_on(tmp_path: Path) -> None:
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        put(store, 0, 10, SIZE)
        files.fail("write", half=True)
        files.fail("sync")
        for _ in range(2):
            with pytest.raises(FlushFailed):
                store.put_batch(batch(10))
        left = killed(store, tmp_path / "b")
    with opened(left) as store:
        assert_holds(store, 10)


FAULTS = [
    *((mode, kind, nth) for mode in ("mapped", "staged") for kind in ("create", "map", "reserve")
      for nth in (1, 2)),
    *(("mapped", "write", nth) for nth in (1, 2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "kind", "nth"), FAULTS)
def test_a_batch_over_a_segments_end_that_fails_puts_none_of_its_messages(
    tmp_path: Path, mode: str, kind: str, nth: int
) -> None:
    """It would begin in the first segment and end in the third."""
    files = WatchedFiles()
    config = settings(files=files, write_mode=mode, clock=VirtualClock())
    count = 2 * SEGMENT // (SIZE + 100)
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 10, SIZE)
        files.fail(kind, nth=nth, error=errno.EMFILE, half=kind == "write")
        end = store.stats().end_position
        with pytest.raises(StoreError):
            store.put_batch(batch(10, count))
        assert files.failed == 1
        assert store.stats().end_position == end
        assert store.stats().tail_entries == 10
        assert_holds(store, 10)
        files.mend()
        put(store, 10, 1, SIZE)
        left = [killed(store, tmp_path / "b")] if mode == "mapped" else []
        store.put_batch(batch(11, count))
        assert_holds(store, 11 + count)
    for path, wanted in ((tmp_path / "a", 11 + count), *((path, 11) for path in left)):
        with opened(path) as store:
            assert_holds(store, wanted)


@MODES
@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_put_that_is_interrupted_at_a_segments_end_is_there_whole_or_not_at_all(
    tmp_path: Path, fault: type[BaseException], nth: int, mode: str
) -> None:
    files = WatchedFiles()
    config = settings(files=files, write_mode=mode, clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 70, SIZE)
        files.before = interrupting(fault, nth)
        with pytest.raises(fault):
            store.put_batch(batch(70, 100))
        files.before = lambda _: None
        assert_holds(store, 70)
        put(store, 70, 1, SIZE)
        assert_holds(store, 71)
    with opened(tmp_path / "a") as store:
        assert_holds(store, 71)


def interrupting(fault: type[BaseException], nth: int) -> Callable[[object], None]:
    """Raises at the `nth` effect of the thread that puts."""
    left = [nth]

    def happen(_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            left[0] -= 1
            if not left[0]:
                raise fault

    return happen


class Hasty(bytes):
    """Bytes that are interrupted when they are asked for their size the `at`th time."""

    asked, at = 0, 0

    def __len__(self) -> int:
        self.asked += 1
        if self.asked == self.at:
            raise KeyboardInterrupt
        return super().__len__()


@pytest.mark.parametrize("at", [2, 3])
def test_what_was_half_put_into_the_write_buffer_is_taken_out_of_it(
    tmp_path: Path, at: int
) -> None:
    config = settings(write_mode="staged", clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        put(store, 0, 10, SIZE)
        log = inside.log(store)
        before = inside.buffered_bytes(store)
        data = Hasty(b"x" * 5000)
        data.at = at
        with log.lock, pytest.raises(KeyboardInterrupt):
            log.append([(log.end, data)], 1)
        assert inside.buffered_bytes(store) == before
        put(store, 10, 1, SIZE)
        assert_holds(store, 11)
    with opened(tmp_path / "a") as store:
        assert_holds(store, 11)


class Interrupting(Signal):
    """Interrupts the thread that sets it, as Ctrl-C may at that very moment."""

    def set(self) -> None:
        raise KeyboardInterrupt


def until_interrupted(store: Store, held: int, count: int) -> int:
    """Put batches until one is interrupted; how many messages were put with it."""
    for first in range(held, held + 10 * count, count):
        try:
            store.put_batch(batch(first, count))
        except KeyboardInterrupt:
            return first + count
    raise AssertionError("nothing was interrupted")


@MODES
@pytest.mark.parametrize("count", [1, 100])
def test_a_put_that_is_interrupted_once_its_messages_are_in_the_log_is_there_whole(
    tmp_path: Path, count: int, mode: str
) -> None:
    """The middle of a segment is where a put wakes the housekeeper, behind its write."""
    with opened(tmp_path / "a", settings(write_mode=mode, clock=VirtualClock())) as store:
        held = 0
        while store.stats().end_position + SIZE + 200 < SEGMENT // 2:
            put(store, held, 1, SIZE)
            held += 1
        wake, inside.log(store).prepare_wanted = inside.log(store).prepare_wanted, Interrupting()
        held = until_interrupted(store, held, count)
        inside.log(store).prepare_wanted = wake
        assert_holds(store, held)
        put(store, held, 1, SIZE)
        assert_holds(store, held + 1)
    with opened(tmp_path / "a") as store:
        assert_holds(store, held + 1)


@MODES
@pytest.mark.parametrize("count", [1, 100])
def test_a_put_that_is_interrupted_as_the_log_has_taken_its_messages_is_there_whole(
    tmp_path: Path, count: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the put still holds the log's lock."""
    with opened(tmp_path / "a", settings(write_mode=mode, clock=VirtualClock())) as store:
        put(store, 0, 10, SIZE)
        log = inside.log(store)
        append = log.append

        def struck(pieces: Sequence[Piece], records: int) -> None:
            append(pieces, records)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(log, "append", struck)
            with pytest.raises(KeyboardInterrupt):
                store.put_batch(batch(10, count))
        assert_holds(store, 10 + count)
        put(store, 10 + count, 1, SIZE)
        assert_holds(store, 11 + count)
    with opened(tmp_path / "a") as store:
        assert_holds(store, 11 + count)


@MODES
@pytest.mark.parametrize("kind", ["map", "reserve", "create"])
def test_a_single_put_that_can_not_go_on_in_the_next_segment_leaves_this_one_open(
    tmp_path: Path, kind: str, mode: str
) -> None:
    files = WatchedFiles()
    config = settings(files=files, write_mode=mode, clock=VirtualClock())
    with opened(tmp_path / "a", config) as store:
        files.fail(kind, error=errno.EMFILE, times=1 << 30, path=f"{SEGMENT:020d}")
        count = 0
        while store.stats().end_position < SEGMENT - SIZE - 200:
            put(store, count, 1, SIZE)
            count += 1
        end = store.stats().end_position
        for _ in range(2):
            with pytest.raises(StoreError):
                put(store, count, 1, SIZE)
        assert store.stats().end_position == end < SEGMENT
        put(store, count, 1, 10)  # it fits
        assert store.get("t", 0, count).body == body(count, 10)
        files.mend()
        assert put(store, count + 1, 1, SIZE)[0].position == SEGMENT
        assert [m.offset for m in assert_whole(store)[("t", 0)]] == list(range(count + 2))
