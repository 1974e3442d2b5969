"""Verifies messages that wait: their rows in the index against the log, and schedules' rows.

The idea: the walk through the log tells which messages wait, in columns: those that it met, less
those whose waits it saw end. The rows are read once and compared with these: each row must be that
of one message, and each message must have its row. The log may have gone on meanwhile, so a row or
message that seems wrong is looked at again, also behind the end of the walk.

Invariants: a message costs the same however many there are; memory has the messages that wait, not
all that ever did; only the part of the log that the first checkpoint covered is held against rows,
and the end of a wait counts wherever it is.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kvstore.core.pending.pending_records import read_pending
from kvstore.core.records import facts
from kvstore.core.scan import Scan
from kvstore.engine.engine_context import EngineContext
from kvstore.errors import Damaged, IndexDamaged, ScheduleIllegal, SegmentDamaged, shown
from kvstore.index.keys import (
    AHEAD,
    CHECKPOINT,
    META,
    TIMERS,
    TIMERS_END,
    TRANSACTIONS,
    read_timer,
    read_timer_count,
    timer_key,
)
from kvstore.record.waits import waits_in
from kvstore.record.walk import walk
from kvstore.timing.prepared_list import PreparedList
from kvstore.timing.schedule_rows import ScheduleRows
from kvstore.timing.timer_rows import TimerRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore.core.records import Buffer

I64 = NDArray[np.int64]
_FIELDS: Final = 4
"""The fields of a message that waits: position, due time, topic, size of the record."""
_AT_ONCE: Final = 4096
_FEW: Final = 1 << 16
"""Waits that end before those that ended are taken out of the others."""
_SNAPSHOTS_MAX: Final = 8


def are_among(values: I64, others: I64) -> NDArray[np.bool_]:
    """For each value whether it is one of the others. Other threads run meanwhile; `np.isin` lets
    them wait, for 100 ms where there are 600,000.
    """
    if not len(others):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(others)
    there = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    found: NDArray[np.bool_] = ordered[there] == values
    return found


class TellWait(Protocol):
    """Lists a problem with a wait: its message, the position of the record, and its topic."""

    def __call__(self, what: str, position: int, topic: str) -> None:
        """See the class."""
        ...


class WaitingFound:
    """The messages of one kind that wait, as a walk through the log finds them."""

    def __init__(self) -> None:
        self._begun: list[I64] = []
        self._ended: list[I64] = []
        self._begun_count = self._ended_count = 0
        self.ended_late: set[int] = set()
        """Positions of messages whose waits ended behind the checkpoint: they may have rows."""

    def __len__(self) -> int:
        """How many rows and positions are kept."""
        return self._begun_count + self._ended_count

    def add(self, begun: list[tuple[int, ...]], ended: list[int]) -> None:
        """Notes messages that wait, and positions of messages that wait no more."""
        if begun:
            self._begun.append(np.array(begun, np.int64))
            self._begun_count += len(begun)
        if ended:
            self._ended.append(np.array(ended, np.int64))
            self._ended_count += len(ended)
        if self._ended_count > max(_FEW, self._begun_count // 2):
            self.rows()

    def rows(self) -> I64:
        """The messages that wait, in the order of their positions."""
        found = np.concatenate((np.empty((0, _FIELDS), np.int64), *self._begun))
        ended = np.concatenate((np.empty(0, np.int64), *self._ended))
        found = found[~are_among(found[:, 0], ended)]
        found = found[np.argsort(found[:, 0], kind="stable")]
        self._begun, self._ended = [found], []
        self._begun_count, self._ended_count = len(found), 0
        return found


class WaitsCheck:
    """Compares messages that wait with their rows; see the module."""

    def __init__(self, context: EngineContext, end: int, tell: TellWait) -> None:
        """`end` is the end of the log that is walked through."""
        self._context = context
        self._families = context.index.families
        self._end = end
        self._covered = min(context.index.checkpoint.position, end)
        self._tell = tell
        self._kinds = {TIMERS: WaitingFound(), TRANSACTIONS: WaitingFound()}

    def add(self, buffer: Buffer, base: int, found: Scan, topics: list[bytes]) -> None:
        """Notes the waits of a scan, whose buffer begins at `base`; `topics` are those of its
        queues.
        """
        begun: dict[str, list[tuple[int, ...]]] = {TIMERS: [], TRANSACTIONS: []}
        ended: dict[str, list[int]] = {TIMERS: [], TRANSACTIONS: []}
        for position, size, is_prepared, end, begin in waits_in(buffer, base, found, topics, None):
            family = TRANSACTIONS if is_prepared else TIMERS
            if end is not None:
                ended[family].append(end.position)
                if position >= self._covered:
                    self._kinds[family].ended_late.add(end.position)
            topic = None if begin is None else self._context.topics.find(begin.topic)
            if begin is not None and topic is not None and topic.since <= position < self._covered:
                begun[family].append((position, begin.due, topic.base >> 32, size))
        for family, kind in self._kinds.items():
            kind.add(begun[family], ended[family])

    def compare(self) -> None:
        """Lists what is wrong with the rows, when all of the log was walked through."""
        for family, kind in self._kinds.items():
            waiting = kind.rows()
            has_row = self._compare_rows(family, waiting, kind.ended_late)
            without = waiting[~has_row]
            if len(without):
                self._tell_missing(family, without)

    # --- rows against the log ---

    def _compare_rows(self, family: str, waiting: I64, ended_late: set[int]) -> NDArray[np.bool_]:
        """Lists rows that are wrong; which of the messages that wait have a row."""
        has_row = np.zeros(len(waiting), np.bool_)
        counts: dict[int, int] = {}
        says: dict[int, int] = {}
        rows, is_whole = self._snapshot(family)
        for piece in iter(lambda: list(islice(rows, _AT_ONCE)), []):
            read = [self._read(family, key, value, says) for key, value in piece]
            found = [one for one in read if one is not None]
            there = np.array(found, np.int64).reshape(len(found), _FIELDS)
            at = np.searchsorted(waiting[:, 0], there[:, 0])
            at = np.minimum(at, max(0, len(waiting) - 1))
            is_right = np.zeros(len(there), np.bool_)
            if len(waiting):
                is_right = (waiting[at] == there).all(axis=1)
                has_row[at[is_right]] = True
            for one in found:
                counts[one[2]] = counts.get(one[2], 0) + 1
            for row in there[~is_right].tolist():
                if row[0] not in ended_late:
                    self._look_again(family, row)
        if is_whole:
            self._compare_counts(family, counts, says)
        return has_row

    def _snapshot(self, family: str) -> tuple[Iterator[tuple[bytes, bytes]], bool]:
        """The rows of one moment, and whether that was not amid a checkpoint in pieces, whose last
        one has the counts.
        """
        looks = 0
        while True:
            before = self._checkpoint_rows()
            rows = self._families.rows(family, b"")
            first = list(islice(rows, 1))
            is_whole = before[1] is None and before == self._checkpoint_rows()
            looks += 1
            if is_whole or looks == _SNAPSHOTS_MAX:
                return chain(first, rows), is_whole

    def _checkpoint_rows(self) -> tuple[bytes | None, bytes | None]:
        get = self._families.get
        return get(META, CHECKPOINT), get(META, AHEAD)

    def _read(
        self, family: str, key: bytes, value: bytes, says: dict[int, int]
    ) -> tuple[int, int, int, int] | None:
        """The fields of a message's row; None for a row of another form. The count of a topic goes
        to `says`.
        """
        is_count = key >= TIMERS_END
        if len(key) != 2 * len(TIMERS_END) or len(value) != len(TIMERS_END):
            self._tell(f"a row of {family} has {len(key)} and {len(value)} bytes", -1, "")
            return None
        if is_count:
            topic, count = read_timer_count(key, value)
            says[topic] = count
            return None
        due, position, topic, size = read_timer(key, value)
        return position, due, topic, size

    def _look_again(self, family: str, row: list[int]) -> None:
        """Lists a row that is of no message that waited when the walk began, if it is still there,
        and no message that came since has it.
        """
        position, due, topic, size = row
        value = self._families.get(family, timer_key(due, position))
        if value is None or read_timer(timer_key(due, position), value) != (
            due, position, topic, size,
        ):  # fmt: skip
            return
        name = self._context.topics.name_of(topic)
        has = self._what_log_has(position, row, name)
        if has is None and position >= self._covered:
            return
        says = f"row of {family} says due {due}, topic id {topic}, {size} bytes"
        self._tell(f"{says}; {has or 'a later record ended the wait'}", position, name or "")

    def _what_log_has(self, position: int, row: list[int], name: str | None) -> str | None:
        """The difference between a row and the record that it names; None if there is none."""
        try:
            buffer, at, _ = self._context.log.span(position)
            size = int.from_bytes(buffer[at : at + 4], "big")
            pending = read_pending(facts(buffer, at, size)[5])
        except Damaged as e:
            return f"the log has no such record: {e}"
        if pending is None:
            return "the record there is of no message that waits"
        if (pending[0], pending[1], size) != (row[1], name, row[3]):
            return f"the record has due {pending[0]}, topic {pending[1]}, {size} bytes"
        return None

    def _compare_counts(self, family: str, counts: dict[int, int], says: dict[int, int]) -> None:
        for topic in sorted(counts.keys() | says.keys()):
            has, said = counts.get(topic, 0), says.get(topic, 0)
            if has != said:
                name = self._context.topics.name_of(topic) or ""
                what = f"{family} counts {said} messages of topic id {topic}, and has {has} rows"
                self._tell(what, -1, name)

    # --- the log against rows ---

    def _tell_missing(self, family: str, without: I64) -> None:
        """Lists messages that wait and have no row, if that is so still."""
        rows = TimerRows(self._context.index, is_prepared=family == TRANSACTIONS)
        lost = [row for row in without.tolist() if not rows.is_waiting(row[1], row[0])]
        ended = self._ended_since(family) if lost else set()
        for position, due, topic, _ in lost:
            name = self._context.topics.name_of(topic)
            if position not in ended and name is not None:
                what = f"the message waits until {due}, and has no row in {family}"
                self._tell(what, position, name)

    def _ended_since(self, family: str) -> set[int]:
        """The positions of messages whose waits ended behind the end of the walk."""
        log, found = self._context.log, set[int]()
        log.drain()
        at, end = self._end, self._context.reader.visible_end()
        while at < end:
            number, begin = divmod(at, log.segment_size)
            base = number * log.segment_size
            stop = min(log.segment_size, end - base)
            try:
                buffer = log.segments.buffer(number)
            except SegmentDamaged:
                break
            for one in walk(buffer, base, begin, stop, with_names=True):
                if isinstance(one, Scan):
                    topics = [topic for topic, _ in one.owner_names(buffer)]
                    for wait in waits_in(buffer, base, one, topics, None):
                        if wait.ended is not None and wait.is_prepared == (family == TRANSACTIONS):
                            found.add(wait.ended.position)
            at = base + log.segment_size
        return found


def verify_sets(context: EngineContext, tell: TellWait) -> None:
    """Lists the sets of prepared messages of which some wait, and others have ended."""
    prepared = PreparedList(context.timing(), TimerRows(context.index, is_prepared=True))
    with suppress(ValueError):  # a row of another form, which is listed already
        for whole in prepared.halves():
            first = whole.messages[0]
            is_committed = whole.end is not None and whole.end.is_committed
            how = "committed" if is_committed else "rolled back"
            tell(
                f"the transaction {shown(first.set_id)} is half: {len(whole.messages)} of its "
                f"messages wait, the others were {how}; end {shown(first.message_id)} likewise",
                first.message.position,
                first.topic,
            )


def verify_schedules(context: EngineContext, tell: TellWait) -> None:
    """Lists rows of schedules that can't be read, or whose topic there is not, and those of first
    times that are not the schedules'. Whether the message of a schedule waits is not asked: it is
    looked for in the log when its time comes, and put.
    """
    rows = ScheduleRows(context.index.families)
    for name in rows.names():
        try:
            row = rows.find(name)
            if row is None:
                continue
            row.recurrence()
            rows.times(name)
        except (IndexDamaged, ScheduleIllegal) as e:
            tell(str(e), -1, "")
            continue
        if context.topics.find(row.topic) is None and rows.find(name) is not None:
            tell(f"schedule {shown(name)} puts to a topic that there is not", -1, row.topic)
    for fault in rows.faults():
        tell(fault, -1, "")
