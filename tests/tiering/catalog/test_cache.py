"""The block cache: one read for all who wait, bounded, not flushed by scans."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kvstore import StoreClosed
from kvstore.clock import SystemClock
from tests.support import inside_tiering
from tiering.catalog.cache import BlockCache


class Sized:
    """As much of a block as the cache asks for."""

    def __init__(self, size: int) -> None:
        self.memory_bytes = size


class Reads:
    """Reads blocks of 10 bytes, records each read, and can be held up."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, int]] = []
        self.go = threading.Event()
        self.go.set()
        self.under_way = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, archive: int, block: int) -> Sized:
        with self._lock:
            self.noted.append((archive, block))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        self.go.wait()
        with self._lock:
            self.under_way -= 1
        if block == 13:
            raise ValueError("no such block")
        return Sized(10)


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest.fixture
def cache(reads: Reads) -> Iterator[BlockCache]:
    made = BlockCache(reads, limit=100, readers=3)  # type: ignore[arg-type]  # blocks it needs no more of
    yield made
    reads.go.set()
    made.close()


def test_a_block_that_many_want_at_once_is_read_once(cache: BlockCache, reads: Reads) -> None:
    reads.go.clear()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get(1, 2))) for _ in range(8)]
    for thread in threads:
        thread.start()
    while cache.stats().waits < 7:
        pass
    reads.go.set()
    for thread in threads:
        thread.join()
    assert reads.noted == [(1, 2)]
    assert len({id(block) for block in found}) == 1


