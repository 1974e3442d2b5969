"""How far groups are: figures for `lag` and `group_stats`, and samples for the history of offsets.

The idea: `todo` alone works out how far a group is in a queue, from the row of its offset and from
an in-flight table. All figures come from the counters of that table. A store that is opened
read-only makes it from the rows that there were then, at the first look, so it has the same
figures.

A commit writes its row of history itself. A popping group's progress lies between its locks and
moves with every ack, which shall not pay for a row. So the housekeeper samples: at each interval it
takes the groups that popped, or have messages under lock, works out what is done, and writes a row
where that has changed.

Invariants:

- A look changes nothing.
- A message counts once, as unread, in flight or done.
- A message that retention deleted is done.
- No look and no sample costs more for more messages under lock, but the first look after retention
  took some of these, which reads the rows once.
- A row of history says what was done at the time of its sample.
- No row is written where nothing changed, nor from a sample that a commit or a reset has overtaken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from kvstore.clock import Clock
from kvstore.message import Bounds
from kvstore.meta.groups import GroupInfo
from kvstore.meta.offsets import OffsetRow, Offsets
from kvstore.meta.topics import Topic, Topics
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import InflightTables
from kvstore.read.pull import first_at
from kvstore.read.reader import Reader

_SLICE: Final = 0.02
"""Seconds after which the housekeeper begins no further group's sample."""
_SHARE: Final = 50
"""One second of this many goes into sampling."""
_CLOSING: Final = 1.0
"""Seconds after which a close begins no further sample."""


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a topic, counted in messages over all queues.

    `end`: put so far. `taken`: handed out, or passed over by a filter, once at least. `unread`: not
    yet handed out. `in_flight`: handed out and not done; of these the lock of `due` has run out,
    and `redelivered` were handed out more than once. `lag`: what is still to be done, unread and in
    flight together, as in `Store.lag`. `oldest_due`: when the first lock runs out, or did, ms since
    the epoch; None if there is none. `oldest_at`: when the oldest message that is still to be done
    was stored, ms since the epoch, or up to an archive's span earlier if it is archived; None if
    there is none, or that can't be told. `dead_letters`: of this group, from all topics, that were
    neither taken nor put back. `passed_over`: refused by the group's filters, and so done, since
    its offset was last set. `expired`: passed over since then because they had expired, those among
    them that got a dead letter included.
    """

    group: str
    topic: str
    end: int
    taken: int
    unread: int
    in_flight: int
    due: int
    redelivered: int
    lag: int
    oldest_due: int | None
    dead_letters: int
    passed_over: int = 0
    expired: int = 0
    oldest_at: int | None = None


class Todo(NamedTuple):
    """How far a group is in a queue, and how many messages it has still to do there. `next_offset`
    is where its unread messages begin; `unread` includes parked ones.
    """

    committed: int | None
    next_offset: int
    bounds: Bounds
    unread: int
    parked: int
    in_flight: int
    redelivered: int
    passed_over: int
    expired: int

    @property
    def lag(self) -> int:
        """Messages that are still to be done."""
        return self.unread + self.in_flight

    @property
    def first(self) -> int:
        """The offset of the first of them."""
        begun = self.next_offset if self.committed is None else self.committed
        return max(begun, self.bounds.min_offset)


class LetterQueue(NamedTuple):
    """A queue that has dead letters of a group; `bounds` are where they may be."""

    topic: Topic
    queue: int
    bounds: Bounds


def letter_queues(
    group: GroupInfo, reader: Reader, topics: Topics, offsets: Offsets
) -> Iterator[LetterQueue]:
    """The queues that may have dead letters of a group, the former ones first."""
    for name in group.dead_letter_topics:
        topic, until = topics.find(name), group.former_dead_letters.get(name)
        if topic is None:
            continue  # it is made with the first letter
        for queue in range(topic.read_queues):
            bounds = reader.bounds(topic.base + queue)
            if until is not None:
                # Another use of that topic came behind it, or another topic of that name.
                end = offsets.first_at(topic.base + queue, until, bounds)
                bounds = Bounds(min(bounds.min_offset, end), end)
            yield LetterQueue(topic, queue, bounds)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The parts of a store that tell how far its groups are."""

    reader: Reader
    topics: Topics
    offsets: Offsets
    tables: InflightTables

    def todo(self, group: GroupInfo, topic: Topic, queue: int) -> Todo:
        """A group's remaining work in a queue. Every figure of its progress comes from here."""
        with self.tables.locked(group.id, topic.id) as table:
            # Inside, so that nothing is popped between the looks.
            bounds = self.reader.bounds(topic.base + queue)
            row = self.offsets.committed(group.id, topic.id, queue, bounds)
            committed = None if row is None else _done_below(row.offset, table.lowest(queue))
            locked, redelivered, parked = table.held_from(queue, bounds.min_offset)
        following = (
            start_of(self.reader, self.offsets, group, topic, queue) if row is None else row.offset
        )
        # Messages that retention deleted before the group came to them are not owed to it.
        unread = bounds.next_offset - max(following, bounds.min_offset) + parked
        passed = 0 if row is None else row.passed_over
        expired = 0 if row is None else row.expired
        return Todo(
            committed, following, bounds, unread, parked, locked, redelivered, passed, expired
        )

    def committed(self, group: GroupInfo, topic: Topic, queue: int) -> int | None:
        """The first offset of a queue that a group is not done with; None if it never began
        there.
        """
        with self.tables.locked(group.id, topic.id) as table:
            bounds = self.reader.bounds(topic.base + queue)
            found = self.offsets.get(group.id, topic.id, queue, bounds)
            return None if found is None else _done_below(found, table.lowest(queue))

    def stats(self, group: GroupInfo, topic: Topic, now: int) -> GroupStats:
        """A group's figures in a topic."""
        todo = [self.todo(group, topic, queue) for queue in range(topic.read_queues)]
        with self.tables.locked(group.id, topic.id) as table:
            due, oldest_due = table.due_figures(
                now, lambda queue: self.reader.bounds(topic.base + queue).min_offset
            )
        taken = sum(one.next_offset for one in todo if one.committed is not None)
        return GroupStats(
            group=group.name,
            topic=topic.name,
            end=sum(one.bounds.next_offset for one in todo),
            taken=taken - sum(one.parked for one in todo),
            unread=sum(one.unread for one in todo),
            in_flight=sum(one.in_flight for one in todo),
            due=due,
            redelivered=sum(one.redelivered for one in todo),
            lag=sum(one.lag for one in todo),
            oldest_due=oldest_due,
            dead_letters=self._dead_letters(group),
            passed_over=sum(one.passed_over for one in todo),
            expired=sum(one.expired for one in todo),
            oldest_at=min(self._stored(topic, todo), default=None),
        )

    def _stored(self, topic: Topic, todo: Sequence[Todo]) -> Iterator[int]:
        """The store times of the first messages that are still to be done, by queue."""
        for queue, one in enumerate(todo):
            stored = self.reader.stored_from(topic, queue, one.first) if one.lag else None
            if stored is not None:
                yield stored

    def _dead_letters(self, group: GroupInfo) -> int:
        count = 0
        for letters, queue, bounds in self._letter_queues(group):
            held = self.reader.bounds(letters.base + queue)
            taken = self.offsets.get(group.id, letters.id, queue, held)
            count += max(0, bounds.next_offset - max(taken or 0, bounds.min_offset))
        return count

    def _letter_queues(self, group: GroupInfo) -> Iterable[LetterQueue]:
        return letter_queues(group, self.reader, self.topics, self.offsets)

    def spent_letters(self, group: GroupInfo) -> set[str]:
        """The former topics that hold no dead letters of a group any more."""
        held = {
            letters.name
            for letters, _, bounds in self._letter_queues(group)
            if bounds.min_offset < bounds.next_offset
        }
        return group.former_dead_letters.keys() - held


