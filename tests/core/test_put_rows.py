"""Rows of columns become the records, and the keys, that their messages become; what a message is
refused for, a row is.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.arrow.column_batch import ColumnBatch, columns_to_put
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.arrow.packed_columns import columns_to_send
from kvstore.core.arrow.put_rows import (
    columns_of_results,
    prepare_columns,
    result_columns,
    row_results,
)
from kvstore.core.put_values import Message, PutStatus
from kvstore.core.tail import Tail
from kvstore.errors import MessageIllegal
from tests.core.arrow_structs import Handed, Streamed
from tests.core.test_encoding import LONG, WITH_IDS, encoder, placed
from tests.support.tails import keys_of

TEXTS: Final = [pa.string(), pa.large_string(), pa.string_view()]
FIELDS: Final = {
    "body": [pa.binary(), pa.large_binary(), pa.binary_view()],
    "queue": [pa.int64(), pa.int32(), pa.uint8(), pa.uint64()],
    "tag": [*TEXTS, pa.dictionary(pa.int32(), pa.string())],
    "keys": [pa.list_(pa.string()), pa.large_list(pa.large_string())],
    "properties": [pa.map_(pa.string(), pa.string())],
    "message_group": TEXTS,
    "flags": [pa.uint32(), pa.int64()],
    "message_id": TEXTS,
    "born_at": [pa.int64(), pa.timestamp("ms")],
    "deliver_at": [pa.int64(), pa.timestamp("ms")],
    "expires_at": [pa.int64(), pa.timestamp("ms")],
    "dedup_id": [*TEXTS, pa.dictionary(pa.int32(), pa.string())],
}
DUE: Final = st.none() | st.integers(946_684_800_000, 1_262_304_000_000)


def value_of(message: Message, name: str) -> Any:
    value = getattr(message, name)
    if name == "properties":
        return list(value.items())
    return bytes(value) if name == "body" else list(value) if name == "keys" else value


def columns_of(draw: Any, messages: list[Message]) -> Any:
    """The messages as a batch, part of a longer one, or a table of several."""
    types = {name: draw(st.sampled_from(kinds)) for name, kinds in FIELDS.items()}
    if any(m.born_at is not None and m.born_at >= 1 << 62 for m in messages):
        types["born_at"] = pa.int64()
    names = draw(st.permutations(list(FIELDS)))
    skipped = draw(st.integers(0, 2))
    given = [messages[0]] * skipped + messages
    batch = pa.record_batch(
        {name: pa.array([value_of(m, name) for m in given], types[name]) for name in names}
    ).slice(skipped)
    cut = draw(st.none() | st.integers(0, len(messages)))
    return batch if cut is None else pa.Table.from_batches([batch[:cut], batch[cut:]])


@given(
    st.data(),
    st.sampled_from(["t", "unique", "off", "new", LONG]),
    st.lists(WITH_IDS, min_size=1, max_size=6),
    st.sampled_from([None, 0, 100]),
    st.booleans(),
)
def test_rows_become_the_records_and_keys_that_their_messages_become(
    data: Any, topic: str, drawn: list[Message], above: int | None, crc: bool
) -> None:
    messages = [_in_topic(message, topic, data.draw(DUE)) for message in drawn]
    one, other = encoder(above=above, crc=crc), encoder(above=above, crc=crc)
    tails = Tail(0), Tail(0)
    by_messages = one.prepare(messages, 5)
    rows = GivenColumns(columns_of(data.draw, messages))
    by_rows = prepare_columns(other, topic, rows, 5)
    assert placed(by_rows, tail=tails[0]) == placed(by_messages, tail=tails[1])
    assert by_rows.queue_keys == by_messages.queue_keys
    assert by_rows.deduped == by_messages.deduped
    one_tail, other_tail = tails
    assert one_tail.entry_columns().tolist() == other_tail.entry_columns().tolist()
    assert keys_of(one_tail) == keys_of(other_tail)
    assert one_tail.timers.rows() == other_tail.timers.rows()
    places = pa.record_batch(result_columns(by_rows)).to_pylist()
    for place, result in zip(places, by_messages.results(PutStatus.STAGED), strict=True):
        assert {name: getattr(result, name) for name in place} == place
    results = by_messages.results(PutStatus.STAGED)
    assert row_results(by_rows, PutStatus.STAGED) == results
    for result in results:
        result.duplicate = bool(result.position % 3)
    places = pa.record_batch(columns_of_results(results)).to_pylist()
    assert [{name: getattr(r, name) for name in places[0]} for r in results] == places


def _in_topic(message: Message, topic: str, due: int | None) -> Message:
    """Delayed, or with its dedup id; a topic that is to be made takes none."""
    dedup_id = None if topic == "new" or due is not None else message.dedup_id
    return message.__replace__(topic=topic, deliver_at=due, dedup_id=dedup_id)


@given(st.data(), st.lists(WITH_IDS, min_size=1, max_size=4))
def test_a_row_is_seen_as_the_message_that_it_says(data: Any, messages: list[Message]) -> None:
    rows = GivenColumns(columns_of(data.draw, messages))
    for row, message in enumerate(messages):
        found = rows.message(message.topic, row)
        for name in FIELDS:
            assert value_of(found, name) == value_of(message, name)


@given(st.lists(WITH_IDS, max_size=4))
def test_values_of_python_become_the_columns_of_their_messages(messages: list[Message]) -> None:
    made = columns_to_put(
        [bytes(m.body) for m in messages],
        [m.queue for m in messages],
        [m.tag for m in messages],
        [list(m.keys) for m in messages],
        [dict(m.properties) for m in messages],
        [m.message_group for m in messages],
        [m.deliver_at for m in messages],
        [m.expires_at for m in messages],
        [m.dedup_id for m in messages],
    )
    rows = GivenColumns(made)
    assert len(rows) == len(messages)
    for row, message in enumerate(messages):
        found = rows.message(message.topic, row)
        for name in made.names:
            assert value_of(found, name) == value_of(message, name)


def test_columns_are_of_one_length_and_of_the_types_that_a_put_takes() -> None:
    row: tuple[Any, ...] = ([b"x"], [None], [None], [[]], [{}], *[[None]] * 4)
    assert len(columns_to_put(*row)) == 1
    for at, wrong in enumerate([[None], ["1"], [b"a"], [("a",)], [[]], [5], ["1"], ["5"], [5]]):
        given = list(row)
        given[at] = []
        with pytest.raises(ValueError, match="values of another column"):
            columns_to_put(*given)
        given[at] = wrong
        if wrong != [b"a"]:
            with pytest.raises(TypeError):
                columns_to_put(*given)
    [shown] = pa.record_batch(columns_to_put(["é"], *row[1:])).column("body").to_pylist()
    assert shown == "é".encode()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"tag": ["a"]}, "no column 'body'"),
        ({"body": [b""], "colour": ["red"]}, "there is a column 'colour'"),
        ({"body": [1]}, "the column 'body' is int64; it must be binary or string"),
        ({"body": [b""], "queue": ["1"]}, "the column 'queue' is string; it must be an integer"),
        ({"body": [b""], "tag": [1.5]}, "the column 'tag' is float64; it must be string"),
        ({"body": [b""], "keys": [[1]]}, "the column 'keys' is int64"),
        (
            {"body": [b""], "properties": [["a"]]},
            "the column 'properties' is list; it must be a map",
        ),
    ],
)
def test_a_column_that_cannot_be_put_is_named_with_its_type(columns: Any, says: str) -> None:
    with pytest.raises(MessageIllegal, match=says):
        GivenColumns(pa.record_batch({name: pa.array(its) for name, its in columns.items()}))


@pytest.mark.parametrize(
    ("topic", "more"),
    [
        ("windowless", {}),
        ("new", {}),
        ("t", {"deliver_at": [1_500_000_000_000]}),
        ("t", {"dedup_id": [""]}),
        ("t", {"dedup_id": ["a\x02"]}),
        ("t", {"dedup_id": ["é" * 128]}),
    ],
)
def test_a_row_whose_dedup_id_its_message_could_not_have_is_refused(topic: str, more: Any) -> None:
    rows = pa.record_batch({"body": [b""], "dedup_id": ["a"], **more})
    with pytest.raises(ValueError, match=r"window|dedup id|text"):
        prepare_columns(encoder(), topic, GivenColumns(rows), 5)


@pytest.mark.parametrize("given", [None, 5, b"body", [Message("t", b"")], {"body": [b""]}])
def test_what_is_no_arrow_data_is_refused(given: object) -> None:
    with pytest.raises(MessageIllegal, match="it takes an Arrow record batch or table"):
        GivenColumns(given)


def test_an_array_that_was_handed_over_before_is_refused() -> None:
    batch = pa.record_batch({"body": [b"x"]})
    capsules = batch.__arrow_c_array__()

    class Again:
        def __arrow_c_array__(self) -> Any:
            return capsules

    assert len(GivenColumns(Again())) == 1
    with pytest.raises(MessageIllegal, match="handed over before"):
        GivenColumns(Again())


def test_lists_that_change_amid_their_reading_are_read_as_they_were() -> None:
    class Emptying:
        def __int__(self) -> int:
            for rows in lists:
                rows.clear()
            return 0

    lists: list[list[Any]] = [
        [b"1", b"2"], [Emptying(), 1], ["a", "b"], [["k"], []], [{"p": "q"}, {}], [None] * 2,
        [None] * 2, [None] * 2, [None] * 2,
    ]  # fmt: skip
    found = GivenColumns(columns_to_put(*lists))
    assert [found.message("t", row).body for row in range(2)] == [b"1", b"2"]
    assert [found.message("t", row).tag for row in range(2)] == ["a", "b"]


def test_ids_that_another_thread_changes_are_those_that_were_given() -> None:
    """The columns are copied without Python's lock, so that the other thread comes then."""

    def clear() -> None:
        with gate:
            ids.clear()

    rows = pa.record_batch({"body": pa.array([b"x" * 1000] * 100, pa.binary())})
    given, before = GivenColumns(pa.Table.from_batches([rows] * 100)), sys.getswitchinterval()
    ids, gate = [f"{row}" for row in range(len(given))], threading.Lock()
    wanted = [*ids]
    clearing = threading.Thread(target=clear)
    sys.setswitchinterval(60)
    try:
        with gate:
            clearing.start()
        batch = columns_to_send(given, ids)
    finally:
        sys.setswitchinterval(before)
        clearing.join()
    assert pa.record_batch(batch)["message_id"].to_pylist() == wanted


