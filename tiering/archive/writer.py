"""Writer: records of one queue after the other -> one archive, written from front to back.

The idea: a group of blocks is written as soon as it is full (`blocks`). The sections behind the
blocks are made at the end, from the columns that the blocks leave behind (`ending`).

Invariants: nothing is written twice or out of order; memory is some megabytes of records and a few
dozen bytes a message; the same records and settings give the same bytes, however `add` was given
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import google_crc32c
import msgspec

from kvstore.errors import CallerError
from kvstore.files import Files
from tiering.archive.blocks import BlockWriter, TopicToWrite
from tiering.archive.coder import Coder
from tiering.archive.columns.records import RecordBatch
from tiering.archive.ending import ArchiveFile, ArchiveOrigin, ArchiveSettings, Sink
from tiering.archive.manifest import ArchivedTopic, Manifest

__all__ = [
    "ArchiveOrigin", "ArchiveSettings", "ArchiveWriter", "Sink", "WrittenArchive", "write_archive",
]  # fmt: skip


class ArchiveWriter:
    """Writes one archive to `sink`: `add` in the order of topic name and queue, then `finish`."""

    def __init__(
        self, sink: Sink, settings: ArchiveSettings | None = None,
        origin: ArchiveOrigin | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings = settings or ArchiveSettings()
        self._origin = origin or ArchiveOrigin()
        self._coder = Coder(settings.codec, settings.level)
        self._topics: list[TopicToWrite] = []
        self._file = ArchiveFile(sink)
        self._blocks = BlockWriter(
            self._file.write, self._coder, settings.block_bytes, self._topics
        )

    @property
    def messages(self) -> int:
        """The number of messages that are written or wait to be encoded."""
        return self._blocks.messages

    def add(self, topic: ArchivedTopic, queue: int, records: RecordBatch) -> None:
        """Takes records of one queue; offsets rise, also over several calls for the same queue.

        Raises CallerError for records out of order.
        """
        if len(records.starts):
            self._blocks.add(self._number(topic), queue, records)

    def finish(self) -> Manifest:
        """Writes the rest, and everything behind the blocks."""
        self._blocks.flush()
        topics = [one.topic for one in self._topics]
        columns = self._blocks.columns.all()
        return self._file.end(self._settings, self._origin, self._coder, topics, columns)

    def _number(self, topic: ArchivedTopic) -> int:
        if not self._topics or self._topics[-1].topic.name != topic.name:
            if self._topics and self._topics[-1].topic.name > topic.name:
                raise CallerError(f"topic {topic.name!r} comes after {self._topics[-1].topic.name}")
            self._topics.append(TopicToWrite(topic, self._settings.keys))
        return len(self._topics) - 1


class WrittenArchive(msgspec.Struct, frozen=True, kw_only=True):
    """An archive in the file at `path`; `crc` is the crc32c of all its bytes."""

    path: Path
    size: int
    crc: int
    manifest: Manifest


class _Finishing(Protocol):
    def finish(self) -> Manifest: ...


W = TypeVar("W", bound=_Finishing)


def write_archive(
    path: Path, files: Files, writer_to: Callable[[Sink], W], fill: Callable[[W], Iterable[object]]
) -> WrittenArchive | None:
    """Writes an archive to a file, which is there whole or not at all.

    `writer_to` makes the writer of a sink. `fill` adds the records to the writer; whenever it
    yields, the bytes so far go to the file. Returns None, without a file, if no message was added.
    """
    sink = _Buffered()
    writer = writer_to(sink)
    manifest: list[Manifest] = []

    def chunks() -> Iterator[bytes]:
        for _ in fill(writer):
            yield from sink.taken()
        manifest.append(writer.finish())
        yield from sink.taken()

    files.write_new(path, chunks(), replace=True)
    if not manifest[0].messages:
        files.remove(path)
        return None
    return WrittenArchive(path=path, size=sink.size, crc=sink.crc, manifest=manifest[0])


class _Buffered:
    """A sink that keeps its bytes until they are taken, and knows their number and crc32c."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0
        self.crc = 0

    def write(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._chunks.append(data)
        self.size += len(data)
        self.crc = google_crc32c.extend(self.crc, data)

    def taken(self) -> list[bytes]:
        """The bytes that came since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks
