"""Topics as rows of the `topics` family, and what putting and reading needs of each, in memory.

The idea: a row is read the first time its topic is used and kept; changing one topic writes one
row. A topic's id is given once and never again, so whatever is keyed by it can't be taken for
another topic's. `since` is the log position at which the topic was made: records of an earlier
topic of that name stay out when the index is built again.

A row is on the disk at once, the log below its `since` may not be: after a power cut the log can
end below it, and what is put then stands there. So no position in a row of an earlier opening
holds beyond the end that recovery found (`recovered`).

Invariants: a row is on the disk before a record can name its topic; ids only grow; a topic's
`since` is never above a record put to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, get_args

import msgspec

from kvstore.config import QUEUES_MAX, KeyIndex, Retention, check_retention
from kvstore.errors import (
    CallerError,
    IndexDamaged,
    MessageIllegal,
    QueueNotFound,
    TopicExists,
    TopicNotFound,
)
from kvstore.index.families import Families
from kvstore.index.keys import META, NEXT_TOPIC_ID, TOPICS, U32, U64
from kvstore.meta.attributes import attributes_of
from kvstore.record.decode_run import Middles
from kvstore.record.hashes import topic_byte
from kvstore.record.layout import FIXED_V1, FIXED_V2, MAGIC_V1, MAGIC_V2, TOPIC_MAX
from kvstore.record.validate import check_topic

Kind = Literal["normal", "fifo", "delay", "transaction", "compacted", "priority"]

KINDS: Final = get_args(Kind)
KEY_INDEXES: Final = get_args(KeyIndex)
CACHED_MAX: Final = 1 << 18
_turn_lock: Final = threading.Lock()
_DROPPED: Final = b"dropped/"


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic is made with. `queues` are both read and written; `key_index` None takes the
    store's default.

    `attributes` are texts of the caller's own (RocketMQ's topic attributes come here at an import).
    """

    name: str
    queues: int = 4
    kind: Kind = "normal"
    key_index: KeyIndex | None = None
    retention: Retention = Retention()
    attributes: dict[str, str] = {}


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is. `since` is the log position at which it was made; `keys_since` are those
    from which on unique ids, and KEYS tokens, are in the index, if they are at all.
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


class Topic:
    """A topic in use: what `record.batch` and `index.replay` ask for, worked out once."""

    __slots__ = (
        "_turn",
        "base",
        "hash_byte",
        "id",
        "info",
        "keys_all",
        "keys_unique",
        "magic",
        "middles",
        "name",
        "overhead",
        "read_queues",
        "since",
        "wire",
        "write_queues",
    )

    def __init__(self, info: TopicInfo, host_extra: int) -> None:
        name = info.name.encode()
        self.info = info
        self.name = info.name
        self.id = info.id
        self.base = info.id << 32
        self.since = info.since
        self.read_queues = info.read_queues
        self.write_queues = info.write_queues
        second = len(name) > TOPIC_MAX
        self.magic = MAGIC_V2 if second else MAGIC_V1
        self.wire = len(name).to_bytes(2 if second else 1, "big") + name
        self.overhead = (FIXED_V2 if second else FIXED_V1) + len(name) + host_extra
        self.hash_byte = topic_byte(name)
        self.middles = Middles(info.name)
        self.keys_unique = info.key_index != "off"
        self.keys_all = info.key_index == "all"
        self._turn = 0

    def spread(self, count: int) -> int:
        """The first of `count` turns for messages that name no queue."""
        with _turn_lock:
            first = self._turn
            self._turn += count
            return first

    def key(self, queue: int) -> int:
        """A queue's key in memory; `QueueNotFound` if the topic has no such queue."""
        if type(queue) is not int or not 0 <= queue < self.read_queues:
            raise QueueNotFound(
                f"topic {self.name!r} has no queue {queue!r}; it has 0 to {self.read_queues - 1}"
            )
        return self.base + queue


