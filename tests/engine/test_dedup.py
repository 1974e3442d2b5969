"""A put that repeats a dedup id within its topic's window puts nothing and has the first result."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore import (
    CallerError,
    Message,
    MessageIllegal,
    PutResult,
    Retention,
    Store,
    StoreConfig,
    TopicConfig,
)
from kvstore.engine import repeats
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole
from tests.support.costs import Costs
from tests.support.files import WatchedFiles
from tests.support.stores import SEGMENT, Opens, killed, settings

WINDOW = 120.0


def quiet(clock: VirtualClock, **changed: Any) -> StoreConfig:
    """Settings with which nothing happens by itself."""
    changed.setdefault("checkpoint_interval", 1e9)
    changed.setdefault("retention_interval", 1e9)
    return settings(clock=clock, **changed)


def place(result: PutResult) -> tuple[object, ...]:
    """The fields of a result, but for `duplicate`."""
    return tuple(getattr(result, name) for name in result.__match_args__[:-1])


def put(store: Store, dedup_id: str | None, topic: str = "t", body: bytes = b"x") -> PutResult:
    return store.put(topic, body, dedup_id=dedup_id)


def assert_repeats(store: Store, first: PutResult, dedup_id: str, topic: str = "t") -> None:
    """Puts the id again: the result is the first one's, and no message came."""
    before = store.stats().end_position
    again = put(store, dedup_id, topic, b"something else")
    assert (again.duplicate, first.duplicate) == (True, False)
    assert place(again) == place(first)
    assert store.stats().end_position == before


@pytest.fixture
def windowed(opens: Opens, clock: VirtualClock) -> Store:
    """A store with topic "t", of a window, with a clock that stands."""
    store = opens(quiet(clock))
    store.create_topic("t", queues=4, dedup_window=WINDOW)
    return store


# --- what a repeat is ---


def test_a_repeat_within_the_window_has_the_first_result_and_puts_nothing(
    windowed: Store, clock: VirtualClock
) -> None:
    first = put(windowed, "a")
    for seconds in (0, 60, 60):
        clock.advance(seconds)
        assert_repeats(windowed, first, "a")
    clock.advance(0.001)
    later = put(windowed, "a")
    assert not later.duplicate
    assert later.position > first.position
    assert_repeats(windowed, later, "a")


def test_a_repeat_does_not_make_the_window_longer(windowed: Store, clock: VirtualClock) -> None:
    put(windowed, "a")
    clock.advance(100)
    assert put(windowed, "a").duplicate
    clock.advance(21)
    assert not put(windowed, "a").duplicate


def test_another_id_another_topic_and_no_id_are_no_repeats(windowed: Store) -> None:
    windowed.create_topic("u", dedup_window=1)
    put(windowed, "a")
    assert not put(windowed, "b").duplicate
    assert not put(windowed, "a", "u").duplicate
    assert not put(windowed, None).duplicate
    assert not windowed.put("t", b"x", keys=["a", "__DEDUP"], message_id="__DEDUP").duplicate


def test_a_clock_that_is_set_back_ends_no_window(windowed: Store, clock: VirtualClock) -> None:
    first = put(windowed, "a")
    clock.step(-3600)
    assert_repeats(windowed, first, "a")
    later = put(windowed, "b")
    assert_repeats(windowed, later, "b")


def test_repeats_within_a_batch_count_and_results_come_in_order(windowed: Store) -> None:
    stored = put(windowed, "old")
    ids = ["a", None, "b", "a", "old", "b", "c", None, "a"]
    batch = [Message("t", b"%d" % n, queue=0, dedup_id=one) for n, one in enumerate(ids)]
    results = windowed.put_batch(batch)
    assert [r.duplicate for r in results] == [n in (3, 4, 5, 8) for n in range(9)]
    assert place(results[3]) == place(results[8]) == place(results[0])
    assert place(results[5]) == place(results[2])
    assert place(results[4]) == place(stored)
    bodies = [m.body for m in windowed.pull("t", 0, 0).messages if m.body != b"x"]
    assert bodies == [b"0", b"1", b"2", b"6", b"7"]
    for n in (0, 1, 2, 6, 7):
        assert windowed.read_at(results[n].position).body == b"%d" % n
        assert windowed.find(results[n].message_id).position == results[n].position
    assert assert_whole(windowed)


