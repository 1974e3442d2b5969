"""Finding by key and by time: the real key counts; RocketMQ's table of offsets by time."""

from __future__ import annotations

import functools
from itertools import count, product

import pytest

from kvstore import CallerError, Message, Store, StoreConfig, StoredMessage, TopicConfig
from kvstore.read.reader import Reader
from kvstore.record.hashes import key_hash
from tests.support.clock import START_MS, VirtualClock
from tests.support.stores import SEGMENT, Opens

STATES = ["tail", "checkpointed", "mixed", "sealed", "reopened"]


def into(state: str, store: Store, opens: Opens) -> Store:
    """Bring what was put so far into a state."""
    if state in ("checkpointed", "mixed"):
        store.checkpoint()
    if state == "sealed":
        store.seal()
    if state == "reopened":
        store.close()
        return opens(store.config)
    return store


@pytest.mark.parametrize("state", STATES)
def test_a_query_finds_by_each_key_newest_first(store: Store, opens: Opens, state: str) -> None:
    store.create_topic("other")
    for i in range(20):
        store.put("t", f"{i}".encode(), queue=i % 4, keys=[f"n{i}", "all", f"m{i % 3}"])
        store.put("other", f"o{i}".encode(), queue=0, keys=["all", f"n{i}"])
    store = into(state, store, opens)
    expected = list(range(19, -1, -1))
    if state == "mixed":
        store.put("t", b"20", queue=0, keys=["all"])
        expected = [20, *expected]
    assert [m.body for m in store.query("t", "all")] == [str(i).encode() for i in expected]
    assert [m.body for m in store.query("t", "n7")] == [b"7"]
    assert [m.body for m in store.query("other", "n7")] == [b"o7"]
    assert [m.body for m in store.query("t", "m1")] == [
        str(i).encode() for i in (19, 16, 13, 10, 7, 4, 1)
    ]
    assert [m.body for m in store.query("t", "all", limit=3)] == [
        str(i).encode() for i in expected[:3]
    ]
    unique = store.get("t", 3, 1)
    assert store.query("t", unique.message_id) == [unique]
    for nothing in ("n", "ALL", "n99", "al", "all all", "é", "\ud800"):
        assert store.query("t", nothing) == []


def test_a_query_returns_64_by_itself(store: Store) -> None:
    store.put_batch([Message("t", b"", keys=["k"]) for _ in range(70)])
    assert len(store.query("t", "k")) == 64
    assert len(store.query("t", "k", limit=1000)) == 70


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(CallerError):
        store.query("t", "k", limit=limit)


def test_a_message_whose_keys_repeat_is_found_once(store: Store) -> None:
    store.put("t", b"x", queue=0, keys=["k", "k", "id", "k"], message_id="id")
    for _ in range(2):
        assert len(store.query("t", "k")) == len(store.query("t", "id")) == 1
        store.checkpoint()


@functools.cache
def colliding(topic: str) -> tuple[str, str]:
    """Two keys of one hash, by brute force: in one topic only 32 bits of the hash have to meet."""
    seen: dict[int, str] = {}
    for key in map(str, count()):
        other = seen.setdefault(key_hash(topic.encode(), key.encode()), key)
        if other != key:
            return other, key
    raise AssertionError


@pytest.mark.parametrize("state", STATES)
def test_keys_of_one_hash_are_told_apart(store: Store, opens: Opens, state: str) -> None:
    one, two = colliding("t")
    assert key_hash(b"t", one.encode()) == key_hash(b"t", two.encode())
    for i in range(300):
        store.put("t", str(i).encode(), queue=0, keys=[one if i % 2 else two])
    store.put("t", b"id", queue=0, message_id=one)
    store = into(state, store, opens)
    ones = [m.body for m in store.query("t", one, limit=500)]
    twos = [m.body for m in store.query("t", two, limit=500)]
    assert ones == [b"id", *[str(i).encode() for i in range(299, -1, -2)]]
    assert twos == [str(i).encode() for i in range(298, -1, -2)]
    assert store.find(one).body == b"id"


@pytest.mark.parametrize("state", STATES)
def test_a_time_range_includes_both_its_ends(opens: Opens, state: str) -> None:
    clock = VirtualClock()
    config = StoreConfig(segment_size=SEGMENT, clock=clock)
    store = opens(config)
    store.create_topic("t")
    for i in range(40):
        # 4 KB each, so that the range begins and ends in the middle of segments.
        store.put("t", bytes(4000), queue=0, keys=["k"])
        clock.advance(1)
        if i == 20 and state == "mixed":
            store.checkpoint()
    if state != "mixed":
        store = into(state, store, opens)
    ranges: list[int | None] = [None, -1, 0, 1, 15, 16, 17, 25, 39, 40]
    for first, last in product(ranges, ranges):
        if first is not None and last is not None and first > last:
            continue
        low = first if first is not None else -1
        high = last if last is not None else 99
        expected = [i for i in range(39, -1, -1) if low <= i <= high]
        found = store.query(
            "t",
            "k",
            begin=None if first is None else START_MS + first * 1000,
            end=None if last is None else START_MS + last * 1000,
        )
        assert [m.offset for m in found] == expected, (first, last)


