"""Schedule rows: the schedules of a store as rows of `meta`, and as values for callers.

The idea: a schedule has three rows. One says what it puts and when, and changes only by a call.
Another, a few bytes, has the times whose messages may wait, and is written with each firing; so a
large body is not. The third one has the first of these times in its key: in the order of these keys
schedules become due, so an opening looks at none before its time.

Invariants: a schedule is in the namespace of its topic; its rows come and go with each other, and
go in the batch that removes the topic. A schedule with times has the row of its first one. A row
that can't be read concerns its own schedule alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from struct import Struct
from typing import Any, Final, Literal

import msgspec

from kvstore.clock import whole_ms
from kvstore.errors import CallerError, IndexDamaged, MessageIllegal, ScheduleNotFound, shown
from kvstore.index.families import Batch, Families
from kvstore.index.keys import META, behind
from kvstore.message import Message
from kvstore.meta.namespaces import namespace_of, unwrap
from kvstore.meta.topics import TopicInfo
from kvstore.record.layout import TOPIC_MAX
from kvstore.record.put.explain import DELAY_MAX
from kvstore.timing.recurrence import Recurrence, first_after, recurrence_of

_log = logging.getLogger("kvmq")
Missed = Literal["skip", "once", "all"]
NAME_PROPERTY: Final = "SCHEDULE"
TIME_PROPERTY: Final = "SCHEDULED_AT"
"""The properties of each message that a schedule puts: its name, and the time, ms."""
_ROW: Final = b"schedule/"
_TIMES: Final = b"schedule_times/"
_HAS_DUE: Final = b"schedule_due"
"""The row that says that all schedules have rows of their first times."""
_DUE: Final = b"schedule_due/"
_TIME: Final = Struct(">Q")
_PASSED_MAX: Final = 8
"""Rows of schedules that are known already, behind those asked for, that a look passes over."""
NEVER: Final = 1 << 63
AT_ONCE: Final = 0
"""A time before all others: with it in its row a schedule is looked at by the next opening."""
NUMBERS_END: Final = 1 << 48
_NAME: Final = re.compile(r"[A-Za-z0-9%_|-]+")
_ANEW: Final = "delete the schedule, and make it again"
FIRINGS_MAX: Final = 1000
"""Times that `next_firings` tells at most."""


class ScheduleRowDamaged(IndexDamaged):
    """The rows of one schedule can't be read; those of others can."""


class ScheduleFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a caller gives a schedule, and how it goes. Values that a caller asks for are
    any, until `Schedules.create` has checked them.
    """

    topic: str
    body: bytes
    cron: str | None
    every: float | None
    zone: str
    missed: Missed
    queue: int | None
    tag: str | None
    keys: list[str]
    properties: dict[str, str]
    message_group: str | None
    expires_after: float | None = None
    is_paused: bool = False
    failure: str | None = None
    created_at: int = 0


class ScheduleInfo(ScheduleFields, frozen=True, kw_only=True):
    """A schedule. Its times are those of `cron` in `zone`, or every so many seconds from
    `created_at` on. Each message expires `expires_after` seconds behind its time; None: never.
    `next_at` is the time of its next message, None if it is paused or has no time in the next 40
    years. `failure` says why the store paused it: it could not put the message any more. Times are
    ms since the epoch.
    """

    name: str
    next_at: int | None


class ScheduleRow(ScheduleFields, frozen=True, kw_only=True):
    """A schedule as its row has it. `number` is random; `revision` rises whenever it is resumed.
    Its next time is behind `passed`, whatever the clock says.
    """

    number: int
    revision: int
    passed: int = 0

    def recurrence(self) -> Recurrence:
        """The times; `ScheduleIllegal` if the machine has lost the zone."""
        return recurrence_of(self.cron, self.every, self.zone, self.created_at)

    def message_id(self, time: int) -> str:
        """The id of the message of a time: 32 digits, as other ids have."""
        return f"{self.number:012X}{self.revision & 0xFFFFFFFF:08X}{time:012X}"

    def message(self, name: str, time: int, queues: int, times_end: int) -> Message:
        """The message of a time. `name` is the schedule's, `queues` how many its topic has, and
        from `times_end` on no message expires.
        """
        space = namespace_of(name)
        own = name if space is None else unwrap(space, name) or name
        return Message(
            self.topic,
            self.body,
            queue=None if self.queue is None else self.queue % queues,
            tag=self.tag,
            keys=self.keys,
            properties={**self.properties, NAME_PROPERTY: own, TIME_PROPERTY: str(time)},
            message_group=self.message_group,
            message_id=self.message_id(time),
            born_at=time,
            deliver_at=time,
            expires_at=expiry_of(time, self.expires_after, times_end),
        )


def expiry_of(time: int, expires_after: float | None, times_end: int) -> int | None:
    """When the message of a time expires, ms: before the end of the times that a store takes."""
    if expires_after is None:
        return None
    return min(time + whole_ms(expires_after), times_end - 1)


def check_name(name: Any, topic: Any) -> None:
    """Raises an error unless a schedule to a topic can have a name: as topics have, in the topic's
    namespace.
    """
    if not isinstance(name, str) or len(name) > TOPIC_MAX or not _NAME.fullmatch(name):
        raise CallerError(
            f"the schedule's name is {shown(name)}; it must be 1 to {TOPIC_MAX} letters A-Z and "
            "a-z, digits, % - _ |"
        )
    if not isinstance(topic, str):
        raise MessageIllegal(f"the topic is {shown(topic)}; it must be a text")
    if namespace_of(name) != namespace_of(topic):
        raise CallerError(
            f"schedule {shown(name)} is to put to topic {shown(topic)}; a schedule is in the "
            "namespace of its topic"
        )


def check_lifetime(expires_after: Any) -> None:
    """Raises `MessageIllegal` unless a schedule's messages can live so long."""
    if expires_after is None:
        return
    if type(expires_after) not in (int, float) or not 0 < expires_after <= DELAY_MAX:
        raise MessageIllegal(
            f"expires_after is {shown(expires_after)}; it must be more than 0, and up to "
            f"{DELAY_MAX:.0f} seconds (40 years), or None"
        )


