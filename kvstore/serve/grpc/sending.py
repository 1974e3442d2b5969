"""Sending: SendMessage, EndTransaction and RecallMessage.

The idea: each message of a request is checked by itself, and the good ones are put together by the
gatherer; each has an entry in the answer, in the order of the request. The core reads the messages
from the request's bytes, and writes the answer's bytes from the results. A message of a transaction
is prepared, under its topic as the producer group: clients of this protocol have no groups, and any
producer of the topic may be asked about it later.

Invariants:

- An illegal message fails alone.
- Messages that wait to be put are bounded, all together.
- An entry that says OK is as safe as a put of the store that returned.
- A recall handle names one message of one topic, and is refused for another. A message is recalled,
  and a transaction ended, only in the topic that the request names.
- A transaction id names one prepared message, also where several have one message id.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from operator import eq
from typing import Any, Final

from kvstore.api.store import Store
from kvstore.api.topics_part import TopicsPart
from kvstore.core.transport.send_calls import Resource, SentMessage, pack_send_response
from kvstore.errors import (
    CallerError,
    MessageNotFound,
    StoreBusy,
    StoreClosed,
    StoreError,
)
from kvstore.message import Message, PutResult, PutStatus
from kvstore.meta.topics import TopicInfo
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.brokers import BROKER, Brokers
from kvstore.serve.grpc.caller import Caller
from kvstore.serve.grpc.orphan_checks import TRANSACTION_ID_MARK, OrphanChecks, transaction_id
from kvstore.serve.grpc.protocol.answers import OK, Refusal, ok, status_of, summed_up
from kvstore.serve.grpc.protocol.incoming import DoorLimits, check_type, message_to_put, type_of
from kvstore.serve.grpc.protocol.wire import NUMBERS, Wire
from kvstore.serve.replies.open_calls import OpenCall
from kvstore.timing.prepared_list import Handle

_RESOLUTIONS: Final = NUMBERS["TransactionResolution"]
_ENDS: Final = {_RESOLUTIONS["COMMIT"]: "commit", _RESOLUTIONS["ROLLBACK"]: "rollback"}
_VERSION: Final = "v1"
_DIGITS_MAX: Final = 18
_MESSAGE_EXTRA: Final = 512
"""Bytes of memory that a message takes beside its body, about."""

_OK_STATUS: Final = (OK, "OK")
_WITH_HANDLES: Final = frozenset({"DELAY", "TRANSACTION"})
"""The types of messages whose entries have more than an id and an offset."""
Entry = tuple[int, str, str, str, int, str]
"""An entry of an answer, as `pack_send_response` takes it."""
Answered = Callable[[bytes], None]
"""Takes the answer of a call, once."""
Outcome = PutResult | BaseException
Checked = tuple[str, Message, int | None]
"""A message's type, the message, and the immunity of a transaction's in milliseconds."""


class Sending:
    """The calls of producers; see the module."""

    def __init__(
        self,
        store: Store,
        gatherer: Gatherer,
        orphans: OrphanChecks,
        brokers: Brokers,
        limits: DoorLimits,
    ) -> None:
        self._store = store
        self._gatherer = gatherer
        self._brokers = brokers
        self._orphans = orphans
        self._limits = limits
        self._clock = store.config.clock
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, sent: list[SentMessage], caller: Caller, answered: Answered) -> None:
        """SendMessage. It has no task of its own unless there is more to do than one put."""
        if not sent:
            raise Refusal("MESSAGE_CORRUPTED", "the request has no message")
        if self._gatherer.room() is not None:
            # A client tries again after that, and so waits outside of this process's memory.
            raise StoreBusy("too many messages wait to be put; send these again")
        checked = self._checked(sent, caller)
        plain = [one[1] for one in checked if type(one) is tuple and one[0] != "TRANSACTION"]
        if len(plain) < len(checked):
            self._begin(self._send_each(sent, checked, answered))
            return
        put = self._put(plain)
        put.add_done_callback(partial(self._sent, sent, checked, answered))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sent(
        self,
        sent: Sequence[SentMessage],
        checked: Sequence[Checked | StoreError],
        answered: Answered,
        put: OpenCall[list[PutResult]],
    ) -> None:
        """Answers when the messages of a request were put together."""
        error = None if put.cancelled() else put.exception()
        if error is None and not put.cancelled():
            answered(_answer(sent, checked, put.result()))
        elif isinstance(error, CallerError) and len(checked) > 1:
            self._begin(self._send_each(sent, checked, answered))
        else:
            answered(
                _answer(sent, checked, [error or StoreClosed("the server ends")] * len(checked))
            )

    async def _send_each(
        self,
        sent: Sequence[SentMessage],
        checked: Sequence[Checked | StoreError],
        answered: Answered,
    ) -> None:
        """Puts each message by itself, for some of them are illegal, or are prepared."""
        put = [self._put_one(*one) for one in checked if type(one) is tuple]
        outcomes = iter(await asyncio.gather(*put))
        found = [one if isinstance(one, StoreError) else next(outcomes) for one in checked]
        answered(_answer(sent, checked, found))

    def _checked(self, sent: Sequence[SentMessage], caller: Caller) -> list[Checked | StoreError]:
        found: list[Checked | StoreError] = []
        now_ms = self._clock.now_ms()
        resource: Resource | None = None
        info: TopicInfo | None = None
        for one in sent:
            try:
                if info is None or one.resource is not resource:
                    info = None
                    info = self._store.topic(caller.topic(one.resource, "produce"))
                    resource = one.resource
                kind = type_of(one.message_type, one.carried)
                check_type(kind, info)
                message = message_to_put(one, kind, info, self._limits, now_ms)
            except StoreError as e:
                found.append(e)
            else:
                found.append((kind, message, one.recovery_ms))
        return found

    def _put(self, messages: list[Message]) -> OpenCall[list[PutResult]]:
        size = sum(len(m.body) for m in messages) + _MESSAGE_EXTRA * len(messages)
        return self._gatherer.put(messages, size)

    async def _put_one(self, kind: str, message: Message, immunity_ms: int | None) -> Outcome:
        try:
            if kind != "TRANSACTION":
                return (await self._put([message]))[0]
            self._orphans.watch(message.topic)
            immunity = immunity_ms / 1000 if immunity_ms else None
            (found,) = await self._gatherer.call(
                "prepare_batch", (message,), group=message.topic, immunity=immunity
            )
        except Exception as e:
            return e  # any other error than the store's is logged where it is answered
        prepared: PutResult = found
        return prepared

    async def end_transaction(self, request: Wire, caller: Caller) -> Wire:
        """EndTransaction."""
        topic = caller.topic(request.topic, "produce")
        named = request.transaction_id or request.message_id
        if not named:
            raise Refusal("INVALID_TRANSACTION_ID", "the request names no transaction")
        handle = read_transaction_id(named) if request.transaction_id else named
        end = _ENDS.get(request.resolution)
        if end is None:
            raise Refusal("BAD_REQUEST", "the resolution is neither COMMIT nor ROLLBACK")
        try:
            await self._gatherer.call_of(self._part(topic), end, handle)
        except MessageNotFound as e:
            raise Refusal("INVALID_TRANSACTION_ID", str(e)) from None
        return ok("EndTransactionResponse")

    async def recall(self, request: Wire, caller: Caller) -> Wire:
        """RecallMessage."""
        topic = caller.topic(request.topic, "produce")
        named, message_id = read_recall_handle(request.recall_handle)
        if named != topic:
            raise Refusal(
                "ILLEGAL_TOPIC", f"the handle is of a message to {named!r}, not {topic!r}"
            )
        try:
            was_cancelled = await self._gatherer.call_of(self._part(topic), "cancel", message_id)
        except MessageNotFound:
            # The client names no broker: it asks the one whose address it was given.
            was_cancelled = await self._brokers.cancel(topic, message_id)
        if not was_cancelled:
            raise Refusal("MESSAGE_NOT_FOUND", f"the message {message_id!r} was delivered already")
        answer = ok("RecallMessageResponse")
        answer.message_id = message_id
        return answer

    def _part(self, topic: str) -> TopicsPart:
        """One topic's messages alone: a client writes ids and handles as it likes."""
        return TopicsPart(self._store, partial(eq, topic))