class Topics:
    """See the module."""

    def __init__(
        self,
        families: Families,
        *,
        default_key_index: KeyIndex,
        default_queues: int,
        auto_create: bool,
        host_extra: int,
        log_end: Callable[[], int],
        read_only: bool = False,
    ) -> None:
        self._families = families
        self._default_key_index: KeyIndex = default_key_index
        self._default_queues = default_queues
        self._auto_create = auto_create
        self._host_extra = host_extra
        self._log_end = log_end
        self._read_only = read_only
        self._cache: dict[str, Topic] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when a topic was altered or deleted: what was worked out from it is old."""
        self._lock = threading.RLock()
        found = families.get(META, NEXT_TOPIC_ID)
        self.next_id = U32.unpack(found)[0] if found else 1
        self._recovered: int | None = None
        self._fresh_from = 1 << 32
        self._altered: set[int] = set()
        """Topics of earlier openings whose rows are of this one."""

    def recovered(self, end: int) -> None:
        """Say where recovery found the log's end: rows of earlier openings hold no further."""
        with self._lock:
            self._recovered, self._fresh_from = end, self.next_id
            for topic in list(self._cache.values()):
                within = self._within(topic.info)
                if within is not topic.info:
                    del self._cache[topic.name]
                    self._keep(within)

    def _within(self, info: TopicInfo) -> TopicInfo:
        """A row as it holds for the log there is; it is written anew if that makes a difference."""
        end = self._recovered
        if end is None or max(info.since, *info.keys_since) <= end:
            return info
        if info.id >= self._fresh_from or info.id in self._altered:
            return info
        unique, tokens = info.keys_since
        within = msgspec.structs.replace(
            info, since=min(info.since, end), keys_since=(min(unique, end), min(tokens, end))
        )
        # Durably, before a record can be put that stands below the old position.
        self._write([within], self.next_id)
        return within

    # --- one topic ---

    def get(self, name: str) -> Topic:
        """A topic in use; `TopicNotFound`."""
        found = self._find(name)
        if found is None:
            raise TopicNotFound(
                f"there is no topic {name!r}; create it with create_topic, or open with "
                "auto_create_topics=True"
            )
        return found

    def for_put(self, name: str) -> Topic:
        """A topic to put to; makes it if the store does that by itself."""
        found = self._find(name)
        if found is None:
            check_topic(name)
            if not self._auto_create:
                return self.get(name)
            with self._lock:
                found = self._cache.get(name)
                if found is None:
                    self.create([TopicConfig(name=name, queues=self._default_queues)])
                    found = self._cache[name]
        return found

    def _find(self, name: str) -> Topic | None:
        if not isinstance(name, str):
            raise MessageIllegal(f"the topic is {name!r}; it must be a text")
        return self._cache.get(name) or self._read(name)

    def _read(self, name: str) -> Topic | None:
        try:
            key = name.encode()
        except UnicodeEncodeError:
            check_topic(name)
            raise
        if self._families.get(TOPICS, key) is None:
            return None
        # Again, under the lock: what is altered or deleted meanwhile must not be kept as it was.
        with self._lock:
            row = self._families.get(TOPICS, key)
            return None if row is None else self._keep(self._within(_decode(name, row)))

    def _keep(self, info: TopicInfo) -> Topic:
        topic = Topic(info, self._host_extra)
        with self._lock:
            if len(self._cache) >= CACHED_MAX:
                self._cache.clear()
            # Two readers of one row must share the topic: `spread` counts.
            return self._cache.setdefault(info.name, topic)

    # --- changes ---

    def create(
        self, configs: Iterable[TopicConfig], *, since: int | None = None
    ) -> list[TopicInfo]:
        """Make topics, all or none, durably. `since` is where their records begin: the log's end,
        or 0 at an import.
        """
        made: list[TopicInfo] = []
        names: set[str] = set()
        with self._lock:
            if since is None:
                since = self._log_end()
            for config in configs:
                made.append(self._new(config, self.next_id + len(made), since))
                if config.name in names or self._exists(config.name):
                    raise TopicExists(
                        f"topic {config.name!r} exists already; use alter_topic to change it"
                    )
                names.add(config.name)
            self._write(made, self.next_id + len(made))
            self.next_id += len(made)
            for info in made:
                self._keep(info)
        return made

    def _exists(self, name: str) -> bool:
        return name in self._cache or self._families.get(TOPICS, name.encode()) is not None

    def _new(self, config: TopicConfig, number: int, since: int) -> TopicInfo:
        check_topic(config.name)
        key_index = self._default_key_index if config.key_index is None else config.key_index
        if config.kind not in KINDS:
            raise CallerError(f"kind is {config.kind!r}; it must be one of {', '.join(KINDS)}")
        _check(config.queues, key_index, config.retention)
        return TopicInfo(
            name=config.name,
            id=number,
            read_queues=config.queues,
            write_queues=config.queues,
            kind=config.kind,
            key_index=key_index,
            retention=config.retention,
            since=since,
            attributes=attributes_of(config.attributes),
            keys_since=(since, since),
        )

    def alter(
        self,
        name: str,
        *,
        queues: int | None,
        key_index: KeyIndex | None,
        retention: Retention | None,
        attributes: Mapping[str, str] | None,
    ) -> TopicInfo:
        """Change a topic; what is None stays. Queues taken away stay readable."""
        with self._lock:
            old = self.get(name).info
            queues = old.write_queues if queues is None else queues
            key_index = old.key_index if key_index is None else key_index
            retention = old.retention if retention is None else retention
            attributes = old.attributes if attributes is None else attributes
            _check(queues, key_index, retention)
            new = msgspec.structs.replace(
                old,
                write_queues=queues,
                read_queues=max(queues, old.read_queues),
                key_index=key_index,
                retention=retention,
                attributes=attributes_of(attributes),
                keys_since=_keys_since(old, key_index, self._log_end()),
            )
            self._write([new], self.next_id)
            if new.id < self._fresh_from:
                self._altered.add(new.id)
            self._cache.pop(name, None)
            self._keep(new)
            self.changed()
            return new

    def delete(self, name: str) -> TopicInfo:
        """Remove a topic's row; its records stay out of the index from now on, and go with their
        segments.
        """
        with self._lock:
            info = self.get(name).info
            batch = self._families.batch()
            batch.delete(TOPICS, name.encode())
            batch.put(META, _DROPPED + name.encode(), U64.pack(self._log_end()))
            self._families.write(batch, sync=True)
            self._cache.pop(name, None)
            self.changed()
            return info

    def is_live(self, name: str, position: int) -> bool:
        """Whether a record of that topic name at that position belongs to a topic that exists."""
        found = self._find(name)
        return found is not None and position >= found.since

    def _write(self, infos: Iterable[TopicInfo], next_id: int) -> None:
        if self._read_only:
            return  # a reader's replay needs them in memory only
        batch = self._families.batch()
        for info in infos:
            batch.put(TOPICS, info.name.encode(), msgspec.msgpack.encode(info))
        batch.put(META, NEXT_TOPIC_ID, U32.pack(next_id))
        self._families.write(batch, sync=True)

    # --- all of them ---

    def all(self) -> list[TopicInfo]:
        """All topics, by name."""
        return [
            _decode(key.decode("utf-8", "replace"), row)
            for key, row in self._families.rows(TOPICS, b"")
        ]

    def count(self) -> int:
        """How many topics there are."""
        return sum(1 for _ in self._families.rows(TOPICS, b""))

    # --- replay ---

    def for_replay(self, raw: bytes, queue: int, position: int, *, make: bool) -> Topic | None:
        """The topic of a record in the log; with `make` it is made if its row is missing, with as
        many queues as it shows. Without, `TopicNotFound` and `QueueNotFound`: a record was only
        written to a topic and queue that were there, so it says what was never written.

        None if the record belongs to a topic that was deleted after it.
        """
        name = raw.decode("utf-8", "replace")
        found = self._cache.get(name) or self._read(name)
        if found is None:
            dropped = self._families.get(META, _DROPPED + raw)
            if dropped is not None and position < U64.unpack(dropped)[0]:
                return None
            if not make:
                raise TopicNotFound(f"the record says topic {name!r}, which there is not")
            with self._lock:
                info = TopicInfo(
                    name=name,
                    id=self.next_id,
                    read_queues=queue + 1,
                    write_queues=queue + 1,
                    kind="normal",
                    key_index=self._default_key_index,
                    retention=Retention(),
                    since=0,
                    attributes={},
                )
                self._write([info], self.next_id + 1)
                self.next_id += 1
                found = self._keep(info)
        elif queue >= found.read_queues:
            if not make:
                has = found.read_queues
                raise QueueNotFound(f"the record says queue {queue} of {name!r}, which has {has}")
            with self._lock:
                info = msgspec.structs.replace(found.info, read_queues=queue + 1)
                if found.write_queues == found.read_queues:
                    # Nobody took queues away from puts: a queue that has messages takes more.
                    info = msgspec.structs.replace(info, write_queues=queue + 1)
                self._write([info], self.next_id)
                self._cache.pop(name, None)
                found = self._keep(info)
        return found


def _decode(name: str, row: bytes) -> TopicInfo:
    try:
        return msgspec.msgpack.decode(row, type=TopicInfo)
    except msgspec.MsgspecError as e:
        raise IndexDamaged(
            f"the row of topic {name!r} can't be read: {e}; import or create it again"
        ) from e


def _keys_since(old: TopicInfo, key_index: KeyIndex, end: int) -> tuple[int, int]:
    """From where on what the new setting adds is in the index."""
    unique, tokens = old.keys_since
    if old.key_index == "off" and key_index != "off":
        unique = end
    if old.key_index != "all" and key_index == "all":
        tokens = end
    return unique, tokens


def _check(queues: object, key_index: object, retention: object) -> None:
    """Raise `CallerError` for settings that could not be kept, or not be read again."""
    if type(queues) is not int or not 1 <= queues <= QUEUES_MAX:
        raise CallerError(f"queues is {queues!r}; a topic has 1 to {QUEUES_MAX} of them")
    if key_index not in KEY_INDEXES:
        raise CallerError(f"key_index is {key_index!r}; it must be 'all', 'unique' or 'off'")
    check_retention(retention)
