"""A server's doors, its end, and the calls that are more than one request."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.aio
from kvstore import (
    AddressInUse,
    CallerError,
    ConnectionLost,
    ExposureRefused,
    Message,
    MessageIllegal,
    ServedStore,
    Store,
    StoreClosed,
    StoreServed,
    TransactionEnded,
)
from kvstore.clock import SystemClock
from kvstore.core.names import TIMER_TOPIC, TRANSACTION_HALF_TOPIC
from kvstore.pop.progress import letter_queues
from kvstore.wire.addresses import Address, read_address, socket_of
from tests.support.clock import VirtualClock
from tests.support.served import ServerThread, serving
from tests.support.stores import Opens, settings
from tests.support.waiting import PATIENCE, until
from tests.tiering.catalog.gate import gated
from tests.tiering.catalog.moving import archived

pytestmark = pytest.mark.group()


def test_a_socket_is_its_owners_alone_and_goes_with_the_server(store: Store) -> None:
    path = store.path / "kvmq.sock"
    with serving(store):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_the_socket_of_a_killed_server_is_replaced_and_a_living_ones_is_not(store: Store) -> None:
    path = store.path / "kvmq.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with serving(store) as server, kvstore.connect(server.url) as client:
        assert len(client.topics()) == 1
        with pytest.raises(AddressInUse, match="another process listens"):
            ServerThread(store)
        assert len(client.topics()) == 1


def test_an_opening_of_a_served_folder_says_where(store: Store, opens: Opens) -> None:
    with serving(store) as server:
        with pytest.raises(StoreServed, match=r"kvstore\.connect") as caught:
            opens()
        assert (caught.value.url, caught.value.pid) == (server.url, os.getpid())
    with pytest.raises(kvstore.StoreLocked) as locked:
        opens()
    assert type(locked.value) is kvstore.StoreLocked


def test_a_port_of_this_machine_is_served_and_others_are_refused(store: Store) -> None:
    with serving(store, Address(None, "127.0.0.1", 0)) as server:
        assert server.url.startswith("kvmq://127.0.0.1:")
        with kvstore.connect(server.url) as client:
            assert client.put("t", b"x", queue=0).offset == 0
        taken = Address(None, "127.0.0.1", int(server.url.rpartition(":")[2]))
        with pytest.raises(AddressInUse, match="choose another port"):
            ServerThread(store, taken)

        async def first() -> bytes:
            async with kvstore.aio.connect(server.url) as client:
                return (await client.get("t", 0, 0)).body

        assert asyncio.run(first()) == b"x"
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ExposureRefused, match="TLS"):
            ServerThread(store, Address(None, host, 7777))


@pytest.mark.parametrize(
    "url",
    ["http://x", "kvmq://host", "kvmq://h:99999", "kvmq://h:1/path", "kvmq+unix://h/p", "", 5],
)
def test_what_is_no_url_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(CallerError):
        kvstore.connect(url)


def test_urls_are_read_as_they_are_written(tmp_path: Path) -> None:
    for address in (
        Address(tmp_path / "a b%.sock"),
        Address(None, "::1", 5),
        Address(None, "h", 9),
    ):
        assert read_address(address.url) == address
    assert read_address(str(tmp_path)) == socket_of(tmp_path)


def test_a_folder_that_is_served_at_a_port_alone_is_found_by_its_lock(store: Store) -> None:
    async def first() -> Path:
        async with kvstore.aio.connect(store.path) as other:
            return other.path

    with serving(store, Address(None, "127.0.0.1", 0)) as server:
        for folder in (store.path, str(store.path)):
            with kvstore.connect(folder) as client:
                assert (client.url, client.path) == (server.url, store.path)
        assert asyncio.run(first()) == store.path
        with pytest.raises(ConnectionLost, match=r"kvmq\.sock"):
            kvstore.connect(socket_of(store.path).url)


def test_what_was_taken_is_made_before_the_server_ends(store: Store) -> None:
    with serving(store) as server:
        client = kvstore.connect(server.url)
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(client.pop("g", "t", wait=60)))
        thread.start()
        until(lambda: client.bounds("t", 0) == (0, 0))
        server.stop()
        client.close()
        thread.join(20)
        assert not thread.is_alive()


def test_pops_that_come_while_a_server_ends_go_to_the_next_one(store: Store) -> None:
    errors: list[type[Exception]] = []

    def pop(url: str, popped: threading.Event) -> None:
        with kvstore.connect(url, reconnect_for=0) as client:
            try:
                while True:
                    client.pop("g", "t")
                    popped.set()
            except kvstore.StoreError as e:
                errors.append(type(e))

    for _ in range(12):
        with serving(store) as server:
            begun = [threading.Event() for _ in range(12)]
            threads = [threading.Thread(target=pop, args=(server.url, one)) for one in begun]
            for thread in threads:
                thread.start()
            assert all(one.wait(20) for one in begun)
        for thread in threads:
            thread.join(20)
    assert errors == [kvstore.ConnectionLost] * 144


def test_a_checker_in_a_client_answers_for_transactions(opens: Opens) -> None:
    store = opens(settings(transaction_immunity=0.05, transaction_check_interval=0.2), "checked")
    store.create_topic("t", queues=1)
    with serving(store) as server, kvstore.connect(server.url) as client:
        asked: list[bytes] = []

        def answer(message: kvstore.StoredMessage) -> str:
            asked.append(message.body)
            if len(asked) == 1:
                raise ValueError("the checker's own fault counts as unknown")
            if len(asked) == 2:
                raise SystemExit("and so does its exit")
            return "commit"

        prepared = client.prepare("t", b"money", group="pay")
        checker = client.on_check("pay", answer)  # type: ignore[arg-type]  # it answers right
        assert checker.is_open
        until(lambda: client.bounds("t", 0) == (0, 1))
        checker.close()
        assert asked[0] == b"money"
        with pytest.raises(TransactionEnded):
            client.rollback(prepared)
        until(lambda: not checker.is_open)


def test_a_block_of_a_transaction_is_all_or_nothing(client: ServedStore) -> None:
    client.create_topic("u", queues=1)
    with client.transaction(group="pay") as block:
        block.put("t", b"1", queue=0)
        block.put("u", b"2")
    assert [result.topic for result in block.results][:1] == ["t"]
    assert client.bounds("u", 0) == (0, 1)
    block = client.transaction(group="pay")
    block.put("t", b"3", queue=0)
    block.prepare()
    block.rollback()
    assert client.bounds("t", 0) == (0, 1)


def test_progress_of_a_call_comes_to_its_caller(client: ServedStore) -> None:
    client.put_batch([Message("t", b"x")] * 10)
    told: list[tuple[str, int, int]] = []
    report = client.verify(progress=lambda what, done, total: told.append((what, done, total)))
    assert report.problems == []
    assert told
    assert told[-1][1] == told[-1][2]


def test_namespaces_and_transactions_work_with_asyncio(server: ServerThread) -> None:
    async def main() -> None:
        async with kvstore.aio.connect(server.url) as store:
            await store.create_namespace("n", topics=[kvstore.TopicConfig(name="o", queues=1)])
            view = store.namespace("n")
            await view.create_group("h")
            assert (await view.put("o", b"own")).topic == "o"
            (popped,) = await view.pop("h", "o", wait=5)
            assert (popped.message.topic, popped.message.body) == ("o", b"own")
            await view.ack(popped.receipt)
            async with store.transaction(group="pay") as block:
                block.put("t", b"1", queue=0)
            assert (await store.bounds("t", 0)).next_offset == 1
            waiting = asyncio.ensure_future(store.pop("g", "u-none"))
            with pytest.raises(kvstore.TopicNotFound):
                await waiting
            late = asyncio.ensure_future(store.pop("n%h", "n%o", wait=50))
            await asyncio.sleep(0.05)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
        with pytest.raises(StoreClosed):
            await store.topics()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_connection_is_neither_pickled_nor_opened_by_a_fork(client: ServedStore) -> None:
    with pytest.raises(CallerError, match="connect in the process"):
        pickle.dumps(client)
    assert repr(client).startswith("<kvstore.ServedStore kvmq+unix://")


@pytest.mark.parametrize("delay", [10**400, -(10**400), float("inf")])
def test_a_delay_that_is_none_is_refused_as_by_the_store(client: ServedStore, delay: float) -> None:
    with pytest.raises(MessageIllegal, match="40 years"):
        client.put("t", b"x", delay=delay)
    with pytest.raises(MessageIllegal, match=r"message 1 of 2: .*40 years"):
        client.put_batch([Message("t", b"x"), Message("t", b"x", delay=delay)])
    assert client.bounds("t", 0).next_offset == 0


@pytest.mark.parametrize("topic", [TIMER_TOPIC, TRANSACTION_HALF_TOPIC])
def test_messages_that_wait_are_kept_from_clients(client: ServedStore, topic: str) -> None:
    delayed, prepared = client.put("t", b"x", delay=3600), client.prepare("t", b"y", group="pay")
    for call in (
        lambda: client.delete_topic(topic),
        lambda: client.alter_topic(topic, key_index="off"),
        lambda: client.pop("g", topic),
        lambda: client.pop("g", topic, wait=5),
        lambda: client.get(topic, 0, 0),
        lambda: client.pull(topic, 0, 0),
        lambda: client.pull_columns(topic, 0, 0),
        lambda: client.query(topic, "k"),
    ):
        with pytest.raises(CallerError, match="messages wait in the topic"):
            call()
    assert client.cancel(delayed.message_id)
    assert client.commit(prepared).offset == 0


def test_a_long_call_gives_up_when_the_server_ends(tmp_path: Path) -> None:
    clock = VirtualClock()
    with archived(tmp_path / "s", clock, [[0], [1]], segments=3) as store:
        gate = gated(store)
        with serving(store, clock=SystemClock()) as server:
            client = kvstore.connect(server.url)
            gate.shut()
            found: list[object] = []

            def verify() -> None:
                try:
                    found.append(client.verify(archives=True))
                except StoreClosed as e:
                    found.append(str(e))

            verifying = threading.Thread(target=verify)
            verifying.start()
            assert gate.waiting.acquire(timeout=PATIENCE)
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            until(lambda: server.is_ending)
            gate.open()
            verifying.join(PATIENCE)
            stopping.join(PATIENCE)
            client.close()
        assert found == [f"{store.path} is being closed; the call was given up between two steps"]
        assert store.verify(archives=True).problems == []


def test_a_redrive_goes_no_further_than_to_its_next_step_when_the_server_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gated_queues(*given: Any) -> Iterator[Any]:
        begun.release()
        assert go_on.wait(PATIENCE)
        return queues(*given)

    def redrive() -> None:
        with pytest.raises(StoreClosed, match="given up between two steps"):
            client.redrive("g")

    store.alter_group("g", max_attempts=1)
    store.put_batch([Message("t", b"x", queue=0)] * 3)
    for popped in store.pop("g", "t", limit=3):
        store.nack(popped.receipt)
    begun, go_on, queues = threading.Semaphore(0), threading.Event(), letter_queues
    monkeypatch.setattr("kvstore.pop.dead_letters.letter_queues", gated_queues)
    with serving(store) as server, kvstore.connect(server.url) as client:
        redriving = threading.Thread(target=redrive)
        redriving.start()
        assert begun.acquire(timeout=PATIENCE)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        until(lambda: server.is_ending)
        go_on.set()
        redriving.join(PATIENCE)
        stopping.join(PATIENCE)
    assert store.redrive("g") == 3
