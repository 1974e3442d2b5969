"""The worker: has a store's segments and archives go where a policy says.

The idea: look at what there is, ask the policy what is due (`due`), do it one thing after the other
(`moving`, `shifting`), note what was done (`history`), and look again until nothing is due. It runs
when it is called, or by itself in a thread. CPU-heavy steps run in a process of their own.

Invariants: one worker for a store at a time; a step that fails leaves everything readable as it
was, is noted, and is tried again by the next run; what cannot be told is never deleted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self, cast
from weakref import WeakSet

import msgspec

from kvstore.archived import Catalog
from kvstore.errors import CallerError, ConfigError, StoreClosed, StoreError
from tiering.archive.crypto import KeyProvider
from tiering.archive.writer import ArchiveSettings
from tiering.audit import AuditReport, audit
from tiering.catalog import ArchiveRow, Tier, decode_rows, kept_as
from tiering.classes import RetentionClass, TopicTraits, life_of
from tiering.due import Agenda, Archived, ArchiveDue, Segment, SegmentDue, due, due_at_once
from tiering.erase import Destroyer, DestroyReport, Eraser, ErasureReport
from tiering.errors import PolicyIllegal, TieringBusy, TieringStopped
from tiering.history import History
from tiering.match import Match
from tiering.merge import TARGET_BYTES, choose
from tiering.moving import WORK, Mover
from tiering.place import Place, open_place
from tiering.plan import Plan, make_plan
from tiering.planning import clock_before
from tiering.policy import Policy, check_with_store
from tiering.pool import Pool
from tiering.ratelimit import RateLimit
from tiering.replacing import Replacer
from tiering.runs import Run, RunReport
from tiering.shifting import Shifter
from tiering.storeside import Progress, Store, TopicFacts
from tiering.survey import archives_of, encrypted_of, segments_of, traits_of
from tiering.tiers import Tiers
from tiering.trusted import Trusted, observe

INTERVAL: Final = 60.0
MOVING: Final = "moving what is due"
"""What is told of a whole run, in bytes; beside it goes what is told of each step."""
_log = logging.getLogger("kvmq")
_taken: WeakSet[object] = WeakSet()
_taken_lock = threading.Lock()


class ArchiveInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An archive as `Worker.archives` lists it; sizes are bytes, positions of the log, times ms."""

    key: str
    place: str
    tier: Tier
    messages: int
    raw_bytes: int
    bytes: int
    first_position: int
    last_position: int
    first_stored_at: int
    last_stored_at: int
    retention_class: str
    generation: int


