"""The core takes and refuses the records that the plain version does, with the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.core import records as core
from kvstore.core.messages import StoredMessage
from kvstore.core.scan import Scan, scan
from kvstore.errors import RecordDamaged
from tests.record.strategies import stored_messages
from tests.reference import records as plain
from tests.reference.encode import blank, encode_record
from tests.support.property_crc import with_property_crc

T = TypeVar("T")


def answer(call: Callable[[], T]) -> T | tuple[str, int]:
    """The result, or the error's text and position."""
    try:
        return call()
    except RecordDamaged as e:
        return str(e), e.position


PROPERTIES = st.lists(
    st.sampled_from(
        [
            b"TAGS\x01paid\x02", b"TAGS\x01\xc3\xb6\xf0\x9f\x98\x80\x02", b"TAGS\x01\xff\x02",
            b"TAGS\x01\x02", b"KEYS\x01a bc  a\x02", b"KEYS\x01 \x02", b"UNIQ_KEY\x01a\x02",
            b"UNIQ_KEY\x010A0B\x02", b"KEYS\x01" + b" ".join(b"%d" % (i % 30) for i in range(40)),
            b"\x02", b"\x01", b"DELAY\x013\x02", b"other\x01\x01KEYS\x02", b"TAGS", b"KEYS\x01\x02",
            b"zero\x01\x00\x02", b"\x00",
        ]
    ),
    max_size=6,
).map(b"".join)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, bytes]:
    """A position, and records that begin there; some bytes may be wrong, and lengths may lie."""
    base = draw(st.sampled_from([0, 5 << 30]))
    raw = bytearray()
    for m in draw(st.lists(stored_messages(), max_size=5)):
        m.position = base + len(raw)
        m.topic = draw(st.sampled_from([m.topic, "t", "t", "u"]))
        m.queue = draw(st.sampled_from([m.queue, 1]))
        m.raw_properties = draw(PROPERTIES | st.just(m.raw_properties))
        record = bytearray(encode_record(m))
        if draw(st.booleans()) and (not m.raw_properties or m.raw_properties[-1] == 2):
            with_property_crc(record)
        raw += record
    for _ in range(draw(st.integers(0, 2)) if raw else 0):
        raw[draw(st.integers(0, len(raw) - 1))] ^= draw(st.integers(1, 255))
    for _ in range(draw(st.integers(0, 1)) if len(raw) > 100 else 0):
        at = draw(st.sampled_from([0, 84, 96, 108, len(raw) - draw(st.integers(4, 90))]))
        raw[at : at + 4] = draw(st.sampled_from([0, 91, 1 << 31, (1 << 32) - 1])).to_bytes(4, "big")
    raw += draw(st.sampled_from((b"", b"\0", bytes(90), blank(9) + b"x", blank(400), b"\1" * 9)))
    return base, bytes(raw[draw(st.sampled_from([0, 0, 0, 1])) :])


@given(logs() | st.tuples(st.just(0), st.binary(max_size=300)), st.booleans())
def test_any_bytes_are_a_record_or_not_as_they_are_for_the_plain_version(
    log: tuple[int, bytes], property_crc: bool
) -> None:
    base, data = log
    expected = answer(lambda: plain.check(data, base, property_crc))
    found = answer(
        lambda: core.check_record(b"#" + data, 1, 1 << 40, base, property_crc=property_crc)
    )
    assert found == expected


@given(logs(), st.booleans(), st.sampled_from([0, 1, 2, 1000]), st.sampled_from([0, 200, 1 << 62]))
@example((0, b""), False, 1, 0)
def test_a_scan_finds_what_the_plain_version_finds(
    log: tuple[int, bytes], property_crc: bool, limit: int, late: int
) -> None:
    base, data = log
    expected, stop = plain.scan(data, base, limit, property_crc, base + late)
    found = scan(
        bytearray(data), 0, len(data), base, limit,
        property_crc=property_crc, with_names=True, whole_from=base + late,
    )  # fmt: skip
    assert (len(found), found.stop) == (len(expected), stop)
    assert found.end == sum(record.size for record in expected)
    names = [(record.topic, record.queue) for record in expected]
    _check_owners(found, data, names)
    assert found.positions.tolist() == [record.position for record in expected]
    assert found.sizes.tolist() == [record.size for record in expected]
    assert found.offsets.tolist() == [record.offset for record in expected]
    assert found.flags.tolist() == [record.system_flags for record in expected]
    assert found.stored_at.tolist() == [record.stored_at for record in expected]
    assert found.tag_hashes.tolist() == [plain.tag_hash(record.properties) for record in expected]
    keys: list[dict[int, int]] = [{} for _ in expected]
    rows, digests, levels = (column.tolist() for column in found.keys)
    for row, digest, level in zip(rows, digests, levels, strict=True):
        assert digest not in keys[row]
        keys[row][digest] = level
    assert keys == [plain.digests(record.properties) for record in expected]
    assert rows == sorted(rows)


