"""Replaces archives by one new archive, which has all their messages that are kept, step by step.

The idea: the executor makes the new archive (`merge`), of several groups at once if it does several
jobs at a time. Then they are handed over one after the other (`settle`). The new archive is
announced, put where the old ones are, and read back. One WriteBatch gives it their places in the
index, and makes rows of the old ones that only keep their objects until the grace time is over, for
readers that are under way.

Invariants: the old archives stay until the new one was read back; a step that fails leaves the
store as it was; an archive that can't be read whole is replaced by nothing; a tombstone goes only
while nothing else in the store holds a lower offset of its queue, and nothing that was attached
since the new archive was begun does either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kvstore.clock import whole_ms
from kvstore.errors import KeyMissing, StoreError
from kvstore.index.archived import Catalog, Queue
from tiering.archive.archive_reader import Archive
from tiering.archive.manifest import Manifest
from tiering.archive.writer import ArchiveSettings
from tiering.catalog.catalog import ArchiveRow, encode_row, is_own
from tiering.errors import PolicyIllegal, TieringBusy
from tiering.executor.match import Match
from tiering.executor.pool import Executor
from tiering.executor.regroup import Made
from tiering.keys.crypto import KeyProvider
from tiering.keys.sources import KeysAtHand, keys_at_hand
from tiering.merge.compact import Compaction
from tiering.merge.merge import Input, Merged, MergeJob, merge_with
from tiering.places.place import Place
from tiering.places.unmade import ATTACH, overwrite_all
from tiering.places.waiting import WORK
from tiering.policy.policy import Policy
from tiering.policy.retention_classes import TopicTraits, life_of, read_class
from tiering.policy.trusted_clock import TrustedClock
from tiering.worker.archive_segment import Mover, archived_topic, arriving_of
from tiering.worker.arrivals import arrivals_lock, attaches, attaching, none_since
from tiering.worker.audit import AuditProblem, find_orphans
from tiering.worker.rate_limit import RateLimit
from tiering.worker.relocate import Shifter
from tiering.worker.store_side import Store


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """The archives that were replaced, and the row of the new one, None if nothing was left."""

    old: list[ArchiveRow]
    row: ArchiveRow | None
    merged: Merged


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A new archive, in a file at `path` (if anything was left for one), that is to take the place
    of others. `at_once` are those whose objects are not to be read any more. `compaction` says how
    it was compacted, if it was.
    """

    rows: list[ArchiveRow]
    merged: Merged
    path: Path
    at_once: bool
    compaction: Compaction | None


