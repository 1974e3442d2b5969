"""A connection that breaks at any byte: nothing is done twice, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

import kvstore
import kvstore.aio
from kvstore import ConnectionLost, Message, ServedStore, Store, StoreClosed, TopicConfig
from tests.support import inside
from tests.support.cutting import relaying
from tests.support.popping import bodies
from tests.support.served import ServerThread, serving
from tests.support.waiting import until

pytestmark = pytest.mark.group()


def url(path: Path) -> str:
    return f"kvmq+unix://{path}"


def socket_path(server: ServerThread) -> Path:
    return Path(server.url.removeprefix("kvmq+unix://"))


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_many_threads_are_made_once_over_connections_that_break(
    server: ServerThread, store: Store, tmp_path: Path, seed: int
) -> None:
    cuts = random.Random(seed)
    lengths = [cuts.randrange(200, 20_000) for _ in range(25)]
    relay_path = tmp_path / "r"
    with (
        relaying(relay_path, socket_path(server), lengths) as relay,
        kvstore.connect(url(relay_path)) as client,
    ):
        done: list[bytes] = []

        def put(thread: int) -> None:
            for i in range(60):
                client.put("t", b"%d-%d" % (thread, i))

        def pop() -> None:
            while len(done) < 240:
                for popped in client.pop("g", "t", 8, invisible_for=600, wait=0.2):
                    client.ack(popped.receipt)
                    done.append(popped.message.body)

        threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
        threads += [threading.Thread(target=pop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert relay.connections > 5
    expected = sorted(b"%d-%d" % (thread, i) for thread in range(4) for i in range(60))
    held = [m.body for q in range(4) for m in store.pull("t", q, 0, 1000).messages]
    assert sorted(held) == expected
    assert sorted(done) == expected


def test_bytes_that_come_one_by_one_are_good_frames(server: ServerThread, tmp_path: Path) -> None:
    with (
        relaying(tmp_path / "r", socket_path(server), [], piece=1),
        kvstore.connect(url(tmp_path / "r")) as client,
    ):
        put = client.put("t", b"x" * 500, queue=0)
        assert client.get("t", 0, put.offset).body == b"x" * 500


def test_a_call_that_waits_goes_on_when_its_connection_breaks(
    server: ServerThread, store: Store, tmp_path: Path
) -> None:
    with (
        relaying(tmp_path / "r", socket_path(server), [2000]) as relay,
        kvstore.connect(url(tmp_path / "r")) as client,
    ):
        found: list[bytes] = []
        thread = threading.Thread(
            target=lambda: found.extend(bodies(client.pop("g", "t", wait=30)))
        )
        thread.start()
        while relay.connections < 2:
            client.bounds("t", 0)
        store.put("t", b"late")
        thread.join(20)
        assert found == [b"late"]


def test_tasks_of_asyncio_go_on_over_connections_that_break(
    server: ServerThread, store: Store, tmp_path: Path
) -> None:
    lengths = [random.Random(5).randrange(200, 20_000) for _ in range(15)]

    async def put(client: kvstore.aio.ServedStore, task: int) -> None:
        for i in range(40):
            await client.put("t", b"%d-%d" % (task, i))

    async def main() -> None:
        async with kvstore.aio.connect(url(tmp_path / "r")) as client:
            await asyncio.gather(*(put(client, n) for n in range(8)))

    with relaying(tmp_path / "r", socket_path(server), lengths) as relay:
        asyncio.run(asyncio.wait_for(main(), 60))
        assert relay.connections > 3
    held = [m.body for q in range(4) for m in store.pull("t", q, 0, 1000).messages]
    assert sorted(held) == sorted(b"%d-%d" % (n, i) for n in range(8) for i in range(40))


def test_a_client_finds_a_server_that_was_started_anew(store: Store) -> None:
    with serving(store) as first:
        client = kvstore.connect(first.url)
        client.put("t", b"1")
    with serving(store):
        client.put("t", b"2")
        assert store.stats().topics == 1
        client.close()


def test_a_put_that_a_new_server_may_have_is_looked_for_by_its_id(store: Store) -> None:
    from kvstore.serve.repeated import put_again

    there = [Message("t", b"%d" % i, message_id=f"ID-{i}") for i in range(4)]
    first = store.put_batch(there[:2])
    again = put_again(store, there)
    assert [one.message_id for one in again] == ["ID-0", "ID-1", "ID-2", "ID-3"]
    assert again[:2] == first
    assert sum(store.bounds("t", q).next_offset for q in range(4)) == 4
    late = Message("t", b"later", message_id="ID-9", delay=600.0)
    (put,) = store.put_batch([late])
    (found,) = put_again(store, [late])
    assert (found.message_id, found.position, found.offset) == ("ID-9", put.position, -1)
    assert store.timers("t").count == 1


def test_when_nobody_serves_calls_fail_after_the_time_given(store: Store) -> None:
    with serving(store) as server:
        client = kvstore.connect(server.url, reconnect_for=0)
    with pytest.raises(ConnectionLost, match="kvmq serve"):
        client.topics()
    client.close()
    with pytest.raises(StoreClosed):
        client.topics()
    with pytest.raises(ConnectionLost):
        kvstore.connect(server.url)


def test_a_call_that_may_have_changed_the_store_is_not_repeated_at_a_new_server() -> None:
    from kvstore.client.exchange import Exchange
    from kvstore.client.served_calls import Requests
    from kvstore.clock import SystemClock
    from kvstore.wire.frames import NAME, VERSION, WELCOME
    from kvstore.wire.values import encode

    exchange, requests = Exchange(), Requests(SystemClock())
    sent = [
        requests.make("create_topic", ("u",), {}),
        requests.make("topics", (), {}),
        requests.make("put_batch", ([Message("t", b"x")],), {}),
        requests.make("create_topics", ([TopicConfig(name="v")],), {}),
    ]
    for one in sent:
        exchange.add(one)
        one.was_sent = one is not sent[3]
    frames = exchange.welcome(encode([WELCOME, NAME, VERSION, False, 0, [], 1, "/d"]))
    assert isinstance(sent[0].error, ConnectionLost)
    assert [frame[-1:] for frame in frames] == [b"\xc3", b"\xc3", b"\xc2"]


def test_pops_of_a_client_that_went_away_wait_no_longer(
    server: ServerThread, store: Store, client: ServedStore
) -> None:
    gone = kvstore.connect(server.url)

    def pop() -> None:
        with pytest.raises(StoreClosed):
            gone.pop("g", "t", wait=60)

    thread = threading.Thread(target=pop)
    thread.start()
    until(lambda: inside.waiting(store).topics != {})
    gone.close()
    thread.join(10)
    until(lambda: inside.waiting(store).topics == {})
    client.put("t", b"x")
    (popped,) = client.pop("g", "t", wait=5)
    assert popped.attempt == 1
