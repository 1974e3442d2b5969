"""Fuzzers: for each entry of the core its good arguments, and the plain version that judges it.

A new function of the core gets a line in `FUZZERS`; `test_fuzz` fails until it has one.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from random import Random
from typing import Any, Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh32_intdigest

from kvstore.core import packed_pairs, packed_runs
from kvstore.core.columns import bits
from kvstore.core.hashing import add_digests
from kvstore.core.names import DATES_BEGIN, DATES_END
from kvstore.core.put_values import Message, PutResult, PutStatus
from kvstore.core.queue_offsets import QueueHeads, QueueOffsets, count_closing, late_targets
from kvstore.core.tail import Tail
from kvstore.core.threads.sleepers import Sleeper, wake_all
from kvstore.core.unique_ids import UniqueIds
from kvstore.errors import ArchiveDamaged, FormatError
from kvstore.record.key_filter import BLOCK_BYTES, HASHES_MAX
from tests.core.arrow_fuzzers import ARROW_FUZZERS
from tests.core.dedup_fuzzers import DEDUP_FUZZERS
from tests.core.fuzzing import EDGES, Arguments, Fuzzer
from tests.core.local_fuzzers import LOCAL_FUZZERS
from tests.core.pending_fuzzers import PENDING_FUZZERS
from tests.core.popping_fuzzers import POPPING_FUZZERS
from tests.core.record_fuzzers import RECORD_FUZZERS
from tests.core.send_fuzzers import SEND_FUZZERS
from tests.core.test_encoding import encoder
from tests.core.transport_fuzzers import TRANSPORT_FUZZERS
from tests.reference import group_columns, packing, records, texts
from tests.support.queue_reading import run_positions

I64 = NDArray[np.int64]
ENCODER: Final = encoder()

_MASK: Final = (1 << 64) - 1
_ALLOCATED: Final = 1 << 12
"""So much a caller may expect; numbers from `_ABSURD` on are refused, those between would fill the
memory, as their caller asked."""
_ABSURD: Final = 1 << 56
_JUDGED: Final = 1000
"""Plain versions take long for more numbers than these."""


# --- what good arguments are made of ---


def _count(rng: Random) -> int:
    return rng.choice((0, 1, 2, 3, rng.randint(0, 40), rng.randint(0, 40)))


def _some(rng: Random) -> int:
    return max(_count(rng), 1)


def _numbers(rng: Random, count: int) -> list[int]:
    """Numbers of one kind: of a few bits, at the edges, of few values, or rising."""
    match rng.randrange(4):
        case 0:
            width = rng.randint(1, 62)
            return [rng.getrandbits(width) for _ in range(count)]
        case 1:
            return [rng.choice(EDGES) for _ in range(count)]
        case 2:
            few = [rng.getrandbits(rng.randint(1, 60)) for _ in range(rng.randint(1, 12))]
            return [rng.choice(few) for _ in range(count)]
    return _rising(rng, count, 40)


def _rising(rng: Random, count: int, width: int) -> list[int]:
    return list(accumulate(rng.getrandbits(rng.randint(1, width)) for _ in range(count)))


def _int64(values: Iterable[int]) -> I64:
    return np.array([packing.signed(value) for value in values], np.int64)


def _signed(values: NDArray[Any]) -> list[int]:
    return [packing.signed(value) for value in values.tolist()]


def _data(rng: Random) -> bytes:
    return rng.randbytes(rng.choice((rng.randint(0, 70), rng.randint(0, 70), 400)))


# --- bits, hashes, checksums ---


def _to_pack(rng: Random) -> Arguments:
    count = rng.choice((_count(rng), _count(rng), _count(rng), rng.randint(1000, 1100)))
    values = np.frombuffer(rng.randbytes(8 * count), np.uint64)
    return values, rng.randint(0, 64)


def _packed(values: NDArray[Any], width: int) -> Any:
    if not 0 <= width <= 64:
        return ValueError
    if width * len(values) > _JUDGED * 16:
        return NotImplemented
    return packing.pack(values.tolist(), width)


def _to_unpack(rng: Random) -> Arguments:
    values, width = _to_pack(rng)
    at, skip = rng.randint(0, 3), rng.randint(0, len(values))
    data = bytes(at) + bits.pack(values, width) + rng.randbytes(rng.choice((0, 0, 1, 9)))
    return data, at, width, len(values) - skip, skip


def _unpacked(data: Any, at: int, width: int, count: int, skip: int) -> Any:
    size = (width * (skip + count) + 7) // 8
    if not 0 <= width <= 64 or min(at, count, skip) < 0 or at + size > len(data):
        return FormatError
    if max(count, skip) >= _ABSURD:
        return FormatError
    if not width:
        return [0] * count
    if (skip + count) * width > _JUDGED * 16:
        return NotImplemented
    return packing.unpack(bytes(data), at, width, skip + count)[skip:]


def _of_bytes(judge: Callable[[bytes], object]) -> Callable[[object], Any]:
    return lambda data: judge(data) if isinstance(data, bytes) else TypeError


# --- numbers of archives ---


def _varint(data: object, at: int) -> Any:
    if not isinstance(data, bytes):
        return TypeError
    if not 0 <= at < len(data):
        return ArchiveDamaged
    more = max(data[at] - 0xF7, 0)
    if at + 1 + more > len(data):
        return ArchiveDamaged
    return [int.from_bytes(data[at + 1 : at + 1 + more]) if more else data[at], at + 1 + more]


def _at_a_number(rng: Random) -> Arguments:
    before = rng.randbytes(rng.randint(0, 5))
    return before + packing.varint(rng.getrandbits(rng.randint(1, 64))), len(before)


def _columns(rng: Random) -> tuple[list[list[int]], I64, I64]:
    columns = [_numbers(rng, _some(rng)) for _ in range(rng.randint(1, 3))]
    bounds = _int64([0, *accumulate(map(len, columns))])
    return columns, _int64(v for column in columns for v in column), bounds


def _encoded(values: NDArray[Any], bounds: NDArray[Any]) -> Any:
    rows, ends = _signed(values), _signed(bounds)
    if any(not 0 <= a < b <= len(rows) for a, b in pairwise(ends)):
        return ValueError
    return [packing.encode_column(rows[a:b]) for a, b in pairwise(ends)]


def _column_data(rng: Random) -> Arguments:
    before = rng.randbytes(rng.randint(0, 3))
    column = _numbers(rng, _some(rng))
    return before + packing.encode_column([*map(packing.signed, column)]), len(before), len(column)


def _decoded(data: object, at: int, count: int) -> Any:
    if not isinstance(data, bytes):
        return TypeError
    if not 0 <= count < _ABSURD:
        return ArchiveDamaged
    if not count:
        return [], at
    if not 0 <= at < len(data):
        return ArchiveDamaged
    return packing.decode_column(data, at, count)


def _may_expect(counts: NDArray[Any]) -> bool:
    return all(count <= _ALLOCATED or count >= _ABSURD for count in _signed(counts))


# --- blocks of keys ---


def _pairs(rng: Random, count: int) -> tuple[I64, I64]:
    first = rng.choice((0, rng.getrandbits(40), -(1 << 63)))
    hashes = (first + step for step in _rising(rng, count, rng.choice((3, 40))))
    return _int64(hashes), _int64(rng.getrandbits(rng.choice((3, 33, 63))) for _ in range(count))


def _pairs_to_sort(rng: Random) -> Arguments:
    hashes, positions = _pairs(rng, _count(rng))
    places = list(range(len(hashes)))
    rng.shuffle(places)
    return hashes[places], positions


def _sorted_pairs(hashes: NDArray[Any], positions: NDArray[Any]) -> Any:
    if len(hashes) != len(positions):
        return ValueError
    pairs = zip(_signed(hashes), _signed(positions), strict=True)
    rows = sorted(pairs, key=lambda pair: pair[0])
    return _int64(one for one, _ in rows), _int64(one for _, one in rows)


def _is_rising(first: int, hashes: list[int]) -> bool:
    return all(a <= b for a, b in pairwise([first, *hashes]))


def _blocks(hashes: NDArray[Any], positions: NDArray[Any], together: int) -> Any:
    rows, places = _signed(hashes), [value & _MASK for value in positions.tolist()]
    if not 0 < together < 1 << 32:
        return ValueError
    if len(rows) != len(places) or not _is_rising(rows[0] if rows else 0, rows):
        return ValueError
    pairs = list(zip(rows, places, strict=True))
    blocks = (pairs[at : at + together] for at in range(0, len(pairs), together))
    return [(block[0][0], packing.pack_block(block[0][0], block)) for block in blocks]


def _block(first: int, hashes: NDArray[Any], positions: NDArray[Any]) -> Any:
    rows, places = _signed(hashes), [value & _MASK for value in positions.tolist()]
    if not rows or len(rows) != len(places) or not _is_rising(first, rows):
        return ValueError
    return packing.pack_block(first, list(zip(rows, places, strict=True)))


def _to_block(rng: Random) -> Arguments:
    hashes, positions = _pairs(rng, _some(rng))
    return max(int(hashes[0]) - rng.choice((0, 0, 1)), -(1 << 63)), hashes, positions


def _a_block(rng: Random) -> Arguments:
    first, hashes, positions = _to_block(rng)
    return first, packed_pairs.pack_block(first, hashes, positions)


def _of_block(first: int, value: object) -> Any:
    if not isinstance(value, bytes):
        return TypeError
    return tuple(zip(*packing.unpack_block(first, value), strict=True))


def _several_blocks(rng: Random) -> Arguments:
    blocks = [_a_block(rng) for _ in range(rng.randint(0, 3))]
    return [first for first, _ in blocks], [value for _, value in blocks]


def _of_blocks(firsts: list[int], values: list[Any]) -> Any:
    if len(firsts) != len(values):
        return ValueError
    if not all(isinstance(value, bytes) for value in values):
        return NotImplemented
    blocks = [
        packing.unpack_block(first, value) for first, value in zip(firsts, values, strict=True)
    ]
    pairs = [pair for block in blocks for pair in block]
    return [hash_ for hash_, _ in pairs], [position for _, position in pairs]


def _to_find(rng: Random) -> Arguments:
    first, value = _a_block(rng)
    hashes, _ = packed_pairs.unpack_block(first, value)
    low = rng.choice(hashes.tolist()) if rng.random() < 0.7 else rng.choice(EDGES)
    return first, value, low, min(low + rng.choice((0, 0, 5, 1 << 30)), (1 << 63) - 1)


def _found(first: int, value: object, low: int, high: int) -> Any:
    if not isinstance(value, bytes):
        return TypeError
    pairs = packing.unpack_block(first, value)
    if not _is_rising(first, [hash_ for hash_, _ in pairs]):
        return NotImplemented
    return [pair for pair in pairs if low <= pair[0] <= high]


def _to_look(rng: Random) -> Arguments:
    """Parts, with filters and blocks of some of them, and a hash."""
    piece_blocks = rng.choice((1, 2, 256))
    wanted = rng.getrandbits(40)
    parts, filters, blocks = [], {}, {}
    for serial in range(rng.randint(0, 4)):
        base, count = rng.getrandbits(20), rng.choice((1, 3, 300))
        parts.append((serial, base, base + rng.getrandbits(20), count))
        piece = ((wanted >> 8) * count >> 32) // piece_blocks
        if rng.random() < 0.9:
            filters[serial, piece] = rng.choice((b"", b"\xff" * BLOCK_BYTES * 256, b"\0" * 64))
        if rng.random() < 0.9:
            firsts = sorted({max(wanted - rng.choice((0, 1, 9, 1 << 30)), 0) for _ in range(3)})
            hashes = _int64([wanted + n for n in (0, 0, 1, rng.randint(1, 40))])
            places = _int64([rng.getrandbits(20) for _ in hashes])
            block = [(first, packed_pairs.pack_block(first, hashes, places)) for first in firsts]
            blocks[serial, piece] = block
    begin = rng.getrandbits(20)
    return parts, filters, blocks, {}, wanted, begin, begin + rng.getrandbits(21), piece_blocks, 5


def _looked(
    parts: Any, filters: Any, blocks: Any, asked: Any, wanted: int, begin: int, end: int,
    piece_blocks: int, hashes: int,
) -> Any:  # fmt: skip
    try:
        if not 0 < piece_blocks < 1 << 32 or not 0 <= wanted < 1 << 40 or not 0 <= hashes <= 7:
            return NotImplemented
        found = set()
        for serial, base, stop, count in parts:
            if base >= end or stop <= begin:
                continue
            piece = ((wanted >> 8) * count >> 32) // piece_blocks
            data = filters[serial, piece]
            if not _held(data, 0, count, piece * piece_blocks, wanted >> 8, hashes):
                continue
            first, value = max(one for one in blocks[serial, piece] if one[0] < wanted)
            pairs = packing.unpack_block(first, value)
            if not _is_rising(first, [hash_ for hash_, _ in pairs]):
                return NotImplemented
            if wanted >= pairs[-1][0]:
                return None
            found |= {base + position for hash_, position in pairs if hash_ == wanted}
        return sorted((one for one in found if begin <= one < end), reverse=True)
    except (KeyError, ValueError):
        return NotImplemented


# --- runs ---


def _run(rng: Random, count: int) -> list[packing.Entry]:
    sizes, tags = ([rng.getrandbits(w) for _ in range(count)] for w in (rng.randint(1, 31), 32))
    times = [(1 << 40) + time for time in _rising(rng, count, 12)]
    tags = [tag - (1 << 31) for tag in tags] if rng.random() < 0.5 else [0] * count
    rows = zip(_rising(rng, count, 24), sizes, tags, times, strict=True)
    return [(position & 0xFFFFFFFF, size, tag, time) for position, size, tag, time in rows]


def _to_runs(rng: Random) -> Arguments:
    runs = [_run(rng, _some(rng)) for _ in range(rng.randint(1, 3))]
    columns = zip(*(entry for run in runs for entry in run), strict=True)
    starts = _int64([0, *accumulate(map(len, runs))][:-1])
    return (*(_int64(column) for column in columns), starts)


def _runs(*columns: NDArray[Any]) -> Any:
    *rows, starts = (_signed(column) for column in columns)
    if len(set(map(len, rows))) > 1 or (not starts and rows[0]):
        return ValueError
    if not starts:
        return b"", [], []
    if starts[0] != 0 or starts[-1] >= len(rows[0]):
        return ValueError
    if any(abs(value) >= 1 << 62 for row in rows for value in row):
        return NotImplemented
    entries, packed = list(zip(*rows, strict=True)), []
    for begin, end in pairwise([*starts, len(entries)]):
        if not begin < end <= len(entries):
            return ValueError
        packed.append(packing.pack_run(entries[begin:end]))
    ends = list(accumulate(map(len, packed)))
    return b"".join(packed), [0, *ends[:-1]], ends


def _run_data(rng: Random) -> list[bytes]:
    data, begins, ends = packed_runs.pack_runs(*_to_runs(rng))
    return [data[a:b] for a, b in zip(begins, ends, strict=True)]


def _takes_long(value: bytes) -> bool:
    return int.from_bytes(value[2:4], "little") > _JUDGED


def _of_runs(values: list[Any]) -> Any:
    if not all(isinstance(value, bytes) for value in values):
        return TypeError
    if any(map(_takes_long, values)):
        return NotImplemented
    # Lengths are looked at first, and the shortest is told.
    shortest = min(values, key=len, default=bytes(26))
    for value in [shortest, *values] if len(shortest) < 26 else values:
        packing.unpack_run(value)
    runs = [packing.unpack_run(value) for value in values]
    columns = [[entry[i] for run in runs for entry in run] for i in range(4)]
    return (*columns, [0, *accumulate(map(len, runs))][: len(runs)])


def _positions(value: object) -> Any:
    if not isinstance(value, bytes):
        return TypeError
    try:
        return NotImplemented if _takes_long(value) else [e[0] for e in packing.unpack_run(value)]
    except FormatError:
        # Without the other columns less can be wrong.
        return NotImplemented


# --- puts ---


def _messages(rng: Random) -> Arguments:
    """The fields of some messages."""
    return ([_fields(rng) for _ in range(_some(rng))],)


def _fields(rng: Random) -> list[Any]:
    def text() -> str:
        return "".join(rng.choices("ab1é€😀|", k=rng.randint(1, 30)))

    return [
        rng.choice(("t", "t", "new", "%RETRY%" + 200 * "t")),
        _data(rng),
        rng.choice((None, rng.randrange(4))),
        rng.choice((None, text())),
        [text() for _ in range(rng.randrange(4))],
        {text(): text() for _ in range(rng.randrange(3))},
        rng.choice((None, text())),
        rng.getrandbits(rng.randint(0, 32)),
        rng.choice((None, text())),
        rng.choice((None, rng.getrandbits(rng.randint(0, 63)))),
        rng.choice((None, rng.randrange(DATES_BEGIN, DATES_END))),
    ]


def _put(fields: list[list[Any]]) -> bool:
    """Whether each record is one, and has the body of its message."""
    messages = [Message(*some) for some in fields]
    batch = ENCODER.prepare(messages, 5)
    tail = Tail(0)
    pieces = tail.add(batch, QueueOffsets(lambda queue: 7), 500, 1 << 16, 5)
    data = b"".join(piece for _, piece in pieces)
    at = 0
    for message, result in zip(messages, batch.results(PutStatus.STAGED), strict=True):
        record = records.read(data[at:], result.position)
        assert records.check(data[at:], result.position) == result.size
        assert record.body == bytes(message.body)
        assert records.expires_at(record.properties) == message.expires_at
        unique_id = records.find_property(record.properties, b"UNIQ_KEY")
        assert unique_id == result.message_id.encode()
        at += result.size
    return at == len(data) and len(tail) == len(messages)


def _late(fields: list[list[Any]]) -> bool:
    """Whether a batch is late behind a closing alone, and says each message's queue then."""
    before = ENCODER.prepare([Message(*some) for some in fields], 5)
    is_early = late_targets(before, ENCODER) is None
    count_closing(ENCODER)
    behind = ENCODER.prepare([Message(*some) for some in fields], 5)
    is_early &= late_targets(behind, ENCODER) is None
    return is_early and late_targets(before, ENCODER) == before.queue_keys


