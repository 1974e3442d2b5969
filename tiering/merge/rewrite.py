"""Writes one archive anew: a part of its messages, or all for another store.

The idea: records go through the one writer as they are (`rewrite`). For another store (`rebase`) an
archive says topics by other ids, and each record has another position. Positions follow each other
without a gap, in the order that they had, so that later records stand behind earlier ones.

Invariants: `rewrite` writes a record byte for byte as it was read, and one that can't be read is
reported and left out; `rebase` changes nothing of a record but its position, and a CRC over that,
if it has one, and takes some megabytes of records in memory, and 8 bytes for each message (some 50
while it is planned).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.records import property_crc_suffix
from kvstore.errors import ArchiveDamaged
from kvstore.files import Files
from kvstore.record.layout import POSITION, POSITION_AT, PROPERTY_CRC_SIZE
from tiering.archive.archive_reader import Archive
from tiering.archive.block import Block, BlockGroup
from tiering.archive.coder import CodecName
from tiering.archive.columns.integers import bounds_of
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import RecordBatch
from tiering.archive.directory import Members
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.archive.writer import (
    ArchiveOrigin,
    ArchiveSettings,
    ArchiveWriter,
    WrittenArchive,
    write_archive,
)
from tiering.keys.crypto import KeyProvider
from tiering.merge.partition_task import Window


class KeptMessages(NamedTuple):
    """Which messages are wanted: of some topics (None: all), stored at `until` (ms) or before."""

    topics: frozenset[str] | None
    until: int | None

    def has_topic(self, name: str) -> bool:
        """Whether a topic's messages are wanted."""
        return self.topics is None or name in self.topics

    def share(self, manifest: Manifest) -> float:
        """1 if all of an archive is wanted, 0 if it can't have a wanted message, else 0.5."""
        mine = [self.has_topic(topic.name) for topic in manifest.topics]
        if not any(mine) or (self.until is not None and manifest.first_stored_at > self.until):
            return 0
        is_all = self.until is None or manifest.last_stored_at <= self.until
        return 1 if all(mine) and is_all else 0.5


def rewrite(
    archive: Archive,
    wanted: KeptMessages,
    path: Path,
    files: Files,
    keys: KeyProvider | None,
    lost: list[str],
) -> WrittenArchive | None:
    """Writes the wanted messages of an archive to a file; None (and no file) if there are none. The
    error of each block that could not be read is noted in `lost`.
    """
    said = archive.manifest
    origin = ArchiveOrigin(
        store_id=said.store_id, ancestors=said.ancestors, segments=said.segments,
        shares=said.shares, retention_class=said.retention_class, generation=said.generation,
    )  # fmt: skip
    window = Window(archive, 0)  # one group at a time: what follows may not be wanted

    def fill(writer: ArchiveWriter) -> Iterator[None]:
        for number, queue, blocks in archive.directory.queues():
            topic = said.topics[number]
            if not wanted.has_topic(topic.name):
                continue
            for block in blocks:
                if (
                    wanted.until is not None
                    and archive.directory.stored_within(block)[0] > wanted.until
                ):
                    continue
                try:
                    writer.add(topic, queue, _records(window.block(block), wanted.until))
                except ArchiveDamaged as e:
                    lost.append(str(e))
                yield

    settings = settings_like(said, keys)
    return write_archive(
        path, files, lambda sink, scratch: ArchiveWriter(sink, settings, origin, scratch), fill
    )


def settings_like(said: Manifest, keys: KeyProvider | None) -> ArchiveSettings:
    """The settings with which an archive was written, with other keys."""
    codec: CodecName = "lz4" if said.codec == "lz4" else "zstd"
    return ArchiveSettings(codec=codec, level=said.level, block_bytes=said.block_bytes, keys=keys)


def _records(block: Block, until: int | None) -> RecordBatch:
    records = block.records()
    if until is not None:
        rows = np.flatnonzero(block.stored_at <= until)
        records = [records[row] for row in rows.tolist()]
    return RecordBatch.of_records(records)


class RebasePlan(NamedTuple):
    """The part of an archive that is taken: topics by their names, as the store has them; and the
    new position of each record, by message in the archive's order (below 0: it is not taken).
    """

    topics: Mapping[str, ArchivedTopic]
    positions: I64
    bytes: int
    messages: int


