"""Fuzzers of the core's functions for records, scans and messages."""

from __future__ import annotations

import socket
from random import Random
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kvstore.core import messages, records
from kvstore.core.messages import StoredMessage
from kvstore.core.scan import scan
from kvstore.errors import FormatError, RecordDamaged
from tests.core.fuzzing import Arguments, Fuzzer
from tests.reference import packing
from tests.reference import records as plain
from tests.reference.encode import blank, encode_record
from tests.support.property_crc import with_property_crc
from tests.support.queue_reading import NO_BOUND

_FIELDS: Final = (
    b"", b"TAGS\x01paid\x02", b"TAGS\x01\xc3\xb6\x02KEYS\x01a b  a\x02UNIQ_KEY\x01a\x02",
    b"KEYS\x01" + b" ".join(b"%d" % (i % 30) for i in range(40)) + b"\x02", b"a\x01b", b"\x00\x02",
    b"__EXPIRES_AT\x010999999999999\x02", b"__EXPIRES_AT\x011500000000000\x02UNIQ_KEY\x01a\x02",
    b"UNIQ_KEY\x01a\x02__EXPIRES_AT\x011500000000000\x02", b"__EXPIRES_AT\x011500000000000",
)  # fmt: skip


def message_of(rng: Random, **fields: Any) -> StoredMessage:
    """A message that can be encoded."""
    body, flags = rng.randbytes(rng.choice((0, 5, 200))), rng.choice((0, 0, 0x10, 0x20, 0x30, 5))
    born, store = 20 if flags & 0x10 else 8, 20 if flags & 0x20 else 8
    found = StoredMessage(
        rng.choice(("t", "t", "topic", "ö")), rng.randint(0, 1), rng.randint(0, 3), 0, 0, body,
        rng.choice(_FIELDS), rng.getrandbits(32), flags, rng.getrandbits(40), rng.getrandbits(40),
        rng.randbytes(born), rng.randbytes(store), 3, 4, crc32(body) & plain.CRC_MASK,
        rng.choice((1, 1, 1, 2)),
    )  # fmt: skip
    return found.__replace__(**fields)


def log_of(rng: Random, base: int = 0, **fields: Any) -> tuple[bytearray, list[int]]:
    """Records one behind the other, and their positions."""
    raw, positions = bytearray(), []
    for _ in range(rng.randint(1, 4)):
        m = message_of(rng, position=base + len(raw), **fields)
        record = bytearray(encode_record(m))
        if rng.random() < 0.5 and m.raw_properties[-1:] in (b"", b"\x02"):
            with_property_crc(record)
        positions.append(base + len(raw))
        raw += record
        if "offset" in fields:
            fields["offset"] += 1
    raw += rng.choice((b"", b"", b"\0", bytes(95), blank(8), blank(9) + b"x", b"\1" * 9))
    return raw, positions


def part(buffer: Any, at: int, end: int) -> bytes:
    """The bytes from an index to another, as far as they are there."""
    return bytes(buffer)[at:end] if 0 <= at < end else b""


def _flag(rng: Random) -> bool:
    return rng.random() < 0.5


def _record(rng: Random) -> Arguments:
    raw, positions = log_of(rng, base := rng.choice((0, 5 << 30)))
    at = rng.choice(positions)
    return bytes(raw), at - base, len(raw), at, _flag(rng)


def _checked(buffer: Any, at: int, end: int, position: int, property_crc: bool) -> Any:
    return plain.check(part(buffer, at, end), position, property_crc)


def _whole(rng: Random) -> Arguments:
    raw = bytearray(encode_record(message_of(rng, raw_properties=_FIELDS[rng.randint(0, 1)])))
    if _flag(rng):
        with_property_crc(raw)
    return bytes(raw), 0, len(raw), rng.randint(0, 9), _flag(rng)


def _crc_fault(record: bytes, position: int, required: bool) -> str:
    if not required and record[-20:-11] != b"__CRC32#\x01":
        return ""
    try:
        plain.check_property_crc(record, position)
    except RecordDamaged as e:
        return str(e)
    return ""


def _problem(buffer: Any, at: int, size: int, position: int, required: bool) -> Any:
    if at < 0 or not 91 <= size <= len(buffer) - at:
        return ValueError
    return _crc_fault(part(buffer, at, at + size), position, required)


def _faulty(buffer: Any, starts: NDArray[Any], sizes: NDArray[Any], required: bool) -> Any:
    begins, lengths = ([packing.signed(n) for n in column.tolist()] for column in (starts, sizes))
    if len(begins) != len(lengths):
        return ValueError
    rows = list(zip(begins, lengths, strict=True))
    if any(at < 0 or not 91 <= size <= len(buffer) - at for at, size in rows):
        return ValueError
    faults = [_crc_fault(part(buffer, at, at + size), 0, required) for at, size in rows]
    return [row for row, fault in enumerate(faults) if fault]


def _several(rng: Random) -> Arguments:
    raw, positions = log_of(rng)
    sizes = [records.check_record(raw, at, len(raw), at) for at in positions]
    return bytes(raw), np.array(positions), np.array(sizes), _flag(rng)