def _queue_ends(rng: Random) -> Arguments:
    ends = [
        (rng.getrandbits(rng.choice((2, 64))), rng.getrandbits(rng.choice((2, 63))))
        for _ in range(rng.randrange(200))
    ]
    segments = [rng.getrandbits(rng.choice((2, 32, 32, 33))) - 1 for _ in ends]
    return [queue for queue, _ in ends], [end for _, end in ends], segments


def _known_ends(queues: list[int], ends: list[int], segments: list[int]) -> list[Any]:
    """The ends of queues that were noted, with one that was forgotten."""
    heads = QueueHeads()
    heads.note(queues, ends, segments)
    heads.forget(5)
    return [(queue, heads.next_offset(queue), heads.segment(queue)) for queue in queues]


def _last_ends(queues: Any, ends: Any, segments: Any) -> Any:
    for given, low, high in ((queues, 0, 64), (ends, 0, 63), (segments, -1, 32)):
        if not isinstance(given, list) or any(type(number) is not int for number in given):
            return NotImplemented
        if not all(low <= number < 1 << high for number in given):
            return NotImplemented
    if len({len(queues), len(ends), len(segments)}) > 1:
        return ValueError
    last = dict(zip(queues, zip(ends, segments, strict=True), strict=True)) | {5: (None, None)}
    return [(queue, *last[queue]) for queue in queues]