def test_a_batch_of_repeats_alone_puts_nothing(windowed: Store) -> None:
    first = windowed.put_batch([Message("t", b"", dedup_id=str(n)) for n in range(100)])
    end = windowed.stats().end_position
    again = windowed.put_batch([Message("t", b"", dedup_id=str(n)) for n in range(100)])
    assert [place(r) for r in again] == [place(r) for r in first]
    assert all(r.duplicate for r in again)
    assert windowed.stats().end_position == end


def test_a_result_says_whether_it_is_a_duplicate_in_its_text_when_compared_and_pickled(
    windowed: Store,
) -> None:
    first, again = put(windowed, "a"), put(windowed, "a")
    assert first != again
    assert repr(again).endswith(", duplicate=True)")
    for result in (first, again):
        assert pickle.loads(pickle.dumps(result)) == result
    message = Message("t", b"x", properties={}, dedup_id="a")
    assert pickle.loads(pickle.dumps(message)) == message
    assert "dedup_id='a'" in repr(message)


def test_an_id_is_a_property_of_the_system_and_no_key(windowed: Store) -> None:
    result = put(windowed, "a b")
    message = windowed.read_at(result.position)
    assert message.properties["__DEDUP"] == "a b"
    assert message.user_properties == {}
    assert windowed.query("t", "a b") == []
    with pytest.raises(MessageIllegal, match="'__DEDUP' is reserved; use dedup_id="):
        windowed.put("t", b"", properties={"__DEDUP": "a"})


# --- what is refused ---


@pytest.mark.parametrize(
    ("dedup_id", "says"),
    [
        ("", "dedup_id is ''; it must be a text of at least one character"),
        (5, "dedup_id is 5; it must be a text"),
        (b"a", "it must be a text"),
        ("a\x01b", "must not contain U\\+0000 to U\\+0002"),
        ("\ud800", "can't be encoded as UTF-8"),
        ("é" * 128, "of 256 bytes as UTF-8; the limit is 255: give a hash"),
    ],
)
def test_an_illegal_id_refuses_its_batch(windowed: Store, dedup_id: Any, says: str) -> None:
    with pytest.raises(MessageIllegal, match=says):
        windowed.put("t", b"", dedup_id=dedup_id)
    with pytest.raises(ValueError, match=f"message 1 of 2: .*{says}"):
        windowed.put_batch([Message("t", b"", dedup_id="a"), Message("t", b"", dedup_id=dedup_id)])
    assert windowed.stats().end_position == 0
    assert not put(windowed, "a").duplicate, "the refused batch left no id"


@pytest.mark.parametrize("delay", [{"delay": 5}, {"delay": 0}, {"delay_level": 1}])
def test_a_delayed_message_has_no_dedup_id(windowed: Store, delay: dict[str, Any]) -> None:
    with pytest.raises(MessageIllegal, match="a delayed message has no dedup id"):
        windowed.put("t", b"", dedup_id="a", **delay)
    result = windowed.put_batch([Message("t", b"", **delay), Message("t", b"", dedup_id="a")])[1]
    assert_repeats(windowed, result, "a")


def test_the_longest_id_is_one(windowed: Store) -> None:
    assert_repeats(windowed, put(windowed, "é" * 127 + "a"), "é" * 127 + "a")


def test_a_topic_without_a_window_refuses_ids_and_says_how_to_set_one(opens: Opens) -> None:
    store = opens(settings(auto_create_topics=True))
    store.create_topic("t")
    for topic in ("t", "made-by-itself"):
        says = r"takes no dedup ids.*set one: alter_topic\(..., dedup_window=120.0\)"
        with pytest.raises(MessageIllegal, match=says):
            put(store, "a", topic)
    assert [info.name for info in store.topics()] == ["t"]
    store.alter_topic("t", dedup_window=5)
    assert_repeats(store, put(store, "a"), "a")
    store.alter_topic("t", dedup_window=None)
    with pytest.raises(MessageIllegal, match="takes no dedup ids"):
        put(store, "a")