class ScheduleRows:
    """The rows; see the module. Reading needs no lock."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def find(self, name: str) -> ScheduleRow | None:
        """A schedule's row, or None."""
        if not isinstance(name, str):
            raise CallerError(f"the schedule's name is {shown(name)}; it must be a text")
        row = self._families.get(META, _ROW + name.encode("utf-8", "surrogatepass"))
        return None if row is None else _decode(name, row)

    def has(self, name: str) -> bool:
        """Whether there is a schedule, also one whose row can't be read."""
        return self._families.get(META, _ROW + name.encode()) is not None

    def get(self, name: str) -> ScheduleRow:
        """A schedule's row; `ScheduleNotFound`."""
        found = self.find(name)
        if found is None:
            raise ScheduleNotFound(
                f"there is no schedule {shown(name)}; `schedules` lists those there are"
            )
        return found

    def times(self, name: str) -> list[int]:
        """The times whose messages may wait, rising; the last one is the next to come. Those before
        it were delivered, unless a crash took that back.
        """
        row = self._families.get(META, _TIMES + name.encode()) or b""
        if len(row) % _TIME.size:
            raise ScheduleRowDamaged(
                f"the times of schedule {shown(name)} can't be read: they have {len(row)} bytes; "
                f"{_ANEW}"
            )
        return [time for (time,) in _TIME.iter_unpack(row)]

    def names(self) -> list[str]:
        """The names of all schedules, in order."""
        return [name for name, _ in self._rows()]

    def _rows(self) -> Iterator[tuple[str, bytes]]:
        """The rows of all schedules, by name."""
        for key, row in self._families.rows(META, _ROW, behind(_ROW)):
            name = _name_in(key[len(_ROW) :])
            if name is not None:
                yield name, row

    def due_rows(self, begin: int = 0) -> Iterator[tuple[bytes, int, str | None]]:
        """The rows of first times that are not before `begin`: key, time, and the schedule's name;
        None for a row of another form.
        """
        for key, _ in self._families.rows(META, _DUE + _TIME.pack(begin), behind(_DUE)):
            name = _name_in(key[len(_DUE) + _TIME.size :])
            yield key, _due_time(key), name

    def faults(self) -> list[str]:
        """The contradictions between the rows as they are at one moment, as texts. Whether each
        row can be read is not asked.
        """
        names, due, faults = set[str | None](), dict[str, int](), list[str]()
        has_due = False
        for key, row in self._families.rows(META, _ROW, behind(_TIMES)):
            if key.startswith(_ROW):
                names.add(_name_in(key[len(_ROW) :]))
            elif key == _HAS_DUE:
                has_due = True
            elif key.startswith(_DUE):
                name = _name_in(key[len(_DUE) + _TIME.size :])
                if name is None or name in due:
                    faults.append(f"the row {key!r} has no schedule, or is a second first time")
                else:
                    due[name] = _due_time(key)
            elif key.startswith(_TIMES):
                name = _name_in(key[len(_TIMES) :])
                if name is None or name not in names:
                    faults.append(f"the row {key!r} has the times of a schedule that there is not")
                elif has_due and row:
                    faults += _fault_of_first(name, row, due.pop(name, None))
        return faults + [
            f"schedule {shown(name)} has no first time, and a row of {time} for that"
            for name, time in sorted(due.items())
        ]

    def remove_due(self, name: str) -> None:
        """Removes rows of first times of a schedule that there is not."""
        batch = self._families.batch()
        for key, _, found in self.due_rows():
            if found == name:
                batch.delete(META, key)
        self._families.write(batch)

    def due(self, begin: int, until: int, known: Container[str]) -> tuple[list[str], int]:
        """The schedules that are not known whose first times are from `begin` to `until`; and a
        time before which no others have theirs.
        """
        found: list[str] = []
        passed = 0
        for _, time, name in self.due_rows(begin):
            is_known = name is None or name in known
            if time <= until:
                found += [] if name is None or is_known else [name]
            elif not is_known or passed == _PASSED_MAX:
                return found, time
            else:
                passed += 1
        return found, NEVER

    def complete_due(self) -> None:
        """Gives each schedule the row of its first time, if a kvmq made them that had no such."""
        if self._families.get(META, _HAS_DUE) is not None:
            return
        names = self.names()
        if names:
            batch = self._families.batch()
            for name in names:
                try:
                    self._put_times(batch, name, self.times(name))
                except ScheduleRowDamaged as e:
                    _log.error("a schedule stands still: %s; `kvmq verify` lists damage", str(e))
            self._families.write(batch)

    def write(self, name: str, row: ScheduleRow, times: Sequence[int]) -> None:
        """Writes a schedule; the disk has it when it returns."""
        batch = self._families.batch()
        batch.put(META, _ROW + name.encode(), msgspec.msgpack.encode(row))
        self._put_times(batch, name, times)
        self._families.write(batch, sync=True)

    def write_times(
        self, times: Iterable[tuple[str, Sequence[int]]], *, sync: bool = False
    ) -> None:
        """Writes the times of schedules, in one batch."""
        batch = self._families.batch()
        for name, some in times:
            self._put_times(batch, name, some)
        self._families.write(batch, sync=sync)

    def _put_times(self, batch: Batch, name: str, times: Sequence[int]) -> None:
        self._delete_due(batch, name)
        batch.put(META, _TIMES + name.encode(), b"".join(map(_TIME.pack, times)))
        if times:
            batch.put(META, _due_key(name, times[0]), b"")
        batch.put(META, _HAS_DUE, b"")

    def _delete_due(self, batch: Batch, name: str) -> None:
        with suppress(ScheduleRowDamaged):
            # Another of the times may become the first before the batch is written.
            for time in self.times(name):
                batch.delete(META, _due_key(name, time))

    def remove(self, name: str) -> None:
        """Removes a schedule; the disk has it when it returns."""
        batch = self._families.batch()
        self._delete(batch, name)
        self._families.write(batch, sync=True)

    def _delete(self, batch: Batch, name: str) -> None:
        self._delete_due(batch, name)
        batch.delete(META, _ROW + name.encode())
        batch.delete(META, _TIMES + name.encode())

    def put_removal(self, batch: Batch, topic: TopicInfo) -> None:
        """Puts into a batch that the schedules of a topic are removed."""
        for name, row in self._rows():
            with suppress(ScheduleRowDamaged):
                if _decode(name, row).topic == topic.name:
                    self._delete(batch, name)

    # --- values for callers ---

    def info(self, name: str, row: ScheduleRow) -> ScheduleInfo:
        """A schedule for its caller."""
        times = self.times(name)
        fields = {field: getattr(row, field) for field in ScheduleFields.__struct_fields__}
        return ScheduleInfo(name=name, next_at=times[-1] if times else None, **fields)

    def infos(self, topic: str | None) -> list[ScheduleInfo]:
        """All schedules, or those of a topic, by name. Those whose rows are damaged are left out,
        and logged.
        """
        found: list[ScheduleInfo] = []
        for name, value in self._rows():
            try:
                row = _decode(name, value)
                if topic in (None, row.topic):
                    found.append(self.info(name, row))
            except ScheduleRowDamaged as e:
                _log.error("a list leaves a schedule out: %s; `kvmq verify` lists damage", str(e))
        return found

    def next_firings(self, name: str, count: int, now: int) -> list[int]:
        """See `Store.next_firings`."""
        if type(count) is not int or not 1 <= count <= FIRINGS_MAX:
            raise CallerError(f"count is {shown(count)}; it must be 1 to {FIRINGS_MAX}")
        row = self.get(name)
        recurrence = row.recurrence()
        times = self.times(name)
        begin = times[-1] if times else first_after(recurrence, max(now, row.passed))
        if begin is None:
            return []
        return [begin, *islice(recurrence.times_after(begin), count - 1)]


def _name_in(text: bytes) -> str | None:
    """The name of a schedule in a key; None if it is none."""
    name = text.decode("ascii", "replace")
    return name if _NAME.fullmatch(name) else None


def _fault_of_first(name: str, times: bytes, told: int | None) -> list[str]:
    """The fault, if any, of a schedule whose first time a row says."""
    first = int.from_bytes(times[: _TIME.size], "big")
    if told == first:
        return []
    has = "no row" if told is None else f"the row of {told}"
    return [
        f"schedule {shown(name)} has {first} as its first time, and {has} for that: it may stand "
        "still after an opening; pause it, and resume it"
    ]


def _due_time(key: bytes) -> int:
    """The time in the key of a row of a first time."""
    return int.from_bytes(key[len(_DUE) : len(_DUE) + _TIME.size], "big")


def _due_key(name: str, time: int) -> bytes:
    return _DUE + _TIME.pack(time) + name.encode()


def _decode(name: str, row: bytes) -> ScheduleRow:
    try:
        return msgspec.msgpack.decode(row, type=ScheduleRow)
    except msgspec.MsgspecError as e:
        raise ScheduleRowDamaged(
            f"the row of schedule {shown(name)} can't be read: {e}; {_ANEW}"
        ) from e