def test_no_more_reads_than_readers_are_under_way(cache: BlockCache, reads: Reads) -> None:
    threads = [threading.Thread(target=cache.get, args=(1, n)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reads.most <= 3


def test_what_it_keeps_is_bounded(cache: BlockCache) -> None:
    for n in range(50):
        cache.get(1, n + 20)
    assert cache.stats().bytes == 100
    assert cache.stats().blocks == 10


def test_a_scan_leaves_alone_what_is_come_back_for(cache: BlockCache, reads: Reads) -> None:
    for _ in range(2):
        for n in range(5):
            cache.get(1, n)
    for n in range(200):
        for _ in range(3):
            cache.get(2, n + 20, is_scan=True)
    reads.noted.clear()
    for n in range(5):
        cache.get(1, n)
    assert reads.noted == []


def test_the_block_just_read_stays_whatever_was_asked_for_again(
    cache: BlockCache, reads: Reads
) -> None:
    for n in range(20):
        cache.get(1, n if n != 13 else 20)
        cache.get(1, n if n != 13 else 20)
        assert cache.at_hand(1, n if n != 13 else 20) is not None
    inside_tiering.set_read(cache, lambda archive, block: Sized(95))
    cache.get(2, 0)
    assert cache.stats().bytes == 95, "all else went"
    reads.noted.clear()
    cache.get(2, 0)
    assert reads.noted == []


def test_what_is_let_go_of_makes_room_for_what_is_asked_for_again(
    cache: BlockCache, reads: Reads
) -> None:
    for turn in range(2):
        for n in range(8):
            cache.get(turn, n)
            cache.get(turn, n)
        cache.forget(0)
    reads.noted.clear()
    for n in range(20, 40):
        cache.get(2, n)
    for n in range(8):
        cache.get(1, n)
    assert reads.noted == [(2, n) for n in range(20, 40)], "the scan pushed out none of them"


def test_nothing_is_read_ahead_where_all_readers_are_busy(cache: BlockCache, reads: Reads) -> None:
    reads.go.clear()
    cache.ahead(1, 0, 9)
    assert cache.stats().ahead == 3
    cache.ahead(1, 0, 9)
    assert cache.stats().ahead == 3
    reads.go.set()


def test_a_read_that_failed_is_tried_again(cache: BlockCache, reads: Reads) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="no such block"):
            cache.get(1, 13)
    assert reads.noted == [(1, 13)] * 2


def test_blocks_read_ahead_are_there_when_they_are_asked_for(
    cache: BlockCache, reads: Reads
) -> None:
    cache.ahead(1, 3, 5)
    cache.get(1, 3)
    cache.get(1, 4)
    assert sorted(reads.noted) == [(1, 3), (1, 4)]
    assert cache.stats().ahead == 2


def test_what_is_forgotten_is_read_again(cache: BlockCache, reads: Reads) -> None:
    cache.get(1, 1)
    cache.get(1, 1)
    cache.get(2, 1)
    cache.forget(1)
    assert cache.stats().bytes == 10
    cache.get(1, 1)
    assert reads.noted == [(1, 1), (2, 1), (1, 1)]


def test_a_read_that_is_under_way_when_its_archive_is_forgotten_is_not_kept(
    cache: BlockCache, reads: Reads
) -> None:
    reads.go.clear()
    found: dict[str, object] = {}

    def ask(name: str) -> None:
        found[name] = cache.get(1, 1)

    waiting = threading.Thread(target=ask, args=("before",))
    waiting.start()
    while not reads.noted:
        pass
    cache.forget(1)
    anew = threading.Thread(target=ask, args=("after",))
    anew.start()
    while len(reads.noted) < 2:
        pass
    reads.go.set()
    waiting.join()
    anew.join()
    assert found["before"] is not found["after"], "who asks later does not get what was read"
    assert cache.get(1, 1) is found["after"]
    cache.forget(1)
    assert (cache.stats().blocks, cache.stats().bytes) == (0, 0)
    assert reads.noted == [(1, 1)] * 2


def test_what_comes_of_a_read_whose_archive_was_forgotten_goes_to_those_who_waited_alone(
    cache: BlockCache, reads: Reads
) -> None:
    """Nobody asks for it again, and still it is not kept: its key may have been destroyed."""
    reads.go.clear()
    waiting = threading.Thread(target=cache.get, args=(1, 1))
    waiting.start()
    while not reads.noted:
        pass
    cache.forget(1)
    reads.go.set()
    waiting.join()
    assert (cache.stats().reads, cache.stats().blocks, cache.stats().bytes) == (1, 0, 0)


def test_a_block_that_is_made_while_its_archive_is_forgotten_is_not_kept(reads: Reads) -> None:
    def made(archive: int, block: int) -> Sized:
        mine.forget(archive)
        return Sized(10)

    mine = BlockCache(
        reads,  # type: ignore[arg-type]  # as above
        limit=100,
        readers=1,
        at_once=made,  # type: ignore[arg-type]  # as above
    )
    assert mine.get(1, 1).memory_bytes == 10
    assert mine.stats().blocks == 0
    mine.close()


def test_a_block_that_is_made_while_it_is_read_is_kept_once(reads: Reads) -> None:
    there: dict[tuple[int, int], Sized] = {}
    cache = BlockCache(
        reads,  # type: ignore[arg-type]  # as above
        limit=100,
        readers=2,
        at_once=lambda archive, block: there.get((archive, block)),  # type: ignore[arg-type,return-value]  # as above
    )
    reads.go.clear()
    cache.ahead(1, 0, 1)
    there[1, 0] = Sized(10)
    cache.get(1, 0)
    cache.get(1, 0)
    reads.go.set()
    while not cache.stats().reads:
        pass
    assert (cache.stats().blocks, cache.stats().bytes) == (1, 10)
    for block in range(40):
        cache.get(2, block % 13)
        cache.get(2, block % 13)
    cache.close()


def test_who_waits_for_a_block_is_told_when_the_store_closes(reads: Reads) -> None:
    """Two reads have not begun by then, and never do: nobody waits for them for ever."""
    cache = BlockCache(reads, limit=100, readers=1)  # type: ignore[arg-type]  # as above
    reads.go.clear()
    told = []

    def ask(number: int) -> None:
        try:
            cache.get(1, number)
            told.append("had")
        except StoreClosed:
            told.append("closed")

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    while inside_tiering.reads_under_way(cache) < 3 or not reads.under_way:
        SystemClock().sleep(0.001)
    threads.append(threading.Thread(target=cache.close, daemon=True))
    threads[-1].start()
    while not inside_tiering.is_closing(cache):
        SystemClock().sleep(0.001)
    reads.go.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(told) == ["closed", "closed", "had"]
    with pytest.raises(StoreClosed):
        cache.get(1, 9)
    assert not inside_tiering.reads_under_way(cache)


def test_a_block_that_cannot_be_kept_is_an_error_to_who_waits_for_it(cache: BlockCache) -> None:
    class Unweighable:
        @property
        def memory_bytes(self) -> int:
            raise MemoryError

    inside_tiering.set_read(cache, lambda archive, block: Unweighable())
    for _ in range(2):
        with pytest.raises(MemoryError):
            cache.get(1, 1)
    assert not inside_tiering.reads_under_way(cache)
