"""Upkeep: checkpoints, sealing and retention of an open store, and the thread that runs them.

The idea: a housekeeper and the store's calls use the same methods of `Upkeep`; each has a
`..._due` that is asked often and costs next to nothing. A housekeeper is one thread for work that
no call asks for. It takes a turn at an interval, and when it is woken: for the next segment, a
checkpoint, or more of a long job. It does one job after the other. A store works without it, only
less promptly. A job waits for nothing but the disk, since the others wait for it: a job that wants
a pause is due again later. One housekeeper does all jobs but the syncing of offsets, which has one
of its own, since a checkpoint may take longer than that may wait.

Invariants: a checkpoint covers flushed records only; one that failed is done again before the next;
a segment leaves the index before its file goes. A job that fails, with whatever error, is logged,
shown in `Store.stats` and tried again later; the other jobs are done all the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from kvstore.clock import Clock
from kvstore.config import Retention
from kvstore.core.names import PENDING_TOPICS
from kvstore.core.tail import Tail
from kvstore.engine.engine_context import EngineContext
from kvstore.engine.retention import Aged, Why, drop_expired, may_delete, next_to_go, unread_in
from kvstore.errors import StoreError
from kvstore.index.attach import mark_attaching
from kvstore.index.families import Batch
from kvstore.index.handover import put_gone
from kvstore.index.index import Index
from kvstore.index.keys import Checkpoint
from kvstore.log.commitlog import CommitLog
from kvstore.process.background import Background, traced
from kvstore.process.durations import Durations
from kvstore.process.freed_memory import give_back_freed

HOUSEKEEPING_INTERVAL: Final = 0.5
"""Seconds from one turn to the next."""
_log = logging.getLogger("kvmq")
_NAMED: Final = 10
"""Topics that a warning names."""
_PARTS_MAX: Final = 128
"""Parts of the key index beyond which a checkpoint merges some. When merging keeps up with puts
there are about 20, and 7 more with each eightfold length of the log.
"""
_KEYS_A_STEP: Final = 1 << 14
"""For each so many keys that it adds, a checkpoint does one step of a merge. A step merges about
131,072 keys: eight for each key added, and no key is merged that often in its life.
"""
_GIVES_BACK: Final = 1 << 14
"""Entries of a checkpoint behind which freed memory goes back to the system: megabytes, which takes
a millisecond; the checkpoint took tens of them.
"""


class Again(NamedTuple):
    """A job's answer: it has more to do, in so many seconds."""

    seconds: float


class UpkeepJob:
    """Something to do: `due` is asked often and must be cheap."""

    def __init__(self, name: str, due: Callable[[], bool], run: Callable[[], object]) -> None:
        self.name = name
        self.due = due
        self.run = run
        self.failure: str | None = None
        self.failed_when_due = False


