"""Puts messages: from the caller's values to the log and the index tail, under one lock, in one
pass.

The idea: all work that doesn't depend on a message's place is done before the lock
(`record.put.prepare`). Under it the batch gets offsets and positions, is noted in the tail and
copied into the log. The wait for the disk comes after it. The log's `end` moves last, behind all
segments of a batch: nobody sees a row or a byte before that, and until then all of it can be taken
back.

Invariants: a put that is refused changed nothing: no byte in the log, no row in the tail, no offset
given; store times never fall; every row in the tail below the log's end has its record in the log.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from msgspec.structs import astuple

from kvstore.config import StoreConfig
from kvstore.core.records import property_crc_suffix
from kvstore.engine.engine_context import EngineContext
from kvstore.index.keys import QUEUE_MASK
from kvstore.index.tail import Tail
from kvstore.log.commitlog import Piece
from kvstore.log.flusher import Flusher
from kvstore.message import Message, PutResult, PutStatus
from kvstore.pop.inflight.waiting import Waiting
from kvstore.record.ids import UniqueIds, pack_host
from kvstore.record.layout import BLANK_SIZE
from kvstore.record.put.batch import Host, Prepared, PreparedMessage, encode, encode_one, part
from kvstore.record.put.explain import Limits, as_batch
from kvstore.record.put.prepare import prepare, prepare_one
from kvstore.record.put.put_routes import PutRoutes


def store_host(config: StoreConfig) -> Host:
    """The host that records of this store carry."""
    return Host(pack_host(config.host, config.port))


_Begin = tuple[Tail, tuple[int, int, int], int]
"""The tail that a put adds to, its end before, and the log's."""


