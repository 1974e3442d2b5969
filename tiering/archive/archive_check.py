"""Archive check: looks at all of an archive, to check it, to prove it, or to print it.

The idea: `archive_problems` (`kvmq tier verify` and rewriting ask for it) compares the sections of
an archive with each other and with its records. Each checksum is verified. Each block is decoded,
and its records are checked as if they came from the log. The directory's figures and both indexes
are compared with the records, the manifest's counts with the directory. `prove` compares a new
archive with the records that it was made of. `described`, `blocks` and `messages` give the contents
as plain values, from the archive's bytes alone, wherever it came from: `kvmq dump` prints them.

Invariants: a faulty part is reported at least once, and the parts that can still be read are still
looked at (but a damaged manifest or directory can't be described); memory is a few blocks, some
sorts (`external_sort`), directory and filter, and one byte a message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.core.columns.packed_texts import gather
from kvstore.core.messages import StoredMessage, decode
from kvstore.core.names import PREPARED, ROLLBACK, TRANSACTION_MASK
from kvstore.core.records import check_record, facts
from kvstore.errors import ArchiveDamaged, KeyDestroyed, KeyMissing, RecordDamaged
from kvstore.files import Files
from tiering.archive.archive_reader import Archive
from tiering.archive.block import Block, BlockGroup
from tiering.archive.columns.packed import I64
from tiering.archive.directory import DirectoryRows
from tiering.archive.external_sort import ExternalSort, Rows
from tiering.archive.indexes import U64, KeyLevels, digests_of
from tiering.archive.layout import (
    CRC,
    FORMAT_VERSION,
    HEADER,
    HEADER_COVERED,
    HEADER_MAGIC,
    HEADER_SIZE,
    NO_QUEUE,
    TRAILER_MAGIC,
)
from tiering.archive.tail import FileSource
from tiering.archive.writer import temporary
from tiering.keys.crypto import KeyProvider

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_PLACED = np.dtype([("number", "<i8"), ("position", "<i8"), ("rank", "<u4")])
"""A row of the position index: the message's number in the order of blocks and rows, its position,
and its rank.
"""
_SECTIONS = ("manifest", "directory", "filter", "key_fences", "position_fences")


class Problem(NamedTuple):
    """A fault of an archive; `block` is -1 if it is not in one block alone."""

    archive: str
    block: int
    reason: str


def archive_problems(archive: Archive) -> Iterator[Problem]:
    """The faults of an archive; none if it is whole.

    Of blocks whose key is gone only the checksums are verified; they can't be decoded.
    """
    yield from _header(archive)
    failed = False
    for name in _SECTIONS:
        try:
            getattr(archive, name)
        except ArchiveDamaged as error:
            failed = True
            yield Problem(archive.name, -1, str(error))
    if not failed:
        yield from _Check(archive).problems()


def _header(archive: Archive) -> Iterator[Problem]:
    head = archive.source.read(0, HEADER_SIZE)
    covered = HEADER.pack(HEADER_MAGIC, FORMAT_VERSION, 0, 0)[:HEADER_COVERED]
    if head != covered + CRC.pack(google_crc32c.value(covered)):
        yield Problem(archive.name, -1, f"{archive.name}: the header is not what was written")


class _Check:
    """One run over an archive whose sections are whole."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._rows: DirectoryRows = archive.rows()
        self._starts = np.cumsum(self._rows.messages) - self._rows.messages
        self._total = archive.directory.messages
        self._places = ExternalSort(_PLACED, temporary)
        self._is_complete = True
        """Whether the position index could be read, and has each message once so far."""
        self._is_keyed = np.zeros(self._total, np.bool_)
        """Messages whose keys are known, by rank: the message was read, and its record is whole."""
        self._levels = [KeyLevels(topic) for topic in archive.manifest.topics]
        self._last: tuple[int, BlockGroup] | None = None
        self._drop = archive.key_fences.drop if archive.key_fences is not None else 0
        self._pairs = ExternalSort(np.uint64, temporary)
        """The pairs that the key index ought to have, as kept digest << 32 | rank."""
        self._keys = self._denied = 0
        """Keys of records, and those of them that the filter denies."""

    def problems(self) -> Iterator[Problem]:
        yield from self._manifest()
        is_placed = True
        try:
            for reason in self._position_index():
                yield self._problem(reason)
        except ArchiveDamaged as error:
            is_placed = False
            yield Problem(self._archive.name, -1, str(error))
        places = _Cursor(self._places.sorted() if is_placed else iter(()))
        for number, end in enumerate(np.cumsum(self._rows.messages).tolist()):
            for reason in self._block(number, places.below(end)):
                yield self._problem(f"block {number}: {reason}", number)
        if not is_placed:
            return
        if not self._is_complete:
            yield self._problem("the position index does not have each message once")
        try:
            for reason in self._key_index():
                yield self._problem(reason)
        except ArchiveDamaged as error:
            yield Problem(self._archive.name, -1, str(error))

    def _problem(self, reason: str, block: int = -1) -> Problem:
        return Problem(self._archive.name, block, f"{self._archive.name}: {reason}")

    def _manifest(self) -> Iterator[Problem]:
        said, rows = self._archive.manifest, self._rows
        figures = (said.blocks, said.messages, said.raw_bytes)
        found = (len(rows.messages), self._total, int(rows.raw_bytes.sum()))
        if figures != found:
            yield self._problem(
                f"the manifest says {figures} (blocks, messages, raw bytes), the directory {found}"
            )

    # --- blocks ---

    def _block(self, number: int, places: Rows) -> Iterator[str]:
        """Checks a block; `places` has its messages' rows of the position index."""
        archive = self._archive
        start, count = int(self._starts[number]), int(self._rows.messages[number])
        if not np.array_equal(places["number"], np.arange(start, start + count)):
            self._is_complete = False
        try:
            block = archive.block_of(number, self._group_of(number))
            records = block.records()
        except (KeyMissing, KeyDestroyed):
            yield from self._checksums(number)
            return
        except ArchiveDamaged as error:
            yield str(error)
            return
        yield from self._figures(number, block, records)
        ranks = np.full(len(records), -1, np.int64)
        yield from self._check_places(places, start, block.positions, ranks)
        is_whole = np.zeros(len(records), np.bool_)
        digests, keyed = array("I"), array("I")
        levels = self._levels[int(self._rows.topics[number])]
        for row, raw in enumerate(records):
            position = int(block.positions[row])
            try:
                size = check_record(raw, 0, len(raw), position)
            except RecordDamaged as error:
                yield str(error)
                continue
            topic, queue, offset, flags, stored_at, properties = facts(raw, 0, len(raw))
            same = (block.topic.encode(), block.queue, int(block.offsets[row]),
                    int(block.stored_at[row]), len(raw))  # fmt: skip
            level = levels.only or levels.at(position)
            if block.queue == NO_QUEUE:
                kind = flags & TRANSACTION_MASK
                queue, offset = NO_QUEUE if kind in (PREPARED, ROLLBACK) else queue, position
                level = -1 if kind == ROLLBACK else level
            if (topic, queue, offset, stored_at, size) != same:
                yield f"the record at {position} is not the one that the columns say"
            for digest in digests_of(properties, level):
                digests.append(digest)
                keyed.append(row)
            is_whole[row] = True
        self._is_keyed[ranks[is_whole & (ranks >= 0)]] = True
        self._note_keys(np.frombuffer(digests, np.uint32), ranks[np.frombuffer(keyed, np.uint32)])

    def _check_places(self, places: Rows, start: int, positions: I64, ranks: I64) -> Iterator[str]:
        """Compares rows of the position index with a block whose first message has number `start`.
        Fills in the messages' ranks.
        """
        rows = places["number"] - start
        is_here = (rows >= 0) & (rows < len(positions))
        places, rows = places[is_here], rows[is_here]
        wrong = places["position"][places["position"] != positions[rows]]
        for position in wrong[:1].tolist():
            yield f"the position index says wrong where the message at {position} lies"
        ranks[rows] = places["rank"]

    def _note_keys(self, digests: NDArray[np.uint32], ranks: I64) -> None:
        """Notes the digests of a block's keys, each with the rank of its message (-1: unknown)."""
        self._keys += len(digests)
        if self._archive.filter is not None:
            self._denied += self._archive.filter.denied(digests)
        is_known = ranks >= 0
        pairs = _as_pairs(digests[is_known] >> self._drop, ranks[is_known])
        self._pairs.add(np.unique(pairs))

    def _group_of(self, number: int) -> BlockGroup:
        """The group of a block. The last group is kept, since neighbours share it."""
        group = self._archive.directory.group_of(number)
        if self._last is None or self._last[0] != group:
            self._last = None
            found = self._archive.read_group(number)
            said = tuple(int(column[group]) for column in self._rows.decoded_sizes)
            if found.decoded_sizes != said:
                raise ArchiveDamaged(
                    f"its group takes {found.decoded_sizes} when decoded, the directory says {said}"
                )
            if found.columns.is_whole:
                found.check()  # parts that no other check needs
            self._last = group, found
        return self._last[1]

    def _checksums(self, number: int) -> Iterator[str]:
        at, sizes = self._archive.directory.extent(number)
        for size in sizes:
            part = self._archive.source.read(at, size)
            if google_crc32c.value(part[: -CRC.size]) != CRC.unpack(part[-CRC.size :])[0]:
                yield f"the crc32c of the part at {at} differs"
            at += size

    def _figures(self, number: int, block: Block, records: list[bytes]) -> Iterator[str]:
        row = self._rows.row(number)
        found = (
            int(block.positions[0]), int(block.positions[-1]),
            int(block.stored_at.min()), int(block.stored_at.max()), sum(map(len, records)),
        )  # fmt: skip
        said = (
            row.first_position, row.last_position, row.least_stored_at, row.greatest_stored_at,
            row.raw_bytes,
        )  # fmt: skip
        if found != said:
            yield (
                f"holds {found} (first and last position, least and greatest store time, raw "
                f"bytes), the directory says {said}"
            )
        if bool((block.offsets[1:] <= block.offsets[:-1]).any()):
            yield "its offsets do not rise"

    # --- indexes ---

    def _position_index(self) -> Iterator[str]:
        """Checks the position index by itself; its rows are compared with the blocks later."""
        rank, before = 0, None
        for placed in self._archive.position_chunks():
            count = len(placed.positions)
            if rank + count > self._total:
                break
            numbers = self._starts[placed.blocks] + placed.rows
            wrong = (placed.rows < 0) | (placed.rows >= self._rows.messages[placed.blocks])
            numbers[wrong] = -1
            for position in placed.positions[wrong][:1].tolist():
                yield f"the position index says wrong where the message at {position} lies"
            rising = placed.positions if before is None else np.append(before, placed.positions)
            if bool((rising[1:] <= rising[:-1]).any()):
                yield "the positions of the position index do not rise"
            self._places.add(numbers, placed.positions, np.arange(rank, rank + count))
            rank += count
            before = placed.positions[-1:]
        self._is_complete = rank == self._total

    def _key_index(self) -> Iterator[str]:
        archive = self._archive
        if self._keys and (archive.filter is None or archive.key_fences is None):
            yield f"{self._keys} keys are in records, and there is no key index"
            return
        if self._denied:
            yield f"the filter denies {self._denied} keys that records have"
        in_index = ExternalSort(np.uint64, temporary)
        for kept, ranks in archive.key_pairs():
            if bool((ranks >= self._total).any()):
                yield "the key index names a message that is not there"
                return
            is_keyed = self._is_keyed[ranks]
            in_index.add(_as_pairs(kept[is_keyed], ranks[is_keyed]))
        missing, spare = differences(self._pairs.sorted(), in_index.sorted())
        if missing or spare:
            yield f"the key index lacks {missing} keys that records have, and has {spare} others"


