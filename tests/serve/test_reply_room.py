"""The room for replies: many large calls at once, clients that read nothing, and both doors.

Named here: LARGE_MAX, LOOKS, REPLY_BYTES, ROOM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import kvstore
import kvstore.aio
from kvstore import Message, Store, StoreConfig
from kvstore.read.sql import sql
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc import pulling, receiving
from kvstore.serve.grpc.protocol.protocol_tables import MESSAGING
from kvstore.serve.grpc.protocol.wire import message_class
from kvstore.serve.http2.grpc_call import PREFIX
from kvstore.serve.replies import reply_room
from kvstore.serve.replies.reply_room import SHARE, HeldReply, ReplyRoom, ReplyRooms, Turn
from kvstore.wire.frames import HELLO, NAME, RECEIVED, VERSION, framed
from tests.serve.test_frames import HELLO_FRAME, Raw, request
from tests.support.grpc_doors import OpenDoor
from tests.support.h2_client import DATA, END_STREAM, GOAWAY, HEADERS, Answer, RawClient, window
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import HEAD, answers, request_of
from tests.support.served import serving
from tests.support.waiting import until

BODY = bytes(256 << 10)
COUNT = 20
REPLY = COUNT * len(BODY)
"""More than a share."""
ROOM = 8 << 20
BOUND = ROOM + 3 * (REPLY + (64 << 10))
"""A room, and the replies that may begin when it is not yet full: a read's and two pops'."""


@pytest.fixture(autouse=True)
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_room, "ROOM", ROOM)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kvstore.open(tmp_path / "large", StoreConfig(segment_size=256 << 20)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        yield store


@pytest.fixture
def filled(store: Store) -> Store:
    store.put_batch([Message("t", BODY, queue=0) for _ in range(COUNT)])
    return store


# --- the rooms themselves ---


def asked(room: ReplyRoom, log: list[str], name: str, weight: int) -> Turn:
    return room.ask(weight, lambda turn: log.append(name))


def test_calls_begin_in_order_and_a_large_one_alone() -> None:
    log: list[str] = []
    room = ReplyRoom(ReplyRooms(), lambda: None)
    first = asked(room, log, "small", SHARE)
    large = asked(room, log, "large", 100 * ROOM)
    second = asked(room, log, "large again", 2 * SHARE)
    asked(room, log, "behind it", 1)
    assert log == ["small", "large"]
    first.end()
    room.hold(ROOM + 1)
    large.end()
    assert log == ["small", "large"], "the room is full"
    room.hold(-1)
    assert log == ["small", "large", "large again"]
    room.hold(-1)
    assert log[3:] == ["behind it"]
    second.end()
    second.end()
    assert asked(room, log, "another", 2 * SHARE).has_begun


def test_a_call_that_was_given_up_keeps_no_other_from_its_turn() -> None:
    log: list[str] = []
    room = ReplyRoom(ReplyRooms(), lambda: None)
    room.hold(ROOM)
    given_up, _ = asked(room, log, "given up", SHARE), asked(room, log, "next", SHARE)
    given_up.end()
    room.hold(-ROOM)
    assert log == ["next"]


def test_connections_get_the_places_for_large_replies_in_the_order_in_which_they_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reply_room, "LARGE_MAX", 1)
    log: list[str] = []
    rooms = ReplyRooms()
    a, b, c = (ReplyRoom(rooms, lambda: None) for _ in range(3))
    turns = [asked(a, log, "a1", 2 * SHARE), asked(a, log, "a2", 2 * SHARE)]
    turns += [asked(b, log, "b", 2 * SHARE), asked(c, log, "c", 2 * SHARE)]
    for n in (0, 2, 3, 1):
        assert turns[n].has_begun
        turns[n].end()
    assert log == ["a1", "b", "c", "a2"]


def test_what_is_held_piece_by_piece_is_let_go_once() -> None:
    rooms = ReplyRooms()
    held = HeldReply(ReplyRoom(rooms, lambda: None))
    held.hold(5)
    held.hold(6)
    assert rooms.held == 11
    held.end()
    held.end()
    assert rooms.held == 0


def test_no_reply_begins_while_the_server_holds_too_much_and_all_go_on_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reply_room, "HELD_MAX", SHARE)
    log: list[str] = []
    rooms = ReplyRooms()
    finder, a, b = (ReplyRoom(rooms, lambda: None) for _ in range(3))
    finder.found(SHARE + 1)
    assert a.is_full, "no pop looks"
    assert not a.take(1)
    asked(a, log, "small", 1)
    asked(b, log, "large", 2 * SHARE)
    assert (log, rooms.is_waited_for) == ([], True)
    finder.found(-SHARE)
    rooms.go_on()
    assert (log, a.is_full, rooms.is_waited_for) == (["small", "large"], False, False)


def test_those_that_hold_most_end_one_after_the_other_until_the_rest_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reply_room, "HELD_MAX", 100)
    ended: list[int] = []
    rooms = ReplyRooms()
    held = [ReplyRoom(rooms, partial(ended.append, n)) for n in range(4)]
    for room, size in zip(held, (20, 60, 15, 3), strict=True):
        room.hold(size)
    held[2].frame(70)
    assert ended == [1], "its replies are let go soon"
    held[3].hold(1)
    held[1].hold(-30)
    assert ended == [1]
    held[1].hold(-30)
    assert ended == [1, 0]
    held[0].hold(-20)
    held[2].frame(-70)
    assert (ended, rooms.held) == ([1, 0], 19)


def test_so_many_pops_of_a_connection_read_at_a_time_and_those_of_others_pass_them(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_room, "LOOKS", 1)

    async def main() -> None:
        gatherer = Gatherer(filled)
        one, other = (ReplyRoom(gatherer.rooms, lambda: None) for _ in range(2))
        wanted = sql("a IS NULL")  # so that a thread looks
        assert one.looks.acquire(blocking=False), "a look of the connection is under way"
        waits = gatherer.pop("g", "t", 1, filter=wanted, room=one)
        await asyncio.sleep(0)
        assert len(await gatherer.pop("g", "t", 1, filter=wanted, room=other)) == 1
        assert not waits.done()
        one.looks.release()
        assert len(await waits) == 1
        await gatherer.close()

    asyncio.run(asyncio.wait_for(main(), 100))


# --- the local protocol ---


def pulls(first: int, count: int) -> bytes:
    return b"".join(request(n, "pull", "t", 0, 0, COUNT) for n in range(first, first + count))


def test_a_client_that_reads_nothing_holds_its_room_and_delays_no_other_client(
    filled: Store,
) -> None:
    with serving(filled) as server, kvstore.connect(server.url) as other:
        raw = Raw(server)
        raw.send(HELLO_FRAME + pulls(1, 30))
        until(lambda: server.held >= REPLY)
        for _ in range(3):
            assert len(other.pull("t", 0, 0, COUNT).messages) == COUNT
        for _ in range(300):
            other.bounds("t", 0)
            assert server.held <= 2 * BOUND, "two connections"
        raw.socket.close()


def test_calls_with_small_replies_pass_reads_that_wait_for_room(filled: Store) -> None:
    with serving(filled) as server, kvstore.connect(server.url) as other:
        raw = Raw(server)
        raw.send(HELLO_FRAME + pulls(1, 10) + request(11, "put_batch", [["t", b"x", 0]]))
        until(lambda: other.bounds("t", 0).next_offset == COUNT + 1)
        assert raw.next()[0] == 0
        numbers = set[int]()
        for count in range(1, 12):
            kind, number, *_ = raw.next()
            assert kind == 1
            numbers.add(number)
            raw.send(framed(RECEIVED, count))
        assert numbers == set(range(1, 12))
        raw.socket.close()


def test_a_client_that_reads_and_does_not_confirm_is_told_so_while_its_reads_wait(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.serve.sessions.CONFIRM_WITHIN", 0.0)
    monkeypatch.setattr("kvstore.serve.sessions.UNCONFIRMED_MAX", 1 << 20)
    with serving(filled) as server:
        raw = Raw(server)
        raw.send(HELLO_FRAME + pulls(1, 10))
        assert raw.next()[0] == 0
        assert raw.goodbye()[0] == "FormatError"
        raw.socket.close()
        until(lambda: server.held == 0)


def test_all_of_many_pulls_and_pops_in_flight_come(filled: Store) -> None:
    async def main(url: str) -> None:
        async with kvstore.aio.connect(url) as client:
            found = await asyncio.gather(*(client.pull("t", 0, 0, COUNT) for _ in range(50)))
            assert [len(one.messages) for one in found] == [COUNT] * 50
            waiting = [client.pop("g", "t", 1, wait=30.0) for _ in range(2 * COUNT)]
            popped = asyncio.gather(*waiting)
            await client.put_batch([Message("t", BODY, queue=0) for _ in range(COUNT)])
            assert sorted(one.message.offset for many in await popped for one in many) == list(
                range(2 * COUNT)
            )

    with serving(filled) as server:
        asyncio.run(asyncio.wait_for(main(server.url), 100))
        until(lambda: server.held == 0)


def test_pops_of_a_client_that_reads_nothing_take_no_more_than_its_room(store: Store) -> None:
    with serving(store) as server, kvstore.connect(server.url) as other:
        raw = Raw(server)
        pop = {"wait": 30.0}
        pops = (request(n, "pop", "g", "t", 8, **pop) for n in range(1, 21))
        raw.send(HELLO_FRAME + b"".join(pops))
        for _ in range(20):
            other.put_batch([Message("t", BODY, queue=0) for _ in range(8)])
        until(lambda: server.held >= ROOM)
        for _ in range(300):
            other.bounds("t", 0)
            assert server.held <= BOUND
        left = 0
        while found := other.pop("g", "t", 8):
            left += len(found)
        assert left > 0, "others get what does not fit"
        raw.socket.close()


@pytest.mark.parametrize("method", ["pull", "pull_columns"])
@pytest.mark.parametrize("most", [REPLY + REPLY // 2, 3 * REPLY])
def test_a_reply_counts_with_its_frame_while_that_is_made(
    filled: Store, monkeypatch: pytest.MonkeyPatch, method: str, most: int
) -> None:
    monkeypatch.setattr(reply_room, "HELD_MAX", most)
    with serving(filled) as server:
        raw = Raw(server)
        raw.send(HELLO_FRAME + request(1, method, "t", 0, 0, COUNT))
        assert raw.next()[0] == 0
        if most > 2 * REPLY:
            assert raw.next()[:2] == [1, 1]
        else:
            name, text = raw.goodbye()
            assert (name, "too many replies" in text) == ("StoreBusy", True)
        raw.socket.close()


def test_clients_that_pop_and_read_nothing_cost_the_server_its_bound_and_others_are_served(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_room, "HELD_MAX", ROOM)
    clients = 10
    with serving(store) as server, kvstore.connect(server.url) as other:
        for n in range(clients):
            store.create_group(f"slow-{n}")
        other.put_batch([Message("t", BODY, queue=0) for _ in range(COUNT)])
        raws = []
        for n in range(clients):
            raws.append(Raw(server))
            raws[-1].send(framed(HELLO, NAME, VERSION, bytes(15) + bytes([n]), 0, None))
            raws[-1].send(b"".join(request(k, "pop", f"slow-{n}", "t", 8) for k in (1, 2)))
        for _ in range(COUNT):
            (found,) = other.pop("g", "t", 1, wait=30.0)
            assert found.message.body == BODY
            assert server.held <= BOUND
        until(lambda: server.held <= ROOM)
        for raw in raws:
            raw.socket.close()


# --- RocketMQ's door ---


@pytest.fixture
def door(filled: Store) -> Iterator[OpenDoor]:
    filled.put_batch([Message("t", BODY, queue=0) for _ in range(10 * COUNT)])
    with OpenDoor(filled) as door:
        yield door


@pytest.mark.parametrize("name", ["PullMessage", "ReceiveMessage"])
def test_calls_of_a_client_that_takes_nothing_hold_its_room_and_end_when_it_takes_them(
    door: OpenDoor, name: str
) -> None:
    asked = request_of(name)
    asked.batch_size = COUNT
    raw = asked.SerializeToString()
    calls = 8
    with RawClient(int(door.endpoint.rpartition(":")[2]), {4: 0}) as client:
        for n in range(calls):
            client.send(client.call(2 * n + 1, MESSAGING + name, raw, HEAD))
        rooms = door.gatherer.rooms
        until(lambda: rooms.held >= REPLY)
        for _ in range(300):
            door.run(asyncio.sleep(0))
            assert rooms.held <= BOUND
        client.send(window(0, 1 << 30), *(window(2 * n + 1, 1 << 30) for n in range(calls)))
        data, left = dict.fromkeys(range(1, 2 * calls, 2), b""), calls
        for found in client.frames():
            data[found.stream] = data.get(found.stream, b"") + found.payload * (found.kind == DATA)
            left -= found.kind == HEADERS and bool(found.flags & END_STREAM)
            if not left:
                break
        kind = message_class(f"{name}Response")
        counts = [
            sum(kind.FromString(one).HasField("message") for one in Answer({}, data[n]).messages)
            for n in range(1, 2 * calls, 2)
        ]
        assert counts == [COUNT] * calls
        until(lambda: rooms.held == 0)


@pytest.mark.parametrize("name", ["PullMessage", "ReceiveMessage"])
def test_a_connection_for_which_the_server_holds_too_much_is_told_so_and_ends(
    door: OpenDoor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_room, "HELD_MAX", REPLY // 2)
    asked = request_of(name)
    asked.batch_size = COUNT
    port = int(door.endpoint.rpartition(":")[2])
    with RawClient(port, {4: 0}) as client:
        client.send(client.call(1, MESSAGING + name, asked.SerializeToString(), HEAD))
        goodbye = client.until_kind(GOAWAY)
        assert b"answers not yet taken" in goodbye.payload
        assert list(client.frames()) == []
    until(lambda: door.gatherer.rooms.held == 0)
    asked.batch_size = 1
    with RawClient(port, {4: 1 << 20}) as client:
        client.send(
            window(0, 1 << 20), client.call(1, MESSAGING + name, asked.SerializeToString(), HEAD)
        )
        assert client.answer(1).messages, "others are served"


def test_answers_of_any_kind_that_a_client_does_not_take_count_for_the_server(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = door.gatherer.rooms
    asked = request_of("QueryRoute").SerializeToString()
    port = int(door.endpoint.rpartition(":")[2])
    with RawClient(port, {4: 0}) as client, RawClient(port, {4: 0}) as taker:
        for n in range(20):
            client.send(client.call(2 * n + 1, MESSAGING + "QueryRoute", asked, HEAD))
        taker.send(taker.call(1, MESSAGING + "QueryRoute", asked, HEAD))
        taker.send(window(1, 1 << 20))
        (answer,) = taker.answer(1).messages
        until(lambda: rooms.held == 20 * (PREFIX + len(answer)))
        monkeypatch.setattr(reply_room, "HELD_MAX", rooms.held)
        client.send(client.call(41, MESSAGING + "QueryRoute", asked, HEAD))
        assert b"answers not yet taken" in client.until_kind(GOAWAY).payload
        until(lambda: rooms.held == 0)


@pytest.mark.parametrize("name", ["PullMessage", "ReceiveMessage"])
@pytest.mark.parametrize(("most", "count"), [(1, 1), (4 * len(BODY) + (16 << 10), 4)])
def test_an_answer_has_so_many_bytes_and_one_message_at_least(
    door: OpenDoor,
    name: str,
    most: int,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulling, "REPLY_BYTES", most)
    monkeypatch.setattr(receiving, "REPLY_BYTES", most)
    asked = request_of(name)
    asked.batch_size = COUNT
    with RocketmqClient(door.endpoint, tmp_path) as client:
        found = [one for one in answers(client, name, asked) if one.HasField("message")]
    assert len(found) == count
