"""Messages are put and pulled in columns as they are one by one: the same log and index, the same
messages, the same errors, and nothing is put when one of the rows is at fault.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvstore
import tiering
from kvstore import CallerError, Message, PullStatus, Store, StoreConfig, TopicNotFound
from kvstore.core.arrow.pulled_columns import COLUMN_NAMES
from kvstore.errors import MessageIllegal, StoreClosed
from tests.core.arrow_fuzzers import row_of
from tests.support.stores import SMALL, Opens, opened
from tests.support.stores import settings as settings_of

ROWS: dict[str, list[Any]] = {
    "body": [b"1", b"2" * 3000, b""],
    "queue": [0, 0, 0],
    "tag": ["paid", None, "a||b"],
    "keys": [["k", "o-1"], [], None],
    "properties": [[("region", "eu")], [], None],
    "message_group": [None, "g", None],
    "flags": [1, 2, 3],
    "message_id": ["A1", "B2", "C3"],
    "born_at": [1, 2, 3],
    "expires_at": [None, 4_000_000_000_000, 3_000_000_000_000],
}
TYPES = {"keys": pa.list_(pa.string()), "properties": pa.map_(pa.string(), pa.string())}


def batch_of(rows: dict[str, list[Any]]) -> Any:
    return pa.record_batch({name: pa.array(its, TYPES.get(name)) for name, its in rows.items()})


def messages_of(topic: str = "t") -> list[Message]:
    given = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    for one in given:
        one["keys"], one["properties"] = one["keys"] or (), dict(one["properties"] or ())
    return [Message(topic, **one) for one in given]


def assert_pulled_alike(store: Store, topic: str = "t", **asked: Any) -> None:
    """`pull_columns` says what `pull` says."""
    asked = {"limit": 32, **asked}
    plain, found = store.pull(topic, 0, 0, **asked), store.pull_columns(topic, 0, 0, **asked)
    assert pa.record_batch(found.columns).to_pylist() == [row_of(m) for m in plain.messages]
    for name in ("next_offset", "min_offset", "max_offset", "status", "expired"):
        assert getattr(found, name) == getattr(plain, name)


def contents(store: Store) -> Any:
    store.checkpoint()
    found = store.pull("t", 0, 0, 10).messages
    keys = [[m.offset for m in store.query("t", key)] for key in ("k", "o-1", "A1", "B2", "C3")]
    return [(m.offset, m.position, m.size, m.body, m.raw_properties) for m in found], keys


def test_rows_leave_the_log_and_the_index_that_their_messages_leave(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as one, opened(tmp_path / "b") as other:
        put = one.put_columns("t", batch_of(ROWS))
        results = other.put_batch(messages_of())
        assert (len(put), put.first_position) == (3, results[0].position)
        assert put.last_position == results[-1].position
        places = pa.record_batch(put.columns).to_pylist()
        assert [p["message_id"] for p in places] == [r.message_id for r in results]
        assert [p["offset"] for p in places] == [r.offset for r in results]
        assert "3 rows" in repr(put)
        assert put.results() == results
        assert put.size == sum(result.size for result in results)
        assert contents(one) == contents(other)


def test_a_table_a_stream_and_no_rows_are_put(store: Store) -> None:
    batch = batch_of(ROWS)
    assert store.put_columns("t", pa.Table.from_batches([batch, batch])).count == 6
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    assert store.put_columns("t", reader).count == 3
    nothing = store.put_columns("t", batch.slice(3))
    assert (nothing.count, nothing.first_position, nothing.last_position) == (0, None, None)
    assert store.bounds("t", 0)[1] == 9


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"body": [b"", None]}, "row 1 of 2: "),
        ({"body": [b"", b""], "tag": ["a", "b\x01"]}, "row 1 of 2: "),
        ({"body": [b"", b""], "queue": [0, 99]}, "row 1 of 2: "),
        ({"body": [b"", b""], "keys": [["a"], [None]]}, "row 1 of 2: "),
        ({"body": [b"", b""], "properties": [[], [("KEYS", "x")]]}, "row 1 of 2: "),
        ({"body": [b"", b""], "properties": [[("a", "1"), ("a", "2")], []]}, "row 0 of 2: "),
        ({"body": [b"", b""], "born_at": [0, -1]}, "row 1 of 2: "),
        ({"body": [b"", b"x" * (5 << 20)]}, "row 1 of 2: "),
        ({"body": [1, 2]}, "the column 'body' is int64"),
    ],
)
def test_an_error_names_the_row_or_column_and_nothing_is_put(
    store: Store, rows: dict[str, list[Any]], says: str
) -> None:
    before = store.stats().end_position
    with pytest.raises(CallerError, match=says):
        store.put_columns("t", batch_of(rows))
    assert store.stats().end_position == before


def test_rows_make_no_topic_that_is_missing_unless_the_store_makes_topics(opens: Opens) -> None:
    store = opens()
    with pytest.raises(TopicNotFound, match="row 0 of 3"):
        store.put_columns("missing", batch_of(ROWS))
    with pytest.raises(MessageIllegal, match="the topic is 5"):
        store.put_columns(5, batch_of(ROWS))  # type: ignore[arg-type] # what is tested
    with pytest.raises(TopicNotFound):
        store.pull_columns("missing", 0, 0)


def test_rows_make_a_topic_where_the_store_makes_topics(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", StoreConfig(auto_create_topics=True)) as store:
        assert store.put_columns("new", batch_of(ROWS)).count == 3
        assert_pulled_alike(store, "new")


def test_pulled_columns_say_what_pulled_messages_say(store: Store) -> None:
    assert store.pull_columns("t", 0, 0).status == PullStatus.NO_MESSAGE_IN_QUEUE
    store.put_columns("t", batch_of(ROWS))
    for asked in ({}, {"limit": 2}, {"filter": "paid"}, {"max_bytes": 1}, {"max_bytes": 4000}):
        assert_pulled_alike(store, **asked)
    some = store.pull_columns("t", 0, 1, columns=["body", "offset"]).columns
    assert (some.names, len(some)) == (["body", "offset"], 2)
    assert pa.record_batch(some).column("offset").to_pylist() == [1, 2]
    for wrong in (["colour"], ["body", "body"], "body"):
        with pytest.raises(CallerError):
            store.pull_columns("t", 0, 0, columns=wrong)
    assert tuple(store.pull_columns("t", 0, 0).columns.names) == COLUMN_NAMES


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.integers(-1, 5), st.integers(1, 5), st.none() | st.integers(1, 9000))
def test_pulls_of_any_part_agree(store: Store, offset: int, limit: int, most: int | None) -> None:
    if not store.bounds("t", 0)[1]:
        store.put_columns("t", batch_of(ROWS))
    plain = store.pull("t", 0, offset, limit, max_bytes=most)
    found = store.pull_columns("t", 0, offset, limit, max_bytes=most)
    assert pa.record_batch(found.columns).to_pylist() == [row_of(m) for m in plain.messages]
    assert (found.next_offset, found.status) == (plain.next_offset, plain.status)


def test_archived_messages_are_pulled_as_columns(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        for _ in range(40):
            store.put_columns("t", batch_of(ROWS))
        store.seal()
        policy = tiering.Policy(hot_for=0, warm=str(tmp_path / "warm"))
        with tiering.Worker(store, policy) as worker:
            worker.run_once()
        store.put_columns("t", batch_of(ROWS))
        for asked in ({"limit": 500}, {"limit": 50, "max_bytes": 20000}, {"filter": "paid"}):
            assert_pulled_alike(store, **asked)


def test_bodies_of_rows_are_compressed_as_those_of_messages(tmp_path: Path) -> None:
    with opened(tmp_path / "s", settings_of(compress_above=1000)) as store:
        store.put_columns("t", batch_of(ROWS))
        found = store.pull_columns("t", 0, 0, columns=["body", "size"])
        assert pa.record_batch(found.columns).column("body").to_pylist() == ROWS["body"]
        assert store.get("t", 0, 1).size < 1000
        assert_pulled_alike(store)


def test_a_view_of_a_namespace_and_asyncio_put_and_pull_columns(
    store: Store, tmp_path: Path
) -> None:
    view = store.namespace("n")
    view.create_topic("t")
    put = view.put_columns("t", batch_of(ROWS))
    assert [result.topic for result in put.results()] == ["t"] * 3
    assert len(view.pull_columns("t", 0, 0).columns) == 3
    assert len(store.pull_columns("n%t", 0, 0).columns) == 3

    async def run() -> int:
        async with kvstore.aio.open(tmp_path / "aio", SMALL) as other:
            await other.create_topic("t")
            await other.put_columns("t", batch_of(ROWS))
            return len((await other.pull_columns("t", 0, 0)).columns)

    assert asyncio.run(run()) == 3


def test_a_closed_store_puts_and_pulls_no_columns(opens: Opens) -> None:
    store = opens()
    store.close()
    with pytest.raises(StoreClosed):
        store.put_columns("t", batch_of(ROWS))
    with pytest.raises(StoreClosed):
        store.pull_columns("t", 0, 0)
