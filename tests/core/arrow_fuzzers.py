"""Fuzzers of the core's functions for Arrow's columns."""

from __future__ import annotations

import gc
import struct
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

import pyarrow as pa

from kvstore.core.arrow.column_batch import columns_to_put
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.arrow.packed_columns import (
    columns_to_send,
    pack_columns,
    results_in,
    unpack_columns,
)
from kvstore.core.arrow.pulled_columns import COLUMN_NAMES, PulledColumns
from kvstore.core.arrow.put_rows import (
    columns_of_results,
    prepare_columns,
    result_columns,
    row_results,
)
from kvstore.core.messages import ExpiryCheck, StoredMessage
from kvstore.core.names import RESERVED
from kvstore.core.put_values import PutResult, PutStatus
from kvstore.core.queue_offsets import QueueOffsets
from kvstore.core.tail import Tail
from kvstore.errors import MessageIllegal
from tests.core.arrow_structs import Handed, Made
from tests.core.fuzzing import Arguments, Fuzzer
from tests.core.record_fuzzers import message_of, queue_of, queue_read
from tests.core.test_encoding import encoder
from tests.reference import records
from tests.support.queue_reading import read_queue

_ENCODER: Final = encoder()
_SEEN: Final = 20
"""So many rows are looked at as messages."""


# --- columns to put ---


def made_texts(form: str, name: str, values: Sequence[bytes | None], dictionary: Any = ()) -> Made:
    """An array of texts, with the offsets of its format."""
    ends, data = [0], b""
    for value in values:
        data += value or b""
        ends.append(len(data))
    bounds = struct.pack(f"<{len(ends)}{'q' if form in 'ZU' else 'i'}", *ends)
    nulls = [value is None for value in values]
    return [
        form,
        name,
        len(values),
        0,
        sum(nulls),
        [_valid(nulls), bounds, data],
        [],
        [*dictionary],
    ]


def _views(rng: Random, name: str, values: Sequence[bytes | None]) -> Made:
    words, data = b"", b""
    for value in values:
        text = value or b""
        if len(text) <= 12:
            words += struct.pack("<i12s", len(text), text)
        else:
            words += struct.pack("<i4sii", len(text), text[:4], 0, len(data))
            data += text
    nulls = [value is None for value in values]
    buffers = [_valid(nulls), words, data, struct.pack("<q", len(data))]
    return ["vu", name, len(values), 0, sum(nulls), buffers, [], []]


def _numbers(rng: Random, form: str, name: str, values: Sequence[int | None]) -> Made:
    letter = {"c": "b", "C": "B", "s": "h", "S": "H", "l": "q", "L": "Q"}.get(form[0], form[0])
    if form.startswith("ts"):
        letter = "q"
    items = struct.pack(f"<{len(values)}{letter}", *(value or 0 for value in values))
    nulls = [value is None for value in values]
    return [form, name, len(values), 0, sum(nulls), [_valid(nulls), items], [], []]


def _lists(rng: Random, form: str, name: str, counts: Sequence[int], of: Made) -> Made:
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    bounds = struct.pack(f"<{len(ends)}{'q' if form == '+L' else 'i'}", *ends)
    return [form, name, len(counts), 0, 0, [None, bounds], [of], []]


