"""Messages of the core: every field as the plain version reads it, and values like others."""

from __future__ import annotations

import copy
import pickle
import socket
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.messages import QueueReader, StoredMessage, decode, decode_rows, unpack_host
from kvstore.core.names import RESERVED
from kvstore.core.packed_runs import DecodedRuns
from kvstore.core.tail import Tail
from kvstore.errors import FormatError, MessageIllegal, RecordDamaged
from tests.core.record_fuzzers import plain_message
from tests.core.test_records import answer, logs
from tests.record.strategies import stored_messages
from tests.reference import records as plain
from tests.reference.encode import encode_record
from tests.support.property_crc import with_property_crc
from tests.support.queue_reading import read_queue

HOST = bytes((10, 0, 0, 1, 0, 0, 0, 80))


def message(**changes: object) -> StoredMessage:
    """A message; the keywords change its fields."""
    m = StoredMessage("t", 1, 2, 3, 4, b"body", b"", 5, 0, 6, 7, HOST, HOST, 8, 9, 10)
    return m.__replace__(**changes)


@given(logs() | st.tuples(st.just(0), st.binary(max_size=300)), st.booleans(), st.booleans())
def test_any_bytes_are_a_message_or_not_as_they_are_for_the_plain_version(
    log: tuple[int, bytes], check_crc: bool, whole: bool
) -> None:
    base, data = log
    expected = answer(lambda: plain_message(data, base, check_crc, whole))
    found = answer(
        lambda: decode(b"##" + data, 2, 1 << 40, base, check_crc=check_crc, property_crc=whole)
    )
    assert found == expected
    if isinstance(expected, StoredMessage):
        assert isinstance(found, StoredMessage)
        assert repr(found) == repr(expected)
        assert encode_record(found) == data[: found.size]


@given(logs(), st.booleans(), st.booleans(), st.integers(0, 500))
def test_a_queue_is_decoded_up_to_the_first_record_that_is_not_the_expected_one(
    log: tuple[int, bytes], check_crc: bool, whole: bool, cut: int
) -> None:
    base, data = log
    end = max(0, len(data) - cut)
    each: list[StoredMessage] = []
    while True:
        at = each[-1].position + each[-1].size - base if each else 0
        try:
            found = decode(data, at, end, base + at, check_crc=check_crc, property_crc=whole)
        except RecordDamaged:
            break
        each.append(found)
    positions = [m.position for m in each] + [base + at]
    for start, first in enumerate(each):
        expected = [first]
        for m in each[start + 1 :]:
            following = (first.topic, first.queue, first.offset + len(expected))
            if (m.topic, m.queue, m.offset) != following:
                break
            expected.append(m)
        found_ones = read_queue(
            data, base, end, positions[start:], first.topic, first.queue, first.offset,
            check_crc=check_crc, property_crc=whole,
        )  # fmt: skip
        assert found_ones == expected


@pytest.mark.parametrize(
    ("queue", "offset"),
    [(2, 0), (-1, 0), (True, 0), ("1", 0), (1 << 70, 0), (1, True), (1, None), (1, 1 << 70)],
)
def test_a_queue_or_an_offset_that_is_none_has_no_message(queue: object, offset: object) -> None:
    def span(position: int) -> tuple[bytes, int, int]:
        raise AssertionError(position)

    tail = Tail(0)
    tail.add_found(np.array([1 << 32 | 1, 0, 0, 0, 0, 0], np.int64), np.zeros(0, np.int64))
    reader = QueueReader(DecodedRuns(), {}, 1, span)
    with pytest.raises(AssertionError, match="0"):
        reader.get(tail, None, "t", 1 << 32, 2, 1, 0, 1)
    assert reader.get(tail, None, "t", 1 << 32, 2, queue, offset, 1) is None


