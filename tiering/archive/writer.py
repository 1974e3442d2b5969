"""Writer: records of one queue after the other -> one archive, written from front to back.

The idea: a group of blocks is written as soon as it is full (`blocks`). The sections behind the
blocks are made at the end, from the columns that the blocks leave behind (`ending`).

Invariants: nothing is written twice or out of order; memory is some megabytes of records and a few
dozen bytes a message; the same records and settings give the same bytes, however `add` was given
them.
"""

from __future__ import annotations

from kvstore.errors import CallerError
from tiering.archive.blocks import BlockWriter, TopicToWrite
from tiering.archive.coder import Coder
from tiering.archive.columns.records import RecordBatch
from tiering.archive.ending import ArchiveFile, ArchiveOrigin, ArchiveSettings, Sink
from tiering.archive.manifest import ArchivedTopic, Manifest

__all__ = ["ArchiveOrigin", "ArchiveSettings", "ArchiveWriter", "Sink"]


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
