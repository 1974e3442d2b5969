"""Replay: adding the records that recovery or a rebuild found to the index tail.

The idea: a put adds entries to the tail while it writes; replay adds the same entries from the log
afterwards, a scan's columns at a time. Ordinary queues go on where the index ends, and their
entries are taken as they are. An offset that doesn't follow is a gap where damage was skipped;
elsewhere it is a flipped bit, in this record or in the one before, and the queue's next record
tells which. So a queue with one is gone through entry by entry.

Invariants:

- A message that was found by a key when it was put is found by it again.
- An entry's offset is the one written in the record.
- An entry that the index has already, by a checkpoint that was cut short, is not added again. Its
  keys are, and what it says of pending messages.
- A message waits if its record does and no later record ends its wait.
- Records that are not indexed are listed in `refused`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kvstore.core.names import (
    PREPARED,
    ROLLBACK,
    SCHEDULE_TOPIC,
    TRANSACTION_MASK,
)
from kvstore.core.records import facts
from kvstore.core.scan import Scan
from kvstore.index.index import Index
from kvstore.index.keys import Ahead
from kvstore.record.hashes import scheduled_code
from kvstore.record.waits import waits_in

if TYPE_CHECKING:
    from kvstore.core.records import Buffer


_ALL_KEYS: Final = 2
_NO_KEY: Final = -1
"""Below every level: not even a dedup id is taken."""
_FIELDS: Final = 6
_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()

I64 = NDArray[np.int64]
_NO_ENTRIES: Final = np.empty((0, _FIELDS), np.int64)
_NO_KEYS: Final = np.empty((0, 3), np.int64)
_Row = tuple[int, int, int, int, int, int]
"""Queue key, offset, position, size, tag hash, store time."""


class ReplayTopic(Protocol):
    """The facts of a topic that replay needs."""

    name: str
    base: int
    since: int
    hash_byte: int
    key_level: int
    """The keys that its key index takes: 0 nothing, 1 the unique id, 2 all keys as well."""
    keys_ever: bool
    """Whether it takes anything, or ever did."""

    def key_level_at(self, position: int) -> int:
        """Which keys the topic indexes of a record at a position: by its setting of then, or of
        now.
        """
        ...


class Replay:
    """Records of a log on their way into the tail."""

    def __init__(
        self,
        index: Index,
        topic_of: Callable[[bytes, int, int], ReplayTopic | None],
        topic_named: Callable[[str], ReplayTopic | None],
        on_gap: Callable[[], None],
    ) -> None:
        self._index = index
        self._topic_of = topic_of
        self._topic_named = topic_named
        self._on_gap = on_gap
        self.entries = 0
        self.keys = 0
        self.gaps_expected = False
        """Whether damage was passed over: only then may a queue's offsets jump."""
        self.gone_records = 0
        """How many records may have stood in segments that left the log behind the beginning of
        this replay: the offsets of a queue may jump by so many, where no place tells of the gap.
        """
        self.is_anew = False
        """Whether the log is replayed from its beginning: a queue's first record may follow on what
        is not in the log any more, wherever that ended.
        """
        self.before_archives: set[int] = set()
        """Queues of which entries came before some that archives have: they end behind those."""
        self.refused: list[tuple[int, int, int, int]] = []
        """Records that were not indexed: position, size, offset, and the offset that was due."""
        self._held: dict[int, _Row] = {}
        self.last_stored = 0
        """The newest store time so far: an entry's is never below it, so that times rise in a run
        even where a clock was stepped back while another program wrote the log. """
        self._known: dict[tuple[bytes, int], ReplayTopic] = {}
        self._following: dict[int, int] = {}
        """The next offset of each queue that has entries since the last checkpoint."""
        self.last: int | None = None
        """Where the last record stands that was found."""
        self._taken: list[_Row] = []
        """Entries of queues that are gone through one by one."""

    def add(self, buffer: Buffer, base: int, found: Scan) -> None:
        """Adds the records of a scan `with_names`, which follow on those before."""
        if not len(found):
            return
        owners, positions = found.owners, found.positions
        self.last = int(positions[-1])
        names = found.owner_names(buffer)
        known_from = self._look_up(found, names)
        topics = [self._known.get(name) for name in names]
        since = np.array([0 if topic is None else topic.since for topic in topics], np.int64)
        bases = np.array([0 if topic is None else topic.base for topic in topics], np.int64)
        queues = bases + found.queue_ids
        is_ours = (np.arange(len(found)) >= known_from[owners]) & (positions >= since[owners])
        kinds = found.flags & TRANSACTION_MASK
        rows = np.empty((len(found), _FIELDS), np.int64)
        rows[:, 0] = queues[owners]
        rows[:, 1] = found.offsets
        rows[:, 2] = positions
        rows[:, 3] = found.sizes
        rows[:, 4] = found.tag_hashes
        rows[:, 5] = np.maximum(np.maximum.accumulate(found.stored_at), self.last_stored)
        self.last_stored = int(rows[-1, 5])
        self._schedule(buffer, base, [topic for topic, _ in names], rows, owners)
        is_entry = is_ours & (kinds != PREPARED) & (kinds != ROLLBACK)
        if self._index.ahead is not None:
            is_entry &= ~_is_there(rows, self._index.ahead)
        self._add_entries(rows[is_entry], owners[is_entry], queues)
        self._add_keys(found, topics, rows, is_ours & (kinds != ROLLBACK))
        self._add_pending(buffer, base, found, [topic for topic, _ in names], is_ours)

    def _add_pending(
        self,
        buffer: Buffer,
        base: int,
        found: Scan,
        topics: list[bytes],
        is_ours: NDArray[np.bool_],
    ) -> None:
        """Adds messages that wait for a time, and ends the waits that records end; `topics` are
        those of the queues that `owners` number.
        """
        tail = self._index.tails.active
        for position, size, is_prepared, ended, begun in waits_in(
            buffer, base, found, topics, is_ours
        ):
            pending = tail.prepared if is_prepared else tail.timers
            if ended is not None:
                topic = self._topic_named(ended.topic)
                # Of a topic that was deleted nothing waits, so nothing is counted.
                is_its = topic is not None and topic.since <= ended.position
                number = topic.base >> 32 if topic is not None and is_its else 0
                one = ended.position, ended.due, number, position
                pending.end_found(np.array(one, np.int64))
            if begun is not None:
                topic = self._topic_named(begun.topic)
                if topic is not None and position >= topic.since:
                    row = begun.due, position, topic.base >> 32, size
                    pending.add_found(np.array(row, np.int64))

    def _look_up(self, found: Scan, names: list[tuple[bytes, int]]) -> I64:
        """Looks up the topics of queues that were not met before, in the order of the log. Gives
        the row from which on each queue's topic is known; a record of an unknown one is passed
        over, and with the next of the queue its topic is asked for again.
        """
        known_from = np.zeros(len(names), np.int64)
        new = [number for number, name in enumerate(names) if name not in self._known]
        if not new:
            return known_from
        known_from[new] = len(found)
        numbers, firsts = np.unique(found.owners, return_index=True)
        due = sorted(firsts[np.isin(numbers, new)].tolist())
        while due:
            row = heappop(due)
            number = int(found.owners[row])
            raw, queue = names[number]
            topic = self._topic_of(raw, queue, int(found.positions[row]))
            if topic is None:
                later = np.flatnonzero(found.owners[row + 1 :] == number)
                if len(later):
                    heappush(due, row + 1 + int(later[0]))
                continue
            self._index.set_topic_byte(topic.base >> 32, topic.hash_byte)
            self._known[raw, queue] = topic
            known_from[number] = row
        return known_from

    def _schedule(
        self, buffer: Buffer, base: int, topics: list[bytes], rows: I64, owners: I64
    ) -> None:
        """Gives messages that wait for a delay level the number that RocketMQ gives them;
        `topics` are those of the queues that `owners` number.
        """
        waiting = [n for n, topic in enumerate(topics) if topic == _SCHEDULE_TOPIC]
        for row in np.flatnonzero(np.isin(owners, waiting)).tolist() if waiting else ():
            at, size = int(rows[row, 2]) - base, int(rows[row, 3])
            stored_at, properties = facts(buffer, at, size)[4:]
            rows[row, 4] = scheduled_code(properties, stored_at)

    def _add_entries(self, rows: I64, owners: I64, queues: I64) -> None:
        """Adds rows; `owners` number their queues, whose keys are `queues`."""
        if not len(rows):
            return
        order = np.argsort(owners.astype(np.uint16), kind="stable")
        sorted_owners, offsets = owners[order], rows[order, 1]
        starts = np.flatnonzero(np.diff(sorted_owners, prepend=-1))
        counts = np.diff(starts, append=len(rows))
        numbers = sorted_owners[starts]
        keys = queues[numbers].tolist()
        ends = np.array([self._end(key) for key in keys], np.int64)
        due = np.arange(len(rows)) - np.repeat(starts - ends, counts)
        follows = np.logical_and.reduceat(offsets == due, starts)
        # Two names that are no UTF-8 may be those of one queue.
        is_alone = len(set(keys)) == len(keys)
        for i, key in enumerate(keys):
            if key in self._held or not is_alone:
                follows[i] = False
            elif follows[i]:
                self._following[key] = int(ends[i] + counts[i])
        if not follows.all():
            is_odd = np.zeros(len(queues), np.bool_)
            is_odd[numbers[~follows]] = True
            is_odd_row = is_odd[owners]
            for row in rows[is_odd_row].tolist():
                self._add_entry(*row)
            rows = rows[~is_odd_row]
        self.entries += len(rows)
        self._fill_tail(rows)

    def _add_entry(
        self, key: int, offset: int, position: int, size: int, code: int, stored_at: int
    ) -> None:
        """Adds an entry, or holds it back until the queue's next one tells whether it is right."""
        row = (key, offset, position, size, code, stored_at)
        following = self._end(key)
        held = self._held.pop(key, None)
        if held is not None:
            if offset == held[1] + 1:
                self._take(held)  # two that agree: the gap is before them
                self._take(row)
                return
            self._refuse(held, following)
            if offset == following + 1:
                self._take(row)  # the held-back one should have been at `following`
                return
        is_gap = offset > following and (self.gaps_expected or not following)
        if offset == following or is_gap or self._is_beside_archives(key, offset, following):
            self._take(row)
        else:
            self._held[key] = row

    def _is_beside_archives(self, key: int, offset: int, following: int) -> bool:
        """Whether an entry may be where it is because other entries of its queue are in archives,
        before or behind it: an erasure moves segments out of turn. Archives get their locations
        before replay.
        """
        if not self.is_anew:
            return False
        if key not in self._following and offset > following:
            return True
        archived = self._index.locations.archived(key)
        if key not in self._following:
            self.before_archives.update([key] if archived else ())
            return bool(archived)
        at = bisect_left(archived, following)
        return at < len(archived) and archived[at] <= offset

    def _end(self, key: int) -> int:
        found = self._following.get(key)
        return self._index.end(key) if found is None else found

    def _take(self, row: _Row) -> None:
        key, offset = row[:2]
        if offset != self._end(key) and key in self._following:
            self._on_gap()
        self._following[key] = offset + 1
        self.entries += 1
        self._taken.append(row)

    def _refuse(self, row: _Row, due: int) -> None:
        self.refused.append((row[2], row[3], row[1], due))

    def finish(self) -> None:
        """Decides about the entries that are held back, and puts everything into the tail, before a
        checkpoint.
        """
        for key, row in self._held.items():
            following = self._end(key)
            # No later record contradicts it.
            if 0 < row[1] - following <= self.gone_records:
                self._take(row)
            else:
                self._refuse(row, following)
        self._held.clear()
        self._fill_tail(_NO_ENTRIES)

    def _add_keys(
        self, found: Scan, topics: list[ReplayTopic | None], rows: I64, is_keyed: NDArray[np.bool_]
    ) -> None:
        """Adds the keys of the rows that may have some."""
        key_rows, digests, least = found.keys
        # -1: it depends on the position.
        levels = np.array(
            [
                0 if topic is None or not topic.keys_ever
                else _ALL_KEYS if topic.key_level == _ALL_KEYS else -1
                for topic in topics
            ],
            np.int64,
        )[found.owners]  # fmt: skip
        for row in np.flatnonzero(levels < 0).tolist():
            topic = topics[int(found.owners[row])]
            assert topic is not None
            levels[row] = topic.key_level_at(int(rows[row, 2]))
        levels[~is_keyed] = _NO_KEY
        taken = levels[key_rows] >= least
        key_rows, digests = key_rows[taken], digests[taken]
        self.keys += len(digests)
        keys = np.stack((rows[key_rows, 0], rows[key_rows, 2], digests.astype(np.int64)), axis=1)
        self._index.tails.active.add_found(_NO_ENTRIES, keys)

    def _fill_tail(self, rows: I64) -> None:
        """Puts entries into the tail, with those of odd queues among them, in log order."""
        if self._taken:
            rows = np.concatenate((rows, np.array(self._taken, np.int64)))
            rows = rows[np.argsort(rows[:, 2], kind="stable")]
            self._taken = []
        if len(rows):
            self._index.tails.active.add_found(rows, _NO_KEYS)


def _is_there(rows: I64, ahead: Ahead) -> NDArray[np.bool_]:
    """Whether the index has entries ahead of its checkpoint."""
    queues, offsets, positions = rows[:, 0], rows[:, 1], rows[:, 2]
    is_before = (queues < ahead.queue) | ((queues == ahead.queue) & (offsets < ahead.offset))
    there: NDArray[np.bool_] = (positions < ahead.position) & is_before
    return there