def test_a_scan_numbers_many_queues_in_the_order_in_which_they_come() -> None:
    raw = b""
    names = []
    for number in range(3000):
        topic, queue = f"topic-{number * 7919 % 1000}", number % 3
        m = StoredMessage(
            topic, queue, 0, len(raw), 0, b"", b"", 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, 0
        )
        raw += encode_record(m)
        names.append((topic.encode(), queue))
    found = scan(raw, 0, len(raw), 0, 5000)
    _check_owners(found, raw, names)
    with pytest.raises(ValueError, match="not the buffer"):
        found.owner_names(raw[:200])


def _check_owners(found: Scan, data: bytes, names: list[tuple[bytes, int]]) -> None:
    owners = found.owner_names(data)
    assert owners == list(dict.fromkeys(names))
    assert [owners[owner] for owner in found.owners.tolist()] == names
    starts, stops = (places.tolist() for places in found.topic_places)
    topics = [data[a:b] for a, b in zip(starts, stops, strict=True)]
    assert list(zip(topics, found.queue_ids.tolist(), strict=True)) == owners


@given(logs() | st.tuples(st.just(0), st.binary(max_size=300)))
def test_the_facts_of_a_record_are_its_fields(log: tuple[int, bytes]) -> None:
    data = log[1]
    position = int.from_bytes(data[28:36], "big", signed=True) if len(data) >= 91 else -1
    try:
        r = plain.read(data, position)
        expected: object = (r.topic, r.queue, r.offset, r.system_flags, r.stored_at, r.properties)
    except RecordDamaged as e:
        expected = str(e), e.position
    assert answer(lambda: core.facts(data, 0, len(data))) == expected


@pytest.mark.parametrize(("at", "size"), [(-1, 91), (0, 1 << 62), (1 << 62, 1 << 62), (200, 91)])
def test_facts_of_bytes_that_are_not_there_are_refused(at: int, size: int) -> None:
    with pytest.raises(RecordDamaged):
        core.facts(bytes(100), at, size)


@given(st.lists(PROPERTIES, max_size=4), st.booleans(), st.data())
def test_records_with_a_wrong_crc_property_are_told_as_the_plain_version_tells_them(
    fields: list[bytes], required: bool, data: st.DataObject
) -> None:
    raw, starts, sizes = bytearray(), [], []
    for field in fields:
        m = StoredMessage(
            "t", 0, 0, len(raw), 0, b"b", field, 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, 0
        )
        record = bytearray(encode_record(m))
        if not field or field[-1] == 2:
            with_property_crc(record)
        record[data.draw(st.integers(92, len(record) - 1))] ^= data.draw(st.sampled_from([0, 1]))
        starts.append(len(raw))
        sizes.append(len(record))
        raw += record
    expected = []
    for start, size in zip(starts, sizes, strict=True):
        text = ""
        record = raw[start : start + size]
        if required or record[-20:].startswith(b"__CRC32#\x01"):
            try:
                plain.check_property_crc(bytes(record), start)
            except RecordDamaged as e:
                text = str(e)
        expected.append(text)
        found = core.property_crc_problem(raw, start, size, start, required=required)
        assert found == text
    faults = core.property_crc_faults(
        raw, np.array(starts, np.int64), np.array(sizes, np.int64), required=required
    )
    assert faults == [row for row, text in enumerate(expected) if text]


def test_records_outside_the_buffer_are_refused() -> None:
    for starts, sizes in (([0, 20], [91, 91]), ([-1], [91]), ([0], [90]), ([0], [1 << 62])):
        with pytest.raises(ValueError, match="not in a buffer"):
            core.property_crc_faults(bytes(100), np.array(starts), np.array(sizes), required=True)
        with pytest.raises(ValueError, match="not in a buffer"):
            core.property_crc_problem(bytes(100), starts[-1], sizes[-1], 0)
    with pytest.raises(ValueError, match="size"):
        core.property_crc_faults(bytes(100), np.array([0]), np.array([91, 91]), required=True)


PIECES = st.lists(
    st.sampled_from((b"\x01", b"\x02", b"a", b"ab", b"\xff", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed"))
).map(b"".join)


@given(st.binary(max_size=60) | PIECES, st.sampled_from([b"a", b"ab", b"b", b"", b"a\x01b"]))
def test_properties_are_read_as_the_plain_version_reads_them(raw: bytes, name: bytes) -> None:
    assert core.decode_properties(raw) == plain.decode_properties(raw)
    assert list(core.decode_properties(raw)) == list(plain.decode_properties(raw))
    assert core.find_property(raw, name) == plain.find_property(raw, name)
    assert core.property_crc_suffix(raw) == plain.property_crc(raw)


@pytest.mark.parametrize("position", [1 << 63, 10**20, -(1 << 70)])
def test_a_position_that_no_record_can_state_is_that_of_no_record(position: int) -> None:
    m = StoredMessage("t", 0, 0, 0, 0, b"", b"", 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, 0)
    raw = encode_record(m)
    with pytest.raises(RecordDamaged, match=f"position field should be {position}, but is 0"):
        core.check_record(raw, 0, len(raw), position)
    assert scan(raw, 0, len(raw), position, 5).stop == "damaged"
