"""Rebases an archive for another store: other topic ids, and other positions of its records.

The idea: a record names its topic, and says its position; the archive says topics by id. So records
are taken as they are, with another position, and go through the one writer. Positions follow each
other without a gap, in the order that they had, so that later records stand behind earlier ones.

Invariants: nothing of a record but its position changes, and a CRC over that, if it has one; memory
is some megabytes of records, and 16 bytes for each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged
from kvstore.files import Files
from kvstore.record.layout import POSITION, POSITION_AT
from kvstore.record.properties import PROPERTY_CRC_HEAD, PROPERTY_CRC_SIZE, property_crc_suffix
from tiering.archive.archive_reader import Archive
from tiering.archive.block import BlockGroup
from tiering.archive.columns.integers import bounds_of
from tiering.archive.columns.records import RecordBatch
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveOrigin, ArchiveWriter, WrittenArchive, write_archive
from tiering.keys.crypto import KeyProvider
from tiering.merge.rewrite import settings_like

I64 = NDArray[np.int64]


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
    for group in _groups(archive):
        kept = _kept(group, topics)
        sizes.append(np.where(kept, group.record_sizes(), 0))
        old.append(group.columns.position)
    each = np.concatenate([np.empty(0, np.int64), *sizes])
    order = np.argsort(np.concatenate([np.empty(0, np.int64), *old]), kind="stable")
    positions = np.empty(len(each), np.int64)
    positions[order] = np.cumsum(each[order]) - each[order]
    positions[each == 0] = -1
    return RebasePlan(topics, positions, int(each.sum()), int(np.count_nonzero(each)))


def _groups(archive: Archive) -> Iterator[BlockGroup]:
    """All groups; their bodies are read only when they are asked for."""
    return map(archive.lazy_group, archive.all_groups())


def _kept(group: BlockGroup, topics: Mapping[str, ArchivedTopic]) -> NDArray[np.bool_]:
    members = group.members
    each = [
        topic in topics and queue != NO_QUEUE
        for topic, queue in zip(members.topics, members.queues, strict=True)
    ]
    return np.repeat(np.array(each, np.bool_), members.ranges.counts)


def rebase(
    archive: Archive,
    taken: RebasePlan,
    base: int,
    origin: ArchiveOrigin,
    path: Path,
    files: Files,
    keys: KeyProvider | None,
) -> WrittenArchive:
    """Writes the planned part of an archive to a file, with positions from `base` on. Raises
    ArchiveDamaged, KeyMissing, PlaceError, DiskFull.
    """
    settings = settings_like(archive.manifest, keys)

    def fill(writer: ArchiveWriter) -> Iterator[None]:
        done = 0
        for group in archive.groups():
            here = taken.positions[done : done + group.count]
            done += group.count
            if (here >= 0).any():
                _add(writer, group, here, base, taken.topics)
            yield

    found = write_archive(path, files, lambda sink: ArchiveWriter(sink, settings, origin), fill)
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
    records = group.records()
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
    at = len(moved) - PROPERTY_CRC_SIZE
    is_signed = at > 0 and moved[at:].startswith(PROPERTY_CRC_HEAD)
    # The CRC covers the position, too; a property that only looks like one stays as it is.
    if is_signed and property_crc_suffix(record[:at]) == record[at:]:
        moved[at:] = property_crc_suffix(moved[:at])
    return bytes(moved)
