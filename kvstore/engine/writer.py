"""Puts messages: from the caller's values to the log and the index tail, under one lock, in one
pass.

The idea: all work that doesn't depend on a message's place is done before the lock
(`core.encoding`). Under it the batch gets offsets and positions, is noted in the tail and copied
into the log. The wait for the disk comes after it. The log's `end` moves last, behind all segments
of a batch: nobody sees a row or a byte before that, and until then the whole batch can be taken
back.

Nearly all puts find the store as the put before left it. So a put compares the log's end, and the
time, with the place from which it has to look at the rest: at the disk, at how far the checkpoint
is, at the next segment. It looks there, and notes the next such place.

Invariants: a put that is refused changed nothing: no byte in the log, no row in the tail, no offset
given; store times never fall; every row in the tail below the log's end has its record in the log.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kvstore.clock import cut_ms
from kvstore.config import StoreConfig
from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.arrow.put_rows import prepare_columns
from kvstore.core.encoding import Encoder, PreparedBatch
from kvstore.core.names import RESERVED, TRANSIENT_PREFIX
from kvstore.core.queue_offsets import count_closing, late_targets
from kvstore.core.tail import Tail
from kvstore.core.unique_ids import UniqueIds
from kvstore.engine.engine_context import EngineContext
from kvstore.engine.repeats import Repeats, end_of
from kvstore.errors import MessageIllegal, StoreError, TopicNotFound, shown
from kvstore.log.flusher import Flusher
from kvstore.message import ColumnsPut, Firsts, Message, PutResult, PutStatus, with_firsts
from kvstore.pop.inflight.waiting import Waiting
from kvstore.record.compression import compressed
from kvstore.record.ids import PORT, pack_host
from kvstore.record.layout import BLANK_SIZE
from kvstore.record.put.explain import Limits, Rows, as_batch, explain
from kvstore.record.put.put_routes import PutRoutes

if TYPE_CHECKING:
    from kvstore.core.dedup.known_ids import Found

_WRITTEN: Final = PutStatus.WRITTEN
_FLUSHED: Final = PutStatus.FLUSHED
"""A member of an Enum takes 0.1 us to look up."""
_LOOK_MS: Final = 1000
_LOOK_BYTES: Final = 1 << 20
"""A put looks at the disk once in so long a time, and once for so many bytes of the log: a small
disk has filled up long before a second is over.
"""


def store_host(config: StoreConfig) -> bytes:
    """The host that records of this store carry, packed."""
    return pack_host(config.host, config.port)


class Writer:
    """Puts messages into a store; see the module."""

    def __init__(
        self,
        context: EngineContext,
        flusher: Flusher,
        waiting: Waiting,
        repeats: Repeats,
        *,
        last_stored: int,
        checkpoint_now: Callable[[], object],
    ) -> None:
        config, topics, index = context.config, context.topics, context.index
        self._log = context.log
        self._lock = context.log.lock
        self._index = index
        self._flusher = flusher
        self._clock = config.clock
        self._checkpoint_now = checkpoint_now
        self._waiting = waiting
        self._repeats = repeats
        host = store_host(config)
        self._routes = PutRoutes(
            topics.find,
            topics.for_put,
            topics.create_for_put,
            index.set_topic_byte,
            topics.make_pending_topic,
        )
        topics.changed = self._routes.clear
        topics.while_nobody_puts = self._while_nobody_puts
        self._closed = topics.closed
        ids = UniqueIds(host[: -PORT.size], os.getpid(), secrets.randbits(32))
        self._limits = Limits(
            max_body=config.max_body,
            max_record=config.segment_size - BLANK_SIZE,
            max_properties=config.max_properties,
            compress_above=config.compress_above,
            compression=config.compression,
            property_crc=config.property_crc,
            any_time=config.any_time,
            cut_ms=cut_ms(config.clock),
        )
        self.encoder = Encoder(
            self._routes,
            ids,
            compressed,
            host,
            reserved=RESERVED,
            transient=TRANSIENT_PREFIX.encode(),
            **self._limits._asdict(),
        )
        self._tail_due = config.checkpoint_bytes
        self._tail_max = 2 * config.checkpoint_bytes
        self.last_stored = last_stored
        self._status = _WRITTEN
        if config.flush == "sync":
            self._status = _FLUSHED
        elif context.log.staging is not None:
            self._status = PutStatus.STAGED
        self._look_from = self._look_until = self._look_at = 0
        """The times in ms, and the log's end, between which a put need not look at the disk."""
        self._due_at = 0
        """The log's end from which on the housekeeper has something to do."""
        self.on_delayed: Callable[[int], None] = lambda due: None
        """Called behind a put of messages that wait, with the first of their due times, ms."""

    def put_batch(self, messages: Sequence[Message], *, any_kind: bool = False) -> list[PutResult]:
        """See `Store.put_batch`. With `any_kind` a topic takes them whatever its kind: dead letters
        go to the topic that the group names, and go back to theirs.
        """
        now = self.begin_put()
        if type(messages) is not list and type(messages) is not tuple:
            messages = as_batch(messages)
        if not messages:
            return []
        batch = self.encode(messages, now, any_kind=any_kind)
        try:
            if batch.deduped:
                status, firsts = self._put_once(batch, now)
                return with_firsts(batch.results(status), firsts, status)
            return batch.results(self._settle(batch, self._append(batch, now)))
        except TopicNotFound:
            # It was deleted since; now the batch finds it missing, or it is made anew.
            return self.put_batch(messages, any_kind=any_kind)

    def put_now(self, messages: list[Message]) -> list[PutResult] | None:
        """As `put_batch`, if nothing has to be waited for: no other thread, no disk, no look at an
        earlier message. None if something may have to be: then nothing was put.
        """
        log, now = self._log, self._clock.now_ms()
        if (
            self._status is not _WRITTEN
            or log.closed
            or log.failure is not None
            or log.end >= self._look_at
            or not self._look_from <= now < self._look_until
        ):
            return None
        try:
            for message in messages:
                if message.topic not in self._routes or message.dedup_id is not None:
                    return None
            batch = self.encoder.prepare(messages, now)
        except (AttributeError, LookupError, TypeError, ValueError, StoreError):
            return None  # `put_batch` says why it is refused
        try:
            end = self._append(batch, now, waits=False)
        except TopicNotFound:
            return None
        return None if end < 0 else batch.results(self._settle(batch, end))

    def put_columns(self, topic: str, columns: object) -> ColumnsPut:
        """See `Store.put_columns`."""
        now = self.begin_put()
        if not isinstance(topic, str):
            raise MessageIllegal(f"the topic is {shown(topic)}; it must be a text")
        given = _given_columns(columns)
        while True:
            batch = self._prepared_columns(topic, given, now)
            # A topic that was deleted since is missing in the next turn, or is made anew.
            with suppress(TopicNotFound):
                if batch.deduped:
                    return ColumnsPut(batch, *self._put_once(batch, now))
                return ColumnsPut(batch, self.put(batch, now) if len(batch) else _WRITTEN)

    def _while_nobody_puts(self, close: Callable[[], None]) -> None:
        """Closes queues between two puts; batches that were encoded before look whether theirs are
        among them.
        """
        with self._lock:
            close()
            count_closing(self.encoder)

    def begin_put(self) -> int:
        """Checks that the store takes a put now; the time, ms."""
        log = self._log
        now = self._clock.now_ms()
        if log.closed or log.failure is not None:
            log.check_writable()
        if log.end >= self._look_at or not self._look_from <= now < self._look_until:
            self._look(now)
        return now

    def _look(self, now: int) -> None:
        """Looks at the disk, and whether too much of the log is not checkpointed. While puts are
        refused each of them looks.
        """
        log, index = self._log, self._index
        log.check_disk()
        if log.end - index.checkpoint.position >= self._tail_max:
            # The housekeeper can't keep up: the put does its work, before anything is written.
            self._checkpoint_now()
        self._look_at = min(log.end + _LOOK_BYTES, index.checkpoint.position + self._tail_max)
        self._look_from, self._look_until = now, now + _LOOK_MS

    def put(self, batch: PreparedBatch, now: int) -> PutStatus:
        """Puts records; then the batch has its results."""
        return self._settle(batch, self._append(batch, now))

    def _put_once(self, batch: PreparedBatch, now: int) -> tuple[PutStatus, Firsts]:
        """Puts the messages of a batch that repeat no dedup id; the first messages of the others
        are in the result. Ids that may be repeats are compared without the lock, and then the rest
        is tried again, since another thread may have put one of its ids meanwhile.
        """
        firsts: Firsts = {}
        status = self._status
        self._repeats.ids.fetch(batch)
        while batch.count:
            found: list[Found] = []
            end = self._append(batch, now, found)
            if not found:
                status = self._settle(batch, end)
                break
            firsts |= self._repeats.take_out(batch, found, max(now, self.last_stored))
        if firsts and status is _FLUSHED:
            self._flusher.wait(end_of(firsts))
        return status, firsts

    def _append(
        self,
        batch: PreparedBatch,
        now: int,
        repeats: list[Found] | None = None,
        *,
        waits: bool = True,
    ) -> int:
        """Gives records their places, and puts them there; the position behind them. If that fails,
        the log has undone its own part, and the rest is undone here. With a list of `repeats` their
        dedup ids are looked for first; if the list gets some, nothing is put. Unless it `waits`, -1
        if another thread has the lock, or the disk has no blocks yet.
        """
        log, lock, offsets = self._log, self._lock, self._index.offsets
        log.check_turn()
        tail: Tail | None = None
        begin = -1
        try:
            if not lock.acquire(False):
                if not waits:
                    return -1
                log.wait_turn()
            if log.closed or log.failure is not None:
                log.check_writable()
            self._closed.check(late_targets(batch, self.encoder))
            self.last_stored = now = max(now, self.last_stored)
            begin = log.end
            if repeats is not None and self._may_repeat(batch, now, begin, repeats):
                return begin
            if (log.staging is not None or not waits) and not self._has_room(batch, waits=waits):
                return -1
            tail = self._index.tails.active
            pieces = tail.add(batch, offsets, begin, log.segment_size, now)
            if repeats is not None:
                self._repeats.ids.add(batch)
            log.append(pieces, len(batch))
            return log.end
        except BaseException:
            if tail is not None and log.end == begin:
                tail.take_back(batch, offsets, begin)
            raise
        finally:
            try:  # noqa: SIM105  # see kvstore.process.locks
                lock.release()
            except RuntimeError:
                pass  # it was not taken

    def arriving(self, newest: int) -> int:
        """Prepares for messages that come from elsewhere, perhaps with dedup ids, the newest of
        them stored at that time, ms: raises the log's time to it. Returns the log's time; under
        the log's lock.
        """
        self.last_stored = max(self.last_stored, newest)
        self._repeats.ids.arriving(self.last_stored, self._log.end)
        return self.last_stored

    def _may_repeat(self, batch: PreparedBatch, now: int, end: int, found: list[Found]) -> bool:
        """Whether ids of a batch may have been put before the log's end; `found` gets those."""
        found += self._repeats.ids.find(batch, now, end)
        return bool(found)

    def _has_room(self, batch: PreparedBatch, *, waits: bool) -> bool:
        """Whether the disk has blocks for a batch, or the put waits for them. `StoreBusy` if the
        write buffer has no room.
        """
        log, size = self._log, len(batch.records)
        if not waits and not log.has_room(size):
            return False
        if log.staging is not None:
            log.staging.check_room(size)
        return True

    def _settle(self, batch: PreparedBatch, end: int) -> PutStatus:
        """Tells everybody who waits for records that were put, and waits for the disk if that was
        asked for.
        """
        if end >= self._due_at:
            self._wake_housekeeper(end)
        if self._status is not _WRITTEN:
            self._finish(end)
        first_due = batch.first_due
        if first_due:
            self.on_delayed(first_due)
        if self._waiting.topics:
            self._waiting.arrived(batch.queue_keys)
        return self._status

    def encode(
        self,
        messages: Sequence[Message],
        now: int,
        held: Sequence[tuple[bytes, int]] | None = None,
        *,
        any_kind: bool = False,
    ) -> PreparedBatch:
        """The messages' records, whole but for their place; see `Encoder.prepare`. Raises
        `MessageIllegal` (or `MessageTooLarge`, `PropertiesTooLarge`) and the errors of topics,
        naming the message by its index.
        """
        try:
            return self.encoder.prepare(messages, now, held, any_kind)
        except (AttributeError, LookupError, TypeError, ValueError) as e:
            is_prepared = None if any_kind else held is not None
            error, cause = explain(
                messages, e, self._limits, self._routes.facts_of, now, is_prepared=is_prepared
            )
            raise error from cause

    def _prepared_columns(self, topic: str, given: GivenColumns, now: int) -> PreparedBatch:
        """The records of rows of columns, whole but for their place; errors name the row."""
        try:
            return prepare_columns(self.encoder, topic, given, now)
        except (AttributeError, LookupError, TypeError, ValueError) as e:
            rows = Rows(given, topic)
            error, cause = explain(rows, e, self._limits, self._routes.facts_of, now)
            raise error from cause

    def _wake_housekeeper(self, end: int) -> None:
        """Wakes the housekeeper if a checkpoint or the next segment is due."""
        log, begin = self._log, self._index.tails.active.start
        is_due = end - begin >= self._tail_due
        if is_due or log.needs_next():
            log.prepare_wanted.set()
        # A checkpoint that begins now, or later, makes the next one due behind this.
        self._due_at = min((end if is_due else begin) + self._tail_due, log.half_behind(end))

    def _finish(self, end: int) -> None:
        """Waits for the disk, or wakes the flusher for a full staging buffer."""
        if self._status is _FLUSHED:
            self._flusher.wait(end)
        elif self._log.staging is not None and self._log.staging.full():
            self._flusher.wake()


def _given_columns(columns: object) -> GivenColumns:
    try:
        return GivenColumns(columns)
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        if isinstance(e, StoreError):
            raise
        raise MessageIllegal(f"the columns can't be read: {type(e).__name__}: {e}") from e