def _fact(rng: Random) -> Arguments:
    buffer, at, end = _record(rng)[:3]
    return buffer, at, end - at


def _facts(buffer: Any, at: int, size: int) -> Any:
    data = part(buffer, at, at + size)
    position = int.from_bytes(data[28:36], "big", signed=True) if len(data) >= 91 else -1
    r = plain.read(data, position)
    return r.topic, r.queue, r.offset, r.system_flags, r.stored_at, r.properties


def _of_bytes(judge: Any) -> Any:
    return lambda *given: judge(*given) if all(isinstance(g, bytes) for g in given) else TypeError


def _keys(raw: bytes) -> list[bytes]:
    return [key for key in (plain.find_property(raw, b"KEYS") or b"").split(b" ") if key]


# --- scans ---


def _to_scan(rng: Random) -> Arguments:
    raw, _ = log_of(rng, base := rng.choice((0, 5 << 30)))
    late = base + rng.choice((0, 150, 1 << 40))
    return bytes(raw), 0, len(raw), base, rng.choice((0, 1, 2, 90)), _flag(rng), late


def _scan(
    buffer: Any, at: int, end: int, base: int, limit: int, property_crc: bool, late: int
) -> Any:
    found = scan(
        buffer, at, end, base, limit, property_crc=property_crc, with_names=True, whole_from=late
    )
    rows, digests, levels = (column.tolist() for column in found.keys)
    owners = found.owner_names(buffer)
    names = [owners[owner] for owner in found.owners.tolist()]
    return (
        found.stop, found.end, names, found.positions, found.sizes, found.offsets, found.flags,
        found.stored_at, found.tag_hashes, sorted(zip(rows, digests, levels, strict=True)),
    )  # fmt: skip


def _scanned(
    buffer: Any, at: int, end: int, base: int, limit: int, property_crc: bool, late: int
) -> Any:
    data = part(buffer, at, end)
    found, stop = plain.scan(data, base + at, limit, property_crc, late)
    if not data:
        stop = "end" if at == min(end, len(buffer)) else "damaged" if at < 0 else "zeros"
    keys = [
        (row, digest, level)
        for row, r in enumerate(found)
        for digest, level in plain.digests(r.properties).items()
    ]
    return (
        stop, at + sum(r.size for r in found), [(r.topic, r.queue) for r in found],
        [r.position for r in found], [r.size for r in found], [r.offset for r in found],
        [r.system_flags for r in found], [r.stored_at for r in found],
        [plain.tag_hash(r.properties) for r in found], sorted(keys),
    )  # fmt: skip


# --- messages ---


def plain_message(data: bytes, position: int, check_crc: bool, whole: bool) -> StoredMessage:
    """The message that the plain version reads."""
    r = plain.read(data, position)
    if whole:
        plain.check_property_crc(data[: r.size], position)
    if check_crc:
        plain.check(data[: r.size], position)
    try:
        topic = r.topic.decode()
    except UnicodeDecodeError as e:
        raise RecordDamaged(f"record at {position} is damaged: {e}", position) from None
    return StoredMessage(
        topic, r.queue, r.offset, r.position, r.size, r.body, r.properties, r.flags,
        r.system_flags, r.born_at, r.stored_at, r.born_host, r.store_host, r.reconsume_times,
        r.prepared_position, r.body_crc, r.version,
    )  # fmt: skip


def _to_decode(rng: Random) -> Arguments:
    return *_record(rng)[:4], _flag(rng), _flag(rng)


def _decode(buffer: Any, at: int, end: int, position: int, check: bool, whole: bool) -> Any:
    return messages.decode(buffer, at, end, position, check, None, whole)


def _decoded(buffer: Any, at: int, end: int, position: int, check: bool, whole: bool) -> Any:
    return plain_message(part(buffer, at, end), position, check, whole)


def queue_of(rng: Random) -> Arguments:
    base, offset = rng.choice((0, 5 << 30)), rng.randint(0, 9)
    raw, positions = log_of(rng, base, topic="t", queue=1, offset=offset)
    most = rng.choice((NO_BOUND, rng.randint(0, len(raw) + 9)))
    passed = rng.choice((0, 0, 1, 9))
    return (
        bytes(raw), base, len(raw), positions, "t", 1, offset, _flag(rng), _flag(rng), most,
        _now(rng), passed,
    )  # fmt: skip


def _now(rng: Random) -> int:
    return rng.choice((0, 999_999_999_998, 999_999_999_999, 1_500_000_000_000))


def _has_expired(m: StoredMessage, now: int) -> bool:
    time = plain.expires_at(m.raw_properties)
    return time is not None and time <= now


def queue_read(
    buffer: Any, base: int, end: int, positions: list[int], topic: str, queue: int, offset: int,
    check: bool, whole: bool, most: int, now: int, passed: int,
) -> Any:  # fmt: skip
    out: list[StoredMessage] = []
    expired: list[int] = []
    for position in positions:
        data = part(buffer, position - base, end)
        try:
            m = plain_message(data, position, check, whole)
            topic.encode()
        except (RecordDamaged, UnicodeEncodeError) as e:
            if isinstance(e, UnicodeEncodeError):
                return NotImplemented
            break
        if (m.topic, m.queue, m.offset) != (topic, queue, offset + len(out) + len(expired)):
            break
        if now and _has_expired(m, now):
            if len(expired) >= passed:
                break
            expired.append(m.offset)
            continue
        if out and m.size > most:
            break
        most -= m.size
        out.append(m)
    return out, expired


