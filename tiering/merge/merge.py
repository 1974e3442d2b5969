"""Merges several archives into one, in which each queue is in one piece.

The idea: `choose` says which archives are worth it, from the catalog alone. A merge is done in
steps, and each step is told everything it needs. A plan cuts the merge into partitions
(`partition`). If there is something to compact, the keys of each partition are surveyed. Each
partition is read, put in the order of offsets and encoded without the dropped messages
(`partition_task`). The pieces are put together. A process of its own does all steps, one after the
other; an executor that does many jobs at a time does the partitions side by side. A job that drops
nothing is a merge; one with one archive and an `ErasurePredicate` is an erasure.

Invariants:

- Every message of the archives is in the new one or in one of the counts of dropped messages.
- Each piece was decoded again and gave what was read, and the bytes on the disk are those of the
  pieces.
- Nothing of a dropped message is left in the new archive.
- The same archives and job give the same bytes, in one process or many.
- Memory is a partition at a time, and that of the tail's writer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import msgspec

from kvstore.errors import ArchiveDamaged, CallerError
from kvstore.files import Files, LocalFiles
from tiering.archive.archive_reader import Archive
from tiering.archive.coder import CodecName
from tiering.archive.columns.packed import I64
from tiering.archive.pieces import PiecesWriter, check_tail
from tiering.archive.tail import FileSource
from tiering.archive.tail_columns import BlockColumns
from tiering.archive.writer import write_archive
from tiering.catalog.catalog import ArchiveRow
from tiering.executor.pool import Check, Executor
from tiering.executor.segment_encoder import BuiltArchive, HeldQueue, append_queue
from tiering.merge.partition import (
    Merged,
    MergeJob,
    MergePlan,
    PartitionJob,
    Queue,
    partition_jobs,
    plan_merge,
)
from tiering.merge.partition_task import (
    Encoded,
    PartitionReader,
    Survey,
    encode_partition,
    encode_task,
    join_surveys,
    open_inputs,
    survey_keys,
    survey_task,
)
from tiering.places.objects import ARCHIVE_MAX
from tiering.places.publish import verify_copy
from tiering.policy.retention_classes import RetentionClass, read_class

TARGET_BYTES: Final = 512 << 20
"""The most bytes of a merged archive."""
COMPACTED_BYTES: Final = ARCHIVE_MAX
"""The most bytes of a merged archive of compacted topics: messages supersede each other only within
one merge.
"""
INPUTS_MAX: Final = 256
_SPAN_SHARE: Final = 10


def choose(
    rows: Iterable[ArchiveRow],
    target_bytes: int,
    judged_as: Mapping[str, RetentionClass] | None = None,
    hot: Sequence[int] = (),
    *,
    at_any_size: bool = False,
    written_as: tuple[CodecName, int] | None = None,
) -> list[list[ArchiveRow]]:
    """Which archives to merge: lists of neighbours, each for one archive. Pure. `judged_as` has the
    present classes by the archives' keys; others are judged by their names. `hot` are the first
    positions of the segments in the log, rising.

    Neighbours are archives of one class in one place. None of the class is between them, and no
    segment that is still in the log (an erasure may have passed it over). By today's classes, too,
    they end at the same age and go cold at the same age. Together they have at most `target_bytes`
    (compacted ones `COMPACTED_BYTES`), and are at most `INPUTS_MAX`. The largest has no more than
    two thirds of the bytes of all, so that no message is rewritten again and again for the sake of
    few others. They are of a time that is
    short against the time of the class in that tier, since all of a merged archive waits for its
    last message. `at_any_size`: all neighbours that may be together are given, also those that
    stand alone, whatever it saves. `written_as` are codec and level of what is merged: an archive
    that was compressed by another codec, or more, counts with the bytes of its records, because it
    may grow.
    """
    if not 1 <= target_bytes <= ARCHIVE_MAX:
        raise CallerError(
            f"target_bytes is {target_bytes!r}; it must be 1 to {ARCHIVE_MAX}, which a place takes "
            "in one put"
        )
    kinds: dict[tuple[str, str, str], list[ArchiveRow]] = {}
    for row in rows:
        if row.state == "live":
            kinds.setdefault((row.retention_class, row.tier, row.place), []).append(row)
    found = []
    for (name, tier, _), mine in sorted(kinds.items()):
        mine.sort(key=lambda row: (row.first_position, row.number))
        made_as = read_class(name)
        most = max(target_bytes, COMPACTED_BYTES) if made_as.compacted else target_bytes
        judged = [(judged_as or {}).get(row.key, made_as) for row in mine]
        for kind, alike in groupby(zip(judged, mine, strict=True), key=itemgetter(0)):
            leaves = kind.leaves_warm if tier == "warm" else None
            stays = leaves if leaves is not None else kind.ends
            span = stays // _SPAN_SHARE if stays is not None else None
            for run in _runs([row for _, row in alike], most, span, hot, written_as):
                found += [run] if at_any_size else _worth_it(run)
    return found


def _runs(
    rows: list[ArchiveRow],
    most: int,
    span: int | None,
    hot: Sequence[int],
    written_as: tuple[CodecName, int] | None,
) -> Iterator[list[ArchiveRow]]:
    """Neighbours, as many together as have at most so many bytes, and milliseconds between them."""
    run: list[ArchiveRow] = []
    size = 0
    for row in rows:
        begin = min((r.first_stored_at for r in run), default=row.first_stored_at)
        end = max((r.last_stored_at for r in run), default=row.last_stored_at)
        lasts = max(end, row.last_stored_at) - min(begin, row.first_stored_at)
        then = _size_then(row, written_as)
        is_full = size + then > most or len(run) == INPUTS_MAX
        reached = max((r.last_position for r in run), default=0)
        is_full |= bisect_left(hot, reached) < bisect_left(hot, row.first_position)
        if run and (is_full or (span is not None and lasts > span)):
            yield run
            run, size = [], 0
        run.append(row)
        size += then
    if run:
        yield run


def _size_then(row: ArchiveRow, written_as: tuple[CodecName, int] | None) -> int:
    """The most bytes that an archive's messages take when they are written so; about, since a level
    is not always better than the one below it.
    """
    if written_as is None or (row.codec == written_as[0] and row.level <= written_as[1]):
        return row.size
    return max(row.size, row.raw_bytes)


def _worth_it(run: list[ArchiveRow]) -> list[list[ArchiveRow]]:
    """The run, or the parts of it that are worth it: where one archive outweighs the others, those
    before it and those behind it.
    """
    if len(run) < 2:
        return []
    sizes = [row.size for row in run]
    if 3 * max(sizes) <= 2 * sum(sizes):
        return [run]
    at = sizes.index(max(sizes))
    return [*_worth_it(run[:at]), *_worth_it(run[at + 1 :])]


def merge_task(job: MergeJob) -> Merged:
    """`merge` with the places and files of this machine: the task that another process is given."""
    return merge(open_inputs(job.inputs, job.settings), job, LocalFiles())


def merge(archives: Sequence[Archive], job: MergeJob, files: Files) -> Merged:
    """Writes one archive of several, which are the job's inputs.

    Raises `ArchiveDamaged` if one can't be read whole, `KeyMissing` if it can't be told whether
    the key of a topic is gone for good; nothing is to be concluded then.
    """
    if len(archives) != len(job.inputs) or not archives:
        raise CallerError("a merge takes at least one archive, and each of its job's inputs")
    reading = PartitionReader.of(archives)
    return _Merge(
        job,
        files,
        plan_merge(archives, job),
        lambda jobs: (survey_keys(one, reading) for one in jobs),
        lambda jobs: (encode_partition(one, reading) for one in jobs),
    ).run()


def merge_with(executor: Executor, check: Check, job: MergeJob, files: Files) -> Merged:
    """Writes one archive of several by an executor, with the places and files of this machine: as
    one job, or each partition as a job of its own, and the archive put together here. The bytes are
    the same. `check` is called meanwhile, and may raise to give up.
    """

    def parts(executor: Executor, check: Check, job: MergeJob) -> Merged:
        plan = executor.run(check, plan_task, job)
        survey = partial(executor.each, check, survey_task)
        encode = partial(executor.each, check, encode_task)
        return _Merge(job, files, plan, survey, encode).run()

    return executor.divide(check, merge_task, parts, job)


def plan_task(job: MergeJob) -> MergePlan:
    """`plan_merge` with the places of this machine."""
    return plan_merge(open_inputs(job.inputs, job.settings), job)


class _Merge:
    """One merge, its plan, and its steps for the jobs of partitions: `survey` as `survey_keys`,
    `encode` as `encode_partition`, each in the order of the jobs, and one at a time in memory.
    """

    def __init__(
        self,
        job: MergeJob,
        files: Files,
        plan: MergePlan,
        survey: Callable[[Sequence[PartitionJob]], Iterator[Survey]],
        encode: Callable[[Sequence[PartitionJob]], Iterator[Encoded]],
    ) -> None:
        self._job = job
        self._files = files
        self._plan = plan
        self._survey = survey
        self._encode = encode
        self._dropped = msgspec.structs.replace(plan.dropped)

    def run(self) -> Merged:
        job, plan, dropped = self._job, self._plan, self._dropped
        gone: dict[Queue, I64] = {}
        if job.compaction is not None:
            surveys = self._survey(partition_jobs(job, plan, {}))
            gone, superseded, tombstones = join_surveys(job.compaction, surveys)
            dropped.superseded += superseded
            dropped.tombstones += tombstones
        made = self._write(gone) if plan.partitions else None
        kept = made.manifest.messages if made is not None else 0
        if kept + dropped.total != plan.messages:
            first = job.inputs[0].row.key
            raise ArchiveDamaged(
                f"{first} and {len(job.inputs) - 1} more hold {plan.messages} messages, of which "
                f"{kept} were kept and {dropped.total} dropped; nothing was changed", first,
            )  # fmt: skip
        return Merged(made=made, queues=plan.queues, messages=plan.messages, dropped=dropped)

    def _write(self, gone: dict[Queue, I64]) -> BuiltArchive | None:
        job, plan = self._job, self._plan
        jobs = partition_jobs(job, plan, gone)
        stays: list[HeldQueue] = []
        blocks: list[BlockColumns] = []

        def fill(writer: PiecesWriter) -> Iterator[None]:
            for found in self._encode(jobs):
                self._dropped.erased += found.erased
                for held in found.queues:
                    append_queue(stays, held)
                writer.add(found.piece)
                yield
            blocks.append(writer.blocks)

        written = write_archive(
            Path(job.path), self._files,
            lambda sink, scratch: PiecesWriter(
                sink, job.settings, plan.origin, plan.topics, scratch
            ),
            fill,
        )  # fmt: skip
        if written is None:
            return None
        # Each piece was tried: the disk must have their bytes, and the tail must lead to them.
        source = FileSource(written.path, self._files)
        verify_copy(source, written.size, written.crc, "what it was to replace stays")
        check_tail(Archive.open(source, keys=job.settings.keys), blocks[0])
        return BuiltArchive.of(written, stays)