def _added(rng: Random) -> Arguments:
    count = _count(rng)
    return (
        rng.getrandbits(40),
        np.array(_numbers(rng, 6 * count), np.int64),
        np.array(_numbers(rng, 3 * _count(rng)), np.int64),
    )


def _keys_in(tail: Tail) -> int:
    try:
        return sum(len(hashes) for _, hashes, _ in tail.key_pairs(1 << 20, bytes(1 << 16)))
    except IndexError:
        return tail.keys_held


def _woken(sleepers: Any) -> Any:
    if isinstance(sleepers, list) and all(isinstance(one, Sleeper) for one in sleepers):
        return [True] * len(sleepers)
    return TypeError


def _sleep_woken(sleepers: Any) -> list[bool]:
    wake_all(sleepers)
    return [one.sleep(0) for one in sleepers]


def _looked_at(start: int, entries: I64, keys: I64) -> bool:
    tail = Tail(start)
    tail.add_found(entries, keys)
    offsets = QueueOffsets(lambda _: 0)
    tail.tell_ends(offsets)
    for queue in [*entries[:12:6].view(np.uint64).tolist(), 5]:
        found = tail.bounds(queue, 1 << 62)
        for offset in (0, 1, -1) if found is None else (found[0], found[1], found[0] - 1):
            assert len(tail.positions(queue, offset, 3)) <= 3
        tail.first_within(queue, 5, 1 << 40)
    for key in keys[2:9:3].tolist():
        tail.find_key(key)
    rows = tail.entry_columns()[0].view(np.uint64)
    assert (rows[1:] >= rows[:-1]).all()
    assert len(tail) == len(entries) // 6
    assert _keys_in(tail) == len(keys) // 3
    behind = int(entries[2]) if len(entries) else 0
    tail.take_back(ENCODER.prepare([], 5), offsets, behind)
    kept = tail.entry_columns()[2].tolist()
    return len(kept) == len(tail) and (not kept or _keys_in(tail) == tail.keys_held)


