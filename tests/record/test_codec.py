"""Decode and encode: inverse of each other, proof against any bytes; runs as record by record."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import StoredMessage
from kvstore.core.names import BORN_HOST_V6, STORE_HOST_V6
from kvstore.core.records import check_record
from kvstore.errors import MessageIllegal, PropertiesTooLarge, RecordDamaged
from kvstore.record import layout
from kvstore.record.compression import codec_flags, compress
from kvstore.record.ids import pack_host
from tests.record.strategies import stored_messages
from tests.reference.encode import blank, encode_record
from tests.support.decoding import decode
from tests.support.queue_reading import read_queue

POSITION: Final = 7_000_000_000


def message(**changes: object) -> StoredMessage:
    """An ordinary message; `changes` replace fields before the record is made."""
    fields: dict[str, object] = {
        "topic": "orders",
        "queue": 3,
        "offset": 42,
        "position": POSITION,
        "size": 0,
        "body": b"hello",
        "raw_properties": b"TAGS\x01paid\x02KEYS\x01a bc\x02",
        "flags": 0xFFFF_FFFF,
        "system_flags": 0,
        "born_at": 1_700_000_000_000,
        "stored_at": 1_700_000_000_005,
        "raw_born_host": pack_host("10.0.0.1", 4321),
        "raw_store_host": pack_host("10.0.0.2", 10911),
        "reconsume_times": 2,
        "prepared_position": 17,
        "body_crc": 0,
    } | changes
    found = StoredMessage(**fields)  # type: ignore[arg-type]
    if "body_crc" not in changes:
        found.body_crc = crc32(found.body) & layout.CRC_MASK
    if "size" not in changes:
        found.size = len(encode_record(found))
    return found


RAW: Final = encode_record(message())


def refusal(raw: bytes, position: int = POSITION) -> RecordDamaged:
    with pytest.raises(RecordDamaged) as caught:
        decode(raw, 0, len(raw), position=position)
    return caught.value


# -- whole records


@given(stored_messages())
def test_every_message_comes_back_from_its_record(m: StoredMessage) -> None:
    raw = encode_record(m)
    again = decode(raw, 0, len(raw), position=m.position, raw_body=True)
    assert again == m
    assert encode_record(again) == raw
    assert check_record(raw, 0, len(raw), m.position) == len(raw) == m.size


@given(stored_messages(plain=True), st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_is_decoded_in_the_midst_of_others(
    m: StoredMessage, before: bytes, behind: bytes
) -> None:
    buffer = before + encode_record(m) + behind
    assert decode(buffer, len(before), len(buffer), position=m.position) == m


@given(stored_messages())
def test_every_kind_of_buffer_gives_the_same_message(m: StoredMessage) -> None:
    raw = encode_record(m)
    for buffer in (bytearray(raw), memoryview(raw), memoryview(bytearray(b"x" + raw))[1:]):
        again = decode(buffer, 0, len(raw), position=m.position, raw_body=True)
        assert again == m
        assert type(again.body) is type(again.raw_properties) is bytes
        assert type(again.raw_born_host) is bytes


@pytest.mark.parametrize("born", [0, BORN_HOST_V6])
@pytest.mark.parametrize("store", [0, STORE_HOST_V6])
@pytest.mark.parametrize("version", [1, 2])
def test_hosts_of_either_size_and_both_versions_fit_together(
    born: int, store: int, version: int
) -> None:
    m = message(
        system_flags=born | store,
        version=version,
        raw_born_host=pack_host("fe80::1" if born else "1.2.3.4", 1),
        raw_store_host=pack_host("fe80::2" if store else "5.6.7.8", 2),
    )
    raw = encode_record(m)
    again = decode(raw, 0, len(raw), position=POSITION)
    assert again.born_host == ("fe80::1" if born else "1.2.3.4", 1)
    assert again.store_host == ("fe80::2" if store else "5.6.7.8", 2)
    assert again == m


def test_a_record_has_each_field_at_its_place() -> None:
    def at(place: int, size: int) -> int:
        return int.from_bytes(RAW[place : place + size], "big")

    m = message()
    assert at(layout.SIZE_AT, 4) == len(RAW) == layout.FIXED_V1 + 5 + 6 + 20
    assert at(layout.MAGIC_AT, 4) == 0xDAA320A7
    assert at(layout.BODY_CRC_AT, 4) == crc32(b"hello") & 0x7FFFFFFF
    assert at(layout.QUEUE_ID_AT, 4) == 3
    assert at(layout.FLAG_AT, 4) == 0xFFFF_FFFF
    assert at(layout.QUEUE_OFFSET_AT, 8) == 42
    assert at(layout.POSITION_AT, 8) == POSITION
    assert at(layout.SYSTEM_FLAGS_AT, 4) == 0
    assert at(layout.BORN_AT, 8) == m.born_at
    assert RAW[layout.BORN_HOST_AT :][:8] == m.raw_born_host
    assert at(layout.STORED_AT, 8) == m.stored_at
    assert RAW[layout.STORE_HOST_AT :][:8] == m.raw_store_host
    assert at(layout.RECONSUME_TIMES_AT, 4) == 2
    assert at(layout.PREPARED_POSITION_AT, 8) == 17
    assert at(layout.BODY_SIZE_AT, 4) == 5
    assert RAW[layout.BODY_AT :] == b"hello\x06orders\x00\x14" + m.raw_properties


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_a_compressed_body_is_decompressed_or_kept_as_asked(codec: str) -> None:
    plain = b"the same again " * 100
    stored = compress(plain, codec)
    raw = encode_record(message(body=stored, system_flags=codec_flags(codec)))
    assert decode(raw, 0, len(raw), position=POSITION).body == plain
    assert decode(raw, 0, len(raw), position=POSITION, max_body=len(plain)).body == plain
    assert decode(raw, 0, len(raw), position=POSITION, raw_body=True).body == stored


def test_an_empty_body_is_not_decompressed() -> None:
    raw = encode_record(message(body=b"", system_flags=codec_flags("lz4")))
    assert decode(raw, 0, len(raw), position=POSITION).body == b""


# -- any bytes


@given(st.binary(max_size=400), st.integers(0, 60))
def test_any_bytes_are_a_record_or_refused(raw: bytes, at: int) -> None:
    decode_or_refuse(raw, at, len(raw), 0)


@given(stored_messages(), st.data())
@example(message(), None)
def test_a_record_with_any_byte_changed_is_a_record_or_refused(
    m: StoredMessage, data: st.DataObject | None
) -> None:
    raw = bytearray(encode_record(m))
    places = range(len(raw)) if data is None else [data.draw(st.integers(0, len(raw) - 1))]
    for place in places:
        before = raw[place]
        raw[place] = before ^ (1 << place % 8 if data is None else data.draw(st.integers(1, 255)))
        decode_or_refuse(bytes(raw), 0, len(raw), m.position)
        raw[place] = before


@given(stored_messages(), st.data())
def test_a_record_cut_short_is_refused(m: StoredMessage, data: st.DataObject) -> None:
    raw = encode_record(m)
    cut = data.draw(st.integers(0, len(raw) - 1))
    for buffer, end in ((raw, cut), (raw[:cut], cut), (raw[:cut], len(raw))):
        with pytest.raises(RecordDamaged):
            decode(buffer, 0, end, position=m.position)


def decode_or_refuse(raw: bytes, at: int, end: int, position: int) -> None:
    """Both outcomes are right, a third isn't; and `check_record` must see it the same way."""
    try:
        size = check_record(raw, at, end, position)
    except RecordDamaged:
        size = 0
    refused: RecordDamaged | None = None
    try:
        found = decode(raw, at, end, position=position, raw_body=True)
    except RecordDamaged as error:
        refused = error
    else:
        assert encode_record(found) == raw[at : at + found.size]
        assert size == found.size
    if refused is not None:
        assert refused.position == position
        assert str(position) in str(refused)
        assert size <= 0 or "utf-8" in str(refused), "the one thing that only a reader needs"


