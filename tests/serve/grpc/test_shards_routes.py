"""RocketMQ's own Python client spreads over the shards of a cluster, as over brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import kvstore
from kvstore import NotAuthenticated, Store
from kvstore.files import LocalFiles
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import sha256_of
from kvstore.serve.access.exposure import tls_context
from kvstore.serve.grpc.brokers import Brokers
from kvstore.serve.grpc.protocol.wire import message_class
from kvstore.sharding.membership import Membership
from kvstore.wire.addresses import Address
from kvstore.wire.cluster_file import Cluster, ShardEntry
from tests.support.certificates import make_certificate
from tests.support.free_ports import free_ports
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import answer, request_of
from tests.support.served import serving
from tests.support.waiting import until

ALL = {"t": ["tag", "*"]}
NAMES = ("a", "b")


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[Store]]:
    """Two stores with the topic `t`."""
    with ExitStack() as opened:
        stores = [opened.enter_context(kvstore.open(tmp_path / name)) for name in NAMES]
        for store in stores:
            store.create_topic("t", queues=2)
        yield stores


@pytest.fixture
def doors(shards: list[Store]) -> Iterator[list[OpenDoor]]:
    """A door for each, which know of each other."""
    port = free_ports(2)
    cluster = Cluster(
        [ShardEntry(name, grpc=f"127.0.0.1:{port + n}") for n, name in enumerate(NAMES)]
    )
    with ExitStack() as opened:
        yield [
            opened.enter_context(OpenDoor(store, port + n, cluster=Membership(cluster, NAMES[n])))
            for n, store in enumerate(shards)
        ]


def test_a_client_sends_to_both_shards_and_receives_from_both(
    shards: list[Store], doors: list[OpenDoor], tmp_path: Path
) -> None:
    bodies = {f"m{n}" for n in range(24)}
    with RocketmqClient(doors[0].endpoint, tmp_path) as client:
        until(lambda: _brokers(client) == {"a", "b"})
        client.do("producer", topics=["t"])
        for body in bodies:
            client.do("send", topic="t", body=body)
        ends = _ends(shards)
        client.do("simple", group="g", topics=ALL, wait=1)
        received: set[str] = set()
        while received != bodies:
            received |= _acked(client)

    assert sum(ends) == len(bodies)
    assert min(ends) > 0
    assert [one.lag for store in shards for one in store.lag("g", "t")] == [0] * 4


def test_a_shard_whose_host_is_none_keeps_no_other_from_being_looked_at() -> None:
    lost = [ShardEntry("b", grpc="b..c:80"), ShardEntry("c", grpc=f"127.0.0.1:{free_ports(1)}")]
    brokers = Brokers(Membership(Cluster([ShardEntry("a"), *lost]), "a"))
    came_by = message_class("Endpoints")()

    async def looked() -> list[str]:
        looking = asyncio.create_task(brokers.run())
        async with asyncio.timeout(30):
            while len(brokers.told(came_by)) > 1:
                await asyncio.sleep(0.01)
        looking.cancel()
        return [broker.name for broker in brokers.told(came_by)]

    assert asyncio.run(looked()) == ["a"]


def _acked(client: RocketmqClient) -> set[str]:
    found = client.do("receive", invisible=30)
    for message in found:
        client.do("ack", at=message["at"])
    return {message["body"] for message in found}


def test_a_push_consumer_of_one_shards_address_gets_the_messages_of_both(
    shards: list[Store], doors: list[OpenDoor], tmp_path: Path
) -> None:
    for n, store in enumerate(shards):
        store.put("t", b"of %d" % n)
    with RocketmqClient(doors[1].endpoint, tmp_path) as client:
        client.do("push", group="g", topics=ALL)
        assert {one["body"] for one in client.do("pushed", count=2)} == {"of 0", "of 1"}


def test_a_shard_that_takes_no_connections_is_left_out_and_clients_go_on(
    shards: list[Store], doors: list[OpenDoor], tmp_path: Path
) -> None:
    with RocketmqClient(doors[0].endpoint, tmp_path) as client:
        until(lambda: _brokers(client) == {"a", "b"})
        doors[1].run(doors[1].door.stop(1.0))
        until(lambda: _brokers(client) == {"a"})

        client.do("producer", topics=["t"])
        for n in range(4):
            client.do("send", topic="t", body=f"m{n}")
    assert _ends(shards) == [4, 0]


def _brokers(client: RocketmqClient) -> set[str]:
    route = answer(client, "QueryRoute", request_of("QueryRoute"))
    return {queue.broker.name for queue in route.message_queues}


def test_transactions_end_where_they_began_and_a_message_group_stays_on_one_shard(
    shards: list[Store], doors: list[OpenDoor], tmp_path: Path
) -> None:
    with RocketmqClient(doors[0].endpoint, tmp_path) as client:
        until(lambda: _brokers(client) == {"a", "b"})
        client.do("producer", topics=["t"], answers="COMMIT")
        for n in range(6):
            client.do("send", topic="t", body=f"{n}", transaction=True)
            client.do("end", how="commit" if n % 3 else "rollback")
        assert sum(_ends(shards)) == 4
        assert min(_ends(shards)) > 0
        before = _ends(shards)
        for n in range(4):
            client.do("send", topic="t", body=f"{n}", message_group="customer")
        assert sorted(b - a for a, b in zip(before, _ends(shards), strict=True)) == [0, 4]


def _ends(shards: list[Store]) -> list[int]:
    return [sum(store.bounds("t", q).next_offset for q in range(2)) for store in shards]


def test_a_recall_reaches_the_shard_that_has_the_message(
    shards: list[Store], tmp_path: Path
) -> None:
    port = free_ports(2)
    with ExitStack() as opened:
        servers = [opened.enter_context(serving(store)) for store in shards]
        cluster = Cluster(
            [
                ShardEntry(name, server.url, f"127.0.0.1:{port + n}")
                for n, (name, server) in enumerate(zip(NAMES, servers, strict=True))
            ]
        )
        doors = [
            opened.enter_context(OpenDoor(store, port + n, cluster=Membership(cluster, NAMES[n])))
            for n, store in enumerate(shards)
        ]
        client = opened.enter_context(RocketmqClient(doors[0].endpoint, tmp_path))
        until(lambda: _brokers(client) == {"a", "b"})
        client.do("producer", topics=["t"])
        due = int(time.time()) + 600
        sent = [client.do("send", topic="t", body="x", delivery_timestamp=due) for _ in range(4)]
        assert [store.timers().count for store in shards] == [2, 2]
        for one in sent:
            assert client.do("recall", topic="t", handle=one["handle"]) == one["id"]
        assert [store.timers().count for store in shards] == [0, 0]


def test_shards_with_tls_and_credentials_tell_routes_and_recall_from_each_other(
    shards: list[Store], tmp_path: Path
) -> None:
    chain, key = map(Path, make_certificate(tmp_path))
    tls, token = tls_context(LocalFiles(), chain, key), "a token that shards have"
    clients = tmp_path / "clients.toml"
    clients.write_text(
        f'[[clients]]\nname = "s"\ntoken_sha256 = "{sha256_of(token)}"\nadmin = ["*"]\n'
    )
    clients.chmod(0o600)
    port = free_ports(2)
    with ExitStack() as opened:
        servers = [
            opened.enter_context(
                serving(
                    store,
                    Address(None, "127.0.0.1", 0, is_tls=True),
                    AccessControl(clients, LocalFiles(), store.config.clock),
                    tls_context(LocalFiles(), chain, key),
                )
            )
            for store in shards
        ]
        cluster = Cluster(
            [
                ShardEntry(name, server.url, f"localhost:{port + n}")
                for n, (name, server) in enumerate(zip(NAMES, servers, strict=True))
            ]
        )
        doors = [
            opened.enter_context(
                OpenDoor(
                    store, port + n, tls=tls, cluster=Membership(cluster, NAMES[n], token, chain)
                )
            )
            for n, store in enumerate(shards)
        ]
        with pytest.raises(NotAuthenticated):
            kvstore.connect([server.url for server in servers], tls=chain)
        client = opened.enter_context(RocketmqClient(doors[0].endpoint, tmp_path))
        request = request_of("QueryRoute")

        def told() -> set[str]:
            route = answer(client, "QueryRoute", request, roots=chain.read_text())
            return {queue.broker.name for queue in route.message_queues}

        until(lambda: told() == {"a", "b"})
        client.do("producer", topics=["t"])
        due = int(time.time()) + 600
        sent = [client.do("send", topic="t", body="x", delivery_timestamp=due) for _ in range(4)]
        assert [store.timers().count for store in shards] == [2, 2]
        for one in sent:
            assert client.do("recall", topic="t", handle=one["handle"]) == one["id"]
        assert [store.timers().count for store in shards] == [0, 0]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_a_shard_at_all_addresses_of_its_machine_is_told_at_the_one_that_the_client_knows(
    host: str,
) -> None:
    shards = [ShardEntry("a", grpc=f"{host}:81"), ShardEntry("b", grpc=f"{host}:82")]
    came_by = message_class("Endpoints")(scheme=3)
    came_by.addresses.add(host="db.example.org", port=81)
    found = Brokers(Membership(Cluster(shards), "a")).told(came_by)
    assert [(b.endpoints.scheme, b.endpoints.addresses[0].host) for b in found] == [
        (3, "db.example.org")
    ] * 2
    assert [b.endpoints.addresses[0].port for b in found] == [81, 82]
