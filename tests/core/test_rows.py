"""Rows: values become the fields that a protocol sends, and are the same values again."""

from __future__ import annotations

from random import Random

import pytest

from kvstore.core.messages import stored_of, stored_row, stored_rows
from kvstore.core.popping.receipts import Popped, popped_of, popped_rows
from kvstore.core.put_values import (
    Message,
    PutResult,
    PutStatus,
    message_rows,
    put_result_rows,
    put_results_of,
)
from tests.core.record_fuzzers import message_of
from tests.core.row_fuzzers import fields


def test_stored_messages_are_the_same_behind_their_rows() -> None:
    messages = [message_of(Random(n)) for n in range(50)]
    assert stored_rows(messages) == [fields(m) for m in messages]
    assert [stored_of(list(stored_row(m))) for m in messages] == messages
    assert [stored_of(stored_row(m)).expires_at for m in messages] == [
        m.expires_at for m in messages
    ]


def test_popped_messages_are_the_same_behind_their_rows() -> None:
    popped = [Popped(message_of(Random(n)), f"r{n}", n, 9 + n) for n in range(1, 20)]
    assert popped_of([list(row) for row in popped_rows(popped)]) == popped


def test_results_of_puts_are_the_same_behind_their_rows() -> None:
    results = [PutResult("ID", "t", 1, 2, 3, 4, status, True) for status in PutStatus]
    again = put_results_of([list(row) for row in put_result_rows(results)])
    assert again == results
    assert [type(one.status) for one in again] == [PutStatus] * len(results)


def test_messages_get_ids_unless_they_have_one_and_odd_ones_get_no_row() -> None:
    plain, own = Message("t", b"x", keys=("a",)), Message("t", b"x", message_id="OWN")
    odd = Message("t", b"x", keys=[5])  # type: ignore[list-item]  # the store refuses it
    rows = message_rows([plain, own, odd, 5], ["A", "B", "C", "D"])
    assert rows[0] is not None
    assert rows[1] is not None
    assert (rows[0][8], rows[1][8], rows[0][4], rows[0][5]) == ("A", "OWN", ("a",), {})
    assert rows[2:] == [None, None]


@pytest.mark.parametrize("row", [(), ("t",) * 17, [None] * 17, 5, ["t"] * 20])
def test_what_is_no_row_is_refused(row: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        stored_of(row)  # type: ignore[arg-type]  # as a frame may have it
