"""Merge: several archives -> one, in which each queue is in one piece.

The idea: `choose` says which are worth it, from the catalog alone. The job runs in a process of its
own and is told everything it needs: it reads all archives front to back at once, takes each queue's
messages in the order of their offsets from whichever has the next, and writes those that are kept.
The same job without any loss is a merge; with one archive and a `Match` it is an erasure.

Invariants: every message of the archives is in the new one or in one of the counts of what was
dropped; what was written is read back and is what was read; the dictionary is made of kept messages
alone, so nothing of a dropped one is left in it; the same archives and job give the same bytes;
memory is a window of each archive, and what the writer takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from kvstore.errors import ArchiveDamaged, CallerError
from kvstore.files import Files, LocalFiles
from tiering.archive.dictionary import SAMPLES_MAX, train
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.archive.reader import Archive
from tiering.archive.records import Fields, RecordBatch
from tiering.archive.tail import FileSource
from tiering.archive.writer import ArchiveOrigin, ArchiveSettings, ArchiveWriter
from tiering.catalog import ArchiveRow
from tiering.classes import RetentionClass, read_class
from tiering.compact import Compaction, QueueCompaction
from tiering.keys import KeysAtHand
from tiering.match import Match
from tiering.place import open_place
from tiering.reading import Cursor, Rows, Window, in_order
from tiering.regroup import HeldQueue, Made, Summed

I64 = NDArray[np.int64]
Queue = tuple[int, int]
"""Topic id and queue."""
WINDOW_BYTES: Final = 32 << 20
"""Of all archives together that is read ahead."""
TARGET_BYTES: Final = 512 << 20
"""What a merged archive is to have at most."""
COMPACTED_BYTES: Final = 4 << 30
"""The same of compacted topics, of which only what is merged can be superseded. (A server copies
objects of up to 5 GiB.)"""
INPUTS_MAX: Final = 256
_SPAN_SHARE: Final = 10
_WINDOW_MIN: Final = 256 << 10
_SAMPLED_BLOCKS: Final = 128


def choose(
    rows: Iterable[ArchiveRow],
    target_bytes: int,
    judged_as: Mapping[str, RetentionClass] | None = None,
    hot: Sequence[int] = (),
    *,
    at_any_size: bool = False,
) -> list[list[ArchiveRow]]:
    """Which archives to merge: lists of neighbours, each for one archive. Pure. `judged_as` has the
    classes of today by the archives' keys; others are judged by their names. `hot` are the first
    positions of the segments in the log, rising.

    Neighbours are archives of one class in one place with none of the class between them, and no
    segment that is still in the log (it was passed over by an erasure), which end
    at the same age and go cold at the same age today, too. Together
    they have at most `target_bytes` (compacted ones `COMPACTED_BYTES`), no more than two thirds of
    it in the largest, so that no message is rewritten again and again for the sake of few others;
    and they are of a time that is short against what the class has in that tier, since all of a
    merged archive waits for its last message. `at_any_size`: all neighbours that may be together
    are given, also such as stand alone, whatever it saves.
    """
    if target_bytes < 1:
        raise CallerError(f"target_bytes is {target_bytes!r}; it must be 1 at least")
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
            for run in _runs([row for _, row in alike], most, span, hot):
                found += [run] if at_any_size else _worth_it(run)
    return found


def _runs(
    rows: list[ArchiveRow], most: int, span: int | None, hot: Sequence[int]
) -> Iterator[list[ArchiveRow]]:
    """Neighbours, as many together as have at most so many bytes, and milliseconds between them."""
    run: list[ArchiveRow] = []
    size = 0
    for row in rows:
        begin = min((r.first_stored_at for r in run), default=row.first_stored_at)
        end = max((r.last_stored_at for r in run), default=row.last_stored_at)
        lasts = max(end, row.last_stored_at) - min(begin, row.first_stored_at)
        is_full = size + row.size > most or len(run) == INPUTS_MAX
        reached = max((r.last_position for r in run), default=0)
        is_full |= bisect_left(hot, reached) < bisect_left(hot, row.first_position)
        if run and (is_full or (span is not None and lasts > span)):
            yield run
            run, size = [], 0
        run.append(row)
        size += row.size
    if run:
        yield run


def _worth_it(run: list[ArchiveRow]) -> list[list[ArchiveRow]]:
    """The run, or what of it is worth it: where one archive outweighs the others, what is before
    and what is behind it.
    """
    if len(run) < 2:
        return []
    sizes = [row.size for row in run]
    if 3 * max(sizes) <= 2 * sum(sizes):
        return [run]
    at = sizes.index(max(sizes))
    return [*_worth_it(run[:at]), *_worth_it(run[at + 1 :])]


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """An archive: where it is, with the settings of that place, and the id of the store that made
    it. `unkept` are the ids of topics whose messages in it are over.
    """

    place: str
    key: str
    size: int
    store_id: str
    options: dict[str, object] = {}
    unkept: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"Input({self.place}/{self.key})"


class MergeJob(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do. `topics` are those that there are, by id: others were deleted. `path` is
    the file to write. The keys of `settings` have to be at hand.
    """

    inputs: Sequence[Input]
    topics: dict[int, ArchivedTopic]
    settings: ArchiveSettings
    store_id: str
    retention_class: str
    path: str
    compaction: Compaction | None = None
    without: Match | None = None