# -- what is refused, and what is said about it


def changed(at: int, size: int, value: int) -> bytes:
    raw = bytearray(RAW)
    raw[at : at + size] = value.to_bytes(size, "big")
    return bytes(raw)


TOPIC_SIZE_AT: Final = layout.BODY_AT + 5
PROPERTIES_SIZE_AT: Final = TOPIC_SIZE_AT + 1 + 6


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "0 bytes"),
        (RAW[:90], "too few"),
        (changed(layout.MAGIC_AT, 4, 0xDAA320A8), "magic should be 0xdaa320a7 or 0xdaa320ab"),
        (blank(200) + bytes(192), "magic"),
        (bytes(200), "magic"),
        (changed(layout.SIZE_AT, 4, len(RAW) + 1), f"size should be 91 to {len(RAW)}"),
        (changed(layout.SIZE_AT, 4, len(RAW) - 1), "properties length should be 19"),
        (changed(layout.SIZE_AT, 4, 90), "size"),
        (changed(layout.SIZE_AT, 4, 2**32 - 1), "size"),
        (changed(layout.POSITION_AT, 8, 1), f"position field should be {POSITION}, but is 1"),
        (changed(layout.BODY_SIZE_AT, 4, 2**31), "body length should be at most 31"),
        (changed(layout.BODY_SIZE_AT, 4, 31), "topic length"),
        (changed(TOPIC_SIZE_AT, 1, 27), "topic length should be at most 26, but is 27"),
        (changed(TOPIC_SIZE_AT, 1, 5), "properties length"),
        (changed(PROPERTIES_SIZE_AT, 2, 19), "properties length should be 20"),
        (changed(PROPERTIES_SIZE_AT, 2, 0x8000 + 20), "properties length"),
        (changed(layout.BODY_CRC_AT, 4, 1), "body CRC should be 0x00000001"),
        (changed(layout.BODY_AT, 1, ord("H")), "body CRC"),
        (changed(TOPIC_SIZE_AT + 1, 1, 0xFF), "utf-8"),
        (changed(layout.SYSTEM_FLAGS_AT, 4, BORN_HOST_V6 | STORE_HOST_V6), "body length"),
    ],
)
def test_what_is_wrong_is_said(raw: bytes, what: str) -> None:
    error = refusal(raw)
    assert what in str(error)
    assert str(POSITION) in str(error)
    assert error.position == POSITION


