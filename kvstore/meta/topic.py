"""One topic: its settings, its row, and the values that its use needs, computed once.

A crash or a rebuild puts older records into the index again, and they have to be found by the keys
they were put with, not by those that today's `key_index` takes. So a change of that setting is kept
with the log position from which it holds. Most topics are never changed and keep nothing.

Invariants: a row can be read by every later version (a field that came later has a default); a
topic that `checked` lets pass can be kept and read again. In a history of `key_index` positions
rise; the last setting is the one that holds; it has at most `KEY_HISTORY_MAX` settings, and the
first of a full one may say more than was taken, never less.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.clock import whole_ms
from kvstore.config import QUEUES_DEFAULT, QUEUES_MAX, Codec, KeyIndex, Retention, check_retention
from kvstore.core.encoding import PutRoute
from kvstore.core.names import PENDING_TOPICS
from kvstore.errors import CallerError, QueueNotFound, shown
from kvstore.record.hashes import topic_byte
from kvstore.record.layout import MAGIC_V1, MAGIC_V2, TOPIC_MAX
from kvstore.record.validate import attributes_of, check_topic

Kind = Literal["normal", "fifo", "delay", "transaction", "compacted", "priority"]

KINDS: Final = get_args(Kind)
KEY_INDEXES: Final = get_args(KeyIndex)
CODECS: Final = get_args(Codec)
_COMPRESS_MAX: Final = (1 << 63) - 1
_WINDOW_MAX: Final = 10 * 365 * 86_400
"""Seconds of the longest dedup window."""
KeyHistory = tuple[tuple[int, KeyIndex], ...]
"""`key_index` settings, each with the log position from which it holds; empty for a topic whose
setting never changed.
"""

KEY_HISTORY_MAX: Final = 32
I64 = NDArray[np.int64]
KEY_LEVELS: Final[dict[KeyIndex, int]] = {"off": 0, "unique": 1, "all": 2}
"""The keys that each setting takes of a message: none, the unique id, its KEYS tokens as well."""


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings a topic is made with.

    `queues` take messages; as many are read unless `read_queues` says more. `key_index`,
    `compress_above` (bytes of a body above which it is compressed) and `compression` None take the
    store's setting: the first as it is when the topic is made, the others as it is at each put.
    `attributes` are texts of the caller's own (RocketMQ's topic attributes come here at an import).
    `takes_delays` says whether messages may be delayed; a topic of kind "delay" takes no others,
    one of kind "fifo" none of them.
    A repeat of a dedup id within `dedup_window` seconds is not put again; None: the topic takes no
    dedup ids.
    """

    name: str
    queues: int = QUEUES_DEFAULT
    read_queues: int | None = None
    kind: Kind = "normal"
    key_index: KeyIndex | None = None
    retention: Retention = Retention()
    compress_above: int | None = None
    compression: Codec | None = None
    attributes: dict[str, str] = {}
    takes_delays: bool = True
    dedup_window: float | None = None


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is. `since` is the log position at which it was made. `keys_since` are the
    positions from which on unique ids, and KEYS tokens, are in the index, if they are at all.
    `queues_ever` is the largest number of read queues that it had, whose records are its own (0: as
    many as it has now). `key_history` has earlier settings of `key_index`, and the position from
    which each held; empty if it never changed.
    """

    name: str
    id: int
    read_queues: int
    write_queues: int
    kind: Kind
    key_index: KeyIndex
    retention: Retention
    since: int
    attributes: dict[str, str]
    keys_since: tuple[int, int] = (0, 0)
    compress_above: int | None = None
    compression: Codec | None = None
    queues_ever: int = 0
    key_history: KeyHistory = ()
    takes_delays: bool = True
    dedup_window: float | None = None


class Topic:
    """A topic in use: values that `record.put` and `opening.replay` need, computed once."""

    __slots__ = (
        "_sure",
        "base",
        "hash_byte",
        "id",
        "info",
        "is_priority",
        "key_level",
        "keys_ever",
        "keys_unique",
        "name",
        "read_queues",
        "route",
        "since",
        "write_queues",
    )

    def __init__(self, info: TopicInfo, host_size: int) -> None:
        name = info.name.encode()
        self.info = info
        self.name = info.name
        self.id = info.id
        self.base = info.id << 32
        self.since = info.since
        self.read_queues = info.read_queues
        self.write_queues = info.write_queues
        second = len(name) > TOPIC_MAX
        self.hash_byte = topic_byte(name)
        self.is_priority = info.kind == "priority"
        self.keys_unique = info.key_index != "off"
        self.key_level = KEY_LEVELS[info.key_index]
        self.route = PutRoute(
            self.base,
            info.write_queues,
            host_size,
            MAGIC_V2 if second else MAGIC_V1,
            len(name).to_bytes(2 if second else 1, "big") + name,
            self.key_level,
            info.compress_above,
            info.compression,
            info.name in PENDING_TOPICS,
            info.kind,
            info.takes_delays,
            None if info.dedup_window is None else whole_ms(info.dedup_window),
        )
        self.keys_ever = self.keys_unique or any(s != "off" for _, s in info.key_history)
        self._sure: KeyHistory = ()

    def check_of_callers(self) -> None:
        """`CallerError` if delayed or prepared messages wait in it."""
        if self.route.holds_pending:
            raise CallerError(
                f"delayed or prepared messages wait in the topic {shown(self.name)}, which the "
                "store keeps for itself: nobody reads, pops, alters or deletes it; list what waits "
                "with timers or transactions, and end it with cancel, commit or rollback"
            )

    def key_level_at(self, position: int) -> int:
        """The level of keys that a record's replay puts into the index: the level at its put or
        today's, whichever is higher.
        """
        return max(self.key_level, level_at(self.info.key_history, position))

    def certain_key_levels(self, positions: I64) -> I64:
        """The levels of keys that records at some positions must be found by."""
        if not self._sure:
            info = self.info
            self._sure = info.key_history or history_begun(
                info.key_index, info.since, info.keys_since
            )
        levels = np.array([0, *(KEY_LEVELS[setting] for _, setting in self._sure)], np.int64)
        since = np.array([position for position, _ in self._sure], np.int64)
        found = levels[np.searchsorted(since, positions, side="right")]
        return np.where(positions >= exact_from(self._sure), found, 0)

    def key(self, queue: int) -> int:
        """A queue's key in memory; `QueueNotFound` if the topic has no such queue."""
        if type(queue) is not int or not 0 <= queue < self.read_queues:
            raise QueueNotFound(
                f"topic {self.name!r} has no queue {shown(queue)}; it has 0 to "
                f"{self.read_queues - 1}"
            )
        return self.base + queue


