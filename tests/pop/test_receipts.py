"""Receipts: each stands for one delivery, and nothing that was changed or is over is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import CallerError, Message, Popped, ReceiptExpired, ReceiptIllegal, Store, StoreConfig
from tests.support.clock import VirtualClock
from tests.support.stores import settings

LONG = 3600.0


pytestmark = [pytest.mark.topic(queues=2), pytest.mark.group]


def popped(store: Store, count: int = 1, **asked: float) -> list[Popped]:
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(count)])
    found = store.pop("g", "t", count, **asked)  # type: ignore[arg-type]  # invisible_for
    assert len(found) == count
    return found


def assert_still_locked(store: Store, p: Popped) -> None:
    assert store.pop("g", "t", 10) == []
    store.ack(p.receipt)


REFUSED: list[object] = [
    "",
    "x",
    None,
    17,
    b"receipt",
    ["receipt"],
    "0" * 86,
    "f" * 86,
    "\ud800" * 86,
    "é" * 86,
    " " * 86,
]


@pytest.mark.parametrize("how", ["reset", "commit"])
@pytest.mark.parametrize("batch", [False, True])
def test_an_acked_receipt_is_over_when_its_group_is_set_back(
    tmp_path: Path, how: str, batch: bool
) -> None:
    with kvstore.open(tmp_path / "back", settings()) as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        store.put_batch([Message("t", b"") for _ in range(3)])
        first = store.pop("g", "t", 3) if batch else [store.pop("g", "t")[0] for _ in range(3)]
        for p in first:
            store.ack(p.receipt)
            store.ack(p.receipt)
        if how == "reset":
            store.reset_offset("g", "t", offset=1)
        else:
            store.commit_offset("g", "t", 0, 1)
        store.ack(first[0].receipt)
        second = store.pop("g", "t", 2)
        for p in first[1:]:
            with pytest.raises(ReceiptExpired):
                store.ack(p.receipt)
        for p in second:
            store.ack(p.receipt)
            store.ack(p.receipt)
        for p in first[1:]:
            with pytest.raises(ReceiptExpired):
                store.ack(p.receipt)


@pytest.mark.parametrize("receipt", REFUSED)
def test_what_is_no_receipt_is_refused_and_changes_nothing(store: Store, receipt: object) -> None:
    (p,) = popped(store)
    with pytest.raises(ReceiptIllegal):
        store.ack(receipt)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ReceiptIllegal):
        store.change_invisible(receipt, 0)  # type: ignore[arg-type]  # on purpose
    (result,) = store.ack_batch([receipt])  # type: ignore[list-item]  # on purpose
    assert isinstance(result, ReceiptIllegal)
    assert_still_locked(store, p)


def test_a_receipt_is_refused_with_any_bit_of_any_character_flipped(store: Store) -> None:
    p = popped(store, 3)[1]
    for at in range(len(p.receipt)):
        for bit in range(8):
            changed = p.receipt[:at] + chr(ord(p.receipt[at]) ^ 1 << bit) + p.receipt[at + 1 :]
            with pytest.raises(ReceiptIllegal):
                store.ack(changed)
            with pytest.raises(ReceiptIllegal):
                store.change_invisible(changed, 0)
    assert_still_locked(store, p)


def test_a_receipt_is_refused_cut_lengthened_spaced_or_in_capitals(store: Store) -> None:
    (p,) = popped(store)
    r = p.receipt
    changed = [r[:n] for n in range(len(r))] + [r[n:] for n in range(1, len(r))]
    changed += [r + c for c in "0f \n"] + [" " + r, " " + r[1:], r[:-1] + " ", r[:2] + " " + r[3:]]
    changed += [r.upper(), r.swapcase(), "+" + r[1:], r.replace("0", "O"), r + r]
    for text in changed:
        with pytest.raises(ReceiptIllegal):
            store.ack(text)
    assert_still_locked(store, p)


def test_the_receipt_of_one_place_does_not_do_for_another(store: Store) -> None:
    first, second = popped(store, 2)
    mixed = [
        first.receipt[:72] + second.receipt[72:74] + first.receipt[74:],
        first.receipt[:74] + second.receipt[74:],
        first.receipt[:72] + "02" + first.receipt[74:],
        first.receipt[:72] + "ff" + first.receipt[74:],
    ]
    for text in mixed:
        with pytest.raises(ReceiptIllegal):
            store.ack(text)
    assert store.ack_batch([first.receipt, second.receipt]) == [True, True]


def test_a_receipt_of_another_store_is_refused(
    store: Store, tmp_path: Path, config: StoreConfig
) -> None:
    mine = popped(store)[0]
    with kvstore.open(tmp_path / "other", config) as other:
        other.create_topic("t", queues=2)
        other.create_group("g")
        theirs = popped(other)[0]
        for asked, wrong in ((store, theirs), (other, mine)):
            with pytest.raises(ReceiptIllegal):
                asked.ack(wrong.receipt)
            with pytest.raises(ReceiptIllegal):
                asked.change_invisible(wrong.receipt, 0)
        assert_still_locked(other, theirs)
    assert_still_locked(store, mine)


def test_receipts_hold_over_a_reopening(store: Store, config: StoreConfig) -> None:
    found = popped(store, 3)
    store.close()
    with kvstore.open(store.path, config) as again:
        assert again.pop("g", "t") == []
        again.ack(found[0].receipt)
        moved = again.change_invisible(found[1].receipt, 60)
        with pytest.raises(ReceiptExpired):
            again.ack(found[1].receipt)
        assert again.ack_batch([moved, found[2].receipt]) == [True, True]
        assert again.lag("g", "t")[0].lag == 0


def test_acking_twice_is_as_good_as_once(store: Store, config: StoreConfig) -> None:
    found = popped(store, 3)
    receipts = [p.receipt for p in found]
    store.ack(receipts[0])
    store.ack(receipts[0])
    assert store.ack_batch(receipts) == [True] * 3
    assert store.ack_batch(receipts + receipts[::-1]) == [True] * 6
    store.close()
    with kvstore.open(store.path, config) as again:
        assert again.ack_batch(receipts) == [True] * 3
        assert again.pop("g", "t") == []


def test_an_ack_that_comes_late_is_good_as_long_as_nobody_else_got_the_message(
    store: Store, clock: VirtualClock
) -> None:
    p, q = popped(store, 2, invisible_for=1.0)
    clock.advance(3600)
    store.ack(p.receipt)
    (again,) = store.pop("g", "t", 10)
    assert (again.message.offset, again.attempt) == (1, 2)
    with pytest.raises(ReceiptExpired):
        store.ack(q.receipt)
    store.ack(p.receipt)
    store.ack(again.receipt)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_receipt_is_expired_once_its_message_was_handed_out_again(
    store: Store, clock: VirtualClock, limit: int
) -> None:
    old = popped(store, 5, invisible_for=1.0)
    clock.advance(2)
    new = store.pop("g", "t", limit)
    results = store.ack_batch([p.receipt for p in old])
    assert [r is True for r in results] == [False] * limit + [True] * (5 - limit)
    assert all(isinstance(r, ReceiptExpired) for r in results[:limit])
    for p in old[:limit]:
        with pytest.raises(ReceiptExpired):
            store.change_invisible(p.receipt, 5)
    assert store.ack_batch([p.receipt for p in new]) == [True] * limit
    # The answers for the old receipts are still right.
    assert [r is True for r in store.ack_batch([p.receipt for p in old])] == [False] * limit + [
        True
    ] * (5 - limit)


@pytest.mark.parametrize("reopens", [False, True])
def test_a_late_ack_is_told_what_was_moved_before_others_were_handed_out_again(
    store: Store, clock: VirtualClock, config: StoreConfig, reopens: bool
) -> None:
    old = popped(store, 4, invisible_for=1.0)
    receipts = [p.receipt for p in old]
    moved = store.change_invisible(old[1].receipt, 600)
    clock.advance(2)
    assert [p.message.offset for p in store.pop("g", "t", 1)] == [0]
    if reopens:
        store.close()
    with kvstore.open(store.path, config) if reopens else store as again:
        for _ in range(2):  # once by the row, and once by the remembered result
            results = again.ack_batch(receipts)
            assert [r is True for r in results] == [False, False, True, True]
        again.ack(moved)
        results = again.ack_batch(receipts)
        assert [r is True for r in results] == [False, False, True, True]


@pytest.mark.parametrize("single", [False, True])
def test_a_row_that_ends_by_a_move_is_remembered_as_it_was(
    store: Store, clock: VirtualClock, single: bool
) -> None:
    first, last = popped(store, 2, invisible_for=1.0)
    store.ack(first.receipt)
    store.change_invisible(last.receipt, 0 if single else 600)
    clock.advance(3600)
    for receipts in ([first.receipt, last.receipt], [last.receipt, first.receipt]):
        results = store.ack_batch(receipts)
        assert [r is True for r in results] == [r == first.receipt for r in receipts]


def test_a_receipt_that_another_one_took_the_place_of_is_expired_after_a_reopening_too(
    store: Store, clock: VirtualClock, config: StoreConfig
) -> None:
    """Nothing is remembered by then of how the deliveries ended."""
    old = popped(store, 3, invisible_for=1.0)
    clock.advance(2)
    new = store.pop("g", "t", 3)
    assert store.ack_batch([p.receipt for p in new]) == [True] * 3
    store.close()
    with kvstore.open(store.path, config) as again:
        results = again.ack_batch([p.receipt for p in old])
        assert all(isinstance(result, ReceiptExpired) for result in results)
        assert again.ack_batch([p.receipt for p in new]) == [True] * 3


def test_a_receipt_whose_end_is_forgotten_is_held_against_what_is_locked_now(
    store: Store, clock: VirtualClock, config: StoreConfig
) -> None:
    """Rows that begin before it, behind it, and over a page of what is known of locks."""
    store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(600)])
    store.ack_batch([p.receipt for p in store.pop("g", "t", 250, LONG)])
    old = store.pop("g", "t", 10, LONG)  # 250 to 259
    assert [p.message.offset for p in old] == list(range(250, 260))
    moved = [store.change_invisible(old[n].receipt, LONG) for n in (3, 8)]
    store.ack_batch([p.receipt for p in old])
    store.close()
    receipts = [p.receipt for p in old]
    with kvstore.open(store.path, config) as second:
        good = [r is True for r in second.ack_batch(receipts)]
        assert good == [n not in (3, 8) for n in range(10)]
        assert second.ack_batch(moved) == [True, True]
        assert second.ack_batch(receipts[4:8]) == [True] * 4
        second.reset_offset("g", "t", offset=248, queue=0)
        again = second.pop("g", "t", 5, LONG)  # 248 to 252; from 253 on all is unread
        assert [p.message.offset for p in again] == list(range(248, 253))
    with kvstore.open(store.path, config) as third:
        assert not any(r is True for r in third.ack_batch(receipts))
        third.ack_batch([p.receipt for p in again])
        good = [r is True for r in third.ack_batch(receipts)]
        assert good == [True] * 3 + [False] * 7


def test_a_batch_takes_receipts_of_several_pops_topics_and_groups_each_by_itself(
    store: Store, clock: VirtualClock
) -> None:
    store.create_topic("u", queues=1)
    store.create_group("h")
    stale = popped(store, 2, invisible_for=1.0)
    clock.advance(2)
    fresh = store.pop("g", "t", 2)
    other = store.pop("h", "t", 2)
    store.put("u", b"")
    third = store.pop("g", "u")
    batch = [
        other[1].receipt,
        stale[0].receipt,
        "nonsense",
        fresh[0].receipt,
        third[0].receipt,
        fresh[0].receipt,
        other[0].receipt,
        stale[1].receipt,
        fresh[1].receipt,
    ]
    kinds = [r if r is True else type(r) for r in store.ack_batch(batch)]
    assert kinds == [
        True,
        ReceiptExpired,
        ReceiptIllegal,
        True,
        True,
        True,
        True,
        ReceiptExpired,
        True,
    ]
    clock.advance(3600)
    for group, topic in (("g", "t"), ("h", "t"), ("g", "u")):
        assert store.pop(group, topic, 10) == []


def test_a_batch_may_be_empty_or_any_sequence_but_no_text(store: Store) -> None:
    found = popped(store, 2)
    assert store.ack_batch([]) == []
    assert store.ack_batch(()) == []
    for text in (found[0].receipt, b"receipt"):
        with pytest.raises(CallerError):
            store.ack_batch(text)  # type: ignore[arg-type]  # on purpose
    assert store.ack_batch(tuple(p.receipt for p in found)) == [True, True]


def change(seconds: float | None) -> Callable[[Store, str], object]:
    return lambda store, receipt: store.change_invisible(receipt, seconds)


ENDS: dict[str, Callable[[Store, str], object]] = {
    "given back": change(0),
    "lengthened": change(60),
    "backoff": change(None),
    "reset to the begin": lambda store, _: store.reset_offset("g", "t", to="begin"),
    "reset to the end": lambda store, _: store.reset_offset("g", "t", to="end"),
    "topic deleted": lambda store, _: store.delete_topic("t"),
    "group deleted": lambda store, _: store.delete_group("g"),
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("how", ENDS)
def test_a_receipt_is_expired_once_its_message_was_moved_reset_or_taken_away(
    store: Store, how: str, size: int
) -> None:
    found = popped(store, size)
    for p in found:
        if how not in ("topic deleted", "group deleted") or p is found[0]:
            ENDS[how](store, p.receipt)
    receipts = [p.receipt for p in found]
    for _ in range(2):
        assert [type(r) for r in store.ack_batch(receipts)] == [ReceiptExpired] * size
        for receipt in receipts:
            with pytest.raises(ReceiptExpired):
                store.ack(receipt)
            with pytest.raises(ReceiptExpired):
                store.change_invisible(receipt, 5)


def test_a_receipt_of_a_reset_message_stays_expired_when_another_delivery_was_acked(
    store: Store,
) -> None:
    (old,) = popped(store)
    store.reset_offset("g", "t", to="begin")
    (new,) = store.pop("g", "t")
    assert new.attempt == 1
    store.ack(new.receipt)
    with pytest.raises(ReceiptExpired):
        store.ack(old.receipt)


@pytest.mark.parametrize("what", ["topic", "group"])
def test_receipts_of_a_deleted_topic_or_group_do_nothing_to_one_made_anew(
    store: Store, what: str
) -> None:
    old = popped(store, 3)
    if what == "topic":
        store.delete_topic("t")
        store.create_topic("t", queues=2)
        new = popped(store, 3)
    else:
        store.delete_group("g")
        store.create_group("g")
        new = store.pop("g", "t", 3)
    assert [p.attempt for p in new] == [1, 1, 1]
    results = store.ack_batch([p.receipt for p in old])
    assert [type(r) for r in results] == [ReceiptExpired] * 3
    assert store.ack_batch([p.receipt for p in new]) == [True] * 3


def test_an_acked_message_can_not_be_moved(store: Store) -> None:
    first, second = popped(store, 2)
    store.ack(first.receipt)
    store.ack(second.receipt)
    for p in (first, second):
        with pytest.raises(ReceiptExpired):
            store.change_invisible(p.receipt, 0)
    assert store.pop("g", "t", 10) == []


def test_no_two_deliveries_have_the_same_receipt(store: Store, clock: VirtualClock) -> None:
    seen: set[str] = set()
    popped(store, 20, invisible_for=1.0)
    for _ in range(12):
        clock.advance(2)
        found = store.pop("g", "t", 20, 1.0)
        assert len(found) == 20
        for p in found:
            assert p.receipt not in seen
            seen.add(p.receipt)


def test_a_read_only_store_takes_no_receipts_and_pops_nothing(
    store: Store, config: StoreConfig
) -> None:
    (p,) = popped(store)
    store.close()
    with kvstore.open(store.path, config, read_only=True) as reader:
        for call in (
            lambda: reader.pop("g", "t"),
            lambda: reader.ack(p.receipt),
            lambda: reader.ack_batch([p.receipt]),
            lambda: reader.change_invisible(p.receipt, 0),
        ):
            with pytest.raises(kvstore.StoreReadOnly):
                call()
    for call in (
        lambda: store.pop("g", "t"),
        lambda: store.ack(p.receipt),
        lambda: store.ack_batch([p.receipt]),
        lambda: store.change_invisible(p.receipt, 0),
    ):
        with pytest.raises(kvstore.StoreClosed):
            call()