def test_a_v1_topic_above_127_bytes_is_refused_although_its_length_fits_a_byte() -> None:
    whole = encode_record(message(topic="t" * 127, raw_properties=b"p" * 50))
    topic_size_at = layout.BODY_AT + 5
    raw = bytearray(whole)
    raw[topic_size_at] = 130
    raw[topic_size_at + 131 : topic_size_at + 133] = (47).to_bytes(2, "big")
    assert "topic length should be at most 127" in str(refusal(bytes(raw)))


def test_properties_above_32767_bytes_are_refused_although_their_length_fits() -> None:
    raw = bytearray(encode_record(message(raw_properties=b"p" * 32767)))
    raw += b"p"
    raw[0:4] = len(raw).to_bytes(4, "big")
    raw[PROPERTIES_SIZE_AT : PROPERTIES_SIZE_AT + 2] = b"\x80\x00"
    assert "at most 32767" in str(refusal(bytes(raw)))
    with pytest.raises(RecordDamaged):
        check_record(raw, 0, len(raw), POSITION)


def test_a_negative_index_is_refused_not_counted_from_the_end() -> None:
    with pytest.raises(RecordDamaged):
        decode(RAW, -len(RAW), len(RAW), position=POSITION)
    with pytest.raises(RecordDamaged):
        check_record(RAW, -len(RAW), len(RAW), POSITION)


