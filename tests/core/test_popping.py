"""A popped message is a value: it is compared, shown, copied and pickled by its fields."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from kvstore import Popped
from kvstore.core.popping.inflight import Change, InflightRows
from kvstore.core.popping.receipts import Delivery, Receipts, body_bytes
from tests.core.test_messages import message
from tests.support.collecting import amid_collections

FIELDS = Popped.__match_args__


def popped(**changes: Any) -> Popped:
    return Popped(message(), "receipt", 2, 3).__replace__(**changes)


def test_a_popped_message_is_copied_pickled_and_hashed_like_a_value() -> None:
    one = popped()
    for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one)), popped()):
        assert again == one
        assert hash(again) == hash(one)
        assert repr(again) == repr(one)
    assert repr(one) == f"Popped(message={message()!r}, receipt='receipt', attempt=2, due_at=3)"
    assert (one == object()) is False


@pytest.mark.parametrize("name", FIELDS)
def test_popped_messages_that_differ_in_one_field_are_not_equal(name: str) -> None:
    assert popped(**{name: "other"}) != popped()


@pytest.mark.parametrize("name", [*FIELDS, "another"])
def test_a_popped_message_can_not_be_changed(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(popped(), name, 1)


def test_a_popped_message_is_taken_apart_by_a_pattern() -> None:
    match popped():
        case Popped(found, receipt, attempt, due_at):
            assert (found, receipt, attempt, due_at) == (message(), "receipt", 2, 3)


def test_messages_of_a_row_get_their_receipts_in_order() -> None:
    messages = [message(offset=n) for n in range(3)]
    delivery = Delivery(Receipts(b"secret"), 1, 2, 3, 4, 5, 6)
    receipts = delivery.receipts(0b1011)
    made = delivery.popped(messages, 0b1011, 2, 3)
    assert made == [Popped(m, r, 2, 3) for m, r in zip(messages, receipts, strict=True)]


@pytest.mark.parametrize("places", [0b0, 0b11])
def test_messages_that_have_not_as_many_places_are_refused(places: int) -> None:
    with pytest.raises(ValueError, match=f"1 messages are not those of {places.bit_count()} bits"):
        Delivery(Receipts(b"secret"), 1, 2, 3, 4, 5, 6).popped([message()], places, 2, 3)


def test_receipts_are_read_right_while_other_threads_read_others() -> None:
    """Garbage that is collected amid a look lets other threads in."""
    by = Receipts(b"secret")
    one, other = (Delivery(by, 1, 2, 3, 4, 5, nonce) for nonce in (6, 7))
    (receipt,), (others,) = one.receipts(1), other.receipts(1)
    sorted_rows, read = [], []
    with amid_collections(lambda: by.read(others)):
        for _ in range(200):
            sorted_rows.append(by.sort([receipt]).rows)
            read.append(by.read(receipt))
    assert sorted_rows == [[((1, 2, 3, 4, 5), 6)]] * 200
    assert read == [((1, 2, 3, 4, 5), 6, 0)] * 200


def test_a_message_without_a_body_has_no_bytes_to_count() -> None:
    one = message()
    del one.body
    with pytest.raises(TypeError):
        body_bytes([one])


def test_nothing_is_taken_from_no_queue() -> None:
    rows = InflightRows(1, 2, {})
    assert rows.take(Receipts(b"secret"), [], 1, 0, 0, 1, 0, 0, lambda *_: None) is None


def test_a_known_row_that_is_none_is_refused() -> None:
    by = Receipts(b"secret")
    asked = by.sort(Delivery(by, 1, 2, 3, 4, 5, 6).receipts(1))
    for known in (5, (), (1, 0, 6)):
        rows = InflightRows(1, 2, {})
        rows.known[1, 2, 3, 4, 5] = known
        with pytest.raises(TypeError, match="is not a tuple of 7 values"):
            rows.ack(Change(), asked, [0])
