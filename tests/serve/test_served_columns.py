"""Columns over the protocol: they are put and pulled as columns, and those that lie are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.msgpack import Ext

import kvstore
import kvstore.aio
from kvstore import Message, ServedStore, Store
from kvstore.core.arrow.packed_columns import pack_columns
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.repeated import put_columns_again
from kvstore.wire.column_values import sendable
from kvstore.wire.frames import FAILURE, REPLY, REQUEST, WELCOME, framed
from kvstore.wire.values import COLUMNS
from tests.serve.test_frames import HELLO_FRAME, Raw
from tests.support.raising import raising
from tests.support.served import ServerThread

ROWS = pa.table({"body": [b"a", b"b", b"c"], "queue": [0, 0, 0], "tag": ["x", None, "y"]})


def ids(count: int) -> list[str]:
    return [f"ID-{row}" for row in range(count)]


def packed(**changes: Any) -> list[Any]:
    """The columns of `ROWS`, with other elements in the column of bodies."""
    columns: list[Any] = pack_columns(sendable(ROWS, ids))
    names = ("name", "format", "nullable", "count", "valid", "items", "data", "inner")
    for name, value in changes.items():
        columns[1][0][names.index(name)] = value
    return columns


def test_neither_side_makes_messages_of_rows(
    client: ServedStore, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in ("put_batch", "pull"):
        monkeypatch.setattr(store, call, raising(AssertionError("rows became messages")))
    assert client.put_columns("t", ROWS).count == 3
    found = pa.record_batch(client.pull_columns("t", 0, 0, columns=["body", "tag"]).columns)
    assert found.to_pydict() == {"body": [b"a", b"b", b"c"], "tag": ["x", None, "y"]}


def test_a_pulled_batch_is_put_as_it_is(client: ServedStore, store: Store) -> None:
    client.put_columns("t", ROWS)
    found = client.pull_columns("t", 0, 0, columns=["body", "tag", "keys", "properties"])
    again = client.put_columns("t", found.columns)
    assert again.first_position == client.stats().end_position - again.size
    bodies = [m.body for q in range(4) for m in store.pull("t", q, 0).messages]
    assert sorted(bodies) == [b"a", b"a", b"b", b"b", b"c", b"c"]


def test_rows_that_a_new_server_may_have_are_looked_for_by_their_ids(store: Store) -> None:
    columns = sendable(ROWS, ids)
    there = [Message("t", body, 0, message_id=f"ID-{row}") for row, body in enumerate((b"a", b"b"))]
    first = store.put_batch(there)
    for _ in range(2):
        again = put_columns_again(store, "t", columns)
        assert (again.count, again.first_position) == (3, first[0].position)
    assert store.bounds("t", 0) == (0, 3)


def test_columns_are_put_in_their_turn_among_puts(store: Store) -> None:
    async def main() -> list[Any]:
        gatherer = Gatherer(store)
        columns = sendable(ROWS, ids)
        puts: list[Any] = [gatherer.put([Message("t", b"0", 0)], 10)]
        puts.append(gatherer.put_in_turn(lambda: store.put_columns("t", columns), 10))
        puts.append(gatherer.put([Message("t", b"4", 0)], 10))
        found = await asyncio.gather(*puts)
        await gatherer.close()
        return found

    asyncio.run(main())
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"0", b"a", b"b", b"c", b"4"]


def bounds(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


@pytest.mark.parametrize(
    "lie",
    [
        [1 << 41, []],
        [3],
        [2, packed()[1]],
        [3, [["body", "Z", True, 3]]],
        [0, packed()[1][:1] * 65],
        packed(count=1 << 50),
        packed(format="vz"),
        packed(valid=b"\xff\xff"),
        packed(items=bounds(0, 1, 2)),
        packed(items=bounds(0, 1, 2, 4)),
        packed(items=bounds(0, 2, 1, 3)),
        packed(items=bounds(-1, 1, 2, 3)),
        packed(format="+L", items=bounds(0, 0, 0, 0), data=b""),
        packed(data="text"),
    ],
)
def test_columns_that_lie_fail_their_request_and_others_are_served_on(raw: Raw, lie: Any) -> None:
    argument = Ext(COLUMNS, msgspec.msgpack.encode(lie))
    raw.send(HELLO_FRAME + framed(REQUEST, 1, "put_columns", ["t", argument], {}, False))
    raw.send(framed(REQUEST, 2, "topics", [], {}, False))
    assert raw.next()[0] == WELCOME
    answers = {found[1]: found for found in (raw.next(), raw.next())}
    assert (answers[1][0], answers[1][2][0][0]) == (FAILURE, "FormatError")
    assert answers[2][0] == REPLY


def test_asyncio_puts_and_pulls_columns_of_a_served_store(server: ServerThread) -> None:
    async def main() -> dict[str, list[Any]]:
        async with kvstore.aio.connect(server.url) as client:
            put = await client.put_columns("t", ROWS)
            assert [result.offset for result in put.results()] == [0, 1, 2]
            found = await client.pull_columns("t", 0, 1, columns=["body"])
            rows: dict[str, list[Any]] = pa.record_batch(found.columns).to_pydict()
            return rows

    assert asyncio.run(main()) == {"body": [b"b", b"c"]}


@pytest.fixture
def raw(server: ServerThread) -> Any:
    client = Raw(server)
    yield client
    client.socket.close()


def test_rows_that_no_frame_can_hold_are_to_be_put_in_parts(client: ServedStore) -> None:
    large = pa.table({"body": [bytes(1 << 20)] * 65})
    with pytest.raises(kvstore.StoreError, match="use several"):
        client.put_columns("t", large)
    assert client.bounds("t", 0) == (0, 0)
