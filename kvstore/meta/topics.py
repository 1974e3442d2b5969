"""Topics as rows of the `topics` family, and what putting and reading needs of each, in memory.

The idea: a row is read the first time its topic is used and kept; changing one topic writes one
row. A topic's id is given once and never again, so whatever is keyed by it can't be taken for
another topic's. `since` is the log position at which the topic was made: records of an earlier
topic of that name stay out when the index is built again.

Invariants: a row is on the disk before a record can name its topic; ids only grow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from kvstore.config import KeyIndex, Retention
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
from kvstore.record.hashes import topic_byte
from kvstore.record.layout import FIXED_V1, FIXED_V2, MAGIC_V1, MAGIC_V2, TOPIC_MAX
from kvstore.record.validate import check_topic

Kind = Literal["normal", "fifo", "delay", "transaction", "compacted", "priority"]

QUEUES_MAX: Final = 1 << 16
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
    """A topic as it is. `since` is the log position at which it was made."""

    name: str
    id: int
    read_queues: int
    write_queues: int
    kind: Kind
    key_index: KeyIndex
    retention: Retention
    since: int
    attributes: dict[str, str]


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

    # --- one topic ---

    def get(self, name: str) -> Topic:
        """A topic in use; `TopicNotFound`."""
        found = self._cache.get(name) or self._read(name)
        if found is None:
            raise TopicNotFound(
                f"there is no topic {name!r}; create it with create_topic, or open with "
                "auto_create_topics=True"
            )
        return found

    def for_put(self, name: str) -> Topic:
        """A topic to put to; makes it if the store does that by itself."""
        found = self._cache.get(name) or self._read(name)
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

    def _read(self, name: object) -> Topic | None:
        if not isinstance(name, str):
            raise MessageIllegal(f"the topic is {name!r}; it must be a text")
        try:
            row = self._families.get(TOPICS, name.encode())
        except UnicodeEncodeError:
            check_topic(name)
            raise
        return None if row is None else self._keep(_decode(name, row))

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
        _check_queues(config.queues)
        key_index = self._default_key_index if config.key_index is None else config.key_index
        if key_index not in ("all", "unique", "off"):
            raise CallerError(f"key_index is {key_index!r}; it must be 'all', 'unique' or 'off'")
        if config.kind not in ("normal", "fifo", "delay", "transaction", "compacted", "priority"):
            raise CallerError(
                f"kind is {config.kind!r}; it must be one of normal, fifo, delay, transaction, "
                "compacted, priority"
            )
        return TopicInfo(
            name=config.name,
            id=number,
            read_queues=config.queues,
            write_queues=config.queues,
            kind=config.kind,
            key_index=key_index,
            retention=config.retention,
            since=since,
            attributes=dict(config.attributes),
        )

    def alter(
        self,
        name: str,
        *,
        queues: int | None,
        key_index: KeyIndex | None,
        retention: Retention | None,
        attributes: dict[str, str] | None,
    ) -> TopicInfo:
        """Change a topic; what is None stays. Queues taken away stay readable."""
        with self._lock:
            old = self.get(name).info
            if queues is not None:
                _check_queues(queues)
            if key_index not in (None, "all", "unique", "off"):
                raise CallerError(
                    f"key_index is {key_index!r}; it must be 'all', 'unique' or 'off'"
                )
            new = msgspec.structs.replace(
                old,
                write_queues=old.write_queues if queues is None else queues,
                read_queues=old.read_queues if queues is None else max(queues, old.read_queues),
                key_index=key_index or old.key_index,
                retention=old.retention if retention is None else retention,
                attributes=old.attributes if attributes is None else dict(attributes),
            )
            self._write([new], self.next_id)
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
        found = self._cache.get(name) or self._read(name)
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

    def for_replay(self, raw: bytes, queue: int, position: int) -> Topic | None:
        """The topic of a record in the log; made if its row is missing, with as many queues as it
        shows.

        None if the record belongs to a topic that was deleted after it.
        """
        name = raw.decode("utf-8", "replace")
        found = self._cache.get(name) or self._read(name)
        if found is None:
            dropped = self._families.get(META, _DROPPED + raw)
            if dropped is not None and position < U64.unpack(dropped)[0]:
                return None
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
            with self._lock:
                info = msgspec.structs.replace(found.info, read_queues=queue + 1)
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


def _check_queues(queues: object) -> None:
    if type(queues) is not int or not 1 <= queues <= QUEUES_MAX:
        raise CallerError(f"queues is {queues!r}; a topic has 1 to {QUEUES_MAX} of them")
