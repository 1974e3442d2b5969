"""Copies the messages that a group gave up on to its dead-letter topic.

The idea: a row that was handed out too often is copied, message by message, and then removed. The
copy's unique id is made from the original and its last delivery. Before a copy is put, that id is
looked for. So a crash between the copy and the removal makes no second copy.

Invariant: a copy is on the disk before the row it replaces goes.
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import Final

from kvstore.errors import ArchiveMissing, MessageTooLarge, TopicExists, TopicNotFound
from kvstore.index.keys import LockKey
from kvstore.message import Message, StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic, TopicConfig
from kvstore.pop.context import PopContext
from kvstore.pop.inflight.lock_rows import Lock, offsets_of
from kvstore.pop.inflight.table import Change
from kvstore.read.at_offsets import ReadResult
from kvstore.record.names import (
    DLQ_ATTEMPTS,
    DLQ_LEFT_OUT,
    DLQ_ORIGIN_GROUP,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_OFFSET,
    DLQ_ORIGIN_QUEUE,
    DLQ_ORIGIN_TOPIC,
)

_NAMING: Final = frozenset(
    {
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_GROUP,
        DLQ_ORIGIN_MESSAGE_ID,
        DLQ_ORIGIN_QUEUE,
        DLQ_ORIGIN_OFFSET,
        DLQ_ATTEMPTS,
    }
)
_ID: Final = Struct(">IIIQQ")


class DeadLetters:
    """Buries rows, see the module."""

    def __init__(self, context: PopContext) -> None:
        self._reader = context.reader
        self._finder = context.finder
        self._topics = context.topics
        self._put = context.put

    def bury(
        self, change: Change, topic: Topic, group: GroupInfo, rows: list[tuple[LockKey, Lock]]
    ) -> tuple[list[tuple[int, int]], dict[LockKey, ArchiveMissing]]:
        """Copies the messages of rows to the dead letters, and adds the rows' removal to the
        change. Returns the nonces that end, with their bits; and the rows that stay because an
        archive with one of their messages is missing.
        """
        target = self._topic(group)
        copies = []
        stuck: dict[LockKey, ArchiveMissing] = {}
        for key, lock in rows:
            offsets = offsets_of(key.first, lock.locked)
            found = ReadResult.at_offsets(self._reader, topic, key.queue, offsets, group.name)
            messages = list(found)
            if isinstance(found.unavailable, ArchiveMissing):
                stuck[key] = found.unavailable
                continue
            for message in messages:
                name = _ID.pack(group.id, topic.id, key.queue, message.offset, lock.nonce)
                copy = _copy(message, group.name, target.name, name.hex().upper(), lock.attempts)
                # A copy is no older than its original.
                begin = message.stored_at
                if not self._finder.query(target, str(copy.message_id), begin, None, 1):
                    copies.append(copy)
        self._put_what_fits(copies)
        gone = [(key, lock) for key, lock in rows if key not in stuck]
        for key, lock in gone:
            change.remove(key, lock)
        return [(lock.nonce, lock.locked | lock.moved) for _, lock in gone], stuck

    def _put_what_fits(self, copies: list[Message]) -> None:
        """Puts copies. One that is too large, because of the original's size and the properties
        added to it, is put with only the properties that name the original: a message that can't be
        copied must not hold up a group.
        """
        if not copies:
            return
        try:
            self._put(copies)
        except MessageTooLarge:
            if len(copies) > 1:
                for copy in copies:
                    self._put_what_fits([copy])
                return
            self._put([_without_content(copies[0])])

    def _topic(self, group: GroupInfo) -> Topic:
        name = group.dead_letters
        # By its id in the index a copy that was made is told from one that was not.
        try:
            found = self._topics.get(name)
        except TopicNotFound:
            with suppress(TopicExists):
                self._topics.create([TopicConfig(name=name, queues=1, key_index="all")])
            found = self._topics.get(name)
        if not found.keys_unique:
            self._topics.alter(name, {"key_index": "unique"})
            found = self._topics.get(name)
        return found


def _copy(
    message: StoredMessage, group: str, topic: str, message_id: str, attempts: int
) -> Message:
    origin = {
        DLQ_ORIGIN_TOPIC: message.topic,
        DLQ_ORIGIN_GROUP: group,
        DLQ_ORIGIN_MESSAGE_ID: message.message_id,
        DLQ_ORIGIN_QUEUE: str(message.queue),
        DLQ_ORIGIN_OFFSET: str(message.offset),
        DLQ_ATTEMPTS: str(attempts),
    }
    return Message(
        topic,
        message.body,
        0,
        message.tag,
        message.keys,
        message.user_properties | origin,
        message.message_group,
        message.flags,
        message_id,
        message.born_at,
    )


def _without_content(copy: Message) -> Message:
    """A copy that has only the properties that name the original, and says so."""
    origin = {name: value for name, value in copy.properties.items() if name in _NAMING}
    return Message(
        copy.topic,
        b"",
        copy.queue,
        properties=origin | {DLQ_LEFT_OUT: str(len(copy.body))},
        message_id=copy.message_id,
        born_at=copy.born_at,
    )