def test_a_range_that_ends_before_it_begins_is_refused(store: Store) -> None:
    with pytest.raises(CallerError):
        store.query("t", "k", begin=5, end=4)
    assert store.query("t", "k", begin=5, end=5) == []


# --- offset by time ---


def timed(opens: Opens, times: list[int], *, checkpoint_at: int, body: int = 0) -> Store:
    """A store whose message i of queue 0 is stored at `times[i]`."""
    clock = VirtualClock(0)
    store = opens(StoreConfig(segment_size=SEGMENT, clock=clock))
    store.create_topic("t")
    for i, time in enumerate(times):
        clock.step((time - clock.now_ms()) / 1000)
        if i == checkpoint_at:
            store.checkpoint()
        store.put("t", bytes(body), queue=0)
        store.put("t", bytes(body), queue=1 + i % 3)
    return store


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("time", "lower", "upper"),
    [
        (20000, 1001, 1000),
        (1, 0, 0),
        (-5, 0, 0),
        (2001, 201, 200),
        (2000, 200, 200),
        (10000, 1000, 1000),
        (10001, 1001, 1000),
    ],
)
def test_rocketmqs_table_of_the_offset_at_a_time(
    opens: Opens, state: str, time: int, lower: int, upper: int
) -> None:
    """Store time = 10 x offset (RocksDBConsumeQueueTableTest); offset 0 has time 5."""
    times = [5, *[10 * i for i in range(1, 1001)]]
    store = into(state, timed(opens, times, checkpoint_at=400), opens)
    assert store.offset_at("t", 0, time) == lower
    assert store.offset_at("t", 0, time, upper=True) == upper


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("body", [0, 3000])
def test_in_a_run_of_equal_times_lower_is_its_first_and_upper_its_last(
    opens: Opens, state: str, body: int
) -> None:
    times = [100] * 5 + [200] * 40 + [201] + [300] * 3
    store = into(state, timed(opens, times, checkpoint_at=20, body=body), opens)
    for time in (99, 100, 101, 199, 200, 201, 202, 299, 300, 301):
        lower = next((i for i, t in enumerate(times) if t >= time), len(times))
        upper = max((i for i, t in enumerate(times) if t <= time), default=0)
        assert store.offset_at("t", 0, time) == lower, time
        assert store.offset_at("t", 0, time, upper=True) == upper, time


def test_the_offset_at_a_time_of_an_empty_queue_is_zero(store: Store) -> None:
    assert store.offset_at("t", 0, START_MS) == 0
    assert store.offset_at("t", 0, START_MS, upper=True) == 0


def test_store_times_never_fall_when_the_clock_is_set_back(opens: Opens) -> None:
    clock = VirtualClock()
    store = opens(StoreConfig(segment_size=SEGMENT, clock=clock))
    store.create_topic("t")
    store.put("t", b"", queue=0)
    clock.step(-3600)
    store.put("t", b"", queue=0)
    store.close()
    store = opens(StoreConfig(segment_size=SEGMENT, clock=clock))
    store.put("t", b"", queue=0)
    assert {store.get("t", 0, i).stored_at for i in range(3)} == {START_MS}
    assert store.offset_at("t", 0, START_MS) == 0


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_a_query_decodes_no_record_that_its_topic_or_its_time_rules_out(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    clock = VirtualClock()
    store = opens(StoreConfig(segment_size=SEGMENT, clock=clock))
    store.create_topics([TopicConfig(name="again", queues=1), TopicConfig(name="hot", queues=1)])
    begun = clock.now_ms()
    store.put("hot", b"first", keys=("k",))
    clock.advance(1)
    store.put_batch([Message(topic, b"", keys=("k",)) for topic in ("again", "hot") * count])
    clock.advance(1)
    store.put("hot", b"last", keys=("k",))
    store.delete_topic("again")
    store.create_topic("again", queues=1)
    store.seal()
    decoded = 0
    record = Reader.record

    def counted(reader: Reader, position: int) -> StoredMessage:
        nonlocal decoded
        decoded += 1
        return record(reader, position)

    monkeypatch.setattr(Reader, "record", counted)
    assert store.query("again", "k") == []
    assert [m.body for m in store.query("hot", "k", begin=clock.now_ms())] == [b"last"]
    assert [m.body for m in store.query("hot", "k", end=begun)] == [b"first"]
    assert decoded == 2