# --- texts ---


def _texts(rng: Random) -> Arguments:
    """A buffer with texts of one kind, and where they are."""
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: b"".join(
            rng.choices((b"A\1x\2", b"KEYS\1a b\2", b"B\1", b"\2", b"no"), k=rng.randint(0, 4))
        ),
        lambda: rng.randbytes(16).hex().upper().encode(),
        lambda: b"n-%d" % rng.getrandbits(rng.randint(1, 64)),
        lambda: b"n-%06d" % rng.randint(0, 999_999),
        lambda: rng.choice((b"", b"a", b" a b ", b"longer than a word")),
    )
    kind = rng.choice(kinds)
    some = [kind() for _ in range(_count(rng))]
    ends = list(accumulate(map(len, some)))
    return b"".join(some), _int64([0, *ends][: len(ends)]), _int64(ends)


def _of_texts(judge: Callable[..., Any]) -> Callable[..., Any]:
    def judged(data: Any, starts: Any, stops: Any, *more: Any) -> Any:
        if not isinstance(data, bytes):
            return NotImplemented
        begins, ends = _signed(starts), _signed(stops)
        if len(begins) != len(ends) or any(
            not 0 <= a <= b <= len(data) for a, b in zip(begins, ends, strict=False)
        ):
            return ValueError
        return judge([data[a:b] for a, b in zip(begins, ends, strict=True)], *more)

    return judged