class _Cursor:
    """Goes through rows of the position index in the order of the messages' numbers."""

    def __init__(self, rows: Iterator[Rows]) -> None:
        self._rows = rows
        self._ahead = np.empty(0, _PLACED)

    def below(self, number: int) -> Rows:
        """The next rows, as far as their numbers are below one."""
        parts: list[Rows] = [self._ahead]
        while not len(parts[-1]) or parts[-1]["number"][-1] < number:
            more = next(self._rows, None)
            if more is None:
                break
            parts.append(more)
        joined = np.concatenate(parts)
        cut = int(np.searchsorted(joined["number"], number))
        self._ahead = joined[cut:]
        return joined[:cut]


def _as_pairs(digests: NDArray[np.integer], ranks: I64) -> U64:
    """Pairs as single numbers."""
    return digests.astype(np.uint64) << np.uint64(32) | ranks.astype(np.uint64)


def differences(first: Iterator[U64], second: Iterator[U64]) -> tuple[int, int]:
    """How many different keys only the first, and only the second, of two rising streams has."""
    streams = (first, second)
    parts = [np.empty(0, np.uint64)] * 2
    only = [0, 0]
    done: int | None = None
    while True:
        for n, stream in enumerate(streams):
            while not len(parts[n]) and (more := next(stream, None)) is not None:
                # A key may come again behind the place where its first ones were compared.
                parts[n] = more if done is None else more[np.searchsorted(more, done, "right") :]
        ends = [part[-1] for part in parts if len(part)]
        if not ends:
            return only[0], only[1]
        done = min(ends)
        cuts = [int(np.searchsorted(part, done, "right")) for part in parts]
        mine = [part[:cut] for part, cut in zip(parts, cuts, strict=True)]
        only = [only[n] + len(np.setdiff1d(mine[n], mine[1 - n])) for n in (0, 1)]
        parts = [part[cut:] for part, cut in zip(parts, cuts, strict=True)]