def _done_below(offset: int, lowest: int | None) -> int:
    """The offset below which all is done: the given one, or the lowest that is held below it."""
    return offset if lowest is None else min(offset, lowest)


def start_of(reader: Reader, offsets: Offsets, group: GroupInfo, topic: Topic, queue: int) -> int:
    """Where a group begins in a queue in which it never committed."""
    bounds = reader.bounds(topic.base + queue)
    if group.start == "begin":
        return bounds.min_offset
    if group.start == "end":
        return offsets.first_at(topic.base + queue, group.since, bounds)
    return first_at(reader, topic, queue, group.start, group.name)


class ProgressHistory:
    """Samples the progress of popping groups, see the module."""

    def __init__(
        self, offsets: Offsets, tables: InflightTables, clock: Clock, *, after_crash: bool
    ) -> None:
        """`after_crash`: the opening before may not have taken its last sample."""
        self._offsets = offsets
        self._tables = tables
        self._clock = clock
        self._after_crash = after_crash
        self._interval = offsets.history_rows.interval_ms / 1000
        self._sample_at = clock.monotonic()

    def due(self) -> bool:
        """Whether it is time for another sample."""
        return bool(self._offsets.moved) and self._clock.monotonic() >= self._sample_at

    def sample(self) -> None:
        """Samples as many groups as there is time for, the longest unsampled first."""
        begin = self._clock.monotonic()
        self._sample_until(begin + _SLICE)
        end = self._clock.monotonic()
        self._sample_at = end + max(self._interval, (end - begin) * _SHARE)

    def finish(self) -> None:
        """Samples before a close."""
        self._sample_until(self._clock.monotonic() + _CLOSING)

    def sample_queue(self, group: int, topic: int, queue: int) -> None:
        """Samples one queue, whose history is asked for."""
        if not self._offsets.history_rows.is_on:
            return
        # A queue without history that nobody popped from gets none.
        only_known = (group, topic) not in self._offsets.moved
        if only_known and not self._after_crash:
            return
        if next(self._offsets.rows_of(group, topic, queue), None) is not None:
            with self._tables.locked(group, topic) as table:
                rows = self._offsets.rows_of(group, topic, queue)
                self._write(rows, table, only_known=only_known)

    def _sample_until(self, until: float) -> None:
        moved = self._offsets.moved
        for pair in list(moved):
            moved.pop(pair, None)
            try:
                may_move = self._sample(*pair)
            except BaseException:
                moved[pair] = True
                raise
            if may_move:
                moved[pair] = True
            if self._clock.monotonic() > until:
                return

    def _sample(self, group: int, topic: int) -> bool:
        """Samples a group in a topic. Returns whether it has messages locked or parked, whose end
        moves the progress.
        """
        if next(self._offsets.rows_of(group, topic), None) is None:
            return False  # deleted, or there never was such a group
        with self._tables.locked(group, topic) as table:
            self._write(self._offsets.rows_of(group, topic), table, only_known=False)
            return bool(table.rows or table.parked_count)

    def _write(self, rows: Iterable[OffsetRow], table: InflightTable, *, only_known: bool) -> None:
        """Writes the progress in some queues where it differs from the last record."""
        changed = []
        for row in rows:
            lowest = table.lowest(row.queue)
            done = _done_below(row.offset, lowest)
            last = self._offsets.history_rows.last(row.key)
            if last != done and (last is not None or not only_known):
                changed.append(row._replace(offset=done))
        if not table.dead:
            self._offsets.write_history(changed)
