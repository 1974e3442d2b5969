"""The worker: moves a store's segments and archives to where a policy says.

The idea: take a snapshot of the store, ask the policy which steps are due, run them in order
(`run_due`), record them (`runs`), and begin again until nothing is due. A worker runs when it is
called, or by itself in a thread. Its executor (`pool.Executor`) does the steps that cost processor
time: a process of its own, or Spark's tasks.

Invariants: one worker for a store at a time; a step that fails leaves everything readable as it
was, is noted, and is tried again by the next run; data that can't be judged is never deleted.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final, Self, cast

from kvstore.errors import CallerError, ConfigError, StoreClosed, StoreError
from kvstore.process.background import Background
from kvstore.process.forking import refuse_in_child
from kvstore.process.locks import Signal, is_mine
from tiering.archive.writer import ArchiveSettings
from tiering.catalog.catalog import ArchiveInfo, decode_rows, info_of, kept_as
from tiering.catalog.tiers import Tiers
from tiering.errors import (
    PlaceDenied,
    PlaceFull,
    PlaceUnavailable,
    PolicyIllegal,
    TieringBusy,
    TieringStopped,
)
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.pool import Executor, Pool
from tiering.executor.rate_limit import RateLimit
from tiering.keys.crypto import KeyProvider
from tiering.keys.key_file import provider_of
from tiering.merge.merge import TARGET_BYTES
from tiering.operations.erase import Destroyer, DestroyReport, Eraser, ErasurePlan, ErasureReport
from tiering.places.failures import typed
from tiering.places.publish import Pacing
from tiering.places.work_folder import FILE, WORK, Waits, overwrite_all
from tiering.policy.plan import Plan, make_plan
from tiering.policy.policy import Policy, check_with_store, is_open
from tiering.policy.schedule import Agenda, SegmentDue, schedule, schedule_erasure
from tiering.policy.trusted_clock import TrustedClock
from tiering.worker.archive_segment import SegmentArchiver
from tiering.worker.audit import AuditContext, AuditReport, audit
from tiering.worker.context import Publisher, WorkContext, open_places
from tiering.worker.replace import Replacer
from tiering.worker.rewriting import MergeScheduler, Rewriter, TopicSeparator
from tiering.worker.run_due import MOVING, AgendaRunner, Relocator, name_of
from tiering.worker.runs import History, Run, RunReport, record_errors
from tiering.worker.store_protocols import Progress, Store
from tiering.worker.store_snapshot import Snapshotter, StoreSnapshot

__all__ = ["MOVING", "ArchiveInfo", "Worker"]

INTERVAL: Final = 60.0
_TIDYING: Final = "tidying"
_BUILT: Final = "made"
"""The folder where archives are built, within the worker's folder."""


