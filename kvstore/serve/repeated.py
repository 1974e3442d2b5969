"""Puts that are sent again, because the reply to the first time was lost with a server.

The idea: the client gave each message an id before it sent it the first time. A message with this
id that is there is the one that was put: it has its result already. The others are put now. Ids are
looked for in the topic of the message alone: the client may write an id of another one.

Invariants: a message is there once when this returns, unless its topic has no key index; the
results are in the order of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import eq
from typing import Any, Final

from kvstore.api.store import Store
from kvstore.api.topics_part import TopicsPart
from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.arrow.put_rows import columns_of_results
from kvstore.errors import DelayEnded, MessageNotFound, TransactionEnded
from kvstore.message import Message, PutResult, PutStatus, StoredMessage
from kvstore.wire.column_values import SentColumns, columns_of

_ENDED: Final = -1
"""The position of a message that waited, and is not where it waited any more."""


def put_again(store: Store, messages: Sequence[Message]) -> list[PutResult]:
    """See the module; raises as `Store.put_batch`."""
    found = [_find(store, message) for message in messages]
    missing = [m for m, result in zip(messages, found, strict=True) if result is None]
    put = iter(store.put_batch(missing) if missing else ())
    if len(missing) < len(messages) and store.config.flush == "sync":
        store.flush()  # the first time may have been cut short before the disk had it
    return [next(put) if result is None else result for result in found]


def put_columns_again(store: Store, topic: str, columns: ColumnBatch) -> SentColumns:
    """As `put_again`, of rows."""
    given = GivenColumns(columns)
    results = put_again(store, [given.message(topic, row) for row in range(len(given))])
    return columns_of(topic, results, columns_of_results(results))


def prepare_again(store: Store, messages: Sequence[Message], **named: Any) -> list[PutResult]:
    """As `put_again`, of prepared messages. A set whose first messages alone are there is prepared
    once more by itself: a set is put whole, or a crash has cut it.
    """
    found = [_prepared(store, message) for message in messages]
    if named.get("set_id") is not None:
        if all(found):
            return [result for result in found if result is not None]
        return store.prepare_batch(messages, **named)
    missing = [m for m, result in zip(messages, found, strict=True) if result is None]
    put = iter(store.prepare_batch(missing, **named) if missing else ())
    return [next(put) if result is None else result for result in found]


def _find(store: Store, message: Message) -> PutResult | None:
    """The result of a message that was put, if it was."""
    part = TopicsPart(store, partial(eq, message.topic))
    try:
        if message.deliver_at is None and message.delay is None and message.delay_level is None:
            there = part.find(message.message_id or "")
            return _result(there, there.topic, there.offset) if _is_it(message, there) else None
        waits = part.timer(message.message_id or "")
        return _result(waits.message, waits.topic, -1, waits.queue)
    except MessageNotFound:
        return None
    except DelayEnded:
        return _ended(message)


def _prepared(store: Store, message: Message) -> PutResult | None:
    part = TopicsPart(store, partial(eq, message.topic))
    try:
        waits = part.prepared(message.message_id or "")
    except MessageNotFound:
        return None
    except TransactionEnded:
        return _ended(message)
    return _result(waits.message, waits.topic, -1, waits.queue)


def _is_it(message: Message, there: StoredMessage) -> bool:
    """Whether a message that is there is this one: an id that the caller chose may come twice."""
    return message.born_at in (None, there.born_at)


def _result(there: StoredMessage, topic: str, offset: int, queue: int | None = None) -> PutResult:
    return PutResult(
        there.message_id,
        topic,
        there.queue if queue is None else queue,
        offset,
        there.position,
        there.size,
        PutStatus.WRITTEN,
    )


def _ended(message: Message) -> PutResult:
    place = (message.topic, message.queue or 0, -1, _ENDED, 0)
    return PutResult(message.message_id or "", *place, PutStatus.WRITTEN)
