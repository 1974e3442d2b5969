"""The service table: every call of the protocol, by its path, with the service that answers it.

The idea: the transport gives bytes and takes bytes. Here a request becomes a message and a caller,
and what the service returns or raises becomes the answer, so that a service sees neither bytes nor
codes; but for the calls of which most come, sends and acks: their services give bytes, so that
nothing is made for a message that its answer needn't have. An error is an answer with its code in
it, as RocketMQ's clients want it, not gRPC's.

Invariants: each call of the protocol has a line; no error of a service ends a connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from kvstore.api.store import Store
from kvstore.errors import StoreError
from kvstore.process.background import traced
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import LOCAL
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.brokers import Brokers
from kvstore.serve.grpc.caller import Caller
from kvstore.serve.grpc.clients import Clients
from kvstore.serve.grpc.held_file import HeldFile
from kvstore.serve.grpc.orphan_checks import OrphanChecks
from kvstore.serve.grpc.protocol.answers import refused, status_of
from kvstore.serve.grpc.protocol.incoming import DoorLimits, read_send
from kvstore.serve.grpc.protocol.protocol_tables import ADMIN, MESSAGING
from kvstore.serve.grpc.protocol.wire import Wire, message_class, parse
from kvstore.serve.grpc.pulling import Pulling
from kvstore.serve.grpc.receiving import Receiving
from kvstore.serve.grpc.renewals import Renewals
from kvstore.serve.grpc.routes import Routes
from kvstore.serve.grpc.sending import Answered, Sending
from kvstore.serve.grpc.telemetry import Telemetry
from kvstore.serve.http2.grpc_call import (
    Bidirectional,
    Call,
    Gathered,
    Method,
    ServerStream,
    Unary,
)
from kvstore.sharding.membership import Membership

_SWEEP: Final = 10.0
"""Seconds between two looks for clients that are gone, and for messages that are held for long."""
_PAUSE: Final = 1.0
"""Seconds after a failure."""
_log = logging.getLogger("kvmq")
T = TypeVar("T")
Service = Callable[[Wire, Caller], Awaitable[Wire]]
CallbackService = Callable[[T, Caller, Answered], None]
StreamService = Callable[[Wire, Caller, Call], AsyncGenerator[Wire, None]]


class Services:
    """The services of a door, wired; see the module. Made and used in the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        gatherer: Gatherer,
        access: AccessControl,
        client_limits: ClientLimits,
        cluster: Membership | None = None,
    ) -> None:
        self._access = access
        self._client_limits = client_limits
        self.clients = Clients(store.config.clock)
        self.renewals = Renewals(
            lambda receipts, seconds: gatherer.call("renew_batch", receipts, seconds),
            self.clients.is_alive,
            store.config.clock,
        )
        self._held_file = HeldFile(store.path, store.config.files)
        written = self._held_file.read()
        for held in written:
            self.clients.seen(held.client)
        self.renewals.go_on(written)
        self._orphans = OrphanChecks(store, gatherer, self.clients, loop)
        config = store.config
        limits = DoorLimits(body=config.max_body, any_time=config.any_time)
        self._brokers = Brokers(cluster)
        self._sending = Sending(store, gatherer, self._orphans, self._brokers, limits)
        self._receiving = Receiving(store, gatherer, self.clients, self.renewals, limits)
        self._pulling = Pulling(store, gatherer, limits)
        self._routes = Routes(store, gatherer, self._brokers)
        self._telemetry_calls = Telemetry(
            store, gatherer, self.clients, self._orphans, self.renewals, limits
        )
        self._loop = loop
        works = (self.renewals.run, self._sweep, self._brokers.run)
        self._tasks = [loop.create_task(_go_on(work)) for work in works]

    def methods(self) -> Mapping[str, Method]:
        """The calls by their paths."""
        unary: dict[str, Service] = {
            "QueryRoute": self._routes.query_route,
            "QueryAssignment": self._routes.query_assignment,
            "Heartbeat": self._telemetry_calls.heartbeat,
            "NotifyClientTermination": self._telemetry_calls.terminate,
            "SyncLiteSubscription": self._telemetry_calls.sync_lite_subscription,
            "EndTransaction": self._sending.end_transaction,
            "RecallMessage": self._sending.recall,
            "ChangeInvisibleDuration": self._receiving.change_invisible,
            "ForwardMessageToDeadLetterQueue": self._receiving.forward,
            "UpdateOffset": self._pulling.update_offset,
            "GetOffset": self._pulling.get_offset,
            "QueryOffset": self._pulling.query_offset,
        }
        table: dict[str, Method] = {
            MESSAGING + name: Unary(self._unary(name, service)) for name, service in unary.items()
        }
        table[MESSAGING + "SendMessage"] = self._gathered(
            "SendMessage", read_send, self._sending.send
        )
        table[MESSAGING + "AckMessage"] = self._gathered(
            "AckMessage", partial(parse, message_class("AckMessageRequest")), self._receiving.ack
        )
        table[MESSAGING + "ReceiveMessage"] = self._stream(
            "ReceiveMessage", self._receiving.receive
        )
        table[MESSAGING + "PullMessage"] = self._stream("PullMessage", self._pulling.pull)
        table[MESSAGING + "Telemetry"] = Bidirectional(self._telemetry)
        table[ADMIN + "ChangeLogLevel"] = Unary(self._change_log_level)
        return table

    async def close(self) -> None:
        """Ends all that goes on by itself, and the streams of clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._held_file.write(self.renewals.written())
        self._orphans.close()
        await self._brokers.close()
        self.clients.end_streams()

    def _caller(self, call: Call, size: int) -> Caller:
        """Who makes a call with a request of so many bytes; `NotAuthenticated`, `LimitExceeded`."""
        caller = Caller(call.metadata, self._access)
        self._charge(caller, call, size)
        self.clients.seen(caller.key)
        return caller

    def _charge(self, caller: Caller, call: Call, size: int) -> None:
        """Counts a request; of a client's first one in a connection the connection, too."""
        if caller.client is LOCAL:
            return
        name, limits = caller.client.name, self._client_limits
        when_lost = call.line.when_lost
        if name not in when_lost:
            limits.connect(name)
            when_lost[name] = partial(limits.disconnect, name)
        limits.charge(name, size)

    def _unary(self, name: str, service: Service) -> Callable[[Call, bytes], Awaitable[bytes]]:
        kind = message_class(f"{name}Request")

        async def answered(call: Call, raw: bytes) -> bytes:
            try:
                caller = self._caller(call, len(raw))
                answer = await service(parse(kind, raw), caller)
            except Exception as e:
                answer = refused(f"{name}Response", e)
            packed: bytes = answer.SerializeToString()
            return packed

        return answered

    def _gathered(
        self, name: str, read: Callable[[bytes], T], service: CallbackService[T]
    ) -> Gathered:
        """For the calls of which most come: none of them has a task, and their services give
        bytes.
        """

        def begin(calls: list[Call]) -> None:
            for call in calls:
                try:
                    caller = self._caller(call, len(call.request))
                    service(read(call.request), caller, call.finish)
                except Exception as e:
                    call.finish(refused(f"{name}Response", e).SerializeToString())

        return Gathered(begin)

    def _stream(self, name: str, service: StreamService) -> ServerStream:
        kind = message_class(f"{name}Request")

        async def answered(call: Call, raw: bytes) -> AsyncGenerator[bytes, None]:
            try:
                caller = self._caller(call, len(raw))
                async for answer in service(parse(kind, raw), caller, call):
                    yield answer.SerializeToString()
            except Exception as e:
                yield refused(f"{name}Response", e).SerializeToString()

        return ServerStream(answered)

    async def _telemetry(
        self, call: Call, requests: AsyncIterator[bytes]
    ) -> AsyncGenerator[bytes, None]:
        try:
            caller = self._caller(call, 0)
            charged = self._charged(requests, caller, call)
            async for answer in self._telemetry_calls.telemetry(charged, caller, call):
                yield answer.SerializeToString()
        except StoreError as e:
            yield refused("TelemetryCommand", e).SerializeToString()

    async def _charged(
        self, requests: AsyncIterator[bytes], caller: Caller, call: Call
    ) -> AsyncIterator[bytes]:
        async for raw in requests:
            self._charge(caller, call, len(raw))
            yield raw

    async def _change_log_level(self, call: Call, raw: bytes) -> bytes:
        kind = message_class("ChangeLogLevelRequest")
        try:
            caller = self._caller(call, len(raw))
            answer = await self._telemetry_calls.change_log_level(parse(kind, raw), caller)
        except Exception as e:
            answer = message_class("ChangeLogLevelResponse")(remark=status_of(e)[1])
        packed: bytes = answer.SerializeToString()
        return packed

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            self.clients.sweep()
            held = self.renewals.written(held_for=_SWEEP)
            await self._loop.run_in_executor(None, self._held_file.write, held)


async def _go_on(work: Callable[[], Awaitable[None]]) -> None:
    """Does work that goes on by itself. It begins anew after a failure, which is logged."""
    while True:
        try:
            await work()
        except Exception as e:
            _log.error("%s begins anew after %s", work.__qualname__, traced(e))
            await asyncio.sleep(_PAUSE)
        else:
            return