def plan_rebase(archive: Archive, topics: Mapping[str, ArchivedTopic]) -> RebasePlan:
    """How records would be laid out from position 0 on; bodies are not read for it. Raises
    ArchiveDamaged, KeyMissing, PlaceError.
    """
    sizes: list[I64] = []
    old: list[I64] = []
    for place in archive.all_groups():
        kept = _kept(archive, place.members, topics)
        sizes.append(np.zeros(len(kept), np.int64))
        old.append(np.zeros(len(kept), np.int64))
        # A group without a wanted message is not read: its key may be lost, or its bytes damaged.
        if kept.any():
            group = archive.lazy_group(place)
            sizes[-1][kept] = group.record_sizes()[kept]
            old[-1] = group.columns.position
    each = np.concatenate([np.empty(0, np.int64), *sizes])
    order = np.argsort(np.concatenate([np.empty(0, np.int64), *old]), kind="stable")
    positions = np.empty(len(each), np.int64)
    positions[order] = np.cumsum(each[order]) - each[order]
    positions[each == 0] = -1
    return RebasePlan(topics, positions, int(each.sum()), int(np.count_nonzero(each)))


def _kept(
    archive: Archive, members: Members, topics: Mapping[str, ArchivedTopic]
) -> NDArray[np.bool_]:
    """Which messages of a group are taken."""
    names = [topic.name for topic in archive.manifest.topics]
    each = [
        names[topic] in topics and queue != NO_QUEUE
        for topic, queue in zip(members.topics, members.queues, strict=True)
    ]
    return np.repeat(np.array(each, np.bool_), members.counts)


def rebase(
    archive: Archive,
    taken: RebasePlan,
    base: int,
    origin: ArchiveOrigin,
    path: Path,
    files: Files,
    keys: KeyProvider | None,
    check: Callable[[], None],
) -> WrittenArchive:
    """Writes the planned part of an archive to a file, with positions from `base` on. `check` is
    called before each group of blocks, and may raise. Raises ArchiveDamaged, KeyMissing,
    PlaceError, DiskFull.
    """
    settings = settings_like(archive.manifest, keys)

    def fill(writer: ArchiveWriter) -> Iterator[None]:
        done = 0
        for place in archive.all_groups():
            count = int(place.members.counts.sum())
            here = taken.positions[done : done + count]
            done += count
            if (here >= 0).any():
                check()
                group = archive.read_group(place.members.first)
                _add(writer, group, here, base, taken.topics)
            yield

    found = write_archive(
        path, files, lambda sink, scratch: ArchiveWriter(sink, settings, origin, scratch), fill
    )
    messages = found.manifest.messages if found is not None else 0
    if found is None or messages != taken.messages:
        raise ArchiveDamaged(
            f"of {archive.name} {messages} messages were written, not {taken.messages}; "
            "nothing was attached",
            archive.name,
        )
    return found


def _add(
    writer: ArchiveWriter,
    group: BlockGroup,
    positions: I64,
    base: int,
    topics: Mapping[str, ArchivedTopic],
) -> None:
    records = group.records().values()
    begins = bounds_of(group.members.ranges.counts).tolist()
    for i, (topic, queue) in enumerate(
        zip(group.members.topics, group.members.queues, strict=True)
    ):
        mine = range(begins[i], begins[i + 1])
        if topic in topics and queue != NO_QUEUE:
            moved = [at_position(records[n], base + int(positions[n])) for n in mine]
            writer.add(topics[topic], queue, RecordBatch.of_records(moved))


def at_position(record: bytes, position: int) -> bytes:
    """The record with another position, and its CRC over that."""
    moved = bytearray(record)
    POSITION.pack_into(moved, POSITION_AT, position)
    # The CRC covers the position, too; a property that only looks like one stays as it is.
    if record.endswith(property_crc_suffix(record[:-PROPERTY_CRC_SIZE])):
        moved[-PROPERTY_CRC_SIZE:] = property_crc_suffix(moved[:-PROPERTY_CRC_SIZE])
    return bytes(moved)
