"""Schedules: makes, pauses and removes them, and puts the next message of each.

The idea: a schedule that is not paused has one delayed message that waits, for its next time. When
that one is due, the message of the time after is put first, and then the due one is delivered. So
the log has a chain of messages, and never a delivery without the message after it: the log says how
far a schedule is, and the rows say what it puts (docs/timing.md). Memory has the times of all
messages that wait in chains, so a delivery finds them by one look-up each.

A step that was cut short, by a crash or an exception, is looked at again before the next delivery:
the ids of a schedule's messages are made of its number, its revision and their times, so the log
tells which of them are there.

Invariants:

- A message that waits for a schedule has its row, which is not paused: the row comes before the
  message of a new schedule, and goes after the last wait of an old one has ended, each when the
  disk has the step before.
- The message of a time is put once, and not delivered before the one after waits.
- No delivery reads rows of schedules whose time has not come.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from kvstore.core.names import DATES_END, TIMER_TOPIC
from kvstore.errors import (
    ArchiveUnavailable,
    CallerError,
    Damaged,
    IndexDamaged,
    MessageIllegal,
    MessageNotFound,
    ScheduleExists,
    ScheduleIllegal,
    StoreError,
    TopicNotFound,
    shown,
)
from kvstore.message import Message
from kvstore.record.put.explain import DELAY_MAX
from kvstore.timing.delayed_message import delayed_of
from kvstore.timing.firing_chain import FiringChain
from kvstore.timing.pending_messages import Putting, TimingContext
from kvstore.timing.recurrence import first_after, recurrence_of
from kvstore.timing.schedule_rows import (
    ID_BEGIN,
    NAME_PROPERTY,
    NUMBERS_END,
    TIME_PROPERTY,
    ScheduleFields,
    ScheduleInfo,
    ScheduleRow,
    ScheduleRows,
    check_lifetime,
    check_name,
    expiry_of,
    id_begin,
)
from kvstore.timing.timers import Timers

if TYPE_CHECKING:
    from kvstore.core.tail import Waiting

_log = logging.getLogger("kvmq")
_STEPS_MAX: Final = 1000
"""Times that are looked for in the log behind the last one that is known."""
_MISSED: Final = ("skip", "once", "all")


class _Firing(NamedTuple):
    """A message of a schedule that is to be put."""

    chain: FiringChain
    row: ScheduleRow
    time: int


class Schedules:
    """The schedules of a store that is open for writing; see the module."""

    def __init__(
        self,
        context: TimingContext,
        rows: ScheduleRows,
        timers: Timers,
        writer: Putting,
        flush: Callable[[], object],
    ) -> None:
        self._log = context.log
        self._topics = context.topics
        self._clock = context.clock
        self._rows = rows
        self._timers = timers
        self._writer = writer
        self._flush = flush
        self._lock = timers.pending.lock
        self._chains: dict[str, FiringChain] = {}
        self._names: dict[str, str] = {}
        """The names of schedules by the beginnings of the ids of their messages."""
        self._at: dict[tuple[int, int], dict[str, FiringChain]] = {}
        """The chains by the times for which they wait, the ids of their topics, and those of their
        messages.
        """
        self._unsure: set[str] | None = None
        """Schedules whose last step may not be whole; None: all of them, since the opening."""
        self._turn: list[tuple[FiringChain, int]] = []
        """Messages that are being delivered."""

    # --- calls ---

    def create(self, name: str, asked: ScheduleFields, *, exist_ok: bool) -> ScheduleInfo:
        """See `Store.schedule`."""
        with self._lock:
            self.settle()
            check_name(name, asked.topic)
            found = self._rows.find(name)
            if found is not None and exist_ok:
                return self._rows.info(name, found)
            if found is not None:
                raise ScheduleExists(
                    f"schedule {shown(name)} exists already; use exist_ok=True to take it as it "
                    "is, or delete it first to change it"
                )
            row = self._row_of(asked)
            self._begin(name, row, lambda: self._rows.remove(name))
            return self._rows.info(name, row)

    def _row_of(self, asked: ScheduleFields) -> ScheduleRow:
        """The row that a caller asks for, checked."""
        if asked.missed not in _MISSED:
            raise CallerError(f"missed is {shown(asked.missed)}; it must be one of {_MISSED}")
        self._topics.get(asked.topic)
        now = self._writer.begin_put()
        recurrence_of(asked.cron, asked.every, asked.zone, now)
        properties: Any = {} if asked.properties is None else asked.properties
        check_lifetime(asked.expires_after)
        self._writer.encode(
            [
                Message(
                    asked.topic, asked.body, asked.queue, asked.tag, asked.keys, properties,
                    asked.message_group, deliver_at=now + 1000,
                    expires_at=expiry_of(now, asked.expires_after),
                )
            ],
            now,
        )  # fmt: skip
        for ours in (NAME_PROPERTY, TIME_PROPERTY):
            if ours in properties:
                raise MessageIllegal(f"property {ours!r} is the schedule's own; use another name")
        fields = msgspec.structs.asdict(asked) | {
            "body": bytes(asked.body),
            "every": None if asked.every is None else float(asked.every),
            "keys": list(asked.keys),
            "properties": dict(properties),
            "created_at": now,
        }
        return ScheduleRow(number=secrets.randbelow(NUMBERS_END), revision=1, **fields)

    def pause(self, name: str) -> ScheduleInfo:
        """See `Store.pause_schedule`."""
        with self._lock:
            self.settle()
            row = self._rows.get(name)
            if not row.is_paused:
                with self._stepping(name):
                    self._end(name, row)
                    row = msgspec.structs.replace(row, is_paused=True)
                    self._rows.write(name, row, [])
            return self._rows.info(name, row)

    def resume(self, name: str) -> ScheduleInfo:
        """See `Store.resume_schedule`."""
        with self._lock:
            self.settle()
            old = row = self._rows.get(name)
            if old.is_paused:
                row = msgspec.structs.replace(
                    old, revision=old.revision + 1, is_paused=False, failure=None
                )
                self._begin(name, row, lambda: self._rows.write(name, old, []))
            return self._rows.info(name, row)

    def delete(self, name: str) -> None:
        """See `Store.delete_schedule`."""
        with self._lock:
            self.settle()
            row: ScheduleRow | None = None
            with suppress(IndexDamaged):
                row = self._rows.get(name)
            with self._stepping(name):
                if row is not None:
                    self._end(name, row)
                self._rows.remove(name)

    def _begin(self, name: str, row: ScheduleRow, undo: Callable[[], None]) -> None:
        """Writes a row, and puts the first message of its chain."""
        now = self._writer.begin_put()
        first = _within(first_after(row.recurrence(), now), now)
        if first is None:
            raise ScheduleIllegal(f"schedule {shown(name)} has no time in the next 40 years")
        batch = self._writer.encode([self._message(name, row, first)], min(now, first - 1))
        with self._stepping(name):
            with self._topics.lock:
                self._topics.get(row.topic)
                self._rows.write(name, row, [first])
            try:
                self._writer.put(batch, self._writer.begin_put())
            except BaseException:
                with suppress(StoreError):
                    self._end(name, row)
                    undo()
                raise

    def _end(self, name: str, row: ScheduleRow) -> None:
        """Ends the waits of a schedule's messages; the disk has that when it returns."""
        for time in self._rows.times(name):
            with suppress(MessageNotFound):
                self._timers.end_wait(row.message_id(time), None)
        self._flush()

    def owner(self, message_id: object) -> str | None:
        """The schedule whose message that waits has an id, or None."""
        if not isinstance(message_id, str):
            return None
        name = self._names.get(message_id[:ID_BEGIN])
        chain = None if name is None else self._chains[name]
        if chain is None or message_id not in map(chain.message_id, chain.times):
            return None
        return name

    # --- steps ---

    def settle(self) -> None:
        """Looks at the schedules whose last step may not be whole, and puts messages that lack."""
        unsure = self._unsure
        if unsure is None:
            unsure = set(self._rows.names())
            self._unsure = set(unsure)
        for name in sorted(unsure):
            self._look(name)

    @contextmanager
    def _stepping(self, name: str) -> Iterator[None]:
        """Has a schedule looked at behind a step, now, or at the next delivery if it is cut
        short.
        """
        self._mark_unsure(name)
        yield
        self._look(name)

    def _mark_unsure(self, name: str) -> None:
        if self._unsure is not None:
            self._unsure.add(name)

    def _look(self, name: str) -> None:
        """Makes a schedule's chain anew, of rows and log; puts the message that should wait."""
        self._mark_unsure(name)
        self._forget(name)
        try:
            self._find_chain(name)
        except (ScheduleIllegal, Damaged) as e:
            # The machine has lost the zone, or the row is damaged: others go on.
            _log.error("%s: the schedule %s stands still: %s", self._path, shown(name), str(e))
        if self._unsure is not None:
            self._unsure.discard(name)

    @property
    def _path(self) -> object:
        return self._log.folder.parent

    def _find_chain(self, name: str) -> None:
        row = self._rows.find(name)
        if row is None or row.is_paused:
            return
        topic = self._topics.find(row.topic)
        if topic is None:
            self._rows.remove(name)
            return
        chain = FiringChain(name, row, topic.id)
        self._chains[name] = chain
        self._names[id_begin(row.number)] = name
        known = self._rows.times(name)
        for time in known:
            if self._timers.is_waiting(row.message_id(time), time):
                self._add(chain, time)
        if not chain.times:
            self._mend(chain, row, known[-1] if known else None)
        if chain.times != known:
            self._rows.write_times([(name, chain.times)])

    def _mend(self, chain: FiringChain, row: ScheduleRow, last: int | None) -> None:
        """Finds the message of a chain that waits behind the last one that is known, or puts it."""
        now = self._clock.now_ms()
        recurrence = row.recurrence()
        time = last
        for _ in range(_STEPS_MAX):
            if time is None or not self._was_put(row, time):
                break
            time = first_after(recurrence, time)
            if time is not None and self._timers.is_waiting(row.message_id(time), time):
                self._add(chain, time)
                return
        if time is None or time <= now:
            time = first_after(recurrence, now)
        time = _within(time, now)
        if time is not None:
            self._put([_Firing(chain, row, time)], now)

    def _was_put(self, row: ScheduleRow, time: int) -> bool:
        """Whether the message of a time was put, and not cancelled."""
        try:
            message = self._timers.newest(row.message_id(time))
        except (MessageNotFound, Damaged, ArchiveUnavailable):
            return False
        return message.topic != TIMER_TOPIC or delayed_of(message) is not None

    def _put(self, firings: Sequence[_Firing], now: int) -> None:
        """Puts messages, which wait for their times also if these have come. A schedule whose
        message is refused is paused.
        """
        try:
            messages = [self._message(one.chain.name, one.row, one.time) for one in firings]
            before = min(one.time for one in firings) - 1
            batch = self._writer.encode(messages, min(now, before))
        except TopicNotFound:
            raise
        except CallerError as e:
            if len(firings) > 1:
                for one in firings:
                    self._put([one], now)
            else:
                self._pause(firings[0], str(e))
            return
        self._writer.put(batch, self._writer.begin_put())
        for one in firings:
            self._add(one.chain, one.time)

    def _pause(self, firing: _Firing, why: str) -> None:
        chain = firing.chain
        _log.error("%s: schedule %s is paused: %s", self._path, shown(chain.name), why)
        paused = msgspec.structs.replace(firing.row, is_paused=True, failure=why)
        self._rows.write(chain.name, paused, chain.times)

    def _message(self, name: str, row: ScheduleRow, time: int) -> Message:
        return row.message(name, time, self._topics.get(row.topic).write_queues)

    # --- in a delivery ---

    def fire(self, due: Sequence[Waiting], now: int) -> set[int]:
        """Puts the next messages of schedules of which messages are due, before these are
        delivered. Returns the positions of those that are not, since they were missed.
        """
        passed_over: set[int] = set()
        self._turn = []
        following: list[_Firing] = []
        for time, position, topic, _ in due if self._at else ():
            waiting = self._at.get((time, topic))
            if waiting is None:
                continue
            found = self._timers.id_at(position)
            # A record that is damaged is not delivered, but the chains go on.
            chains = tuple(waiting.values()) if found is None else (waiting.get(found),)
            for chain in chains:
                if chain is not None and not self._step(chain, time, now, following):
                    passed_over.add(position)
        if following:
            self._rows.write_times(
                [(one.chain.name, [*one.chain.times, one.time]) for one in following]
            )
            self._put(following, now)
        return passed_over

    def fired(self) -> None:
        """Notes that the messages of `fire` were delivered, or cancelled."""
        if not self._turn:
            return
        changed: dict[str, list[int]] = {}
        for chain, time in self._turn:
            self._remove(chain, time)
            changed[chain.name] = chain.times
        self._rows.write_times(list(changed.items()))
        if self._unsure is not None:
            self._unsure.difference_update(changed)
        self._turn = []

    def _step(self, chain: FiringChain, time: int, now: int, following: list[_Firing]) -> bool:
        """Takes a chain's step from a message that is due, and adds the next one to `following`;
        whether the due one is delivered.
        """
        name = chain.name
        row = self._rows.find(name)
        if row is None:
            self._forget(name)
            return True
        self._mark_unsure(name)
        self._turn.append((chain, time))
        is_delivered, after = chain.step(time, now)
        after = _within(after, now)
        if after is not None and chain.times[-1] == time:
            following.append(_Firing(chain, row, after))
        return is_delivered

    # --- memory ---

    def _add(self, chain: FiringChain, time: int) -> None:
        chain.times.append(time)
        self._at.setdefault((time, chain.topic_id), {})[chain.message_id(time)] = chain

    def _remove(self, chain: FiringChain, time: int) -> None:
        if time in chain.times:
            chain.times.remove(time)
        at = time, chain.topic_id
        waiting = self._at.get(at, {})
        waiting.pop(chain.message_id(time), None)
        if not waiting:
            self._at.pop(at, None)

    def _forget(self, name: str) -> None:
        chain = self._chains.pop(name, None)
        if chain is not None:
            for time in tuple(chain.times):
                self._remove(chain, time)
            self._names.pop(chain.id_begin, None)


def _within(time: int | None, now: int) -> int | None:
    """A time, unless no message can wait for it."""
    if time is None or time - now > DELAY_MAX * 1000 or time >= DATES_END:
        return None
    return time
