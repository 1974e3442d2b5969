"""Consumer groups as rows of the `groups` family.

The idea: a row has the settings a group was made with. Popping reads them as plain fields of
`GroupInfo`, so nothing is worked out twice. Rows written before a field existed have its default.

Invariants: a row is on the disk before anything can be keyed by the group's id; ids are given once,
and all rows keyed by one go with its row; a refused call changes nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from kvstore.core.names import DLQ_PREFIX, SYSTEM_TOPICS
from kvstore.errors import (
    CallerError,
    GroupExists,
    GroupNotFound,
    IndexDamaged,
    MessageIllegal,
    shown,
)
from kvstore.index.families import Batch, Families
from kvstore.index.keys import (
    GROUPS,
    META,
    NEXT_GROUP_ID,
    OFFSET_HISTORY,
    OFFSET_MAX,
    OFFSETS,
    U32,
)
from kvstore.record.validate import attributes_of, check_group, check_topic

Start = Literal["begin", "end"] | int

ATTEMPTS_MAX: Final = (1 << 31) - 1
IN_FLIGHT_MAX: Final = (1 << 31) - 1
BACKOFF_MAX: Final = 365 * 24 * 3600.0
"""Seconds of one step: a year."""
BACKOFF_STEPS: Final = 64
FORMER_MAX: Final = 16
"""Former topics that may still hold dead letters of a group."""
TIME_MAX: Final = (1 << 63) - 1
CACHED_MAX: Final = 1 << 17
_CACHED_OF_A_BATCH: Final = 1024
"""Groups of one call that are cached: of many thousands most are not used at once."""
DEFAULT_BACKOFF: Final[tuple[float, ...]] = ()
"""No backoff: a message comes back as soon as its lock ends."""


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings a group is made with.

    `max_attempts`: deliveries of a message before it is a dead letter. `backoff`: seconds until the
    next delivery, by the number of deliveries so far (the last one holds for all that follow); used
    when a lock runs out or is given back without a time. `dead_letter_topic`: None is `%DLQ%` and
    the group's name. `start`: the first message for a group that is new in a queue: "begin", "end",
    or the messages stored from a time on (ms since the epoch). `max_in_flight`: messages under lock
    at a time, over all queues; None: no limit. `dead_letter_expired`: whether messages that have
    expired go to the dead letters; else they are dropped.
    """

    name: str
    max_attempts: int = 16
    ordered: bool = False
    backoff: tuple[float, ...] = DEFAULT_BACKOFF
    dead_letter_topic: str | None = None
    start: Start = "begin"
    max_in_flight: int | None = None
    dead_letter_expired: bool = False
    attributes: dict[str, str] = {}


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it is: the fields of `GroupConfig`, and its id. `since` is the end that the log
    had when a `start` of "end" was set. `former_dead_letters`: the topics its dead letters went to
    before, and the log's end when that was changed; letters below it are the group's still.
    """

    name: str
    id: int
    max_attempts: int
    ordered: bool
    backoff: tuple[float, ...] = DEFAULT_BACKOFF
    dead_letter_topic: str | None = None
    start: Start = "begin"
    max_in_flight: int | None = None
    dead_letter_expired: bool = False
    attributes: dict[str, str]
    since: int = 0
    former_dead_letters: dict[str, int] = {}

    @property
    def is_plain(self) -> bool:
        """Whether its messages may be handed out in any order and number."""
        return not self.ordered and self.max_in_flight is None

    @property
    def dead_letters(self) -> str:
        """The topic its dead letters go to."""
        return self.dead_letter_topic or DLQ_PREFIX + self.name

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """The topics with its dead letters: former ones and the present one."""
        return *self.former_dead_letters, self.dead_letters

    def backoff_after(self, attempts: int) -> float:
        """Seconds until the next delivery, after that many deliveries (1 or more)."""
        if not self.backoff:
            return 0.0
        return self.backoff[min(max(attempts, 1), len(self.backoff)) - 1]


Removing = Callable[[Batch, GroupInfo], None]


class Groups:
    """The groups of a store, see the module. `removing` adds rows that go with a group, in the same
    batch; `removed` are called when it is written.
    """

    def __init__(self, families: Families, log_end: Callable[[], int]) -> None:
        """`log_end` puts the log on the disk and returns its end."""
        self._families = families
        self._log_end = log_end
        self._cache: dict[str, GroupInfo] = {}
        self._lock = threading.RLock()
        self._names: dict[int, str] | None = None
        self.removing: list[Removing] = []
        self.removed: list[Callable[[GroupInfo], None]] = []
        found = families.get(META, NEXT_GROUP_ID)
        self._next_id = U32.unpack(found)[0] if found else 1

    def find(self, name: str) -> GroupInfo | None:
        """A group, or None."""
        if not isinstance(name, str):
            raise MessageIllegal(f"the group is {shown(name)}; it must be a text")
        found = self._cache.get(name)
        if found is None:
            # Under the lock: a row that another thread alters or deletes meanwhile must not be
            # cached.
            with self._lock:
                row = self._families.get(GROUPS, name.encode("utf-8", "surrogatepass"))
                if row is not None:
                    found = self._remember(_decode(name, row))
        return found

    def _remember(self, info: GroupInfo) -> GroupInfo:
        if len(self._cache) >= CACHED_MAX:
            self._cache.clear()
        self._cache[info.name] = info
        return info

    def get(self, name: str) -> GroupInfo:
        """A group; `GroupNotFound`."""
        try:
            return self._cache[name]  # nearly every call ends here, at a third of `find`'s cost
        except (KeyError, TypeError):
            pass
        found = self.find(name)
        if found is None:
            raise GroupNotFound(f"there is no group {shown(name)}; create it with create_group")
        return found

    # --- changes ---

    def create(self, configs: Sequence[GroupConfig], *, exist_ok: bool = False) -> list[GroupInfo]:
        """Makes groups, all or none, durably. With `exist_ok` those that are there stay as they
        are; the answer has them too.
        """
        with self._lock:
            batch = self._families.batch()
            made = self.put_new(batch, configs, exist_ok=exist_ok)
            if made:
                self._families.write(batch, sync=True)
                self.written(made)
            if len(made) == len(configs):
                return made
            new = {info.name: info for info in made}
            return [new.get(c.name) or self.get(c.name) for c in configs]

    def put_new(
        self, batch: Batch, configs: Iterable[GroupConfig], *, exist_ok: bool = False
    ) -> list[GroupInfo]:
        """Puts new groups into a batch, under `lock`; raises an error for the first wrong one. The
        caller writes the batch and then calls `written`.
        """
        made: list[GroupInfo] = []
        names: set[str] = set()
        for config in configs:
            info = _new(config, self._next_id + len(made))
            if info.name in names:
                raise GroupExists(f"group {info.name!r} is to be made twice by one call")
            if self._exists(info.name):
                if exist_ok:
                    continue
                raise GroupExists(
                    f"group {info.name!r} exists already; use alter_group to change it, "
                    "or exist_ok=True to take it as it is"
                )
            names.add(info.name)
            made.append(self._since(info))
        rows = [msgspec.msgpack.encode(info) for info in made]
        batch.put_many(GROUPS, [info.name.encode() for info in made], rows)
        # Whether or not the batch will be written: no id is given twice, and each has a name.
        self._next_id += len(made)
        if self._names is not None:
            self._names.update((info.id, info.name) for info in made)
        batch.put(META, NEXT_GROUP_ID, U32.pack(self._next_id))
        return made

    def _since(self, info: GroupInfo) -> GroupInfo:
        """A group that begins at the end begins at the log's present end, which the disk has: no
        later record can get a position below it.
        """
        if info.start != "end":
            return info
        return msgspec.structs.replace(info, since=self._log_end())

    def written(self, made: Sequence[GroupInfo]) -> None:
        """Takes over the groups of `put_new`, whose batch was written."""
        for info in made[:_CACHED_OF_A_BATCH]:
            self._remember(info)

    @property
    def lock(self) -> threading.RLock:
        """Held from `put_new` to `written`."""
        return self._lock

    def _exists(self, name: str) -> bool:
        return name in self._cache or self._families.get(GROUPS, name.encode()) is not None

    def alter(self, name: str, changes: dict[str, Any], spent: Collection[str] = ()) -> GroupInfo:
        """Changes some fields of a group, durably. `spent` are former topics of dead letters that
        hold none any more. After a change of that topic `end_former` is due.
        """
        with self._lock:
            old = self.get(name)
            new = _checked(msgspec.structs.replace(old, **changes))
            if "start" in changes:
                new = self._since(new)
            if new.dead_letters != old.dead_letters:
                new = _with_former(new, old, spent)
            return self._replace(new)

    def end_former(self, name: str) -> GroupInfo:
        """Notes the log's end for the topic that a group's dead letters don't go to any more."""
        with self._lock:
            old, end = self.get(name), self._log_end()
            former = {topic: min(until, end) for topic, until in old.former_dead_letters.items()}
            return self._replace(msgspec.structs.replace(old, former_dead_letters=former))

    def _replace(self, new: GroupInfo) -> GroupInfo:
        batch = self._families.batch()
        batch.put(GROUPS, new.name.encode(), msgspec.msgpack.encode(new))
        self._cache.pop(new.name, None)
        self._families.write(batch, sync=True)
        return self._remember(new)

    def put_removal(self, batch: Batch, names: Iterable[str]) -> list[GroupInfo]:
        """Puts the removal of groups, and of all that is keyed by them, into a batch, under `lock`;
        then `deleted`. `GroupNotFound` for the first that is not there.
        """
        infos = [self.get(name) for name in dict.fromkeys(names)]
        for info in infos:
            self._cache.pop(info.name, None)
            batch.delete(GROUPS, info.name.encode())
            first, end = U32.pack(info.id), U32.pack(info.id + 1)
            for family in (OFFSETS, OFFSET_HISTORY):
                # Most groups of a batch never committed: no tombstone for those.
                if next(self._families.rows(family, first, end), None) is not None:
                    batch.delete_range(family, first, end)
            for remove in self.removing:
                remove(batch, info)
        return infos

    def deleted(self, infos: Iterable[GroupInfo]) -> None:
        """Forgets the groups of `put_removal`, whose batch was written."""
        for info in infos:
            self._cache.pop(info.name, None)
            if self._names is not None:
                self._names.pop(info.id, None)
            for tell in self.removed:
                tell(info)

    # --- all of them ---

    def all(self, first: bytes = b"", end: bytes | None = None) -> list[GroupInfo]:
        """All groups, by name; or those whose names are from `first` to before `end`."""
        return [
            _decode(key.decode("utf-8", "replace"), row)
            for key, row in self._families.rows(GROUPS, first, end)
        ]

    def by_id(self, number: int) -> GroupInfo | None:
        """The group with an id; None if it was deleted."""
        names = self._names
        if names is None:
            # Read when it is first asked for: most stores never need it.
            with self._lock:
                if self._names is None:
                    self._names = {info.id: info.name for info in self.all()}
                names = self._names
        name = names.get(number)
        return None if name is None else self.find(name)


