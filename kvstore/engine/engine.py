"""The engine: the parts of one open store, wired.

The idea: `writer` puts, `reader` and `finder` read, `popping` pops, `topics`, `groups` and
`offsets` know names and progress, `upkeep` makes checkpoints and applies retention, and
`housekeepers` run the jobs that no call asked for. This module says which parts know each other,
and in which order they begin and end.

Invariants: an open engine holds its folder's lock, unless it is read-only; `close` leaves a
checkpoint at the end of the log, so that the next opening has nothing to do; a part that an opening
began is ended, whatever fails.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kvstore.config import StoreConfig
from kvstore.core.names import TIMER_TOPIC, TRANSACTION_HALF_TOPIC
from kvstore.engine.engine_context import EngineContext
from kvstore.engine.following import Follower
from kvstore.engine.leaving import Leaving
from kvstore.engine.repeats import Repeats
from kvstore.engine.segment_handover import SegmentHandover
from kvstore.engine.upkeep import (
    HOUSEKEEPING_INTERVAL,
    Housekeeper,
    Upkeep,
    UpkeepJob,
    drop_orphans,
)
from kvstore.engine.writer import Writer, store_host
from kvstore.errors import MessageNotFound, RecordDamaged, SegmentDamaged, StoreError
from kvstore.index.archived import Archived, EndedWaits, Meant, OpenArchives
from kvstore.index.keys import ARCHIVES
from kvstore.log.commitlog import CommitLog
from kvstore.log.flusher import Flusher
from kvstore.message import Message, StoredMessage
from kvstore.meta.groups import Groups
from kvstore.meta.namespaces import Namespaces
from kvstore.meta.offsets import Offsets
from kvstore.meta.receipt_secret import open_receipts
from kvstore.meta.topics import Topic, Topics
from kvstore.opening import store_folder
from kvstore.opening.adopting import Adoption, in_place
from kvstore.opening.foreign_delays import ForeignDelays
from kvstore.opening.foreign_transactions import ForeignTransactions
from kvstore.opening.recovery import Progress, recover
from kvstore.opening.restoring import place_archives
from kvstore.opening.store_folder import FolderKind
from kvstore.pop.context import PopContext
from kvstore.pop.inflight.listing import InFlightList
from kvstore.pop.inflight.tables import InflightTables
from kvstore.pop.inflight.waiting import Waiting
from kvstore.pop.popper import Popper
from kvstore.pop.progress import GroupProgress, ProgressHistory
from kvstore.process.background import Background
from kvstore.process.locks import Signal
from kvstore.read.find import Finder
from kvstore.read.reader import Reader
from kvstore.rocketmq.config_values import DELAY_GROUP, TRANSACTION_GROUP
from kvstore.timing.checks import Checks
from kvstore.timing.delivery import DeliveryThread
from kvstore.timing.pending_messages import PendingMessages, PlannedNotes
from kvstore.timing.prepared_list import PreparedList
from kvstore.timing.schedule_rows import ScheduleRows
from kvstore.timing.schedules import Schedules
from kvstore.timing.timer_rows import TimerRows
from kvstore.timing.timers import Timers, WaitingList
from kvstore.timing.transactions import Transactions

_log = logging.getLogger("kvmq")


class Engine:
    """The parts of an open store, see the module. A read-only one is a `ReadingEngine`."""

    def __init__(
        self,
        path: Path,
        config: StoreConfig,
        *,
        read_only: bool,
        progress: Progress | None,
        adopt: Adoption | None,
        open_archives: OpenArchives,
    ) -> None:
        self.path = path
        self.is_closed = False
        self.is_finished = False
        """Whether `close` has put all on the disk, and made the last checkpoint."""
        self.threads: list[Background] = []
        """Threads that work for this store by themselves: its own, and a tiering worker's."""
        self.tiers: Archived | None = None
        """The reader of the archives; None before one was needed."""
        self._open_archives = open_archives
        self._archives_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._ending = ExitStack()
        """Ends the parts that were begun, the last first; an error of one keeps none of the
        others.
        """
        found = store_folder.look(path, config)
        self.folder_lock = lock = store_folder.folder_lock(path, config)
        self._ending.callback(lock.release)
        try:
            if not read_only:
                store_folder.acquire(lock, path, config)
            with store_folder.made(path):
                self._open(config, found, read_only, progress, adopt)
                if not read_only:
                    lock.mark()
        except BaseException:
            self.is_closed = True
            self._ending.close()
            raise

    # --- opening ---

    def _open(
        self,
        given: StoreConfig,
        found: FolderKind,
        read_only: bool,
        progress: Progress | None,
        adopt: Adoption | None,
    ) -> None:
        if (
            not read_only
            and found is FolderKind.OURS
            and store_folder.is_unfounded(self.path, given)
        ):
            found = store_folder.LOG_OR_NOTHING[store_folder.has_log(self.path, given)]
        if not read_only and found is FolderKind.LOG_ONLY and adopt is None:
            adopt = in_place(self.path, given.files, _copying(progress))
        if not read_only and found in (FolderKind.LOG_ONLY, FolderKind.NOTHING):
            self.config = given if adopt is None else adopt.sized(given)
            source = None if adopt is None else adopt.put_rows
            self.index = store_folder.found_index(self.path, self.config, source)
        else:
            self.index, self.config = store_folder.open_index(
                self.path, given, found, read_only=read_only
            )
        self._ending.callback(self.index.close)
        config = self.config
        folder, gone = self.path / store_folder.COMMITLOG, self.index.gone().segments
        self.log = CommitLog(folder, config, writable=not read_only, gone=gone)
        self._ending.callback(self.log.close)
        if not read_only:
            place_archives(self.index, self.log, self.archives)
        self._open_meta(config, read_only)
        drop_orphans(self.log, self.index)
        self.recovery, last_stored, last_record = recover(
            self.log, self.index, self.topics, config, progress
        )
        self.topics.recovered(self.log.end)
        if not self.recovery.clean and (found is not FolderKind.NOTHING or adopt is not None):
            self.offsets.recovered(self.log.end)
        self.index.topics_fresh_from(self.topics.next_id)
        self.reader = Reader(self.log, self.index, config)
        self.context = EngineContext(self.log, self.index, self.topics, self.reader, config)
        self.finder = Finder(self.reader, self.log, self.index, self.topics.find)
        tables = InflightTables(self.index.families, self.offsets, self.reader.bounds)
        self.group_progress = GroupProgress(self.reader, self.topics, self.offsets, tables)
        self.in_flight_list = InFlightList(self.reader, self.topics, tables)
        self.timing = self.context.timing()
        self.timer_rows = TimerRows(self.index)
        self.schedule_rows = ScheduleRows(self.index.families)
        self.waiting_list = WaitingList(self.timing, self.timer_rows)
        self.prepared_rows = TimerRows(self.index, is_prepared=True)
        self.prepared_list = PreparedList(self.timing, self.prepared_rows)
        has_archives = next(self.index.families.rows(ARCHIVES, b""), None) is not None
        if has_archives or self.index.gone().segments:
            self.reader.read_from(self.archives())
        if read_only:
            self._hide_cut(last_record)
            follower = Follower(self.log, self.index, self.reader, self.archives)
            self.reader.follow = follower.look
            self._ending.callback(follower.close)
        else:
            if not self.recovery.clean:
                self._bound_ends(tables)
            self._open_writing(config, last_stored, tables)
            self._finish_cut(last_record)
            self._begin_threads(config)

    def _hide_cut(self, last_record: int | None) -> None:
        """Lets the log end before its last put, if that was of several messages of one transaction
        and is not whole: the next writer finishes it.
        """
        last = self._record_at(last_record)
        begin = None if last is None else self.prepared_list.begin_of_cut(last)
        self.log.end = self.log.end if begin is None else begin

    def _finish_cut(self, last_record: int | None) -> None:
        """Finishes the last put of the log, if it was of several messages of one transaction."""
        # Other messages of the transaction may be damaged, or of a topic that was deleted.
        with suppress(MessageNotFound, RecordDamaged, SegmentDamaged):
            self.transactions.finish_cut(self._record_at(last_record))

    def _record_at(self, position: int | None) -> StoredMessage | None:
        """The record that recovery found last; None if there is none, or it can't be read."""
        with suppress(MessageNotFound, RecordDamaged, SegmentDamaged):
            return None if position is None else self.reader.read_at(position)
        return None

    def _bound_ends(self, tables: InflightTables) -> None:
        """Applies the ends of the log that openings have noted, if there are too many."""
        try:
            if self.offsets.has_many_ends():
                self.offsets.apply_ends(self.reader.bounds, tables.cut_rows())
        except StoreError as e:
            # All rows are clamped when they are used, as before; the next unclean opening tries it.
            _log.error("%s: offsets could not be clamped for good: %s", self.path, str(e))

    def _open_meta(self, config: StoreConfig, read_only: bool) -> None:
        """Opens topics, groups and offsets; no row of them is read before it is used."""
        self.topics = Topics(
            self.index.families,
            default_key_index=config.key_index,
            default_queues=config.default_queues,
            auto_create=config.auto_create_topics,
            host_size=len(store_host(config)),
            log_end=lambda: self.log.end,
            read_only=read_only,
        )
        self.groups = Groups(self.index.families, self.log.sync_to_end)
        self.namespaces = Namespaces(self.index.families)
        self.offsets = Offsets(self.index, config, read_only=read_only)

    def _open_writing(self, config: StoreConfig, last_stored: int, tables: InflightTables) -> None:
        """Opens the parts that a read-only store does without."""
        self.waiting = Waiting(config.clock)
        seen_when_durable = config.visibility == "flushed"
        self.flusher = Flusher(
            self.log,
            config,
            on_durable=self.waiting.everybody if seen_when_durable else lambda: None,
        )
        self._ending.callback(self.flusher.stop)
        self.threads.append(self.flusher.thread)
        self.writer = Writer(
            self.context,
            self.flusher,
            self.waiting,
            Repeats(self.context, self.finder, last_stored),
            last_stored=last_stored,
            checkpoint_now=self.checkpoint,
        )
        self.popping = Popper(
            PopContext(
                families=self.index.families,
                reader=self.reader,
                finder=self.finder,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                tables=tables,
                receipts=open_receipts(self.index.families),
                waiting=self.waiting,
                clock=config.clock,
                nonces=count(secrets.randbits(62)),
                put=self._put_durably,
            )
        )
        self.progress = ProgressHistory(
            self.offsets,
            self.popping.tables,
            config.clock,
            after_crash=not self.recovery.clean,
        )
        self.upkeep = Upkeep(
            self.context,
            last_stored=lambda: self.writer.last_stored,
            is_closed=lambda: self.is_closed,
        )
        self.handover = SegmentHandover(
            self.context,
            self.upkeep,
            self.archives,
            arriving=self.writer.arriving,
            on_arrival=self.waiting.everybody,
        )
        """The calls of a tiering worker."""
        self._open_timing(config)

    def _open_timing(self, config: StoreConfig) -> None:
        """Opens the parts for messages in time."""
        delayed = self._pending(TIMER_TOPIC, self.timer_rows, is_prepared=False)
        prepared = self._pending(TRANSACTION_HALF_TOPIC, self.prepared_rows, is_prepared=True)
        self.timers = Timers(self.timing, self.timer_rows, self.waiting_list, delayed)
        self.transactions = Transactions(
            self.timing,
            self.prepared_rows,
            self.prepared_list,
            prepared,
            self.writer.encode,
            config,
        )
        self.checks = Checks(self.transactions, config)
        self._ending.callback(self.checks.stop)
        self.writer.on_delayed = self.timers.added
        self.upkeep.before_leaving = self._keep_pending
        self.handover.waits_ended = self._end_waits
        rows = [self.timer_rows, self.prepared_rows]
        self.upkeep.stuck = Leaving(rows, self.log.segment_size).stuck
        self.schedules = Schedules(
            self.timing, self.schedule_rows, self.timers, self.writer, self._flush
        )
        self.timers.firings = self.schedules
        self.topics.removing += [
            self.timer_rows.put_removal,
            self.prepared_rows.put_removal,
            self.schedule_rows.put_removal,
        ]
        ForeignDelays(self.timing, delayed, partial(self._foreign_progress, DELAY_GROUP)).put()
        checked = partial(self._foreign_progress, TRANSACTION_GROUP)
        ForeignTransactions(self.timing, prepared, checked, config).put()

    def _foreign_progress(self, name: str, topic: Topic, queue: int) -> int:
        """The first offset of a queue that a group of RocketMQ's own had not done with."""
        group = self.groups.find(name)
        bounds = self.reader.bounds(topic.key(queue))
        found = group and self.offsets.get(group.id, topic.base >> 32, queue, bounds)
        return found or 0

    def _pending(self, topic: str, rows: TimerRows, *, is_prepared: bool) -> PendingMessages:
        return PendingMessages(
            self.timing, rows, self.writer, self.checkpoint, topic=topic, is_prepared=is_prepared
        )

    def _end_waits(self, meant: Meant, planned: PlannedNotes | None) -> EndedWaits:
        """Ends the waits of the messages that an erasure is about, or plans that."""
        delayed, schedules = self.timers.erase(meant, planned)
        return EndedWaits(delayed, self.transactions.erase(meant, planned), schedules)

    def _keep_pending(self, segments: Iterable[int]) -> None:
        """Keeps messages that wait from leaving the log with segments."""
        leaving = list(segments)
        self.timers.leave(leaving)
        self.transactions.leave(leaving)

    def _begin_threads(self, config: StoreConfig) -> None:
        self.housekeepers = self._begin_housekeeping(config)
        self.delivery = DeliveryThread(self.timers, config.clock)
        self._ending.callback(self.delivery.stop)
        self.threads.append(self.delivery.thread)

    def _begin_housekeeping(self, config: StoreConfig) -> list[Housekeeper]:
        clock, wake, interval = config.clock, self.log.prepare_wanted, HOUSEKEEPING_INTERVAL
        begun = [Housekeeper("kvmq-housekeeper", clock, wake, self._jobs(), interval)]
        promised = config.offset_sync_interval
        if promised is not None:
            # By itself: a checkpoint, or the overwriting of a segment, takes longer than promised.
            jobs = [UpkeepJob("offsets to the disk", self.offsets.sync_due, self.offsets.sync)]
            often = min(promised or interval, interval)
            begun.append(Housekeeper("kvmq-offsets", clock, Signal(), jobs, often))
        for one in begun:
            self._ending.callback(one.stop)
            self.threads.append(one.thread)
        return begun

    def _jobs(self) -> list[UpkeepJob]:
        """The jobs of the first housekeeper."""
        upkeep, index, topics, history = (
            self.upkeep,
            self.index,
            self.topics,
            self.offsets.history_rows,
        )
        return [
            UpkeepJob("the next segment", self.log.needs_next, self.log.prepare_next),
            UpkeepJob("a checkpoint", upkeep.checkpoint_due, self.checkpoint),
            UpkeepJob("sealing", index.seal_due, index.seal_next),
            UpkeepJob("merging keys", index.merge_due, partial(self._one_step, index.merge_next)),
            UpkeepJob(
                "compacting keys", index.compact_due, partial(self._one_step, index.compact_next)
            ),
            UpkeepJob(
                "dead keys",
                index.dead_keys.due,
                partial(self._one_step, index.dead_keys.drop),
            ),
            UpkeepJob("history of what is done", self.progress.due, self.progress.sample),
            UpkeepJob("old offset history", history.sweep_due, history.sweep),
            UpkeepJob("checks of transactions", self.checks.due, self.checks.run),
            UpkeepJob("retention", upkeep.retention_due, upkeep.drop_next),
            UpkeepJob(
                "ends of deleted topics",
                lambda: topics.has_dropped(self.log.first),
                lambda: topics.forget_dropped(self.log.first),
            ),
        ]

    def _one_step(self, step: Callable[[], object]) -> None:
        """Does one step of a long job; the other jobs are looked at before the next step."""
        step()
        self.log.prepare_wanted.set()

    # --- what the parts and the calls share ---

    def archives(self) -> Archived:
        """The reader of the store's archives; a store without any never opens it."""
        with self._archives_lock:
            if self.tiers is None:
                rows = self.index.families.rows(ARCHIVES, b"")
                self.tiers = self._open_archives(self.path, rows, self.config)
                self._ending.callback(self.tiers.close)
            return self.tiers

    def checkpoint(self) -> None:
        """See `Store.checkpoint`."""
        self.log.check_writable()
        self.upkeep.checkpoint()

    def _put_durably(self, messages: Sequence[Message]) -> None:
        self.writer.put_batch(messages, any_kind=True)
        self._flush()

    def _flush(self) -> None:
        self.flusher.wait(self.log.end)

    # --- the end ---

    def close(self) -> None:
        """See `Store.close`."""
        with self._close_lock:
            if self.is_closed:
                return
            self.is_closed = True
        with self._ending:
            if self.log.writable:
                self.waiting.close()
                self.delivery.stop()
                self.checks.stop()
                for one in self.housekeepers:
                    one.stop()
                self._finish()

    def _finish(self) -> None:
        if self.log.failure is not None:
            return
        try:
            with self.log.lock:
                self.log.closed = True
            self.progress.finish()
            self.upkeep.checkpoint(clean=True)
            self.schedules.close()
            self.is_finished = True
            self.index.tidy()
        except StoreError:
            # The next opening recovers everything that could not be finished here; only a failed
            # sync has to be told.
            if self.log.failure is not None:
                raise


def _copying(progress: Progress | None) -> Callable[[int, int], Any] | None:
    return None if progress is None else partial(progress, "reading the log")


class ReadingEngine(Engine):
    """The parts of a read-only store. It has neither `writer` nor any other part that
    `_open_writing` makes; to ask for one raises `StoreReadOnly`. (A class of its own, since every
    attribute of a class with `__getattr__` takes longer to read.)
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            log = self.__dict__.get("log")
            if log is not None and not name.startswith("_"):
                log.check_writable()
            raise AttributeError(f"the engine has no {name}")
