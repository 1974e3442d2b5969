"""Hand-over: what whoever makes archives asks of an open store, and tells it.

The idea: a worker takes a sealed segment's entries and keys from here, makes archives of its
records, and says `hand_over`: one WriteBatch in which catalog, places, runs and keys change
together; then the segment's file goes. Between the two a crash leaves an orphan file, which the
next opening removes. Merging, expiring and erasing are `swap`: the same batch without segments.

What is read meanwhile finds its messages where they are: the archives are known to the reader
before a place names them, and whoever meets a segment that is gone looks again.

Invariants: a segment goes once its messages are in archives that were read back, which is the
caller's promise, and not before the batch is on the disk; nothing is handed over that is not sealed
and wholly checkpointed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.config import StoreConfig
from kvstore.engine.segment_stats import SegmentStats, stats_of
from kvstore.engine.unread import unread_in, unread_in_archive
from kvstore.engine.upkeep import Upkeep
from kvstore.errors import CallerError
from kvstore.index.archived import (
    Archived,
    ArchivedTopic,
    Arriving,
    AttachedRange,
    Entries,
    Here,
    Queue,
    Row,
    Sealed,
)
from kvstore.index.attach import attach, forget, here
from kvstore.index.families import Batch
from kvstore.index.handover import put_rows
from kvstore.index.index import Index
from kvstore.index.keys import ARCHIVES, META, RUNS, STORE_ID, archive_key, segment_range
from kvstore.index.repack import RUN_KEY, stretches
from kvstore.index.runs import count_of, unpack_many
from kvstore.log.commitlog import CommitLog
from kvstore.meta.topics import TopicInfo, Topics
from kvstore.read.reader import Reader

I64 = NDArray[np.int64]

__all__ = ["Arriving", "Entries", "Queue", "Row", "Sealed", "SegmentHandover"]


class SegmentHandover:
    """See the module. `store.handover` is one."""

    def __init__(
        self,
        log: CommitLog,
        index: Index,
        reader: Reader,
        topics: Topics,
        upkeep: Upkeep,
        config: StoreConfig,
        archived: Callable[[], Archived],
    ) -> None:
        self._log = log
        self._index = index
        self._reader = reader
        self._topics = topics
        self._upkeep = upkeep
        self.config = config
        self.archived = archived
        """What reads the store's archives; made when it is first asked for."""
        self._tiered = upkeep.is_tiered

    # --- what there is ---

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
        log, size = self._log, self._log.segment_size
        last = min(log.durable, self._index.checkpoint.position) // size
        return [
            Sealed(n, log.segments.path(n), n * size, (n + 1) * size)
            for n in log.segments.numbers
            if n < last
        ]

    def segment_path(self, segment: int) -> Path:
        """A segment's file, sealed or not."""
        return self._log.segments.path(segment)

    def stats(self, segments: Sequence[int]) -> Iterator[SegmentStats]:
        """What some of the sealed segments hold, one after the other; what a sealed one does
        changes only when a topic is deleted.
        """
        return stats_of(segments, self._log, self._index, self._topics)

    def entries(self, segment: int) -> Iterator[Entries]:
        """What the index has of a segment, in slices of some 256 k entries. What is not among it
        (messages of topics that were deleted, prepared halves) no queue has.
        """
        low, high = segment_range(segment, segment + 1)
        base = segment * self._log.segment_size
        for rows in stretches(self._index.families.rows(RUNS, low, high)):
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

    def here(self, topic: int, queue: int) -> tuple[list[Here], int]:
        """What the store has of a queue, by first offset, and its next offset. What was put since
        the last checkpoint counts for the next offset alone.
        """
        return here(self._index.families, (topic, queue)), self._index.end(topic << 32 | queue)

    # --- what is changed ---

    def give_up(self, segments: int, topics: int) -> tuple[int, int]:
        """Leave so many segments out of the log, and so many topic ids out of those that are given;
        returns the first of the positions, and of the ids. They are for `take_in`.
        """
        self._log.check_writable()
        return self._upkeep.give_up(segments), self._topics.take_ids(topics)

    def take_in(
        self,
        arriving: Sequence[Arriving],
        stretches: Sequence[AttachedRange],
        ends: Mapping[Queue, int],
        topics: Sequence[ArchivedTopic] = (),
    ) -> None:
        """Have archives come into the store that hold what no queue has, and topics with them, all
        or nothing. The archives are where their rows say, and were read back; their positions are
        such as `give_up` gave. `ends` are queues that go on behind what comes, with the next offset
        that they have now.

        Raises `CallerError`, with nothing changed, for a stretch of offsets that a queue has or has
        given meanwhile, and for a topic that was made meanwhile.
        """
        self._log.check_writable()
        infos = [
            msgspec.convert({"name": t.name, "id": t.id, **t.fields}, TopicInfo) for t in topics
        ]
        keys = [topic << 32 | queue for topic, queue in ends]
        with self._coming(arriving):
            # What was put meanwhile to one of these queues is a conflict, and not in a tail then.
            self._upkeep.checkpoint()
            with self._topics.lock, self._log.lock:
                for (topic, queue), due in ends.items():
                    found = self._index.end(topic << 32 | queue)
                    if found != due:
                        raise CallerError(
                            f"queue {queue} of topic {topic} has come to offset {found} meanwhile, "
                            f"and was at {due}: nothing was attached; nobody may put to it"
                        )

                def put(batch: Batch) -> None:
                    self._topics.stage_rows(batch, infos)
                    put_rows(batch, arriving)
                    attach(self._index.families, batch, stretches)
                    forget(batch)

                self._index.change(put, arriving, keys)
                self._topics.settle_rows(infos)

    def attach(self) -> None:
        """Say that a worker looks after this store: from here on segments don't go by age or size
        alone.
        """
        self._upkeep.is_tiered = True

    def detach(self) -> None:
        """Say that it doesn't any more: what the store's settings say holds again."""
        self._upkeep.is_tiered = self._tiered

    def take_number(self) -> int:
        """A number for an archive that is to arrive: no other ever has it."""
        return self._index.take_archive_number()

    def hand_over(
        self,
        segments: Sequence[int],
        arriving: Sequence[Arriving],
        unkept: Collection[Queue] = (),
        *,
        erase: bool = False,
    ) -> int:
        """Have archives take the place of segments, and remove these; returns how many queues they
        had. The archives are where their rows say, and were read back.

        `unkept` are the queues (topic id, queue) of which the segments' messages are in no archive:
        expired, or not to be read. With `erase` the segments' files are overwritten first, also if
        the store's settings don't ask for it. Raises `CallerError`, with nothing changed, for a
        segment that is not there or not sealed, and for a queue that nothing is said about.
        """
        self._log.check_writable()
        with self._upkeep.leaving:
            there = self._log.segments.numbers
            last = min(self._log.durable, self._index.checkpoint.position) // self.segment_size
            wrong = [n for n in segments if n not in there or n >= last]
            if wrong or not segments:
                raise CallerError(
                    f"segments {list(segments)} can't be handed over: {wrong or 'none'} not there, "
                    "or not sealed and in a checkpoint; ask `sealed` which are"
                )
            is_erased = erase or self.config.secure_erase
            # What is to be erased was named by somebody; all else goes by itself.
            gone = set() if erase else set(unkept)
            unread = [(n, unread_in(self._index.families, n, gone)) for n in segments if gone]
            with self._coming(arriving):
                queues = self._index.hand_over(segments, arriving, unkept, there, erase=is_erased)
            for number in segments:
                self._log.segments.remove(number, erase=is_erased)
            for number, messages in unread:
                self._upkeep.tell_unread(f"part of segment {number} without an archive", messages)
        return queues

    def let_go(self, archive: int, name: str, rows: Iterable[Row]) -> None:
        """Have the messages of an archive go, since their time is over, and change rows of the
        catalog; what no group has read of them is told.
        """
        unread = unread_in_archive(self._index.families, archive)
        self.swap([archive], rows=rows)
        self._upkeep.tell_unread(f"archive {name}, whose time is over", unread)

    def swap(
        self,
        old: Collection[int],
        arriving: Sequence[Arriving] = (),
        *,
        queues: Iterable[Queue] | None = None,
        rows: Iterable[Row] = (),
    ) -> None:
        """Have archives take the places of `old` ones, and change rows of the catalog, at once.
        Where nothing arrives that has a queue, its messages are gone. `queues` are all that the old
        ones hold anything of (None: they are looked for, among all places there are).
        """
        self._log.check_writable()
        changed = list(rows)
        with self._coming(arriving):
            self._index.swap_archives(old, arriving, queues, changed)
        self.archived().note(changed)

    def forget_keys(self) -> None:
        """Take the keys of messages that left the log out of the key index, where those of others
        are among them: now, not when the last of these leaves. For whoever erases.
        """
        self._log.check_writable()
        self._index.forget_left_keys()

    def set_rows(self, rows: Iterable[Row]) -> None:
        """Change rows of the catalog alone; None: the row goes, which no place may name then."""
        self.swap((), rows=rows)

    @contextlib.contextmanager
    def _coming(self, arriving: Sequence[Arriving]) -> Iterator[None]:
        """Have the reader know archives before a place names them; not, if that fails."""
        rows = [(archive_key(a.first_position, a.number), a.row) for a in arriving]
        archived = self.archived()
        archived.note(rows)
        self._reader.read_from(archived)
        try:
            yield
        except BaseException:
            archived.note((key, None) for key, _ in rows)
            raise
