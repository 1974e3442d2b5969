"""Archive check: looks at all of an archive, to check it, to prove it, or to print it.

The idea: `archive_problems` (`kvmq tier verify` and rewriting ask for it) compares the sections of
an archive with each other and with its records. Each checksum is verified. Each block is decoded,
and its records are checked as if they came from the log. The directory's figures and both indexes
are compared with the records, the manifest's counts with the directory. `prove` compares a new
archive with the records that it was made of. `described`, `blocks` and `messages` give the contents
as plain values, from the archive's bytes alone, wherever it came from: `kvmq dump` prints them.

Invariants: a faulty part is reported at least once, and the parts that can still be read are still
looked at (but a damaged manifest or directory can't be described); memory is a few blocks and a few
dozen bytes a message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged, KeyDestroyed, KeyMissing, RecordDamaged
from kvstore.files import Files
from kvstore.record.check import check_record
from kvstore.record.decode import decode
from kvstore.record.facts import facts
from kvstore.record.names import PREPARED, ROLLBACK, TRANSACTION_MASK
from kvstore.record.values import StoredMessage
from tiering.archive.archive_reader import Archive
from tiering.archive.block import Block, BlockGroup
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import slices
from tiering.archive.directory import DirectoryRows
from tiering.archive.indexes import KeyLevels, digests_of
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
from tiering.keys.crypto import KeyProvider

if TYPE_CHECKING:
    from kvstore.record.check import Buffer

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
        self._positions = np.full(self._total, -1, np.int64)
        self._is_read = np.zeros(self._total, np.bool_)
        self._is_keyed = np.zeros(self._total, np.bool_)
        """Messages whose keys are known: the message was read, and its record is whole."""
        self._levels = [KeyLevels(topic) for topic in archive.manifest.topics]
        self._last: tuple[int, BlockGroup] | None = None
        self._digests = array("I")
        self._keyed = array("I")

    def problems(self) -> Iterator[Problem]:
        yield from self._manifest()
        for number in range(self._archive.directory.blocks):
            for reason in self._block(number):
                yield self._problem(f"block {number}: {reason}", number)
        ordinals = np.full(self._total, -1, np.int64)
        try:
            for reason in self._position_index(ordinals):
                yield self._problem(reason)
            for reason in self._key_index(ordinals):
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

    def _block(self, number: int) -> Iterator[str]:
        archive = self._archive
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
        start = int(self._starts[number])
        self._positions[start : start + len(records)] = block.positions
        self._is_read[start : start + len(records)] = True
        levels = self._levels[int(self._rows.topics[number])]
        for row, raw in enumerate(records):
            position = int(block.positions[row])
            try:
                size = check_record(raw, 0, len(raw), position)
            except RecordDamaged as error:
                yield str(error)
                continue
            found = facts(raw, 0, len(raw))
            same = (block.topic.encode(), block.queue, int(block.offsets[row]),
                    int(block.stored_at[row]), len(raw))  # fmt: skip
            queue, offset = found.queue, found.offset
            level = levels.only or levels.at(position)
            if block.queue == NO_QUEUE:
                kind = found.system_flags & TRANSACTION_MASK
                queue, offset = NO_QUEUE if kind in (PREPARED, ROLLBACK) else queue, position
                level = 0 if kind == ROLLBACK else level
            if (found.topic, queue, offset, found.stored_at, size) != same:
                yield f"the record at {position} is not the one that the columns say"
            self._is_keyed[start + row] = True
            for digest in digests_of(found.properties, level):
                self._digests.append(digest)
                self._keyed.append(start + row)

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

    def _position_index(self, ordinals: I64) -> Iterator[str]:
        """Checks the position index; fills in the number of each rank's message."""
        rank, before = 0, None
        for placed in self._archive.position_chunks():
            count = len(placed.positions)
            if rank + count > self._total:
                break
            found = self._starts[placed.blocks] + placed.rows
            wrong = (placed.rows < 0) | (placed.rows >= self._rows.messages[placed.blocks])
            found[wrong] = 0
            wrong |= self._is_read[found] & (self._positions[found] != placed.positions)
            for position in placed.positions[wrong][:1].tolist():
                yield f"the position index says wrong where the message at {position} lies"
            rising = placed.positions if before is None else np.append(before, placed.positions)
            if bool((rising[1:] <= rising[:-1]).any()):
                yield "the positions of the position index do not rise"
            ordinals[rank : rank + count] = found
            rank += count
            before = placed.positions[-1:]
        if rank != self._total or len(np.unique(ordinals)) != self._total:
            yield "the position index does not have each message once"

    def _key_index(self, ordinals: I64) -> Iterator[str]:
        archive = self._archive
        digests = np.frombuffer(self._digests, np.uint32).astype(np.int64)
        if len(digests) and (archive.filter is None or archive.key_fences is None):
            yield f"{len(digests)} keys are in records, and there is no key index"
            return
        if archive.filter is not None and (denied := archive.filter.denied(digests)):
            yield f"the filter denies {denied} keys that records have"
        drop = archive.key_fences.drop if archive.key_fences is not None else 0
        in_records = _as_pairs(digests >> drop, np.frombuffer(self._keyed, np.uint32))
        in_index = []
        for kept, ranks in archive.key_pairs():
            if bool((ranks >= self._total).any()):
                yield "the key index names a message that is not there"
                return
            numbers = ordinals[ranks]
            is_keyed = self._is_keyed[numbers]
            in_index.append(_as_pairs(kept[is_keyed], numbers[is_keyed]))
        found = np.unique(np.concatenate(in_index)) if in_index else np.zeros(0, np.int64)
        missing = len(np.setdiff1d(in_records, found, assume_unique=True))
        if missing or len(found) != len(in_records):
            spare = len(found) + missing - len(in_records)
            yield f"the key index lacks {missing} keys that records have, and has {spare} others"


def _as_pairs(
    digests: I64,
    numbers: NDArray[np.integer],
) -> I64:
    """Pairs as single numbers, without duplicates."""
    return np.unique(digests.astype(np.int64) << 32 | numbers.astype(np.int64))


def prove(
    path: Path, files: Files, keys: KeyProvider | None, buffer: Buffer, starts: I64, sizes: I64,
    *, rows: I64, stays: str,
) -> None:  # fmt: skip
    """Reads an archive back, and compares each record with the one in the buffer; `rows` says which
    of `starts` and `sizes` are its records', in its order. `stays` says, for the error's text, what
    is unchanged if they differ. Raises ArchiveDamaged.
    """
    archive = Archive.open(FileSource(path, files), keys=keys)
    done = 0
    for group in archive.groups():
        mine = rows[done : done + group.count]
        begins = starts[mine]
        if group.records() != slices(buffer, begins, begins + sizes[mine]):
            raise ArchiveDamaged(
                f"what block {group.number} of {path} and those with it give back is not what was "
                f"put into it; {stays}",
                str(path),
                group.number,
            )
        done += group.count
    if done != len(rows):
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
            yield decode(raw, 0, len(raw), position, True, True)
        except RecordDamaged as error:
            yield Problem(archive.name, number, str(error))
