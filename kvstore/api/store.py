"""The store: opens, wires and closes its parts, and hands each call to the part that does it.

The idea: `engine.writer` writes, `read.reader` and `read.pull` read, `pop.popper` pops, `meta`
knows topics, groups and offsets, `engine.upkeep` makes checkpoints and applies retention, and
`engine.housekeeper` runs all jobs that no call asked for. This module only says which parts know
each other, and in which order they begin and end.

Invariants: a store that is open holds its folder's lock (unless read-only); after `close` every
call raises `StoreClosed`, and in a forked child `StoreForked`; `close` leaves a checkpoint at the
end of the log, so that the next opening has nothing to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvstore.api.calls import Calls
from kvstore.api.namespace_view import Namespace
from kvstore.api.tiers import OpenArchives, open_tiers
from kvstore.config import StoreConfig
from kvstore.engine.following import Follower
from kvstore.engine.housekeeper import Housekeeper, Job, housekeeping_interval
from kvstore.engine.segment_handover import SegmentHandover
from kvstore.engine.segment_stats import SegmentStats, segment_stats
from kvstore.engine.stats import StoreStats, collect
from kvstore.engine.upkeep import Upkeep, drop_orphans
from kvstore.engine.verify import VerifyReport, verify
from kvstore.engine.writer import Writer, store_host
from kvstore.errors import ConfigError, StoreError, shown
from kvstore.files import local_path
from kvstore.index.archived import Archived, Catalog
from kvstore.index.keys import ARCHIVES, META, STORE_ID
from kvstore.log.commitlog import CommitLog
from kvstore.log.flusher import Flusher
from kvstore.message import Message
from kvstore.meta.groups import Groups
from kvstore.meta.namespaces import Namespaces
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topics
from kvstore.opening import store_folder
from kvstore.opening.adopting import Adoption, in_place
from kvstore.opening.placing import place_archives
from kvstore.opening.recovery import Progress, recover
from kvstore.pop.inflight.waiting import Waiting
from kvstore.pop.popper import Popper
from kvstore.pop.progress_history import ProgressHistory
from kvstore.process.background import Background
from kvstore.process.forking import refuse_in_child
from kvstore.read.find import Finder
from kvstore.read.reader import Reader
from kvstore.record.put.batch import Host


def _copying(progress: Progress | None) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress("reading the log", done, total)


class Store(Calls):
    """An open store; see `kvstore.open`. Every call may be made from several threads."""

    def __init__(
        self,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        read_only: bool = False,
        progress: Progress | None = None,
        adopt: Adoption | None = None,
        open_archives: OpenArchives = open_tiers,
    ) -> None:
        # Absolute: the process may change its folder while the store is open.
        self.path = local_path(path).absolute()
        given = config if config is not None else StoreConfig()
        if not isinstance(given, StoreConfig):
            raise ConfigError(f"config is {shown(given)}; it must be a StoreConfig, or None")
        given.archives.check_there(given.files)
        if not read_only:
            given.check_puts_are_readable()
        self._closed = False
        refuse_in_child(self)
        self._ending: list[Callable[[], None]] = []
        """Functions that end the parts this opening began, in the order in which they were
        begun.
        """
        self._close_lock = threading.Lock()
        self.threads: list[Background] = []
        """Threads that work for this store by themselves: its own, and a tiering worker's."""
        self._tiers: Archived | None = None
        self._open_archives = open_archives
        self._archives_lock = threading.Lock()
        found = store_folder.look(self.path, given)
        self._lock = None if read_only else store_folder.take(self.path, given)
        if self._lock is not None:
            self._ending.append(self._lock.release)
        try:
            with store_folder.made(self.path):
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
        found: store_folder.FolderKind,
        read_only: bool,
        progress: Progress | None,
        adopt: Adoption | None,
    ) -> None:
        if (
            not read_only
            and found is store_folder.FolderKind.OURS
            and store_folder.is_unfounded(self.path, given)
        ):
            found = store_folder.LOG_OR_NOTHING[store_folder.has_log(self.path, given)]
        if not read_only and found is store_folder.FolderKind.LOG_ONLY and adopt is None:
            adopt = in_place(self.path, given.files, _copying(progress))
        if not read_only and found in (
            store_folder.FolderKind.LOG_ONLY,
            store_folder.FolderKind.NOTHING,
        ):
            self._index, self.config = store_folder.found_index(self.path, given, adopt)
        else:
            self._index, self.config = store_folder.open_index(
                self.path, given, found, read_only=read_only
            )
        self._ending.append(self._index.close)
        config = self.config
        folder, gone = self.path / store_folder.COMMITLOG, self._index.gone().segments
        self._log = CommitLog(folder, config, writable=not read_only, gone=gone)
        self._ending.append(self._log.close)
        if not read_only:
            place_archives(self._index, self._log, self._archives)
        host = store_host(config)
        self._open_meta(config, host.extra, read_only)
        drop_orphans(self._log, self._index, config)
        self.recovery, last_stored = recover(self._log, self._index, self._topics, config, progress)
        self._topics.recovered(self._log.end)
        if not self.recovery.clean and (
            found is not store_folder.FolderKind.NOTHING or adopt is not None
        ):
            self._offsets.recovered(self._log.end)
        self._index.topics_fresh_from(self._topics.next_id)
        self._reader = Reader(self._log, self._index, config)
        self._finder = Finder(self._reader, self._log, self._index, self._topics.is_live)
        has_archives = next(self._index.families.rows(ARCHIVES, b""), None) is not None
        if has_archives or self._index.gone().segments:
            self._reader.read_from(self._archives())
        if read_only:
            follower = Follower(self._log, self._index, self._reader, self._archives)
            self._reader.follow = follower.look
            self._ending.append(follower.close)
        else:
            self._open_writing(config, host, last_stored)

    def _open_writing(self, config: StoreConfig, host: Host, last_stored: int) -> None:
        """Opens the parts that a read-only store does without."""
        self._wake = self._log.prepare_wanted
        self._waiting = Waiting(config.clock)
        seen_when_durable = config.visibility == "flushed"
        self._flusher = Flusher(
            self._log,
            config,
            on_durable=self._waiting.everybody if seen_when_durable else lambda: None,
        )
        self._ending.append(self._flusher.stop)
        self.threads.append(self._flusher.thread)
        self._writer = Writer(
            self._log,
            self._index,
            self._flusher,
            self._topics,
            config,
            last_stored=last_stored,
            checkpoint_now=self.checkpoint,
            wake=self._wake,
            arrivals=self._waiting,
            host=host,
        )
        self._open_popping()
        self._open_upkeep(config)

    def _open_upkeep(self, config: StoreConfig) -> None:
        upkeep = self._upkeep = Upkeep(
            self._log,
            self._index,
            self._reader,
            config,
            last_stored=lambda: self._writer.last_stored,
            is_closed=lambda: self._closed,
            name_of=self._topics.name_of,
        )
        self.handover = SegmentHandover(
            self._log,
            self._index,
            self._reader,
            self._topics,
            upkeep,
            config,
            archived=self._archives,
        )
        """The calls of a tiering worker."""
        self._housekeeper = Housekeeper(
            config.clock, self._wake, self._jobs(), housekeeping_interval(config)
        )
        self._ending.append(self._housekeeper.stop)
        self.threads.append(self._housekeeper.thread)

    def _jobs(self) -> list[Job]:
        """The jobs of the housekeeper."""
        upkeep = self._upkeep
        return [
            Job("the next segment", self._log.needs_next, self._log.prepare_next),
            Job("a checkpoint", upkeep.checkpoint_due, self.checkpoint),
            Job("sealing", self._index.seal_due, self._index.seal_next),
            Job("merging keys", self._index.merge_due, self._merge_keys),
            Job("dead keys", self._index.key_upkeep.dead_keys_due, self._drop_dead_keys),
            Job("offsets to the disk", self._offsets.sync_due, self._offsets.sync),
            Job("history of what is done", self._progress.due, self._progress.sample),
            Job(
                "old offset history",
                self._offsets.history_rows.sweep_due,
                self._offsets.history_rows.sweep,
            ),
            Job("retention", upkeep.retention_due, upkeep.retain),
            Job(
                "ends of deleted topics",
                lambda: self._topics.has_dropped(self._log.first),
                lambda: self._topics.forget_dropped(self._log.first),
            ),
        ]

    def _merge_keys(self) -> None:
        """Merges one step; the other jobs have a look before the next one."""
        self._index.merge_next()
        self._wake.set()

    def _drop_dead_keys(self) -> None:
        self._index.key_upkeep.drop_dead_keys()
        self._wake.set()

    def _open_meta(self, config: StoreConfig, host_extra: int, read_only: bool) -> None:
        """Opens topics, groups and offsets; no row of them is read before it is used."""
        self._topics = Topics(
            self._index.families,
            default_key_index=config.key_index,
            default_queues=config.default_queues,
            auto_create=config.auto_create_topics,
            host_extra=host_extra,
            log_end=lambda: self._log.end,
            read_only=read_only,
        )
        self._groups = Groups(self._index.families, self._log.sync_to_end)
        self._namespaces = Namespaces(self._index.families)
        self._offsets = Offsets(self._index, config, read_only=read_only)

    def _archives(self) -> Archived:
        """The reader of the store's archives; a store without any never opens it."""
        with self._archives_lock:
            if self._tiers is None:
                rows = self._index.families.rows(ARCHIVES, b"")
                self._tiers = self._open_archives(self.path, rows, self.config)
                self._ending.append(self._tiers.close)
            return self._tiers

    def _open_popping(self) -> None:
        self._popping = Popper(
            self._index.families,
            self._reader,
            self._finder,
            self._topics,
            self._groups,
            self._offsets,
            self.config.clock,
            self._waiting,
            self._put_durably,
        )
        self._progress = ProgressHistory(
            self._offsets,
            self._popping.flights,
            self.config.clock,
            after_crash=not self.recovery.clean,
        )

    def namespace(self, name: str) -> Namespace:
        """A namespace's calls: the same as the store's, on its own topics and groups alone.

        >>> store.namespace("tenant-a").put("orders", b"...").topic  # doctest: +SKIP
        'orders'
        """
        return Namespace(self, name)

    def _put_durably(self, messages: Sequence[Message]) -> None:
        self._writer.put_batch(messages)
        self._flusher.wait(self._log.end)

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
        return collect(
            self.path,
            self._log,
            self._index,
            self._topics,
            self.config,
            self.recovery,
            self._tiers,
            upkeep=self._upkeep if self._log.writable else None,
            threads=self.threads,
        )

    def catalog(self) -> Catalog:
        """Which archives there are; `tiering` reads the rows."""
        self._check_open()
        families = self._index.families
        return Catalog(families.get(META, STORE_ID) or b"", list(families.rows(ARCHIVES, b"")))

    def segments(self, progress: Progress | None = None) -> list[SegmentStats]:
        """The messages of each sealed, wholly checkpointed segment, in numbers, oldest first, and
        when they were stored; from the index alone.
        """
        self._check_open()
        return segment_stats(self._log, self._index, self._topics, progress)

    def verify(self, progress: Progress | None = None, *, archives: bool = False) -> VerifyReport:
        """Check every record's CRC, and the one over the whole record of those that carry it, and
        hold the index against the log, and against the archives there are; with `archives` every
        byte of those is read and checked. Problems are listed, not raised.
        """
        self._check_open()
        if self._log.writable:
            self.checkpoint()
        return verify(
            self._log,
            self._index,
            self._topics,
            self._reader,
            progress,
            property_crc=self.config.check_property_crc,
            archives=archives,
        )

    # --- the end ---

    def close(self) -> None:
        """Flush, checkpoint, and let go of the folder. Closing twice does nothing."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        try:
            if self._log.writable:
                self._waiting.close()
                self._housekeeper.stop()
                self._finish()
        finally:
            self._end()

    def _end(self) -> None:
        """Ends all parts that were begun, the last first; an error of one doesn't keep the
        others.
        """
        with ExitStack() as ending:
            for step in self._ending:
                ending.callback(step)

    def _finish(self) -> None:
        if self._log.failure is not None:
            return
        try:
            with self._log.lock:
                self._log.closed = True
            self._progress.finish()
            self._upkeep.checkpoint(clean=True)
            self._index.tidy()
        except StoreError:
            # The next opening recovers everything that could not be finished here; only a failed
            # sync has to be told.
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
