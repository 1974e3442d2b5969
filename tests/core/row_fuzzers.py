"""Fuzzers of rows: the fields of many values, for the protocol of a served store."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from kvstore.core.popping.receipts import Popped
from kvstore.core.put_values import Message, PutResult, PutStatus
from tests.core.fuzzing import Arguments, Fuzzer
from tests.core.record_fuzzers import message_of


def fields(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in type(value).__match_args__)


def _stored(rng: Random) -> Arguments:
    return (message_of(rng),)


def _many_stored(rng: Random) -> Arguments:
    return ([message_of(rng) for _ in range(rng.randint(0, 3))],)


def _stored_row(rng: Random) -> Arguments:
    return (list(fields(message_of(rng))),)


def _popped(rng: Random) -> Popped:
    return Popped(message_of(rng), f"r{rng.getrandbits(30)}", rng.randint(1, 9), 5)


def _many_popped(rng: Random) -> Arguments:
    return ([_popped(rng) for _ in range(rng.randint(0, 3))],)


def _popped_row(popped: Popped) -> list[Any]:
    return [fields(popped.message), popped.receipt, popped.attempt, popped.due_at]


def _popped_rows(rng: Random) -> Arguments:
    return ([_popped_row(_popped(rng)) for _ in range(rng.randint(0, 3))],)


def _result(rng: Random) -> PutResult:
    status = rng.choice(list(PutStatus))
    return PutResult("ID", "t", rng.randint(0, 9), -1, rng.getrandbits(40), 9, status, True)


def _results(rng: Random) -> Arguments:
    return ([_result(rng) for _ in range(rng.randint(0, 3))],)


def _result_rows(rng: Random) -> Arguments:
    return ([list(fields(_result(rng))) for _ in range(rng.randint(0, 3))],)


def _to_put(rng: Random) -> Arguments:
    given: dict[str, Any] = {
        "queue": rng.choice((None, 0, 3, "x", object())),
        "keys": rng.choice(((), ("a", "b"), ["c"], [5], None)),
        "properties": rng.choice(({"a": "b"}, {5: "b"}, {})),
        "message_id": rng.choice((None, "OWN")),
    }
    messages: list[Any] = [Message("t", rng.randbytes(3), **given) for _ in range(2)]
    return messages, ["A", "B"]


ROW_FUZZERS: Final = {
    "messages.stored_row": Fuzzer(_stored),
    "messages.stored_rows": Fuzzer(_many_stored),
    "messages.stored_of": Fuzzer(_stored_row),
    "popping.receipts.popped_rows": Fuzzer(_many_popped),
    "popping.receipts.popped_of": Fuzzer(_popped_rows),
    "put_values.message_rows": Fuzzer(_to_put),
    "put_values.put_result_rows": Fuzzer(_results),
    "put_values.put_results_of": Fuzzer(_result_rows),
}
