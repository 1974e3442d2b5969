"""Replaces archives by one new archive, which has all their messages that are kept, step by step.

The idea: the executor builds the new archive by a merge, several at once if it does several jobs at
a time. Then one after the other takes its place (`replace`). The new archive is published where the
old ones are. One WriteBatch gives it their places in the index, and retires the old ones: their
rows keep the objects until the grace time is over, for readers that are under way.

Invariants:

- The old archives stay until the new one was read back.
- A step that fails leaves the store as it was.
- An archive that can't be read whole is replaced by nothing.
- A tombstone goes only while nothing else in the store holds a lower offset of its queue, and
  nothing that was attached since the new archive was begun does either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kvstore.clock import whole_ms
from kvstore.errors import StoreError
from kvstore.index.archived import Queue
from tiering.archive.manifest import Manifest
from tiering.catalog.catalog import ArchiveRow, Tier, encode_row, is_own
from tiering.errors import PolicyIllegal, TieringBusy
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.merge.compact import Compaction
from tiering.merge.merge import merge_with
from tiering.merge.partition import Merged, MergeJob
from tiering.places.place import Place
from tiering.places.work_folder import ATTACH, WORK, overwrite_all
from tiering.policy.retention_classes import TopicTraits, life_of, read_class
from tiering.worker.archive_segment import archived_topic, arriving_of
from tiering.worker.audit import AuditProblem, find_orphans
from tiering.worker.context import WorkContext
from tiering.worker.store_protocols import attaching, none_since


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """The archives that were replaced, and the row of the new one, None if nothing was left."""

    old: list[ArchiveRow]
    row: ArchiveRow | None
    merged: Merged


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """A new archive, in a file at `path` (if anything was left for one), that is to take the place
    of `rows`. `at_once`: their objects are not to be read any more. `compaction` says how it was
    compacted, if it was. `over` has, by the number of an old archive, the ids of topics that were
    left out because their time is over.
    """

    rows: list[ArchiveRow]
    merged: Merged
    path: Path
    at_once: bool
    compaction: Compaction | None
    over: dict[int, frozenset[int]] = {}


class Replacer:
    """Builds new archives of a store's archives, and puts them in their place."""

    def __init__(self, context: WorkContext) -> None:
        self._context = context
        self._store = context.store
        self._handover = context.handover
        self._files = context.files
        self._publisher = context.publisher

    # --- jobs ---

    def compaction_of(self, rows: Sequence[ArchiveRow], now: int) -> Compaction | None:
        """The compaction of a merge of these archives; None: they are of no compacted topic."""
        if not is_compacted(rows[0]):
            return None
        compacted = {info.id for info in self._store.topics() if info.kind == "compacted"}
        queues: set[Queue] = set()
        for row in rows:
            held = self._context.open_archive(row).rows()
            ids = held.topic_ids[held.topics].tolist()
            queues |= {q for q in zip(ids, held.queues.tolist(), strict=True) if q[0] in compacted}
        return Compaction(
            tombstones_before=now - whole_ms(self._context.policy.tombstones_for),
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
            here, following = self._handover.held_ranges(*queue)
            others = (one.first for one in here if one.archive not in mine)
            found[queue] = min(others, default=following)
        return found

    def merge_job(
        self,
        rows: Sequence[ArchiveRow],
        manifests: Sequence[Manifest],
        *,
        unkept: Sequence[frozenset[int]] | None = None,
        compaction: Compaction | None = None,
        without: ErasurePredicate | None = None,
    ) -> MergeJob:
        """The job that makes one archive of these. Raises `KeyMissing`."""
        first, context = rows[0], self._context
        self._files.make_dir(context.built)
        none: list[frozenset[int]] = [frozenset()] * len(rows)
        return MergeJob(
            inputs=[
                context.input_of(row, ids)
                for row, ids in zip(rows, none if unkept is None else unkept, strict=True)
            ],
            topics={info.id: archived_topic(info) for info in self._store.topics()},
            settings=msgspec.structs.replace(context.settings, keys=context.keys_for(manifests)),
            store_id=self._handover.store_id.hex(),
            retention_class=first.retention_class,
            path=str(context.built / f"{first.first_position:020d}-{first.number}.merged"),
            compaction=compaction,
            without=without,
        )

    # --- building ---

    def build(
        self, rows: Sequence[ArchiveRow], job: MergeJob, check: Callable[[], None]
    ) -> Replacement:
        """Builds the archive of a job, which is to replace `rows`."""
        for row in rows:
            self._context.pace.reading(row.size)
        path = Path(job.path)
        try:
            merged = merge_with(self._context.executor, check, job, self._files)
        except BaseException:
            self._remove(path)
            raise
        return Replacement(
            rows=list(rows), merged=merged, path=path, at_once=job.without is not None,
            compaction=job.compaction,
            over={
                row.number: one.unkept
                for row, one in zip(rows, job.inputs, strict=True) if one.unkept
            },
        )  # fmt: skip

    def rebuild(
        self,
        row: ArchiveRow,
        manifest: Manifest,
        check: Callable[[], None],
        without: ErasurePredicate | None = None,
    ) -> Replacement:
        """Builds an archive anew with the present keys, `without` some of its messages."""
        return self.build([row], self.merge_job([row], [manifest], without=without), check)

    def discard(self, replacement: Replacement) -> None:
        """Removes the file of a replacement, if it is there."""
        self._remove(replacement.path)

    def _remove(self, path: Path) -> None:
        if self._files.size(path) is not None:
            with suppress(OSError):
                self._files.remove(path)

    # --- replacing ---

    def merge(
        self, rows: Sequence[ArchiveRow], known: Mapping[str, TopicTraits], now: int
    ) -> Replaced:
        """Merges several neighbours of a class into one archive. Messages that are over at `now`,
        by the present policy, are left out.
        """
        manifests = [self._context.manifest_of(row) for row in rows]
        unkept = [self._unkept(manifest, known, now) for manifest in manifests]
        compaction = self.compaction_of(rows, now)
        job = self.merge_job(rows, manifests, unkept=unkept, compaction=compaction)
        return self.replace(self.build(rows, job, self._context.check))

    def _unkept(
        self, manifest: Manifest, known: Mapping[str, TopicTraits], now: int
    ) -> frozenset[int]:
        """The ids of topics whose messages in an archive are over."""
        policy, found = self._context.policy, set()
        for topic in manifest.topics:
            kind = life_of(policy, known[topic.name]).kind if topic.name in known else None
            if kind is not None and kind.is_over(now - topic.last_stored_at):
                found.add(topic.id)
        return frozenset(found)

    def replace(self, replacement: Replacement) -> Replaced:
        """Puts a new archive in the place of those that it was built of. Raises the error that
        prevented it; the old ones stay then, if it came before the batch.
        """
        try:
            put = self.replace_by([replacement])
            row = put[0] if put else None
            return Replaced(old=replacement.rows, row=row, merged=replacement.merged)
        finally:
            self.discard(replacement)

    def replace_by(self, parts: Sequence[Replacement]) -> list[ArchiveRow]:
        """Puts several archives in the place of those that all of them were built of, in one batch.
        Returns their rows. Raises as `replace` does.
        """
        self._context.check()
        built = [part.merged.made for part in parts if part.merged.made is not None]
        rows, queues, at_once = parts[0].rows, parts[0].merged.queues, parts[0].at_once
        put = [self._publisher.publish(archive, *self._place_for(rows[0])) for archive in built]
        delete_at = None if at_once else self._context.grace_ends()
        # Retired rows keep the numbers: readers that are under way ask for these.
        retired = [
            msgspec.structs.replace(old, state="retired", delete_at=delete_at) for old in rows
        ]
        with self._handover.arrivals.lock:
            for part in parts:
                self._check_tombstones(part)
            self._handover.swap(
                [old.number for old in rows],
                [arriving_of(row, archive) for row, archive in zip(put, built, strict=True)],
                queues=queues,
                rows=[(old.catalog_key, encode_row(old)) for old in retired],
                over={number: ids for part in parts for number, ids in part.over.items()},
            )
        self._publisher.confirm(put)
        return put

    def _place_for(self, row: ArchiveRow) -> tuple[Tier, Place]:
        """The tier and place for an archive that replaces this one: the same, unless the object is
        another store's, which stays. Raises `PolicyIllegal` if there is no place.
        """
        if is_own(row, self._handover.store_id):
            return row.tier, self._context.place_of(row)
        places = self._context.places
        for tier in (row.tier, *places):
            if tier in places:
                return tier, places[tier]
        raise PolicyIllegal(
            "the policy has no place for archives, as which what is left of another store's is "
            "kept; give it one"
        )

    def _check_tombstones(self, replacement: Replacement) -> None:
        """Raises if tombstones were dropped, and something older came into the store since."""
        if replacement.compaction is None or not replacement.merged.dropped.tombstones:
            return
        known = replacement.compaction.whole_below
        now = self._whole_below(known, replacement.rows)
        for (topic, queue), lowest in sorted(now.items()):
            if lowest < known[topic, queue]:
                raise TieringBusy(
                    f"messages from offset {lowest} on were attached to queue {queue} of topic "
                    f"{topic} while its archives were compacted; these stay as they are, and a "
                    "later run compacts them"
                )

    # --- after an erasure ---

    def hasten_retired(self, must_go: Callable[[ArchiveRow], bool]) -> list[ArchiveRow]:
        """Makes objects of retired archives go at once; returns the rows, which say so, for a later
        run to do where this one fails.
        """
        rows = [
            msgspec.structs.replace(row, delete_at=None)
            for row in self._context.rows("retired")
            if must_go(row)
        ]
        self._handover.set_rows([(row.catalog_key, encode_row(row)) for row in rows])
        return rows

    def erase_leftovers(self) -> tuple[list[str], dict[str, str]]:
        """Removes the leftovers of interrupted puts and attaches of this store; files are
        overwritten first. Returns their names, and the names of those that may be left, with the
        reason. No put may be under way.
        """
        problems: list[AuditProblem] = []
        places = self._context.all_places()
        removed, stay = [], {}
        before = self._handover.arrivals.attaches
        for orphan in find_orphans(self._context.catalog, places.values(), 0, problems, places):
            name = f"{orphan.place}/{orphan.key}"
            if not orphan.unfinished:
                stay[name] = (
                    "it is not in the catalog, and may hold anything; `kvmq tier verify "
                    "--remove-orphans` removes it, once it is old enough"
                )
                continue
            if not none_since(before, self._handover.arrivals.attaches):
                stay[name] = "something is being attached, which it may belong to; try again then"
                continue
            try:
                place = places[orphan.place]
                self._context.overwrite(place, orphan.key)
                place.remove_leftover(orphan.key)
                removed.append(name)
            except (StoreError, OSError) as e:
                stay[name] = str(e)
        stay.update((problem.archive, problem.reason) for problem in problems)
        try:
            with attaching(self._handover):  # so that no attach begins meanwhile
                removed += overwrite_all(self._store.path / WORK / ATTACH, self._files)
        except (StoreError, OSError) as e:
            stay["what an attach has left"] = str(e)
        return removed, stay


def is_compacted(row: ArchiveRow) -> bool:
    """Whether an archive is of compacted topics."""
    try:
        return read_class(row.retention_class).compacted
    except PolicyIllegal:
        return False
