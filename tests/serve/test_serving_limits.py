"""The limits of what server and client keep, lowered: calls go on, and are refused where they say.

Named here: QUEUED_MAX, CONNECTIONS_MAX, UNCONFIRMED_MAX, CONFIRM_WITHIN, UNDER_WAY_MAX, _READS_MAX,
REPLY_MAX, CONFIRM_BYTES, OUTSTANDING_MAX, REQUEST_MAX.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.aio
from kvstore import CallerError, Message, MessageTooLarge, Store, StoreBusy
from kvstore.client import exchange
from kvstore.serve import client_requests, gatherer, local_connection, sessions
from tests.serve.test_frames import HELLO_FRAME, Raw, request
from tests.support.served import serving

pytestmark = pytest.mark.group()


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (gatherer, "QUEUED_MAX", 1),
        (sessions, "UNDER_WAY_MAX", 1),
        (sessions, "_READS_MAX", 1),
        (exchange, "OUTSTANDING_MAX", 1),
        (exchange, "CONFIRM_BYTES", 1),
        (exchange, "CONFIRM_BYTES", 1 << 40),
    ],
)
def test_calls_of_threads_and_tasks_go_on_with_the_smallest_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: int
) -> None:
    monkeypatch.setattr(module, name, value)

    async def tasks(url: str) -> None:
        async with kvstore.aio.connect(url) as client:
            await asyncio.gather(*(client.put("t", b"x" * 300, queue=0) for _ in range(50)))

    with serving(store) as server, kvstore.connect(server.url) as client:

        def put() -> None:
            for _ in range(20):
                client.put_batch([Message("t", b"y" * 300, queue=1)] * 3)

        threads = [threading.Thread(target=put) for _ in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(asyncio.wait_for(tasks(server.url), 60))
        for thread in threads:
            thread.join(60)
    assert [store.bounds("t", queue).next_offset for queue in (0, 1)] == [50, 240]


def test_one_connection_too_many_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_connection, "CONNECTIONS_MAX", 1)
    with serving(store) as server, kvstore.connect(server.url) as client:
        with pytest.raises(StoreBusy, match="1 connections"):
            kvstore.connect(server.url)
        assert len(client.topics()) == 1


def test_a_client_that_reads_and_does_not_confirm_gets_a_goodbye(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "UNCONFIRMED_MAX", 2000)
    monkeypatch.setattr(sessions, "CONFIRM_WITHIN", 0.0)
    with serving(store) as server:
        raw = Raw(server)
        raw.send(HELLO_FRAME)
        assert raw.next()[0] == 0
        for number in range(1, 200):
            raw.send(request(number, "topics"))
            if raw.next()[:1] == [4]:
                break
        else:
            raise AssertionError("it was served on and on")
        raw.socket.close()


def test_calls_of_other_threads_go_on_beside_a_reply_that_is_not_confirmed_yet(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put() -> None:
        while not is_over:
            try:
                client.put("o", b"")
            except BaseException as e:
                errors.append(e)
                raise

    monkeypatch.setattr(sessions, "UNCONFIRMED_MAX", 100_000)
    store.create_topic("o")
    store.put_batch([Message("t", bytes(20_000), queue=0)] * 30)
    is_over, errors = list[bool](), list[BaseException]()
    with serving(store) as server, kvstore.connect(server.url) as client:
        threads = [threading.Thread(target=put) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(50):
            assert len(client.pull("t", 0, 0).messages) == 30
        is_over.append(True)
        for thread in threads:
            thread.join(20)
    assert errors == []


def test_a_reply_larger_than_a_frame_is_an_error_of_its_call(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("t", bytes(2000), queue=0)
    monkeypatch.setattr(client_requests, "REPLY_MAX", 1000)
    with serving(store) as server, kvstore.connect(server.url) as client:
        with pytest.raises(MessageTooLarge, match="ask for less"):
            client.get("t", 0, 0)
        assert client.bounds("t", 0) == (0, 1)


def test_a_request_larger_than_a_frame_is_not_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "REQUEST_MAX", 1000)
    with serving(store) as server, kvstore.connect(server.url) as client:
        with pytest.raises(MessageTooLarge, match="use several") as refused:
            client.put_batch([Message("t", bytes(500)), Message("t", bytes(500))])
        assert refused.value.size > refused.value.limit == 1000
        with pytest.raises(CallerError, match="use several"):
            client.find("x" * 1000)
        assert client.put("t", bytes(100), queue=0).offset == 0


def test_a_socket_in_a_folder_with_a_long_name_is_found(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50)
    with (
        kvstore.open(folder) as store,
        serving(store) as server,
        kvstore.connect(server.url) as client,
    ):
        assert client.path == folder

        async def path() -> Path:
            async with kvstore.aio.connect(folder) as other:
                return other.path

        assert asyncio.run(path()) == folder
