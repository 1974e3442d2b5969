"""Dump: the contents of an archive as plain values, from its bytes alone.

The idea: an archive must be readable without the store that made it, wherever it came from. `kvmq
dump` prints the values that this module gives.

Invariant: a damaged block or record is given as a `Problem`, and those behind it are still given. A
damaged manifest or directory raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from kvstore.errors import ArchiveDamaged, RecordDamaged
from kvstore.record.decode import decode
from kvstore.record.values import StoredMessage
from tiering.archive.archive_reader import Archive
from tiering.archive.check import Problem
from tiering.archive.layout import HEADER_MAGIC, NO_QUEUE, TRAILER_MAGIC


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
