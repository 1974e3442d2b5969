"""SendMessage: the core reads from bytes what protobuf reads, and writes the bytes it writes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.put_values import NO_PROPERTIES, PutResult, PutStatus
from kvstore.core.transport.send_calls import pack_send_response, read_send_request
from kvstore.serve.grpc.protocol.answers import OK
from kvstore.serve.grpc.protocol.wire import message_class
from tests.core.send_fuzzers import (
    a_request,
    an_entry,
    fields_of,
    fill,
    protobuf_answer,
    protobuf_fields,
    read_fields,
    sized,
)

GROUP, END = b"\x4b", b"\x4c"


def one_message(*pieces: bytes) -> bytes:
    return sized(1, b"".join(pieces))


randoms = st.randoms(use_true_random=False)


def assert_read_as_by_protobuf(raw: Any) -> None:
    expected = protobuf_fields(raw)
    if isinstance(expected, list):
        assert read_fields(raw) == expected
    else:
        with pytest.raises(expected):
            read_fields(raw)


@given(randoms)
def test_a_request_is_read_as_protobuf_reads_it(rng: Random) -> None:
    request = message_class("SendMessageRequest")()
    for _ in range(rng.randint(0, 4)):
        fill(rng, request.messages.add())

    assert read_fields(request.SerializeToString()) == fields_of(request)


@given(randoms, st.data())
def test_changed_and_cut_bytes_are_read_or_refused_as_by_protobuf(
    rng: Random, data: st.DataObject
) -> None:
    raw = bytearray(a_request(rng))
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]

    assert_read_as_by_protobuf(raw)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused_as_by_protobuf(raw: bytes) -> None:
    assert_read_as_by_protobuf(raw)


@pytest.mark.parametrize(
    "raw",
    [
        one_message(sized(1, sized(1, b"n")), sized(1, sized(2, b"t")), sized(4, b"a")),
        one_message(sized(4, b"a"), sized(4, b"b")),
        one_message(sized(3, sized(2, b"a") + sized(1, b"x")), sized(3, sized(2, b"b"))),
        one_message(sized(3, sized(7, b"\x08\x05")), sized(3, sized(7, b"\x10\x80\x89\x7a"))),
        one_message(sized(2, sized(1, b"n")), sized(2, sized(2, b"v")), sized(2, b"")),
        one_message(sized(2, sized(1, b"n") + sized(2, b"v") + sized(9, b"u"))),
        one_message(sized(3, b"\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")),
        one_message(sized(3, sized(11, b"\x08" + b"\xff" * 9 + b"\x01"))),
        b"",
        b"\x08\x05",
        b"\x4b\x00\x05\x4c",
    ],
)
def test_parts_that_come_again_and_odd_fields_are_read_as_by_protobuf(raw: bytes) -> None:
    assert read_fields(raw) == protobuf_fields(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x00",
        b"\x0c",
        b"\x0e",
        b"\x4b",
        b"\x4b\x54",
        b"\x4b\x53\x4c\x54",
        b"\x4d123",
        b"\x48" + b"\xff" * 10 + b"\x01",
        b"\xc8\x80\x80\x80\x10\x05",
        b"\x0a\xff\xff\xff\xff\x0f",
        one_message(sized(3, sized(1, b"\xff"))),
        one_message(sized(3, sized(8, b"\xed\xa0\x80"))),
        one_message(sized(3, sized(20, sized(1, b"\xff")))),
        one_message(sized(3, sized(7, b"\x08"))),
        one_message(sized(2, sized(2, b"\xff"))),
        one_message(b"\x22\x05abc"),
    ],
)
def test_bytes_that_protobuf_refuses_are_refused(raw: bytes) -> None:
    assert protobuf_fields(raw) is ValueError
    with pytest.raises(ValueError):  # noqa: PT011 # texts differ
        read_send_request(raw)


@pytest.mark.parametrize("depth", [1, 96, 97, 98, 99, 100, 101, 5000])
def test_groups_may_be_as_deep_as_in_protobuf(depth: int) -> None:
    groups = GROUP * depth + END * depth
    for raw in (groups, one_message(groups), one_message(sized(3, sized(7, groups)))):
        assert_read_as_by_protobuf(raw)


def test_messages_of_one_topic_share_its_name_and_those_of_none_have_no_properties() -> None:
    topics = [sized(1, sized(2, name)) for name in (b"a", b"a", b"b", b"a")]
    found = read_send_request(b"".join(one_message(topic) for topic in topics))

    assert [one.resource.name for one in found] == ["a", "a", "b", "a"]
    assert found[0].resource is found[1].resource
    assert all(one.message.properties is NO_PROPERTIES for one in found)


@given(randoms)
def test_an_answer_has_the_bytes_that_protobuf_writes(rng: Random) -> None:
    entries = [an_entry(rng) for _ in range(rng.randint(0, 40))]

    assert pack_send_response(OK, "OK", entries) == protobuf_answer(OK, "OK", entries)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 70_000])
def test_texts_of_every_length_are_written(size: int) -> None:
    entries: list[Any] = [
        PutResult("i" * size, "t", 0, 1 << 62, 0, 9, PutStatus.WRITTEN),
        (40006, "e" * size, "ü" * size, "t" * size, (1 << 63) - 1, "h" * size),
    ]

    assert pack_send_response(1, "x" * size, entries) == protobuf_answer(1, "x" * size, entries)


@pytest.mark.parametrize("entry", [None, "text", [1], (1, "a"), (1, 2, 3, 4, 5, 6)])
def test_what_is_no_entry_is_refused(entry: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        pack_send_response(OK, "OK", [entry])


def test_an_answer_without_a_status_is_written() -> None:
    assert pack_send_response(0, "", []) == b"\x0a\x00"
