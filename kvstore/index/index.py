"""The index of a store: tail, checkpoint and lookups together, for every question about entries and
keys.

The idea: readers look in the tail, then in the tail that is being checkpointed, then in RocksDB, in
that order and from one look at `tails`: entries that leave the second tail are in RocksDB before it
goes. Next offsets of used queues are cached, so a put to such a queue does not ask RocksDB.

Invariants: a checkpoint is written after the log is durable to there; rows that don't fit into its
batch go before (`pieces`); nothing here reads the log. After a change that failed at any step,
also behind its write, all that memory keeps of rows is read again: nobody else can tell whether it
was written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from kvstore.core.queue_offsets import QueueHeads, QueueOffsets
from kvstore.core.tail import Tail
from kvstore.index import handover
from kvstore.index.archived import Arriving, Queue, Row
from kvstore.index.checkpoint import (
    AppendedBytes,
    KeysValues,
    TagCodes,
    key_pairs,
    pending_rows,
    put_log_time,
    put_waits_ended,
    repack,
    run_rows,
)
from kvstore.index.dead_keys import DeadKeys
from kvstore.index.families import Batch, Families
from kvstore.index.handover import Gone, retire, retire_topic
from kvstore.index.key_lookup import MessageKeys, Parts
from kvstore.index.keys import (
    AHEAD,
    ARCHIVES,
    CHECKPOINT,
    DERIVED,
    FORMAT,
    FORMAT_VERSION,
    LOG_START,
    MESSAGE_KEYS,
    META,
    OFFSET_MAX,
    PLACES,
    SEALED,
    TAG_CODES,
    U32,
    U64,
    Ahead,
    Checkpoint,
    checkpoint_value,
    read_ahead,
    read_checkpoint,
)
from kvstore.index.pieces import (
    Piece,
    forget_ahead,
    pieces_of,
    put_rows,
    write_ahead,
)
from kvstore.index.queue_locations import Head, QueueLocations

HEADS_CACHED_MAX: Final = 1 << 19
"""QueueLocations whose end is kept in memory."""
_HEADS_AT_ONCE: Final = 4096
"""Heads cached at once after a checkpoint: other threads run in between."""
POSITION_MAX: Final = (1 << 63) - 1
"""Above every position."""


class Tails(NamedTuple):
    """The tail that takes entries, and the one that is being checkpointed."""

    active: Tail
    frozen: Tail | None

    def oldest_first(self) -> list[Tail]:
        """Those that there are."""
        return [self.active] if self.frozen is None else [self.frozen, self.active]


class Index:
    """The index of one store."""

    def __init__(self, path: Path, segment_size: int, *, read_only: bool, create: bool) -> None:
        self.families = Families(path, read_only=read_only, create=create)
        self._write_lock = threading.Lock()
        self._is_unsure = False
        """Whether a change failed, and memory may not know the rows that it wrote."""
        self.set_segment_size(segment_size)
        self.tails = Tails(Tail(0), None)
        self.tags = TagCodes(None)
        self._heads = QueueHeads()
        self.offsets = QueueOffsets(self.checkpointed_end)
        """The offsets that the next puts get; under the log's lock. It knows each queue that has
        entries in a tail: a store begins to put with an empty one.
        """
        self._topic_bytes = bytearray()
        self.appended = AppendedBytes(lambda: self.tails)
        self._fresh_from = 1 << 32
        self._heads_lock = threading.Lock()
        self._version = 0
        self.rows_lock = threading.Lock()
        """Who holds it sees tails and rows of one moment, which can be added up."""
        self._sealed = 0
        self._next_archive = 0
        self.moves = 0
        """Counts hand-overs: a reader that failed compares it, to learn whether one is the reason.
        """
        self.archived_below: Callable[[int, int, int], bool | None] = lambda *_: None
        """`Cold.below`, where there are archives."""
        self.checkpoint = Checkpoint(0, 0, 0, 0, clean=False)
        self.ahead: Ahead | None = None
        """The entries that RocksDB has ahead of the checkpoint."""

    # --- opening ---

    def set_segment_size(self, size: int) -> None:
        """Sets the segment size that the store was made with."""
        self.segment_size = size
        self.locations = QueueLocations(self.families, size)
        self.keys = MessageKeys(self.families, size)
        self.dead_keys = DeadKeys(self.families, self.keys, size, self._writing)

    def load(self) -> Checkpoint:
        """Reads the last checkpoint and begins the tail there."""
        self._read()
        self.tails = Tails(Tail(self.checkpoint.position), None)
        return self.checkpoint

    def _read(self) -> None:
        value = self.families.get(META, CHECKPOINT)
        self.checkpoint = read_checkpoint(value) if value else Checkpoint(0, 0, 0, 0, clean=False)
        ahead = self.families.get(META, AHEAD)
        self.ahead = None if ahead is None else read_ahead(ahead)
        self.tags = TagCodes(self.families.get(META, TAG_CODES))
        self._next_archive = max(self._next_archive, handover.next_number(self.families))
        sealed = self.families.get(META, SEALED)
        self._sealed = max(
            U32.unpack(sealed)[0] if sealed else 0, self.gone().below // self.segment_size
        )

    def topics_fresh_from(self, topic: int) -> None:
        """Marks topics from this id on as having no entries in RocksDB: their queues begin at 0
        without a look.
        """
        self._fresh_from = min(self._fresh_from, topic)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The time of one change of rows; one at a time."""
        with self._write_lock:
            if self._is_unsure:
                self._read_again()
            try:
                yield
            except BaseException:
                self._is_unsure = True
                with suppress(Exception):  # it is read before the next change, then
                    self._read_again()
                raise

    def _read_again(self) -> None:
        """Reads again what memory keeps of rows, after a change that failed."""
        self._changing()
        self._read()
        self.keys.read_again()
        self.dead_keys.read_again()
        self.locations.forget()
        with self._heads_lock:
            self._forget_heads()
        self.moves += 1
        active, frozen = self.tails
        if frozen is not None and self.checkpoint.position == active.start:
            with self.appended.settled(frozen):
                self.tails = Tails(active, None)
        self._is_unsure = False

    # --- the tail; under the log's lock ---

    def end(self, queue: int) -> int:
        """A queue's next offset, counting entries that nobody may see yet."""
        for tail in reversed(self.tails.oldest_first()):
            found = tail.bounds(queue, POSITION_MAX)
            if found is not None:
                return found[1]
        return self.checkpointed_end(queue)

    def checkpointed_end(self, queue: int) -> int:
        """A queue's next offset as of the last checkpoint."""
        found = self._heads.next_offset(queue)
        return self._read_head(queue).next_offset if found is None else found

    def _read_head(self, queue: int) -> Head:
        if queue >> 32 >= self._fresh_from:
            return Head(0, -1)
        version = self._version
        found = self.locations.head(queue)
        with self._heads_lock:
            # One that was read while a checkpoint was written may be old: it is not kept.
            if version == self._version:
                self._cache_heads([queue], [found.next_offset], [found.segment])
        return found

    def _cache_heads(self, queues: list[int], ends: list[int], segments: list[int]) -> None:
        if len(self._heads) + len(queues) > HEADS_CACHED_MAX:
            self._forget_heads()
        self._heads.note(queues, ends, segments)

    def _forget_heads(self) -> None:
        # From here on the queues of a new topic may have entries in RocksDB.
        self._fresh_from = 1 << 32
        self._heads.forget_all()

    def freeze(self, position: int) -> Tail | None:
        """Takes the active tail away for a checkpoint at `position`; None if a checkpoint is under
        way or the tail is empty.
        """
        if self.tails.frozen is not None or position == self.tails.active.start:
            return None
        frozen = self.tails.active
        self.tails = Tails(Tail(position), frozen)
        if len(self.offsets) > HEADS_CACHED_MAX:
            self.offsets.forget_all()
            frozen.tell_ends(self.offsets)
        return frozen

    def set_topic_byte(self, topic: int, hash_byte: int) -> None:
        """Notes the byte that a topic puts under the hashes of its keys; called before the first
        key.
        """
        with self._heads_lock:
            if topic >= len(self._topic_bytes):
                self._topic_bytes += bytes(max(topic + 1, 2 * topic) - len(self._topic_bytes))
            self._topic_bytes[topic] = hash_byte

    # --- checkpoint ---

    def write_checkpoint(
        self,
        checkpoint: Checkpoint,
        *,
        sync: bool = False,
    ) -> None:
        """Writes the frozen tail and `checkpoint`; the log is durable to there."""
        with self._writing():
            frozen = self.tails.frozen
            batch = self.families.batch()
            parts: Parts | None = None
            pieces = list[Piece]()
            heads = list[int](), list[int](), list[int]()
            if frozen is not None:
                runs, ranges = run_rows(frozen, self.segment_size, self.tags.coded)
                parts, key_rows = self._key_rows(batch, frozen)
                others = [(MESSAGE_KEYS, *rows) for rows in key_rows]
                others += pending_rows(frozen)
                pieces = pieces_of(runs, ranges.locations(self._last_segments), others)
                heads = ranges.heads()
            self._changing()
            for piece in write_ahead(
                self.families, self.tags, pieces, self.checkpoint, checkpoint, self.ahead,
                self._note_ahead,
            ):  # fmt: skip
                put_rows(batch, piece)
            ahead = self.ahead
            if ahead is not None and ahead.position <= checkpoint.position:
                ahead = None
                forget_ahead(batch)
            if frozen is not None:
                put_waits_ended(self.families, batch, frozen)
            batch.put(META, CHECKPOINT, checkpoint_value(checkpoint))
            self.tags.put_new(batch)
            if parts is not None:
                self.keys.writing(parts)
            with self.rows_lock:
                self.families.write(batch, sync=sync)
                self.tags.written()
                # The rows are found now. The notes about them change first; then the tail may go.
                self._changing()
                self.locations.changed(heads[0])
                if parts is not None:
                    self.keys.written(parts)
                for at in range(0, len(heads[0]), _HEADS_AT_ONCE):
                    with self._heads_lock:
                        self._cache_heads(*(column[at : at + _HEADS_AT_ONCE] for column in heads))
                self.checkpoint, self.ahead = checkpoint, ahead
                with self.appended.settled(frozen):
                    self.tails = Tails(self.tails.active, None)

    def _key_rows(self, batch: Batch, frozen: Tail) -> tuple[Parts | None, list[KeysValues]]:
        """The rows of parts with a tail's keys, but for their heads, which go into `batch`, and the
        parts that there are then; None: as before.
        """
        pairs = key_pairs(frozen, self.segment_size, bytes(self._topic_bytes))
        if not pairs:
            return None, []
        self.keys.drop_headless()
        parts, rows = self.keys.parts(), list[KeysValues]()
        for segment, (hashes, positions) in pairs.items():
            parts, added = self.keys.add(batch, parts, segment, hashes, positions)
            rows += added
        return parts, rows

    def _last_segments(self, queues: Iterable[int]) -> list[int]:
        """The segments of the last locations of some queues."""
        known, read = self._heads.segment, self._read_head
        return [read(q).segment if (found := known(q)) is None else found for q in queues]

    def _note_ahead(self, ahead: Ahead) -> None:
        self.ahead = ahead

    @property
    def reach(self) -> int:
        """The position below which RocksDB may have entries."""
        ahead = self.ahead
        return max(self.checkpoint.position, 0 if ahead is None else ahead.position)

    def _changing(self) -> None:
        """Called before and after rows change: values that are read meanwhile are not cached."""
        with self._heads_lock:
            self._version += 1
        self.locations.changing()

    # --- lookups; `end` is the log position below which the caller may see ---

    def next_offset(self, queue: int, end: int) -> int:
        """A queue's next offset."""
        oldest = None
        for tail in self.tails:
            found = None if tail is None else tail.bounds(queue, end)
            if found is not None:
                oldest, behind = found
                if behind > oldest:
                    return behind
        return self.checkpointed_end(queue) if oldest is None else oldest

    def min_offset(self, queue: int, first_segment: int, end: int) -> int:
        """A queue's first held offset; its next offset if it holds nothing."""
        # Tails come before locations: an entry that leaves a tail between the two looks is in the
        # locations by then.
        tails = self.tails
        location = self.locations.first(queue, first_segment)
        if location is not None:
            return location.first
        begin = first_segment * self.segment_size
        for tail in tails.oldest_first():
            # A reader's tail may begin with entries that retention has taken since.
            offset = tail.first_within(queue, begin, end)
            if offset is not None:
                return offset
        return self.next_offset(queue, end)

    def positions(
        self, queue: int, offset: int, limit: int, first_segment: int, end: int
    ) -> list[int]:
        """Log positions of up to `limit` entries from `offset` on; fewer where the queue, or a gap,
        ends them.
        """
        out: list[int] = []
        tails = self.tails.oldest_first()
        first = [found[0] for tail in tails if (found := tail.bounds(queue, 0)) is not None]
        below = first[0] if first else OFFSET_MAX
        if offset < below:
            out = self.locations.positions(queue, offset, min(limit, below - offset), first_segment)
            offset += len(out)
            if offset < below:
                return out
        for tail in tails:
            part = tail.positions(queue, offset, limit - len(out))
            out += part
            offset += len(part)
        if out and out[-1] >= end:
            out = [p for p in out if p < end]
        return out

    def after(self, queue: int, offset: int, first_segment: int) -> int | None:
        """The first offset above `offset` that has an entry: the far side of a gap."""
        tails = self.tails.oldest_first()
        found = self.locations.after(queue, offset, first_segment)
        if found is not None:
            return found
        first = [bounds[0] for tail in tails if (bounds := tail.bounds(queue, 0)) is not None]
        return next((f for f in first if f > offset), None)

    def find_in_tails(self, key_hash: int, end: int) -> list[int]:
        """Positions of records in the tails that may have a key, newest first."""
        found = list[int]()
        for tail in reversed(self.tails.oldest_first()):
            # One that begins behind the end need not make its view of keys.
            if tail.start < end:
                found += tail.find_key(key_hash)
        return sorted({p for p in found if p < end}, reverse=True) if found else found

    # --- upkeep ---

    def seal_due(self) -> bool:
        """Whether a sealed, wholly checkpointed segment has its index not yet repacked."""
        return self._sealed < self.checkpoint.position // self.segment_size

    def seal_next(self) -> None:
        """Repacks the runs of the oldest such segment; its keys are merged from then on."""
        with self._writing():
            if not self.seal_due():
                return
            batch = self.families.batch()
            repack(self.families, batch, self._sealed)
            batch.put(META, SEALED, U32.pack(self._sealed + 1))
            self.families.write(batch)
            self._sealed += 1

    def forget_left_keys(self) -> None:
        """Removes keys of segments that left the log from generations that other segments need, and
        from RocksDB's files.
        """
        self.dead_keys.mark_all_left()
        while True:
            # Other threads may begin a merge at any time, and nothing is dropped beside a merge.
            if self.keys.is_merging:
                self.merge_next()
            elif self.dead_keys.due():
                self.dead_keys.drop()
            else:
                break
        self.families.compact(MESSAGE_KEYS)

    def merge_due(self) -> bool:
        """Whether parts of the key index are to be merged."""
        return self.keys.merge_due(self._sealed)

    def merge_next(self) -> None:
        """Does one step of merging parts of the key index; a checkpoint waits for one at most."""
        with self._writing():
            self.keys.merge_next(self._sealed)

    def compact_due(self) -> bool:
        """Whether RocksDB's files are to be rid of parts of the key index that were replaced."""
        return self.keys.compact_due

    def compact_next(self) -> None:
        """Rids the files of the next one of these parts; nobody waits for it."""
        self.keys.compact_next()

    def tidy(self) -> None:
        """Before a close, repack the active segment's runs if they are many, and empty RocksDB's
        own log, so that the next opening has less to do.
        """
        with self._writing():
            batch = self.families.batch()
            if repack(self.families, batch, self.checkpoint.position // self.segment_size):
                self.families.write(batch)
            self.families.flush()

    def retire(self, segment: int, log_start: int, there: Sequence[int]) -> int:
        """Removes a segment from the index, with the note that the log begins at `log_start`;
        returns the number of its queues. `there` are the segments that the log has.
        """
        with self._writing():
            batch = self.families.batch()
            queues = retire(self.families, batch, segment)
            parts = self.keys.drop_segments(batch, [segment], there)
            batch.put(META, LOG_START, U64.pack(log_start))
            self._write_removal(batch)
            self.keys.written(parts)
            return queues

    def swap_segments(
        self,
        segments: Sequence[int],
        arriving: Sequence[Arriving],
        unkept: Collection[Queue],
        there: Sequence[int],
        *,
        erase: bool,
    ) -> int:
        """Puts archives in the place of whole segments, in one batch; returns the number of queues
        in the segments. `there` are the segments that the log has. With `erase` their keys are soon
        removed from shared generations as well.
        """
        with self._writing():
            batch = self.families.batch()
            queues = handover.put_handover(self.families, batch, sorted(segments), arriving, unkept)
            parts = self.keys.drop_segments(batch, segments, there)
            if erase:
                self.dead_keys.mark_left(batch, parts, segments)
            handover.put_gone(batch, self.gone(), segments, there, self.segment_size)
            self._move(batch, arriving)
            self.keys.written(parts)
            self.dead_keys.read_again()
            return queues

    def swap_archives(
        self,
        old: Collection[int],
        arriving: Sequence[Arriving],
        queues: Iterable[Queue] | None,
        topics: Collection[int] | None,
        rows: Iterable[Row],
    ) -> None:
        """Puts archives, or nothing, in the place of other archives, and changes catalog rows, at
        once. `queues` and `topics`: see `handover.swap`.
        """
        with self._writing():
            batch = self.families.batch()
            if old:
                handover.swap(self.families, batch, old, arriving, queues, topics)
            handover.put_changed(batch, rows)
            self._move(batch, arriving)

    def change(
        self,
        put: Callable[[Batch], None],
        arriving: Sequence[Arriving] = (),
        ended: Collection[int] = (),
    ) -> None:
        """Writes a batch that changes where messages are. `ended` are queues that end elsewhere
        afterwards: no tail has any of their entries, and nobody puts to them meanwhile.
        """
        with self._writing():
            batch = self.families.batch()
            put(batch)
            for queue in ended:
                self.offsets.forget(queue)
            self._move(batch, arriving)
            self._fresh_from = 1 << 32 if ended else self._fresh_from
            with self._heads_lock:
                for queue in ended:
                    self._heads.forget(queue)

    def _move(self, batch: Batch, arriving: Sequence[Arriving]) -> None:
        """Writes a batch that changes where messages are."""
        following = handover.put_next_number(batch, self._next_archive, arriving)
        # Before and after: a reader that looks between the two must notice as well.
        self.moves += 1
        self._write_removal(batch)
        self._next_archive = following
        self.moves += 1

    def _write_removal(self, batch: Batch) -> None:
        """Writes a batch durably that removes rows of runs or locations."""
        self._changing()
        self.families.write(batch, sync=True)
        self._changing()
        self.locations.forget()

    def allocate_archive_number(self) -> int:
        """A number for an archive that will arrive; no row of the catalog has or had it."""
        with self._writing():
            self._next_archive += 1
            return self._next_archive - 1

    def retire_topics(self, batch: Batch, topics: Iterable[int]) -> None:
        """Writes a batch durably that also removes topics from the index; the tails have no entries
        of these topics.
        """
        with self._writing():
            for topic in set(topics):
                retire_topic(self.families, batch, topic)
            self._write_removal(batch)
        self.appended.forget(topics)

    def gone(self) -> Gone:
        """The parts that left the log, to archives or for good."""
        return handover.read_gone(self.families)

    def drop_derived(self) -> None:
        """Empties the families that the index derives from log and archives, and goes back to
        position 0: the next opening makes all anew, the locations of archived messages first.

        Facts that neither log nor archives tell stay: the durable end, the log's time, the next
        offsets of empty queues; and locations of messages until their archive says what it holds.
        """
        # The durable end stays: damage below it is still corruption, not the end of the log.
        back = self.checkpoint._replace(position=0, stored_at=0, clean=False)
        batch = self.families.batch()
        for name in DERIVED:
            batch.delete_range(name, b"", b"\xff" * 32)
        for key, value in handover.kept_locations(self.families):
            batch.put(PLACES, key, value)
        batch.delete(META, SEALED)
        batch.put(META, CHECKPOINT, checkpoint_value(back))
        put_log_time(self.families, batch, self.checkpoint.stored_at)
        batch.delete(META, AHEAD)
        if next(self.families.rows(ARCHIVES, b""), None) is not None:
            handover.mark_unlocated(batch)
        batch.put(META, FORMAT, U32.pack(FORMAT_VERSION))
        self.families.write(batch, sync=True)
        self.keys.forget()

    def close(self) -> None:
        """Closes RocksDB."""
        self.families.close()
