"""A call takes as many operations beside 8 or 48 archives as beside 1.

RocksDB's operations and requests to the archives' place are counted, for the second call: the
archives that the first one opened are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Message, Store, TopicConfig
from kvstore.meta.topic import TopicInfo
from tests.support import inside, inside_tiering
from tests.support.clock import VirtualClock
from tests.support.costs import Costs
from tests.tiering.catalog.gate import gated
from tests.tiering.catalog.moving import config, filled, hand_over, put_segments, sealed, tiers
from tiering import Policy, Worker
from tiering.archive import archive_reader, indexes
from tiering.archive.archive_reader import FoundMessage
from tiering.executor.pool import Inline

SIZES = (1, 8, 48)
EACH = 4


def grow(store: Store, clock: VirtualClock, archives: int) -> None:
    """Puts and hands over segments until a store has so many archives."""
    while len(store.catalog().rows) < archives:
        put_segments(store, clock, 1, EACH)
        hand_over(store, [sealed(store)[0]])


def get_oldest(store: Store, _: int) -> None:
    store.get("orders", 0, 0 if store.bounds("orders", 0).min_offset == 0 else 1)


def pull_in_the_middle(store: Store, _: int) -> None:
    low, high = store.bounds("orders", 1)
    assert store.pull("orders", 1, (low + high) // 2, 1).messages


def query_oldest(store: Store, _: int) -> None:
    assert store.query("visits", "k-0", begin=0, end=1_700_000_000_500)


def query_nowhere(store: Store, turn: int) -> None:
    for n in range(10):
        assert store.query("orders", f"nowhere-{turn}-{n}") == []


def find_nowhere(store: Store, turn: int) -> None:
    for n in range(10):
        with pytest.raises(kvstore.MessageNotFound):
            store.find(f"nowhere-{turn}-{n}")


def offset_at_a_time(store: Store, _: int) -> None:
    store.offset_at("orders", 0, 1_700_000_001_000)


ASKED: dict[str, tuple[Callable[[Store, int], None], int]] = {
    "get the oldest": (get_oldest, 0),
    "pull in the middle": (pull_in_the_middle, 0),
    "query by a key and the oldest time": (query_oldest, 2),
    # A hundredth of what is asked passes a filter, and costs two requests.
    "ten queries for nothing": (query_nowhere, 24),
    "find ten ids that are nowhere": (find_nowhere, 24),
    "an offset by time": (offset_at_a_time, 12),
}
"""The call, and how many more operations it may take beside six times as many archives."""


def test_no_call_costs_more_beside_many_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(monkeypatch)
    clock = VirtualClock()
    found: dict[str, list[int]] = {name: [] for name in ASKED}
    filled(tmp_path / "a", clock, 0).close()
    for size in SIZES:
        with kvstore.open(tmp_path / "a", config(clock)) as store:
            inside.housekeeper(store).stop()
            grow(store, clock, size)
            gate = gated(store)
            for name, (ask, _) in ASKED.items():
                ask(store, 0)
                gate.asked.clear()
                with costs.counting() as counts:
                    ask(store, size)
                found[name].append(counts.total() + len(gate.asked))
    for name, (_, more) in ASKED.items():
        one, some, many = found[name]
        assert some <= one + more + 4, f"{name}: {found[name]}"
        assert many <= some + more, f"{name}: {found[name]}"


def test_opening_and_a_workers_look_cost_the_rows_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no request to an archive's place; nor does a key that is nowhere, but one for each
    archive when it is first asked for its filter.
    """
    costs = Costs(monkeypatch)
    clock = VirtualClock()
    policy = Policy(hot_for=86_400.0, warm="archive", watermarks=None, merge_bytes=None)
    found: dict[str, list[Counter[str]]] = {"open": [], "look": [], "first": [], "nowhere": []}
    filled(tmp_path / "a", clock, 0).close()
    for size in SIZES:
        with kvstore.open(tmp_path / "a", config(clock)) as store:
            while len(store.catalog().rows) < size:
                put_segments(store, clock, 1, EACH)
                for number in sealed(store):
                    hand_over(store, [number], lambda _: "warmever")
        with costs.counting() as opening:
            store = kvstore.open(tmp_path / "a", config(clock))
        with store:
            inside.housekeeper(store).stop()
            with Worker(store, policy, executor=Inline()) as worker:
                worker.run_once()
                with costs.counting() as looking:
                    assert worker.run_once().failed == {}
            gate = gated(store)
            for turn, counts in (("first", size), ("nowhere", 0)):
                with costs.counting() as asking:
                    for n in range(50):
                        assert store.query("orders", f"{turn}-{n}") == []
                assert len(gate.asked) == counts, "a look at a filter each"
                assert tiers(store).cache_stats().reads == 0
                found[turn].append(asking)
                gate.asked.clear()
        found["open"].append(opening)
        found["look"].append(looking)
    for name, counted in found.items():
        steps = [one.pop("next", 0) for one in counted]
        reads = [one.pop("read", 0) for one in counted]
        assert counted[0] == counted[1] == counted[2], f"{name}: {counted}"
        assert steps[2] <= steps[0] + 3 * (SIZES[2] - SIZES[0]), f"{name}: {steps}"
        assert reads[2] <= reads[0] + (SIZES[2] - SIZES[0] if name == "first" else 0), name


