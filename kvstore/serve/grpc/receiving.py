"""Receiving: ReceiveMessage, AckMessage, ChangeInvisibleDuration, forwarding to the dead letters.

The idea: a receive is one pop over all queues of the topic, which waits as a poll, and ends a
little before the client would give up. A receipt is the handle, as it is. Locks of push consumers
are short, and renewed (`renewals`).

Invariants: a receive needs no settings sent before, and one that its client took back takes
nothing, or has its messages given back as if nobody had seen them. A handle that is no more good is
INVALID_RECEIPT_HANDLE, and the rest of the request is done.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

from kvstore.api.store import Store
from kvstore.core.popping.receipts import Popped, body_bytes
from kvstore.errors import FilterIllegal, GroupNotFound, ReceiptIllegal, StoreClosed
from kvstore.pop.ack import AckResult
from kvstore.read.sql import SqlFilter, sql
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.caller import Caller
from kvstore.serve.grpc.clients import Clients
from kvstore.serve.grpc.protocol.answers import Refusal, ok, set_error, set_status, summed_up
from kvstore.serve.grpc.protocol.incoming import DoorLimits
from kvstore.serve.grpc.protocol.outgoing import received
from kvstore.serve.grpc.protocol.wire import NUMBERS, Wire, code, message_class, ms_of, set_ms
from kvstore.serve.grpc.renewals import LOCK, Renewals
from kvstore.serve.grpc.sending import Answered
from kvstore.serve.http2.grpc_call import Call
from kvstore.serve.replies.open_calls import OpenCall
from kvstore.serve.replies.reply_room import REPLY_BYTES, HeldReply, ReplyRoom

_EARLY: Final = 0.3
"""Seconds before a call's deadline at which it is answered."""
_EARLY_SHARE: Final = 0.3
"""Of the time that is left, at most."""
_ack_response: Final = message_class("AckMessageResponse")
_FILTERS: Final = NUMBERS["FilterType"]


class Receiving:
    """The calls of consumers that pop; see the module."""

    def __init__(
        self,
        store: Store,
        gatherer: Gatherer,
        clients: Clients,
        renewals: Renewals,
        limits: DoorLimits,
    ) -> None:
        self._store = store
        self._gatherer = gatherer
        self._clients = clients
        self._renewals = renewals
        self._limits = limits
        self._clock = store.config.clock

    async def receive(
        self, request: Wire, caller: Caller, call: Call
    ) -> AsyncGenerator[Wire, None]:
        """ReceiveMessage."""
        resource = request.message_queue.topic
        group = caller.group(request.group)
        topic = caller.topic(resource, "consume", group)
        info = self._store.topic(topic)
        asked = (
            group,
            topic,
            self._batch(request.batch_size),
            self._invisible(request),
            self._poll(request, call),
            filter_of(request.filter_expression),
        )
        attempt_id = None
        if request.auto_renew:
            # Of this client: another one must not get the messages by the same id.
            attempt_id = attempt_of(caller, request.attempt_id)
        room = self._gatherer.rooms.of(call.line)
        held = HeldReply(room)
        try:
            found = await self._pop(room, held, *asked, attempt_id=attempt_id)
        except GroupNotFound:
            await self.make_group(group)
            found = await self._pop(room, held, *asked, attempt_id=attempt_id)
        receipts = [popped.receipt for popped in found]
        if found and request.auto_renew:
            self._renewals.hold(caller.key, receipts)
        is_sent = False
        try:
            caller.check_current()  # while it waited, its credentials may have been taken away
            answer = message_class("ReceiveMessageResponse")
            first = answer()
            if found:
                set_status(first.status)
            else:
                text = "no message came while it waited"
                set_status(first.status, code("MESSAGE_NOT_FOUND"), text)
            yield first
            for popped in found:
                yield received(popped, resource, asked[3], is_priority=info.kind == "priority")
            if found:
                last = answer()
                set_ms(last.delivery_timestamp, self._clock.now_ms())
                yield last
            is_sent = True
        finally:
            held.end()
            if receipts and not is_sent:
                self._take_back(receipts, attempt_id)

    async def _pop(
        self, room: ReplyRoom, held: HeldReply, *asked: Any, attempt_id: str | None
    ) -> list[Popped]:
        most = REPLY_BYTES if asked[2] * self._limits.body > REPLY_BYTES else None
        call = self._gatherer.pop(*asked, attempt_id=attempt_id, max_bytes=most, room=room)
        call.add_done_callback(partial(_hold, held))
        try:
            return await call
        except asyncio.CancelledError:
            held.end()
            if call.done() and not call.cancelled() and call.exception() is None:
                # It had ended, and this turn of the loop would have passed its messages on.
                self._take_back([popped.receipt for popped in call.result()], attempt_id)
            raise

    def _take_back(self, receipts: list[str], attempt_id: str | None) -> None:
        """Takes back an answer that its client did not take."""
        self._renewals.end(receipts)
        if receipts and attempt_id is None:
            # Not awaited: this task is being cancelled.
            self._gatherer.call("undo_pop", receipts)

    async def make_group(self, group: str) -> None:
        """Makes a group that is new, with the store's defaults, as RocketMQ's broker does."""
        await self._gatherer.call("create_group", group, exist_ok=True)

    def _batch(self, size: int) -> int:
        if size < 1:
            raise Refusal("BAD_REQUEST", f"batch_size is {size}; it must be 1 or more")
        return min(size, self._limits.batch)

    def _invisible(self, request: Wire) -> float:
        if request.auto_renew:
            return LOCK
        seconds = ms_of(request.invisible_duration) / 1000
        limits = self._limits
        if not limits.invisible_min <= seconds <= limits.invisible_max:
            raise Refusal(
                "ILLEGAL_INVISIBLE_TIME",
                f"invisible_duration is {seconds} s; it must be {limits.invisible_min:.0f} to "
                f"{limits.invisible_max:.0f}",
            )
        return seconds

    def _poll(self, request: Wire, call: Call) -> float:
        has_poll = request.HasField("long_polling_timeout")
        seconds = poll_of(request, self._limits) if has_poll else self._limits.poll
        return answered_within(seconds, call.seconds_left())

    # --- handles ---

    def ack(self, request: Wire, caller: Caller, answered: Answered) -> None:
        """AckMessage. It has no task of its own."""
        group = caller.group(request.group)
        caller.topic(request.topic, "consume", group)
        if not request.entries:
            raise Refusal("BAD_REQUEST", "the request has no entry")
        receipts = [entry.receipt_handle for entry in request.entries]
        caller.check_receipts(self._store, receipts)
        self._renewals.end(receipts)
        acked = self._gatherer.ack(receipts)
        acked.add_done_callback(partial(_acked, request, answered))

    async def change_invisible(self, request: Wire, caller: Caller) -> Wire:
        """ChangeInvisibleDuration."""
        receipt = self._handle(request, caller)
        seconds = ms_of(request.invisible_duration) / 1000
        if not 0 <= seconds <= self._limits.invisible_max:
            raise Refusal(
                "ILLEGAL_INVISIBLE_TIME",
                f"invisible_duration is {seconds} s; it must be 0 to "
                f"{self._limits.invisible_max:.0f}",
            )
        has_failed = self._clients.seen(caller.key).is_pushed
        renewed = await self._gatherer.change_invisible(receipt, seconds, gives_back=has_failed)
        self._renewals.end([receipt])
        answer = ok("ChangeInvisibleDurationResponse")
        answer.receipt_handle = renewed
        return answer

    async def forward(self, request: Wire, caller: Caller) -> Wire:
        """ForwardMessageToDeadLetterQueue."""
        receipt = self._handle(request, caller)
        await self._gatherer.call("give_up", receipt)
        self._renewals.end([receipt])
        return ok("ForwardMessageToDeadLetterQueueResponse")

    def _handle(self, request: Wire, caller: Caller) -> str:
        caller.group(request.group)
        caller.topic(request.topic, "consume")
        if not request.receipt_handle:
            raise ReceiptIllegal("the request has no receipt handle")
        caller.check_receipts(self._store, [request.receipt_handle])
        return str(request.receipt_handle)


