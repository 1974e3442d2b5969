"""The store: opens, wires and closes its parts, and hands each call to the part that does it.

The idea: writing is `writer`, reading `reader` and `consume.pull`, what is known of topics, groups
and offsets `meta`, checkpoints and retention `upkeep`, what happens by itself `housekeeper`. Here
is only who talks to whom, and in which order they begin and end.

Invariants: a store that is open holds its folder's lock (unless read-only); after `close` every
call raises `StoreClosed`; `close` leaves a checkpoint at the end of the log, so that the next
opening has nothing to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvstore import opening
from kvstore.adoption import Adoption, in_place
from kvstore.config import KeyIndex, Retention, StoreConfig
from kvstore.consume.filters import compile_filter
from kvstore.consume.pull import pull
from kvstore.consume.reader import Reader
from kvstore.errors import ConfigError, StoreClosed, StoreError
from kvstore.housekeeper import Housekeeper, Job
from kvstore.log.commitlog import CommitLog
from kvstore.log.flusher import Flusher
from kvstore.message import Bounds, Message, PullResult, PutResult, StoredMessage
from kvstore.meta.attributes import attributes_of
from kvstore.meta.groups import GroupConfig, GroupInfo, Groups
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Kind, TopicConfig, TopicInfo, Topics
from kvstore.recovery import Progress, recover
from kvstore.stats import StoreStats, collect
from kvstore.upkeep import Upkeep, drop_orphans
from kvstore.verify import VerifyReport, verify
from kvstore.writer import Writer, store_host


def _copying(progress: Progress | None) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress("reading the log", done, total)


class Store:
    """An open store; see `kvstore.open`. Every call may be made from several threads."""

    def __init__(
        self,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        read_only: bool = False,
        progress: Progress | None = None,
        adopt: Adoption | None = None,
    ) -> None:
        self.path = Path(path)
        given = config if config is not None else StoreConfig()
        if not isinstance(given, StoreConfig):
            raise ConfigError(f"config is {given!r}; it must be a StoreConfig, or None")
        self._closed = False
        self._ending: list[Callable[[], None]] = []
        """What ends what this opening began, in the order in which it was begun."""
        self._close_lock = threading.Lock()
        found = opening.look(self.path, given)
        self._lock = None if read_only else opening.take(self.path, given)
        if self._lock is not None:
            self._ending.append(self._lock.release)
        try:
            self._open(given, found, read_only, progress, adopt)
            if self._lock is not None:
                self._lock.mark()
        except BaseException:
            self._closed = True
            self._end()
            raise

    def _open(
        self,
        given: StoreConfig,
        found: opening.Found,
        read_only: bool,
        progress: Progress | None,
        adopt: Adoption | None,
    ) -> None:
        if not read_only and found is opening.Found.OURS and opening.is_unfounded(self.path, given):
            found = opening.LOG_OR_NOTHING[opening.has_log(self.path, given)]
        if not read_only and found is opening.Found.LOG_ONLY and adopt is None:
            adopt = in_place(self.path, given.files, _copying(progress))
        if not read_only and found in (opening.Found.LOG_ONLY, opening.Found.NOTHING):
            self._index, self.config = opening.found_index(self.path, given, adopt)
        else:
            self._index, self.config = opening.open_index(
                self.path, given, found, read_only=read_only
            )
        self._ending.append(self._index.close)
        config = self.config
        self._log = CommitLog(self.path / opening.COMMITLOG, config, writable=not read_only)
        self._ending.append(self._log.close)
        host = store_host(config)
        self._topics = Topics(
            self._index.families,
            default_key_index=config.key_index,
            default_queues=config.default_queues,
            auto_create=config.auto_create_topics,
            host_extra=host.extra,
            log_end=lambda: self._log.end,
            read_only=read_only,
        )
        self._groups = Groups(self._index.families)
        self._offsets = Offsets(self._index, read_only=read_only)
        drop_orphans(self._log, self._index, config)
        self.recovery, last_stored = recover(self._log, self._index, self._topics, config, progress)
        self._topics.recovered(self._log.end)
        if not self.recovery.clean and (found is not opening.Found.NOTHING or adopt is not None):
            self._offsets.recovered(self._log.end)
        self._index.topics_fresh_from(self._topics.next_id)
        self._reader = Reader(self._log, self._index, config, is_live=self._topics.is_live)
        if read_only:
            return
        self._wake = self._log.prepare_wanted
        self._flusher = Flusher(self._log, config, on_durable=lambda: None)
        self._ending.append(self._flusher.stop)
        self._writer = Writer(
            self._log,
            self._index,
            self._flusher,
            self._topics,
            config,
            last_stored=last_stored,
            checkpoint_now=self.checkpoint,
            wake=self._wake,
            host=host,
        )
        upkeep = self._upkeep = Upkeep(
            self._log,
            self._index,
            self._reader,
            config,
            last_stored=lambda: self._writer.last_stored,
            is_closed=lambda: self._closed,
        )
        self._housekeeper = Housekeeper(
            config.clock,
            self._wake,
            [
                Job("the next segment", self._log.wants_next, self._log.prepare_next),
                Job("a checkpoint", upkeep.checkpoint_due, self.checkpoint),
                Job("sealing", self._index.seal_due, self._index.seal_next),
                Job("retention", upkeep.retention_due, self.apply_retention),
            ],
        )
        self._ending.append(self._housekeeper.stop)

    # --- putting ---

    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        queue: int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        flags: int = 0,
        message_id: str | None = None,
        born_at: int | None = None,
    ) -> PutResult:
        """Put one message; see `put_batch`, of which this is a batch of one, and `Message` for the
        fields.

        >>> store.put("orders", b"...", tag="paid", keys=["o-17"]).offset  # doctest: +SKIP
        0
        """
        message = Message(
            topic,
            body,
            queue,
            tag,
            keys,
            properties if properties is not None else {},
            message_group,
            flags,
            message_id,
            born_at,
        )
        return self._writer_or_fail().put_batch((message,))[0]

    def put_batch(self, messages: Sequence[Message]) -> list[PutResult]:
        """Put messages, in order; an error writes none of them (a crash may leave a leading part).

        Returns when they are written, or with `flush="sync"` when they are on the disk. Raises
        `TopicNotFound`, `MessageIllegal` and its kinds, `StoreBusy`, `DiskFull`, `FlushFailed`,
        `StoreReadOnly`, `StoreClosed`."""
        return self._writer_or_fail().put_batch(messages)

    def _writer_or_fail(self) -> Writer:
        try:
            return self._writer
        except AttributeError:
            self._log.check_writable()
            raise

    # --- reading ---

    def get(self, topic: str, queue: int, offset: int) -> StoredMessage:
        """The message at an offset of a queue; `OffsetNotFound` (with the bounds) if it holds none
        there.
        """
        self._check_open()
        return self._reader.get(self._topics.get(topic), queue, offset)

    def pull(
        self,
        topic: str,
        queue: int,
        offset: int,
        limit: int = 32,
        *,
        max_bytes: int | None = None,
        filter: str | None = None,
    ) -> PullResult:
        """Up to `limit` messages (and `max_bytes` of records, but at least one message) from an
        offset on.

        `filter` is a tag expression such as `"paid || shipped"`. `next_offset` is where to go on,
        also when nothing was found: below the queue's bounds its first offset, behind them its next
        one."""
        self._check_open()
        return pull(
            self._reader,
            self._topics.get(topic),
            queue,
            offset,
            limit,
            max_bytes,
            compile_filter(filter),
        )

    def query(
        self,
        topic: str,
        key: str,
        begin: int | None = None,
        end: int | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Messages of a topic with a key (or unique id), newest first; `begin` and `end` bound the
        store time, ms, both included.
        """
        self._check_open()
        return self._reader.query(self._topics.get(topic), key, begin, end, limit)

    def read_at(self, position: int) -> StoredMessage:
        """The message whose record begins at a position of the log; `MessageNotFound`,
        `RecordDamaged`.
        """
        return self._reader.read_at(position)

    def find(self, message_id: str) -> StoredMessage:
        """The message with a unique id or a position id; `MessageNotFound`."""
        return self._reader.find(message_id)

    def offset_at(self, topic: str, queue: int, time: int, *, upper: bool = False) -> int:
        """The first offset stored at or after a time (ms since the epoch); the next offset if there
        is none.

        With `upper` the last offset stored at or before it; 0 if there is none.
        """
        self._check_open()
        return self._reader.offset_at(self._topics.get(topic), queue, time, upper=upper)

    def bounds(self, topic: str, queue: int) -> Bounds:
        """A queue's first held offset and its next offset."""
        self._check_open()
        return self._reader.bounds(self._topics.get(topic).key(queue))

    # --- topics, groups, offsets ---

    def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        kind: Kind = "normal",
        key_index: KeyIndex | None = None,
        retention: Retention | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Make a topic; `TopicExists`, or `MessageIllegal` for a name that can't be one."""
        config = TopicConfig(
            name=name,
            queues=queues,
            kind=kind,
            key_index=key_index,
            retention=Retention() if retention is None else retention,
            attributes=attributes_of({} if attributes is None else attributes),
        )
        return self.create_topics([config])[0]

    def create_topics(self, configs: Iterable[TopicConfig]) -> list[TopicInfo]:
        """Make topics, all or none, in one batch."""
        self._log.check_writable()
        return self._topics.create(configs)

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        self._check_open()
        return self._topics.all()

    def topic(self, name: str) -> TopicInfo:
        """One topic; `TopicNotFound`."""
        self._check_open()
        return self._topics.get(name).info

    def alter_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        key_index: KeyIndex | None = None,
        retention: Retention | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Change a topic; what is not given stays. Queues that are taken away stay readable."""
        self._log.check_writable()
        return self._topics.alter(
            name,
            queues=queues,
            key_index=key_index,
            retention=retention,
            attributes=attributes,
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic: its index goes at once, its records with their segments."""
        self._log.check_writable()
        self._topics.get(name)
        self.checkpoint()
        info = self._topics.delete(name)
        self._index.retire_topic(info.id, self._log.segments.numbers)

    def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 16,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> GroupInfo:
        """Make a consumer group; `GroupExists`."""
        self._log.check_writable()
        config = GroupConfig(
            name=name,
            max_attempts=max_attempts,
            ordered=ordered,
            attributes=attributes_of({} if attributes is None else attributes),
        )
        return self._groups.create([config])[0]

    def groups(self) -> list[GroupInfo]:
        """All groups, by name."""
        self._check_open()
        return self._groups.all()

    def group(self, name: str) -> GroupInfo:
        """One group; `GroupNotFound`."""
        self._check_open()
        return self._groups.get(name)

    def alter_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> GroupInfo:
        """Change a group; what is not given stays. `GroupNotFound`."""
        self._log.check_writable()
        return self._groups.alter(
            name, max_attempts=max_attempts, ordered=ordered, attributes=attributes
        )

    def delete_group(self, name: str) -> None:
        """Delete a group and its committed offsets; `GroupNotFound`."""
        self._log.check_writable()
        self._offsets.forget(self._groups.delete(name).id)

    def commit_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Say that a group wants `offset` of a queue next. A group that is new is made."""
        self._log.check_writable()
        used = self._topics.get(topic)
        self._offsets.check(offset, self._reader.bounds(used.key(queue)).next_offset)
        self._offsets.commit(self._groups.for_commit(group).id, used.id, queue, offset)

    def committed_offset(self, group: str, topic: str, queue: int) -> int | None:
        """The offset a group wants next; None if it never committed one."""
        self._check_open()
        used = self._topics.get(topic)
        bounds = self._reader.bounds(used.key(queue))
        known = self._groups.find(group)
        return None if known is None else self._offsets.get(known.id, used.id, queue, bounds)

    # --- durability and upkeep ---

    def flush(self) -> None:
        """Return when everything put so far is on the disk; `FlushFailed`."""
        self._log.check_writable()
        self._flusher.wait(self._log.end)

    def checkpoint(self) -> None:
        """Put the index tail into RocksDB; flushes the log first. Cheap when there is nothing to
        do.
        """
        self._log.check_writable()
        self._upkeep.checkpoint()

    def seal(self) -> None:
        """Close the active segment now; the next put begins a new one. Nothing if it is empty."""
        self._log.check_writable()
        self._upkeep.seal()

    def apply_retention(self) -> int:
        """Let go of the segments that have to go now; returns how many went."""
        self._log.check_writable()
        return self._upkeep.apply_retention()

    def stats(self) -> StoreStats:
        """Figures about the store as it is now."""
        self._check_open()
        return collect(self.path, self._log, self._index, self._topics, self.config, self.recovery)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every record's CRC and hold the index against the log; problems are listed, not
        raised.
        """
        self._check_open()
        if self._log.writable:
            self.checkpoint()
        return verify(self._log, self._index, self._topics, self._reader, progress)

    # --- the end ---

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} was closed; open it again")

    def close(self) -> None:
        """Flush, checkpoint, and let go of the folder. Closing twice does nothing."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        try:
            if self._log.writable:
                self._housekeeper.stop()
                self._finish()
        finally:
            self._end()

    def _end(self) -> None:
        """End what was begun, the last first, each whatever becomes of the others."""
        with ExitStack() as ending:
            for step in self._ending:
                ending.callback(step)

    def _finish(self) -> None:
        if self._log.failure is not None:
            return
        try:
            with self._log.lock:
                self._log.closed = True
            self._upkeep.checkpoint(clean=True)
            self._index.tidy()
        except StoreError:
            # The next opening recovers what could not be finished here; only a failed sync has to
            # be told.
            if self._log.failure is not None:
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state: Any = "closed" if self._closed else "open" if self._log.writable else "read-only"
        return f"<kvstore.Store {self.path} {state}>"