@pytest.mark.parametrize("position", [-1, 0, 99, 1 << 62, (1 << 63) - 1, -(1 << 63)])
def test_positions_outside_the_buffer_have_no_messages(position: int) -> None:
    raw = encode_record(message(position=100))
    assert len(read_queue(raw, 100, len(raw), [100], "t", 1, 2, check_crc=False)) == 1
    assert read_queue(raw, 100, len(raw), [position], "t", 1, 2, check_crc=False) == []


def test_a_body_that_can_not_be_unpacked_ends_the_run_and_is_told() -> None:
    def refuses(stored: bytes, system_flags: int) -> bytes:
        raise RecordDamaged("it is no body")

    raw = encode_record(message(position=0, system_flags=1))
    assert read_queue(raw, 0, len(raw), [0], "t", 1, 2, False, refuses) == []
    with pytest.raises(RecordDamaged, match="record at 0 is damaged: it is no body"):
        decode(raw, 0, len(raw), 0, False, refuses)
    for unpack, body in ((None, b"body"), (lambda stored, flags: stored + b"!" * flags, b"body!")):
        assert decode(raw, 0, len(raw), 0, False, unpack).body == body
        assert read_queue(raw, 0, len(raw), [0], "t", 1, 2, False, unpack)[0].body == body


def test_a_message_keeps_no_reference_to_the_buffer() -> None:
    raw = bytearray(encode_record(message(position=0)))
    before = sys.getrefcount(raw)
    found = [decode(raw, 0, len(raw), 0, False)]
    found += read_queue(raw, 0, len(raw), [0], "t", 1, 2, False)
    assert sys.getrefcount(raw) == before
    raw[:] = bytes(len(raw))
    raw += b"an exported view would make this a BufferError"
    assert [m.body for m in found] == [b"body", b"body"]


def test_a_view_of_the_body_can_only_be_read_and_outlives_the_message() -> None:
    raw = bytearray(encode_record(message(position=0, body=b"a long body")))
    m = decode(raw, 0, len(raw), 0, False)
    view = m.body_view
    assert view.obj is m.body
    assert view.readonly
    raw[:] = bytes(len(raw))
    del m
    assert bytes(view[2:6]) == b"long"
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1


@given(stored_messages())
def test_a_message_is_copied_pickled_and_hashed_like_a_value(m: StoredMessage) -> None:
    for again in (copy.copy(m), copy.deepcopy(m), pickle.loads(pickle.dumps(m)), m.__replace__()):
        assert again == m
        assert hash(again) == hash(m)
        assert repr(again) == repr(m)
    assert m != message(topic=m.topic + "x")
    assert (m == object()) is False


def test_a_message_shows_all_its_fields() -> None:
    assert repr(message()) == (
        "StoredMessage(topic='t', queue=1, offset=2, position=3, size=4, body=b'body', "
        "raw_properties=b'', flags=5, system_flags=0, born_at=6, stored_at=7, "
        f"raw_born_host={HOST!r}, raw_store_host={HOST!r}, reconsume_times=8, "
        "prepared_position=9, body_crc=10, version=1)"
    )


@pytest.mark.parametrize("name", StoredMessage.__match_args__)
def test_messages_that_differ_in_one_field_are_not_equal(name: str) -> None:
    other = {str: "u", bytes: bytes(8), int: 77}[type(getattr(message(), name))]
    assert message(**{name: other}) != message()
    changed = message()
    setattr(changed, name, other)
    assert changed == message(**{name: other})


@pytest.mark.parametrize(
    ("name", "value"),
    [("queue", -1), ("queue", 1 << 32), ("offset", 1 << 63), ("flags", -1), ("version", 1 << 40)],
)
def test_a_number_that_no_field_holds_is_refused(name: str, value: int) -> None:
    with pytest.raises(MessageIllegal, match="fit"):
        message(**{name: value})
    with pytest.raises(OverflowError):
        setattr(message(), name, value)


