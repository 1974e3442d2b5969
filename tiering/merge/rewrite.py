"""Writes an archive anew with a part of its messages.

The idea: blocks that are wanted whole and blocks that are wanted in part go through the same
writer, record by record as they are.

Invariant: a record is written byte for byte as it was read; one that can't be read is reported and
left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvstore.errors import ArchiveDamaged
from kvstore.files import Files
from tiering.archive.archive_reader import Archive
from tiering.archive.block import Block
from tiering.archive.coder import CodecName
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import Manifest
from tiering.archive.writer import (
    ArchiveOrigin,
    ArchiveSettings,
    ArchiveWriter,
    WrittenArchive,
    write_archive,
)
from tiering.keys.crypto import KeyProvider
from tiering.merge.sequential_reader import Window


class KeptMessages(NamedTuple):
    """Which messages are wanted: of some topics (None: all), stored at `until` (ms) or before."""

    topics: frozenset[str] | None
    until: int | None

    def has_topic(self, name: str) -> bool:
        """Whether a topic's messages are wanted."""
        return self.topics is None or name in self.topics

    def share(self, manifest: Manifest) -> float:
        """1 if all of an archive is wanted, 0 if nothing is, else something between."""
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
    """Writes the wanted messages of an archive to a file; None (and no file) if there are none.
    Messages that could not be read are noted in `lost`.
    """
    said = archive.manifest
    origin = ArchiveOrigin(
        store_id=said.store_id, segments=said.segments, retention_class=said.retention_class,
        generation=said.generation,
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
    return write_archive(path, files, lambda sink: ArchiveWriter(sink, settings, origin), fill)


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
