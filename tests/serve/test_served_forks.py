"""A connection on both sides of a fork: the child connects anew, and the parent notices nothing.

Each test forks in a process of its own, which never had a store open.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import kvstore
import kvstore.aio
from kvstore import StoreClosed, StoreForked
from kvstore.files import LocalFiles
from kvstore.serve.access.exposure import tls_context
from kvstore.wire.addresses import Address
from tests.support.certificates import make_certificate
from tests.support.children import FORK_PATIENCE, Teller, forked, in_child
from tests.support.served import serving
from tests.support.sharding import served_shards


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kvstore.Store]:
    """A store with the topic `t` and the group `g`."""
    with kvstore.open(tmp_path / "s") as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        yield store


@pytest.fixture
def url(store: kvstore.Store) -> Iterator[str]:
    """The store, served."""
    with serving(store) as server:
        yield server.url


Url = str | list[str]


def _used_on_both_sides(tell: Teller, url: Url, tls: Path | None) -> None:
    store = kvstore.connect(url, tls=tls)
    path = store.path
    popped = list[kvstore.Popped]()
    waiting = threading.Thread(target=lambda: popped.extend(store.pop("g", "t", wait=20)))
    waiting.start()

    def child() -> None:
        assert store.path == path
        tell(store.put("t", b"of the child", queue=0).message_id)
        assert forked(tell, lambda: tell(store.put("t", b"of its child", queue=0).message_id)) == 0
        tell(store.put("t", b"of the child", queue=0).message_id)
        store.close()
        _is_closed(store)

    assert forked(tell, child) == 0
    waiting.join(FORK_PATIENCE)
    assert [one.message.body for one in popped] == [b"of the child"]
    tell(store.put("t", b"of the parent", queue=0).message_id)
    assert store.bounds("t", 0) == (0, 4)
    store.ack(popped[0].receipt)
    store.close()
    assert forked(tell, lambda: _is_closed(store)) == 0


def _is_closed(store: kvstore.ServedStore) -> None:
    with pytest.raises(StoreClosed):
        store.topics()


def test_a_connection_goes_on_in_the_parent_and_begins_anew_in_the_child(url: str) -> None:
    """A pop of the parent that waits at the fork gets the child's message. All ids differ."""
    _assert_apart(in_child(_used_on_both_sides, url, None))


def test_a_child_speaks_tls_anew(store: kvstore.Store, tmp_path: Path) -> None:
    chain, key = map(Path, make_certificate(tmp_path))
    address = Address(None, "127.0.0.1", 0, is_tls=True)
    with serving(store, address, tls=tls_context(LocalFiles(), chain, key)) as server:
        _assert_apart(in_child(_used_on_both_sides, server.url, chain))


def _assert_apart(ids: list[str]) -> None:
    assert len(set(ids)) == 4
    assert len({one[:20] for one in ids}) == 3, "each process has a source of ids of its own"


def _preloaded(tell: Teller, url: str) -> None:
    os.environ["STORE"] = url
    app = importlib.import_module("examples.flask_orders").app

    def serve(order: str) -> None:
        with app.test_client() as client:
            assert client.post(f"/orders/{order}", data=b"x").status_code == 202
            assert client.get(f"/orders/{order}").json == {"state": "taken"}

    for order in ("1", "2"):
        assert forked(tell, partial(serve, order)) == 0
    serve("3")


def test_a_web_server_may_load_its_application_before_it_forks(url: str) -> None:
    """As `gunicorn --preload` does: the application has connected by then."""
    in_child(_preloaded, url)


def _checker_stays(tell: Teller, url: str) -> None:
    with kvstore.connect(url) as store:
        checker = store.on_check("p", lambda message: "commit")

        def child() -> None:
            assert not checker.is_open
            checker.close()
            assert store.on_check("p", lambda message: "commit").is_open

        assert forked(tell, child) == 0
        assert checker.is_open


def test_a_checker_answers_in_the_process_that_registered_it(url: str) -> None:
    in_child(_checker_stays, url)


def _open_sockets(url: Url) -> int:
    """How many descriptors of this process are connections to one of these."""
    paths = {one.partition("://")[2] for one in ([url] if isinstance(url, str) else url)}
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as held:
            found += held.getpeername() in paths
    return found


def _sharded(tell: Teller, urls: list[str]) -> None:
    store = kvstore.connect(urls)
    store.create_topic("t", queues=2)
    store.create_group("g")
    one = store.shard(store.names[0])
    popped = list[kvstore.Popped]()
    waiting = threading.Thread(target=lambda: popped.extend(store.pop("g", "t", wait=20)))
    waiting.start()

    def child() -> None:
        assert _open_sockets(urls) == 0
        with pytest.raises(StoreForked, match="connect again in this process"):
            one.topics()
        calls = [threading.Thread(target=store.topics) for _ in range(4)]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
        assert _open_sockets(urls) == len(urls)
        store.put("t", b"of the child", queue=0)
        assert forked(tell, lambda: tell(store.put("t", b"", queue=1).message_id)) == 0
        store.close()
        assert _open_sockets(urls) == 0
        _is_closed(store)

    assert forked(tell, child) == 0
    waiting.join(FORK_PATIENCE)
    assert popped[0].message.body in (b"of the child", b"")
    assert _open_sockets(urls) == len(urls)
    store.ack(popped[0].receipt)
    assert [store.bounds("t", queue) for queue in (0, 1)] == [(0, 1)] * 2
    assert forked(tell, store.close) == 0
    assert len(store.topics()) == 1
    store.close()
    assert forked(tell, lambda: _is_closed(store)) == 0


def test_a_connection_to_shards_begins_anew_in_the_child(tmp_path: Path) -> None:
    with served_shards(tmp_path, 2) as shards:
        in_child(_sharded, shards.urls)


def _refused(tell: Teller, url: str) -> None:
    async def main() -> None:
        awaited = await kvstore.aio.connect(url)
        popping = asyncio.create_task(awaited.pop("g", "t", wait=20))
        assert await awaited.pop("g", "t") == []

        def child() -> None:
            assert _open_sockets(url) == 0
            with pytest.raises(StoreForked, match="connect again in this process"):
                anew.submit(asyncio.run, awaited.topics()).result()
            anew.submit(asyncio.run, connect_anew()).result()

        async def connect_anew() -> None:
            async with kvstore.aio.connect(url) as own:
                await own.put("t", b"of the child", queue=0)

        anew = ThreadPoolExecutor(1)  # its threads have no loop that runs
        assert forked(tell, child) == 0
        assert _open_sockets(url) == 1
        assert [one.message.body for one in await popping] == [b"of the child"]
        assert len(await awaited.topics()) == 1
        await awaited.close()

    asyncio.run(main())


def test_a_connection_of_asyncio_is_refused_in_a_child_which_may_connect_anew(url: str) -> None:
    in_child(_refused, url)