@pytest.mark.parametrize("window", [0, -1, float("nan"), float("inf"), "120", True, 1e12])
def test_an_illegal_window_is_refused(windowed: Store, window: Any) -> None:
    with pytest.raises(CallerError, match=r"dedup_window is .* a number of seconds above 0"):
        windowed.create_topic("u", dedup_window=window)
    with pytest.raises(CallerError, match="dedup_window is"):
        windowed.create_topics([TopicConfig(name="u", dedup_window=window)])
    with pytest.raises(CallerError, match="dedup_window is"):
        windowed.alter_topic("t", dedup_window=window)
    assert windowed.topic("t").dedup_window == WINDOW


def _rows(ids: list[str | None], **more: list[Any]) -> Any:
    """Rows of a record batch; the body of each is its number."""
    bodies = [b"%d" % n for n in range(len(ids))]
    return pa.record_batch({"body": bodies, "dedup_id": pa.array(ids, pa.string()), **more})


def test_columns_say_which_rows_are_repeats_and_put_the_others(windowed: Store) -> None:
    stored = put(windowed, "old")
    ids = ["a", None, "b", "a", "old", "b", "c", None, "a"]
    done = windowed.put_columns("t", _rows(ids, queue=[0] * 9))
    assert (done.count, len(done), done.duplicates) == (9, 9, 4)
    places = pa.record_batch(done.columns).to_pylist()
    assert [p["duplicate"] for p in places] == [n in (3, 4, 5, 8) for n in range(9)]
    results = done.results()
    assert [{name: getattr(r, name) for name in places[0]} for r in results] == places
    assert place(results[3]) == place(results[8]) == place(results[0])
    assert place(results[4]) == place(stored)
    assert (done.first_position, done.last_position) == (results[0].position, results[7].position)
    assert done.size == sum(r.size for r in results if not r.duplicate)
    bodies = [m.body for m in windowed.pull("t", 0, 0).messages if m.body != b"x"]
    assert bodies == [b"0", b"1", b"2", b"6", b"7"]
    for n in (0, 1, 2, 6, 7):
        assert windowed.read_at(results[n].position).body == b"%d" % n
        assert windowed.find(results[n].message_id).position == results[n].position
    assert assert_whole(windowed)


def test_columns_of_repeats_alone_put_nothing(windowed: Store, clock: VirtualClock) -> None:
    first = windowed.put_columns("t", _rows([str(n) for n in range(100)]))
    assert not any(p["duplicate"] for p in pa.record_batch(first.columns).to_pylist())
    end = windowed.stats().end_position
    again = windowed.put_columns("t", _rows([str(n) for n in range(100)]))
    assert (again.duplicates, again.size, again.first_position, again.last_position) == (
        100, 0, None, None,
    )  # fmt: skip
    assert [place(r) for r in again.results()] == [place(r) for r in first.results()]
    assert windowed.stats().end_position == end
    assert put(windowed, "5").duplicate, "a put of a message repeats a row"
    clock.advance(WINDOW + 1)
    assert windowed.put_columns("t", _rows(["1", "1"])).duplicates == 1