def prove(
    path: Path, files: Files, keys: KeyProvider | None, buffer: Buffer,
    records: Iterable[tuple[I64, I64]], *, stays: str,
) -> None:  # fmt: skip
    """Reads an archive back, and compares each record with the one in the buffer; `records` are the
    starts and sizes of its records, in its order, some at a time. `stays` says, for the error's
    text, what is unchanged if they differ. Raises ArchiveDamaged.
    """
    archive = Archive.open(FileSource(path, files), keys=keys)
    given = iter(records)
    starts = sizes = np.zeros(0, np.int64)
    for group in archive.groups():
        while len(starts) < group.count and (more := next(given, None)) is not None:
            starts, sizes = np.append(starts, more[0]), np.append(sizes, more[1])
        begins, lengths = starts[: group.count], sizes[: group.count]
        data, bounds = group.records()
        if not np.array_equal(np.diff(bounds), lengths) or data != gather(
            buffer, begins, begins + lengths
        ):
            raise ArchiveDamaged(
                f"block {group.number} of {path} and its group give other bytes than were put in; "
                f"{stays}",
                str(path),
                group.number,
            )
        starts, sizes = starts[group.count :], sizes[group.count :]
    if len(starts) or next(given, None) is not None:
        raise ArchiveDamaged(f"{path} lacks records that were put into it; {stays}", str(path))


