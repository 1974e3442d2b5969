"""Reads a part of archives and of the log into record batches.

The idea: groups come by ranged reads of about a megabyte. Groups that are alike become columns
together, when they are enough for a batch: the cost of a call of numpy or Arrow is then shared by
thousands of rows. If bodies are not asked for, or tags are, heads are read first and bodies only of
blocks that need them. Between plan and read a worker may hand a segment over, and its file goes at
once: then the part is read from the archives that came in its place, which have its messages under
the positions that they had.

Invariants: memory is a few batches and a ranged read, whatever the archive; a damaged block ends
the part, or is left out and reported, as the options say; of a segment that was handed over come
the messages of existing topics that no retention has deleted since, and it is an error if no
archive has any message of such a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvstore.config import StoreConfig
from kvstore.errors import (
    ArchiveDamaged,
    ArchiveMissing,
    KeyMissing,
    RecordDamaged,
)
from kvstore.opening.viewing import view_store
from tiering.archive.archive_reader import Archive
from tiering.archive.block import BlockGroup
from tiering.archive.columns.integers import cut_by_bytes
from tiering.archive.columns.records import RecordBatch
from tiering.archive.directory import GroupExtent
from tiering.archive.tail import read_exactly
from tiering.catalog.bucket import DAMAGE
from tiering.errors import ObjectNotFound, ObjectTooShort
from tiering.executor.segment import boundary, read_segment
from tiering.spark.arrow import batch_of
from tiering.spark.listing import (
    ListedArchive,
    LogPart,
    Opener,
    live_rows,
    mapped,
    segment_damaged,
    segment_gone,
)
from tiering.spark.options import ReadOptions
from tiering.spark.rows import DecodedGroup, decode_group, group_columns, record_columns
from tiering.spark.splits import (
    BlockRange,
    Split,
    code_of,
    cuts_of,
    live_records,
    runs_of,
    wanted_blocks,
)
from tiering.spark.wanted import NumberRange, QueryFilter

if TYPE_CHECKING:
    pass

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
_READ: Final = 1 << 20
"""Bytes of blocks that are read together, about."""
_BATCH_ROWS: Final = 16384
_BATCH_BYTES: Final = 8 << 20
_LOG_BYTES: Final = 8 << 20
"""Bytes of the log that are split into columns together."""
_BODIES: Final = frozenset({"body", "headers"})
_OF_PROPERTIES: Final = frozenset({"message_id", "keys", "tag", "properties", "headers"})
_NEVER: Final = 1 << 62


class _Some(NamedTuple):
    """Blocks that are asked for, and the group that they are in."""

    members: I64
    group: BlockGroup


class PartReader:
    """Reads parts; `names` are the columns that are asked for. `is_stream`: messages that are left
    out are never asked for again. So messages that may only be elsewhere (an archive that was
    merged, a key that is not at hand) end the part, whatever the options say.
    """

    def __init__(
        self,
        options: ReadOptions,
        wanted: QueryFilter,
        names: Sequence[str],
        opener: Opener | None = None,
        *,
        is_stream: bool = False,
    ) -> None:
        self._is_stream = is_stream
        self._told: set[tuple[str, str]] = set()
        self._options = options
        self._wanted = wanted
        self._names = list(names)
        self._opener = opener or Opener(options)
        extra = ["keys"] if wanted.keys is not None and "keys" not in self._names else []
        self._made = [*self._names, *extra]
        self._properties = wanted.tags is not None or not _OF_PROPERTIES.isdisjoint(self._made)
        self._bodies = "body" in self._made

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The part's messages. Raises ArchiveDamaged, ArchiveMissing, PlaceError,
        SegmentDamaged.
        """
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self._small(split):
            rows += batch.num_rows
            size += batch.nbytes
            # A batch that is large enough is not copied to be joined with earlier ones.
            if waiting and _is_enough(rows, size):
                yield _joined(waiting)
                waiting, rows, size = [], batch.num_rows, batch.nbytes
            waiting.append(batch)
            if _is_enough(rows, size):
                yield _joined(waiting)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield _joined(waiting)

    def _small(self, split: Split) -> Iterator[pa.RecordBatch]:
        for piece in split.pieces:
            yield from filter(len, self._of_archive(piece))
        for log_part in split.log:
            yield from self._of_log(log_part, split)

    # --- archives ---

    def _of_archive(self, piece: BlockRange) -> Iterator[pa.RecordBatch]:
        with self.left_out_if_gone(name := piece.held.name):
            archive = self._opener.archive(piece.held)
            for groups in self._gathered(archive, name, numbers_of(piece)):
                made = list(self._of_groups(groups, piece))
                # They take as much memory as their batches, and the next groups are read already.
                groups.clear()
                while made:
                    yield made.pop(0)

    @contextmanager
    def left_out_if_gone(self, name: str) -> Iterator[None]:
        """Works on one archive: it fails, or the archive is left out, as the options say."""
        try:
            yield
        except (ObjectNotFound, ObjectTooShort) as e:
            gone = ArchiveMissing(
                f"archive {name} went, or was replaced, after the query was planned: {e}; run it "
                "again",
                name,
            )
            self._failed(name, gone)
        except DAMAGE as e:
            self._failed(name, e)

    def _gathered(self, archive: Archive, name: str, blocks: I64) -> Iterator[list[_Some]]:
        """Groups that make a batch together, about, with nothing of them decoded yet."""
        waiting: list[_Some] = []
        rows = size = 0
        try:
            for members, group in self._groups(archive, blocks):
                with self._left_out_if_damaged(name, members):
                    one = group()
                    waiting.append(_Some(members, one))
                    rows += one.count
                    size += sum(one.decoded_sizes)
                if _is_enough(rows, size):
                    yield waiting
                    waiting, rows, size = [], 0, 0
        except DAMAGE:
            # The rest of the archive can't be read; groups that were read before still count.
            if waiting:
                yield waiting
            raise
        if waiting:
            yield waiting

    @contextmanager
    def _left_out_if_damaged(self, name: str, members: I64) -> Iterator[None]:
        """Works on one group alone: it fails, or the group is left out, as the options say."""
        try:
            yield
        except KeyMissing as e:
            # Reported once, and not for each of its blocks.
            if (name, e.topic) not in self._told:
                self._failed(name, e)
                self._told.add((name, e.topic))
        except (ArchiveDamaged, RecordDamaged) as e:
            self._failed(f"{name}, block {members[0]}", e)

    def _groups(
        self, archive: Archive, blocks: I64
    ) -> Iterator[tuple[I64, Callable[[], BlockGroup]]]:
        """The groups that blocks are in, each with its blocks that are asked for."""
        found = archive.all_groups().having(blocks)
        if self._wanted.tags is not None or not _BODIES & set(self._made):
            for members, place in found:
                yield members, partial(archive.lazy_group, place)
            return
        for run in _runs(found):
            begin, last = run[0][1].at, run[-1][1]
            size = last.at + sum(last.sizes) - begin
            data = memoryview(read_exactly(archive.source, begin, size))
            for members, place in run:
                part = data[place.at - begin :][: sum(place.sizes)]
                yield members, partial(archive.decode_group, place, part)

    def _has_tag(self, one: DecodedGroup) -> bool:
        """Whether a group may have messages with a tag that is asked for; bodies are not read for
        it.
        """
        tags = self._wanted.tags
        if tags is None or one.odd is not None:
            return True
        found = batch_of(group_columns([one]), ["tag"])
        wanted = pa.array(sorted(tags), pa.string())
        return bool(pc.any(pc.is_in(found.column(0), value_set=wanted)).as_py())

    def _of_groups(self, groups: Sequence[_Some], piece: BlockRange) -> Iterator[pa.RecordBatch]:
        """The asked-for messages of groups. Each part is decoded for all groups before the next
        part: decoding bodies pushes out of the processor's cache the data that other parts need.
        """
        found: list[tuple[I64, DecodedGroup]] = []
        for members, group in groups:
            # The whole group is decoded here, where a failure is the group's own.
            with self._left_out_if_damaged(piece.held.name, members):
                one = decode_group(group, properties=self._properties)
                if self._has_tag(one):
                    found.append((members, one))
        decoded: list[tuple[I64, DecodedGroup]] = []
        for members, one in found:
            with self._left_out_if_damaged(piece.held.name, members):
                if self._bodies and one.odd is None:
                    _ = one.group.bodies
                decoded.append((members, one))
        # A group that is asked for in part stands alone, so that no other is copied to filter it.
        for (_, is_whole), some in groupby(
            decoded, lambda pair: (pair[1].alike, _is_whole(pair[0], pair[1].group, piece))
        ):
            alike = list(some)
            batch = batch_of(group_columns([one for _, one in alike]), self._made)
            if not is_whole:
                keep = [_asked(members, one.group, piece) for members, one in alike]
                batch = batch.filter(pa.array(np.concatenate(keep)))
            yield self._exactly(batch)

    # --- the log ---

    def _of_log(self, log_part: LogPart, split: Split) -> Iterator[pa.RecordBatch]:
        if self._opener.files.size(Path(log_part.path)) is None:
            for piece in archived_log(self._options, self._opener, log_part, split):
                yield from filter(len, self._of_archive(piece))
            return
        for records in self.log_records(log_part, split):
            for one in record_columns(records, log_part.base):
                out = self._exactly(batch_of(one, self._made))
                if out.num_rows:
                    yield out

    def log_records(self, log_part: LogPart, split: Split) -> Iterator[RecordBatch]:
        """The messages of a part that begin in a part of the log, some megabytes at a time; each
        batch is good until the next is asked for. Raises ArchiveMissing, SegmentDamaged.
        """
        base, used = log_part.base, log_part.used - log_part.base
        first, last = log_part.begin - base, log_part.end - base
        with mapped(self._opener.files, log_part) as buffer:
            begin = boundary(buffer, log_part.known - base, first, used)
            # Where the part is the rest of the log, no size need be followed to find its end.
            end = used if last >= used else boundary(buffer, begin or 0, last, used)
            found = read_segment(buffer, base, used if end is None else end, begin or 0)
            self._opener.read += log_part.end - log_part.begin
            for damage in found.damage:
                if log_part.begin <= damage.position < log_part.end:
                    self._failed(log_part.path, segment_damaged(log_part, damage))
            mine, codes = live_records(found, base, split.topics)
            mine &= (found.starts >= first) & (found.starts < last)
            if split.ranges is not None:
                _, low, stop = split.ranges.find(codes)
                mine &= (found.offsets >= low) & (found.offsets < stop)
            rows = np.flatnonzero(mine)
            for a, b in cut_by_bytes(found.sizes[rows], _LOG_BYTES):
                at = rows[a:b]
                yield RecordBatch(buffer, found.starts[at], found.sizes[at], bodies_checked=True)

    # --- both ---

    def _exactly(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Filters by the options, which Spark does not know."""
        keys = self._wanted.keys
        if keys is not None:
            lists = batch.column(self._made.index("keys")).to_pylist()
            batch = batch.filter(pa.array([not keys.isdisjoint(one) for one in lists], pa.bool_()))
        if len(self._made) != len(self._names):
            batch = batch.select(self._names)
        return batch

    def _failed(self, what: str, error: Exception) -> None:
        is_elsewhere = self._is_stream and isinstance(error, ArchiveMissing)
        if is_elsewhere:
            raise error
        self._options.leave_out(what, error)


def _is_whole(members: I64, group: BlockGroup, piece: BlockRange) -> bool:
    """Whether all messages of a group are asked for."""
    if len(members) != group.blocks or piece.between is not None:
        return False
    return piece.cuts.keys().isdisjoint(members.tolist())


def _asked(members: I64, group: BlockGroup, piece: BlockRange) -> Bools:
    """Which messages of a group are asked for: of some blocks, and of these maybe not all."""
    asked = np.zeros(group.blocks, np.bool_)
    asked[members - group.number] = True
    counts = group.members.ranges.counts
    found: Bools = np.repeat(asked, counts)
    mine = piece.cuts.keys() & set(members.tolist())
    if mine:
        low, end = np.zeros(group.blocks, np.int64), np.full(group.blocks, _NEVER)
        for block in mine:
            low[block - group.number], end[block - group.number] = piece.cuts[block]
        offset = group.columns.offset
        found &= (offset >= np.repeat(low, counts)) & (offset < np.repeat(end, counts))
    if piece.between is not None:
        begin, stop = piece.between
        found &= (group.columns.position >= begin) & (group.columns.position < stop)
    return found


def numbers_of(piece: BlockRange) -> I64:
    """The numbers of all blocks."""
    return np.concatenate([np.arange(first, stop) for first, stop in piece.blocks])


def _runs(groups: Iterable[tuple[I64, GroupExtent]]) -> Iterator[list[tuple[I64, GroupExtent]]]:
    """Groups that lie one behind the other, as many as are read together; each with its blocks."""
    run: list[tuple[I64, GroupExtent]] = []
    end = 0
    for members, place in groups:
        if run and (end != place.at or place.at - run[0][1].at >= _READ):
            yield run
            run = []
        run.append((members, place))
        end = place.at + sum(place.sizes)
    if run:
        yield run


def _is_enough(rows: int, size: int) -> bool:
    return rows >= _BATCH_ROWS or size >= _BATCH_BYTES


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


# --- a part of the log that is in archives by now -------------------------------------------------


def archived_log(
    options: ReadOptions, opener: Opener, log_part: LogPart, split: Split
) -> Iterator[BlockRange]:
    """The messages of a part of the log that archives have. Raises ArchiveMissing if no archive has
    any message of the part: it went by retention.
    """
    folder = Path(options.path)
    view = view_store(folder, StoreConfig())
    ids = {topic.name: topic.id for topic in view.topics}
    held = [
        one
        for row, one in live_rows(folder, view)
        if any(first < log_part.end and log_part.begin < end for first, end in row.segments)
    ]
    if not held:
        raise segment_gone(log_part)
    for one in held:
        yield from _piece(opener, one, log_part, split, ids)


def _piece(
    opener: Opener, held: ListedArchive, log_part: LogPart, split: Split, ids: dict[str, int]
) -> Iterator[BlockRange]:
    archive = opener.archive(held)
    rows = archive.rows()
    wanted = QueryFilter(
        topics=frozenset(split.topics), position=NumberRange(log_part.begin, log_part.end - 1)
    )
    may, _ = wanted_blocks(archive, wanted, ids)
    cuts = {}
    if split.ranges is not None:
        _, low, end = split.ranges.find(code_of(rows.topic_ids[rows.topics], rows.queues))
        may &= (rows.first_offset < end) & (rows.last_offset >= low)
        some = np.flatnonzero(may)
        cuts = cuts_of(some, rows.first_offset[some], rows.last_offset[some], low[some], end[some])
    if may.any():
        blocks = list(runs_of(np.flatnonzero(may)))
        yield BlockRange(held, blocks, cuts, (log_part.begin, log_part.end))