@pytest.mark.parametrize("version", [1, 2])
def test_a_wrong_crc_passes_where_it_is_not_to_be_checked(version: int) -> None:
    raw = encode_record(message(body_crc=1, version=version))
    assert "body CRC" in str(refusal(raw))
    assert decode(raw, 0, len(raw), position=POSITION, check_crc=False).body == b"hello"


@pytest.mark.parametrize("flags", [0x401, 0x501, 0x601, 0x701])
def test_an_unknown_codec_is_refused(flags: int) -> None:
    assert "codec" in str(refusal(encode_record(message(system_flags=flags))))


@pytest.mark.parametrize("flags", [0x001, 0x101, 0x201, 0x301])
def test_a_body_that_is_not_what_its_codec_says_is_refused(flags: int) -> None:
    error = refusal(encode_record(message(system_flags=flags)))
    assert "decompress" in str(error)
    assert error.position == POSITION


# -- memory


def peak_of(call: Callable[[], object]) -> int:
    """Bytes allocated at most while `call` runs and is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(RecordDamaged):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [2**31 - 1, 2**32 - 1, 0x0FFF_FFFF])
@pytest.mark.parametrize("at", [layout.SIZE_AT, layout.BODY_SIZE_AT])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_hostile_length_allocates_nothing(
    value: int, at: int, kind: Callable[[bytes], bytes]
) -> None:
    raw = kind(changed(at, 4, value))
    assert peak_of(lambda: decode(raw, 0, len(raw), position=POSITION)) < 20_000
    assert peak_of(lambda: check_record(raw, 0, len(raw), POSITION)) < 20_000


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_a_bomb_is_refused_within_the_limit_of_memory(codec: str) -> None:
    limit = 1 << 20
    bomb = compress(bytes(40 << 20), codec)
    raw = encode_record(message(body=bomb, system_flags=codec_flags(codec)))
    peak = peak_of(lambda: decode(raw, 0, len(raw), position=POSITION, max_body=limit))
    assert peak < 2.5 * limit + 2 * len(raw)


# -- encoding


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"topic": "t" * 128}, "topic has 128 bytes"),
        ({"topic": "\udc00"}, "UTF-8"),
        ({"version": 3}, "version"),
        ({"raw_properties": bytes(32768)}, "32768"),
        ({"system_flags": BORN_HOST_V6}, "born host"),
        ({"system_flags": STORE_HOST_V6}, "store host"),
        ({"queue": -1}, "fit"),
        ({"offset": 2**63}, "fit"),
        ({"flags": 2**32}, "fit"),
    ],
)
def test_what_does_not_fit_a_record_is_refused(changes: dict[str, object], what: str) -> None:
    with pytest.raises(MessageIllegal, match=what):
        encode_record(message(size=0, **changes))


def test_properties_that_are_too_large_are_refused_with_their_size() -> None:
    with pytest.raises(PropertiesTooLarge) as caught:
        encode_record(message(size=0, raw_properties=bytes(40_000)))
    assert (caught.value.size, caught.value.limit) == (40_000, 32_767)


def test_v2_takes_topics_above_127_bytes() -> None:
    m = message(topic="%RETRY%" + "g" * 200, version=2)
    raw = encode_record(m)
    assert raw[4:8].hex() == "daa320ab"
    assert decode(raw, 0, len(raw), position=POSITION) == m


def test_the_size_of_a_record_is_known_before_it_is_made() -> None:
    for flags, hosts in ((0, ("1.1.1.1", "1.1.1.1")), (0x30, ("::1", "::1"))):
        for version in (1, 2):
            m = message(
                system_flags=flags,
                version=version,
                raw_born_host=pack_host(hosts[0], 1),
                raw_store_host=pack_host(hosts[1], 1),
            )
            assert layout.record_size(5, 6, 20, flags, version) == len(encode_record(m))


def test_a_blank_record_is_its_size_and_its_magic() -> None:
    assert blank(8507) == (8507).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    for size in (7, -1, 2**32):
        with pytest.raises(MessageIllegal):
            blank(size)


BASE: Final = 4096


def laid_out(messages: Sequence[StoredMessage], topic: str, queue: int) -> list[StoredMessage]:
    """Messages as consecutive ones of one queue, one record behind the other from BASE on."""
    out: list[StoredMessage] = []
    position = BASE
    for offset, message in enumerate(messages, start=7):
        placed = message.__replace__(topic=topic, queue=queue, offset=offset, position=position)
        placed.size = len(encode_record(placed))
        out.append(placed)
        position += placed.size
    return out


def run(
    raw: bytes, messages: Sequence[StoredMessage], *, queue: int = 3, topic: str = "t"
) -> list[StoredMessage]:
    positions = [m.position for m in messages]
    return read_queue(raw, BASE, len(raw), positions, topic, queue, 7)


@given(
    st.lists(stored_messages(plain=True), min_size=1, max_size=5), st.sampled_from(["t", "ö" * 9])
)
def test_a_run_of_ordinary_records_is_what_each_decodes_to(
    drawn: list[StoredMessage], topic: str
) -> None:
    messages = laid_out(drawn, topic, 3)
    raw = b"".join(map(encode_record, messages))
    found = run(raw, messages, topic=topic)
    assert found == messages
    assert found == [decode(raw, m.position - BASE, len(raw), m.position) for m in messages]


@given(st.lists(stored_messages(plain=True), min_size=2, max_size=4), st.data())
def test_a_run_ends_before_a_record_that_was_changed_anywhere(
    drawn: list[StoredMessage], data: st.DataObject
) -> None:
    """Or the change is one that `decode` accepts as well."""
    messages = laid_out(drawn, "t", 3)
    raw = bytearray(b"".join(map(encode_record, messages)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    found = run(bytes(raw), messages)
    assert len(found) >= sum(m.position - BASE + m.size <= at for m in messages)
    for message in found:
        at = message.position - BASE
        # The change may be the bit that calls the body compressed, and a run is of stored bodies.
        assert message == decode(bytes(raw), at, len(raw), message.position, raw_body=True)
        assert (message.topic, message.queue) == ("t", 3)


@given(stored_messages())
def test_a_run_has_records_of_every_kind(message: StoredMessage) -> None:
    placed = laid_out([message], message.topic, 3)
    assert run(encode_record(placed[0]), placed, topic=message.topic) == placed


@pytest.mark.parametrize(
    "other", [{"queue": 4}, {"topic": "u"}, {"topic": "tt"}, {"topic": ""}, {"offset": 8}]
)
def test_a_record_of_another_queue_ends_the_run(other: dict[str, object]) -> None:
    body = StoredMessage("t", 3, 7, BASE, 0, b"x", b"", 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, 0)
    messages = laid_out([body], "t", 3)
    raw = encode_record(messages[0])
    expected: dict[str, Any] = {"topic": "t", "queue": 3, "offset": 7}
    assert len(read_queue(raw, BASE, len(raw), [BASE], check_crc=False, **expected)) == 1
    assert read_queue(raw, BASE, len(raw), [BASE], check_crc=False, **expected | other) == []


def test_a_run_ends_where_the_buffer_does() -> None:
    body = StoredMessage(
        "t", 3, 7, BASE, 0, b"x" * 50, b"", 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, 0
    )
    messages = laid_out([body, body], "t", 3)
    raw = b"".join(map(encode_record, messages))
    positions = [m.position for m in messages]
    for cut in range(len(raw)):
        found = read_queue(raw[:cut], BASE, len(raw), positions, "t", 3, 7, False)
        assert len(found) == cut // messages[0].size
        assert found == read_queue(raw, BASE, cut, positions, "t", 3, 7, False)
