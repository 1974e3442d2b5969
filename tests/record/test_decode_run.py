"""Decoding a run: the same as record by record, or an end before what is not as it must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.record.decode import TopicBytes, decode, decode_run
from kvstore.record.encode import encode_record
from kvstore.record.values import StoredMessage
from tests.record.strategies import stored_messages

BASE: Final = 4096


def laid_out(messages: Sequence[StoredMessage], topic: str, queue: int) -> list[StoredMessage]:
    """Messages as consecutive ones of one queue, one record behind the other from BASE on."""
    out: list[StoredMessage] = []
    position = BASE
    for offset, message in enumerate(messages, start=7):
        placed = msgspec.structs.replace(
            message, topic=topic, queue=queue, offset=offset, position=position
        )
        placed.size = len(encode_record(placed))
        out.append(placed)
        position += placed.size
    return out


def run(
    raw: bytes, messages: Sequence[StoredMessage], *, queue: int = 3, topic: str = "t"
) -> list[StoredMessage]:
    positions = [m.position for m in messages]
    return decode_run(raw, BASE, len(raw), positions, TopicBytes(topic), queue, 7, True)


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
        assert message == decode(bytes(raw), message.position - BASE, len(raw), message.position)
        assert (message.topic, message.queue) == ("t", 3)


@given(stored_messages())
def test_a_record_of_another_kind_is_left_to_decode(message: StoredMessage) -> None:
    placed = laid_out([message], message.topic, 3)
    found = run(encode_record(placed[0]), placed, topic=message.topic)
    assert found in ([], placed)


@pytest.mark.parametrize("other", [{"queue": 4}, {"topic": "u"}, {"topic": "tt"}])
def test_a_record_of_another_queue_ends_the_run(other: dict[str, object]) -> None:
    body = StoredMessage("t", 3, 7, BASE, 0, b"x", b"", 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, 0)
    messages = laid_out([body], "t", 3)
    raw = encode_record(messages[0])
    assert len(decode_run(raw, BASE, len(raw), [BASE], TopicBytes("t"), 3, 7, False)) == 1
    wrong = {"topic": "t", "queue": 3} | other
    topic_bytes = TopicBytes(str(wrong["topic"]))
    assert (
        decode_run(raw, BASE, len(raw), [BASE], topic_bytes, int(str(wrong["queue"])), 7, False)
        == []
    )
    assert decode_run(raw, BASE, len(raw), [BASE], TopicBytes("t"), 3, 8, False) == []


def test_a_run_ends_where_the_buffer_does() -> None:
    body = StoredMessage(
        "t", 3, 7, BASE, 0, b"x" * 50, b"", 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, 0
    )
    messages = laid_out([body, body], "t", 3)
    raw = b"".join(map(encode_record, messages))
    positions = [m.position for m in messages]
    for cut in range(len(raw)):
        found = decode_run(raw[:cut], BASE, len(raw), positions, TopicBytes("t"), 3, 7, False)
        assert len(found) == cut // messages[0].size
        assert found == decode_run(raw, BASE, cut, positions, TopicBytes("t"), 3, 7, False)
