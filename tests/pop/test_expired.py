"""Messages that have expired: a pop passes them over, counts them, and buries them if it shall."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import (
    CallerError,
    DiskFull,
    Message,
    ReceiptExpired,
    Store,
    StoreConfig,
    StoredMessage,
)
from tests.pop.test_failed_writes import no_room
from tests.support import inside
from tests.support.clock import START_MS, VirtualClock
from tests.support.contents import read_queue
from tests.support.files import WatchedFiles, copy_folder
from tests.support.popping import bodies
from tests.support.stores import killed, settings

pytestmark = pytest.mark.group(max_attempts=3)
PAST = START_MS - 1
SOON = START_MS + 5000
NUMBERS = itertools.count()


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def config(clock: VirtualClock, files: WatchedFiles) -> StoreConfig:
    return settings(clock=clock, files=files)


def put(
    store: Store, count: int, queue: int = 0, topic: str = "t", every: int = 1, **fields: Any
) -> None:
    """Messages, each of a message group of its own; only every one expires that `every` does not
    divide, or all.
    """
    store.put_batch(
        [
            Message(
                topic, b"%d" % n, queue, message_group=f"m{next(NUMBERS)}",
                **fields | ({} if every == 1 or n % every else {"expires_at": None}),
            )
            for n in range(count)
        ]
    )  # fmt: skip


def mixed(store: Store, count: int) -> None:
    """Messages of which all but each third have expired."""
    put(store, count, every=3, expires_at=PAST)


def letters(store: Store, group: str = "g") -> list[StoredMessage]:
    name = f"%DLQ%{group}"
    return read_queue(store, name, 0) if any(t.name == name for t in store.topics()) else []


def expired(store: Store, group: str = "g") -> int:
    """How many are counted, wherever the number is told."""
    (stats,) = store.group_stats(group, "t")
    assert stats.expired == sum(lag.expired for lag in store.lag(group, "t"))
    return stats.expired


@pytest.mark.parametrize("limit", [1, 3, 32])
@pytest.mark.parametrize("ordered", [False, True])
def test_expired_messages_are_passed_over_done_and_counted(
    store: Store, limit: int, ordered: bool
) -> None:
    store.alter_group("g", ordered=ordered)
    mixed(store, 20)
    found = []
    while popped := store.pop("g", "t", limit):
        found += bodies(popped)
        assert set(store.ack_batch([p.receipt for p in popped])) == {True}
    assert found == [b"%d" % n for n in range(0, 20, 3)]
    assert expired(store) == 13
    assert store.stats().expired == 13
    assert store.lag("g", "t")[0].lag == 0
    assert store.committed_offset("g", "t", 0) == 20
    assert store.group_stats("g", "t")[0].passed_over == 0


def test_a_message_expires_at_its_millisecond_and_not_before(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 2, expires_at=SOON)
    clock.advance(4.999)
    assert bodies(store.pop("g", "t")) == [b"0"]
    clock.advance(0.001)
    assert store.pop("g", "t") == []
    assert expired(store) == 1


def test_a_message_that_was_read_ahead_and_expires_meanwhile_is_not_handed_out(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 10, expires_at=SOON)
    put(store, 1)
    assert len(store.pop("g", "t")) == len(store.pop("g", "t")) == 1
    assert inside.table(store).prefetched[0]
    clock.advance(5)
    assert bodies(store.pop("g", "t", 2)) == [b"0"]
    assert expired(store) == 8


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_that_expired_under_its_lock_can_be_acked_and_does_not_come_again(
    store: Store, clock: VirtualClock, ordered: bool
) -> None:
    store.alter_group("g", ordered=ordered)
    put(store, 2, expires_at=SOON)
    first, second = store.pop("g", "t", 2, invisible_for=10.0)
    clock.advance(6)
    store.ack(first.receipt)
    assert store.pop("g", "t", 2) == []
    clock.advance(5)
    assert store.pop("g", "t", 2) == []
    assert expired(store) == 1
    assert store.lag("g", "t")[0].lag == 0
    with pytest.raises(ReceiptExpired):
        store.ack(second.receipt)


def test_a_message_that_is_given_back_after_its_time_does_not_come_again(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 1, expires_at=SOON)
    (popped,) = store.pop("g", "t")
    clock.advance(6)
    store.change_invisible(popped.receipt, 0)
    assert store.pop("g", "t") == []
    assert expired(store) == 1


def test_an_ordered_group_goes_on_behind_a_parked_message_that_has_expired(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", ordered=True)
    for body, time in ((b"0", None), (b"1", SOON), (b"2", None)):
        store.put("t", body, message_group="m", expires_at=time)
    (first,) = store.pop("g", "t", 10)
    assert inside.table(store).parked_count == 2
    clock.advance(6)
    store.ack(first.receipt)
    assert bodies(store.pop("g", "t", 10)) == [b"2"]
    assert expired(store) == 1


def test_an_ordered_group_parks_no_message_that_has_expired(store: Store) -> None:
    store.alter_group("g", ordered=True)
    for body, time in ((b"0", None), (b"1", PAST), (b"2", None)):
        store.put("t", body, message_group="m", expires_at=time)
    assert bodies(store.pop("g", "t", 10)) == [b"0"]
    assert (expired(store), inside.table(store).parked_count) == (1, 1)


def test_a_filter_is_not_asked_about_expired_messages(store: Store) -> None:
    put(store, 3, tag="a", expires_at=PAST)
    put(store, 2, tag="b")
    assert store.pop("g", "t", 10, filter="a") == []
    (stats,) = store.group_stats("g", "t")
    assert (stats.expired, stats.passed_over) == (3, 2)


def test_a_pop_of_some_bytes_passes_expired_messages_over(store: Store) -> None:
    mixed(store, 9)
    size = store.get("t", 0, 0).size
    assert bodies(store.pop("g", "t", 10, max_bytes=2 * size)) == [b"0", b"3"]
    assert bodies(store.pop("g", "t", 10, max_bytes=2 * size)) == [b"6"]
    assert expired(store) == 6


def test_a_clock_that_is_set_back_does_not_bring_back_what_was_passed_over(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 1, expires_at=SOON)
    clock.advance(6)
    assert store.pop("g", "t") == []
    clock.step(-10)
    assert store.pop("g", "t") == []
    assert store.pull("t", 0, 0).expired == 0


def test_the_count_outlives_a_reopening_and_a_reset_starts_it_anew(
    store: Store, config: StoreConfig
) -> None:
    mixed(store, 9)
    assert len(store.pop("g", "t", 9, filter=kvstore.sql("a IS NULL"))) == 3
    store.close()
    with kvstore.open(store.path, config) as again:
        assert expired(again) == 6
        put(again, 1, expires_at=PAST)
        assert again.pop("g", "t") == []
        assert (expired(again), again.stats().expired) == (7, 1)
        again.reset_offset("g", "t", to="begin")
        assert expired(again) == 0


@pytest.mark.parametrize("ordered", [False, True])
def test_a_pop_that_waits_goes_on_behind_thousands_of_expired_messages(
    store: Store, ordered: bool
) -> None:
    store.alter_group("g", ordered=ordered)
    for _ in range(10):
        put(store, 1000, expires_at=PAST)
    put(store, 1)
    found: list[bytes] = []
    popping = threading.Thread(
        target=lambda: found.extend(bodies(store.pop("g", "t", wait=3600.0)))
    )
    popping.start()
    popping.join(60)
    assert found == [b"0"]


@contextmanager
def counted_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many rows each write of a pop had meanwhile; checkpoints write otherwise."""
    families, writes = inside.families(store), list[int]()
    write = families.write_rows

    def counted(*rows: Any) -> None:
        writes.append(sum(len(pairs) for _, pairs in rows))
        write(*rows)

    with monkeypatch.context() as patched:
        patched.setattr(families, "write_rows", counted)
        yield writes