def test_a_reader_beside_a_writer_finds_each_message_in_a_few_steps_after_a_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read all locations of a queue once after each."""
    costs, clock = Costs(monkeypatch), VirtualClock()
    found: list[list[int]] = []
    with filled(tmp_path / "a", clock, 0) as store:
        for size in SIZES:
            grow(store, clock, size)
            put_segments(store, clock, 1, EACH)
            with kvstore.open(tmp_path / "a", config(clock), read_only=True) as reader:
                hand_over(store, [sealed(store)[0]])
                reader.get("orders", 1, reader.bounds("orders", 1).min_offset)
                steps = []
                for queue in (0, 1):
                    low, high = reader.bounds("orders", queue)
                    for offset in (low, (low + high) // 2, high - 1):
                        with costs.counting() as counts, suppress(kvstore.OffsetNotFound):
                            reader.get("orders", queue, offset)
                        steps.append(counts["seek"] + counts["next"])
                found.append(steps)
    assert max(found[0]) > 0
    for some in found[1:]:
        assert max(some) <= max(found[0]) + 4, found


def test_a_reader_beside_a_writer_reads_the_filters_of_new_archives_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all archives it read them again after each hand-over."""
    costs, clock = Costs(monkeypatch), VirtualClock()
    found: list[int] = []
    with filled(tmp_path / "a", clock, 0) as store:
        for size in SIZES:
            grow(store, clock, size)
            put_segments(store, clock, 2, EACH)
            with kvstore.open(tmp_path / "a", config(clock), read_only=True) as reader:
                hand_over(store, [sealed(store)[0]])
                assert reader.query("orders", "nowhere") == []
                hand_over(store, [sealed(store)[0]])
                with costs.counting() as counts:
                    assert reader.query("orders", "nowhere") == []
                found.append(counts["read"])
    assert found[0] == found[1] == found[2] > 0


def test_filters_answer_for_archives_that_there_is_no_room_to_keep_open(tmp_path: Path) -> None:
    """An archive that was let go of is not opened again for a key that it does not have."""
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 6, EACH) as store:
        for number in sealed(store):
            hand_over(store, [number])
    access = kvstore.ArchiveAccess(open_bytes=6_000)
    with kvstore.open(tmp_path / "a", config(clock, archives=access)) as store:
        gate = gated(store)
        store.query("orders", "nowhere")
        opened = sum(tier.opened for tier in store.stats().tiers)
        assert opened < 6
        assert gate.asked
        gate.asked.clear()
        for n in range(5):
            store.query("orders", f"nowhere-{n}")
        assert len(gate.asked) <= 4


def test_filters_take_no_more_than_their_room(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 4, EACH) as store:
        for number in sealed(store):
            hand_over(store, [number])
    for limit, kept in ((0, 0), (150, 1), (1_000_000, 4)):
        access = kvstore.ArchiveAccess(open_bytes=limit)
        with kvstore.open(tmp_path / "a", config(clock, archives=access)) as store:
            store.query("orders", "nowhere")
            filters = inside_tiering.filters_of(tiers(store))
            assert filters.memory_bytes <= limit
            assert len(filters) == kept
            assert len(store.query("orders", "all", limit=99)) > 4
            for number in list(tiers(store).numbers()):
                filters.forget(number)
            assert filters.memory_bytes == 0