class Writer:
    """Puts messages into a store; see the module."""

    def __init__(
        self,
        context: EngineContext,
        flusher: Flusher,
        waiting: Waiting,
        *,
        last_stored: int,
        checkpoint_now: Callable[[], object],
    ) -> None:
        config, topics, index = context.config, context.topics, context.index
        self._log = context.log
        self._index = index
        self._flusher = flusher
        self._clock = config.clock
        self._checkpoint_now = checkpoint_now
        self._waiting = waiting
        self._tail_due = config.checkpoint_bytes
        self._host = store_host(config)
        self._routes = PutRoutes(
            topics.find, topics.for_put, topics.create_for_put, index.set_topic_byte
        )
        topics.changed = self._routes.clear
        self._ids = UniqueIds(self._host.packed[:-4], os.getpid(), secrets.randbits(32))
        self._limits = Limits(
            max_body=config.max_body,
            max_record=config.segment_size - BLANK_SIZE,
            max_properties=config.max_properties,
            compress_above=config.compress_above,
            compression=config.compression,
            property_crc=config.property_crc,
        )
        self._suffix = property_crc_suffix if config.property_crc else None
        self._sync = config.flush == "sync"
        self._tail_max = 2 * config.checkpoint_bytes
        self.last_stored = last_stored

    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        queue: int | None,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str],
        message_group: str | None,
        flags: int,
        message_id: str | None,
        born_at: int | None,
    ) -> PutResult:
        """See `Store.put`; takes a `Message`'s fields."""
        now = self._begin()
        if (
            message_group is None
            and message_id is None
            and born_at is None
            and not flags
            and type(flags) is int
        ):
            one = prepare_one(
                topic, body, queue, tag, keys, properties,
                self._routes, self._ids, now, self._limits,
            )  # fmt: skip
            if one is not None:
                return self._put_one(topic, one, now)
        message = Message(
            topic, body, queue, tag, keys, properties, message_group, flags, message_id, born_at
        )
        return self._put_all((message,), now)[0]

    def put_batch(self, messages: Sequence[Message]) -> list[PutResult]:
        """See `Store.put_batch`."""
        now = self._begin()
        if type(messages) is not list and type(messages) is not tuple:
            messages = as_batch(messages)
        if not messages:
            return []
        if len(messages) == 1 and type(messages[0]) is Message:
            return [self.put(*astuple(messages[0]))]
        return self._put_all(messages, now)

    def _begin(self) -> int:
        """Checks that a put is possible; returns its time."""
        log = self._log
        log.check_writable()
        log.check_disk()
        if log.end - self._index.checkpoint.position >= self._tail_max:
            # The housekeeper can't keep up: the put does its work, before anything is written.
            self._checkpoint_now()
        return self._clock.now_ms()

    def _put_all(self, messages: Sequence[Message], now: int) -> list[PutResult]:
        """Put messages, one or more, as columns."""
        log = self._log
        batch = prepare(messages, self._routes, self._ids, now, self._limits)
        total = sum(batch.sizes)
        index = self._index
        log.check_turn()
        begin: _Begin | None = None
        try:
            log.acquire()
            if log.staging is not None:
                log.staging.check_room(total)
            self.last_stored = now = max(now, self.last_stored)
            tail = index.tails.active
            begin = (tail, tail.mark(), log.end)
            offsets = index.allocate_offsets(batch.queue_keys)
            pieces, positions = self._encode(batch, total, offsets, now)
            tail.add(batch.queue_keys, offsets, positions, batch.sizes, batch.tag_hashes, now)
            tail.add_keys(batch.key_text, batch.key_counts)
            self._append(pieces, len(positions))
            end = log.end
        except BaseException:
            self._take_back(begin)
            raise
        finally:
            try:  # noqa: SIM105  # see kvstore.process.locks
                log.lock.release()
            except RuntimeError:
                pass  # it was not taken
        status = self._finish_put(end, end - tail.start)
        if self._waiting.topics:
            self._waiting.arrived(batch.queue_keys)
        return list(
            map(
                PutResult,
                batch.message_ids,
                batch.names,
                batch.queues,
                offsets,
                positions,
                batch.sizes,
                repeat(status),
            )
        )

    def _put_one(self, topic: str, one: PreparedMessage, now: int) -> PutResult:
        """Put a single, ordinary message: the same steps, a quarter of the time."""
        log, index, size, key = self._log, self._index, one.size, one.route.key
        log.check_turn()
        begin: _Begin | None = None
        try:
            log.acquire()
            if log.staging is not None:
                log.staging.check_room(size)
            self.last_stored = now = max(now, self.last_stored)
            tail, before = index.tails.active, log.end
            position = before if size <= log.room() else log.segment_behind(before)
            begin = (tail, tail.mark(), before)
            offset = index.allocate_offset(key)
            data = encode_one(one, offset, position, now, self._host)
            tail.add_one(
                key, offset, position, size, one.tag_hash, now, one.key_text, one.key_count
            )
            if position == before:
                log.append(data, 1)
            else:
                self._append([(before, log.blank_to_end(before)), (position, data)], 1)
            end = log.end
        except BaseException:
            self._take_back(begin)
            raise
        finally:
            try:  # noqa: SIM105  # see kvstore.process.locks
                log.lock.release()
            except RuntimeError:
                pass  # it was not taken
        status = self._finish_put(end, end - tail.start)
        if self._waiting.topics:
            self._waiting.arrived((key,))
        queue = key & QUEUE_MASK
        return PutResult(one.message_id, topic, queue, offset, position, size, status)

    def _finish_put(self, end: int, unindexed: int) -> PutStatus:
        """Ends a put, outside the lock: checkpoints if that is due, waits for the disk."""
        if unindexed >= self._tail_due:
            self._log.prepare_wanted.set()
        if self._sync:
            self._flusher.wait(end)
            return PutStatus.FLUSHED
        staging = self._log.staging
        if staging is None:
            return PutStatus.WRITTEN
        if staging.full():
            self._flusher.wake()
        return PutStatus.STAGED

    def _encode(
        self, batch: Prepared, total: int, offsets: list[int], now: int
    ) -> tuple[list[Piece], list[int]]:
        """Make a batch's records; returns them as pieces of the log, and their positions."""
        log, host, suffix = self._log, self._host, self._suffix
        at = log.end
        if total <= log.room():
            data, positions = encode(batch, at, now, host, offsets, suffix)
            return [(at, data)], positions
        pieces: list[Piece] = []
        positions = []
        for first, stop in self._by_segment(batch.sizes):
            if pieces:
                behind = log.segment_behind(at)
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + log.blank_to_end(at))
                at = behind
            data = b""
            if first < stop:
                some = part(batch, first, stop)
                data, found = encode(some, at, now, host, offsets[first:stop], suffix)
                positions += found
            pieces.append((at, data))
            at += len(data)
        return pieces, positions

    def _append(self, pieces: list[Piece], count: int) -> None:
        """Put the pieces of `count` messages into the log."""
        position, data = pieces[-1]
        if len(pieces) == 1:
            self._log.append(data, count)
        else:
            self._log.append_pieces(pieces, position + len(data), count)

    def _take_back(self, begin: _Begin | None) -> None:
        """Undo the work of a failed put beside the log, which has undone its own part."""
        if begin is None:
            return
        tail, mark, before = begin
        if self._log.end == before:
            tail.cut(mark)
            self._index.forget_offsets()

    def _by_segment(self, sizes: list[int]) -> list[tuple[int, int]]:
        """Which messages go into the active segment (maybe none), and which into each one
        behind.
        """
        room = self._log.room()
        parts = []
        a = 0
        for i, size in enumerate(sizes):
            if size > room:
                parts.append((a, i))
                a, room = i, self._limits.max_record
            room -= size
        parts.append((a, len(sizes)))
        return parts
