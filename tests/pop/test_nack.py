"""Nack: a message is given back with a reason, which its dead letter shows."""

from __future__ import annotations

from typing import Final

import pytest

from kvstore import (
    CallerError,
    Message,
    Nack,
    Popped,
    ReceiptExpired,
    ReceiptIllegal,
    Store,
)
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.popping import bodies, offsets, put
from tests.support.stores import Opens

REASON: Final = "DLQ_NACK_REASON"
BACKOFF: Final = 10.0

pytestmark = [
    pytest.mark.topic(queues=1),
    pytest.mark.group(max_attempts=3, backoff=[BACKOFF]),
]


def popped(store: Store, limit: int = 1) -> list[Popped]:
    found = store.pop("g", "t", limit)
    assert len(found) == limit
    return found


def reasons(store: Store) -> list[str | None]:
    found = store.pull("%DLQ%g", 0, 0, 32).messages
    return [letter.properties.get(REASON) for letter in found]


@pytest.mark.parametrize(("delay", "seconds"), [(None, BACKOFF), (3.5, 3.5), (0, 0)])
def test_a_message_comes_again_after_the_backoff_or_the_delay(
    store: Store, clock: VirtualClock, delay: float | None, seconds: float
) -> None:
    put(store, 1)
    store.nack(popped(store)[0].receipt, delay)
    if seconds:
        clock.advance(seconds - 0.001)
        assert store.pop("g", "t") == []
        clock.advance(0.001)
    assert popped(store)[0].attempt == 2


def test_a_receipt_is_good_for_one_nack(store: Store) -> None:
    put(store, 2)
    first, second = popped(store, 2)
    store.nack(first.receipt)
    for call in (store.nack, store.ack, store.change_invisible):
        with pytest.raises(ReceiptExpired):
            call(first.receipt)
    store.ack(second.receipt)
    with pytest.raises(ReceiptExpired):
        store.nack(second.receipt, reason="too late")
    with pytest.raises(ReceiptIllegal):
        store.nack("0" * 86)
    assert store.group_stats("g", "t")[0].in_flight == 1


def test_the_reason_stays_with_the_message_until_it_is_a_dead_letter(
    store: Store, opens: Opens, clock: VirtualClock
) -> None:
    put(store, 2)
    first, second = popped(store, 2)
    store.nack(first.receipt, 0, "the bank is closed")
    store.nack(second.receipt, 0)
    store = opens()
    again = popped(store, 2)
    assert offsets(again) == [0, 1]
    # The second lock runs out: nobody says why.
    clock.advance(3600)
    store = opens()
    for p in popped(store, 2):
        assert p.attempt == 3
        store.nack(p.receipt)
    # A nack without a reason takes the one before away.
    assert reasons(store) == [None, None]


def test_a_reason_outlives_locks_that_run_out_and_the_last_one_counts(
    store: Store, opens: Opens, clock: VirtualClock
) -> None:
    put(store, 2)
    first, second = popped(store, 2)
    store.nack(first.receipt, 0, "once")
    store.nack(second.receipt, 0, "once")
    first, second = popped(store, 2)
    store.nack(second.receipt, 0, "twice")
    store.change_invisible(first.receipt, 5.0)
    clock.advance(3600)
    store = opens()
    assert sorted(offsets(popped(store, 2))) == [0, 1]
    clock.advance(3600)
    assert store.pop("g", "t") == []
    found = store.pull("%DLQ%g", 0, 0, 32).messages
    assert {m.body: m.properties[REASON] for m in found} == {b"0": "once", b"1": "twice"}


def test_a_dead_letter_that_is_put_back_has_no_reason_any_more(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 1)
    store.nack(popped(store)[0].receipt, reason="the bank is closed")
    assert reasons(store) == ["the bank is closed"]
    store.redrive("g")
    popped(store)
    clock.advance(3600)
    assert store.pop("g", "t") == []
    assert reasons(store) == ["the bank is closed", None]


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("", None),
        ("ü" * 300, "ü" * 256),
        ("x" + "ü" * 300, "x" + "ü" * 255),
        ("a\x01b\x02c\x00d\r\n\te", "a b c d \n\te"),
        ("\ud800", "?"),
        ("x" * 10_000_000, "x" * 512),
    ],
)
def test_a_reason_is_bounded_and_may_be_any_text(
    store: Store, reason: str, kept: str | None
) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 1)
    store.nack(popped(store)[0].receipt, reason=reason)
    assert reasons(store) == [kept]


def test_a_letter_too_large_for_its_original_has_the_reason(store: Store) -> None:
    store.alter_group("g", max_attempts=1)
    store.put("t", b"", properties={"p": "x" * 32_000})
    store.nack(popped(store)[0].receipt, reason="r" * 512)
    (letter,) = store.pull("%DLQ%g", 0, 0, 32).messages
    assert letter.properties[REASON] == "r" * 512