@pytest.mark.parametrize(
    ("ids", "more", "says"),
    [
        (["a", ""], {}, "row 1 of 2: dedup_id is ''"),
        (["a", "é" * 128], {}, "row 1 of 2: .*the limit is 255"),
        (["a", "b\x01"], {}, "row 1 of 2: .*U\\+0000 to U\\+0002"),
        ([None, "b"], {"deliver_at": [None, 1_800_000_000_000]}, "row 1 of 2: .*is delayed"),
    ],
)
def test_a_row_whose_id_is_illegal_refuses_all(
    windowed: Store, ids: list[str | None], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(MessageIllegal, match=says):
        windowed.put_columns("t", _rows(ids, **more))
    assert windowed.stats().end_position == 0
    assert not put(windowed, "a").duplicate, "the refused rows left no id"


def test_rows_of_a_topic_without_a_window_have_no_ids(store: Store) -> None:
    with pytest.raises(MessageIllegal, match=r"row 1 of 2: .*takes no dedup ids"):
        store.put_columns("t", _rows([None, "a"]))
    assert store.put_columns("t", _rows([None, None])).duplicates == 0


def test_a_put_that_failed_leaves_no_id(opens: Opens, clock: VirtualClock) -> None:
    files = WatchedFiles()
    store = opens(quiet(clock, files=files))
    store.create_topic("t", dedup_window=WINDOW)
    put(store, None)
    files.fail("write")
    with pytest.raises(kvstore.StoreError):
        store.put("t", bytes(20_000), dedup_id="a")
    files.mend()
    result = store.put("t", bytes(20_000), dedup_id="a")
    assert not result.duplicate
    assert_repeats(store, result, "a")


# --- threads, and waiting for the disk ---


def test_of_threads_that_put_one_id_one_puts_a_message(opens: Opens) -> None:
    store = opens(settings(busy_timeout=60.0))
    store.create_topic("t", dedup_window=WINDOW)
    found: list[list[PutResult]] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        found.append([store.put("t", b"%d" % number, dedup_id=f"id-{n}") for n in range(200)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in zip(*found, strict=True):
        assert len({place(r) for r in results}) == 1
        assert sum(not r.duplicate for r in results) == 1
    assert sum(len(messages) for messages in assert_whole(store).values()) == 200


def test_a_repeat_waits_until_the_first_message_is_on_the_disk(opens: Opens) -> None:
    store = opens(settings(flush="sync"))
    store.create_topic("t", dedup_window=WINDOW)
    first = put(store, "a")
    again = put(store, "a")
    assert first.status == again.status == "flushed"
    log = inside.log(store)
    # As it is while the first put still waits.
    log.durable = first.position
    again = put(store, "a")
    assert again.duplicate
    assert log.durable >= first.position + first.size


def test_a_repeat_is_known_before_readers_may_see_the_first_message(opens: Opens) -> None:
    store = opens(settings(visibility="flushed", flush_interval=1000.0))
    store.create_topic("t", queues=1, dedup_window=WINDOW)
    first = put(store, "a")
    assert store.pull("t", 0, 0).messages == []
    assert_repeats(store, first, "a")


def test_two_puts_that_both_look_before_either_appends_put_one_message(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """Ids that may be older than the opening are looked for in the index, without a lock."""
    with closing(opens(quiet(clock))) as store:
        store.create_topic("t", queues=1, dedup_window=WINDOW)
        put(store, "older")
    store = opens(quiet(clock))
    finder, both = inside.finder(store), threading.Barrier(2)
    first_put, looks = finder.first_put, count()

    def look(*args: Any) -> Any:
        found = first_put(*args)
        if next(looks) < 2:
            both.wait(10)
        return found

    monkeypatch.setattr(finder, "first_put", look)
    results: list[list[PutResult]] = [[], []]

    def write(number: int) -> None:
        ids = [f"own-{number}", "a", "b", "a"]
        results[number] = store.put_batch([Message("t", b"", dedup_id=one) for one in ids])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = sorted(results, key=lambda found: found[0].position)
    assert [r.duplicate for r in first] == [False, False, False, True]
    assert [r.duplicate for r in second] == [False, True, True, True]
    assert [r.position for r in second[1:]] == [r.position for r in first[1:]]
    assert first[3].position == first[1].position
    assert store.bounds("t", 0) == (0, 5)


def test_a_record_that_took_the_place_of_a_failed_put_is_found(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """A put looks where an id's failed put would be, and meanwhile another put comes there."""
    store = opens(quiet(clock))
    store.create_topic("t", queues=1, dedup_window=WINDOW)
    log, finder = inside.log(store), inside.finder(store)
    with monkeypatch.context() as broken:
        broken.setattr(log, "append", _fails)
        with pytest.raises(OSError, match="no append"):
            put(store, "a")
    first_put, others = finder.first_put, list[PutResult]()

    def look(*args: Any) -> Any:
        found = first_put(*args)
        monkeypatch.setattr(finder, "first_put", first_put)
        others.append(put(store, "a"))
        return found

    monkeypatch.setattr(finder, "first_put", look)
    again = put(store, "a")
    assert again.duplicate
    assert (again.position, others[0].duplicate) == (others[0].position, False)
    assert store.bounds("t", 0) == (0, 1)


def _fails(*args: Any) -> None:
    raise OSError("no append")


# --- what is remembered ---


def _closed(opens: Opens, store: Store, tmp_path: Path, clock: VirtualClock) -> Store:
    store.close()
    return opens(quiet(clock))


def _killed(opens: Opens, store: Store, tmp_path: Path, clock: VirtualClock) -> Store:
    killed(store, tmp_path / "killed")
    return opens(quiet(clock), name="killed")


def _rebuilt(opens: Opens, store: Store, tmp_path: Path, clock: VirtualClock) -> Store:
    store.close()
    kvstore.rebuild(tmp_path / "store", quiet(clock))
    return opens(quiet(clock))


def _made_anew(opens: Opens, store: Store, tmp_path: Path, clock: VirtualClock) -> Store:
    """With an index of which only the rows remain that the log can't tell."""
    store.checkpoint()
    store.seal()
    return _rebuilt(opens, store, tmp_path, clock)


AGAIN = {"closed": _closed, "killed": _killed, "rebuilt": _rebuilt, "made anew": _made_anew}


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("key_index", ["all", "unique", "off"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_ids_are_remembered_when_the_store_is_opened_again(
    opens: Opens, clock: VirtualClock, tmp_path: Path,
    again: Callable[..., Store], key_index: Any, is_checkpointed: bool,
) -> None:  # fmt: skip
    store = opens(quiet(clock))
    store.create_topic("t", queues=4, dedup_window=WINDOW, key_index=key_index)
    early = put(store, "early")
    clock.advance(60)
    if is_checkpointed:
        store.checkpoint()
    late = put(store, "late")
    store = again(opens, store, tmp_path, clock)
    assert_repeats(store, early, "early")
    assert_repeats(store, late, "late")
    assert not put(store, "new").duplicate
    clock.advance(61)
    assert not put(store, "early").duplicate
    assert_repeats(store, late, "late")
    clock.advance(60)
    assert not put(store, "late").duplicate
    assert_whole(store)


def test_a_longer_window_holds_for_ids_that_were_put_before(
    windowed: Store, clock: VirtualClock
) -> None:
    windowed.alter_topic("t", dedup_window=1)
    first = put(windowed, "a")
    for n in range(10):
        clock.advance(100)
        put(windowed, str(n))
    windowed.alter_topic("t", dedup_window=1001)
    assert_repeats(windowed, first, "a")
    windowed.alter_topic("t", dedup_window=999)
    assert not put(windowed, "a").duplicate


def test_ids_that_memory_has_no_room_for_are_remembered(
    opens: Opens, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "IDS_MAX", 10)
    store = opens(quiet(clock))
    store.create_topic("t", dedup_window=WINDOW)
    firsts = {}
    for n in range(100):
        clock.advance(1)
        firsts[n] = put(store, str(n))
    assert len(inside.repeats(store).ids) <= 20
    for n in range(100):
        assert_repeats(store, firsts[n], str(n))
    clock.advance(60)
    for n in range(39):
        assert not put(store, str(n)).duplicate
    assert_repeats(store, firsts[39], "39")


def test_memory_has_the_ids_of_two_windows_at_most(windowed: Store, clock: VirtualClock) -> None:
    for n in range(2000):
        clock.advance(1)
        put(windowed, str(n))
        assert len(inside.repeats(windowed).ids) <= 2 * WINDOW + 2


def test_another_record_at_a_hashs_position_is_not_taken_for_the_first(
    windowed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if two ids, and two topics, had one hash of 64 bits: the key index tells."""
    windowed.create_topic("u", dedup_window=WINDOW)
    first, other = put(windowed, "a"), put(windowed, "b")
    elsewhere = put(windowed, "a", "u")
    known = inside.repeats(windowed).ids

    class Colliding:
        since, first_position = known.since, known.first_position
        add, fetch = known.add, known.fetch
        at = 0

        def find(self, batch: Any, now: int, end: int) -> list[Any]:
            return [(0, -1, self.at, "t", "a")]

    monkeypatch.setattr(inside.repeats(windowed), "ids", Colliding())
    for position in (other.position, elsewhere.position, 1 << 40, SEGMENT - 1):
        Colliding.at = position
        for _ in range(2):
            assert_repeats(windowed, first, "a")
            windowed.checkpoint()


def test_a_topic_that_was_made_again_knows_no_id_of_the_one_before(
    windowed: Store, opens: Opens, clock: VirtualClock
) -> None:
    put(windowed, "a")
    windowed.delete_topic("t")
    windowed.create_topic("t", dedup_window=WINDOW)
    assert not put(windowed, "a").duplicate
    windowed.delete_topic("t")
    windowed.create_topic("t", dedup_window=WINDOW)
    windowed.close()
    store = opens(quiet(clock))
    assert not put(store, "a").duplicate


def test_a_hash_that_leads_to_a_topic_of_before_leads_to_no_first_message(
    windowed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = put(windowed, "a")
    windowed.delete_topic("t")
    windowed.create_topic("t", dedup_window=WINDOW)
    known = inside.repeats(windowed).ids

    class Misled:
        since, first_position = known.since, known.first_position
        add, fetch = known.add, known.fetch

        looks = count()

        def find(self, batch: Any, now: int, end: int) -> list[Any]:
            return [(0, -1, gone.position, "t", "a")] if next(self.looks) == 0 else []

    monkeypatch.setattr(inside.repeats(windowed), "ids", Misled())
    assert not put(windowed, "a").duplicate


@pytest.mark.parametrize("retention", [Retention(hot_for=10), Retention(max_bytes=SEGMENT)])
def test_retention_waits_for_the_longest_window(
    opens: Opens, clock: VirtualClock, retention: Retention
) -> None:
    store = opens(quiet(clock, retention=retention))
    store.create_topic("u")
    store.create_topic("t", dedup_window=1)
    store.alter_topic("t", dedup_window=WINDOW)
    first = put(store, "a")
    store.seal()
    put(store, "b")
    store.checkpoint()
    clock.advance(WINDOW)
    assert store.apply_retention() == 0
    assert_repeats(store, first, "a")
    clock.advance(0.001)
    assert store.apply_retention() == 1
    assert not put(store, "a").duplicate


def test_a_full_disk_takes_ids_with_their_messages(opens: Opens, clock: VirtualClock) -> None:
    files = WatchedFiles()
    store = opens(quiet(clock, retention=Retention(hot_for=10), files=files))
    store.create_topic("t", dedup_window=WINDOW)
    put(store, "a")
    store.seal()
    put(store, "b")
    store.checkpoint()
    files.used = 0.86
    assert store.apply_retention() == 1
    assert not put(store, "a").duplicate
    assert put(store, "b").duplicate


# --- what it costs ---


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_a_new_id_reads_nothing_once_the_window_has_gone_by_since_the_opening(
    opens: Opens, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    store = opens(quiet(clock))
    store.create_topic("t", dedup_window=WINDOW)
    store.put_batch([Message("t", b"", dedup_id=f"before-{n}") for n in range(count)])
    store.close()
    costs = Costs(monkeypatch)
    with costs.counting() as of_opening:
        store = opens(quiet(clock))
    clock.advance(WINDOW + 1)
    for _ in range(4):
        put(store, None)  # each queue's end is looked for once
    with costs.counting() as found:
        for n in range(count):
            assert not put(store, f"new-{n}").duplicate
    assert set(found) <= {"map"}, "of new segments"
    with costs.counting() as found:
        assert put(store, "new-0").duplicate
    assert found.total() == 0
    assert of_opening.total() < 200, "an opening reads no ids"


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_a_new_id_reads_the_filters_of_keys_once_while_the_window_reaches_behind_the_opening(
    opens: Opens, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    store = opens(quiet(clock))
    store.create_topic("t", dedup_window=WINDOW)
    store.put_batch([Message("t", b"", dedup_id=f"before-{n}") for n in range(count)])
    store.close()
    store = opens(quiet(clock))
    put(store, "first")
    costs = Costs(monkeypatch)
    with costs.counting() as found:
        for n in range(400):
            assert not put(store, f"new-{n}").duplicate
    # A filter lets one in 40 pass.
    assert found.total() < 400 / 10
