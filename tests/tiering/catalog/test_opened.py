"""Open archives take bounded memory, and whatever the bound, readers get the same answers."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kvstore
from kvstore import ArchiveAccess, Store
from tests.support.clock import VirtualClock
from tests.tiering.archive.making import make, plain_queues
from tests.tiering.catalog.moving import answers, config, filled, hand_over, tiers
from tiering.archive.archive_reader import Archive
from tiering.catalog.archive_pool import OpenArchives

ARCHIVES = 10


class Tiered(NamedTuple):
    """A store of many archives, closed, and all that it says."""

    path: Path
    answers: dict[Any, Any]


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Tiered:
    path = tmp_path_factory.mktemp("tiered") / "store"
    with filled(path, VirtualClock(), ARCHIVES, 15) as store:
        before = answers(store)
        for number in range(ARCHIVES):
            hand_over(store, [number])
    return Tiered(path, before)


def opened(tiered: Tiered, **access: int) -> Store:
    settings = config(archives=ArchiveAccess(**access))  # type: ignore[arg-type]  # numbers alone
    return kvstore.open(tiered.path, settings)


def taken(store: Store) -> tuple[int, int]:
    """How many archives are open, and what they take."""
    (tier,) = store.stats().tiers
    return tier.opened, tier.memory_bytes


def through_all(store: Store) -> Iterator[tuple[int, int]]:
    """Read a message of each archive; gives what is taken after each."""
    for number in tiers(store).numbers():
        first, _ = tiers(store).span(number)
        store.read_at(first)
        yield taken(store)


def test_nothing_is_open_that_was_not_read(tiered: Tiered) -> None:
    with opened(tiered) as store:
        assert taken(store) == (0, 0)
        assert [count for count, _ in through_all(store)] == list(range(1, ARCHIVES + 1))


def test_with_room_for_none_one_is_open_and_the_answers_are_the_same(tiered: Tiered) -> None:
    with opened(tiered, open_bytes=0, cache_bytes=0) as store:
        found = answers(store)
        assert [asked for asked, answer in found.items() if answer != tiered.answers[asked]] == []
        assert found.keys() == tiered.answers.keys()
        assert taken(store)[0] == 1


def test_what_is_open_never_takes_more_than_the_bound(tiered: Tiered) -> None:
    with opened(tiered) as store:
        *_, (count, whole) = through_all(store)
    bound = whole * 2 // 5
    with opened(tiered, open_bytes=bound) as store:
        most = 0
        for _ in range(3):
            for count, size in through_all(store):
                assert size <= bound
                most = max(most, count)
        assert 1 < most < ARCHIVES


def test_the_one_read_longest_ago_goes_first(tiered: Tiered) -> None:
    with opened(tiered) as store:
        sizes = [size for _, size in through_all(store)]
    with opened(tiered, open_bytes=sizes[2] + sizes[0] // 2) as store:
        found, (a, b, c, d) = tiers(store), sorted(tiers(store).numbers())[:4]
        held = {}
        for number in (a, b, c):
            store.read_at(found.span(number)[0])
            held[number] = found.archive(number)
        assert found.archive(a) is held[a]
        store.read_at(found.span(d)[0])
        assert found.archive(a) is held[a]
        assert found.archive(b) is not held[b]


def test_an_archive_weighs_more_once_more_of_it_is_decoded(tiered: Tiered) -> None:
    with opened(tiered) as store:
        archive = tiers(store).archive(min(tiers(store).numbers()))
        before = taken(store)[1]
        assert archive.manifest.topics
        assert taken(store)[1] > before


def test_what_an_archive_says_that_it_takes_is_no_less_than_it_does() -> None:
    source = make(plain_queues(200, 2, 5, 100)).open()[1]
    archives = OpenArchives(lambda _: Archive.open(source), 1 << 40)

    def use(number: int) -> None:
        archive = archives.get(number)
        assert archive.locate(1000) is not None
        assert archive.read_block(0).count
        assert list(archive.find(0, 1)) == []
        assert len(archive.manifest.topics) == 200

    use(0)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 5):
            use(number)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    said = sum(archives.sizes()[number] for number in range(1, 5))
    assert after - before <= said < 3 * (after - before)


def test_a_reader_that_has_an_archive_in_hand_reads_on(tiered: Tiered) -> None:
    with opened(tiered, open_bytes=0) as store:
        found, (first, second) = tiers(store), sorted(tiers(store).numbers())[:2]
        archive = found.archive(first)
        found.archive(second)
        assert found.archive(first) is not archive
        assert [archive.read_block(n).count for n in range(archive.directory.blocks)]


def test_many_readers_at_once_get_the_same_answers_with_room_for_one(tiered: Tiered) -> None:
    with opened(tiered, open_bytes=0, cache_bytes=0) as store:
        queues = [("orders", 0), ("orders", 1), ("visits", 0), ("visits", 1)]

        def read(queue: tuple[str, int]) -> list[Any]:
            low, high = store.bounds(*queue)
            return [store.get(*queue, offset) for offset in range(low, high)]

        with ThreadPoolExecutor(4) as pool:
            for queue, found in zip(queues, pool.map(read, queues), strict=True):
                assert found == [tiered.answers[*queue, m.offset] for m in found]
        assert taken(store)[0] == 1


def test_an_archive_that_is_forgotten_while_it_is_opened_is_not_kept() -> None:
    source = make(plain_queues(1, 1, 1, 5)).open()[1]

    def opened_then_forgotten(number: int) -> Archive:
        archives.forget(number)
        return Archive.open(source)

    archives = OpenArchives(opened_then_forgotten, 1 << 40)
    first = archives.get(1)
    assert archives.at_hand(1) is None
    assert archives.sizes() == {}
    assert archives.get(1) is not first


def test_an_opening_that_failed_is_tried_again() -> None:
    source = make(plain_queues(1, 1, 1, 5)).open()[1]
    tries: list[int] = []

    def fails_once(number: int) -> Archive:
        tries.append(number)
        if len(tries) == 1:
            raise OSError("away")
        return Archive.open(source)

    archives = OpenArchives(fails_once, 1 << 40)
    with pytest.raises(OSError, match="away"):
        archives.get(1)
    assert archives.get(1) is archives.get(1)
    assert tries == [1, 1]