def test_an_expired_message_has_the_reason_of_its_last_attempt(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", dead_letter_expired=True)
    store.put("t", b"", expires_at=clock.now_ms() + 5000)
    store.nack(popped(store)[0].receipt, reason="later")
    clock.advance(3600)
    assert store.pop("g", "t") == []
    assert reasons(store) == ["later"]


def test_of_a_batch_each_message_has_its_own_answer_delay_and_reason(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 4)
    a, b, c, d = popped(store, 4)
    store.ack(c.receipt)
    asked = [
        Nack(d.receipt, 5.0, "d"), Nack(c.receipt), Nack("x"), Nack(a.receipt, 1.0, "a"),
        Nack(a.receipt, 1.0, "again"), Nack(b.receipt, 5.0, "d"),
    ]  # fmt: skip
    found = store.nack_batch(asked)
    kinds = [True if r is True else type(r) for r in found]
    assert kinds == [True, ReceiptExpired, ReceiptIllegal, True, ReceiptExpired, True]
    clock.advance(1)
    assert bodies(store.pop("g", "t", 9)) == [b"0"]
    clock.advance(4)
    assert bodies(store.pop("g", "t", 9)) == [b"1", b"3"]
    assert store.nack_batch([]) == []


def test_messages_of_a_row_that_are_treated_alike_stay_in_one_row(store: Store) -> None:
    put(store, 200)
    found = popped(store, 200)
    receipts = store.change_invisible_batch([p.receipt for p in reversed(found)], 60.0)
    assert inside.table(store, "g", "t").rows == 1
    assert all(isinstance(receipt, str) for receipt in receipts)
    nacks = [Nack(str(receipt), 5.0, "even" if n % 2 else "odd") for n, receipt in
             enumerate(receipts)]  # fmt: skip
    assert store.nack_batch(nacks) == [True] * 200
    assert inside.table(store, "g", "t").rows == 2


def test_renewed_receipts_come_in_the_order_in_which_they_were_given(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 3)
    a, b, c = popped(store, 3)
    renewed = store.change_invisible_batch([c.receipt, a.receipt, a.receipt], 60.0)
    assert isinstance(renewed[2], ReceiptExpired)
    store.ack(str(renewed[0]))
    clock.advance(45)
    # The lock of b ran out, that of a was renewed.
    assert bodies(store.pop("g", "t", 9)) == [b"1"]
    store.ack(str(renewed[1]))
    with pytest.raises(ReceiptExpired):
        store.ack(b.receipt)


def test_late_renewals_of_a_batch_take_no_more_room_than_the_cap_has(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", max_in_flight=2)
    store.create_topic("other", queues=1)
    put(store, 2)
    store.put("other", b"")
    late = popped(store, 2)
    clock.advance(3600)
    assert len(store.pop("g", "other")) == 1
    found = store.change_invisible_batch([p.receipt for p in late], 60.0)
    assert [isinstance(r, str) for r in found] == [True, False]
    assert "max_in_flight" in str(found[1])


def test_a_pop_that_is_undone_does_not_count(store: Store) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 2)
    found = popped(store, 2)
    store.ack(found[1].receipt)
    results = store.undo_pop([p.receipt for p in found])
    assert results[0] is True
    assert isinstance(results[1], ReceiptExpired)
    (again,) = store.pop("g", "t", 9)
    assert (again.message.offset, again.attempt) == (0, 1)


def test_a_nack_wakes_a_pop_that_waits(store: Store, clock: VirtualClock) -> None:
    put(store, 1)
    store.nack(popped(store)[0].receipt, 0)
    assert bodies(store.pop("g", "t", wait=10.0)) == [b"0"]


@pytest.mark.parametrize(
    "nacks",
    ["receipt", [1], [Nack("x", -1.0)], [Nack("x", float("nan"))],
     [Nack("x", 1.0, None)], [Nack("x", "1")]],  # type: ignore[arg-type]  # wrong on purpose
)  # fmt: skip
def test_nacks_that_are_none_are_refused(store: Store, nacks: list[Nack]) -> None:
    with pytest.raises(CallerError):
        store.nack_batch(nacks)


def test_a_namespaces_letters_have_reasons(store: Store) -> None:
    view = store.namespace("ns")
    view.create_topic("t")
    view.create_group("g", max_attempts=1)
    view.put_batch([Message("t", b"x")] * 2)
    first, second = view.pop("g", "t", 2)
    view.nack(first.receipt, reason="no")
    assert view.nack_batch([Nack(second.receipt, reason="no")]) == [True]
    letters = view.pull("%DLQ%g", 0, 0, 9).messages
    assert [m.properties[REASON] for m in letters] == ["no", "no"]