def _with_ids(rng: Random) -> bytes:
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: rng.randbytes(rng.choice((8, 8, 16, 16, 20, 7))).hex().encode(),
        lambda: str(UUID(int=rng.getrandbits(128))).encode(),
        lambda: rng.choice((b"-", b'":"', b"F", b"x" * 40, b"0", b"a-b")),
    )
    return b"".join(rng.choice(kinds)() for _ in range(_count(rng) % 8))


def _to_restore(rng: Random) -> Arguments:
    payload = _with_ids(rng)
    return *(texts.extract_ids(payload) or (payload, b"")), len(payload)


def _restored(text: Any, digits: Any, size: int) -> Any:
    if not isinstance(text, bytes) or not isinstance(digits, bytes):
        return TypeError
    found = texts.restore_ids(text, digits)
    return ArchiveDamaged if found is None or len(found) != size else found


# --- columns of groups ---


def _head_columns(rng: Random, counts: list[int], firsts: list[int]) -> Iterable[bytes]:
    rows = sum(counts)

    def some() -> bytes:
        return packing.encode_column([rng.getrandbits(9) for _ in range(rows)])

    yield (
        bytes((rng.choice((1, 1, 255)),)) + packing.varint(rows) + packing.encode_column([0] * rows)
    )
    form = rng.choice((b"", b"\x04", b"\x05"))
    if form == b"\x04":
        yield form + packing.encode_column(firsts)
        if rows > len(counts):
            yield packing.encode_column([7] * (rows - len(counts)))
    else:
        yield some()
    yield (form + packing.zigzag(5) + packing.zigzag(900) if form == b"\x05" else b"") + some()
    yield from (some() for _ in range(2))
    for _ in range(7):
        yield packing.encode_column(rng.choice(([1] * rows, [1 + (i & 1) for i in range(rows)])))