def test_an_empty_text_of_a_column_without_bytes_is_put() -> None:
    column = ["z", "body", 2, 0, 0, [None, bytes(12), None], [], []]
    bare = Handed(["+s", "", 2, 0, 0, [None], [column], []])
    records = [
        placed(prepare_columns(encoder(), "t", GivenColumns(rows), 1))
        for rows in (bare, pa.record_batch({"body": pa.array([b"", b""], pa.binary())}))
    ]
    assert records[0] == records[1]


def test_a_batch_is_of_columns_from_its_beginning() -> None:
    made: Any = ColumnBatch
    with pytest.raises(TypeError):
        made.__new__(made)
    with pytest.raises(TypeError):
        made([None], 1)


@pytest.mark.parametrize("has_schema", [True, False])
def test_an_array_of_a_stream_is_released_once_whether_or_not_it_is_taken_over(
    *, has_schema: bool
) -> None:
    texts = [None, (0).to_bytes(8, "little") + (1).to_bytes(8, "little"), b"x"]
    column = ["Z", "body", 1, 0, 0, texts, [], []]
    given = Streamed(["+s", "", 1, 0, 0, [None], [column], []], has_schema=has_schema)
    if has_schema:
        rows = GivenColumns(given)
        assert (len(rows), given.released()) == (1, 0)
        del rows
    else:
        with pytest.raises(MessageIllegal, match="handed over before"):
            GivenColumns(given)
    assert given.released() == 1