def looks_like_archive(head: bytes, end: bytes) -> bool:
    """Whether a file that begins and ends like this is an archive, perhaps a damaged one."""
    return head.startswith(HEADER_MAGIC) or end.endswith(TRAILER_MAGIC)


def described(archive: Archive) -> dict[str, Any]:
    """The manifest, and the size of each section in bytes. Raises ArchiveDamaged."""
    fields: dict[str, Any] = msgspec.to_builtins(archive.manifest)
    return {"size": archive.source.size, "sections": archive.section_sizes(), **fields}


def blocks(
    archive: Archive, topic: str | None = None, queue: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every block, or those of a topic or queue, as the directory has it. The queue is None for
    records that are in no queue. Raises ArchiveDamaged.
    """
    rows = archive.rows()
    names = [found.name for found in archive.manifest.topics]
    for number in chosen(archive, topic, queue):
        row = rows.row(number)
        fields: dict[str, Any] = dict(zip(row._fields, row, strict=True))
        del fields["topic_number"]
        name = names[row.topic_number]
        if row.queue == NO_QUEUE:
            fields["queue"] = None
        place, part_sizes = archive.directory.extent(number)
        yield {"block": number, "topic": name, **fields, "place": place, "part_sizes": part_sizes}


def chosen(archive: Archive, topic: str | None, queue: int | None) -> Iterator[int]:
    """The numbers of all blocks, or of those of a topic or queue. Raises ArchiveDamaged."""
    names = [found.name for found in archive.manifest.topics]
    for number, found, some in archive.directory.queues():
        if (topic is None or names[number] == topic) and (queue is None or found == queue):
            yield from some


def messages(archive: Archive, number: int, start: int = 0) -> Iterator[StoredMessage | Problem]:
    """The messages of a block from an offset on, with bodies as stored; and the block's fault, if
    it has one.
    """
    try:
        block = archive.read_block(number)
        records = block.records()
    except ArchiveDamaged as error:
        yield Problem(archive.name, number, str(error))
        return
    first = int(np.searchsorted(block.offsets, start))
    positions = block.positions.tolist()
    for raw, position in zip(records[first:], positions[first:], strict=True):
        try:
            yield decode(raw, 0, len(raw), position)
        except RecordDamaged as error:
            yield Problem(archive.name, number, str(error))