def _to_heads(rng: Random) -> Arguments:
    counts = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
    firsts = [rng.getrandbits(20) for _ in counts]
    lasts = [first + count - 1 for first, count in zip(firsts, counts, strict=True)]
    queues = [rng.getrandbits(3) for _ in counts]
    return b"".join(_head_columns(rng, counts, firsts)), *map(
        _int64, (queues, counts, firsts, lasts)
    )


def _heads(data: Any, *columns: NDArray[Any]) -> Any:
    given = [_signed(column) for column in columns]
    if not isinstance(data, bytes):
        return TypeError
    if len(set(map(len, given))) > 1:
        return ValueError
    try:
        table, *rest = group_columns.decode_heads(data, *given)
    except ArchiveDamaged:
        return ArchiveDamaged
    return np.array(table, np.int64), *rest


def _to_texts(rng: Random) -> Arguments:
    count = _some(rng)
    size = rng.randint(0, 3)
    text = packing.varint(size) + rng.randbytes(size)
    data = rng.choice(
        (
            b"\0" + text,
            b"\1"
            + b"".join(
                packing.encode_column([packing.signed(n) for n in _numbers(rng, count)])
                for _ in range(4)
            ),
            b"\2" + text + bytes((rng.randint(0, 19),)),
            b"\3\2"
            + text
            + text
            + packing.encode_column([rng.randint(0, 1) for _ in range(count)]),
            b"\4" + packing.encode_column([1] * count) + rng.randbytes(count),
        )
    )
    if data[0] == 2:
        data += packing.encode_column([packing.signed(n) for n in _numbers(rng, count)])
    return data, 0, _int64(_numbers(rng, count)), rng.choice((1 << 20, 1 << 20, 30, 64 * count))


def _of_forms(data: Any, at: int, born: NDArray[Any], limit: int) -> Any:
    if not isinstance(data, bytes):
        return TypeError
    try:
        found, behind, taken = group_columns.decode_texts(data, at, _signed(born), limit)
    except ArchiveDamaged:
        return ArchiveDamaged
    joined, bounds = _beside(found)
    return joined, bounds, behind, taken


# --- fields and records of columns ---


def _beside(some: list[bytes]) -> tuple[bytes, I64]:
    return b"".join(some), _int64([0, *accumulate(map(len, some))])


def _some_texts(rng: Random, count: int) -> list[bytes]:
    return [rng.randbytes(rng.randint(0, 9)) for _ in range(count)]


def _to_fields(rng: Random) -> Arguments:
    shapes = [(b"A", b"\1"), (b"\2",), (b"\0",), (b"A", b"B", b"A", b"\0")]
    which = rng.choices(range(4), k=_count(rng))
    columns = {name: _beside(_some_texts(rng, 2 * len(which))) for name in (b"A", b"B", b"")}
    return shapes, _int64(which), columns


def _to_records(rng: Random) -> Arguments:
    count = _count(rng)
    numbers = rng.choices((0, 0x30, 1, 2), k=12 * count)
    return (
        _int64(numbers), _int64(_numbers(rng, count)) if rng.random() < 0.5 else None,
        *_beside(_some_texts(rng, 3)), _int64(rng.choices(range(3), k=count)),
        *_beside(_some_texts(rng, count)), *_beside(_some_texts(rng, count)),
        bytes(12 * count), bytes(12 * count),
    )  # fmt: skip