def new_topic(config: TopicConfig, number: int, since: int, key_index: KeyIndex) -> TopicInfo:
    """The row of a topic that is made; `key_index` is for one whose config says none."""
    if type(config) is not TopicConfig:
        raise CallerError(f"{shown(config)} is no TopicConfig; give a list of them")
    check_topic(config.name)
    if config.kind not in KINDS:
        raise CallerError(f"kind is {shown(config.kind)}; it must be one of {', '.join(KINDS)}")
    read = config.queues if config.read_queues is None else config.read_queues
    return checked(
        TopicInfo(
            name=config.name,
            id=number,
            read_queues=read,
            write_queues=config.queues,
            kind=config.kind,
            key_index=waiting_key_index(
                config.name, key_index if config.key_index is None else config.key_index
            ),
            retention=config.retention,
            since=since,
            attributes=attributes_of(config.attributes) if config.attributes != {} else {},
            keys_since=(since, since),
            compress_above=config.compress_above,
            compression=config.compression,
            queues_ever=read,
            takes_delays=config.takes_delays,
            dedup_window=config.dedup_window,
        )
    )


def replayed_topic(name: str, number: int, queue: int, key_index: KeyIndex) -> TopicInfo:
    """The row of a topic of which only a record in a queue is known."""
    return TopicInfo(
        name=name,
        id=number,
        read_queues=queue + 1,
        write_queues=queue + 1,
        kind="normal",
        key_index=waiting_key_index(name, key_index),
        retention=Retention(),
        since=0,
        attributes={},
    )


def waiting_key_index(name: str, key_index: KeyIndex) -> KeyIndex:
    """The keys that a topic indexes, by a setting for all topics: one in which messages wait takes
    their ids at least.
    """
    return "unique" if name in PENDING_TOPICS and key_index == "off" else key_index


def grown(info: TopicInfo, queue: int) -> TopicInfo:
    """The topic, enlarged to have the queue in which a record was found."""
    write = info.write_queues
    if write == info.read_queues:
        # No caller has taken queues from puts: the new queue is put to as well.
        write = queue + 1
    return msgspec.structs.replace(
        info,
        read_queues=queue + 1,
        write_queues=write,
        queues_ever=max(info.queues_ever, queue + 1),
    )


def with_queues(info: TopicInfo, write: int | None, read: int | None) -> TopicInfo:
    """The topic with other numbers of queues. Without `read` no queue is taken from readers."""
    write = info.write_queues if write is None else write
    check_queues("queues", write)
    read = max(write, info.read_queues) if read is None else read
    check_queues("read_queues", read)
    ever = max(info.queues_ever, info.read_queues, read)
    return msgspec.structs.replace(info, write_queues=write, read_queues=read, queues_ever=ever)


