"""Putting messages: from the caller's values to the log and the index tail, under one lock, in one pass.

The idea: everything that doesn't depend on place is prepared before the lock (`record.batch.prepare`); under it the batch
gets offsets and positions, is copied into the log and noted in the tail; durability is waited for behind it.

Invariants: a batch that is refused wrote nothing: segments it needs are made before its first byte; store times never fall;
what is in the tail is in the log.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

from kvstore.config import StoreConfig
from kvstore.index.index import Index
from kvstore.log.commitlog import CommitLog
from kvstore.log.flusher import Flusher
from kvstore.message import Message, PutResult, PutStatus
from kvstore.meta.topics import Topics
from kvstore.record.batch import Draft, Host, Limits, UniqueIds, encode, positions_of, prepare
from kvstore.record.hosts import pack_host
from kvstore.record.layout import BLANK_SIZE
from kvstore.record.property_crc import property_crc_suffix

_size: Final = itemgetter(2)
_tag_hash: Final = itemgetter(6)
_hashes: Final = itemgetter(11)


def store_host(config: StoreConfig) -> Host:
    """The host that records of this store carry."""
    return Host(pack_host(config.host, config.port))


class Writer:
    """See the module."""

    def __init__(
        self, log: CommitLog, index: Index, flusher: Flusher, topics: Topics, config: StoreConfig, *,
        last_stored: int, checkpoint_now: Callable[[], object], wake: threading.Event, host: Host,
    ) -> None:  # fmt: skip
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
        drafts = prepare(messages, self._topics.for_put, self._ids, now, self._limits)
        if not drafts:
            return []
        sizes = list(map(_size, drafts))
        total = sum(sizes)
        offsets: list[int] = []
        log.acquire()
        try:
            if log.staging is not None:
                log.staging.check_room(total)
            if now < self.last_stored:
                now = self.last_stored
            self.last_stored = now
            if total <= log.room():
                positions = self._append(drafts, sizes, offsets, now)
            else:
                positions = self._append_rolling(drafts, sizes, offsets, now)
            end = log.end
            start = self._index.tails.active.start
        finally:
            log.lock.release()
        if end - start >= self._tail_due:
            self._wake.set()
            if end - start >= self._tail_max:
                # The housekeeper can't keep up: whoever puts does its work.
                self._checkpoint_now()
        if self._sync:
            self._flusher.wait(end)
            status = PutStatus.FLUSHED
        else:
            if log.staging is not None and log.staging.full():
                self._flusher.nudge()
            status = PutStatus.WRITTEN
        return [
            PutResult(d[7], d[0].name, d[1], offset, position, d[2], status)
            for d, offset, position in zip(drafts, offsets, positions, strict=True)
        ]

    def _append(
        self, drafts: Sequence[Draft], sizes: list[int], offsets: list[int], now: int
    ) -> list[int]:
        """Append drafts that fit the active segment; returns their positions."""
        log, tail = self._log, self._index.tails.active
        position = log.end
        data = encode(
            drafts,
            position,
            now,
            self._host,
            self._index.queue_tail,
            tail.queues,
            offsets,
            self._suffix,
        )
        positions = positions_of(sizes, position)
        tail.add(positions, sizes, list(map(_tag_hash, drafts)), now)
        tail.add_keys(positions, list(map(_hashes, drafts)))
        log.append(data, len(drafts))
        return positions

    def _append_rolling(
        self, drafts: Sequence[Draft], sizes: list[int], offsets: list[int], now: int
    ) -> list[int]:
        """Append drafts over the ends of segments."""
        log = self._log
        pieces = list(self._pieces(sizes))
        for number in range(len(pieces)):
            log.segments.create(log.end // log.segment_size + number)
        positions: list[int] = []
        for i, (a, b) in enumerate(pieces):
            if i:
                log.roll()
            if a < b:
                positions += self._append(drafts[a:b], sizes[a:b], offsets, now)
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