def _to_places(rng: Random) -> Arguments:
    records = _some_texts(rng, _count(rng))
    data, bounds = _beside(records)
    base = rng.choice((0, rng.randint(0, 1 << 40)))
    room = sum(map(len, records)) + rng.randint(0, 9)
    positions = [base + begin for begin in bounds[:-1].tolist()]
    return bytearray(room), base, _int64(positions), data, bounds


# --- filters ---


def _to_filter(rng: Random) -> Arguments:
    blocks = rng.randint(1, 5)
    digests = np.array([rng.getrandbits(32) for _ in range(_count(rng))], np.uint32)
    return bytearray(64 * blocks), digests, blocks, 0, rng.randint(0, 7)


def _to_ask(rng: Random) -> Arguments:
    filled, digests, blocks, first, hashes = _to_filter(rng)
    add_digests(filled, digests, blocks, first, hashes)
    asked = int(rng.choice(digests)) if len(digests) else rng.getrandbits(32)
    return bytes(filled), 0, blocks, first, asked, hashes


def _held(data: bytes, at: int, blocks: int, first: int, digest: int, hashes: int) -> Any:
    if type(data) is not bytes:
        return TypeError
    begin = at + ((digest * blocks >> 32) - first) * BLOCK_BYTES
    if not (0 <= blocks < 1 << 32 and 0 <= first < 1 << 32 and 0 <= hashes <= HASHES_MAX):
        return ValueError
    if digest * blocks >> 32 < first or at < 0 or begin + BLOCK_BYTES > len(data):
        return True
    return packing.filter_holds(data, begin, digest, hashes)


def _to_count(rng: Random) -> Arguments:
    data, at, blocks, _, _, hashes = _to_ask(rng)
    return data, at, blocks, _to_filter(rng)[1], hashes


def _masks(digest: int) -> bytes:
    masks = [packing.filter_mask(digest, hashes) for hashes in range(HASHES_MAX + 1)]
    return b"".join(mask.to_bytes(BLOCK_BYTES, "little") for mask in masks)


# --- rows ---


def _to_sort(rng: Random) -> Arguments:
    size = rng.randint(8, 30)
    rows = [
        packing.signed(number & _MASK).to_bytes(8, sys.byteorder, signed=True)
        + rng.randbytes(size - 8)
        for number in _numbers(rng, _count(rng))
    ]
    return b"".join(rows), size


def _sorted(rows: Any, size: int) -> Any:
    data: bytes = memoryview(rows).tobytes()
    if size < 8 or len(data) % size:
        return ValueError
    some = [data[at : at + size] for at in range(0, len(data), size)]
    some.sort(key=lambda row: int.from_bytes(row[:8], sys.byteorder, signed=True))
    return b"".join(some)


