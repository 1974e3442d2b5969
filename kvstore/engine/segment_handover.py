"""The hand-over: a tiering worker replaces segments by archives here, merges, expires and erases
archives, and attaches others.

The idea: a worker takes a sealed segment's entries and keys from here, makes archives of its
records, and says `hand_over`: one WriteBatch in which catalog, locations, runs and keys change
together; then the segment's file goes. Between the two a crash leaves an orphan file, which the
next opening removes. Merging, expiring and erasing are `swap`: the same batch without segments.

Reads find their messages meanwhile: the reader knows the archives before a location names them, and
a read that meets a missing segment looks again.

Invariants: a segment goes once its messages are in archives that were read back, which is the
caller's promise, and not before the batch is on the disk; only sealed and wholly checkpointed
segments are handed over.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvstore.engine.engine_context import EngineContext
from kvstore.engine.retention import unread_in, unread_in_archives
from kvstore.engine.stats import SegmentStats, stats_of
from kvstore.engine.upkeep import Upkeep, drop_orphans
from kvstore.errors import CallerError, StoreError
from kvstore.index.archived import (
    Archived,
    ArchivedTopic,
    Arrivals,
    Arriving,
    AttachedRange,
    EndedWaits,
    Entries,
    HeldRange,
    Meant,
    PlannedWaits,
    Queue,
    Row,
    Sealed,
)
from kvstore.index.attach import attach, forget, held_ranges
from kvstore.index.checkpoint import RUN_KEY, put_log_time, run_batches
from kvstore.index.families import Batch
from kvstore.index.handover import put_rows
from kvstore.index.keys import ARCHIVES, META, RUNS, STORE_ID, archive_key, segment_range
from kvstore.index.runs import count_of, unpack_many
from kvstore.meta.topics import TopicInfo
from kvstore.opening.restoring import topic_info
from kvstore.timing.pending_messages import PlannedNotes

I64 = NDArray[np.int64]
_log = logging.getLogger("kvmq")

__all__ = ["Arriving", "Entries", "Queue", "Row", "Sealed", "SegmentHandover"]


class SegmentHandover:
    """The calls of a tiering worker, see the module. `store.handover` is one."""

    def __init__(
        self,
        context: EngineContext,
        upkeep: Upkeep,
        archived: Callable[[], Archived],
        arriving: Callable[[int], int],
        on_arrival: Callable[[], None],
    ) -> None:
        """`arriving` is called under the log's lock before messages come that are not put, with
        the newest store time of them; it gives the log's time. `on_arrival` is called when they
        have come.
        """
        self._context = context
        self._log = context.log
        self._index = context.index
        self._reader = context.reader
        self._topics = context.topics
        self._upkeep = upkeep
        self.config = context.config
        self.archived = archived
        """Gives the reader of the store's archives; made when it is first asked for."""
        self._tiered = upkeep.is_tiered
        self._arriving = arriving
        self._on_arrival = on_arrival
        self.arrivals = Arrivals()
        self.waits_ended: Callable[[Meant, PlannedNotes | None], EndedWaits] = (
            lambda meant, planned: EndedWaits(0, 0, [])
        )
        """Does `end_waits` and `planned_waits`."""
        self.worker_turn = threading.Lock()
        """Held by the worker of the store: there is one at a time."""

    # --- reading ---

    @property
    def store_id(self) -> bytes:
        """The store's id: 16 bytes."""
        return self._index.families.get(META, STORE_ID) or b""

    @property
    def folder(self) -> Path:
        """The store's folder."""
        return self._log.folder.parent

    @property
    def segment_size(self) -> int:
        """Bytes of a segment."""
        return self._log.segment_size

    def sealed(self) -> list[Sealed]:
        """The segments that may be handed over, oldest first."""
        try:
            self.remove_left()
        except StoreError as e:
            _log.warning("%s: a segment that left the log is still there: %s", self.folder, str(e))
        log, size, gone = self._log, self._log.segment_size, self._index.gone()
        last = min(log.durable, self._index.checkpoint.position) // size
        return [
            Sealed(n, log.segments.path(n), n * size, (n + 1) * size)
            for n in log.segments.numbers
            if n < last and not gone.has(n, size)
        ]

    def stuck(self) -> Collection[int]:
        """Those of the sealed segments that should not be handed over now: most of their bytes
        wait, and would be written to the log's end.
        """
        return self._upkeep.stuck([segment.number for segment in self.sealed()])

    def remove_left(self) -> None:
        """Removes the files of segments that have left the log and are still there: a hand-over may
        have failed behind its write. They are overwritten first. Raises the error that prevents it.
        """
        with self._upkeep.leaving:
            drop_orphans(self._log, self._index)

    def segment_path(self, segment: int) -> Path:
        """A segment's file, sealed or not."""
        return self._log.segments.path(segment)

    def stats(self, segments: Sequence[int]) -> Iterator[SegmentStats]:
        """Figures of some sealed segments, one after the other; those of a segment change only when
        a topic is deleted.
        """
        return stats_of(segments, self._context)

    def entries(self, segment: int) -> Iterator[Entries]:
        """The index's entries of a segment, in slices of some 256 k entries. Messages that no queue
        has are left out: those of deleted topics, and prepared halves.
        """
        low, high = segment_range(segment, segment + 1)
        base = segment * self._log.segment_size
        for rows in run_batches(self._index.families.rows(RUNS, low, high)):
            keys = np.frombuffer(b"".join([key for key, _ in rows]), dtype=RUN_KEY)
            columns, starts = unpack_many([value for _, value in rows])
            counts = np.fromiter((count_of(v) for _, v in rows), dtype=np.int64, count=len(rows))
            nth = np.arange(len(columns.positions)) - np.repeat(starts, counts)
            yield Entries(
                np.repeat(keys["topic"].astype(np.int64), counts),
                np.repeat(keys["queue"].astype(np.int64), counts),
                np.repeat(keys["first"].astype(np.int64), counts) + nth,
                columns.positions + base,
                columns.sizes,
                columns.stored_at,
            )

    def topic(self, number: int) -> TopicInfo | None:
        """The topic with an id; None if it was deleted."""
        name = self._topics.name_of(number)
        found = self._topics.find(name) if name is not None else None
        return found.info if found is not None and found.id == number else None

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The catalog: rows of `archives`, by first position and number."""
        return self._index.families.rows(ARCHIVES, b"")

    def held_ranges(self, topic: int, queue: int) -> tuple[list[HeldRange], int]:
        """The runs and locations of a queue, by first offset, and its next offset. Messages put
        since the last checkpoint count for the next offset alone.
        """
        ranges = held_ranges(self._index.families, (topic, queue))
        return ranges, self._index.end(topic << 32 | queue)

    # --- changing ---

    def reserve(self, segments: int, topics: int) -> tuple[int, int]:
        """Leaves so many segments out of the log, and so many topic ids unused; returns the first
        of the positions, and of the ids. They are for `take_in`.
        """
        self._log.check_writable()
        return self._upkeep.reserve_segments(segments), self._topics.allocate_ids(topics)

    def take_in(
        self,
        arriving: Sequence[Arriving],
        stretches: Sequence[AttachedRange],
        ends: Mapping[Queue, int],
        topics: Sequence[ArchivedTopic] = (),
    ) -> None:
        """Takes archives into the store whose messages no queue has, and topics with them, all or
        nothing. The archives are where their rows say, and were read back; their positions come
        from `reserve`. `ends` are queues that go on behind the archives' messages, with the next
        offset that they have now.

        Raises `CallerError`, with nothing changed, for a stretch of offsets that a queue has or has
        given meanwhile, and for a topic that was made meanwhile.
        """
        self._log.check_writable()
        infos = [topic_info(topic) for topic in topics]
        keys = [topic << 32 | queue for topic, queue in ends]
        with self._coming(arriving):
            # Messages put meanwhile to one of these queues are a conflict, and then not in a tail.
            self._upkeep.checkpoint()
            with self._topics.lock, self._log.lock:
                for (topic, queue), due in ends.items():
                    found = self._index.end(topic << 32 | queue)
                    if found != due:
                        raise CallerError(
                            f"queue {queue} of topic {topic} has come to offset {found} meanwhile, "
                            f"and was at {due}: nothing was attached; nobody may put to it"
                        )

                newest = max((one.last_stored_at for one in stretches), default=0)
                time = self._arriving(newest)

                def put(batch: Batch) -> None:
                    put_log_time(self._index.families, batch, time)
                    self._topics.put_rows(batch, infos)
                    put_rows(batch, arriving)
                    attach(self._index.families, batch, stretches)
                    forget(batch)

                self._index.change(put, arriving, keys)
                self._topics.written(infos)
        self._on_arrival()

    def worker_begins(self) -> None:
        """Says that a worker looks after this store: from here on segments don't go by age or size
        alone.
        """
        self._upkeep.is_tiered = True

    def worker_ends(self) -> None:
        """Says that the worker has gone: the store's settings hold again."""
        self._upkeep.is_tiered = self._tiered

    def end_waits(self, meant: Meant) -> EndedWaits:
        """Ends the waits of the messages, put before the call, that an erasure is about: so
        nothing puts them to the log's end, or to their topics, any more. `meant` says which of some
        records these are.
        """
        self._log.check_writable()
        return self.waits_ended(meant, None)

    def planned_waits(self, meant: Meant) -> PlannedWaits:
        """The waits that `end_waits` would end now. Nothing is changed."""
        self._log.check_writable()
        planned = PlannedNotes(meant, self._log.end, self._log.segment_size)
        ended = self.waits_ended(meant, planned)
        return PlannedWaits(ended, planned.meant_count, sorted(planned.segments))

    def take_number(self) -> int:
        """A number for a new archive: no other archive ever has it."""
        return self._index.allocate_archive_number()

    def hand_over(
        self,
        segments: Sequence[int],
        arriving: Sequence[Arriving],
        unkept: Collection[Queue] = (),
        *,
        over: Collection[Queue] = (),
        erase: bool = False,
    ) -> int:
        """Replaces segments by archives, and removes the segments; returns how many queues they
        had. The archives are where their rows say, and were read back.

        `unkept` are the queues (topic id, queue) of which the segments' messages are in no archive:
        expired, or erased. `over` are those of them that nobody named: a warning counts their
        messages that no group has read. With `erase` the segments' files are overwritten first,
        even if the store's settings don't ask for it. Raises `CallerError`, with nothing changed,
        for a segment that is not there or not sealed, and for a queue that is in neither the
        archives nor `unkept`.
        """
        self._log.check_writable()
        with self._upkeep.leaving:
            has = self._log.segments.has
            last = min(self._log.durable, self._index.checkpoint.position) // self.segment_size
            wrong = [n for n in segments if not has(n) or n >= last]
            if wrong or not segments:
                raise CallerError(
                    f"segments {list(segments)} can't be handed over: {wrong or 'none'} not there, "
                    "or not sealed and in a checkpoint; ask `sealed` which are"
                )
            self._upkeep.before_leaving(segments)
            there = self._log.segments.numbers
            is_erased = erase or self.config.secure_erase
            gone = set(over)
            unread = [(n, unread_in(self._index.families, n, gone)) for n in segments if gone]
            with self._coming(arriving):
                queues = self._index.swap_segments(
                    segments, arriving, unkept, there, erase=is_erased
                )
            # They are gone from here on, even if a file can't be removed.
            for number, messages in unread:
                self._upkeep.tell_unread(f"part of segment {number} without an archive", messages)
            for number in segments:
                self._log.segments.remove(number, erase=is_erased)
        return queues

    def expire_archive(
        self, archive: int, name: str, rows: Iterable[Row], topics: Collection[int] | None = None
    ) -> None:
        """Deletes the messages of an expired archive and changes rows of the catalog; warns of
        messages that no group has read. `topics` are the ids of all topics in the archive (None:
        not known, all locations are looked through).
        """
        unread = unread_in_archives(self._index.families, {archive: topics})
        self.swap([archive], rows=rows, topics=topics)
        self._upkeep.tell_unread(f"archive {name}, whose time is over", unread)

    def swap(
        self,
        old: Collection[int],
        arriving: Sequence[Arriving] = (),
        *,
        queues: Iterable[Queue] | None = None,
        topics: Collection[int] | None = None,
        rows: Iterable[Row] = (),
        over: Mapping[int, Collection[int]] = MappingProxyType({}),
    ) -> None:
        """Replaces `old` archives by new ones, and changes rows of the catalog, at once. A queue
        that no new archive has loses its messages. `queues` are all that the old archives hold
        anything of (None: they are looked for, among the locations of their `topics`, or among all
        there are). `over` has, by
        archive, the ids of topics that the new ones lack because their time is over: a warning
        counts the messages of these that no group has read.
        """
        self._log.check_writable()
        changed = list(rows)
        unread = unread_in_archives(self._index.families, over)
        with self._coming(arriving, changed):
            self._index.swap_archives(old, arriving, queues, topics, changed)
        archives = f"{len(over)} merged archive{'s' if len(over) > 1 else ''}"
        self._upkeep.tell_unread(f"part of {archives}, whose time is over", unread)

    def forget_keys(self) -> None:
        """Removes the keys of messages that left the log from the key index now, even where they
        are merged with keys of other messages: not only when the last of these leaves. For erasing.
        """
        self._log.check_writable()
        self._index.forget_left_keys()

    def set_rows(self, rows: Iterable[Row]) -> None:
        """Changes rows of the catalog alone; None removes the row, which no location may name."""
        self.swap((), rows=rows)

    @contextlib.contextmanager
    def _coming(self, arriving: Sequence[Arriving], changed: Sequence[Row] = ()) -> Iterator[None]:
        """Tells the reader of archives before a location names them, and of changed rows when they
        are written; if it fails, tells it the rows that the catalog has then.
        """
        rows = [(archive_key(a.first_position, a.number), a.row) for a in arriving]
        archived = self.archived()
        try:
            archived.note(rows)
            self._reader.read_from(archived)
            yield
            if changed:
                archived.note(changed)
                # Reads between the change and the note may have found blocks of a destroyed key.
                self._index.moves += 1
        except BaseException:
            # It may have failed behind the write: then locations name these archives.
            get = self._index.families.get
            archived.note([(key, get(ARCHIVES, key)) for key, _ in (*rows, *changed)])
            raise
