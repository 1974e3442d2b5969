"""Fuzzers of the local protocol's values: written and read as MessagePack, and wrong ones."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec

from kvstore.core.popping.receipts import Popped
from kvstore.core.put_values import Message, PutResult, PutStatus
from kvstore.core.unique_ids import UniqueIds
from tests.core.fuzzing import Arguments, Fuzzer
from tests.core.record_fuzzers import message_of


def fields(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in type(value).__match_args__)


def popped_fields(popped: Popped) -> tuple[Any, ...]:
    return (fields(popped.message), *fields(popped)[1:])


def _stored(rng: Random) -> Arguments:
    return ([message_of(rng) for _ in range(rng.randint(0, 3))],)


def _stored_row(rng: Random) -> Arguments:
    return (list(fields(message_of(rng))),)


def _popped(rng: Random) -> list[Popped]:
    count = rng.randint(0, 3)
    return [Popped(message_of(rng), f"r{n}", rng.randint(1, 9), 5) for n in range(count)]


def _results(rng: Random) -> list[PutResult]:
    status = rng.choice(list(PutStatus))
    return [
        PutResult("ID", "t", rng.randint(0, 9), -1, rng.getrandbits(40), 9, status, True)
        for _ in range(rng.randint(0, 3))
    ]


def to_put(rng: Random) -> list[Any]:
    """Messages of which some hold values that none has."""
    given: dict[str, Any] = {
        "queue": rng.choice((None, 0, 3, "x", -(1 << 40), 1 << 80, object())),
        "keys": rng.choice(((), ("a", "b"), ["c"], [5], None)),
        "properties": rng.choice(({"a": "b"}, {5: "b"}, {})),
        "message_id": rng.choice((None, "OWN", "\ud800")),
        "delay": rng.choice((None, 1.5, 3)),
        "tag": rng.choice((None, "x" * 40, "x" * 300, True)),
    }
    return [Message("t", rng.randbytes(rng.choice((0, 3, 300))), **given) for _ in range(2)]


def _packed(rng: Random) -> Arguments:
    return to_put(rng), UniqueIds(bytes(4), 1, 2), rng.getrandbits(40), lambda *_: b"\xc0"


def _columns(rng: Random, depth: int = 2) -> list[Any]:
    """Values as packed columns have them, or a wrong one."""
    inner = [_columns(rng, depth - 1) for _ in range(rng.randint(0, depth))]
    wrong = (rng.choice((object(), [5], "\ud800", {5: 5})),) if rng.random() < 0.1 else ()
    size = rng.choice((0, 5, 300, 70_000))
    return ["t", rng.random() < 0.5, rng.getrandbits(40), rng.randbytes(size), *wrong, inner]


def _as_frame(values: list[Any]) -> Arguments:
    return 1, 7, values


def _messages(rng: Random) -> Arguments:
    rows = [[f if type(f) is not object else None for f in fields(m)] for m in to_put(rng)]
    plain = [["t", b"x", *[None] * 13] if _is_odd(row) else row for row in rows]
    return (msgspec.msgpack.encode([plain]),)


def _is_odd(row: list[Any]) -> bool:
    try:
        msgspec.msgpack.encode(row)
    except (TypeError, OverflowError, UnicodeEncodeError):
        return True
    return False


LOCAL_FUZZERS: Final = {
    "messages.stored_of": Fuzzer(_stored_row),
    "transport.local_packing.pack_messages": Fuzzer(_packed),
    "transport.local_packing.frame_of_stored": Fuzzer(lambda rng: _as_frame(*_stored(rng))),
    "transport.local_packing.frame_of_columns": Fuzzer(lambda rng: _as_frame(_columns(rng))),
    "transport.local_packing.frame_of_results": Fuzzer(lambda rng: _as_frame(_results(rng))),
    "transport.local_packing.frame_of_popped": Fuzzer(lambda rng: _as_frame(_popped(rng))),
    "transport.local_reading.read_messages": Fuzzer(_messages),
    "transport.local_reading.read_results": Fuzzer(
        lambda rng: (msgspec.msgpack.encode([fields(one) for one in _results(rng)]),)
    ),
    "transport.local_reading.read_popped": Fuzzer(
        lambda rng: (msgspec.msgpack.encode([popped_fields(one) for one in _popped(rng)]),)
    ),
}