class Worker:
    """A store's worker, for callers; see the module.

    >>> with tiering.Worker(store, Policy(hot_for=60, warm_for=3600, warm="archive")) as worker:
    ...     worker.run_once()  # doctest: +SKIP

    `keys` gives the keys of topics that are to be encrypted; `options` are settings of the object
    stores (docs/places.md); those not given are the store's (`StoreConfig.archives`). `progress` is
    called with the name of the step, the amount that is done, and the whole. `executor` does the
    work (default: a process of the worker's own; see docs/spark.md). If it does several things at
    once, so does the worker, and the store becomes the same. Raises `PolicyIllegal` for a policy
    that does not fit the store, `TieringBusy` if the store has a worker already.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        *,
        keys: KeyProvider | None = None,
        options: Mapping[str, object] | None = None,
        progress: Progress | None = None,
        executor: Executor | None = None,
    ) -> None:
        if not isinstance(policy, Policy):
            raise PolicyIllegal(f"the policy is {policy!r}; it must be a tiering.Policy")
        if not hasattr(store, "handover"):
            raise CallerError(
                f"{store!r} is open in another process, which is to do the work; use "
                "tiering.ServedWorker"
            )
        config = store.config
        check_with_store(policy, config.retention, config.watermarks)
        refuse_in_child(self)
        self.policy = policy
        self._store, self._handover = store, store.handover
        self._clock, self._files = config.clock, config.files
        self._progress = progress
        self._telling = threading.Lock()
        self._stopping = Signal()
        self._thread: Background | None = None
        self._busy = threading.RLock()
        self._tried: set[str] = set()
        access, work = config.archives, store.path / WORK
        keys = provider_of(access.keys, self._files) if keys is None else keys
        options = access.options if options is None else options
        self._rates = (
            RateLimit(policy.read_rate, self._clock), RateLimit(policy.upload_rate, self._clock)
        )  # fmt: skip
        pace = Pacing(*(rate.take for rate in self._rates))
        self._context = context = WorkContext(
            store=store,
            policy=policy,
            settings=ArchiveSettings(
                codec=policy.codec, level=policy.level, block_bytes=policy.block_bytes, keys=keys
            ),
            places=open_places(policy, store.path, options, self._files, self._clock),
            options=options,
            executor=Pool() if executor is None else executor,
            pace=pace,
            publisher=Publisher(store, work / "intents", self._tell, pace),
            trusted=TrustedClock(work / "clock.json", self._files, self._clock, policy.clock_doubt),
            # A process that a kill of this one left behind must not write where the next one does.
            built=work / _BUILT / secrets.token_hex(8),
            check=self._check,
            tell=self._tell,
        )
        self.history = History(work / "history.jsonl", self._files, self._clock)
        self._waits = Waits(work / FILE, self._files, self._clock)
        self._archiver = SegmentArchiver(context)
        self._relocator = Relocator(context)
        self._replacer = Replacer(context)
        self._snapshots = Snapshotter(context)
        self._merges = MergeScheduler(context, self._replacer)
        self._runner = AgendaRunner(
            context, self._archiver, self._relocator, self._snapshots, self.history, self._waits
        )
        self._has_turn = self._handover.worker_turn.acquire(blocking=False)
        if not self._has_turn:
            raise TieringBusy(f"{store.path} has a worker already; stop that one first")
        try:
            archived = self._handover.archived()
            if isinstance(archived, Tiers):
                places = {kept_as(p.name, store.path): p for p in context.places.values()}
                archived.use(places, keys)
            self._handover.worker_begins()
        except BaseException:
            self._handover.worker_turn.release()
            raise

    # --- what there is ---

    def archives(self) -> list[ArchiveInfo]:
        """The archives of the store, by their first position."""
        return [info_of(row) for row in self._context.rows()]

    def plan(self, *, ratio: float | None = None, read_share: float = 0.0) -> Plan:
        """The steps that a run would do now, and their cost or savings; nothing is changed."""
        now = self._context.trusted.now_ms()
        segments, archives, _ = self._snapshots.take(now)
        return make_plan(
            self.policy, segments, archives, now_ms=now, hour=self._clock.local_hour(),
            disk_used=self._disk_used(), other_bytes=self._handover.segment_size, ratio=ratio,
            read_share=read_share, stuck=self._handover.stuck,
        )  # fmt: skip

    def verify(self, *, remove_orphans: bool = False) -> AuditReport:
        """Checks every archive's bytes, and compares catalog and places. Objects of this store that
        the catalog does not have are listed; if asked, those older than the policy's grace time are
        removed. Raises `TieringBusy` while a run is under way.
        """
        with self._alone():
            context = self._context
            audited = AuditContext(
                catalog=context.catalog, place_of=context.place_of, places=context.places.values(),
                clock=self._clock, executor=context.executor, options=context.options,
                keys=context.keys, check=self._check, progress=self._progress,
                arrivals=lambda: self._handover.arrivals.attaches,
            )  # fmt: skip
            return audit(audited, grace=self.policy.grace, remove_orphans=remove_orphans)

    # --- runs ---

    def run_once(self) -> RunReport:
        """Does what is due, until nothing is. Raises `TieringBusy` while another run is under way,
        `TieringStopped` once `stop` was called, `StoreClosed`, and a `PlaceError` if a place is
        away, refuses, or breaks a promise when the run begins. The error of a step is in the
        report, and the next run tries that step again.
        """
        with self._alone():
            run = self._begin()
            return run.report(waits_for_hours=self._do_due(run))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thing at a time; the other process ends with the block. A refusal by the disk is
        raised as `DiskFull` or `FileRefused`.
        """
        busy = TieringBusy("a run of this worker is under way; wait for it, or stop it")
        if is_mine(self._busy):
            raise busy
        try:
            if not self._busy.acquire(blocking=False):
                raise busy
            with typed(self._store.path), ExitStack() as ending:
                for step in (self._waits.note, self._archiver.clear, self._context.executor.close):
                    ending.callback(step)
                yield
        finally:
            # Released even after an error: else no run would ever begin again.
            try:  # noqa: SIM105  # see kvstore.process.locks
                self._busy.release()
            except RuntimeError:
                pass  # it was not taken

    def merge(self, target_bytes: int = TARGET_BYTES) -> RunReport:
        """Merges neighbouring archives into larger ones, of `target_bytes` at most, until none are
        worth it, whatever the hour; compacted topics keep the newest message of each key then.
        Archives due to go cold, or to be deleted, are left to `run_once`. Raises as that does.
        """
        with self._alone():
            run = self._begin()
            self._merges.begin(anew=True)
            while self._merge_one(run, target_bytes):
                pass
            return run.report()

    def part(self, topic: str) -> RunReport:
        """Parts archives that hold a topic together with topics of another retention. Two take the
        place of each, one with the topic alone, so that neither waits for the other to be over (see
        `inspection.held_together`). The old objects go after the policy's grace time, with a run.
        Raises as `run_once` does, and `CallerError` for a topic that is not there.
        """
        found = self._rewriter().topic(topic)
        separator = TopicSeparator(self._context, self._replacer, self._snapshots)
        return self._rewrite(lambda run: separator.part(found, run))

    def run_and_merge(self) -> RunReport:
        """One round of a worker that runs by itself: as `run_once`, then merge to the policy's
        `merge_bytes`, group by group, at its `hours`; steps that become due meanwhile go first.
        Steps that failed before are left alone for a while (see `Waits`). Raises as `run_once`
        does, but a place that is away is in the report: others may be there.
        """
        with self._alone():
            run = self._begin(anew=False)
            self._merges.begin(anew=False)
            while True:
                waits = self._do_due(run)
                if not (self._may_merge() and self._merge_one(run, self.policy.merge_bytes)):
                    return run.report(waits_for_hours=waits)

    def _may_merge(self) -> bool:
        """Whether it is the hour. At the watermarks archives must not be there twice."""
        marks, used = self.policy.watermarks, self._disk_used()
        is_full = marks is not None and used >= marks[0]
        return not is_full and is_open(self.policy, self._clock.local_hour(), 0.0)

    def _merge_one(self, run: Run, target_bytes: int | None) -> bool:
        """Merges one group; returns False if there is none."""
        self._check()
        if target_bytes is None:
            return False
        agenda, snapshot = self._agenda()
        groups = self._merges.schedule(agenda, snapshot, target_bytes)
        if groups:
            self._merges.merge_first(groups, snapshot, self._context.trusted.now_ms(), run)
        return bool(groups)

    def compact(self, topic: str | None = None) -> RunReport:
        """Compacts topics: archives of compacted topics (or of this one) keep only the newest
        message of each key, as far as neighbouring archives may be merged, however large or small
        they are. Raises as `run_once` does, and `CallerError` for a topic that is not compacted.
        """
        return self._rewrite(lambda run: self._rewriter().compact(topic, self._agenda, run))

    def reencrypt(self, topic: str | None = None) -> RunReport:
        """Writes archives anew that have messages (of a topic) under another key than the one that
        the provider gives for writing now: also archives that are not encrypted and should be, or
        are and should not. The old objects go after the policy's grace time, with a run. Raises as
        `run_once` does, `ConfigError` without keys, `CallerError` for a topic that is not there.
        """
        return self._rewrite(lambda run: self._rewriter().reencrypt(topic, run))

    def _rewriter(self) -> Rewriter:
        return Rewriter(self._context, self._replacer, self._merges)

    def _rewrite(self, work: Callable[[Run], None]) -> RunReport:
        with self._alone():
            run = self._begin()
            self._merges.begin(anew=True)
            work(run)
            return run.report()

    def erasure_plan(
        self, *, topic: str | None = None, key: str | None = None, before: int | None = None,
        everywhere: bool = False,
    ) -> ErasurePlan:  # fmt: skip
        """The effects that `erase` would have; nothing is changed. Raises as that does."""
        match = self._match(topic, key, before, everywhere)
        with self._alone():
            return self._eraser().plan(match)

    def erase(
        self, *, topic: str | None = None, key: str | None = None, before: int | None = None,
        everywhere: bool = False,
    ) -> ErasureReport:  # fmt: skip
        """Erases messages put so far: of a topic, with a key, or stored before a time (ms); all
        that is given must be true. Then everything is searched again, to show that nothing is left:
        see `ErasureReport.is_proven`. Copies of a topic's messages are looked for where the store
        puts them: in system topics and groups' dead-letter topics; `everywhere`: in all topics,
        which reads every archive. Raises as `run_once` does.
        """
        match = self._match(topic, key, before, everywhere)
        with self._alone():
            run = self._begin()
            report = self._eraser().erase(match)
            # Remains that could not be removed may hold messages that are erased.
            untidy = {k: why for k, why in run.failed.items() if k.startswith(_TIDYING)}
            report.failed.update(untidy)
            self.history.add(
                "erased", match.for_notes, archives=report.archives, messages=report.messages,
                note="proven" if report.is_proven else f"not proven: {report.failed}"[:1000],
            )  # fmt: skip
            return report

    def _match(
        self, topic: str | None, key: str | None, before: int | None, everywhere: bool
    ) -> ErasurePredicate:
        dead = frozenset(n for group in self._store.groups() for n in group.dead_letter_topics)
        copies_in = None if everywhere else dead
        return ErasurePredicate(topic=topic, key=key, before=before, copies_in=copies_in)

    def destroy_key(self, topic: str) -> DestroyReport:
        """Destroys a topic's key: messages encrypted with it are gone everywhere at once, copies of
        archives included. Raises `ConfigError` if the worker's keys can't do that.
        """
        keys = self._context.keys
        if keys is None or not hasattr(keys, "destroy"):
            raise ConfigError(
                f"the key of topic {topic!r} can't be destroyed: the worker was given "
                + ("no keys" if keys is None else "keys of a kind that can't; ask their owner")
            )
        with self._alone():
            found = self._eraser().destroy_key(topic, cast("Destroyer", keys))
            self.history.add(
                "erased", f"the key of topic {topic}", archives=found.archives,
                note=f"readable all the same: {found.readable}" if found.readable else "",
            )  # fmt: skip
            return found

    def _eraser(self) -> Eraser:
        return Eraser(self._context, self._archiver, self._replacer, self._due_now)

    def _due_now(self, number: int) -> SegmentDue | None:
        """Where a segment's messages go if it leaves hot now; None: there is no place for it."""
        now = self._context.trusted.now_ms()
        segments = self._snapshots.take(now).segments
        segment = next((s for s in segments if s.number == number), None)
        return schedule_erasure(self.policy, segment, now) if segment else None

    def _do_due(self, run: Run) -> bool:
        """Does what is due, until nothing is; returns whether more is, at other hours."""
        while True:
            self._check()
            agenda, snapshot = self._agenda()
            if agenda.is_empty or agenda.waits_for_hours:
                return agenda.waits_for_hours
            if not self._runner.run_due(agenda, snapshot, run):
                return False
            self._runner.remove_retired(run)

    def _begin(self, *, anew: bool = True) -> Run:
        """Cleans up after an earlier worker, and begins a run; `anew`: also tries steps that failed
        before.
        """
        run = Run(self.history)
        self._waits.begin(anew=anew)
        self._runner.skipped.clear()
        self._snapshots.resolver.begin()
        known = {row.key for row in decode_rows(self._handover.rows())}
        places = self._context.places.values()
        self._try_places(run, anew=anew)
        with record_errors(run.note_failure, _TIDYING, StoreError):
            run.removed += self._context.publisher.clean_up(places, known, run.note_failure)
            run.removed += overwrite_all(self._store.path / WORK / _BUILT, self._files)
            run.removed += self._relocator.remove_copies()
        self._runner.remove_retired(run)
        return run

    def _try_places(self, run: Run, *, anew: bool) -> None:
        """Tries out, once, what each place promises, and makes a folder that is not there yet. A
        place that is full is noted: objects due to be deleted there must go all the same. So is one
        that is away, for a worker that runs by itself: other places may be there.
        """
        for tier, place in self._context.places.items():
            if place.name in self._tried or self._waits.is_on(place.name):
                continue
            try:
                place.check(create=True)
                self._tried.add(place.name)
            except (PlaceUnavailable, PlaceDenied, PlaceFull) as e:
                if anew and not isinstance(e, PlaceFull):
                    raise
                if not isinstance(e, PlaceFull):
                    self._waits.failed(place.name, [tier], e)
                run.note_failure(place.name, e)

    def _agenda(self) -> tuple[Agenda, StoreSnapshot]:
        self._store.checkpoint()
        now = self._context.trusted.now_ms()
        snapshot = self._snapshots.take(now)
        there = {name_of(s.number) for s in snapshot.segments}
        self._waits.keep(there | {archive.key for archive in snapshot.archives})
        segments = [s for s in snapshot.segments if self._runner.may_archive(s.number)]
        agenda = schedule(
            self.policy, segments, snapshot.archives, now_ms=now, hour=self._clock.local_hour(),
            disk_used=self._disk_used(), other_bytes=self._handover.segment_size,
            stuck=self._handover.stuck,
        )  # fmt: skip
        return agenda, snapshot

    def _disk_used(self) -> float:
        return self._files.disk_used(self._store.path)

    def _check(self) -> None:
        if self._stopping.is_set():
            raise TieringStopped("the worker was told to stop; what it was doing is undone")

    def _tell(self, step: str, done: int, total: int) -> None:
        if self._progress is not None:
            # Progress is told one step after the other, also of steps that are made at once.
            with self._telling:
                self._progress(step, done, total)

    # --- by itself ---

    def start(self, interval: float = INTERVAL) -> None:
        """Runs by itself (`run_and_merge`), every `interval` seconds, in a thread; until `stop`."""
        if not interval > 0:
            raise CallerError(f"interval is {interval!r}; it must be above 0 seconds")
        if self._thread is not None:
            raise TieringBusy("this worker runs by itself already")
        self._thread = Background("kvmq-tiering", self._turn, self._clock, interval, at_once=True)
        self._store.threads.append(self._thread)
        self._thread.start()

    def _turn(self) -> None:
        thread = self._thread
        if thread is None:
            return  # `stop` was called
        try:
            report = self.run_and_merge()
            thread.did(f"a run in which {len(report.failed)} steps failed")
        except (TieringStopped, StoreClosed):
            thread.end()
        except TieringBusy:
            pass

    def stop(self) -> None:
        """Ends a run under way, and running by itself; the store is as if the step under way had
        not begun. The worker is of no use from then on.
        """
        self._stopping.set()
        for rate in self._rates:
            rate.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
            self._store.threads.remove(thread)
        with self._busy:
            self._context.executor.close()
            if self._has_turn:
                self._has_turn = False
                self._handover.worker_ends()
                self._handover.worker_turn.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