def _to_check(rng: Random) -> Arguments:
    return [message_of(rng, offset=n) for n in range(rng.randint(0, 5))], _now(rng)


def _any_expired(given: list[StoredMessage], now: int) -> bool:
    return any(_has_expired(m, now) for m in given)


def _record_bytes(given: list[Any]) -> Any:
    total = 0
    for m in given:
        if not isinstance(m, StoredMessage):
            return TypeError
        total += m.size
        if m.size < 0 or total >> 63:
            return OverflowError
    return total


def _kept(given: list[StoredMessage], now: int) -> tuple[list[StoredMessage], list[int]]:
    gone = [m.offset for m in given if _has_expired(m, now)]
    return [m for m in given if not _has_expired(m, now)], gone


def _keep(given: Any, now: int) -> tuple[list[StoredMessage], list[int]]:
    check = messages.ExpiryCheck(now, 1, 9)
    return check.keep(given), check.offsets


def _rows(rng: Random) -> Arguments:
    raw, positions = log_of(rng)
    bounds = np.array([*positions, len(raw)], np.int64) + rng.choice((0, 7, -1, 1 << 40))
    start = rng.randint(0, len(positions))
    stop = rng.randint(start, len(positions))
    return bytes(raw), bounds, np.array(positions, np.int64), start, stop, _flag(rng)


def _decoded_rows(
    buffer: Any, bounds: NDArray[Any], positions: NDArray[Any], start: int, stop: int, check: bool
) -> Any:
    ends, stated = ([packing.signed(n) for n in column.tolist()] for column in (bounds, positions))
    if not 0 <= start <= stop <= min(len(stated), len(ends) - 1):
        return ValueError
    return [
        plain_message(
            part(buffer, ends[row] - ends[0], ends[row + 1] - ends[0]),
            stated[row],
            check,
            whole=False,
        )
        for row in range(start, stop)
    ]


def _fields(rng: Random) -> Arguments:
    m = message_of(rng)
    return tuple(getattr(m, name) for name in StoredMessage.__match_args__)


def _used(*fields: Any) -> Any:
    m = StoredMessage(*fields)
    assert m.expires_at == plain.expires_at(m.raw_properties)
    return repr(m), hash(m), m == m.__replace__(), m.tag, m.keys, m.user_properties


def _host(raw: bytes) -> Any:
    if len(raw) not in (8, 20):
        return FormatError
    family = socket.AF_INET if len(raw) == 8 else socket.AF_INET6
    return socket.inet_ntop(family, raw[:-4]), int.from_bytes(raw[-4:], "big")


RECORD_FUZZERS: Final = {
    "messages.ExpiryCheck": Fuzzer(_to_check, _kept, call=_keep),
    "messages.any_expired": Fuzzer(_to_check, _any_expired),
    "messages.record_bytes": Fuzzer(lambda rng: _to_check(rng)[:1], _record_bytes),
    "messages.StoredMessage": Fuzzer(_fields, call=_used),
    "messages.decode": Fuzzer(_to_decode, _decoded, call=_decode),
    "messages.decode_rows": Fuzzer(_rows, _decoded_rows),
    "messages.unpack_host": Fuzzer(
        lambda rng: (rng.randbytes(rng.choice((8, 20))),), _of_bytes(_host)
    ),
    "records.check_record": Fuzzer(
        _record, _checked,
        call=lambda *given: records.check_record(*given[:-1], property_crc=given[-1]),
    ),
    "records.decode_properties": Fuzzer(
        lambda rng: (rng.choice(_FIELDS),), _of_bytes(plain.decode_properties)
    ),
    "records.facts": Fuzzer(_fact, _facts),
    "records.find_property": Fuzzer(
        lambda rng: (rng.choice(_FIELDS), rng.choice((b"KEYS", b"TAGS", b"a"))),
        _of_bytes(plain.find_property),
    ),
    "records.keys_of": Fuzzer(lambda rng: (rng.choice(_FIELDS),), _of_bytes(_keys)),
    "records.property_crc_faults": Fuzzer(
        _several, _faulty,
        call=lambda *given: records.property_crc_faults(*given[:-1], required=given[-1]),
    ),
    "records.property_crc_problem": Fuzzer(
        _whole, _problem,
        call=lambda *given: records.property_crc_problem(*given[:-1], required=given[-1]),
    ),
    "records.property_crc_suffix": Fuzzer(
        lambda rng: (rng.randbytes(rng.randint(0, 200)),),
        lambda record: plain.property_crc(bytes(record)),
    ),
    "scan.scan": Fuzzer(_to_scan, _scanned, call=_scan),
}  # fmt: skip
"""By the name of the entry: module.function."""