class Replacer:
    """Makes new archives of a store's archives, and puts them in their place."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        settings: ArchiveSettings,
        mover: Mover,
        shifter: Shifter,
        pool: Executor,
        reading: RateLimit,
        check: Callable[[], None],
        trusted: TrustedClock,
    ) -> None:
        self._store = store
        self._side = store.handover
        self._policy = policy
        self._settings = settings
        self._mover = mover
        self._shifter = shifter
        self._pool = pool
        self._reading = reading
        self._check = check
        self._files = store.config.files
        self._trusted = trusted

    @property
    def provider(self) -> KeyProvider | None:
        """Where the keys of topics come from."""
        return self._settings.keys

    def manifest_of(self, row: ArchiveRow) -> Manifest:
        """The manifest of an archive."""
        return self._archive_of(row).manifest

    def _archive_of(self, row: ArchiveRow) -> Archive:
        return Archive.open(self._shifter.place_of(row).source(row.key, row.size))

    def input_of(self, row: ArchiveRow, unkept: frozenset[int] = frozenset()) -> Input:
        """An archive as a job for another process names it."""
        place = self._shifter.place_of(row)
        return Input(
            place=place.name, key=row.key, size=row.size, options=self._shifter.options_of(place),
            unkept=unkept, store_id=row.key.partition("/")[0],
        )  # fmt: skip

    def keys_for(self, manifests: Sequence[Manifest]) -> KeysAtHand | None:
        """The keys for reading archives, and for writing their messages anew. Raises `KeyMissing`
        where it can't be told whether one is gone for good.
        """
        topics = [topic for manifest in manifests for topic in manifest.topics]
        used = {(t.name, t.key_id) for t in topics if t.key_id is not None}
        found = keys_at_hand(self.provider, [t.name for t in topics], used)
        for name, key_id in sorted(used):
            if found is None or not (
                (name, key_id) in found.reading or found.is_gone(name, key_id)
            ):
                raise KeyMissing(
                    f"an archive has messages of topic {name!r} encrypted with key {key_id}, of "
                    "which the key provider knows nothing; it stays as it is", name,
                )  # fmt: skip
        return found

    def merge(
        self, rows: Sequence[ArchiveRow], known: Mapping[str, TopicTraits], now: int
    ) -> Replaced:
        """Merges several neighbours of a class into one archive. Messages that nobody is to have
        any more at `now`, by the policy of today, are left out.
        """
        manifests = [self.manifest_of(row) for row in rows]
        unkept = [self._unkept(manifest, known, now) for manifest in manifests]
        compaction = self.compaction_of(rows, now)
        job = self.job_of(rows, manifests, unkept=unkept, compaction=compaction)
        return self.settle(self.made(rows, job, self._check))

    def erased(
        self, row: ArchiveRow, manifest: Manifest, without: Match, check: Callable[[], None]
    ) -> Ready:
        """Make an archive anew without some of its messages; it is to be settled."""
        return self.made([row], self.job_of([row], [manifest], without=without), check)

    def anew(self, row: ArchiveRow, manifest: Manifest, check: Callable[[], None]) -> Ready:
        """Make an archive anew, with the keys of today; it is to be settled."""
        return self.made([row], self.job_of([row], [manifest]), check)

    def _unkept(
        self, manifest: Manifest, known: Mapping[str, TopicTraits], now: int
    ) -> frozenset[int]:
        found = set()
        for topic in manifest.topics:
            kind = life_of(self._policy, known[topic.name]).kind if topic.name in known else None
            if kind is not None and kind.is_over(now - topic.last_stored_at):
                found.add(topic.id)
        return frozenset(found)

    def compaction_of(self, rows: Sequence[ArchiveRow], now: int) -> Compaction | None:
        """The compaction of a merge of these; None: they are of no compacted topic."""
        if not is_compacted(rows[0]):
            return None
        compacted = {info.id for info in self._store.topics() if info.kind == "compacted"}
        queues: set[Queue] = set()
        for row in rows:
            held = self._archive_of(row).rows()
            ids = held.topic_ids[held.topics].tolist()
            queues |= {q for q in zip(ids, held.queues.tolist(), strict=True) if q[0] in compacted}
        return Compaction(
            tombstones_before=now - whole_ms(self._policy.tombstones_for),
            whole_below=self._whole_below(queues, rows),
        )

    def _whole_below(self, queues: Iterable[Queue], rows: Sequence[ArchiveRow]) -> dict[Queue, int]:
        """The offset of each queue below which only these archives hold anything: the lowest that
        another archive or the log holds, or the queue's next. Messages put since the last
        checkpoint are behind all that these archives hold.
        """
        mine = {row.number for row in rows}
        found: dict[Queue, int] = {}
        for queue in queues:
            here, following = self._side.held_ranges(*queue)
            others = (one.first for one in here if one.archive not in mine)
            found[queue] = min(others, default=following)
        return found

    def job_of(
        self,
        rows: Sequence[ArchiveRow],
        manifests: Sequence[Manifest],
        *,
        unkept: Sequence[frozenset[int]] | None = None,
        compaction: Compaction | None = None,
        without: Match | None = None,
    ) -> MergeJob:
        """The job that makes one archive of these. Raises `KeyMissing`."""
        first = rows[0]
        path = self._mover.made_folder() / f"{first.first_position:020d}-{first.number}.merged"
        none: list[frozenset[int]] = [frozenset()] * len(rows)
        return MergeJob(
            inputs=[
                self.input_of(row, ids)
                for row, ids in zip(rows, none if unkept is None else unkept, strict=True)
            ],
            topics={info.id: archived_topic(info) for info in self._store.topics()},
            settings=msgspec.structs.replace(self._settings, keys=self.keys_for(manifests)),
            store_id=self._side.store_id.hex(),
            retention_class=first.retention_class,
            path=str(path),
            compaction=compaction,
            without=without,
        )

    def made(self, rows: Sequence[ArchiveRow], job: MergeJob, check: Callable[[], None]) -> Ready:
        """Make the archive of a job of these; it is to be settled."""
        for row in rows:
            self._reading.take(row.size)
        path = Path(job.path)
        try:
            merged = merge_with(self._pool, check, job, self._files)
        except BaseException:
            self.remove(path)
            raise
        return Ready(
            rows=list(rows), merged=merged, path=path, at_once=job.without is not None,
            compaction=job.compaction,
        )  # fmt: skip

    def settle(self, ready: Ready) -> Replaced:
        """Puts the new archive in the place of those that it was made of. Raises the error that
        prevented it; the old ones are where they were then.
        """
        try:
            self._check()
            merged = ready.merged
            made = [merged.made] if merged.made is not None else []
            put = self._swap([ready], made)
            return Replaced(old=ready.rows, row=put[0] if put else None, merged=merged)
        finally:
            self.remove(ready.path)

    def remove(self, path: Path) -> None:
        """Remove a file that was made here, if it is there."""
        if self._files.size(path) is not None:
            with suppress(OSError):
                self._files.remove(path)

    def settle_all(self, parts: Sequence[Ready]) -> list[ArchiveRow]:
        """Puts several archives in the place of those that all of them were made of, in one batch.
        Returns their rows. Raises as `settle` does.
        """
        self._check()
        made = [part.merged.made for part in parts]
        return self._swap(parts, [m for m in made if m is not None])

    def _swap(self, parts: Sequence[Ready], made: Sequence[Made]) -> list[ArchiveRow]:
        """Put archives where the old ones are, and swap them; `parts` were made of the same."""
        rows, queues, at_once = parts[0].rows, parts[0].merged.queues, parts[0].at_once
        first, put = rows[0], []
        for one in made:
            tier, place = first.tier, self._shifter.place_of(first)
            if not is_own(first, self._side.store_id):
                # Another store's object stays there; the one that takes its place is this store's.
                tier, place = self._mover.tier_near(first.tier)
            put.append(self._mover.publisher.publish(one, tier, place))
        grace = 0 if at_once else whole_ms(self._policy.grace)
        delete_at = self._trusted.now_ms() + grace
        # Retired rows keep the numbers: readers that are under way ask for these.
        retired = [
            msgspec.structs.replace(old, state="retired", delete_at=delete_at) for old in rows
        ]
        with arrivals_lock(self._side):
            for part in parts:
                self._check_tombstones(part)
            self._side.swap(
                [old.number for old in rows],
                [arriving_of(row, one) for row, one in zip(put, made, strict=True)],
                queues=queues,
                rows=[(old.catalog_key, encode_row(old)) for old in retired],
            )
        self._mover.publisher.confirm(put)
        return put

    def _check_tombstones(self, ready: Ready) -> None:
        """Raise if tombstones were dropped, and something older came into the store since."""
        if ready.compaction is None or not ready.merged.dropped.tombstones:
            return
        known = ready.compaction.whole_below
        now = self._whole_below(known, ready.rows)
        for (topic, queue), lowest in sorted(now.items()):
            if lowest < known[topic, queue]:
                raise TieringBusy(
                    f"messages from offset {lowest} on were attached to queue {queue} of topic "
                    f"{topic} while archives of it were compacted; these stay as they are, and a "
                    "later run compacts them"
                )

    def remove_retired(self, row: ArchiveRow) -> None:
        """Removes a retired archive's object now; a file is overwritten first. Another store's
        object is only let go of.
        """
        if is_own(row, self._side.store_id):
            place = self._shifter.place_of(row)
            self._overwrite(place, row.key)
            place.delete(row.key)
        self._side.set_rows([(row.catalog_key, None)])

    def remove_leftovers(self) -> tuple[list[str], dict[str, str]]:
        """Removes the remains of cut-off puts and attaches of this store; files are overwritten
        first. Returns their names, and those that may be left, with the reason. No put may be under
        way.
        """
        problems: list[AuditProblem] = []
        places = {place.name: place for place in self._shifter.places()}
        removed, stay = [], {}
        before = attaches(self._side)
        for orphan in find_orphans(self._catalog, places.values(), 0, problems, places):
            name = f"{orphan.place}/{orphan.key}"
            if not orphan.unfinished:
                stay[name] = (
                    "it is not in the catalog, and may hold anything; `kvmq tier verify "
                    "--remove-orphans` removes it, once it is old enough"
                )
                continue
            if not none_since(before, attaches(self._side)):
                stay[name] = "something is being attached, which it may belong to; try again then"
                continue
            try:
                place = places[orphan.place]
                self._overwrite(place, orphan.key)
                place.remove_leftover(orphan.key)
                removed.append(name)
            except (StoreError, OSError) as e:
                stay[name] = str(e)
        stay.update((problem.archive, problem.reason) for problem in problems)
        try:
            with attaching(self._side):  # so that nobody begins one meanwhile
                removed += overwrite_all(self._store.path / WORK / ATTACH, self._files)
        except (StoreError, OSError) as e:
            stay["what an attach has left"] = str(e)
        return removed, stay

    def _catalog(self) -> Catalog:
        return Catalog(self._side.store_id, list(self._side.rows()))

    def _overwrite(self, place: Place, key: str) -> None:
        """Overwrite an object that is a file; not if it has another name, under which it stays."""
        if "://" not in place.name:
            path = Path(place.name) / key
            if self._files.size(path) is not None and self._files.links(path) == 1:
                self._files.erase(path)


def is_compacted(row: ArchiveRow) -> bool:
    """Whether an archive is of compacted topics."""
    try:
        return read_class(row.retention_class).compacted
    except PolicyIllegal:
        return False
