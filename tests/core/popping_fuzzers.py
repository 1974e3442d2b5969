"""Fuzzers of the core's functions for pops and acks."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from kvstore.core.messages import StoredMessage
from kvstore.core.popping.inflight import Change, InflightRows, pack_lock
from kvstore.core.popping.offset_sets import OffsetSet, QueueLocks, Shelf
from kvstore.core.popping.receipts import Delivery, Popped, Receipts
from kvstore.errors import ReceiptIllegal
from kvstore.pop.inflight.lock_rows import REASON_MAX, unpack_lock
from tests.core.fuzzing import Arguments, Fuzzer
from tests.core.record_fuzzers import message_of
from tests.reference import popping as plain
from tests.support import inside_pops

_SECRET: Final = bytes(range(32))
_SECRET_MAX: Final = 128
_WIDE: Final = 1 << 12
"""A caller asks for no longer stretch of offsets."""


def _bits(rng: Random) -> int:
    return rng.choice((1, (1 << rng.randint(1, 256)) - 1, rng.getrandbits(256), rng.getrandbits(9)))


def _row(rng: Random) -> tuple[int, ...]:
    return (1, rng.getrandbits(31), rng.getrandbits(60), rng.randint(0, 9), rng.getrandbits(60))


# --- receipts ---


def _texts(rng: Random) -> Arguments:
    rows = [plain.head(*_row(rng), rng.getrandbits(60)) for _ in range(rng.randint(1, 3))]
    count = rng.randint(0, 6)
    made = [plain.receipt(_SECRET, rng.choice(rows), rng.randrange(256)) for _ in range(count)]
    return _SECRET, made


def _sorted(secret: bytes, texts: list[str]) -> Any:
    receipts = Receipts(secret)
    asked = receipts.sort(texts)
    every = dict.fromkeys(range(len(asked.rows)), -1)
    read = [receipts.read(texts[at]) for at in asked.indices(every)]
    errors = [(at, str(error)) for at, error in asked.errors]
    tables = sorted(asked.tables.items())
    return asked.rows, asked.bits, asked.count, errors, tables, asked.indices({0: 1}), read


def _plain_sorted(secret: bytes, texts: list[str]) -> Any:
    if type(secret) is not bytes:
        return TypeError
    if not 0 < len(secret) <= _SECRET_MAX:
        return ValueError
    rows: dict[tuple[plain.Key, int], int] = {}
    errors, read, first = [], [], []
    for at, text in enumerate(texts):
        try:
            key, nonce, place = plain.read(secret, text)
        except ReceiptIllegal as e:
            errors.append((at, str(e)))
            continue
        read.append((key, nonce, place))
        rows[key, nonce] = rows.get((key, nonce), 0) | 1 << place
        if place == 0 and (key, nonce) == next(iter(rows)):
            first.append(at)
    tables: dict[tuple[int, int], list[int]] = {}
    for number, (key, _) in enumerate(rows):
        tables.setdefault(key[:2], []).append(number)
    return list(rows), list(rows.values()), len(texts), errors, sorted(tables.items()), first, read


def _delivered(*given: int) -> Any:
    *head, bits = given
    delivery = Delivery(Receipts(_SECRET), *head)
    messages = [message_of(Random(0))] * max(bits, 0).bit_count()
    popped = delivery.popped(messages, bits, 3, 4)
    assert [p.receipt for p in popped] == delivery.receipts(bits)
    return delivery.receipts(bits)


def _plain_delivered(*given: int) -> Any:
    *head, bits = given
    if not 0 <= bits < 1 << plain.PLACES:
        return ValueError
    try:
        row = plain.head(*head)
    except OverflowError:
        return OverflowError
    return [plain.receipt(_SECRET, row, place) for place in plain.places(bits)]


def _popped(rng: Random) -> Arguments:
    return message_of(rng), "receipt", rng.getrandbits(32), rng.getrandbits(60)


def _given(rng: Random) -> Arguments:
    found = [message_of(rng) for _ in range(rng.randint(0, 3))]
    return (found if rng.random() < 0.5 else [Popped(m, "receipt", 1, 2) for m in found],)


def _body_bytes(found: list[Any]) -> Any:
    messages = [one.message if isinstance(one, Popped) else one for one in found]
    if not all(isinstance(m, StoredMessage) for m in messages):
        return TypeError
    return sum(len(m.body) for m in messages)


# --- rows ---


def _lock(rng: Random) -> Arguments:
    attempt_id = rng.choice((b"", rng.randbytes(16)))
    moved = rng.choice((0, _bits(rng)))
    attempts, recoveries = rng.getrandbits(31), rng.getrandbits(31)
    reason = rng.choice((b"", rng.randbytes(rng.randrange(520))))
    return attempts, recoveries, rng.getrandbits(60), _bits(rng), moved, attempt_id, reason


def _packed(*lock: Any) -> bytes:
    packed = pack_lock(lock)
    assert unpack_lock(packed) == lock
    return packed


def _plain_packed(*lock: Any) -> Any:
    *_, locked, moved, attempt_id, reason = lock
    if type(attempt_id) is not bytes or type(reason) is not bytes:
        return TypeError
    if min(locked, moved) < 0 or (locked | moved) >> 256 or len(attempt_id) not in (0, 16):
        return ValueError
    if len(reason) > REASON_MAX:
        return ValueError
    try:
        return plain.pack_lock(*lock)
    except OverflowError:
        return OverflowError


def _to_change(rng: Random) -> Arguments:
    return *_row(rng), rng.getrandbits(60), _bits(rng), rng.choice((0, _bits(rng)))


def _changed(*given: int) -> Any:
    *key, nonce, locked, kept = given
    row, old, new = tuple(key), (1, 0, nonce, locked, 0, b"", b""), (1, 0, nonce, kept, 0, b"", b"")
    change = Change()
    change.add(row, old)  # type: ignore[arg-type]  # lengths are the fuzzer's to change
    change.shrink(row, old, new)  # type: ignore[arg-type]
    change.park(row, new)  # type: ignore[arg-type]
    change.remove(row, old, 0)  # type: ignore[arg-type]
    return change.rows, change.count_added()


def _plain_changed(*given: int) -> Any:
    *key, nonce, locked, kept = given
    if min(locked, kept) < 0 or max(locked, kept) >> 256:
        return ValueError
    try:
        raw = plain.head(*key, 0)[:-8]
        old, new = (plain.pack_lock(1, 0, nonce, bits) for bits in (locked, kept))
    except OverflowError:
        return OverflowError
    left = new if kept else None
    return [(raw, old), (raw, left), (raw, left), (raw, None)], locked.bit_count()


# --- counters ---


def _to_put(rng: Random) -> Arguments:
    count = rng.randint(0, 300)
    return [rng.randint(0, 40) for _ in range(count)], [rng.choice((0, 0, 1)) for _ in range(count)]


def _shelved(numbers: list[int], values: list[int]) -> list[int | None]:
    shelf, lowest = Shelf(), []
    for number, value in zip(numbers, values, strict=False):
        shelf.put(number, value)
        lowest.append(shelf.first())
    return lowest


def _plain_shelved(numbers: list[int], values: list[int]) -> list[int | None]:
    kept: dict[int, int] = {}
    lowest = []
    for number, value in zip(numbers, values, strict=False):
        kept[number] = value
        lowest.append(min((n for n, v in kept.items() if v), default=None))
    return lowest


def _stretches(rng: Random) -> Arguments:
    count = rng.randint(0, 6)
    firsts = [rng.randint(0, 900) for _ in range(count)]
    return firsts, [_bits(rng) for _ in firsts], rng.randint(0, 1200), rng.randint(0, 600)


def _may_be_asked(firsts: list[int], bits: list[int], at: int, size: int) -> bool:
    right = all(0 <= b < 1 << 256 for b in bits) and all(0 <= f < 1 << 62 for f in firsts)
    return right and abs(at) < 1 << 62 and size <= _WIDE


def _parts(firsts: list[int], bits: list[int]) -> Iterator[tuple[int, int]]:
    """The stretches without offsets that came before; every second one goes again."""
    seen: set[int] = set()
    for first, part in zip(firsts, bits, strict=False):
        new = sum(1 << o - first for o in plain.offsets(first, part) - seen)
        seen |= plain.offsets(first, part)
        yield first, new


def _set(firsts: list[int], bits: list[int], at: int, size: int) -> Any:
    found = OffsetSet()
    for number, (first, part) in enumerate(_parts(firsts, bits)):
        found.add(first, part)
        if number % 2:
            found.remove(first, part)
    within = found.within(at, size)
    return found.lowest(), found.has_below(at), found.count_from(at), within, found.count


def _plain_set(firsts: list[int], bits: list[int], at: int, size: int) -> Any:
    there: set[int] = set()
    for number, (first, part) in enumerate(_parts(firsts, bits)):
        if not number % 2:
            there |= plain.offsets(first, part)
    lowest = min(there, default=None)
    within = sum(1 << o - at for o in there if at <= o < at + size)
    above = sum(o >= at for o in there)
    return lowest, lowest is not None and lowest < at, above, within, len(there)


def _queue(firsts: list[int], bits: list[int], at: int, _: int) -> Any:
    held = QueueLocks()
    for number, (first, part) in enumerate(_parts(firsts, bits)):
        (held.parked if number % 2 else held.locked).add(first, part)
    return held.lowest(), held.has_gone(at)


def _plain_queue(firsts: list[int], bits: list[int], at: int, _: int) -> Any:
    sets: tuple[set[int], set[int]] = (set(), set())
    for number, (first, part) in enumerate(_parts(firsts, bits)):
        sets[number % 2].update(plain.offsets(first, part))
    return min(sets[0] | sets[1], default=None), any(o < at for o in sets[0])


# --- a pop and its ack ---


def _to_take(rng: Random) -> Arguments:
    first, due = rng.getrandbits(50), rng.getrandbits(50)
    return rng.randint(1, 40), first, due, rng.getrandbits(60), _bits(rng)


def _taken(limit: int, first: int, due: int, nonce: int, acked: int) -> Any:
    def read(_: Any, __: int, at: int, ___: int) -> list[StoredMessage]:
        one = message_of(Random(0))
        return [one.__replace__(offset=at + n) for n in range(min(limit, _WIDE) - 1, -1, -1)]

    rows, receipts = InflightRows(1, 2, {}), Receipts(_SECRET)
    rows.next[3] = first
    change = rows.take(receipts, range(3, 4), limit, 0, 0, due, 0, nonce, read)
    if change is None:
        return None
    rows.apply(change)
    texts = [p.receipt for n, p in enumerate(change.popped()) if acked >> n & 1]
    done, asked = Change(), receipts.sort(texts)
    for numbers in asked.tables.values():
        assert rows.ack(done, asked, numbers) == []
    rows.apply(done)
    held = inside_pops.lowest_offsets(rows)
    return rows.next[3] - first, rows.rows, rows.messages, held, len(rows.known)


def _plain_taken(limit: int, first: int, due: int, nonce: int, acked: int) -> Any:
    if not 0 < limit <= plain.PLACES:
        return None
    left = plain.offsets(first, (1 << limit) - 1) - plain.offsets(first, acked & (1 << limit) - 1)
    is_there = bool(left)
    return limit, is_there, len(left), [min(left, default=None)], is_there


POPPING_FUZZERS: Final = {
    "popping.inflight.Change": Fuzzer(_to_change, _plain_changed, call=_changed),
    "popping.inflight.InflightRows": Fuzzer(
        _to_take, _plain_taken, call=_taken,
        sane=lambda limit, first, *rest: 0 <= first < 1 << 60 and min(rest) >= 0,
    ),
    "popping.offset_sets.OffsetSet": Fuzzer(_stretches, _plain_set, _may_be_asked, _set),
    "popping.offset_sets.QueueLocks": Fuzzer(_stretches, _plain_queue, _may_be_asked, _queue),
    "popping.offset_sets.Shelf": Fuzzer(_to_put, _plain_shelved, call=_shelved),
    "popping.offset_sets.below": Fuzzer(
        lambda rng: (rng.randint(0, 600), rng.randint(0, 400), _bits(rng)),
        lambda offset, first, bits: sum(o < offset for o in plain.offsets(first, bits)),
        lambda offset, first, bits: bits >= 0,
    ),
    "popping.inflight.pack_lock": Fuzzer(_lock, _plain_packed, call=_packed),
    "popping.receipts.Delivery": Fuzzer(
        lambda rng: (*_row(rng), rng.getrandbits(60), _bits(rng)), _plain_delivered, call=_delivered
    ),
    "popping.receipts.Popped": Fuzzer(_popped, call=lambda *fields: repr(Popped(*fields))),
    "popping.receipts.body_bytes": Fuzzer(_given, _body_bytes),
    "popping.receipts.Receipts": Fuzzer(_texts, _plain_sorted, call=_sorted),
}  # fmt: skip
"""By the name of the entry: module.function."""