FUZZERS: Final = {
    "columns.bits.pack": Fuzzer(_to_pack, _packed),
    "columns.bits.unpack": Fuzzer(
        _to_unpack, _unpacked, lambda _, __, width, count, ___: width > 0 or count <= _ALLOCATED
    ),
    "crc.crc32": Fuzzer(lambda rng: (_data(rng),), zlib.crc32),
    "encoding.Encoder": Fuzzer(_messages, call=_put),
    "encoding.PutRoute": Fuzzer(
        lambda rng: (
            rng.getrandbits(60),
            4,
            rng.choice((8, 20)),
            1,
            _data(rng),
            2,
            None,
            None,
            False,
            60_000,
        )
    ),
    "queue_offsets.QueueOffsets": Fuzzer(
        lambda rng: (rng.getrandbits(64),),
        call=lambda queue: QueueOffsets(lambda _: 0).forget(queue),
    ),
    "queue_offsets.QueueHeads": Fuzzer(_queue_ends, _last_ends, call=_known_ends),
    "queue_offsets.count_closing": Fuzzer(lambda rng: (ENCODER,)),
    "queue_offsets.late_targets": Fuzzer(_messages, call=_late),
    "unique_ids.UniqueIds": Fuzzer(
        lambda rng: (rng.randbytes(rng.choice((4, 16))), rng.getrandbits(60), rng.getrandbits(60)),
        call=lambda *arguments: UniqueIds(*arguments).make(arguments[1], 3),
    ),
    "hashing.xxh32": Fuzzer(lambda rng: (_data(rng),), _of_bytes(xxh32_intdigest)),
    "hashing.java_hash": Fuzzer(
        lambda rng: ("".join(chr(rng.randrange(1 << rng.randint(1, 20))) for _ in _data(rng)),),
        records.java_hash,
    ),
    "hashing.add_digests": Fuzzer(_to_filter),
    "hashing.may_hold": Fuzzer(_to_ask, _held),
    "hashing.count_denied": Fuzzer(_to_count),
    "hashing.masks_of": Fuzzer(lambda rng: (rng.getrandbits(32),), _masks),
    "columns.int_columns.write_varint": Fuzzer(
        lambda rng: (rng.getrandbits(rng.randint(1, 64)),),
        lambda value: packing.varint(value & _MASK),
    ),
    "columns.int_columns.read_varint": Fuzzer(_at_a_number, _varint),
    "columns.int_columns.write_signed": Fuzzer(
        lambda rng: (packing.signed(rng.getrandbits(64)),),
        lambda value: packing.zigzag(packing.signed(value)),
    ),
    "columns.int_columns.encode_columns": Fuzzer(lambda rng: _columns(rng)[1:], _encoded),
    "columns.int_columns.decode_column": Fuzzer(
        _column_data, _decoded, lambda _, __, count: _may_expect(np.array([count]))
    ),
    "packed_pairs.pack_blocks": Fuzzer(
        lambda rng: (*_pairs(rng, _count(rng)), rng.randint(1, 20)), _blocks
    ),
    "packed_pairs.sort_pairs": Fuzzer(_pairs_to_sort, _sorted_pairs),
    "packed_pairs.pack_block": Fuzzer(_to_block, _block),
    "packed_pairs.unpack_blocks": Fuzzer(_several_blocks, _of_blocks),
    "packed_pairs.unpack_block": Fuzzer(_a_block, _of_block),
    "packed_pairs.find_in_block": Fuzzer(_to_find, _found),
    "packed_pairs.known_positions": Fuzzer(_to_look, _looked),
    "packed_pairs.count_in": Fuzzer(
        lambda rng: _a_block(rng)[1:],
        lambda value: (
            len(packing.unpack_block(0, value)) if isinstance(value, bytes) else TypeError
        ),
    ),
    "packed_runs.pack_runs": Fuzzer(_to_runs, _runs),
    "packed_runs.unpack_runs": Fuzzer(lambda rng: (_run_data(rng),), _of_runs),
    "packed_runs.DecodedRuns": Fuzzer(
        lambda rng: (_run_data(rng)[0],), _positions, call=run_positions
    ),
    "put_values.Message": Fuzzer(
        lambda rng: tuple(_fields(rng)), call=lambda *fields: repr(Message(*fields))
    ),
    "put_values.PutResult": Fuzzer(
        lambda rng: ("id", "t", *(rng.getrandbits(60) for _ in range(4)), None),
        call=lambda *fields: repr(PutResult(*fields)),
    ),
    "columns.sorting.sort_rows": Fuzzer(_to_sort, _sorted),
    "threads.sleepers.wake_all": Fuzzer(
        lambda rng: ([Sleeper() for _ in range(rng.choice((0, 1, 63, 64, 65, 200)))],),
        _woken,
        call=_sleep_woken,
    ),
    "tail.Tail": Fuzzer(_added, call=_looked_at),
    **RECORD_FUZZERS,
    **POPPING_FUZZERS,
    **PENDING_FUZZERS,
    **ARROW_FUZZERS,
    **DEDUP_FUZZERS,
    **TRANSPORT_FUZZERS,
    **SEND_FUZZERS,
    **LOCAL_FUZZERS,
    "columns.group_heads.decode_heads": Fuzzer(_to_heads, _heads),
    "columns.text_forms.decode_texts": Fuzzer(_to_texts, _of_forms),
    "columns.hex_ids.extract_ids": Fuzzer(
        lambda rng: (_with_ids(rng),), _of_bytes(texts.extract_ids)
    ),
    "columns.hex_ids.restore_ids": Fuzzer(_to_restore, _restored),
    "columns.record_columns.join_fields": Fuzzer(_to_fields),
    "columns.record_columns.join_records": Fuzzer(_to_records),
    "columns.record_columns.place_records": Fuzzer(_to_places),
    "columns.packed_texts.gather": Fuzzer(_texts, _of_texts(b"".join)),
    "columns.packed_texts.crc_texts": Fuzzer(_texts, _of_texts(texts.crc_texts)),
    "columns.packed_texts.split_fields": Fuzzer(_texts, _of_texts(lambda _: NotImplemented)),
    "columns.packed_texts.number_texts": Fuzzer(
        lambda rng: (*_texts(rng), _count(rng)), _of_texts(texts.number_texts)
    ),
    "columns.packed_texts.parse_ids": Fuzzer(_texts, _of_texts(texts.parse_ids)),
    "columns.packed_texts.parse_numbers": Fuzzer(_texts, _of_texts(texts.parse_numbers)),
    "columns.packed_texts.hash_texts": Fuzzer(
        lambda rng: (*_texts(rng), rng.random() < 0.5), _of_texts(texts.hash_texts)
    ),
}
"""By the name of the entry: module.function."""
