"""Values of the local protocol: the core writes the bytes that msgspec makes of their fields."""

from __future__ import annotations

import select
import sys
import threading
import time
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.messages import stored_of
from kvstore.core.popping.receipts import Popped
from kvstore.core.put_values import Message, PutResult, PutStatus
from kvstore.core.transport.local_packing import (
    frame_of_columns,
    frame_of_popped,
    frame_of_results,
    frame_of_stored,
    pack_messages,
)
from kvstore.core.transport.local_reading import read_messages, read_popped, read_results
from kvstore.core.unique_ids import UniqueIds
from tests.core.local_fuzzers import fields, popped_fields
from tests.core.record_fuzzers import message_of

if TYPE_CHECKING:
    from collections.abc import Callable

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
LENGTHS = (0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536)
NUMBERS = sorted({(1 << bits) + more for bits in (5, 7, 8, 16, 31, 32, 62) for more in (-1, 0, 1)})


def ids() -> UniqueIds:
    return UniqueIds(bytes(4), 1, 2)


def no_other(message: object, own: str) -> bytes:
    raise AssertionError(message)


def framed(*elements: Any) -> bytes:
    body = encode(elements)
    return len(body).to_bytes(4, "big") + body


def test_stored_messages_are_the_same_behind_their_fields() -> None:
    messages = [message_of(Random(n)) for n in range(50)]
    rows = [fields(m) for m in messages]
    assert frame_of_stored(1, 7, messages) == framed(1, 7, rows)
    before, _, after = encode({"messages": 0, "next": 9}).partition(b"\x00")
    inside = frame_of_stored(1, 7, messages, before, after)
    assert inside == framed(1, 7, {"messages": rows, "next": 9})
    again = [stored_of(row) for row in decode(inside[4:])[2]["messages"]]
    assert again == messages
    assert [m.expires_at for m in again] == [m.expires_at for m in messages]


def test_packed_columns_are_the_same_within_what_is_around_them() -> None:
    packed: list[Any] = [3, [["a", True, 1 << 33, b"", bytes(n), ["b", [], b"c"]] for n in LENGTHS]]
    assert frame_of_columns(1, 7, packed) == framed(1, 7, packed)
    before, _, after = encode({"columns": 0, "next": 9}).partition(b"\x00")
    inside = frame_of_columns(1, 7, packed, before, after)
    assert inside == framed(1, 7, {"columns": packed, "next": 9})


def test_popped_messages_are_the_same_behind_their_frame() -> None:
    popped = [Popped(message_of(Random(n)), f"r{n}", n, 9 + n) for n in range(1, 40)]
    rows = [popped_fields(one) for one in popped]
    assert frame_of_popped(1, 1 << 40, popped) == framed(1, 1 << 40, rows)
    again = read_popped(encode(rows))
    assert again == popped
    assert [m.message.expires_at for m in again] == [m.message.expires_at for m in popped]
    assert read_popped(encode([])) == []


def test_results_of_puts_are_the_same_behind_their_frame() -> None:
    results = [
        PutResult("ID" * n, "t", n, -n, number, number, status, n % 2 == 0)
        for status in PutStatus
        for n, number in enumerate(NUMBERS)
    ]
    rows = [fields(one) for one in results]
    assert frame_of_results(1, 5, results) == framed(1, 5, rows)
    again = read_results(encode(rows))
    assert again == results
    assert {type(one.status) for one in again} == {PutStatus}


@pytest.mark.parametrize("length", LENGTHS)
def test_texts_and_bytes_of_every_length_are_the_same(length: int) -> None:
    message = Message("t" * (length or 1), b"b" * length, tag="ü" * length, keys=["k"] * length)
    named = {f"{n}": "v" * n for n in range(length % 300)}
    message = message.__replace__(properties=named, message_id="x")
    packed = pack_messages([message], ids(), 0, no_other)
    assert packed == encode([fields(message)])
    assert read_messages(b"\x91" + packed) == [message]


@given(
    st.builds(
        Message,
        st.text(),
        st.binary(),
        st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        st.none() | st.text() | st.booleans(),
        st.lists(st.text()),
        st.dictionaries(st.text(), st.text()),
        st.none() | st.text(),
        st.sampled_from(NUMBERS) | st.sampled_from(NUMBERS).map(lambda n: -n),
        st.text(),
        st.none(),
        st.none(),
        st.none() | st.floats(allow_nan=False) | st.integers(0, 9),
    )
)
def test_messages_with_plain_values_are_the_same(message: Message) -> None:
    packed = pack_messages([message] * 2, ids(), 0, no_other)
    assert packed == encode([fields(message)] * 2)
    assert read_messages(b"\x91" + packed) == [message] * 2


def test_messages_get_ids_unless_they_have_one_and_the_caller_writes_odd_ones() -> None:
    plain, own = Message("t", b"x", keys=("a",)), Message("t", b"x", message_id="OWN")
    odd = Message("t", b"x", keys=[5])  # type: ignore[list-item]  # the store refuses it
    broken, long = Message("t", b"x", tag="\ud800"), Message("t", b"x", flags=1 << 63)
    asked: list[tuple[object, str]] = []

    def other(message: object, own_id: str) -> bytes:
        asked.append((message, own_id))
        return encode("other")

    rows = decode(pack_messages([plain, own, odd, 5, broken, long], ids(), 0, other))
    made = ids().make(0, 6)
    assert (rows[0][8], rows[1][8], rows[0][4], rows[0][5]) == (made[0], "OWN", ["a"], {})
    assert rows[2:] == ["other"] * 4
    assert asked == [(odd, made[2]), (5, made[3]), (broken, made[4]), (long, made[5])]


