"""Searches segments and archives for messages that match, and reads as little as possible.

The idea: a record names its topic itself, so a segment is read whole. In an archive only the
directory says the topic of a record: blocks of topics that can't be meant are not read. An archive
without a topic that may be meant is not even opened, if its row in the catalog has all topic ids.

Invariants: a message that is not read can't match; a deleted topic is looked up by its name in the
archive, since its id says nothing; the executor does all the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kvstore.files import LocalFiles
from kvstore.index.archived import Sealed
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.records import RecordBatch
from tiering.catalog.catalog import ArchiveRow, read_topics
from tiering.executor.match import Match
from tiering.executor.segment import read_segment
from tiering.keys.sources import KeysAtHand
from tiering.merge.merge_job import MergeInput
from tiering.merge.sequential_reader import QueueRows, Window
from tiering.worker.context import WorkContext

WINDOW_BYTES = 8 << 20


class MatchCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a segment or archive holds, how many match, how many can't be read."""

    messages: int = 0
    found: int = 0
    unreadable: int = 0


def count_in_segment(path: str, base: int, match: Match, size: int | None = None) -> MatchCount:
    """Counts the matches in a segment's file, with records that no queue holds; of a segment that
    is not sealed `size` bytes are used.
    """
    files = LocalFiles()
    mapped = files.map(Path(path), writable=False)
    try:
        end = mapped.size if size is None else min(size, mapped.size)
        found = read_segment(mapped.buffer, base, end)
        meant = match.rows_of(RecordBatch(mapped.buffer, found.starts, found.sizes))
        # Damaged bytes may be anything.
        return MatchCount(
            messages=len(found.starts), found=int(meant.sum()), unreadable=len(found.damage)
        )
    finally:
        mapped.close()


def count_in_archive(one: MergeInput, match: Match, keys: KeysAtHand | None) -> MatchCount:
    """Counts the matches in an archive; see `count`."""
    return count(one.open(keys), match, keys)


def count(archive: Archive, match: Match, keys: KeysAtHand | None) -> MatchCount:
    """Counts the matches in an archive. Every block of a topic that may be meant is read, unless
    the topic's key is destroyed.
    """
    manifest = archive.manifest
    if not any(match.may_be_in(topic.name) for topic in manifest.topics):
        return MatchCount(messages=manifest.messages)
    window = Window(archive, WINDOW_BYTES)
    messages = found = unreadable = 0
    for number, _, blocks in archive.directory.queues():
        topic = manifest.topics[number]
        held = sum(map(archive.directory.count, blocks))
        if not match.may_be_in(topic.name):
            messages += held
            continue
        if topic.key_id is not None and (keys is None or keys.is_gone(topic.name, topic.key_id)):
            whole = match.is_all_of(topic.name, topic.last_stored_at, manifest.last_position)
            found += held * whole
            unreadable += held * (not whole)
            continue
        for block in blocks:
            records = QueueRows.of(window.block(block)).records
            messages += len(records)
            found += int(match.rows(records).sum())
    return MatchCount(messages=messages, found=found, unreadable=unreadable)


class Searcher:
    """Searches the segments and archives of one store."""

    def __init__(self, context: WorkContext) -> None:
        self._context = context
        self._store = context.store
        self._side = context.side
        self._names: dict[int, str] = {}

    def begin(self) -> None:
        """Reads which topics there are."""
        self._names = {info.id: info.name for info in self._store.topics()}

    def segments(self) -> Iterator[Sealed]:
        """All segments, also those that are not sealed: these end where the log does."""
        size, stats = self._side.segment_size, self._store.stats()
        following = stats.first_position // size
        for sealed in self._side.sealed():
            yield sealed
            following = sealed.number + 1
        end = stats.end_position
        for number in range(following, -(-end // size)):
            begin = number * size
            yield Sealed(number, self._side.segment_path(number), begin, min(begin + size, end))

    def in_segment(self, segment: Sealed, match: Match, check: Callable[[], None]) -> MatchCount:
        """Counts the matches in a segment."""
        begin = segment.first_position
        return self._context.executor.run(
            check, count_in_segment, str(segment.path), begin, match, segment.end_position - begin
        )

    def in_archive(self, row: ArchiveRow, match: Match, check: Callable[[], None]) -> MatchCount:
        """Counts the matches in an archive. Raises the error that keeps it from being read."""
        if not self._may_hold(row, match):
            return MatchCount(messages=row.messages)
        keys = self._context.keys_for([self._context.manifest_of(row)])
        one = self._context.input_of(row)
        return self._context.executor.run(check, count_in_archive, one, match, keys)

    def _may_hold(self, row: ArchiveRow, match: Match) -> bool:
        """Whether an archive may hold messages that match, by its row alone."""
        if match.before is not None and row.first_stored_at >= match.before:
            return False
        if match.topic is None or row.topics is None:
            return True
        # A deleted topic is not known by its id.
        names = map(self._names.get, read_topics(row.topics))
        return any(name is None or match.may_be_in(name) for name in names)