def _new(config: GroupConfig, number: int) -> GroupInfo:
    if type(config) is not GroupConfig:
        raise CallerError(f"{shown(config)} is no GroupConfig; give a list of them")
    check_group(config.name)
    return _checked(
        GroupInfo(
            name=config.name,
            id=number,
            max_attempts=config.max_attempts,
            ordered=config.ordered,
            backoff=config.backoff,
            dead_letter_topic=config.dead_letter_topic,
            start=config.start,
            max_in_flight=config.max_in_flight,
            dead_letter_expired=config.dead_letter_expired,
            attributes=config.attributes,
        )
    )


def _checked(info: GroupInfo) -> GroupInfo:
    """The group with its values as a row has them; `CallerError` for illegal values."""
    _check_count("max_attempts", info.max_attempts, ATTEMPTS_MAX)
    if type(info.ordered) is not bool:
        raise CallerError(f"ordered is {shown(info.ordered)}; it must be True or False")
    if type(info.dead_letter_expired) is not bool:
        raise CallerError(
            f"dead_letter_expired is {shown(info.dead_letter_expired)}; it must be True or False"
        )
    if info.max_in_flight is not None:
        _check_count("max_in_flight", info.max_in_flight, IN_FLIGHT_MAX)
    _check_start(info.start)
    _check_dead_letters(info.dead_letter_topic)
    backoff = _backoff_of(info.backoff)
    attributes = attributes_of(info.attributes)
    return msgspec.structs.replace(info, backoff=backoff, attributes=attributes)


