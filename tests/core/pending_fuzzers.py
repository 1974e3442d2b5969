"""Fuzzers of the core's functions for messages that wait."""

from __future__ import annotations

import struct
from random import Random
from typing import Any, Final

import numpy as np

from kvstore.core.names import TIMER_TOPIC
from kvstore.core.pending.pending_records import (
    prepare_copies,
    prepare_notes,
    read_end,
    read_pending,
)
from kvstore.core.tail import Tail, waiting_rows
from kvstore.errors import RecordDamaged
from kvstore.index.keys import timer_key
from tests.core.fuzzing import Arguments, Fuzzer
from tests.core.record_fuzzers import message_of, part
from tests.core.test_encoding import QUEUES, encoder, placed
from tests.reference import pending as plain
from tests.reference import records
from tests.reference.encode import encode_record

ENCODER: Final = encoder()
_PAIRS: Final = (
    b"UNIQ_KEY\x01a1\x02", b"KEYS\x01k  l\x02", b"TAGS\x01x||y\x02", b"a\x01b\x02", b"", b"\x02",
    b"__SHARDINGKEY\x01g\x02", b"TIMER_BEFORE_MS\x011700000000000\x02", b"a\x01\x01b\x02",
    b"TIMER_DEL_UNIQKEY\x01t+a1\x02", b"TIMER_OUT_MS\x011700000000001\x02",
    b"REAL_TOPIC\x01t\x02", b"REAL_QID\x010000000001\x02", b"REAL_QID\x012\x02",
)  # fmt: skip
_WAITS: Final = b"TIMER_OUT_MS\x011700000000000\x02REAL_TOPIC\x01t\x02REAL_QID\x010000000001\x02"


def _properties(rng: Random) -> bytes:
    some = b"".join(rng.choice(_PAIRS) for _ in range(rng.randint(0, 6)))
    return rng.choice((some, b"UNIQ_KEY\x01a1\x02" + some + _WAITS))


def _to_copy(rng: Random) -> Arguments:
    position = rng.choice((0, 5 << 30))
    before = rng.randbytes(rng.choice((0, 7)))
    raw = encode_record(message_of(rng, position=position, raw_properties=_properties(rng)))
    data = before + raw + rng.choice((b"", b"\0"))
    return (
        data,
        len(before),
        len(data),
        position,
        1_700_000_000_000,
        rng.choice((0, 1_800_000_000_000)),
    )


def _copied(buffer: Any, at: int, end: int, position: int, due: int, wanted: int) -> Any:
    held = buffer, at, end, position, due, "t", 7
    data = placed(prepare_copies(ENCODER, [held], [wanted], check_crc=True))
    copy = records.read(data, 0)
    assert records.check(data, 0, False) == len(data)
    return copy.topic, copy.body, copy.properties, copy.prepared_position, copy.flags


def _plain_copied(buffer: Any, at: int, end: int, position: int, due: int, wanted: int) -> Any:
    raw = part(buffer, at, end)
    size = records.check(raw, position, False)  # raises RecordDamaged
    record = records.read(raw, position) if size > 0 else None
    found = None if record is None else plain.read_pending(record.properties)
    if record is None or found is None or b"UNIQ_KEY" not in dict(records.pairs(record.properties)):
        return RecordDamaged
    if not (0 <= due < 10**13 and 0 <= wanted < 10**13) or found[1] != "t":
        return NotImplemented  # the topic of a copy is the caller's, and the record's
    made = plain.copied_properties(record.properties, due, wanted, "t", found[2] % QUEUES)
    topic = TIMER_TOPIC.encode() if wanted else b"t"
    return topic, record.body, made, position + 1, record.flags


def _cancelled(buffer: Any, at: int, end: int, position: int, due: int, _: int) -> Any:
    held = buffer, at, end, position, due, "t", 7
    data = placed(prepare_notes(ENCODER, [held]))
    note = records.read(data, 0)
    found = dict(records.pairs(note.properties))
    named = b"TIMER_DEL_UNIQKEY", b"UNIQ_KEY", b"REAL_TOPIC", b"TIMER_OUT_MS"
    return note.topic, note.body, [found[name] for name in named], note.prepared_position


def _plain_cancelled(buffer: Any, at: int, end: int, position: int, due: int, _: int) -> Any:
    raw = part(buffer, at, end)
    try:
        if records.check(raw, position, False) <= 0:
            return RecordDamaged
    except RecordDamaged as e:
        # The body is not read.
        return NotImplemented if "CRC" in str(e) else e
    found = dict(records.pairs(records.read(raw, position).properties))
    if plain.read_pending(records.read(raw, position).properties) is None:
        return RecordDamaged
    if b"UNIQ_KEY" not in found or not 0 <= due < 10**13:
        return NotImplemented
    topic, its_id = found[b"REAL_TOPIC"], found[b"UNIQ_KEY"]
    written = [topic + b"+" + its_id, its_id, topic, b"%013d" % due]
    return TIMER_TOPIC.encode(), b"", written, position + 1


def _to_rows(rng: Random) -> Arguments:
    rows = [
        (
            rng.randbytes(rng.choice((16, 16, 16, 16, 16, 15))),
            rng.randbytes(rng.choice((8,) * 9 + (9,))),
        )
        for _ in range(rng.randint(0, 4))
    ]
    if rng.random() < 0.5:
        rows = [(timer_key(1_700_000_000_000, n % 3), value) for n, (_, value) in enumerate(rows)]
    return rows, [rng.randrange(4) for _ in range(rng.randint(0, 3))]


def _waiting_rows(rows: Any, ended: Any) -> Any:
    tails = [Tail(0).timers for _ in ended]
    for tail, position in zip(tails, ended, strict=True):
        tail.end_found(np.array([position, 1_700_000_000_000, 1, 9], np.int64))
    return waiting_rows(rows, tails)


def _plain_waiting_rows(rows: Any, ended: Any) -> Any:
    if type(rows) is not list or any(len(row) != 2 for row in rows):
        return NotImplemented
    for part_of_row, size in [pair for row in rows for pair in zip(row, (16, 8), strict=True)]:
        if type(part_of_row) is not bytes:
            return TypeError
        if len(part_of_row) != size:
            return ValueError
    found = [struct.unpack(">qqII", key + value) for key, value in rows]
    return [one for one in found if one[1] not in ended]


PENDING_FUZZERS: Final = {
    "tail.waiting_rows": Fuzzer(_to_rows, _plain_waiting_rows, call=_waiting_rows),
    "pending.pending_records.read_pending": Fuzzer(
        lambda rng: (_properties(rng),),
        lambda raw: plain.read_pending(raw) if type(raw) is bytes else TypeError,
        call=read_pending,
    ),
    "pending.pending_records.read_end": Fuzzer(
        lambda rng: (_properties(rng),),
        lambda raw: plain.read_end(raw) if type(raw) is bytes else TypeError,
        call=read_end,
    ),
    "pending.pending_records.prepare_copies": Fuzzer(_to_copy, _plain_copied, call=_copied),
    "pending.pending_records.prepare_notes": Fuzzer(_to_copy, _plain_cancelled, call=_cancelled),
}