@pytest.mark.parametrize("ordered", [False, True])
def test_expired_messages_cost_one_write_for_hundreds_of_them(
    store: Store, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    costs = []
    for size in (100, 1000, 10_000):
        group = f"g{size}"
        store.create_topic(group, queues=1)
        store.create_group(group, ordered=ordered)
        for _ in range(size // 100):
            put(store, 100, topic=group, expires_at=PAST)
        put(store, 1, topic=group)
        looks = 1
        with counted_rows(store, monkeypatch) as writes:
            while not store.pop(group, group):
                looks += 1
        assert looks <= 1 + size // 6400
        costs.append(sum(writes))
    assert costs[0] <= 2
    assert costs[1] <= 3
    assert 10_000 // 900 <= costs[2] <= 10_000 // 800 + 3, "others have their turn in between"


# --- dead letters ---


@pytest.fixture
def burying(store: Store) -> Store:
    """The store, whose group has dead letters of what has expired."""
    store.alter_group("g", dead_letter_expired=True)
    return store


@pytest.mark.parametrize("ordered", [False, True])
def test_expired_messages_become_dead_letters_that_say_so_and_do_not_expire(
    burying: Store, ordered: bool
) -> None:
    burying.alter_group("g", ordered=ordered)
    put(burying, 1)
    result = burying.put("t", b"late", tag="x", keys=["k"], expires_at=PAST)
    put(burying, 1)
    assert len(burying.pop("g", "t", 10)) == 2
    (letter,) = letters(burying)
    assert (letter.body, letter.tag, letter.keys) == (b"late", "x", ["k"])
    assert letter.properties["DLQ_REASON"] == "expired"
    assert letter.properties["DLQ_ATTEMPTS"] == "0"
    assert letter.properties["DLQ_ORIGIN_QUEUE_OFFSET"] == "1"
    assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == result.message_id
    assert letter.expires_at is None
    (stats,) = burying.group_stats("g", "t")
    assert (stats.expired, stats.dead_letters, stats.lag) == (1, 1, 2)


def test_a_message_that_expired_under_its_lock_becomes_a_dead_letter(
    burying: Store, clock: VirtualClock
) -> None:
    put(burying, 1, expires_at=SOON)
    burying.pop("g", "t", invisible_for=6.0)
    clock.advance(7)
    assert burying.pop("g", "t") == []
    (letter,) = letters(burying)
    assert letter.properties["DLQ_REASON"] == "expired"
    assert letter.properties["DLQ_ATTEMPTS"] == "1"


def test_a_message_whose_attempts_are_used_up_is_a_dead_letter_for_that_reason(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 1, expires_at=SOON)
    store.pop("g", "t", invisible_for=6.0)
    clock.advance(7)
    assert store.pop("g", "t") == []
    (letter,) = letters(store)
    assert letter.properties["DLQ_REASON"] == "attempts"
    assert expired(store) == 0


def test_more_expired_messages_than_one_look_buries_have_one_dead_letter_each(
    burying: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        put(burying, 100, expires_at=PAST)
    put(burying, 1)
    with counted_rows(burying, monkeypatch) as writes:
        assert len(burying.pop("g", "t")) == 1
    assert len(writes) <= 2000 // 256 + 2
    offsets = [int(m.properties["DLQ_ORIGIN_QUEUE_OFFSET"]) for m in letters(burying)]
    assert offsets == list(range(2000))


@pytest.mark.parametrize("is_locked", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_crash_between_the_letters_and_the_offset_makes_no_second_letter(
    burying: Store,
    clock: VirtualClock,
    config: StoreConfig,
    tmp_path: Path,
    is_locked: bool,
    ordered: bool,
) -> None:
    burying.alter_group("g", ordered=ordered)
    burying.create_topic("%DLQ%g", queues=1)
    put(burying, 6, expires_at=SOON)
    if is_locked:
        assert len(burying.pop("g", "t", 6, invisible_for=1.0)) == 6
    clock.advance(6)
    before = tmp_path / "before"
    burying.checkpoint()
    copy_folder(burying.path / "index", before)
    assert burying.pop("g", "t", 10) == []
    target = killed(burying, tmp_path / "killed")
    shutil.rmtree(target / "index")
    copy_folder(before, target / "index")
    with kvstore.open(target, config) as again:
        for _ in range(3):
            assert again.pop("g", "t", 10) == []
            clock.advance(10)
        assert [m.body for m in letters(again)] == [b"%d" % n for n in range(6)]
        assert expired(again) == 6
        assert again.lag("g", "t")[0].lag == 0


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_write_that_fails_after_the_letters_were_put_makes_no_second_letter(
    burying: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    put(burying, 3, expires_at=SOON)
    if is_locked:
        burying.pop("g", "t", 3, invisible_for=1.0)
    clock.advance(6)
    with no_room(burying, monkeypatch), pytest.raises(DiskFull, match="no room for a row"):
        burying.pop("g", "t")
    assert expired(burying) == 0
    assert burying.pop("g", "t") == []
    assert expired(burying) == len(letters(burying)) == 3


def test_the_letter_is_on_the_disk_before_the_message_is_done(
    burying: Store, files: WatchedFiles, config: StoreConfig, tmp_path: Path
) -> None:
    put(burying, 5, expires_at=PAST)
    burying.flush()
    assert burying.pop("g", "t") == []
    cut = files.power_cut(burying.path, tmp_path / "cut")
    with kvstore.open(cut, config) as again:
        assert again.pop("g", "t", 10) == []
        assert [m.body for m in letters(again)] == [b"%d" % n for n in range(5)]


@pytest.mark.topic(queues=2)
@pytest.mark.parametrize("ordered", [False, True])
def test_while_the_disk_takes_no_letters_only_what_has_expired_waits(
    burying: Store, clock: VirtualClock, files: WatchedFiles, ordered: bool
) -> None:
    burying.alter_group("g", ordered=ordered)
    put(burying, 2, queue=0)
    put(burying, 1, queue=0, expires_at=PAST)
    put(burying, 1, queue=0)
    put(burying, 2, queue=1)
    put(burying, 1, queue=1, expires_at=SOON)
    files.used = 0.99
    clock.advance(2)
    assert len(burying.pop("g", "t", 2, invisible_for=1.0, queue=1)) == 2
    assert len(burying.pop("g", "t", 10, invisible_for=1.0)) == 3
    clock.advance(4)
    assert len(burying.pop("g", "t", 10)) == 4
    assert letters(burying) == []
    assert expired(burying) == 0
    files.used = 0.1
    clock.advance(2)
    assert bodies(burying.pop("g", "t", 10)) == [b"0"]
    assert expired(burying) == len(letters(burying)) == 2


def test_a_group_that_goes_back_makes_no_second_letter(burying: Store) -> None:
    put(burying, 3, expires_at=PAST)
    for _ in range(3):
        assert burying.pop("g", "t") == []
        burying.reset_offset("g", "t", to="begin")
    assert len(letters(burying)) == 3


@pytest.mark.parametrize("reason", ["expired", "attempts"])
def test_a_redrive_puts_the_letter_of_an_expired_message_back_as_one_that_does_not_expire(
    burying: Store, clock: VirtualClock, reason: str
) -> None:
    burying.create_group("other", start="end")
    put(burying, 1, tag="x", expires_at=SOON)
    if reason == "attempts":
        burying.alter_group("g", max_attempts=1)
        burying.pop("g", "t", invisible_for=1.0)
    clock.advance(6)
    assert burying.pop("g", "t") == []
    assert [m.properties["DLQ_REASON"] for m in letters(burying)] == [reason]
    assert burying.redrive("g") == 1
    (popped,) = burying.pop("g", "t")
    assert (popped.message.body, popped.message.tag) == (b"0", "x")
    assert popped.message.expires_at is None
    assert "DLQ_REASON" not in popped.message.properties
    assert len(burying.pop("other", "t")) == 1
    assert burying.redrive("g") == 0


def test_a_redrive_locks_a_message_that_has_not_expired_yet(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 1, expires_at=SOON)
    store.pop("g", "t", invisible_for=1.0)
    clock.advance(2)
    assert store.pop("g", "t") == []
    assert store.redrive("g") == 1
    (popped,) = store.pop("g", "t")
    assert (popped.message.offset, popped.message.expires_at) == (0, SOON)


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_a_group_has_dead_letters_of_expired_messages_or_not(store: Store, value: Any) -> None:
    assert store.create_group("h", dead_letter_expired=True).dead_letter_expired
    assert not store.alter_group("h", dead_letter_expired=False).dead_letter_expired
    assert not store.group("g").dead_letter_expired
    with pytest.raises(CallerError, match="dead_letter_expired"):
        store.create_group("i", dead_letter_expired=value)