class Worker:
    """See the module.

    >>> with tiering.Worker(store, Policy(hot_for=60, warm_for=3600, warm="archive")) as worker:
    ...     worker.run_once()  # doctest: +SKIP

    `keys` gives the keys of topics that are to be encrypted; `options` are settings of the places
    (docs/places.md); `progress` is called with what is being done, how much of it is done, and the
    whole. Raises `PolicyIllegal` for a policy that does not fit the store, `TieringBusy` if the
    store has a worker already.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        *,
        keys: KeyProvider | None = None,
        options: Mapping[str, object] | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(policy, Policy):
            raise PolicyIllegal(f"the policy is {policy!r}; it must be a tiering.Policy")
        config = store.config
        check_with_store(policy, config.retention, config.watermarks)
        self._store = store
        self._side = store.handover
        self.policy = policy
        self._clock = config.clock
        self._files = config.files
        self._progress = progress
        self._keys = keys
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._busy = threading.Lock()
        self._unfit: set[int] = set()
        self._tried: set[str] = set()
        self._looked_at = 0.0
        self._places = self._open_places(options or {})
        self.history = History(store.path / WORK / "history.jsonl", self._files, self._clock)
        self._reading = RateLimit(policy.read_rate, self._clock)
        self._uploading = RateLimit(policy.upload_rate, self._clock)
        self._pool = Pool()
        settings = ArchiveSettings(
            codec=policy.codec, level=policy.level, block_bytes=policy.block_bytes, keys=keys
        )
        self._mover = Mover(
            store, settings, self._places, self._pool, self._reading, self._uploading,
            self._check, self._tell, self._class_of,
        )  # fmt: skip
        self._shifter = Shifter(
            store, policy, self._places, self._mover.intents, self._reading, self._uploading,
            options or {},
        )  # fmt: skip
        self._replacer = Replacer(
            store, policy, settings, self._mover, self._shifter, self._pool, self._reading,
            options or {}, self._check,
        )  # fmt: skip
        with _taken_lock:
            if self._side in _taken:
                raise TieringBusy(f"{store.path} has a worker already; stop that one first")
            _taken.add(self._side)
        archived = self._side.archived()
        if isinstance(archived, Tiers):
            places = {kept_as(p.name, store.path): p for p in self._places.values()}
            archived.use(places, keys)
        self._side.attach()

    def _open_places(self, options: Mapping[str, object]) -> dict[Tier, Place]:
        found: dict[Tier, Place] = {}
        policy = self.policy
        if policy.warm is not None:
            # A folder without a root is the store's: "archive" is DIR/archive.
            warm = policy.warm if "://" in policy.warm else self._store.path / policy.warm
            found["warm"] = open_place(warm, files=self._files, clock=self._clock)
        if policy.cold is not None:
            is_url = "://" in policy.cold
            cold = policy.cold if is_url else self._store.path / policy.cold
            found["cold"] = open_place(
                cold, options=options if is_url else None, files=self._files, clock=self._clock
            )
        return found

    # --- what there is ---

    def archives(self) -> list[ArchiveInfo]:
        """The archives of the store, by their first position."""
        return [
            ArchiveInfo(
                key=row.key, place=row.place, tier=row.tier, messages=row.messages,
                raw_bytes=row.raw_bytes, bytes=row.size, first_position=row.first_position,
                last_position=row.last_position, first_stored_at=row.first_stored_at,
                last_stored_at=row.last_stored_at, retention_class=row.retention_class,
                generation=row.generation,
            )
            for row in self._rows()
        ]  # fmt: skip

    def plan(self, *, ratio: float | None = None, read_share: float = 0.0) -> Plan:
        """What a run would do now, and what that costs or saves; nothing is changed."""
        segments, archives, _ = self._look()
        return make_plan(
            self.policy, segments, archives,
            now_ms=self._observed().now_ms, hour=self._clock.local_hour(),
            disk_used=self._disk_used(), other_bytes=self._side.segment_size, ratio=ratio,
            read_share=read_share,
        )  # fmt: skip

    def verify(self, *, remove_orphans: bool = False) -> AuditReport:
        """Check every archive's bytes, hold catalog and places against each other; objects of this
        store that the catalog does not have are listed, and removed if asked, once they are older
        than the policy's grace time. Raises `TieringBusy` while a run is under way.
        """
        with self._alone():
            return audit(
                lambda: Catalog(self._side.store_id, list(self._side.rows())),
                self._shifter.place_of, self._places.values(), self._clock, keys=self._keys,
                grace=self.policy.grace, remove_orphans=remove_orphans, progress=self._progress,
            )  # fmt: skip

    def _rows(self) -> list[ArchiveRow]:
        return [row for row in decode_rows(self._side.rows()) if row.state == "live"]

    def _look(self) -> tuple[list[Segment], list[Archived], dict[str, TopicTraits]]:
        topics = self._store.topics()
        known = traits_of(topics, encrypted_of(topics, self._keys))
        segments = segments_of(self.policy, self._store.segments(), known)
        return segments, archives_of(self._rows()), known

    def _class_of(self, topic: TopicFacts) -> RetentionClass | None:
        """What becomes of a topic's messages once they left hot; None: nothing."""
        known = traits_of([topic], encrypted_of([topic], self._keys))
        return life_of(self.policy, known[topic.name]).kind

    # --- runs ---

    def run_once(self) -> RunReport:
        """Do what is due, until nothing is. Raises `TieringBusy` while another run is under way,
        `TieringStopped` once `stop` was called, `StoreClosed`, and a `PlaceError` if a place does
        not do what it must; what else goes wrong is in the report, and tried again by the next run.
        """
        with self._alone():
            return self._run()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Do one thing at a time, and have the other process end behind it."""
        if not self._busy.acquire(blocking=False):
            raise TieringBusy("a run of this worker is under way; wait for it, or stop it")
        try:
            yield
        finally:
            self._pool.close()
            self._busy.release()

    def merge(self, target_bytes: int = TARGET_BYTES) -> RunReport:
        """Merge neighbouring archives into larger ones, of `target_bytes` at most, until none are
        worth it, whatever the hour; compacted topics keep the newest message of each key then. What
        is due to go cold, or to go, is left to `run_once`. Raises as that does.
        """
        with self._alone():
            run = self._begin()
            failed: set[int] = set()
            while True:
                agenda, known = self._agenda()
                busy = {archive.key for archive in agenda.archives}
                rows = [r for r in self._rows() if r.key not in busy and r.number not in failed]
                groups = choose(rows, target_bytes)
                if not groups:
                    return run.report()
                for group in groups:
                    self._check()
                    began = self._clock.monotonic()
                    failed.update(row.number for row in group)
                    with run.noting(group[0].key, StoreError, OSError):
                        done = self._replacer.merge(group, known, self._observed().now_ms)
                        failed.difference_update(row.number for row in group)
                        run.replaced(done, self._clock.monotonic() - began)

    def erase(
        self, *, topic: str | None = None, key: str | None = None, before: int | None = None
    ) -> ErasureReport:
        """Erase what was put so far of a topic, with a key, or stored before a time (ms); of what
        is given all must be true. Then everything is read again, to show that nothing is left: see
        `ErasureReport.is_proven`. Raises as `run_once` does.
        """
        match = Match(topic=topic, key=key, before=before)
        with self._alone():
            self._begin()
            report = self._eraser().erase(match)
            self.history.add(
                "erased", report.what, archives=report.archives, messages=report.messages,
                note="proven" if report.is_proven else f"not proven: {report.failed}"[:1000],
            )  # fmt: skip
            return report

    def destroy_key(self, topic: str) -> DestroyReport:
        """Destroy a topic's key: what is encrypted with it is gone everywhere at once, copies of
        archives included. Raises `ConfigError` if the worker's keys can't do that.
        """
        keys = self._keys
        if keys is None or not hasattr(keys, "destroy"):
            raise ConfigError(
                f"the key of topic {topic!r} can't be destroyed: the worker was given "
                + ("no keys" if keys is None else "keys of a kind that can't; ask whoever has them")
            )
        with self._alone():
            found = self._eraser().destroy_key(topic, cast("Destroyer", keys))
            self.history.add(
                "erased", f"the key of topic {topic}", archives=found.archives,
                note=f"readable all the same: {found.readable}" if found.readable else "",
            )  # fmt: skip
            return found

    def _eraser(self) -> Eraser:
        return Eraser(
            self._store, self._mover, self._replacer, self._pool, self._check, self._tell,
            self._due_at_once,
        )  # fmt: skip

    def _due_at_once(self, number: int) -> SegmentDue | None:
        """What becomes of a segment if it leaves hot now; None: there is no place for it."""
        segment = next((s for s in self._look()[0] if s.number == number), None)
        return due_at_once(self.policy, segment, self._observed().now_ms) if segment else None

    def _run(self) -> RunReport:
        run = self._begin()
        while True:
            self._check()
            agenda, known_topics = self._agenda()
            if agenda.is_empty or agenda.waits_for_hours:
                return run.report(waits_for_hours=agenda.waits_for_hours)
            done = False
            total = sum(s.bytes for s in agenda.segments) + sum(a.bytes for a in agenda.archives)
            moved = 0
            for segment in agenda.segments:
                self._tell(MOVING, moved, total)
                done |= self._move(segment, run)
                moved += segment.bytes
            rows = {row.key: row for row in self._rows()} if agenda.archives else {}
            for archive in agenda.archives:
                self._tell(MOVING, moved, total)
                done |= self._shift(archive, rows[archive.key], known_topics, run)
                moved += archive.bytes
            if not done:
                return run.report(waits_for_hours=False)
            self._sweep(run)

    def _begin(self) -> Run:
        """Put right what a worker before left, and begin."""
        run = Run(self.history)
        self._unfit.clear()
        known = {row.number for row in decode_rows(self._side.rows())}
        self._try_places()
        with run.noting("tidying", StoreError):
            run.removed += self._mover.tidy(known)
        self._sweep(run)
        return run

    def _try_places(self) -> None:
        """Try out, once, what each place promises, and make a folder that is not there yet."""
        for place in self._places.values():
            if place.name not in self._tried:
                place.check(create=True)
                self._tried.add(place.name)

    def _agenda(self) -> tuple[Agenda, dict[str, TopicTraits]]:
        self._store.checkpoint()
        segments, archives, known = self._look()
        fit = [s for s in segments if s.number not in self._unfit]
        agenda = due(
            self.policy, fit, archives,
            now_ms=self._observed().now_ms, hour=self._clock.local_hour(),
            disk_used=self._disk_used(), other_bytes=self._side.segment_size,
        )  # fmt: skip
        return agenda, known

    def _move(self, segment: SegmentDue, run: Run) -> bool:
        self._check()
        began = self._clock.monotonic()
        try:
            moved = self._mover.move(segment)
        except (TieringStopped, StoreClosed):
            raise
        except (StoreError, OSError) as e:
            # The others may still go: one that is damaged must not fill the disk with them.
            self._unfit.add(segment.number)
            run.failed_with(f"segment {segment.number}", e)
            return False
        run.moved(segment, moved.rows, moved.messages, self._clock.monotonic() - began)
        return True

    def _shift(
        self, archive: ArchiveDue, row: ArchiveRow, known: Mapping[str, TopicTraits], run: Run
    ) -> bool:
        self._check()
        try:
            if archive.to == "cold":
                self._shifter.to_cold(row)
                is_done = True
                run.shifted.append(row.key)
                self.history.add("cold", row.key, bytes=row.size, messages=row.messages)
            else:
                is_done = self._shifter.expire(row, known, self._observed().now_ms)
                if is_done:
                    run.expired.append(row.key)
                    self.history.add("expired", row.key, bytes=row.size, messages=row.messages)
        except (TieringStopped, StoreClosed):
            raise
        except (StoreError, OSError) as e:
            run.failed_with(row.key, e)
            return False
        return is_done

    def _sweep(self, run: Run) -> None:
        for row in decode_rows(self._side.rows()):
            if row.state == "retired":
                with run.noting(row.key, StoreError, OSError):
                    if self._shifter.sweep(row, self._clock.now_ms()):
                        run.removed.append(row.name)

    def _disk_used(self) -> float:
        return self._files.disk_used(self._store.path)

    def _observed(self) -> Trusted:
        """The trusted time, kept from one look, and one process, to the next."""
        path = self._store.path / WORK / "clock.json"
        before = clock_before(path, self._files)
        now = self._clock.monotonic()
        elapsed = now - self._looked_at if self._looked_at else None
        self._looked_at = now
        found = observe(before, self._clock.now_ms(), elapsed, self.policy.clock_doubt)
        self._files.make_dir(path.parent)
        self._files.write_whole(path, msgspec.json.encode(found))
        return found

    def _check(self) -> None:
        if self._stopping.is_set():
            raise TieringStopped("the worker was told to stop; what it was doing is undone")

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)

    # --- by itself ---

    def start(self, interval: float = INTERVAL) -> None:
        """Run by itself, every `interval` seconds, in a thread; until `stop`."""
        if not interval > 0:
            raise CallerError(f"interval is {interval!r}; it must be above 0 seconds")
        if self._thread is not None:
            raise TieringBusy("this worker runs by itself already")
        self._thread = threading.Thread(
            target=self._loop, args=(interval,), name="kvmq tiering", daemon=True
        )
        self._thread.start()

    def _loop(self, interval: float) -> None:
        while True:
            try:
                self.run_once()
            except (TieringStopped, StoreClosed):
                return
            except TieringBusy:
                pass
            except Exception:
                # The next run begins anew; a thread that died would let the disk run full.
                _log.exception("%s: a tiering run failed", self._store.path)
            if self._clock.wait(self._stopping, interval):
                return

    def stop(self) -> None:
        """End a run under way, and running by itself; the store is as if the step under way had not
        begun. The worker is of no use from then on.
        """
        self._stopping.set()
        self._reading.stop()
        self._uploading.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        with self._busy:
            self._pool.close()
        with _taken_lock:
            if self._side in _taken:
                _taken.discard(self._side)
                self._side.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