class Dropped(msgspec.Struct, kw_only=True):
    """How many messages were left out: of topics that were deleted or of which they are over,
    superseded, tombstones, erased, and such as nobody can decrypt any more.
    """

    deleted: int = 0
    over: int = 0
    superseded: int = 0
    tombstones: int = 0
    erased: int = 0
    unreadable: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in self.__struct_fields__)


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a job: the archive (None: nothing was left for one), all queues of which the
    inputs held anything, and how many messages they held.
    """

    made: Made | None
    queues: list[Queue]
    messages: int
    dropped: Dropped


def merge_remotely(job: MergeJob) -> Merged:
    """`merge` with the places and files of this machine: what another process is asked to do."""
    archives = []
    for one in job.inputs:
        place = open_place(one.place, options=one.options or None)
        source = place.source(one.key, one.size)
        archives.append(Archive.open(source, keys=job.settings.keys))
    return merge(archives, job, LocalFiles())


def merge(archives: Sequence[Archive], job: MergeJob, files: Files) -> Merged:
    """Write one archive of several, which are the job's inputs.

    Raises `ArchiveDamaged` if one can't be read whole, `KeyMissing` if it can't be told whether
    the key of a topic is gone for good; nothing is to be concluded then.
    """
    return _Merging(archives, job, files).run()


class _Part(NamedTuple):
    """The blocks of one queue in one archive."""

    window: Window
    blocks: range


class _Held(NamedTuple):
    """One queue: its topic, and where its messages are."""

    topic: ArchivedTopic
    queue: int
    parts: list[_Part]


class _Merging:
    """See `merge`."""

    def __init__(self, archives: Sequence[Archive], job: MergeJob, files: Files) -> None:
        if len(archives) != len(job.inputs) or not archives:
            raise CallerError("a merge takes at least one archive, and each of its job's inputs")
        self._archives = archives
        self._job = job
        self._files = files
        self._dropped = Dropped()
        self._seen: dict[Queue, None] = {}
        self._messages = 0
        size = max(WINDOW_BYTES // len(archives), _WINDOW_MIN)
        self._windows = [Window(archive, size) for archive in archives]
        self._gone: dict[Queue, I64] = {}
        """Offsets that compaction drops."""

    def run(self) -> Merged:
        queues = self._queues()
        for held in queues:
            is_queue = held.queue != NO_QUEUE
            if self._job.compaction is not None and held.topic.kind == "compacted" and is_queue:
                self._compact(held)
        made = self._write(queues)
        kept = made.manifest.messages if made is not None else 0
        if kept + self._dropped.total != self._messages:
            raise ArchiveDamaged(
                f"{self._archives[0].name} and {len(self._archives) - 1} more hold "
                f"{self._messages} messages, of which {kept} were kept and {self._dropped.total} "
                "dropped; nothing was changed", self._archives[0].name,
            )  # fmt: skip
        return Merged(
            made=made, queues=list(self._seen), messages=self._messages, dropped=self._dropped
        )

    # --- what is there ---

    def _queues(self) -> list[_Held]:
        """The queues that are to be read, in order, and what need not be."""
        found: dict[tuple[str, int], _Held] = {}
        for window, one in zip(self._windows, self._job.inputs, strict=True):
            archive = window.archive
            if archive.manifest.store_id != one.store_id:
                raise ArchiveDamaged(f"{archive.name} is another store's", archive.name)
            for number, queue, blocks in archive.directory.queues():
                described = archive.manifest.topics[number]
                topic_id = archive.directory.topic_id(number)
                messages = sum(map(archive.directory.count, blocks))
                if queue != NO_QUEUE:
                    self._seen[topic_id, queue] = None
                self._messages += messages
                why = self._why_dropped(one, described, topic_id, archive.manifest.last_position)
                if why is not None:
                    setattr(self._dropped, why, getattr(self._dropped, why) + messages)
                    continue
                topic = self._job.topics[topic_id]
                held = found.setdefault((topic.name, queue), _Held(topic, queue, []))
                held.parts.append(_Part(window, blocks))
        return [held for _, held in sorted(found.items())]

    def _why_dropped(
        self, one: Input, topic: ArchivedTopic, topic_id: int, last_position: int
    ) -> str | None:
        """Which count the whole of a topic in an archive goes to; None: it is to be read."""
        without, keys = self._job.without, self._job.settings.keys
        if without is not None and without.is_all_of(
            topic.name, topic.last_stored_at, last_position
        ):
            return "erased"
        if topic_id not in self._job.topics:
            return "deleted"
        if topic_id in one.unkept:
            return "over"
        if (
            topic.key_id is not None
            and isinstance(keys, KeysAtHand)
            and keys.is_gone(topic.name, topic.key_id)
        ):
            return "unreadable"
        return None

    # --- what stays ---

    def _compact(self, held: _Held) -> None:
        assert self._job.compaction is not None, "only asked where there is one"
        queue = QueueCompaction(self._job.compaction)
        without = self._job.without
        for rows in self._rows(held):
            kept = rows if without is None else rows.only(~without.rows(rows.records))
            queue.add(kept.records, kept.offsets)
        superseded, tombstones = queue.finish()
        self._dropped.superseded += len(superseded)
        self._dropped.tombstones += len(tombstones)
        gone = np.sort(np.concatenate((superseded, tombstones)))
        if len(gone):
            self._gone[held.topic.id, held.queue] = gone

    def _kept(self, held: _Held, rows: Rows, dropped: Dropped | None = None) -> Rows:
        """The rows that stay; those that are erased are counted."""
        if self._job.without is not None:
            erased = self._job.without.rows(rows.records)
            if dropped is not None:
                dropped.erased += int(np.count_nonzero(erased))
            rows = rows.only(~erased)
        gone = self._gone.get((held.topic.id, held.queue))
        if gone is not None:
            rows = rows.only(~np.isin(rows.offsets, gone, assume_unique=True))
        return rows

    def _rows(self, held: _Held) -> Iterator[Rows]:
        return in_order([Cursor(part.window, part.blocks) for part in held.parts])

    # --- writing ---

    def _write(self, queues: list[_Held]) -> Made | None:
        job = self._job
        sink = Summed()
        origin = ArchiveOrigin(
            store_id=job.store_id,
            segments=tuple(sorted({s for a in self._archives for s in a.manifest.segments})),
            retention_class=job.retention_class,
            generation=max(archive.manifest.generation for archive in self._archives) + 1,
        )
        writer = ArchiveWriter(sink, self._with_dictionary(queues), origin)
        stays: list[HeldQueue] = []
        manifest: list[Manifest] = []
        sums = xxh3_128()

        def chunks() -> Iterator[bytes]:
            for held in queues:
                for rows in self._rows(held):
                    kept = self._kept(held, rows, self._dropped)
                    if len(kept.offsets):
                        _note(stays, held, kept)
                        for record in kept.records:
                            sums.update(record)
                        writer.add(held.topic, held.queue, RecordBatch.of_records(kept.records))
                    yield from sink.taken()
            manifest.append(writer.finish())
            yield from sink.taken()

        path = Path(job.path)
        self._files.write_new(path, chunks(), replace=True)
        if not manifest[0].messages:
            self._files.remove(path)
            return None
        self._prove(path, sums.digest())
        return Made(path=job.path, size=sink.size, crc=sink.crc, manifest=manifest[0], queues=stays)

    def _prove(self, path: Path, due: bytes) -> None:
        """Read the archive back from the disk: it gives what was given."""
        source = FileSource(path, self._files)
        archive = Archive.open(source, keys=self._job.settings.keys)
        found = xxh3_128()
        for group in archive.groups():
            for record in group.records():
                found.update(record)
        if found.digest() != due:
            raise ArchiveDamaged(
                f"{path} does not give back what was put into it; what it was to replace stays",
                str(path),
            )

    def _with_dictionary(self, queues: list[_Held]) -> ArchiveSettings:
        """The settings with a dictionary for what is kept; what is encrypted is not in it."""
        settings = self._job.settings
        plain = [
            held
            for held in queues
            if settings.keys is None or settings.keys.key_for_writing(held.topic.name) is None
        ]
        blocks = [
            (held, part, block) for held in plain for part in held.parts for block in part.blocks
        ]
        step = max(-(-len(blocks) // _SAMPLED_BLOCKS), 1)
        sampled = blocks[step // 2 :: step]
        share = max(SAMPLES_MAX // max(len(sampled), 1), 1)
        some: list[bytes] = []
        seen = kept_bytes = 0
        for held, part, block in sampled:
            rows = Rows.of(part.window.archive.read_block(block))
            kept = self._kept(held, rows)
            seen += sum(map(len, rows.records))
            kept_bytes += sum(map(len, kept.records))
            some += kept.records[:: max(-(-len(kept.records) // share), 1)]
        if not some:
            return settings
        raw = sum(_raw_bytes(part) for held in plain for part in held.parts)
        fields = Fields(RecordBatch.of_records(some))
        dictionary = train(fields, raw * kept_bytes // seen, settings.codec, settings.level)
        return msgspec.structs.replace(settings, dictionary=dictionary)


def _raw_bytes(part: _Part) -> int:
    rows = part.window.raw_bytes
    return int(rows[part.blocks.start : part.blocks.stop].sum())


def _note(stays: list[HeldQueue], held: _Held, kept: Rows) -> None:
    """Count rows of a queue that are written to what is held of it."""
    first, last, count = int(kept.offsets[0]), int(kept.offsets[-1]), len(kept.offsets)
    mine = (held.topic.id, held.queue)
    if stays and (stays[-1].topic, stays[-1].queue) == mine:
        before = stays[-1]
        stays[-1] = before._replace(last=last, messages=before.messages + count)
    else:
        stays.append(HeldQueue(*mine, first, last, count, int(kept.stored_at[0])))
