"""Pulling: PullMessage, UpdateOffset, GetOffset and QueryOffset.

The idea: they are the store's calls on one queue, `pull`, `commit_offset`, `committed_offset`,
`bounds` and `offset_at`. A pull that finds nothing looks again from time to time until its poll is
over: no client of RocketMQ pulls, so that is rare.

Invariant: `next_offset` of an answer is where to go on, also when nothing was found.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from kvstore.api.store import Store
from kvstore.core.popping.receipts import body_bytes
from kvstore.errors import GroupNotFound
from kvstore.message import PullResult
from kvstore.read.sql import SqlFilter
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.caller import Caller
from kvstore.serve.grpc.protocol.answers import Refusal, ok, set_status
from kvstore.serve.grpc.protocol.incoming import DoorLimits
from kvstore.serve.grpc.protocol.outgoing import fill
from kvstore.serve.grpc.protocol.wire import NUMBERS, Wire, code, message_class, ms_of
from kvstore.serve.grpc.receiving import answered_within, filter_of, poll_of
from kvstore.serve.http2.grpc_call import Call
from kvstore.serve.replies.bounded_reads import pull_within
from kvstore.serve.replies.open_calls import OpenCall
from kvstore.serve.replies.reply_room import REPLY_BYTES, HeldReply, ReplyRoom

_LOOK_AGAIN: Final = 0.25
"""Seconds between two looks of a pull that waits."""
_POLICIES: Final = NUMBERS["QueryOffsetPolicy"]


class Pulling:
    """The calls of consumers that pull; see the module."""

    def __init__(self, store: Store, gatherer: Gatherer, limits: DoorLimits) -> None:
        self._store = store
        self._gatherer = gatherer
        self._limits = limits
        self._clock = store.config.clock

    async def pull(self, request: Wire, caller: Caller, call: Call) -> AsyncGenerator[Wire, None]:
        """PullMessage."""
        caller.group(request.group)
        topic, queue = self._queue(request.message_queue, caller)
        if request.offset < 0:
            raise Refusal("ILLEGAL_OFFSET", f"the offset is {request.offset}; it must be 0 or more")
        if request.batch_size < 1:
            raise Refusal(
                "BAD_REQUEST", f"batch_size is {request.batch_size}; it must be 1 or more"
            )
        info = self._store.topic(topic)
        asked = topic, queue, request.offset, min(request.batch_size, self._limits.batch)
        wanted = filter_of(request.filter_expression)
        seconds = poll_of(request, self._limits)
        room = self._gatherer.rooms.of(call.line)
        until = self._clock.monotonic() + answered_within(seconds, call.seconds_left())
        while True:
            found = await self._pulled(room, *asked, wanted)
            is_behind = asked[2] > found.max_offset or asked[2] < found.min_offset
            if found.messages or is_behind or self._clock.monotonic() >= until:
                break
            await asyncio.sleep(_LOOK_AGAIN)
        held = HeldReply(room)
        held.hold(body_bytes(found.messages))
        try:
            kind = message_class("PullMessageResponse")
            status = kind()
            if is_behind:
                text = f"the queue holds offsets {found.min_offset} to {found.max_offset}"
                set_status(status.status, code("ILLEGAL_OFFSET"), text)
            elif found.messages:
                set_status(status.status)
            else:
                set_status(status.status, code("MESSAGE_NOT_FOUND"), "no message is there")
            yield status
            for message in found.messages:
                wire = kind()
                fill(
                    wire.message, message, request.message_queue.topic,
                    is_priority=info.kind == "priority",
                )  # fmt: skip
                yield wire
            yield kind(next_offset=found.next_offset)
        finally:
            held.end()

    async def _pulled(
        self,
        room: ReplyRoom,
        topic: str,
        queue: int,
        offset: int,
        limit: int,
        wanted: str | SqlFilter | None,
    ) -> PullResult:
        def pull(most: int | None) -> OpenCall[PullResult]:
            return self._gatherer.call(
                "pull", topic, queue, offset, limit, max_bytes=most, filter=wanted
            )

        body = self._limits.body
        most = REPLY_BYTES if limit * body > REPLY_BYTES else None
        return await pull_within(self._gatherer.loop, room, body, limit, most, pull)

    async def update_offset(self, request: Wire, caller: Caller) -> Wire:
        """UpdateOffset."""
        group = caller.group(request.group)
        topic, queue = self._queue(request.message_queue, caller)
        bounds = await self._gatherer.call("bounds", topic, queue)
        if not 0 <= request.offset <= bounds.next_offset:
            raise Refusal(
                "ILLEGAL_OFFSET", f"the offset is {request.offset}, not 0 to {bounds.next_offset}"
            )
        await self._gatherer.call("commit_offset", group, topic, queue, request.offset)
        return ok("UpdateOffsetResponse")

    async def get_offset(self, request: Wire, caller: Caller) -> Wire:
        """GetOffset."""
        group = caller.group(request.group)
        topic, queue = self._queue(request.message_queue, caller)
        try:
            found = await self._gatherer.call("committed_offset", group, topic, queue)
        except GroupNotFound:
            found = None
        if found is None:
            raise Refusal("OFFSET_NOT_FOUND", f"group {group!r} has no offset in that queue")
        answer = ok("GetOffsetResponse")
        answer.offset = found
        return answer

    async def query_offset(self, request: Wire, caller: Caller) -> Wire:
        """QueryOffset."""
        topic, queue = self._queue(request.message_queue, caller)
        policy = request.query_offset_policy
        if policy not in _POLICIES.values():
            raise Refusal("BAD_REQUEST", f"query_offset_policy is {policy}, which is none")
        answer = ok("QueryOffsetResponse")
        if policy == _POLICIES["TIMESTAMP"]:
            if not request.HasField("timestamp"):
                raise Refusal("BAD_REQUEST", "the request asks by time and has no timestamp")
            at = ms_of(request.timestamp)
            answer.offset = await self._gatherer.call("offset_at", topic, queue, at)
            return answer
        bounds = await self._gatherer.call("bounds", topic, queue)
        is_first = policy == _POLICIES["BEGINNING"]
        answer.offset = bounds.min_offset if is_first else bounds.next_offset
        return answer

    def _queue(self, wire: Wire, caller: Caller) -> tuple[str, int]:
        topic = caller.topic(wire.topic, "consume")
        self._store.topic(topic)
        return topic, int(wire.id)