def _answer(
    sent: Sequence[SentMessage],
    checked: Sequence[Checked | StoreError],
    outcomes: Sequence[Outcome],
) -> bytes:
    """The answer to a send, with an entry for each message."""
    entries = [
        outcome
        if type(outcome) is PutResult and type(one) is tuple and one[0] not in _WITH_HANDLES
        else _entry(message.message.message_id or "", one, outcome)
        for message, one, outcome in zip(sent, checked, outcomes, strict=True)
    ]
    statuses = (one[:2] if type(one) is tuple else _OK_STATUS for one in entries)
    return pack_send_response(*summed_up(statuses), entries)


def _entry(message_id: str, checked: Checked | StoreError, outcome: Outcome) -> Entry:
    if isinstance(outcome, BaseException):
        return (*status_of(outcome), message_id, "", 0, "")
    assert isinstance(checked, tuple)
    kind, message, _ = checked
    found = outcome.message_id
    transaction = transaction_id(found, outcome.position) if kind == "TRANSACTION" else ""
    handle = recall_handle(message, found) if kind == "DELAY" else ""
    return (*_OK_STATUS, found, transaction, max(outcome.offset, 0), handle)


def read_transaction_id(text: str) -> Handle:
    """The prepared message that a transaction id names; one without a position names those that
    have it as their id.
    """
    message_id, _, position = text.rpartition(TRANSACTION_ID_MARK)
    is_position = position.isascii() and position.isdecimal()
    if not message_id or not is_position or len(position) > _DIGITS_MAX:
        return text
    return PutResult(message_id, "", -1, -1, int(position), 0, PutStatus.WRITTEN)


def recall_handle(message: Message, message_id: str) -> str:
    """The handle that recalls a delayed message, in RocketMQ's form."""
    text = f"{_VERSION} {message.topic} {BROKER} {message.deliver_at} {message_id}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def read_recall_handle(handle: str) -> tuple[str, str]:
    """The topic and id of the message; `Refusal` if the text is no handle."""
    try:
        raw = base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True)
        version, topic, _, _, message_id = raw.decode().split(" ")
    except (binascii.Error, ValueError):
        version = topic = message_id = ""
    if version != _VERSION or not topic or not message_id:
        raise Refusal(
            "INVALID_RECEIPT_HANDLE",
            f"{handle[:80]!r} is no recall handle; give the one that the send returned",
        )
    return topic, message_id
