"""Telemetry: the stream of that name, Heartbeat, NotifyClientTermination, and the log's level.

The idea: a Telemetry stream carries the client's settings one way, and the server's questions the
other. Settings may come again at any time, and are answered each time. All that a client says here
goes to `clients`.

Invariants:

- Wrong settings are answered with their code, and the stream goes on.
- A client's language is not looked at.
- A stream that ends is used no more, whatever ended it.
- A client ends itself, and no client of other credentials; one that is not known is told OK.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from kvstore.api.store import Store
from kvstore.errors import GroupNotFound, StoreError
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.caller import Caller
from kvstore.serve.grpc.client_settings import fill_consumer, fill_producer
from kvstore.serve.grpc.clients import CONSUMERS, Clients, SendsTo
from kvstore.serve.grpc.orphan_checks import OrphanChecks
from kvstore.serve.grpc.protocol.answers import Refusal, ok, set_error, set_status
from kvstore.serve.grpc.protocol.incoming import DoorLimits
from kvstore.serve.grpc.protocol.wire import NUMBERS, Wire, message_class, parse
from kvstore.serve.grpc.renewals import Renewals
from kvstore.serve.http2.grpc_call import Call

_KIND: Final = NUMBERS["ClientType"]
_LEVELS: Final = NUMBERS["ChangeLogLevelRequest.Level"]
_LOGGED: Final = {
    _LEVELS["TRACE"]: logging.DEBUG,
    _LEVELS["DEBUG"]: logging.DEBUG,
    _LEVELS["INFO"]: logging.INFO,
    _LEVELS["WARN"]: logging.WARNING,
    _LEVELS["ERROR"]: logging.ERROR,
}
_ENDED: Final = 0.001
"""Seconds for which the locks of a client that ended are renewed: they come back at once."""
_log = logging.getLogger("kvmq")


class Telemetry:
    """The calls by which clients come, live and go; see the module."""

    def __init__(
        self,
        store: Store,
        gatherer: Gatherer,
        clients: Clients,
        orphans: OrphanChecks,
        renewals: Renewals,
        limits: DoorLimits,
    ) -> None:
        self._store = store
        self._gatherer = gatherer
        self._clients = clients
        self._orphans = orphans
        self._renewals = renewals
        self._limits = limits

    async def telemetry(
        self, requests: AsyncIterator[bytes], caller: Caller, call: Call
    ) -> AsyncGenerator[Wire, None]:
        """Telemetry: both ways, until the client ends it."""
        kind = message_class("TelemetryCommand")
        client = self._clients.seen(caller.key)
        client.streams[call] = _sends_to(caller, frozenset())
        try:
            async for raw in requests:
                self._clients.seen(caller.key)
                command = parse(kind, raw)
                if command.WhichOneof("command") != "settings":
                    continue  # the answer to a question that this server never asks
                answer = kind()
                try:
                    topics = await self._settle(command.settings, caller)
                except StoreError as e:
                    set_error(answer.status, e)
                else:
                    client.kind = command.settings.client_type
                    client.streams[call] = _sends_to(caller, topics)
                    set_status(answer.status)
                    answer.settings.CopyFrom(command.settings)
                    await self._orphans.watch_waiting(topics)
                yield answer
        finally:
            del client.streams[call]

    async def _settle(self, settings: Wire, caller: Caller) -> frozenset[str]:
        """Fills settings with the server's values; returns the topics that the client sends to."""
        if settings.client_type == _KIND["PRODUCER"]:
            if settings.WhichOneof("pub_sub") == "subscription":
                raise Refusal("BAD_REQUEST", "a producer publishes; its settings subscribe")
            topics = frozenset(caller.topic(t, "produce") for t in settings.publishing.topics)
            fill_producer(settings, self._limits)
            return topics
        if settings.client_type not in CONSUMERS:
            raise Refusal("UNRECOGNIZED_CLIENT_TYPE", f"the client type is {settings.client_type}")
        if settings.WhichOneof("pub_sub") != "subscription":
            raise Refusal("BAD_REQUEST", "a consumer's settings must have its subscriptions")
        group = caller.group(settings.subscription.group)
        for entry in settings.subscription.subscriptions:
            caller.topic(entry.topic, "consume")
        try:
            info = self._store.group(group)
        except GroupNotFound:
            info = await self._gatherer.call("create_group", group, exist_ok=True)
        fill_consumer(settings, info, self._limits)
        return frozenset()

    async def heartbeat(self, request: Wire, caller: Caller) -> Wire:
        """Heartbeat."""
        kind = request.client_type
        if kind not in CONSUMERS and kind != _KIND["PRODUCER"]:
            raise Refusal("UNRECOGNIZED_CLIENT_TYPE", f"the client type is {kind}")
        if kind in CONSUMERS:
            caller.group(request.group)
        self._clients.seen(caller.key).kind = kind
        return ok("HeartbeatResponse")

    async def terminate(self, request: Wire, caller: Caller) -> Wire:
        """NotifyClientTermination: the messages that the client still holds come back."""
        del request
        held = self._renewals.end_client(caller.key)
        self._clients.forget(caller.key)
        if held:
            await self._gatherer.call("renew_batch", held, _ENDED)
        return ok("NotifyClientTerminationResponse")

    async def sync_lite_subscription(self, request: Wire, caller: Caller) -> Wire:
        """SyncLiteSubscription: refused, for the store has no lite topics."""
        caller.topic(request.topic, "consume")
        caller.group(request.group)
        raise Refusal("UNSUPPORTED", "the store has no lite topics; make a topic for each")

    async def change_log_level(self, request: Wire, caller: Caller) -> Wire:
        """Admin.ChangeLogLevel."""
        caller.check_admin()
        level = _LOGGED.get(request.level)
        if level is None:
            raise Refusal("BAD_REQUEST", f"the level is {request.level}, which is none")
        _log.setLevel(level)
        remark = f"kvmq logs {logging.getLevelName(level)} and above"
        return message_class("ChangeLogLevelResponse")(remark=remark)


def _sends_to(caller: Caller, topics: frozenset[str]) -> SendsTo:
    return lambda topic: topic in topics and caller.may_produce(topic)