def _hold(held: HeldReply, call: OpenCall[list[Popped]]) -> None:
    """Holds what a pop has brought."""
    if not call.cancelled() and call.exception() is None:
        held.hold(body_bytes(call.result()))


def _acked(request: Wire, answered: Answered, acked: OpenCall[list[AckResult]]) -> None:
    """Answers when the messages of a request were acked, or could not be."""
    answer = _ack_response()
    error = StoreClosed("the server ends") if acked.cancelled() else acked.exception()
    results = [error] * len(request.entries) if error is not None else acked.result()
    for asked, result in zip(request.entries, results, strict=True):
        entry = answer.entries.add()
        entry.message_id = asked.message_id
        entry.receipt_handle = asked.receipt_handle
        if result is True:
            set_status(entry.status)
        else:
            assert isinstance(result, BaseException)
            set_error(entry.status, result)
    statuses = ((entry.status.code, entry.status.message) for entry in answer.entries)
    set_status(answer.status, *summed_up(statuses))
    answered(answer.SerializeToString())


def attempt_of(caller: Caller, attempt_id: str) -> str:
    """A client's attempt id, as an id among those of all clients."""
    return hashlib.sha256(repr((*caller.key, attempt_id)).encode()).hexdigest()


def answered_within(seconds: float, left: float | None) -> float:
    """How long a poll of so many seconds may last, so that its answer comes before the deadline."""
    if left is None:
        return seconds
    return max(0.0, min(seconds, left - min(_EARLY, left * _EARLY_SHARE)))


def poll_of(request: Wire, limits: DoorLimits) -> float:
    """The poll that a request asks for, in seconds, or the longest; `Refusal`
    ILLEGAL_POLLING_TIME.
    """
    asked = ms_of(request.long_polling_timeout) / 1000
    if asked < 0:
        raise Refusal("ILLEGAL_POLLING_TIME", f"long_polling_timeout is {asked} s")
    return min(asked, limits.poll)


def filter_of(expression: Wire) -> str | SqlFilter | None:
    """The filter of a request; None for all messages. `Refusal`, `FilterIllegal`."""
    text = str(expression.expression).strip()
    if expression.type == _FILTERS["SQL"]:
        return sql(text)
    if expression.type not in _FILTERS.values():
        raise FilterIllegal(f"the filter is of type {expression.type}; there are tags and SQL")
    return None if text in ("", "*") else text
