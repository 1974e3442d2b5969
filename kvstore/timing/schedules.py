"""Schedules: makes, pauses and removes them, and puts the next message of each.

The idea: a schedule that is not paused has one delayed message that waits, for its next time. When
that one is due, the message of the time after is put first, and then the due one is delivered. So
the log has a chain of messages, and never a delivery without the message after it: the log says how
far a schedule is, and the rows say what it puts (docs/timing.md). Memory has the times of messages
that wait in chains, so a delivery finds them by one look-up each. A schedule's chain is made when
its first time has come since the opening: its row says when, and the log which of its messages are
there, since their ids are made of its number, its revision and their times. It is made anew behind
a step that an exception cut short.

Invariants:

- A message that waits for a schedule has its row, which is not paused: the row comes before the
  message of a new schedule, and goes after the last wait of an old one has ended, each when the
  disk has the step before.
- The message of a time is put once, and not delivered before the one after waits.
- A schedule's row of times has each time whose message waits, also after a power cut, which may
  take the end of the log: a time leaves the row when the disk has the message's delivery.
- No delivery reads rows of schedules whose time has not come.
- A schedule's rows are written under the topics' lock, and only while they are there: a topic that
  is deleted at the same time takes all of them along.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from kvstore.core.names import TIMER_TOPIC
from kvstore.errors import (
    ArchiveUnavailable,
    CallerError,
    Damaged,
    IndexDamaged,
    MessageIllegal,
    MessageNotFound,
    ScheduleExists,
    ScheduleIllegal,
    ScheduleNotFound,
    StoreError,
    TopicNotFound,
    shown,
)
from kvstore.message import Message
from kvstore.meta.namespaces import namespace_of, wrap
from kvstore.record.put.explain import DELAY_MAX, times_of
from kvstore.timing.delayed_message import DelayedMessage, delayed_of
from kvstore.timing.firing_chain import FiringChain
from kvstore.timing.pending_messages import Putting, TimingContext
from kvstore.timing.recurrence import first_after, recurrence_of
from kvstore.timing.schedule_rows import (
    AT_ONCE,
    NAME_PROPERTY,
    NEVER,
    NUMBERS_END,
    TIME_PROPERTY,
    ScheduleFields,
    ScheduleInfo,
    ScheduleRow,
    ScheduleRowDamaged,
    ScheduleRows,
    check_lifetime,
    check_name,
    expiry_of,
)
from kvstore.timing.timers import Timers

if TYPE_CHECKING:
    from kvstore.core.tail import Waiting

_log = logging.getLogger("kvmq")
_STEPS_MAX: Final = 1000
"""Times that are looked for in the log behind the last one that is known."""
_NAMED: Final = f"{NAME_PROPERTY}\x01".encode()
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
        self._index = context.index
        self._topics = context.topics
        self._clock = context.clock
        self._times_end = times_of(context.any_time)[1]
        self._rows = rows
        self._timers = timers
        self._writer = writer
        self._flush = flush
        self._lock = timers.pending.lock
        self._chains: dict[str, FiringChain] = {}
        self._at: dict[tuple[int, int], dict[str, FiringChain]] = {}
        """The chains by the times for which they wait, the ids of their topics, and those of their
        messages.
        """
        self._unsure: set[str] = set()
        """Schedules whose last step may not be whole."""
        self.next_look: int | None = None
        """No schedule without a chain is due before this time, ms; None: nobody looked yet."""
        self._untidy: set[str] = set()
        """Schedules whose rows have times that were delivered."""
        self._tidied = self._index.checkpoint.position
        """The checkpoint at which these were looked at."""
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
                    expires_at=expiry_of(now, asked.expires_after, self._times_end),
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
                chain = self._chain(name)
                # All times before the first that waits have had their messages.
                passed = chain.times[0] - 1 if chain is not None and chain.times else row.passed
                with self._stepping(name):
                    self._end(name, row)
                    row = msgspec.structs.replace(row, is_paused=True, passed=passed)
                    self._write(name, row, [])
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
                self._begin(name, row, lambda: self._write(name, old, []))
            return self._rows.info(name, row)

    def delete(self, name: str) -> None:
        """See `Store.delete_schedule`."""
        with self._lock:
            self.settle()
            row: ScheduleRow | None = None
            with suppress(ScheduleRowDamaged):
                row = self._rows.get(name)
                self._chain(name)
            with self._stepping(name):
                if row is not None:
                    self._end(name, row)
                self._rows.remove(name)

    def _begin(self, name: str, row: ScheduleRow, undo: Callable[[], None]) -> None:
        """Writes a row, and puts the first message of its chain."""
        now = self._writer.begin_put()
        first = self._within(first_after(row.recurrence(), max(now, row.passed)), now)
        if first is None:
            raise ScheduleIllegal(f"schedule {shown(name)} has no time in the next 40 years")
        batch = self._writer.encode([self._message(name, row, first)], min(now, first - 1))
        with self._stepping(name):
            with self._topics.lock:
                self._topics.get(row.topic)
                if row.revision > 1:
                    self._rows.get(name)
                self._rows.write(name, row, [AT_ONCE, first])
            try:
                self._writer.put(batch, self._writer.begin_put())
            except BaseException:
                with suppress(StoreError):
                    self._end(name, row)
                    undo()
                raise

    def _end(self, name: str, row: ScheduleRow) -> None:
        """Ends the waits of a schedule's messages; the disk has that when it returns."""
        times = self._rows.times(name)
        self._write_times([(name, [AT_ONCE, *times])])
        for time in times:
            with suppress(MessageNotFound):
                self._timers.end_wait(row.message_id(time), None)
        self._flush()

    def _write(self, name: str, row: ScheduleRow, times: Sequence[int]) -> None:
        """Writes a schedule; `ScheduleNotFound` if it went with its topic meanwhile."""
        with self._topics.lock:
            self._rows.get(name)
            self._rows.write(name, row, times)

    def _write_times(
        self, times: Sequence[tuple[str, Sequence[int]]], *, sync: bool = False
    ) -> None:
        """Writes the times of schedules, without those that went with their topics meanwhile."""
        with self._topics.lock:
            there = [(name, some) for name, some in times if self._rows.has(name)]
            self._rows.write_times(there, sync=sync)

    def owner(self, message: DelayedMessage) -> str | None:
        """The schedule to which a message belongs that waits, or None."""
        if _NAMED not in message.message.raw_properties:
            return None
        own = message.message.properties.get(NAME_PROPERTY)
        space = namespace_of(message.topic)
        name = None
        with suppress(MessageIllegal):
            name = own if own is None or space is None else wrap(space, own)
        if name is None or self._rows.find(name) is None:
            return None
        chain = self._chain(name)
        if chain is None or message.message_id not in map(chain.message_id, chain.times):
            return None
        return name

    def close(self) -> None:
        """Lets the rows have the times that wait alone; the disk has the log."""
        with self._lock:
            self._tidy()

    # --- steps ---

    def settle(self) -> None:
        """Looks at the schedules that have become due, and at those whose last step may not be
        whole, and puts messages that lack.
        """
        self._take_due(self._clock.now_ms())
        for name in sorted(self._unsure):
            self._look(name)
        if self._tidied != self._index.checkpoint.position:
            self._tidied = self._index.checkpoint.position
            self._tidy()

    def _take_due(self, now: int) -> None:
        """Makes the chains of the schedules whose first times have come."""
        if self.next_look is None:
            self._rows.complete_due()
            self.next_look = 0
        if now >= self.next_look:
            names, following = self._rows.due(self.next_look, now, self._chains)
            for name in names:
                self._look(name)
            self.next_look = following

    def _tidy(self) -> None:
        """Takes the times out of rows whose messages were delivered, as far as the disk has it."""
        tidied = list[tuple[str, list[int]]]()
        for name in sorted(self._untidy):
            chain = self._chains.get(name)
            # A schedule without times to come has none in its row, so `next_at` is None.
            if chain is not None and chain.times:
                tidied.append((name, chain.known_times(self._log.durable)))
            if chain is None or not chain.times or not chain.ended:
                self._untidy.discard(name)
        if tidied:
            self._write_times(tidied)

    def _chain(self, name: str) -> FiringChain | None:
        """The chain of a schedule, if there is one."""
        if name not in self._chains:
            self._look(name)
        return self._chains.get(name)

    @contextmanager
    def _stepping(self, name: str) -> Iterator[None]:
        """Has a schedule looked at behind a step, now, or at the next delivery if it is cut
        short.
        """
        self._unsure.add(name)
        yield
        self._look(name)

    def _look(self, name: str) -> None:
        """Makes a schedule's chain anew, of rows and log; puts the message that should wait."""
        self._unsure.add(name)
        self._forget(name)
        try:
            self._find_chain(name)
        except (ScheduleIllegal, Damaged) as e:
            if isinstance(e, IndexDamaged) and not isinstance(e, ScheduleRowDamaged):
                raise  # it may be read at the next turn, which looks once more
            # The machine has lost the zone, or the row is damaged: others go on.
            self._stands_still(name, e)
        self._unsure.discard(name)

    def _stands_still(self, name: str, why: Exception) -> None:
        _log.error("%s: the schedule %s stands still: %s", self._path, shown(name), str(why))

    @property
    def _path(self) -> object:
        return self._log.folder.parent

    def _find_chain(self, name: str) -> None:
        row = self._rows.find(name)
        topic = None if row is None else self._topics.find(row.topic)
        if row is None or topic is None:
            if row is not None or self._rows.times(name):
                self._rows.remove(name)
            else:
                self._rows.remove_due(name)
            return
        if row.is_paused:
            return
        chain = FiringChain(name, row, topic.id)
        self._chains[name] = chain
        known = self._rows.times(name)
        self._find_waiting(chain, row, known)
        first = chain.times[0] if chain.times else NEVER
        chain.ended = [(time, self._log.end) for time in known if time < first]
        if chain.ended:
            self._untidy.add(name)
        times = chain.known_times(self._log.durable)
        if times != known:
            self._write_times([(name, times)])

    def _find_waiting(self, chain: FiringChain, row: ScheduleRow, known: list[int]) -> None:
        """Finds the messages of a chain that wait; if there is none, the next one is put."""
        for time in known:
            if self._is_waiting(row, time):
                self._add(chain, time)
        if not chain.times:
            self._mend(chain, row, known[-1] if known else None)
        if chain.times:
            # A power cut may have taken the times' last write, and not the message.
            following = first_after(row.recurrence(), chain.times[-1])
            if following is not None and self._is_waiting(row, following):
                self._add(chain, following)

    def _is_waiting(self, row: ScheduleRow, time: int) -> bool:
        return self._timers.is_waiting(row.message_id(time), time)

    def _mend(self, chain: FiringChain, row: ScheduleRow, last: int | None) -> None:
        """Finds the message of a chain that waits behind the last one that is known. If there is
        none, the first that was never put is put; its time may have been missed.
        """
        now = self._clock.now_ms()
        recurrence = row.recurrence()
        time = first_after(recurrence, max(now, row.passed)) if last is None else last
        for _ in range(_STEPS_MAX):
            if time is None or not self._was_put(row, time):
                break
            time = first_after(recurrence, time)
            if time is not None and self._is_waiting(row, time):
                self._add(chain, time)
                return
        else:
            time = first_after(recurrence, now if time is None else max(now, time))
        time = self._within(time, now)
        if time is not None:
            self._put([_Firing(chain, row, time)], now)

    def _was_put(self, row: ScheduleRow, time: int) -> bool:
        """Whether the message of a time was put, and not cancelled."""
        try:
            message = self._timers.newest(row.message_id(time))
        except MessageNotFound:
            return False
        except (Damaged, ArchiveUnavailable):
            return True
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
        passed = firing.time - 1
        paused = msgspec.structs.replace(firing.row, is_paused=True, failure=why, passed=passed)
        with suppress(ScheduleNotFound):
            self._write(chain.name, paused, chain.times)

    def _message(self, name: str, row: ScheduleRow, time: int) -> Message:
        queues = self._topics.get(row.topic).write_queues
        return row.message(name, time, queues, self._times_end)

    def _within(self, time: int | None, now: int) -> int | None:
        """A time, unless no message can wait for it."""
        if time is None or time - now > DELAY_MAX * 1000 or time >= self._times_end:
            return None
        return time

    # --- in a delivery ---

    def fire(self, due: Sequence[Waiting], now: int) -> set[int]:
        """Puts the next messages of schedules of which messages are due, before these are
        delivered. Returns the positions of those that are not, since they were missed.
        """
        self._take_due(now)
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
            durable = self._log.durable
            times = [
                (one.chain.name, [*one.chain.known_times(durable), one.time]) for one in following
            ]
            # The time behind one that was missed can't be told from it: the disk has it first.
            self._write_times(times, sync=bool(passed_over))
            self._put(following, now)
        return passed_over

    def fired(self) -> None:
        """Notes that the messages of `fire` were delivered, or cancelled."""
        over = list[tuple[str, list[int]]]()
        for chain, time in self._turn:
            self._remove(chain, time)
            chain.ended.append((time, self._log.end))
            self._untidy.add(chain.name)
            if not chain.times:
                over.append((chain.name, []))
            self._unsure.discard(chain.name)
        if over:
            self._write_times(over)
        self._turn = []

    def _step(self, chain: FiringChain, time: int, now: int, following: list[_Firing]) -> bool:
        """Takes a chain's step from a message that is due, and adds the next one to `following`;
        whether the due one is delivered.
        """
        name = chain.name
        try:
            row = self._rows.find(name)
        except ScheduleRowDamaged as e:
            self._forget(name)
            self._stands_still(name, e)
            return True
        if row is None:
            self._forget(name)
            return True
        self._unsure.add(name)
        self._turn.append((chain, time))
        is_delivered, after = chain.step(time, now)
        after = self._within(after, now)
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
