"""Topics as rows of the `topics` family, and their values for puts and reads, in memory.

The idea: a row is read the first time its topic is used, and kept; changing one topic writes one
row. A topic's id is given once and never again, so no row keyed by it can be taken for another
topic's. `since` is the log position at which the topic was made: records of an earlier topic of
that name stay out when the index is built again.

A row is on the disk at once, but the log below its `since` may not be: after a power cut the log
can end below it, and later messages then stand there. So no position in a row of an earlier opening
holds beyond the end that recovery found (`recovered`).

Invariants: a row is on the disk before a record can name its topic; ids only grow; a topic's
`since` is never above a record put to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import msgspec

from kvstore.config import KeyIndex
from kvstore.errors import (
    IndexDamaged,
    MessageIllegal,
    QueueNotFound,
    TopicExists,
    TopicNotFound,
    shown,
)
from kvstore.index.families import Batch, Families
from kvstore.index.keys import LOG_START, META, NEXT_TOPIC_ID, TOPICS, U32, U64, behind
from kvstore.meta.closed_queues import ClosedQueues
from kvstore.meta.topic import (
    Kind,
    Topic,
    TopicConfig,
    TopicInfo,
    checked,
    grown,
    history_within,
    new_topic,
    replayed_topic,
    with_keys,
    with_queues,
)
from kvstore.record.validate import check_topic

__all__ = ["Kind", "Topic", "TopicConfig", "TopicInfo", "Topics"]

CACHED_MAX: Final = 1 << 18
_CACHED_OF_A_BATCH: Final = 1024
"""Topics of one call that are cached: of many thousands most are not used at once."""
_DROPPED: Final = b"dropped/"
Removing = Callable[[Batch, TopicInfo], None]


class Topics:
    """The topics of a store; see the module."""

    def __init__(
        self,
        families: Families,
        *,
        default_key_index: KeyIndex,
        default_queues: int,
        auto_create: bool,
        host_size: int,
        log_end: Callable[[], int],
        read_only: bool = False,
    ) -> None:
        self._families = families
        self._default_key_index: KeyIndex = default_key_index
        self._default_queues = default_queues
        self._auto_create = auto_create
        self._host_size = host_size
        self._log_end = log_end
        self._read_only = read_only
        self._cache: dict[str, Topic] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called after a topic was altered or deleted: values computed from it are out of date."""
        self.version = 0
        """Counts the changes of the list of topics."""
        self.created: Callable[[], None] = lambda: None
        """Called after topics were made."""
        self.removing: list[Removing] = []
        """Functions that add rows of a topic to the batch that removes it."""
        self.removed: list[Callable[[TopicInfo], None]] = []
        """Called when that batch was written."""
        self.closed = ClosedQueues()
        self.while_nobody_puts: Callable[[Callable[[], None]], None] = lambda act: act()
        """Calls a function that closes queues, between two puts."""
        self._names: dict[int, str] | None = None
        self._count: int | None = None
        """The number of topics, once it was asked for."""
        self._longest_window: float | None = None
        """The longest dedup window, once it was asked for, until a topic changes."""
        self._lock = threading.RLock()
        found = families.get(META, NEXT_TOPIC_ID)
        self.next_id = U32.unpack(found)[0] if found else 1
        self._dropped_below = 0
        """All `dropped/` rows have ends above this position of the log."""
        self._recovered: int | None = None
        self._fresh_from = 1 << 32
        self._altered: set[int] = set()
        """Topics of earlier openings whose rows this opening has written."""

    def recovered(self, end: int) -> None:
        """Notes where recovery found the log's end: positions in older rows are clamped to it."""
        with self._lock:
            self._recovered, self._fresh_from = end, self.next_id
            for topic in list(self._cache.values()):
                within = self._within(topic.info)
                if within is not topic.info:
                    del self._cache[topic.name]
                    self._remember(within)

    def _within(self, info: TopicInfo) -> TopicInfo:
        """A row with its positions clamped to the log; a row that this changes is written anew."""
        end = self._recovered
        positions = (info.since, *info.keys_since, *(p for p, _ in info.key_history))
        if end is None or max(positions) <= end:
            return info
        if info.id >= self._fresh_from or info.id in self._altered:
            return info
        unique, tokens = info.keys_since
        within = msgspec.structs.replace(
            info,
            since=min(info.since, end),
            keys_since=(min(unique, end), min(tokens, end)),
            key_history=history_within(info.key_history, end),
        )
        # Durably, before a record can get a position below the old one.
        self._write([within], self.next_id)
        return within

    # --- one topic ---

    def get(self, name: str) -> Topic:
        """A topic in use; `TopicNotFound`."""
        try:
            return self._cache[name]  # nearly every call ends here, at a third of `find`'s cost
        except (KeyError, TypeError):
            pass
        found = self.find(name)
        if found is None:
            raise TopicNotFound(
                f"there is no topic {shown(name)}; create it with create_topic, or open with "
                "auto_create_topics=True"
            )
        return found

    def known(self, name: str) -> Topic | None:
        """A topic in use that is in memory; None takes a look with `find`. No pattern has one."""
        return self._cache.get(name)

    def of_callers(self, name: str) -> Topic:
        """A topic that callers may read, alter and delete; `CallerError` for one in which messages
        wait: nobody reads these before their time, and all of them are found again.
        """
        found = self.get(name)
        if found.route.holds_pending:
            found.check_of_callers()
        return found

    def for_put(self, name: str) -> Topic:
        """The topic that a put uses or would make; makes none."""
        found = self.find(name)
        if found is None:
            check_topic(name)
            if not self._auto_create:
                return self.get(name)
            found = Topic(
                new_topic(self._auto_config(name), 0, 0, self._default_key_index), self._host_size
            )
        return found

    def create_for_put(self, names: Iterable[str]) -> None:
        """Makes the topics that `for_put` only computed, in one batch, durably."""
        self.create([self._auto_config(name) for name in names], exist_ok=True)

    def make_pending_topic(self, name: str) -> None:
        """Makes a topic in which messages wait, found by their ids."""
        self.create([TopicConfig(name=name, queues=1, key_index="unique")], exist_ok=True)

    def _auto_config(self, name: str) -> TopicConfig:
        """The settings of a topic that the store makes by itself."""
        return TopicConfig(name=name, queues=self._default_queues)

    def find(self, name: str) -> Topic | None:
        """A topic in use, or None."""
        if not isinstance(name, str):
            raise MessageIllegal(f"the topic is {shown(name)}; it must be a text")
        return self._cache.get(name) or self._read(name)

    def _read(self, name: str) -> Topic | None:
        try:
            key = name.encode()
        except UnicodeEncodeError:
            check_topic(name)
            raise
        if self._families.get(TOPICS, key) is None:
            return None
        # Again, under the lock: a row that another thread alters or deletes meanwhile must not be
        # cached.
        with self._lock:
            row = self._families.get(TOPICS, key)
            return None if row is None else self._remember(self._within(_decode(name, row)))

    def _remember(self, info: TopicInfo) -> Topic:
        topic = Topic(info, self._host_size)
        with self._lock:
            if len(self._cache) >= CACHED_MAX:
                self._cache.clear()
            # Two readers of one row must share the topic: `spread` counts.
            return self._cache.setdefault(info.name, topic)

    # --- changes ---

    @property
    def lock(self) -> threading.RLock:
        """Held from `put_new` to `written`, and from `close` to `deleted`."""
        return self._lock

    def create(self, configs: Sequence[TopicConfig], *, exist_ok: bool = False) -> list[TopicInfo]:
        """Makes topics, all or none, durably. With `exist_ok` those that are there stay as they
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
            return [new.get(c.name) or self.get(c.name).info for c in configs]

    def put_new(
        self, batch: Batch, configs: Iterable[TopicConfig], *, exist_ok: bool = False
    ) -> list[TopicInfo]:
        """Puts new topics into a batch; raises an error for the first wrong one. The caller writes
        the batch and then calls `written`.
        """
        made: list[TopicInfo] = []
        names: set[str] = set()
        since = self._log_end()
        for config in configs:
            info = new_topic(config, self.next_id + len(made), since, self._default_key_index)
            if info.name in names:
                raise TopicExists(f"topic {info.name!r} is to be made twice by one call")
            if self._exists(info.name):
                if exist_ok:
                    continue
                raise TopicExists(
                    f"topic {info.name!r} exists already; use alter_topic to change it, "
                    "or exist_ok=True to take it as it is"
                )
            names.add(info.name)
            made.append(info)
        rows = [msgspec.msgpack.encode(info) for info in made]
        batch.put_many(TOPICS, [info.name.encode() for info in made], rows)
        # Whether or not the batch will be written: no id is given twice, and each has a name.
        self.next_id += len(made)
        self._name(made)
        batch.put(META, NEXT_TOPIC_ID, U32.pack(self.next_id))
        return made

    def written(self, made: Sequence[TopicInfo]) -> None:
        """Takes over the topics of `put_new` or `put_rows`, whose batch was written."""
        self._longest_window = None
        for info in made[:_CACHED_OF_A_BATCH]:
            self._remember(info)
        self._counted(len(made))
        self.version += 1
        self.created()

    def _name(self, infos: Iterable[TopicInfo]) -> None:
        if self._names is not None:
            self._names.update((info.id, info.name) for info in infos)

    def allocate_ids(self, count: int) -> int:
        """The first of `count` ids, reserved durably for topics of `put_rows`."""
        with self._lock:
            first = self.next_id
            self._write([], first + count)
            self.next_id = first + count
            return first

    def put_rows(self, batch: Batch, infos: Sequence[TopicInfo]) -> None:
        """Puts topics that have ids already into a batch; `TopicExists`. Then `written`."""
        for info in infos:
            if self._exists(info.name):
                raise TopicExists(f"topic {info.name!r} was made meanwhile; try again")
            batch.put(TOPICS, info.name.encode(), msgspec.msgpack.encode(checked(info)))
        self._name(infos)

    def _counted(self, more: int) -> None:
        if self._count is not None:
            self._count += more

    def _exists(self, name: str) -> bool:
        return name in self._cache or self._families.get(TOPICS, name.encode()) is not None

    def alter(
        self,
        name: str,
        changes: dict[str, Any],
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        may_shrink: Callable[[TopicInfo, TopicInfo], None] = lambda old, new: None,
    ) -> TopicInfo:
        """Changes a topic, durably; the fields that `changes` doesn't name stay.

        `may_shrink` is asked before queues are taken from readers, and raises if they hold
        messages.
        """
        with self._lock, ExitStack() as undo:
            old = self.of_callers(name).info
            new = checked(with_queues(msgspec.structs.replace(old, **changes), queues, read_queues))
            log_start = self._families.get(META, LOG_START)
            start = U64.unpack(log_start)[0] if log_start else 0
            new = with_keys(old, new, self._log_end(), start)
            if new.read_queues < old.read_queues:
                undo.callback(self.closed.open, [old.id])
                self._close([new], new.read_queues)
                may_shrink(old, new)
            self._replace(new)
            undo.pop_all()
            if new.read_queues > old.read_queues:
                self.closed.open([new.id])
            later = with_keys(old, new, self._log_end(), start)
            if later != new:
                # Messages put meanwhile still went by the old setting.
                self._replace(later)
            return later

    def _replace(self, new: TopicInfo) -> None:
        # Before it is written: a read meanwhile, or after a failure, takes the row.
        self._cache.pop(new.name, None)
        self.changed()
        if new.id < self._fresh_from:
            self._altered.add(new.id)
        self._write([new], self.next_id)
        self._longest_window = None
        self._remember(new)
        self.changed()

    def close(self, names: Iterable[str]) -> list[TopicInfo]:
        """Closes topics that are to be deleted, and returns them; `TopicNotFound` for the first
        that is not there. From here on no caller finds them: every read of a row waits for the
        lock. Nor is anything put there, until `kept`.
        """
        infos = [self.get(name).info for name in dict.fromkeys(names)]
        self._close(infos, 0)
        return infos

    def put_removal(self, batch: Batch, infos: Iterable[TopicInfo]) -> None:
        """Puts the removal of closed topics, of which no tail has entries, into a batch: their
        records stay out of the index from now on, and go with their segments.
        """
        end = U64.pack(self._log_end())
        for info in infos:
            batch.delete(TOPICS, info.name.encode())
            batch.put(META, _DROPPED + info.name.encode(), end)
            for remove in self.removing:
                remove(batch, info)

    def _close(self, infos: Iterable[TopicInfo], queues: int) -> None:
        """Closes all queues of topics but so many. A put that begins now waits for the lock."""
        for info in infos:
            self._cache.pop(info.name, None)
        self.changed()
        ids = [info.id for info in infos]
        self.while_nobody_puts(lambda: self.closed.keep(ids, queues))

    def kept(self, infos: Iterable[TopicInfo]) -> None:
        """Lets closed topics take messages again, which were not deleted."""
        self.closed.open([info.id for info in infos])

    def deleted(self, infos: Iterable[TopicInfo]) -> None:
        """Forgets the topics of `put_removal`, whose batch was written."""
        self.changed()
        self.version += 1
        self._longest_window = None
        for info in infos:
            self._cache.pop(info.name, None)
            if self._names is not None:
                self._names.pop(info.id, None)
            self._counted(-1)
            for tell in self.removed:
                tell(info)

    def has_dropped(self, first: int) -> bool:
        """Whether segments have left the log since `forget_dropped`: it begins at `first` now."""
        return first > self._dropped_below

    def forget_dropped(self, first: int) -> None:
        """Removes the `dropped/` rows of topics whose end is below the log's first position: none
        of their records is left.
        """
        with self._lock:
            batch = self._families.batch()
            for key, end in self._families.rows(META, _DROPPED, behind(_DROPPED)):
                if U64.unpack(end)[0] <= first:
                    batch.delete(META, key)
            if len(batch):
                self._families.write(batch)
            self._dropped_below = first

    def is_live(self, name: str, position: int) -> bool:
        """Whether a record of that topic name at that position belongs to a topic that exists."""
        found = self.find(name)
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

    def all(self, first: bytes = b"", end: bytes | None = None) -> list[TopicInfo]:
        """All topics, by name; or those whose names are from `first` to before `end`."""
        return [
            _decode(key.decode("utf-8", "replace"), row)
            for key, row in self._families.rows(TOPICS, first, end)
        ]

    def names(self, begin: str = "") -> list[str]:
        """The names of all topics, or of those whose names begin so, in order."""
        first = begin.encode("utf-8", "replace")
        rows = self._families.rows(TOPICS, first, behind(first) if first else None)
        return [key.decode("utf-8", "replace") for key, _ in rows]

    def name_of(self, number: int) -> str | None:
        """The name of the topic with an id; None if it was deleted."""
        names = self._names
        if names is None:
            # Read when it is first asked for: a store that is only put to never needs it.
            with self._lock:
                if self._names is None:
                    self._names = {info.id: info.name for info in self.all()}
                names = self._names
        return names.get(number)

    def count(self) -> int:
        """How many topics there are."""
        found = self._count
        if found is None:
            # Counted once: a program that watches a store asks often, and topics may be very many.
            with self._lock:
                found = self._count = sum(1 for _ in self._families.rows(TOPICS, b""))
        return found

    def longest_dedup_window(self) -> float:
        """The longest dedup window of all topics, in seconds; 0 if none has one."""
        found = self._longest_window
        if found is None:
            with self._lock:
                windows = [info.dedup_window or 0.0 for info in self.all()]
                found = self._longest_window = max(windows, default=0.0)
        return found

    # --- replay ---

    def for_replay(self, raw: bytes, queue: int, position: int, *, make: bool) -> Topic | None:
        """The topic of a record in the log; with `make` it is made if its row is missing, with as
        many queues as the record shows. Without `make`, `TopicNotFound` and `QueueNotFound`:
        records are only written to existing topics and queues, so this one was never written as it
        reads.

        None if the record belongs to a topic that was deleted after it.
        """
        name = raw.decode("utf-8", "replace")
        found = self._cache.get(name) or self._read(name)
        if found is None:
            dropped = self._families.get(META, _DROPPED + raw)
            if dropped is not None and position < U64.unpack(dropped)[0]:
                return None
            if not make:
                raise TopicNotFound(f"the record says topic {shown(name)}, which there is not")
            with self._lock:
                info = replayed_topic(name, self.next_id, queue, self._default_key_index)
                self._write([info], self.next_id + 1)
                self.next_id += 1
                self._names = self._count = None
                found = self._remember(info)
        elif queue >= found.read_queues:
            if not make and queue >= found.info.queues_ever:
                has = found.read_queues
                raise QueueNotFound(
                    f"the record says queue {queue} of {shown(name)}, which has {has}"
                )
            with self._lock:
                info = grown(found.info, queue)
                self._write([info], self.next_id)
                self._cache.pop(name, None)
                found = self._remember(info)
        return found


def _decode(name: str, row: bytes) -> TopicInfo:
    try:
        return msgspec.msgpack.decode(row, type=TopicInfo)
    except msgspec.MsgspecError as e:
        raise IndexDamaged(
            f"the row of topic {shown(name)} can't be read: {e}; import or create it again"
        ) from e