def keys_since(old: TopicInfo, key_index: KeyIndex, end: int) -> tuple[int, int]:
    """The position from which on the keys that the new setting adds are in the index."""
    unique, tokens = old.keys_since
    if old.key_index == "off" and key_index != "off":
        unique = end
    if old.key_index != "all" and key_index == "all":
        tokens = end
    return unique, tokens


def with_keys(old: TopicInfo, new: TopicInfo, end: int, log_start: int) -> TopicInfo:
    """The new topic, with its key settings holding from `end` on."""
    if new.key_index == old.key_index:
        return new
    history = old.key_history or history_begun(old.key_index, old.since, old.keys_since)
    return msgspec.structs.replace(
        new,
        keys_since=keys_since(old, new.key_index, end),
        key_history=history_changed(history, new.key_index, end, log_start),
    )


def checked(info: TopicInfo) -> TopicInfo:
    """The topic; `CallerError` for settings that a row can't have."""
    check_queues("queues", info.write_queues)
    check_queues("read_queues", info.read_queues)
    if info.read_queues < info.write_queues:
        raise CallerError(
            f"read_queues is {info.read_queues} and queues {info.write_queues}: what is put to a "
            "queue that nobody may read would be lost; read as many at least"
        )
    if info.key_index not in KEY_INDEXES:
        raise CallerError(
            f"key_index is {shown(info.key_index)}; it must be 'all', 'unique' or 'off'"
        )
    above = info.compress_above
    if above is not None and (type(above) is not int or not 0 <= above <= _COMPRESS_MAX):
        raise CallerError(
            f"compress_above is {shown(above)}; it must be None (the store's), or 0 bytes and more"
        )
    if info.compression is not None and info.compression not in CODECS:
        raise CallerError(
            f"compression is {shown(info.compression)}; it must be None (the store's) or one of "
            f"{', '.join(CODECS)}"
        )
    if type(info.takes_delays) is not bool:
        raise CallerError(f"takes_delays is {shown(info.takes_delays)}; it must be True or False")
    if info.kind == "delay" and not info.takes_delays:
        raise CallerError(
            "takes_delays is False: a topic of kind 'delay' takes delayed messages only; make it "
            "one of kind 'normal'"
        )
    check_retention(info.retention)
    window = info.dedup_window
    if window is not None and (type(window) not in (int, float) or not 0 < window <= _WINDOW_MAX):
        raise CallerError(
            f"dedup_window is {shown(window)}; it must be None (the topic takes no dedup ids), or "
            f"a number of seconds above 0, {_WINDOW_MAX} at most"
        )
    return info


def check_queues(name: str, count: object) -> None:
    """Raises `CallerError` for an illegal number of queues."""
    if type(count) is not int or not 1 <= count <= QUEUES_MAX:
        raise CallerError(f"{name} is {shown(count)}; a topic has 1 to {QUEUES_MAX} of them")


# --- the history of `key_index` ---


def history_begun(key_index: KeyIndex, since: int, keys_since: tuple[int, int]) -> KeyHistory:
    """The history of a topic whose row has none, from the positions where its keys begin."""
    unique, tokens = keys_since
    found: dict[int, KeyIndex] = {since: "off"}
    if key_index != "off":
        found[max(unique, since)] = "unique"
    if key_index == "all":
        found[max(tokens, since)] = "all"
    return tuple(sorted(found.items()))


def history_changed(
    history: KeyHistory, key_index: KeyIndex, end: int, log_start: int
) -> KeyHistory:
    """The history with a setting that holds from `end` on, without settings of which no record is
    left.

    `history` has one setting at least.
    """
    found = [entry for entry in history if entry[0] < end] + [(end, key_index)]
    while len(found) > 1 and found[1][0] <= log_start:
        del found[0]
    while len(found) > KEY_HISTORY_MAX:
        (first, one), (_, other) = found[:2]
        found[:2] = [(first, max(one, other, key=KEY_LEVELS.__getitem__))]
    return tuple(found)


def history_within(history: KeyHistory, end: int) -> KeyHistory:
    """The history for a log that ends at `end`: a setting that was to hold behind it holds from
    there.
    """
    return tuple(sorted({min(position, end): setting for position, setting in history}.items()))


def level_at(history: KeyHistory, position: int) -> int:
    """The level that held at a position; 0 before the first."""
    level = 0
    for since, setting in history:
        if since > position:
            break
        level = KEY_LEVELS[setting]
    return level


def exact_from(history: KeyHistory) -> int:
    """The position from which on the history says exactly what was taken."""
    return history[1][0] if len(history) >= KEY_HISTORY_MAX else 0
