"""Routes: QueryRoute and QueryAssignment.

The idea: a client is told the topic's queues, all of them at the address by which it came: whatever
stands between it and the server, that address works for it. In a cluster it is told the queues of
all shards (`brokers`): calls on topics go to all, so the others have as many as this one. Which
queue a consumer names when it receives does not matter, since a pop looks at all queues; a push
consumer is assigned some of them only so that it has some requests under way.

Invariant: a queue is shown as writable or readable only if it is.
"""

from __future__ import annotations

from typing import Final

from kvstore.api.store import Store
from kvstore.errors import TopicNotFound
from kvstore.meta.topics import TopicInfo
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.brokers import Brokers
from kvstore.serve.grpc.caller import Caller
from kvstore.serve.grpc.protocol.answers import Refusal, ok
from kvstore.serve.grpc.protocol.incoming import TYPES, types_of
from kvstore.serve.grpc.protocol.wire import NUMBERS, Wire

_PERMISSION: Final = NUMBERS["Permission"]
ASSIGNED: Final = 4
"""Queues of a broker that a push consumer is assigned, and so the requests it has under way."""


class Routes:
    """The calls by which clients find queues; see the module."""

    def __init__(self, store: Store, gatherer: Gatherer, brokers: Brokers) -> None:
        self._store = store
        self._gatherer = gatherer
        self._brokers = brokers

    async def query_route(self, request: Wire, caller: Caller) -> Wire:
        """QueryRoute."""
        info = await self._topic(request.topic, caller)
        _check_endpoints(request.endpoints)
        answer = ok("QueryRouteResponse")
        for broker in self._brokers.told(request.endpoints):
            for queue in range(max(info.read_queues, info.write_queues)):
                _fill_queue(answer.message_queues.add(), request, info, queue, broker)
        return answer

    async def query_assignment(self, request: Wire, caller: Caller) -> Wire:
        """QueryAssignment."""
        info = await self._topic(request.topic, caller)
        caller.group(request.group)
        _check_endpoints(request.endpoints)
        answer = ok("QueryAssignmentResponse")
        for broker in self._brokers.told(request.endpoints):
            for queue in range(min(info.read_queues, ASSIGNED)):
                _fill_queue(answer.assignments.add().message_queue, request, info, queue, broker)
        return answer

    async def _topic(self, resource: Wire, caller: Caller) -> TopicInfo:
        name = caller.topic(resource, None)
        try:
            return self._store.topic(name)
        except TopicNotFound:
            if not self._store.config.auto_create_topics:
                raise
            made: TopicInfo = await self._gatherer.call("create_topic", name, exist_ok=True)
            return made


def _check_endpoints(endpoints: Wire) -> None:
    if not endpoints.addresses or not all(
        a.host and 0 < a.port < 65_536 for a in endpoints.addresses
    ):
        raise Refusal(
            "ILLEGAL_ACCESS_POINT", "the request does not say by which address the client came"
        )


def _fill_queue(wire: Wire, request: Wire, info: TopicInfo, queue: int, broker: Wire) -> None:
    wire.topic.CopyFrom(request.topic)
    wire.id = queue
    is_read, is_written = queue < info.read_queues, queue < info.write_queues
    name = "READ_WRITE" if is_read and is_written else "READ" if is_read else "WRITE"
    wire.permission = _PERMISSION[name]
    wire.broker.CopyFrom(broker)
    wire.accept_message_types.extend(TYPES[one] for one in types_of(info))
