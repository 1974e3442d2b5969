"""Dead letters: what was handed out too often is copied once, and done."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Message, Popped, ReceiptExpired, Store, StoreConfig, StoredMessage
from tests.support.clock import VirtualClock
from tests.support.contents import read_queue
from tests.support.files import WatchedFiles, copy_folder
from tests.support.stores import killed, settings

pytestmark = [pytest.mark.topic(queues=2), pytest.mark.group(max_attempts=2)]


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def config(clock: VirtualClock, files: WatchedFiles) -> StoreConfig:
    return settings(clock=clock, files=files)


def wear_out(store: Store, clock: VirtualClock, limit: int = 32, group: str = "g") -> list[Popped]:
    """Have all there is handed out as often as may be, and become due."""
    found: list[Popped] = []
    for _ in range(store.group(group).max_attempts):
        found = store.pop(group, "t", limit, 1.0)
        clock.advance(2)
    return found


def dead(store: Store, group: str = "g") -> list[StoredMessage]:
    name = f"%DLQ%{group}"
    return read_queue(store, name, 0) if any(t.name == name for t in store.topics()) else []


def test_a_message_is_handed_out_as_often_as_it_may_be_and_then_a_dead_letter(
    store: Store, clock: VirtualClock
) -> None:
    r = store.put("t", b"text", queue=1, tag="x", keys=["k"], properties={"p": "v"})
    attempts = []
    for _ in range(4):
        attempts += [p.attempt for p in store.pop("g", "t", 1, 1.0)]
        clock.advance(2)
    assert attempts == [1, 2]
    (letter,) = dead(store)
    assert (letter.body, letter.tag, letter.keys) == (b"text", "x", ["k"])
    assert letter.properties["p"] == "v"
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "t"
    assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == r.message_id
    assert letter.properties["DLQ_ORIGIN_QUEUE_ID"] == "1"
    assert letter.properties["DLQ_ORIGIN_QUEUE_OFFSET"] == "0"
    assert letter.properties["DLQ_ATTEMPTS"] == "2"
    assert store.lag("g", "t")[1].lag == 0
    assert store.topic("%DLQ%g").read_queues == 1


@pytest.mark.parametrize(
    "given_back", [{}, {"invisible_for": 0}, {"invisible_for": 3600.0, "gives_back": True}]
)
def test_a_message_is_a_dead_letter_as_soon_as_its_last_attempt_is_given_back(
    store: Store, clock: VirtualClock, given_back: dict[str, Any]
) -> None:
    store.alter_group("g", backoff=[60.0], max_in_flight=1)
    puts = [store.put("t", b"%d" % n, queue=0) for n in range(2)]
    (first,) = store.pop("g", "t")
    store.change_invisible(first.receipt, 0)
    (last,) = store.pop("g", "t")
    receipt = store.change_invisible(last.receipt, **given_back)
    (letter,) = dead(store)
    assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == puts[0].message_id
    assert letter.properties["DLQ_ATTEMPTS"] == "2"
    assert store.committed_offset("g", "t", 0) == 1
    with pytest.raises(ReceiptExpired):
        store.ack(receipt)
    (other,) = store.pop("g", "t", 10)
    assert other.message.offset == 1, "its place under max_in_flight is free"
    clock.advance(4000)
    store.ack(other.receipt)
    assert store.pop("g", "t") == []
    assert len(dead(store)) == 1


def test_a_last_attempt_that_runs_out_is_a_dead_letter_without_the_backoff(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", backoff=[60.0])
    store.put("t", b"1", queue=0)
    store.pop("g", "t", invisible_for=1.0)
    clock.advance(61)
    (last,) = store.pop("g", "t", invisible_for=1.0)
    store.change_invisible(last.receipt, 2.0)
    clock.advance(2)
    assert store.pop("g", "t") == []
    assert len(dead(store)) == 1


def test_a_dead_letter_that_can_not_be_copied_at_once_is_copied_at_the_next_pop(
    store: Store, clock: VirtualClock, files: WatchedFiles
) -> None:
    store.alter_group("g", max_attempts=1)
    store.put("t", b"1", queue=0)
    (last,) = store.pop("g", "t")
    files.used = 0.99
    clock.advance(2)
    store.change_invisible(last.receipt)
    assert dead(store) == []
    files.used = 0.1
    clock.advance(2)
    assert store.pop("g", "t") == []
    assert len(dead(store)) == 1


def test_the_next_of_an_ordered_group_comes_when_the_one_before_is_a_dead_letter(
    store: Store,
) -> None:
    store.create_group("o", ordered=True, max_attempts=1, backoff=[60.0])
    for n in range(2):
        store.put("t", b"%d" % n, message_group="m")
    (first,) = store.pop("o", "t", 10)
    store.change_invisible(first.receipt)
    (second,) = store.pop("o", "t", 10)
    assert second.message.body == b"1"
    assert len(dead(store, "o")) == 1


def test_a_message_that_is_acked_at_its_last_attempt_is_no_dead_letter(
    store: Store, clock: VirtualClock
) -> None:
    store.put("t", b"1")
    last = wear_out(store, clock)
    store.ack(last[0].receipt)
    assert store.pop("g", "t", 10) == []
    assert dead(store) == []


def test_the_receipt_of_a_dead_letter_is_expired(store: Store, clock: VirtualClock) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(3)])
    last = wear_out(store, clock)
    store.ack(last[1].receipt)
    assert store.pop("g", "t", 10) == []
    assert sorted(m.body for m in dead(store)) == [b"0", b"2"]
    assert [r is True for r in store.ack_batch([p.receipt for p in last])] == [False, True, False]
    with pytest.raises(ReceiptExpired):
        store.change_invisible(last[0].receipt, 5)


def test_dead_letters_do_not_keep_what_is_alive_from_who_pops(
    store: Store, clock: VirtualClock
) -> None:
    store.put_batch([Message("t", b"old", queue=0) for _ in range(40)])
    wear_out(store, clock, 40)
    store.put("t", b"new", queue=0)
    assert [p.message.body for p in store.pop("g", "t", 10)] == [b"new"]
    assert len(dead(store)) == 40


def test_each_group_has_dead_letters_of_its_own(store: Store, clock: VirtualClock) -> None:
    store.create_topic("mine", queues=1)
    store.create_group("h", max_attempts=1, dead_letter_topic="mine")
    store.put("t", b"1")
    wear_out(store, clock)
    wear_out(store, clock, group="h")
    store.pop("g", "t")
    store.pop("h", "t")
    assert [m.body for m in dead(store)] == [b"1"]
    assert [m.body for m in read_queue(store, "mine", 0)] == [b"1"]
    assert all(t.name != "%DLQ%h" for t in store.topics())


def test_fewer_attempts_hold_for_what_is_under_way(store: Store, clock: VirtualClock) -> None:
    store.alter_group("g", max_attempts=16)
    store.put("t", b"1")
    for n in range(4):
        assert [p.attempt for p in store.pop("g", "t", 1, 1.0)] == [n + 1]
        clock.advance(2)
    store.alter_group("g", max_attempts=3)
    assert store.pop("g", "t") == []
    (letter,) = dead(store)
    assert letter.properties["DLQ_ATTEMPTS"] == "4"


def test_attempts_are_counted_over_a_reopening_and_a_kill(
    store: Store, clock: VirtualClock, config: StoreConfig, tmp_path: Path
) -> None:
    store.alter_group("g", max_attempts=3)
    store.put("t", b"1")
    assert [p.attempt for p in store.pop("g", "t", 1, 1.0)] == [1]
    clock.advance(2)
    store.close()
    with kvstore.open(store.path, config) as again:
        assert [p.attempt for p in again.pop("g", "t", 1, 1.0)] == [2]
        clock.advance(2)
        copy = killed(again, tmp_path / "killed")
    with kvstore.open(copy, config) as third:
        assert [p.attempt for p in third.pop("g", "t", 1, 1.0)] == [3]
        clock.advance(2)
        assert third.pop("g", "t") == []
        assert [m.body for m in dead(third)] == [b"1"]


@pytest.mark.parametrize("own_topic", [None, "all", "off"])
def test_a_crash_between_the_copy_and_the_removal_makes_no_second_copy(
    store: Store, clock: VirtualClock, config: StoreConfig, tmp_path: Path, own_topic: str | None
) -> None:
    if own_topic is not None:
        store.create_topic("%DLQ%g", queues=1, key_index=own_topic)  # type: ignore[arg-type]  # one of its values
    letters = [b"%d" % n for n in range(5)]
    if own_topic == "off":
        # The first dead letter turns the index on, durably and before it is copied.
        store.put("t", b"first", queue=0)
        wear_out(store, clock)
        assert store.pop("g", "t") == []
        letters.append(b"first")
    store.put_batch([Message("t", b"%d" % n, queue=n % 2) for n in range(5)])
    wear_out(store, clock)
    before = tmp_path / "before"
    store.checkpoint()
    copy_folder(store.path / "index", before)
    assert store.pop("g", "t") == []
    if own_topic is None:
        # The topic was made by the same pop; a crash behind that is another one.
        return
    target = killed(store, tmp_path / "killed")
    shutil.rmtree(target / "index")
    copy_folder(before, target / "index")
    with kvstore.open(target, config) as again:
        for _ in range(3):
            assert again.pop("g", "t") == []
            clock.advance(10)
        assert sorted(m.body for m in dead(again)) == letters
        assert [lag.lag for lag in again.lag("g", "t")] == [0, 0]


def test_the_copy_is_on_the_disk_before_the_message_is_done(
    store: Store, clock: VirtualClock, files: WatchedFiles, config: StoreConfig, tmp_path: Path
) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(5)])
    wear_out(store, clock)
    assert store.pop("g", "t") == []
    cut = files.power_cut(store.path, tmp_path / "cut")
    with kvstore.open(cut, config) as again:
        clock.advance(10)
        assert again.pop("g", "t", 10) == []
        assert sorted(m.body for m in dead(again)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_copy_that_the_disk_refuses_leaves_the_message_where_it_was(
    store: Store, clock: VirtualClock, files: WatchedFiles, config: StoreConfig, tmp_path: Path
) -> None:
    store.put("t", b"1", queue=0)
    wear_out(store, clock)
    files.fail("sync", times=1000)
    with pytest.raises(kvstore.StoreError):
        store.pop("g", "t")
    copy = killed(store, tmp_path / "killed")
    files.mend()
    with kvstore.open(copy, config) as again:
        assert again.pop("g", "t") == []
        assert [m.body for m in dead(again)] == [b"1"]


LARGE = {
    "properties": Message("t", b"1", queue=0, properties={"p": "v" * 32_680}),
    "body": Message("t", b"1" * 60_000, queue=0),
    "record": Message("t", b"1" * 65_300, queue=0),
    "keys": Message("t", b"1", queue=0, keys=("k" * 32_680,)),
}


@pytest.mark.parametrize("what", LARGE)
def test_a_message_too_large_for_a_copy_holds_up_nobody(
    store: Store, clock: VirtualClock, what: str
) -> None:
    store.put_batch([LARGE[what]])
    wear_out(store, clock)
    store.put("t", b"next", queue=0)
    assert [p.message.body for p in store.pop("g", "t", 5)] == [b"next"]
    (letter,) = dead(store)
    original = store.get("t", 0, 0)
    is_whole = what == "body"
    assert letter.body == (original.body if is_whole else b"")
    left_out = {} if is_whole else {"DLQ_LEFT_OUT": str(len(original.body))}
    assert {name: letter.properties[name] for name in letter.properties if "DLQ" in name} == {
        "DLQ_ORIGIN_TOPIC": "t",
        "DLQ_ORIGIN_GROUP": "g",
        "DLQ_ORIGIN_MESSAGE_ID": original.message_id,
        "DLQ_ORIGIN_QUEUE_ID": "0",
        "DLQ_ORIGIN_QUEUE_OFFSET": "0",
        "DLQ_ATTEMPTS": "2",
        "DLQ_REASON": "attempts",
    } | left_out


def test_messages_that_die_beside_one_that_is_too_large_are_copied_whole(
    store: Store, clock: VirtualClock
) -> None:
    sizes = (100, 65_300, 200)
    store.put_batch([Message("t", b"1" * size, queue=0) for size in sizes])
    wear_out(store, clock)
    assert store.pop("g", "t", 5) == []
    letters = dead(store)
    assert sorted(len(letter.body) for letter in letters) == [0, 100, 200]
    assert {letter.properties["DLQ_ORIGIN_QUEUE_OFFSET"] for letter in letters} == set("012")
    assert store.redrive("g") == 3
    assert [len(p.message.body) for p in store.pop("g", "t", 5)] == list(sizes)


def test_a_message_above_a_limit_that_was_lowered_since_holds_up_nobody(
    store: Store, clock: VirtualClock
) -> None:
    store.put("t", b"1" * 5000, queue=0)
    wear_out(store, clock)
    store.close()
    with kvstore.open(store.path, settings(clock=clock, max_body=1000)) as again:
        again.put("t", b"next", queue=0)
        assert [p.message.body for p in again.pop("g", "t", 5)] == [b"next"]


def test_a_dead_letter_of_a_dead_letter_names_where_it_came_from_last(
    store: Store, clock: VirtualClock
) -> None:
    store.put("t", b"1")
    wear_out(store, clock)
    store.pop("g", "t")
    store.create_group("h", max_attempts=1)
    assert len(store.pop("h", "%DLQ%g", 1, 1.0)) == 1
    clock.advance(2)
    assert store.pop("h", "%DLQ%g") == []
    (letter,) = dead(store, "h")
    assert letter.body == b"1"
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "%DLQ%g"


def test_a_group_whose_dead_letters_go_to_the_topic_it_pops_does_not_stand_still(
    store: Store, clock: VirtualClock
) -> None:
    store.create_group("h", max_attempts=1, dead_letter_topic="t")
    store.put("t", b"1", queue=0)
    for _ in range(3):
        (p,) = store.pop("h", "t", 5, 1.0)
        assert p.message.body == b"1"
        clock.advance(2)


def test_a_group_with_the_longest_name_can_have_dead_letters(
    store: Store, clock: VirtualClock
) -> None:
    name = ""
    for length in range(255, 0, -1):
        try:
            store.create_group("g" * length, max_attempts=1)
        except kvstore.CallerError:
            continue
        name = "g" * length
        break
    store.put("t", b"1")
    wear_out(store, clock, group=name)
    assert store.pop(name, "t") == []
    assert [m.body for m in dead(store, name)] == [b"1"]


def test_more_dead_letters_than_one_look_takes_are_all_copied(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", max_attempts=1)
    store.put_batch([Message("t", b"%d" % n, queue=n % 2) for n in range(1000)])
    wear_out(store, clock, 1000)
    for _ in range(10):
        assert store.pop("g", "t", 1) == []
    assert sorted(int(m.body) for m in dead(store)) == list(range(1000))


def test_one_pop_gets_what_lies_behind_more_dead_letters_than_one_look_takes(
    store: Store, clock: VirtualClock
) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(1000)])
    store.put("t", b"alive", queue=1)
    for limit in (1000, 1000):
        assert len(store.pop("g", "t", limit, 1.0, queue=0)) == limit
        clock.advance(2)
    assert len(store.pop("g", "t", 1, 1.0, queue=1)) == 1
    clock.advance(2)
    (alive,) = store.pop("g", "t", 1)
    assert (alive.message.body, alive.attempt) == (b"alive", 2)
    assert len(dead(store)) == 1000


def test_a_receipt_that_was_moved_before_the_rest_died_is_still_expired(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", max_attempts=1)
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(3)])
    old = [p.receipt for p in store.pop("g", "t", 3, 1.0)]
    moved = store.change_invisible(old[1], 600)
    clock.advance(2)
    assert store.pop("g", "t", 10) == []
    assert sorted(m.body for m in dead(store)) == [b"0", b"2"]
    assert not any(result is True for result in store.ack_batch(old))
    assert store.ack_batch([moved]) == [True]


def test_a_reset_after_a_dead_letter_begins_anew(store: Store, clock: VirtualClock) -> None:
    store.put("t", b"1", queue=0)
    wear_out(store, clock)
    assert store.pop("g", "t") == []
    store.reset_offset("g", "t", to="begin")
    assert [p.attempt for p in store.pop("g", "t", 1, 1.0)] == [1]
    clock.advance(2)
    assert [p.attempt for p in store.pop("g", "t", 1, 1.0)] == [2]
    clock.advance(2)
    assert store.pop("g", "t") == []
    assert [m.body for m in dead(store)] == [b"1", b"1"]
