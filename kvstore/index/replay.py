"""Replay: records that recovery or rebuild found, put into the index tail.

The idea: what a put adds to the tail while it writes, this adds from the log afterwards. Ordinary
queues go on where the index ends; a gap in a queue's offsets (damage was passed over) begins a new
stretch, which needs a tail of its own.

Invariants: an entry's offset is the one written in the record; an offset that the index has already
is not added again."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kvstore.index.index import Index
from kvstore.record.facts import Facts, delay_level_of, facts, keys_of, tag_of, unique_id_of
from kvstore.record.hashes import key_hash, tags_code
from kvstore.record.names import PREPARED, ROLLBACK, SCHEDULE_TOPIC, TRANSACTION_MASK

if TYPE_CHECKING:
    from kvstore.record.check import Buffer


class ReplayTopic(Protocol):
    """What replaying needs of a topic."""

    name: str
    base: int
    since: int
    keys_all: bool
    keys_unique: bool


class Replay:
    """See the module."""

    def __init__(
        self,
        index: Index,
        topic_of: Callable[[bytes, int, int], ReplayTopic | None],
        on_gap: Callable[[int], None],
    ) -> None:
        self._index = index
        self._topic_of = topic_of
        self._on_gap = on_gap
        self.entries = 0
        self.keys = 0
        self.repeated = 0
        """Records whose offset the index had already."""
        self.last_stored = 0
        """The newest store time so far: an entry's is never below it, so that times rise in a run even
        where a clock was stepped back while another program wrote the log.
        """

    def add(self, buffer: Buffer, base: int, positions: array[int], sizes: array[int]) -> None:
        """Add checked records, in log order."""
        for position, size in zip(positions, sizes, strict=True):
            found = facts(buffer, position - base, size)
            self.last_stored = max(self.last_stored, found.stored_at)
            topic = self._topic_of(found.topic, found.queue, position)
            if topic is None or position < topic.since:
                continue
            kind = found.system_flags & TRANSACTION_MASK
            if kind not in (PREPARED, ROLLBACK):
                self._add_entry(topic, found, position, size)
            if kind != ROLLBACK and topic.keys_unique:
                self._add_keys(topic, found.topic, position, found.properties)

    def _add_entry(
        self,
        topic: ReplayTopic,
        f: Facts,
        position: int,
        size: int,
    ) -> None:
        key, offset = topic.base + f.queue, f.offset
        tail = self._index.tails.active.queues.get(key) or self._index.queue_tail(key)
        if offset != tail.next:
            if offset < tail.next:
                self.repeated += 1
                return
            if tail.positions:
                self._on_gap(position)
                tail = self._index.queue_tail(key)
            tail.first = tail.next = offset
        tail.next += 1
        tail.positions.append(position)
        self.entries += 1
        level = delay_level_of(f.properties) if topic.name == SCHEDULE_TOPIC else None
        code = tags_code(topic.name, tag_of(f.properties), level, f.stored_at)
        self._index.tails.active.add((position,), (size,), (code,), self.last_stored)

    def _add_keys(self, topic: ReplayTopic, name: bytes, position: int, properties: bytes) -> None:
        unique = unique_id_of(properties)
        hashes = {key_hash(name, unique)} if unique else set()
        if topic.keys_all:
            hashes.update(key_hash(name, k) for k in keys_of(properties))
        tail = self._index.tails.active
        tail.add_keys(
            (position,),
            [h >> 8 for h in hashes],
            [0] * len(hashes),
            bytes([h & 0xFF for h in hashes]),
        )
        self.keys += len(hashes)