PIECES = st.lists(
    st.sampled_from(
        [b"TAGS", b"KEYS", b"UNIQ_KEY", b"__SHARDINGKEY", b"\x01", b"\x02", b"a b", b"x", b"\xff"]
    )
).map(b"".join)


@given(PIECES, st.booleans())
def test_names_and_properties_are_those_of_the_properties_field(raw: bytes, first: bool) -> None:
    m = message(raw_properties=raw)
    expected = plain.decode_properties(raw)
    if first:
        assert m.properties == expected
    assert m.tag == expected.get("TAGS")
    assert m.keys == [key for key in expected.get("KEYS", "").split(" ") if key]
    assert m.message_group == expected.get("__SHARDINGKEY")
    assert m.message_id == expected.get("UNIQ_KEY", m.position_id)
    assert m.user_properties == {k: v for k, v in expected.items() if k not in RESERVED}
    assert m.properties == expected


def test_names_are_looked_up_anew_in_another_properties_field() -> None:
    m = message(raw_properties=b"TAGS\x01a\x02KEYS\x01k\x02")
    assert (m.tag, m.keys) == ("a", ["k"])
    m.raw_properties = b"KEYS\x01l\x02"
    assert (m.tag, m.keys) == (None, ["l"])


def test_a_short_text_is_never_taken_for_another() -> None:
    values = [bytes((a, b)) for a in range(32, 256) for b in range(32, 256, 7)] * 2
    for value in values:
        raw = b"name\x01" + value + b"\x02TAGS\x01" + value
        m = message(raw_properties=raw)
        assert m.tag == value.decode(errors="replace")
        assert m.properties == plain.decode_properties(raw)


def test_a_message_seen_as_another_keeps_its_record() -> None:
    m = message(raw_properties=b"TAGS\x01a\x02")
    m.see_as("other", {"TAGS": "b"})
    assert (m.topic, m.tag, m.raw_properties) == ("other", "b", b"TAGS\x01a\x02")
    assert pickle.loads(pickle.dumps(m)).properties == {"TAGS": "b"}
    m.see_as("third", None)
    assert (m.topic, m.tag) == ("third", "b")
    m.raw_properties = b"TAGS\x01c\x02"
    assert m.tag == "c"


@given(st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20))
def test_a_host_is_shown_as_the_system_shows_it(raw: bytes) -> None:
    family = socket.AF_INET if len(raw) == 8 else socket.AF_INET6
    expected = socket.inet_ntop(family, raw[:-4]), int.from_bytes(raw[-4:], "big")
    assert unpack_host(raw) == expected
    assert (
        message(raw_born_host=raw).born_host == message(raw_store_host=raw).store_host == expected
    )


@pytest.mark.parametrize("size", [0, 7, 9, 19, 21])
def test_bytes_of_another_length_are_no_host(size: int) -> None:
    with pytest.raises(FormatError, match=f"8 or 20 bytes, not {size}"):
        unpack_host(bytes(size))


def test_a_whole_record_is_held_to_its_own_crc_if_asked() -> None:
    raw = bytearray(encode_record(message(position=0)))
    with_property_crc(raw)
    assert decode(raw, 0, len(raw), 0, False, property_crc=True).topic == "t"
    raw[93] ^= 1
    with pytest.raises(RecordDamaged, match="CRC property"):
        decode(raw, 0, len(raw), 0, False, property_crc=True)


def test_a_message_that_was_not_made_is_refused() -> None:
    with pytest.raises(TypeError, match="no properties"):
        print(StoredMessage.__new__(StoredMessage).tag)


def test_a_bound_however_far_behind_ends_a_row_where_its_buffer_ends() -> None:
    data, positions = encode_record(message()), np.array([3], np.int64)
    for begin in (-1, -(1 << 63)):
        bounds = np.array([begin, (1 << 63) - 1], np.int64)
        assert decode_rows(data, bounds, positions, 0, 1, False) == [
            decode(data, 0, len(data), 3, False)
        ]