class Housekeeper:
    """A thread that runs jobs, see the module. `interval` is in seconds."""

    def __init__(
        self, name: str, clock: Clock, wake: threading.Event, jobs: list[UpkeepJob], interval: float
    ) -> None:
        self.jobs = jobs
        self.thread = Background(name, self._turn, clock, interval, wake=wake)
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread after the job it is at."""
        self.thread.stop()

    def _turn(self) -> None:
        for job in self.jobs:
            self._do(job)

    def _do(self, job: UpkeepJob) -> None:
        if self.thread.is_stopping:
            return
        was_due = False
        try:
            was_due = job.due()
            if was_due:
                found = job.run()
                if isinstance(found, Again):
                    self.thread.start_next_in(found.seconds)
                self.thread.did(job.name)
        except BaseException as e:
            self._failed(job, e, was_due=was_due)
        else:
            # A failure is over only when the job was done; a job that is not due has not succeeded.
            if was_due or not job.failed_when_due:
                job.failure = None
        failures = [job.failure for job in self.jobs if job.failure is not None]
        self.thread.failing("; ".join(failures) or None)

    def _failed(self, job: UpkeepJob, why: BaseException, *, was_due: bool) -> None:
        failure = f"{job.name}: {type(why).__name__}: {why}"
        if failure != job.failure:
            told = str(why) if isinstance(why, StoreError | OSError) else traced(why)
            _log.error("kvmq could not do %s: %s", job.name, told)
        job.failure, job.failed_when_due = failure, was_due


class Upkeep:
    """Checkpoints, seals and deletes segments, see the module. `last_stored` says the newest store
    time given, under the log's lock.
    """

    def __init__(
        self,
        context: EngineContext,
        *,
        last_stored: Callable[[], int],
        is_closed: Callable[[], bool],
    ) -> None:
        config = context.config
        self._log = context.log
        self._index = context.index
        self._reader = context.reader
        self._config = config
        self._last_stored_now = last_stored
        self._is_closed = is_closed
        self._name_of = context.topics.name_of
        self._longest_dedup_window = context.topics.longest_dedup_window
        self.deleted_unread = 0
        """Messages that went with their segments and that no group had taken, since the opening."""
        self.checkpoint_durations = Durations()
        self._checkpointed = self._appended = 0
        self._has_told_of_disk = False
        """Whether it was logged that the disk fills and nothing may be deleted."""
        self._last_stored = 0
        self._checkpoint_lock = threading.Lock()
        self.leaving = threading.Lock()
        """Held while segments leave the log."""
        self.before_leaving: Callable[[Iterable[int]], None] = lambda segments: None
        """Called before segments leave the log, under `leaving`: it keeps what must stay."""
        self.stuck: Callable[[Sequence[int]], Collection[int]] = lambda sealed: ()
        """Says which of the sealed segments stay because messages wait in them."""
        self.is_tiered = _is_tiered(config.retention)
        """Whether segments that expire go to archives: then age and size are no reasons here."""
        now = config.clock.monotonic()
        self._checkpoint_at = now + config.checkpoint_interval
        self._retention_at = now + config.retention_interval

    # --- checkpoints ---

    def checkpoint(self, *, clean: bool = False) -> None:
        """Puts the index tail into RocksDB; `clean` says that nothing comes behind it."""
        with self._checkpoint_lock:
            before = self._checkpointed
            self._write_tail(clean=clean)
            # Here nobody has the tail any more.
            if self._checkpointed - before >= _GIVES_BACK:
                give_back_freed()

    def _write_tail(self, *, clean: bool) -> None:
        if self._index.tails.frozen is not None:
            # One that failed is done again first; what came behind it is a tail of its own.
            self._write_frozen(clean=False)
        with self._log.lock:
            frozen = self._index.freeze(self._log.end)
            self._last_stored = self._last_stored_now()
        self._write_frozen(clean=clean)
        self._checkpoint_at = self._config.clock.monotonic() + self._config.checkpoint_interval
        if frozen is not None and not clean:
            self._keep_up(frozen)

    def _write_frozen(self, *, clean: bool) -> None:
        log, index = self._log, self._index
        (active, frozen), before = index.tails, index.checkpoint
        position = active.start
        log.sync_to_end()
        if frozen is not None or position != before.position or clean != before.clean:
            began = self._config.clock.monotonic()
            index.write_checkpoint(
                Checkpoint(position, log.durable, before.epoch + 1, self._last_stored, clean),
                sync=clean,
            )
            self.checkpoint_durations.add(self._config.clock.monotonic() - began)
            self._checkpointed += 0 if frozen is None else len(frozen)

    def _keep_up(self, added: Tail) -> None:
        """Bounds the parts of the key index, after a checkpoint has added the keys of a tail:
        merging in the background alone could fall behind puts for ever.
        """
        index, size = self._index, self._log.segment_size
        # The checkpoint itself is done. The job that merges meets the same error, and reports it.
        with suppress(StoreError):
            if len(index.keys.parts()) <= _PARTS_MAX:
                return
            while index.seal_due():
                index.seal_next()
            # Each of these segments got a part, and each merge leaves at least one part less.
            segments = index.checkpoint.position // size - added.start // size + 1
            for _ in range(segments + 1 + added.keys_held // _KEYS_A_STEP):
                if len(index.keys.parts()) <= _PARTS_MAX:
                    break
                index.merge_next()

    def appended(self) -> int:
        """The records that came since the opening, with those that recovery found. It never falls,
        though a tail has left the index a little before its entries are counted as checkpointed.
        """
        tails = self._index.tails.oldest_first()
        self._appended = max(self._appended, self._checkpointed + sum(map(len, tails)))
        return self._appended

    def checkpoint_due(self) -> bool:
        """Whether enough of the log, or something for long enough, is not checkpointed."""
        behind = self._log.end - self._index.tails.active.start
        if behind >= self._config.checkpoint_bytes:
            return True
        is_behind = behind > 0 or self._index.tails.frozen is not None  # the last one failed
        return is_behind and self._config.clock.monotonic() >= self._checkpoint_at

    def seal(self) -> None:
        """See `Store.seal`."""
        with self._log.lock:
            if self._log.end % self._log.segment_size:
                self._log.roll()
        self.checkpoint()
        while self._index.seal_due():
            self._index.seal_next()

    def reserve_segments(self, count: int) -> int:
        """Leaves so many segments out of the log, which goes on behind them: their positions are
        for messages that come from elsewhere. Returns the first of the positions.
        """
        log, index, size = self._log, self._index, self._log.segment_size
        self.seal()  # so that little is left to be done while puts wait
        with self.leaving, log.paused():
            log.check_writable()
            log.seal()
            first = log.end // size
            leaving = range(first, first + count)
            # The next segment is there before the index says so: else a recovery would find nothing
            # behind the gap, and go on within it.
            log.segments.create(leaving.stop)
            log.segments.map(leaving.stop)
            there = log.segments.numbers

            def put(batch: Batch) -> None:
                put_gone(batch, index.gone(), leaving, there, size)
                mark_attaching(index.families, batch)

            try:
                index.change(put)
            finally:
                # Also if it failed behind its write: what is put there would not be looked for.
                if index.gone().has(first, size):
                    log.skip(count)
            for number in leaving:
                if log.segments.has(number):
                    log.segments.remove(number)
        self.checkpoint()
        return first * size

    # --- retention ---

    def apply_retention(self) -> int:
        """See `Store.apply_retention`."""
        self._log.check_writable()
        self._begin_retention()
        interval = self._config.delete_interval
        return drop_expired(self._next_to_go, self._drop, self._pause, interval)

    def drop_next(self) -> Again | None:
        """Drops the next segment that retention lets go: the housekeeper does other jobs in the
        pauses.
        """
        self._begin_retention()
        why = self._next_to_go()
        if why is None:
            return None
        self._drop(why)
        pause = self._config.delete_interval
        self._retention_at = self._config.clock.monotonic() + pause
        return Again(pause)

    def _begin_retention(self) -> None:
        config, size = self._config, self._log.segment_size
        self._retention_at = config.clock.monotonic() + config.retention_interval
        if self._index.checkpoint.position // size < self._log.end // size:
            # A segment must be wholly checkpointed to go: a sealed one must not wait for that.
            self.checkpoint()

    def retention_due(self) -> bool:
        """Whether it is time for another look."""
        return self._config.clock.monotonic() >= self._retention_at

    def _pause(self, seconds: float) -> bool:
        self._config.clock.sleep(seconds)
        return self._is_closed()

    def _next_to_go(self) -> Why | None:
        log, config = self._log, self._config
        numbers = log.segments.numbers
        last = min(log.end, self._index.checkpoint.position) // log.segment_size
        sealed = [n for n in numbers if n < last]
        aged = [Aged(n, self._reader.segment_newest(n)) for n in sealed[:1]]
        used = log.disk_used()
        self._tell_of_disk(used)
        return next_to_go(
            aged,
            config,
            now_ms=config.clock.now_ms(),
            hour=config.clock.local_hour(),
            disk_used=used,
            total_bytes=len(numbers) * log.segment_size,
            is_tiered=self.is_tiered,
            dedup_window=self._longest_dedup_window,
            is_stuck=lambda: sealed[0] in self.stuck(sealed),
        )

    def _tell_of_disk(self, used: float) -> None:
        """Logs once that the disk fills and nothing may be deleted for it: puts will stop."""
        _, force_at, stop_at = self._config.watermarks
        told, self._has_told_of_disk = self._has_told_of_disk, used >= force_at
        can_delete = may_delete(self._config.retention, is_tiered=self.is_tiered)
        if self._has_told_of_disk and not told and not can_delete:
            _log.warning(
                "the disk of %s is %.0f%% full; no retention of the store allows to delete "
                "anything, so puts stop at %.0f%%: free space, or set StoreConfig.retention",
                self._log.folder, used * 100, stop_at * 100,
            )  # fmt: skip

    def _drop(self, why: Why) -> None:
        size = self._log.segment_size
        with self.leaving:
            if self._log.segments.has(why.number):
                self.before_leaving([why.number])
                unread = unread_in(self._index.families, why.number)
                there = self._log.segments.numbers
                self._index.retire(why.number, (why.number + 1) * size, there)
                # They are gone from here on, even if the file can't be removed.
                self.tell_unread(f"segment {why.number}, {why.reason}", unread)
                if self._config.secure_erase:
                    self._index.dead_keys.mark_all_left()
                self._log.segments.remove(why.number, erase=self._config.secure_erase)

    def tell_unread(self, deleted: str, unread: dict[int, int]) -> None:
        """Logs deleted messages that no group has taken. (Deleted topics have no messages, and no
        group takes records of messages that wait, or waited.)
        """
        named = {
            name: n
            for topic, n in unread.items()
            if (name := self._name_of(topic)) and name not in PENDING_TOPICS
        }
        if not named:
            return
        count = sum(named.values())
        self.deleted_unread += count
        most = sorted(named.items(), key=lambda item: (-item[1], item[0]))
        topics = ", ".join(f"{name} ({n})" for name, n in most[:_NAMED])
        more = f" and {len(most) - _NAMED} topics more" if len(most) > _NAMED else ""
        _log.warning(
            "%s: retention deleted %s; %d of its messages no group had read: %s%s",
            self._log.folder.parent, deleted, count, topics, more,
        )  # fmt: skip


def _is_tiered(retention: Retention) -> bool:
    return retention.warm_for is not None or retention.cold_for is not None


def drop_orphans(log: CommitLog, index: Index) -> None:
    """Removes the files of segments that left the index, by retention or into archives, just before
    a crash, or before an error that kept the file. They are overwritten first: nobody knows which
    of them was to be erased.
    """
    if log.writable:
        gone = index.gone()
        orphans = {n for n in log.segments.numbers if gone.has(n, log.segment_size)}
        for number in sorted(orphans | log.segments.unremoved):
            log.segments.remove(number, erase=True)