def _with_former(new: GroupInfo, old: GroupInfo, spent: Collection[str]) -> GroupInfo:
    """A group whose dead letters go to another topic: it keeps those in the former topics."""
    former = {
        topic: until
        for topic, until in (old.former_dead_letters | {old.dead_letters: OFFSET_MAX}).items()
        if topic not in spent and topic != new.dead_letters
    }
    if len(former) > FORMER_MAX:
        raise CallerError(
            f"group {new.name!r} has dead letters in {len(former) - 1} former topics: "
            f"{', '.join(map(shown, old.former_dead_letters))}; delete one of them, or give "
            f"{shown(old.dead_letters)} another retention instead of another name"
        )
    return msgspec.structs.replace(new, former_dead_letters=former)


def _check_count(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise CallerError(f"{name} is {shown(value)}; it must be 1 to {most}")


def _check_start(start: object) -> None:
    is_time = type(start) is int and 0 <= start <= TIME_MAX
    if not is_time and not (isinstance(start, str) and start in ("begin", "end")):
        raise CallerError(
            f"start is {shown(start)}; it must be 'begin', 'end', or a time in "
            "milliseconds since the epoch"
        )


def _check_dead_letters(topic: str | None) -> None:
    if topic is None:
        return
    check_topic(topic)
    if topic in SYSTEM_TOPICS:
        raise CallerError(f"dead_letter_topic is {shown(topic)}, which the store keeps for itself")


def _backoff_of(given: object) -> tuple[float, ...]:
    if given is DEFAULT_BACKOFF:
        return DEFAULT_BACKOFF
    if not isinstance(given, list | tuple) or len(given) > BACKOFF_STEPS:
        raise CallerError(
            f"backoff is {shown(given)}; it must be a list of up to {BACKOFF_STEPS} durations"
        )
    for step in given:
        # A nan is neither above nor below.
        if type(step) not in (int, float) or not 0 <= step <= BACKOFF_MAX or math.isnan(step):
            raise CallerError(
                f"backoff has {shown(step)}; each step must be 0 to {BACKOFF_MAX:.0f} "
                "seconds (a year)"
            )
    return _shared(tuple(map(float, given)))


def _shared(backoff: tuple[float, ...]) -> tuple[float, ...]:
    """The one default, instead of an equal copy for every group in memory."""
    return DEFAULT_BACKOFF if backoff == DEFAULT_BACKOFF else backoff


def _decode(name: str, row: bytes) -> GroupInfo:
    try:
        info = msgspec.msgpack.decode(row, type=GroupInfo)
    except msgspec.MsgspecError as e:
        raise IndexDamaged(
            f"the row of group {shown(name)} can't be read: {e}; import or create it again"
        ) from e
    msgspec.structs.force_setattr(info, "backoff", _shared(info.backoff))
    return info
