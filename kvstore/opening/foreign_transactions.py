"""Foreign transactions: messages that RocketMQ prepared, and whose transactions had not ended when
its store was adopted.

The idea: RocketMQ has prepared messages in one topic, and in another the answers, by a commit or by
a rollback: offsets of the first topic's queue. (With its transactions in RocksDB it has two topics
more, whose answers name positions.) To ask a producer, it puts the message again with one check
more, and goes on behind the first record; of the records with one id the last counts. It writes an
answer seconds after the commit, and its progress every few seconds, so after a crash the log is
searched for the commit.

Invariants: a transaction waits here once; none waits whose message was answered, committed, given
up, or put to wait here before (`foreign_messages`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.clock import whole_ms
from kvstore.config import StoreConfig
from kvstore.core.names import (
    COMMIT,
    ROCKSDB_TRANSACTION_HALF_TOPIC,
    ROCKSDB_TRANSACTION_OP_TOPIC,
    TRANSACTION_CHECK_MS,
    TRANSACTION_CHECKS,
    TRANSACTION_DISCARD_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_IMMUNITY,
    TRANSACTION_MASK,
    TRANSACTION_OP_TOPIC,
    TRANSACTION_POSITION,
    TRANSACTION_ROLLBACK,
    TRANSACTION_SET,
)
from kvstore.core.pending.pending_records import read_pending
from kvstore.index.keys import FOREIGN_TRANSACTIONS
from kvstore.message import StoredMessage
from kvstore.opening.foreign_messages import (
    ByQueue,
    Foreign,
    ForeignMessages,
    Progress,
    Returned,
    drop,
    foreign_of,
    number_of,
)
from kvstore.timing.pending_messages import PendingMessages, TimingContext
from kvstore.timing.transactions import IMMUNITY_MAX

I64 = NDArray[np.int64]
_ANSWERED: Final = "d"
"""The tag of an answer."""
_ENDED: Final = f"{TRANSACTION_ROLLBACK}\x01elsewhere\x02".encode()
"""The property of a note that a transaction ended in RocketMQ."""


class _Prepared(NamedTuple):
    """A record of a prepared message, and whether its transaction needs no check by RocketMQ."""

    message: StoredMessage
    is_answered: bool
    is_passed: bool


class ForeignTransactions:
    """Puts the messages; see the module."""

    def __init__(
        self,
        context: TimingContext,
        pending: PendingMessages,
        progress: Progress,
        config: StoreConfig,
    ) -> None:
        self._topics = context.topics
        self._foreign = ForeignMessages(
            context, pending, FOREIGN_TRANSACTIONS, TRANSACTION_CHECK_MS, _ENDED
        )
        self._progress = progress
        self._config = config

    def put(self) -> int:
        """Puts those whose transactions had not ended, so that they wait here, unless that was
        done. Returns how many.
        """
        return self._foreign.put(self._waiting, self._returned, "prepared")

    def _returned(self) -> Iterator[Returned]:
        """The records of this store whose transactions RocketMQ ended, or asked about, which puts
        them once more. It asked about each message of a set by itself, so those that are left end
        by themselves here.
        """
        found: dict[str, tuple[Foreign, StoredMessage]] = {}
        passed, ended = set[str](), set[str]()
        for message, is_answered, is_passed in self._in_queues():
            one = self._foreign.own(message)
            if one is None:
                continue
            message_id = one.message_id
            if message_id in found:
                before = found[message_id][0]
                yield Returned(before, "moved")
                one = one._replace(since=before.since, stored_at=before.stored_at)
            found[message_id] = one, message
            (passed.add if is_passed else passed.discard)(message_id)
            if is_answered:
                ended.add(message_id)
        by_queue = _by_queue(one for one, _ in found.values())
        self._foreign.drop_delivered(by_queue, _is_commit_of)
        given_up = {one.message_id for one in self._foreign.of_topic(TRANSACTION_DISCARD_TOPIC)}
        for message_id, (one, message) in found.items():
            if message_id not in by_queue[one.topic, one.queue]:
                yield Returned(one, "moved")
            elif message_id in ended | passed | given_up:
                yield Returned(one, "dropped")
            elif TRANSACTION_SET in message.properties:
                yield Returned(one, "alone", self._due(message))

    def _waiting(self) -> set[Foreign]:
        """The messages whose transactions RocketMQ still has to end."""
        by_id: dict[str, Foreign] = {}
        for records in (self._in_queues, self._in_rocksdb):
            self._look_through(records, by_id)
        for message in self._foreign.of_topic(TRANSACTION_DISCARD_TOPIC):
            drop(by_id, message)
        by_queue = _by_queue(by_id.values())
        self._foreign.drop_delivered(by_queue, _is_commit_of)
        return {one for of_queue in by_queue.values() for one in of_queue.values()}

    def _look_through(
        self, records: Callable[[], Iterator[_Prepared]], by_id: dict[str, Foreign]
    ) -> None:
        """Notes the last record of each message that was not answered."""
        passed: set[str] = set()
        for message, is_answered, is_passed in records():
            if _is_ours(message):
                by_id.pop(message.message_id, None)
                passed.discard(message.message_id)
                continue
            found = None if is_answered else foreign_of(message, self._due(message))
            if found is None:
                continue
            before = by_id.get(found.message_id)
            if before is not None:
                found = found._replace(since=before.since, stored_at=before.stored_at)
            by_id[found.message_id] = found
            (passed.add if is_passed else passed.discard)(found.message_id)
        for message_id in passed:
            del by_id[message_id]
        # A late answer names the first record, also where the message was put again meanwhile.
        for message, is_answered, _ in records() if by_id else ():
            if is_answered and not _is_ours(message):
                by_id.pop(message.message_id, None)

    def _in_queues(self) -> Iterator[_Prepared]:
        """The prepared messages whose answers name offsets."""
        topic = self._topics.find(TRANSACTION_HALF_TOPIC)
        answers = self._topics.find(TRANSACTION_OP_TOPIC)
        for queue in range(0 if topic is None else topic.read_queues):
            assert topic is not None
            done = np.empty(0, np.int64)
            if answers is not None and queue < answers.read_queues:
                done = _sorted(_offsets_in(self._foreign.of_queue(answers, queue, 0)))
            passed = self._progress(topic, queue)
            for message in self._foreign.of_queue(topic, queue, 0):
                offset = message.offset
                yield _Prepared(message, _has(done, offset), offset < passed)

    def _in_rocksdb(self) -> Iterator[_Prepared]:
        """The prepared messages whose answers name positions."""
        answers = self._foreign.of_topic(ROCKSDB_TRANSACTION_OP_TOPIC)
        done = _sorted(number_of(one, TRANSACTION_POSITION) for one in answers)
        for message in self._foreign.of_topic(ROCKSDB_TRANSACTION_HALF_TOPIC):
            yield _Prepared(message, _has(done, message.position), is_passed=False)

    def _due(self, message: StoredMessage) -> int:
        """When a producer is to be asked, in ms: as if the message had been prepared, or asked
        about, by this store when RocketMQ stored it.
        """
        if number_of(message, TRANSACTION_CHECKS) > 0:
            seconds = self._config.transaction_check_interval
        else:
            given = number_of(message, TRANSACTION_IMMUNITY)
            seconds = self._config.transaction_immunity if given < 0 else min(given, IMMUNITY_MAX)
        return message.stored_at + whole_ms(seconds)


def _by_queue(found: Iterable[Foreign]) -> ByQueue:
    """Messages by the queues that they go to."""
    by_queue: ByQueue = {}
    for one in found:
        by_queue.setdefault((one.topic, one.queue), {})[one.message_id] = one
    return by_queue


def _is_ours(message: StoredMessage) -> bool:
    """Whether a record of the topic of prepared messages is one of this store."""
    has_ended = TRANSACTION_ROLLBACK in message.properties
    return has_ended or read_pending(message.raw_properties) is not None


def _is_commit_of(message: StoredMessage, one: Foreign) -> bool:
    """Whether a record is the commit that RocketMQ wrote of a message; those without a unique id
    have no id in common.
    """
    is_commit = message.system_flags & TRANSACTION_MASK == COMMIT
    return is_commit and message.prepared_position == one.position


def _offsets_in(answers: Iterator[StoredMessage]) -> Iterator[int]:
    """The offsets that answers name."""
    for message in answers:
        if message.tag == _ANSWERED:
            for digits in message.body.split(b","):
                if digits.isdigit() and len(digits) < len(str(1 << 63)):
                    yield int(digits)


def _sorted(numbers: Iterator[int]) -> I64:
    """The numbers, each once, in order; they may be as many as there were transactions."""
    return np.unique(np.fromiter(numbers, np.int64))


def _has(numbers: I64, one: int) -> bool:
    at = int(np.searchsorted(numbers, one))
    return at < len(numbers) and int(numbers[at]) == one
