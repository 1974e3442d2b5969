"""Putting messages: from the caller's values to the log and the index tail, under one lock, in one
pass.

The idea: everything that doesn't depend on place is prepared before the lock
(`record.batch.prepare`); under it the batch gets offsets and positions, is copied into the log and
noted in the tail; durability is waited for behind it.

Invariants: a batch that is refused wrote nothing: segments it needs are made before its first byte;
store times never fall; what is in the tail is in the log."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from itertools import repeat

from kvstore.config import StoreConfig
from kvstore.index.index import Index
from kvstore.log.commitlog import CommitLog
from kvstore.log.flusher import Flusher
from kvstore.message import Message, PutResult, PutStatus
from kvstore.meta.topics import Topics
from kvstore.record.batch import Host, encode
from kvstore.record.hosts import pack_host
from kvstore.record.layout import BLANK_SIZE
from kvstore.record.prepare import Limits, Prepared, prepare
from kvstore.record.property_crc import property_crc_suffix
from kvstore.record.uniqueids import UniqueIds


def store_host(config: StoreConfig) -> Host:
    """The host that records of this store carry."""
    return Host(pack_host(config.host, config.port))


class Writer:
    """See the module."""

    def __init__(
        self,
        log: CommitLog,
        index: Index,
        flusher: Flusher,
        topics: Topics,
        config: StoreConfig,
        *,
        last_stored: int,
        checkpoint_now: Callable[[], object],
        wake: threading.Event,
        host: Host,
    ) -> None:
        self._log = log
        self._index = index
        self._flusher = flusher
        self._topics = topics
        self._config = config
        self._clock = config.clock
        self._checkpoint_now = checkpoint_now
        self._wake = wake
        self._tail_due = config.checkpoint_bytes
        self._host = host
        self._ids = UniqueIds(host.packed[:-4], os.getpid(), secrets.randbits(32))
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

    def put_batch(self, messages: Sequence[Message]) -> list[PutResult]:
        """See `Store.put_batch`."""
        log = self._log
        log.check_writable()
        log.check_disk()
        now = self._clock.now_ms()
        batch = prepare(messages, self._topics.for_put, self._ids, now, self._limits)
        if not batch.sizes:
            return []
        total = sum(batch.sizes)
        offsets: list[int] = []
        log.acquire()
        try:
            if log.staging is not None:
                log.staging.check_room(total)
            now = max(now, self.last_stored)
            self.last_stored = now
            if total <= log.room():
                positions = self._append(batch, 0, len(batch.sizes), offsets, now)
            else:
                positions = self._append_rolling(batch, offsets, now)
            tail = self._index.tails.active
            tail.add_keys(positions, batch.key_digests, batch.key_owners, batch.key_bytes)
            end = log.end
        finally:
            log.lock.release()
        self._look_after(end - tail.start)
        if self._sync:
            self._flusher.wait(end)
            status = PutStatus.FLUSHED
        else:
            if log.staging is not None and log.staging.full():
                self._flusher.nudge()
            status = PutStatus.WRITTEN if log.staging is None else PutStatus.STAGED
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

    def _look_after(self, unindexed: int) -> None:
        """See that the tail gets its checkpoint."""
        if unindexed >= self._tail_due:
            self._wake.set()
            if unindexed >= self._tail_max:
                # The housekeeper can't keep up: whoever puts does its work.
                self._checkpoint_now()

    def _append(
        self, batch: Prepared, first: int, stop: int, offsets: list[int], now: int
    ) -> list[int]:
        """Append messages that fit the active segment; returns their positions."""
        log, index = self._log, self._index
        tail = index.tails.active
        data, positions = encode(
            batch,
            first,
            stop,
            log.end,
            now,
            self._host,
            tail.queues,
            index.queue_tail,
            offsets,
            self._suffix,
        )
        tail.add(positions, batch.sizes[first:stop], batch.tag_hashes[first:stop], now)
        log.append(data, stop - first)
        return positions

    def _append_rolling(self, batch: Prepared, offsets: list[int], now: int) -> list[int]:
        """Append messages over the ends of segments."""
        log = self._log
        pieces = list(self._pieces(batch.sizes))
        for number in range(len(pieces)):
            log.segments.create(log.end // log.segment_size + number)
        positions: list[int] = []
        for i, (first, stop) in enumerate(pieces):
            if i:
                log.roll()
            if first < stop:
                positions += self._append(batch, first, stop, offsets, now)
        return positions

    def _pieces(self, sizes: list[int]) -> list[tuple[int, int]]:
        """Which drafts go into the active segment (maybe none), which into each one behind."""
        room = self._log.room()
        pieces = []
        a = 0
        for i, size in enumerate(sizes):
            if size > room:
                pieces.append((a, i))
                a, room = i, self._limits.max_record
            room -= size
        pieces.append((a, len(sizes)))
        return pieces