def _valid(nulls: Sequence[bool]) -> bytes | None:
    if not any(nulls):
        return None
    bits = sum(1 << i for i, null in enumerate(nulls) if not null)
    return bits.to_bytes((len(nulls) + 7) // 8, "little")


def _texts(rng: Random, name: str, count: int, nullable: bool = True) -> Made:
    values = [
        None if nullable and rng.random() < 0.2
        else "".join(rng.choices("ab1é€😀|", k=rng.randint(1, 12))).encode()
        for _ in range(count)
    ]  # fmt: skip
    match rng.randrange(4):
        case 0:
            return _views(rng, name, values)
        case 1 if nullable and count:
            numbers = _numbers(rng, "i", name, [rng.choice((None, 0, 1)) for _ in range(count)])
            return [*numbers[:7], [made_texts("u", "", [b"a", b"bc"])]]
    return made_texts(rng.choice("uU"), name, values)


def _to_given(rng: Random) -> Arguments:
    """The parts of a struct's array: its length, offset, and columns."""
    rows, offset = rng.choice((0, 1, 2, 3, 9)), rng.choice((0, 0, 0, 1))
    count = rows + offset
    keys = [rng.randrange(3) for _ in range(count)]
    pairs = [rng.randrange(3) for _ in range(count)]
    total = sum(pairs)
    entries = [
        "+s", "entries", total, 0, 0, [None],
        [made_texts("u", "key", [b"k%d" % i for i in range(total)]),
         made_texts("u", "value", [b"v"] * total)], [],
    ]  # fmt: skip
    columns = [
        made_texts(rng.choice("zZuU"), "body", [rng.randbytes(rng.randrange(9)) for _ in keys]),
        _numbers(rng, rng.choice("cCsSiIlL"), "queue", [rng.choice((None, 0, 3)) for _ in keys]),
        _texts(rng, "tag", count),
        _lists(rng, rng.choice(("+l", "+L")), "keys", keys, _texts(rng, "item", sum(keys), False)),
        _lists(rng, "+m", "properties", pairs, entries),
        _texts(rng, "message_group", count),
        _numbers(rng, rng.choice("IL"), "flags", [rng.randrange(1 << 20) for _ in keys]),
        _texts(rng, "message_id", count),
        _numbers(
            rng, rng.choice(("l", "tsm:", "tss:UTC", "tsu:", "tsn:")), "born_at",
            [rng.choice((None, rng.getrandbits(50))) for _ in keys],
        ),
        _texts(rng, "dedup_id", count),
        ["n", "tag", count, 0, count, [], [], []],
    ]  # fmt: skip
    chosen = [columns[0], *rng.sample(columns[1:10], rng.randrange(10))]
    if rng.random() < 0.1:
        chosen = [columns[0], columns[10]]
    return rows, offset, chosen


def _given(*made: Any) -> Handed:
    rows, offset, columns = made
    if not all(type(number) is int and abs(number) < 1 << 63 for number in (rows, offset)):
        raise ValueError("no structure has this number")
    return Handed(["+s", "", rows, offset, 0, [None], columns, []])


def _read(*made: Any) -> int:
    """The rows, each as a message; the array's release is called once."""
    handed = _given(*made)
    try:
        given = GivenColumns(handed)
    except MessageIllegal:
        assert handed.released() <= 1
        raise
    count = len(given)
    try:
        for row in range(min(count, _SEEN)):
            given.message("t", row)
    finally:
        assert not handed.released()
        del given
    assert handed.released() == 1
    return count


def _put(*made: Any) -> list[dict[str, Any]]:
    """The places of the rows, whose records are whole and say what the rows do."""
    handed = _given(*made)
    given = GivenColumns(handed)
    if len(given) > _SEEN:
        return []
    batch = prepare_columns(_ENCODER, "t", given, 5)
    pieces = Tail(0).add(batch, QueueOffsets(lambda queue: 7), 500, 1 << 16, 5)
    data, at = b"".join(piece for _, piece in pieces), 0
    found = pa.record_batch(result_columns(batch))
    found.validate(full=True)
    places: list[dict[str, Any]] = found.to_pylist()
    for row, place in enumerate(places):
        message = given.message("t", row)
        record = records.read(data[at:], place["position"])
        assert records.check(data[at:], place["position"]) == place["size"]
        assert record.body == message.body
        assert message.message_id in (None, place["message_id"])
        dedup_id = "" if message.dedup_id is None else f"__DEDUP\x01{message.dedup_id}\x02"
        begin = f"{dedup_id}UNIQ_KEY\x01{place['message_id']}"
        assert record.properties.startswith(begin.encode())
        at += place["size"]
    for place, result in zip(places, row_results(batch, PutStatus.STAGED), strict=True):
        assert {name: getattr(result, name) for name in place} == place
    assert at == len(data)
    batch.forget_bodies()
    del given
    gc.collect(0)
    assert handed.released() == 1
    return places


# --- values of Python ---


def _to_columns(rng: Random) -> Arguments:
    def texts(count: int) -> list[str]:
        return ["".join(rng.choices("ab1é\ud800", k=rng.randrange(5))) for _ in range(count)]

    rows = rng.choice((0, 1, 2, 9))
    return (
        [rng.choice((rng.randbytes(3), "é")) for _ in range(rows)],
        [rng.choice((None, rng.getrandbits(40))) for _ in range(rows)],
        [rng.choice((None, *texts(1))) for _ in range(rows)],
        [texts(rng.randrange(3)) for _ in range(rows)],
        [dict(zip(texts(2), texts(2), strict=True)) for _ in range(rows)],
        [rng.choice((None, *texts(1))) for _ in range(rows)],
        [rng.choice((None, rng.getrandbits(42))) for _ in range(rows)],
        [rng.choice((None, rng.getrandbits(50))) for _ in range(rows)],
        [rng.choice((None, *texts(1))) for _ in range(rows)],
    )


def _columns(*given: Any) -> int:
    """The rows, each as a message."""
    rows = GivenColumns(columns_to_put(*given))
    for row in range(len(rows)):
        found = rows.message("t", row)
        body = given[0][row]
        assert found.body == (body.encode("utf-8", "surrogatepass") if type(body) is str else body)
        assert len(found.keys) == len(given[3][row])
        assert found.queue == given[1][row] or given[1][row] < 0
        assert found.deliver_at == given[6][row] or given[6][row] < 0
        assert found.expires_at == given[7][row] or given[7][row] < 0
    return len(rows)


# --- columns that are sent ---


def _send(*made: Any) -> int:
    """The rows that arrive are those that were given, and each has an id."""
    handed = _given(*made)
    given = GivenColumns(handed)
    if len(given) > _SEEN:
        return 0
    batch = columns_to_send(given, [f"own-{row}" for row in range(len(given))])
    packed = pack_columns(batch)
    arrived = unpack_columns(packed)
    assert pack_columns(arrived) == packed
    rows = GivenColumns(arrived)
    for row in range(len(given)):
        try:
            message = given.message("t", row)
        except MessageIllegal:
            continue  # two properties of one name, which arrive as they are
        if message.message_id is None:
            message.message_id = f"own-{row}"
        assert rows.message("t", row) == message
    return len(rows)


def _to_unpack(rng: Random) -> Arguments:
    handed = _given(*_to_given(rng))
    rows = GivenColumns(handed)
    return (pack_columns(columns_to_send(rows, [""] * len(rows))),)


def _unpack(packed: Any) -> int:
    """Only columns that an Arrow library can read are made."""
    batch = unpack_columns(packed)
    with suppress(pa.ArrowNotImplementedError):  # a map without names
        pa.record_batch(batch).validate()
    pack_columns(batch)
    return len(batch)


def _to_results(rng: Random) -> Arguments:
    return (
        [
            (f"{rng.getrandbits(40):X}", "t", *[rng.getrandbits(50) - 1 for _ in range(4)], bool(n))
            for n in range(rng.choice((0, 1, 2, 9)))
        ],
    )


def _result(
    message_id: str, topic: str, queue: int, offset: int, position: int, size: int, duplicate: bool
) -> PutResult:
    place = (message_id, topic, queue, offset, position, size)
    return PutResult(*place, PutStatus.WRITTEN, duplicate)


def _results(rows: Any) -> int:
    """Results that were sent as columns are the same results."""
    results = [_result(*row) for row in rows]
    sent = unpack_columns(pack_columns(columns_of_results(results)))
    for was, found in zip(results, results_in(sent, "t", PutStatus.WRITTEN), strict=True):
        for name in ("queue", "offset", "position", "size", "status", "duplicate"):
            assert getattr(found, name) == getattr(was, name)
        if type(was.message_id) is str and was.message_id.isascii():
            assert found.message_id == was.message_id
    return len(results)


def _to_results_in(rng: Random) -> Arguments:
    results = [_result(*row) for row in _to_results(rng)[0]]
    return (pack_columns(columns_of_results(results)),)


def _results_in(packed: Any) -> int:
    return len(results_in(unpack_columns(packed), "t", PutStatus.WRITTEN))


# --- columns that are pulled ---


def rows_of(columns: PulledColumns) -> list[dict[str, Any]]:
    """The rows, as an Arrow library reads them."""
    found = pa.record_batch(columns.batch())
    found.validate(full=True)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def row_of(message: StoredMessage, names: Sequence[str] = COLUMN_NAMES) -> dict[str, Any]:
    """The row that a message is to be."""
    row = {name: getattr(message, name) for name in names}
    if "properties" in row:
        own = message.properties.items()
        row["properties"] = [(name, value) for name, value in own if name not in RESERVED]
    return row


def _to_pull(rng: Random) -> Arguments:
    m = message_of(rng)
    names = rng.sample(COLUMN_NAMES, rng.randint(1, len(COLUMN_NAMES)))
    return names, m.raw_properties, rng.randrange(4), rng.getrandbits(40)


def _stored(raw: bytes, queue: int, position: int) -> StoredMessage:
    return message_of(Random(1), raw_properties=raw, queue=queue, position=position)


def _pull(names: Any, raw: Any, queue: int, position: int) -> list[dict[str, Any]]:
    columns = PulledColumns(names)
    columns.extend([_stored(raw, queue, position)] * 2)
    return rows_of(columns)


def _pulled(names: Any, raw: Any, queue: int, position: int) -> Any:
    if type(raw) is not bytes or not 0 <= queue < 1 << 32 or not 0 <= position < 1 << 63:
        return NotImplemented
    if not set(names) <= set(COLUMN_NAMES) or len(set(names)) < len(names):
        return ValueError
    return [row_of(_stored(raw, queue, position), names)] * 2


def _read_queue(*given: Any) -> tuple[list[StoredMessage], list[int]]:
    """The messages, which are also the rows that are read into columns; and those that had expired,
    where they are passed over.
    """
    *place, check, whole, most, now, passed = given
    call: Any = read_queue
    expiries = [ExpiryCheck(now, passed, 1 << 62) if now else None for _ in range(2)]
    found: list[StoredMessage] = call(
        *place, check, property_crc=whole, max_bytes=most, expiry=expiries[0]
    )
    columns = PulledColumns()
    call(*place, check, property_crc=whole, max_bytes=most, out=columns, expiry=expiries[1])
    assert rows_of(columns) == [row_of(m) for m in found]
    passed_over = [[] if expiry is None else expiry.offsets for expiry in expiries]
    assert passed_over[0] == passed_over[1]
    return found, passed_over[0]


ARROW_FUZZERS: Final = {
    "arrow.column_batch.columns_to_put": Fuzzer(_to_columns, call=_columns),
    "arrow.given_columns.GivenColumns": Fuzzer(_to_given, call=_read),
    "arrow.packed_columns.columns_to_send": Fuzzer(_to_given, call=_send),
    "arrow.packed_columns.pack_columns": Fuzzer(_to_given, call=_send),
    "arrow.packed_columns.unpack_columns": Fuzzer(_to_unpack, call=_unpack),
    "arrow.packed_columns.results_in": Fuzzer(_to_results_in, call=_results_in),
    "arrow.put_rows.columns_of_results": Fuzzer(_to_results, call=_results),
    "arrow.put_rows.prepare_columns": Fuzzer(_to_given, call=_put),
    "arrow.put_rows.result_columns": Fuzzer(_to_given, call=_put),
    "arrow.put_rows.row_results": Fuzzer(_to_given, call=_put),
    "arrow.pulled_columns.PulledColumns": Fuzzer(_to_pull, _pulled, call=_pull),
    "messages.QueueReader": Fuzzer(queue_of, queue_read, call=_read_queue),
}