def test_of_a_common_key_only_blocks_of_the_wanted_time_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message of the key that is newer was looked for, and read, for its time."""
    monkeypatch.setattr("tiering.catalog.tiers.FOUND_CACHED_MAX", 8)
    costs, clock = Costs(monkeypatch), VirtualClock()
    policy = Policy(hot_for=60.0, warm="archive", watermarks=None, block_bytes=4096)
    asked: list[int] = []
    for batches in (2, 20):
        path = tmp_path / str(batches)
        settings = kvstore.StoreConfig(segment_size=1 << 20, clock=clock)
        with kvstore.open(path, settings) as store:
            store.create_topic("orders", queues=1)
            begin = clock.now_ms()
            for _ in range(batches):
                store.put_batch([Message("orders", b"x" * 90, keys=("all",))] * 40)
                clock.advance(10)
            store.seal()
            clock.advance(3600)
            with Worker(store, policy, executor=Inline()) as worker:
                assert worker.run_once().failed == {}
            store.query("orders", "nowhere")
            with costs.counting() as counts:
                assert len(store.query("orders", "all", begin=begin, end=begin + 1)) == 40
            asked.append(counts["read"])
    assert asked[1] <= asked[0] + 2, asked


@pytest.mark.parametrize("is_within", [False, True])
def test_the_newest_messages_of_a_common_key_cost_what_the_limit_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_within: bool
) -> None:
    """All candidates of the archive were made, and looked for, first."""
    monkeypatch.setattr(indexes, "CHUNK", 64)
    places: Counter[str] = Counter()
    decode, costs, clock = indexes.decode_position_chunk, Costs(monkeypatch), VirtualClock()

    def counted(payload: bytes, count: int) -> indexes.PositionColumns:
        places["chunks"] += 1
        return decode(payload, count)

    class Counted(FoundMessage):
        def __new__(cls, *columns: int) -> FoundMessage:  # type: ignore[misc]
            places["found"] += 1
            return FoundMessage(*columns)

    monkeypatch.setattr(indexes, "decode_position_chunk", counted)
    monkeypatch.setattr(archive_reader, "FoundMessage", Counted)
    asked: list[tuple[int, ...]] = []
    for batches in (10, 40, 160):
        settings = kvstore.StoreConfig(segment_size=4 << 20, clock=clock)
        with kvstore.open(tmp_path / str(batches), settings) as store:
            store.create_topic("orders", queues=2)
            begin = clock.now_ms()
            for n in range(batches):
                store.put_batch([Message("orders", b"%d" % n, keys=("all",))] * 40)
            clock.advance(10)
            store.seal()
            hand_over(store, sealed(store))
            store.query("orders", "nowhere")
            places.clear()
            times = {"begin": begin, "end": clock.now_ms()} if is_within else {}
            with costs.counting() as counts:
                newest = store.query("orders", "all", limit=3, **times)
            asked.append((counts["read"], places["chunks"], places["found"]))
            every = store.query("orders", "all", limit=10_000, **times)
            assert len(every) == 40 * batches
            assert [m.position for m in every] == sorted((m.position for m in every), reverse=True)
            assert newest == every[:3]
    assert asked[0][1:] == (1, 3)
    for some in asked[1:]:
        assert some[0] <= asked[0][0] + 1, asked
        assert some[1:] == asked[0][1:], asked


def test_an_archive_that_goes_costs_the_locations_of_its_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All locations there are were looked through: for its unread messages, and for its queues."""
    costs = Costs(monkeypatch)

    def in_class(_: TopicInfo) -> str:
        return "warm1d"

    found: dict[str, list[Counter[str]]] = {"expire": [], "merge": []}
    for size in SIZES:
        clock = VirtualClock()
        policy = Policy(
            hot_for=60.0, warm_for=86_400.0, warm="archive", watermarks=None, clock_doubt=0.0
        )
        with filled(tmp_path / str(size), clock, 3, EACH) as store:
            rows = [
                row for number in sealed(store) for row in hand_over(store, [number], in_class).rows
            ]
            store.create_topics([TopicConfig(name=f"t-{n}", queues=2) for n in range(size)])
            clock.advance(10 * 86_400)
            for n in range(2 * size):
                store.put(f"t-{n // 2}", b"x", queue=n % 2)
            store.seal()
            hand_over(store, [sealed(store)[-1]], in_class)
            visits = {info.id for info in store.topics() if info.name == "visits"}
            with costs.counting() as counts:
                merged = [row.number for row in rows[:2]]
                queues = [(topic, queue) for topic in visits for queue in (0, 1)]
                store.handover.swap(merged, queues=queues, over=dict.fromkeys(merged, visits))
            found["merge"].append(counts)
            clock.advance(100)
            expire, spent = store.handover.expire_archive, Counter[str]()

            def counting(*asked: Any, expire: Any = expire, spent: Counter[str] = spent) -> None:
                with costs.counting() as counts:
                    expire(*asked)
                spent.update(counts)

            monkeypatch.setattr(store.handover, "expire_archive", counting)
            with Worker(store, policy, executor=Inline()) as worker:
                caplog.clear()
                assert len(worker.run_once().expired) == 3
                assert "no group had read" in caplog.text
            found["expire"].append(spent)
            assert store.bounds("visits", 0).min_offset == store.bounds("visits", 0).next_offset
    for name, counted in found.items():
        assert counted[0].total() > 0
        assert counted[0] == counted[1] == counted[2], f"{name}: {counted}"