def test_an_error_of_the_caller_who_writes_comes_through() -> None:
    with pytest.raises(AssertionError):
        pack_messages([object()], ids(), 0, no_other)


def test_neighbours_share_their_topic_and_hosts() -> None:
    first, second = read_popped(
        encode([popped_fields(Popped(message_of(Random(7)), "r", 1, 2))] * 2)
    )
    assert first.message.topic is second.message.topic
    assert first.message.raw_born_host is second.message.raw_born_host


READERS = (read_messages, read_results, read_popped)
GOOD = (
    b"\x91" + pack_messages([Message("t", b"x", keys=["a"])] * 2, ids(), 0, no_other),
    encode([fields(PutResult("ID", "t", 1, 2, 3, 4, PutStatus.WRITTEN))] * 2),
    encode([popped_fields(Popped(message_of(Random(3)), "r", 1, 2))] * 2),
)


@pytest.mark.parametrize(("read", "good"), list(zip(READERS, GOOD, strict=True)))
def test_bytes_that_are_cut_or_go_on_are_refused(read: Any, good: bytes) -> None:
    assert len(read(good)) == 2
    for end in range(len(good)):
        with pytest.raises((ValueError, TypeError)):
            read(good[:end])
    with pytest.raises(ValueError, match="no such values"):
        read(good + b"\x00")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "bad",
    [
        b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\x91\xdd\xff\xff\xff\xff",
        b"\x91\x9f", b"\x91" * 2000, encode([["t"] * 15]), encode([[None] * 8]), encode([5]),
        encode([["t", *[None] * 16]]), b"\x91\x91\x9f" + b"\xc7\x01\x05x" * 15,
        b"\x91\x91\x9f\xa1t" + b"\x91" * 3000, encode({"a": 1}),
    ],
)  # fmt: skip
def test_what_is_no_such_value_is_refused(read: Any, bad: bytes) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        read(bad)


def test_only_values_of_packed_columns_are_written() -> None:
    for wrong in (object(), Message("t", b"x"), [[{1}]]):
        with pytest.raises(TypeError):
            frame_of_columns(1, 1, [5, wrong])


@pytest.mark.parametrize("is_popped", [False, True])
def test_other_threads_go_on_while_a_large_frame_is_made(*, is_popped: bool) -> None:
    """A thread sees the time that the one which makes it has used, also in the middle: amid one of
    a few frames, since a machine with other work may not run it while a single one is made.
    """
    messages = [message_of(Random(1), body=bytes(1 << 20))] * 64
    popped = [Popped(one, "r", 1, 1) for one in messages]

    def make() -> bytes:
        return frame_of_popped(1, 1, popped) if is_popped else frame_of_stored(1, 1, messages)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert any(_is_seen_amid(make) for _ in range(20))
    finally:
        sys.setswitchinterval(interval)


def _is_seen_amid(make: Callable[[], bytes]) -> bool:
    """Whether this thread went on in the middle of the time that another needs for `make`."""

    def run() -> None:
        begun.set()
        frames.append(make())
        seen.wait()

    begun, seen, frames, used = threading.Event(), threading.Event(), list[bytes](), list[float]()
    making = threading.Thread(target=run)
    making.start()
    try:
        begun.wait()
        assert making.ident is not None
        clock = time.pthread_getcpuclockid(making.ident)
        while not frames:
            used.append(time.clock_gettime(clock))
            select.select([], [], [], 0)  # lets the other thread go on
    finally:
        seen.set()
        making.join()
    part = (used[-1] - used[0]) / 4
    return any(used[0] + part < at < used[-1] - part for at in used)


@pytest.mark.parametrize("row", [(), ("t",) * 17, [None] * 17, 5, ["t"] * 20])
def test_what_is_no_row_of_a_stored_message_is_refused(row: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        stored_of(row)


@pytest.mark.parametrize(
    "make",
    [
        lambda v: frame_of_stored(1, 1, v),
        lambda v: frame_of_results(1, 1, v),
        lambda v: frame_of_popped(1, 1, v),
    ],
)
def test_only_values_of_the_right_type_are_written(make: Any) -> None:
    for wrong in (5, None, Message("t", b"x")):
        with pytest.raises(TypeError):
            make([wrong])


@pytest.mark.parametrize("name", ["body", "raw_born_host", "raw_store_host"])
def test_a_stored_message_without_its_bytes_is_refused(name: str) -> None:
    one = message_of(Random(1))
    delattr(one, name)
    with pytest.raises(TypeError):
        frame_of_stored(1, 1, [one])
    with pytest.raises(TypeError):
        frame_of_popped(1, 1, [Popped(one, "r", 1, 1)])


def test_none_is_no_bytes_of_a_frame() -> None:
    nothing: Any = None
    for around in ((nothing, b""), (b"", nothing)):
        with pytest.raises(TypeError):
            frame_of_columns(1, 1, [], *around)
        with pytest.raises(TypeError):
            frame_of_stored(1, 1, [], *around)
