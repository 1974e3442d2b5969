"""A lock is renewed under its receipt, which stays good for acks, changes and further renewals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import GroupNotFound, Message, Popped, ReceiptExpired, ReceiptIllegal, Store
from tests.support.clock import VirtualClock
from tests.support.popping import bodies
from tests.support.stores import settings

pytestmark = [pytest.mark.topic(queues=1), pytest.mark.group(max_attempts=3)]


def popped(store: Store, count: int = 1, attempt_id: str | None = None) -> list[Popped]:
    store.put_batch([Message("t", b"%d" % n) for n in range(count)])
    found = store.pop("g", "t", count, 10.0, attempt_id=attempt_id)
    assert len(found) == count
    return found


def receipts(found: list[Popped]) -> list[str]:
    return [p.receipt for p in found]


def test_a_renewed_lock_ends_later_and_its_receipt_acks(store: Store, clock: VirtualClock) -> None:
    (p,) = popped(store)
    clock.advance(9)
    assert store.renew_batch([p.receipt], 10.0) == [True]
    clock.advance(9)

    assert store.pop("g", "t") == []
    store.ack(p.receipt)
    clock.advance(100)
    assert store.pop("g", "t") == []


def test_a_lock_that_is_renewed_no_more_ends(store: Store, clock: VirtualClock) -> None:
    (p,) = popped(store)
    store.renew_batch([p.receipt], 10.0)
    clock.advance(11)

    (again,) = store.pop("g", "t")

    assert (again.message.offset, again.attempt) == (p.message.offset, 2)
    with pytest.raises(ReceiptExpired):
        store.ack(p.receipt)


def test_a_renewal_lets_a_lock_end_earlier_too(store: Store, clock: VirtualClock) -> None:
    (p,) = popped(store)
    store.renew_batch([p.receipt], 1.0)
    clock.advance(2)

    assert [again.attempt for again in store.pop("g", "t")] == [2]


def test_the_messages_of_a_pop_are_renewed_by_any_of_their_receipts_and_acked_by_each(
    store: Store, clock: VirtualClock
) -> None:
    found = popped(store, 4)
    store.ack(found[0].receipt)
    clock.advance(9)

    assert store.renew_batch([found[2].receipt], 10.0) == [True]
    clock.advance(9)

    assert store.pop("g", "t", 9) == []
    assert store.ack_batch(receipts(found)) == [True] * 4
    assert store.group_stats("g", "t")[0].in_flight == 0


def test_a_renewal_of_an_acked_message_is_refused_and_renews_the_others(
    store: Store, clock: VirtualClock
) -> None:
    found = popped(store, 2)
    store.ack(found[0].receipt)

    first, second = store.renew_batch(receipts(found), 20.0)

    assert isinstance(first, ReceiptExpired)
    assert second is True
    clock.advance(15)
    assert store.pop("g", "t", 9) == []


def test_a_receipt_that_is_over_or_none_renews_nothing(store: Store, clock: VirtualClock) -> None:
    (p,) = popped(store)
    clock.advance(11)
    (again,) = store.pop("g", "t", 1, 10.0)

    over, none = store.renew_batch([p.receipt, "none"], 99.0)

    assert isinstance(over, ReceiptExpired)
    assert isinstance(none, ReceiptIllegal)
    clock.advance(11)
    assert [one.attempt for one in store.pop("g", "t")] == [again.attempt + 1]


def test_renewing_twice_in_one_call_and_one_after_the_other_is_as_good_as_once(
    store: Store, clock: VirtualClock
) -> None:
    (p,) = popped(store)
    for _ in range(3):
        assert store.renew_batch([p.receipt, p.receipt], 10.0) == [True, True]
        clock.advance(9)

    assert store.group_stats("g", "t")[0].in_flight == 1
    store.ack(p.receipt)
    assert store.group_stats("g", "t")[0].in_flight == 0


def test_a_renewed_lock_is_changed_and_given_back_by_its_receipt(
    store: Store, clock: VirtualClock
) -> None:
    first, second = popped(store, 2)
    store.renew_batch(receipts([first, second]), 10.0)

    store.change_invisible(first.receipt, 0)
    moved = store.change_invisible(second.receipt, 50.0)

    assert [p.message.body for p in store.pop("g", "t", 9)] == [b"0"]
    with pytest.raises(ReceiptExpired):
        store.ack(second.receipt)
    store.ack(moved)


def reopened(store: Store) -> Store:
    path, config = store.path, store.config
    store.close()
    return kvstore.open(path, config)


def test_a_renewed_lock_of_a_pop_with_an_attempt_id_is_found_by_its_receipt_after_a_reopening(
    store: Store, clock: VirtualClock
) -> None:
    found = popped(store, 3, attempt_id="a")
    store.renew_batch(receipts(found), 10.0)
    clock.advance(9)

    with reopened(store) as again:
        assert again.ack_batch([found[0].receipt]) == [True]
        assert again.renew_batch(receipts(found[1:]), 10.0) == [True, True]
        clock.advance(9)
        assert again.pop("g", "t", 9) == []
        repeated = again.pop("g", "t", 3, 10.0, attempt_id="a")
        assert bodies(repeated) == [b"1", b"2"]
        # The same message by both of its receipts.
        assert again.ack_batch([found[1].receipt, repeated[0].receipt]) == [True, True]
        assert again.renew_batch([found[2].receipt, repeated[1].receipt], 10.0) == [True, True]
        assert again.group_stats("g", "t")[0].in_flight == 1
    with kvstore.open(again.path, again.config) as at_last:
        assert at_last.group_stats("g", "t")[0].in_flight == 1
        clock.advance(11)
        assert bodies(at_last.pop("g", "t", 9)) == [b"2"]


def test_a_renewed_message_holds_up_its_group_until_it_is_acked(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", ordered=True)
    for n in range(3):
        store.put("t", b"%d" % n, message_group="u")
    (p,) = store.pop("g", "t", 1, 10.0)
    store.renew_batch([p.receipt], 30.0)
    clock.advance(20)
    assert store.pop("g", "t") == []

    store.ack(p.receipt)

    assert bodies(store.pop("g", "t", 9))[0] == b"1"


def test_a_lock_that_ran_out_is_not_renewed_beyond_the_cap(
    store: Store, clock: VirtualClock
) -> None:
    store.alter_group("g", max_in_flight=1)
    store.put_batch([Message("t", b"0"), Message("t", b"1")])
    (first,) = store.pop("g", "t", 1, 10.0)
    clock.advance(5)
    assert store.renew_batch([first.receipt], 5.0) == [True]
    clock.advance(6)
    (second,) = store.pop("g", "t", 1, 10.0)

    (result,) = store.renew_batch([first.receipt], 5.0)

    assert isinstance(result, ReceiptExpired)
    store.ack(second.receipt)


def test_the_lock_of_a_deleted_group_is_renewed_no_more(store: Store) -> None:
    (p,) = popped(store)
    store.delete_group("g")

    (result,) = store.renew_batch([p.receipt], 5.0)

    assert isinstance(result, ReceiptExpired)
    with pytest.raises(GroupNotFound):
        store.group("g")


def test_a_message_that_is_given_up_is_a_dead_letter_at_once(store: Store) -> None:
    first, second = popped(store, 2)
    store.give_up(first.receipt)

    assert bodies_of(store, "%DLQ%g") == [b"0"]
    assert store.group_stats("g", "t")[0].in_flight == 1
    with pytest.raises(ReceiptExpired):
        store.give_up(first.receipt)
    store.ack(second.receipt)


def bodies_of(store: Store, topic: str) -> list[bytes]:
    return [m.body for m in store.pull(topic, 0, 0).messages]


def test_memory_of_renewed_rows_is_bounded_and_what_is_forgotten_is_found(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.pop.inflight.tables.ENDED_MAX", 1)
    with kvstore.open(tmp_path / "few", settings(clock=clock)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        store.put_batch([Message("t", b"") for _ in range(3)])
        found = [store.pop("g", "t", 1, 10.0, attempt_id=f"{n}")[0] for n in range(3)]
        renew: Callable[[], object] = lambda: store.renew_batch(receipts(found), 10.0)  # noqa: E731

        assert renew() == [True] * 3
        assert renew() == [True] * 3
        assert store.ack_batch(receipts(found)) == [True] * 3
