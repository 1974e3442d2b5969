"""Brokers: the shards of a cluster as clients are told of them, and which of them take connections.

The idea: RocketMQ's clients learn the addresses of brokers from routes. Here each shard is a
broker, and all of them are told by each of them. A broker to which no connection can be made is
left out, since clients connect to all that a route names before they begin.

Invariants: the server itself is always among them; without a cluster it is the only one, at the
address by which the client came.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress
from typing import Final

from kvstore.errors import DelayEnded, MessageNotFound
from kvstore.serve.grpc.protocol.wire import NUMBERS, Wire, message_class
from kvstore.sharding.membership import Membership
from kvstore.sharding.shards import Shards
from kvstore.wire.cluster_file import Cluster, ShardEntry

BROKER: Final = "kvmq"
"""The name of the broker that clients see, without a cluster."""
_SCHEMES: Final = NUMBERS["AddressScheme"]
_LOOK: Final = 2.0
"""Seconds between two looks for the other brokers, and for a connection to one."""


class Brokers:
    """The brokers of a cluster; see the module."""

    def __init__(self, cluster: Membership | None) -> None:
        self._cluster = cluster
        self._shards: list[ShardEntry] = []
        self._own = BROKER
        if cluster is not None:
            self._own = cluster.own
            self._shards = [
                shard for shard in cluster.cluster.shards if shard.grpc or shard.name == self._own
            ]
        self._lost: set[str] = set()
        self._others = [s for s in self._shards if s.url and s.name != self._own]
        self._asked: Shards | None = None

    async def run(self) -> None:
        """Looks again and again which of the others take connections."""
        others = [shard for shard in self._shards if shard.name != self._own]
        while others:
            are_there = await asyncio.gather(*(_is_there(shard) for shard in others))
            pairs = zip(others, are_there, strict=True)
            self._lost = {shard.name for shard, is_there in pairs if not is_there}
            await asyncio.sleep(_LOOK)

    def told(self, came_by: Wire) -> list[Wire]:
        """The brokers for a route, to a client that came by these endpoints."""
        if not self._shards:
            return [message_class("Broker")(name=BROKER, endpoints=came_by)]
        found: list[Wire] = []
        for shard in self._shards:
            if shard.name not in self._lost:
                endpoints = came_by
                if shard.endpoint is not None:
                    endpoints = _endpoints(*shard.endpoint, came_by)
                found.append(message_class("Broker")(name=shard.name, endpoints=endpoints))
        return found

    async def cancel(self, topic: str, message_id: str) -> bool:
        """As `Store.cancel`, of a message to a topic that waits on one of the others, which are
        asked by the local protocol. `MessageNotFound`; `ConnectionLost` if one that may have it
        can't be asked.
        """
        if self._cluster is None or not self._others:
            raise MessageNotFound(f"there is no message {message_id!r} here")
        if self._asked is None:
            proof, tls = self._cluster.credentials, self._cluster.tls
            asked = Shards(Cluster(self._others), "the other shards", _LOOK, proof, tls)
            await asked.connect()
            self._asked = asked
        with suppress(DelayEnded):
            # The others know this server, and not its client, so the topic is looked at here.
            waits = await self._asked.call("timer", (message_id,), {})
            if waits.topic == topic:
                found: bool = await self._asked.call("cancel", (message_id,), {})
                return found
        raise MessageNotFound(f"there is no message {message_id!r} here")

    async def close(self) -> None:
        """Ends the connections to the others."""
        if self._asked is not None:
            await self._asked.close()


def _endpoints(host: str, port: int, came_by: Wire) -> Wire:
    found = message_class("Endpoints")()
    scheme = "DOMAIN_NAME"
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            # It listens to all addresses of its machine, and the client knows one of them.
            found.CopyFrom(came_by)
            for one in found.addresses:
                one.port = port
            return found
        scheme = "IPv6" if address.version == 6 else "IPv4"
    found.scheme = _SCHEMES[scheme]
    found.addresses.add(host=host, port=port)
    return found


async def _is_there(shard: ShardEntry) -> bool:
    assert shard.endpoint is not None, "shards without a door are left out"
    # A host that can't be the name of a machine is a UnicodeError.
    with suppress(OSError, UnicodeError):
        async with asyncio.timeout(_LOOK):
            _, writer = await asyncio.open_connection(*shard.endpoint)
        writer.close()
        return True
    return False
