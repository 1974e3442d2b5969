"""Tiers: answers the store's questions about its archives, wherever the archives are kept.

The idea: the catalog says where each archive is. An archive is opened when it is first read, and
stays open while there is room (`archive_pool`); of ten thousand only those that are read are
opened. Blocks come through one cache. A reader that goes on where it stopped is a scan: its next
blocks are read before it asks for them.

Invariants:

- A missing or malformed object costs the messages of its own archive only.
- A place that doesn't answer, or refuses, is `ArchiveUnavailable`, which proves nothing about the
  archive.
- Nothing is kept of a failed read, so the next call tries again.
- No lock is held while anything is read.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np

from kvstore.clock import Clock
from kvstore.config import ArchiveAccess
from kvstore.core.messages import StoredMessage
from kvstore.errors import (
    ArchiveDamaged,
    ArchiveMissing,
    ArchiveUnavailable,
    RecordDamaged,
    StoreError,
)
from kvstore.files import Files
from kvstore.index.archived import (
    ArchivedRange,
    ArchivedRecords,
    ArchiveProblem,
    AtHand,
    Contents,
    Covered,
    TierStats,
)
from kvstore.index.keys import read_archive_key
from tiering.archive.archive_check import archive_problems
from tiering.archive.archive_reader import Archive
from tiering.archive.block import Block, BlockGroup
from tiering.archive.tail import Source
from tiering.catalog.archive_pool import OpenArchives
from tiering.catalog.bucket import find_again
from tiering.catalog.cache import BlockCache, CacheStats, SharedReads
from tiering.catalog.catalog import FOLDER, ArchiveRow, contents, decode_row, open_archive
from tiering.catalog.key_filters import KeyFilters
from tiering.catalog.live import LiveArchives
from tiering.catalog.overlaps import split_overlaps
from tiering.errors import ObjectNotFound, ObjectTooShort, PlaceError
from tiering.keys.crypto import KeyProvider
from tiering.keys.key_file import provider_of
from tiering.places.place import Place, open_kept
from tiering.places.publish import Intents
from tiering.places.work_folder import ATTACH_NOTES, FILE, WORK, read_waits

SCANS_CACHED_MAX: Final = 1024
"""The number of queues whose readers' last offsets are remembered."""
FOUND_CACHED_MAX: Final = 4096
"""The number of messages whose block and row are remembered from a look-up."""
GROUPS_CACHED_MAX: Final = 16
GROUPS_CACHED_BYTES_MAX: Final = 16 << 20
"""Bytes of the groups of small queues' blocks, decoded: 16 MiB. One group is kept whatever it
takes.
"""
SUPERSEDED_GRACE_MS: Final = 3_600_000
"""Milliseconds for which superseded archives stay that are found again: an hour, as by default."""
QUEUE_BLOCKS_CACHED_MAX: Final = 1 << 16
"""The number of blocks whose offsets are kept in memory, over all queues."""


class _QueueBlocks(NamedTuple):
    """The blocks of a queue in an archive, and the offsets that they hold."""

    blocks: range
    firsts: list[int]
    lasts: list[int]


T = TypeVar("T")
Row = tuple[bytes, bytes | None]


class Tiers:
    """The store's archives; a `kvstore.index.archived.Archived`."""

    def __init__(
        self,
        folder: Path,
        rows: Iterable[tuple[bytes, bytes]],
        *,
        files: Files,
        clock: Clock,
        check_crc: bool = True,
        access: ArchiveAccess,
    ) -> None:
        self._folder = folder
        self._files = files
        self._clock = clock
        self._options = access.options
        self._read_ahead = access.read_ahead
        self.keys = provider_of(access.keys, files)
        self._check_crc = check_crc
        self._lock = threading.Lock()
        self._rows: dict[int, ArchiveRow] = {}
        self._live: tuple[dict[int, ArchiveRow], LiveArchives] = self._rows, LiveArchives(())
        self._places: dict[str, Place] = {}
        self._groups: dict[tuple[int, int], BlockGroup] = {}
        self._opened = OpenArchives(self._open, access.open_bytes)
        self._filters = KeyFilters(access.open_bytes)
        self._scans: OrderedDict[tuple[int, int, int], int] = OrderedDict()
        self._found: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        self._queues: dict[tuple[int, int, int], _QueueBlocks] = {}
        self._queue_blocks = 0
        self._cache = BlockCache(
            self._read_block,
            limit=access.cache_bytes,
            readers=access.readers,
            at_once=self._of_group,
        )
        self._shared = SharedReads(self._cache)
        self.note(rows)

    # --- the catalog ---

    def note(self, rows: Iterable[Row]) -> None:
        """See `Archived.note`."""
        changed = [
            (read_archive_key(key)[1], decode_row(key, value) if value is not None else None)
            for key, value in rows
        ]
        with self._lock:
            known = dict(self._rows)
            for number, row in changed:
                if row is None:
                    known.pop(number, None)
                else:
                    known[number] = row
            self._rows = known
            self._groups = {}
            self._queues.clear()
            self._queue_blocks = 0
        for number, _ in changed:
            # Its place may have changed, too.
            self._opened.forget(number)
            self._filters.forget(number)
            # So may its keys: one may have been destroyed.
            self._cache.forget(number)

    def rows(self) -> list[ArchiveRow]:
        """The catalog, by number."""
        return [row for _, row in sorted(self._rows.items())]

    def row(self, archive: int) -> ArchiveRow:
        """An archive's row; `ArchiveMissing` if there is none."""
        found = self._rows.get(archive)
        if found is None:
            raise ArchiveMissing(
                f"archive {archive} is not in the catalog; `kvmq rebuild` finds what local "
                "archives hold again",
                str(archive),
            )
        return found

    def archive(self, number: int) -> Archive:
        """An archive, open."""
        kept = self._shared.kept
        if kept is None:
            return self._opened.get(number)
        found = self._opened.at_hand(number)
        return found or kept.get(("archive", number), lambda: self._opened.get(number))

    def _open(self, number: int) -> Archive:
        row = self.row(number)
        with _archive_errors(row.name):
            return open_archive(row, self.source(row), self.keys)

    def at_hand(self, kept: AtHand) -> contextlib.AbstractContextManager[None]:
        """See `Archived.at_hand`."""
        return self._shared.at_hand(kept)

    def _read(self, name: str, key: object, read: Callable[[], T]) -> T:
        """The result of `read`, which reads a part of an archive that is no block."""

        def told() -> T:
            with _archive_errors(name):
                return read()

        return self._shared.read(key, told)

    def source(self, row: ArchiveRow) -> Source:
        """The source of an archive's bytes."""
        return self.place(row).source(row.key, row.size)

    def place(self, row: ArchiveRow) -> Place:
        """The place of an archive."""
        found = self._places.get(row.place)
        if found is None:
            found = self._places[row.place] = self._place_at(row.place)
        return found

    def _place_at(self, where: str) -> Place:
        return open_kept(
            where, self._folder, options=self._options, files=self._files, clock=self._clock
        )

    def use(self, places: Mapping[str, Place], keys: KeyProvider | None) -> None:
        """Sets these places, by their names in the catalog, and these keys, for all later reads: a
        worker has settings for them that the catalog does not know.
        """
        self._places.update(places)
        if keys is not None:
            self.keys = keys

    def _of_group(self, number: int, block: int) -> Block | None:
        """A small queue's block, if its group is in memory."""
        archive = self._opened.at_hand(number) if self._groups else None
        if archive is None:
            return None
        group = self._groups.get((number, archive.directory.group_of(block)))
        if group is None:
            return None
        with _archive_errors(archive.name, block, lambda: archive.directory.last_offset(block) + 1):
            return archive.block_of(block, group)

    def _read_block(self, number: int, block: int) -> Block:
        archive = self.archive(number)
        with _archive_errors(archive.name, block, lambda: archive.directory.last_offset(block) + 1):
            if archive.directory.within(block) is None:
                return archive.read_block(block)
            # Small queues' blocks lie together in one group, which also has the blocks that are
            # asked for next.
            key = number, archive.directory.group_of(block)
            with self._lock:
                groups = self._groups
                group = groups.get(key)
            if group is None:
                group = archive.read_group(block)
                with self._lock:
                    # If the rows were noted anew meanwhile, this dictionary is the old one, and
                    # nobody looks there.
                    groups[key] = group
                    while len(groups) > 1 and _is_too_much(groups.values()):
                        groups.pop(next(iter(groups)))
            return archive.block_of(block, group)

    # --- by offset ---

    def messages(
        self, archive: int, topic: int, queue: int, offset: int, end: int, limit: int
    ) -> list[StoredMessage]:
        """See `Archived.messages`."""
        opened = self.archive(archive)
        key = (archive, topic, queue)
        mine = self._queues.get(key) or self._queue(opened, key)
        i = bisect_left(mine.lasts, offset)
        if i == len(mine.lasts) or mine.firsts[i] >= end:
            return []
        blocks, number = mine.blocks, mine.blocks[i]
        is_scan = self._scans.get(key) == offset
        block = self._shared.block(archive, number, is_scan=is_scan)
        if is_scan:
            self._cache.ahead(archive, number + 1, min(number + 1 + self._read_ahead, blocks.stop))
        start = int(np.searchsorted(block.offsets, offset))
        stop = start + limit
        if end <= mine.lasts[i]:
            stop = min(stop, int(np.searchsorted(block.offsets, end)))
        found = self._messages(opened, number, block, start, min(stop, block.count))
        if found:
            self._note_scan(key, found[-1].offset + 1)
        return found

    def _queue(self, archive: Archive, key: tuple[int, int, int]) -> _QueueBlocks:
        """The blocks of a queue, kept while there is room. The directory takes a tenth of the
        memory, and ten times as long to ask.
        """
        with _archive_errors(archive.name):
            blocks = archive.blocks(*key[1:])
            directory = archive.directory
            if not blocks:
                # No location names an archive for a queue that it never had.
                raise ArchiveDamaged(
                    f"{archive.name}: it has no message of queue {key[2]} of the topic with id "
                    f"{key[1]}, for which the index names it; `kvmq verify` compares both",
                    archive.name,
                )
            found = _QueueBlocks(
                blocks,
                [directory.first_offset(block) for block in blocks],
                [directory.last_offset(block) for block in blocks],
            )
        with self._lock:
            self._queue_blocks += len(blocks) + 1
            if self._queue_blocks > QUEUE_BLOCKS_CACHED_MAX:
                self._queues.clear()
                self._queue_blocks = len(blocks) + 1
            self._queues[key] = found
        return found

    def _messages(
        self, archive: Archive, number: int, block: Block, start: int, stop: int
    ) -> list[StoredMessage]:
        """Rows of a block, up to one that can't be read."""
        try:
            return block.messages(start, stop, check_crc=self._check_crc)
        except RecordDamaged as e:
            good: list[StoredMessage] = []
            for row in range(start, stop):
                try:
                    good += block.messages(row, row + 1, check_crc=self._check_crc)
                except RecordDamaged:
                    break
            if good:
                return good
            raise ArchiveDamaged(
                f"{archive.name}: block {number}: {e}",
                archive.name,
                number,
                int(block.offsets[start]) + 1,
            ) from e
        except ArchiveDamaged as e:
            raise _placed(e, archive.name, number, archive.directory.last_offset(number) + 1) from e

    def _note_scan(self, key: tuple[int, int, int], following: int) -> None:
        scans = self._scans
        scans[key] = following
        if len(scans) > SCANS_CACHED_MAX:
            with contextlib.suppress(KeyError):  # other threads note theirs meanwhile
                scans.popitem(last=False)

    def first_from(
        self, archive: int, topic: int, queue: int, time: int, offset: int, end: int
    ) -> int | None:
        """See `Archived.first_from`."""
        opened = self.archive(archive)
        with _archive_errors(opened.name):
            blocks = opened.blocks(topic, queue)
            number = opened.block_at(topic, queue, offset)
        if number is None:
            return None
        directory = opened.directory
        for candidate in range(number, blocks.stop):
            if directory.first_offset(candidate) >= end:
                return None
            if directory.stored_within(candidate)[1] < time:
                continue
            block = self._shared.block(archive, candidate)
            wanted = (block.stored_at >= time) & (block.offsets >= offset) & (block.offsets < end)
            rows = np.flatnonzero(wanted)
            if len(rows):
                return int(block.offsets[rows[0]])
        return None

    # --- by position and key ---

    def _live_archives(self) -> LiveArchives:
        rows, live = self._live
        if rows is not self._rows:
            rows = self._rows
            self._live = rows, (live := LiveArchives(rows.values()))
        return live

    def at(self, position: int) -> StoredMessage | None:
        """See `Archived.at`."""
        lost: ArchiveDamaged | None = None
        for number in self._live_archives().at(position):
            try:
                found = self.record(number, position)
            except ArchiveDamaged as e:
                if number not in self._rows:
                    return self.at(position)  # the archive was replaced meanwhile
                lost = e
            else:
                if found is not None:
                    return found
        if lost is not None:
            raise lost
        return None

    def record(self, archive: int, position: int) -> StoredMessage | None:
        """See `Archived.record`."""
        opened = self.archive(archive)
        place = self._found.get((archive, position))
        if place is None:
            key = "place", archive, position
            place = self._read(opened.name, key, lambda: opened.locate(position))
            if place is None:
                return None
            self._remember(archive, position, place)
        block = self._shared.block(archive, place[0])
        return self._messages(opened, place[0], block, place[1], place[1] + 1)[0]

    def records(self, archive: int) -> Iterator[ArchivedRecords]:
        """See `Archived.records`."""
        opened = self.archive(archive)
        with _archive_errors(opened.name):
            for group in opened.groups():
                data, bounds = group.records()
                yield ArchivedRecords(group.columns.places[1], data, bounds)

    def covering(self, begin: int | None, end: int | None, low: int, high: int) -> list[Covered]:
        """See `Archived.covering`."""
        rows, of_time = self._rows, self._live_archives().of_time(begin, end)
        numbers = self._filters.without_denied(of_time, low, high).tolist()
        return [
            Covered(number, row.first_position, row.last_position + 1)
            for number in numbers
            if (row := rows.get(number)) is not None
        ]

    def span(self, archive: int) -> tuple[int, int]:
        """See `Archived.span`."""
        row = self.row(archive)
        return row.first_position, row.last_position

    def candidates(
        self, archive: int, low: int, high: int, begin: int | None = None, end: int | None = None
    ) -> Iterator[int]:
        """See `Archived.candidates`; the candidates' places are remembered for `record`."""
        opened = self.archive(archive)

        def read(key: tuple[object, ...], read: Callable[[], T]) -> T:
            return self._read(opened.name, (archive, *key), read)

        is_any = begin is None and end is None
        # Otherwise each message of a common key would be read for its time.
        is_within: dict[int, bool] = {}
        with _archive_errors(opened.name):
            self._filters.keep(archive, opened.filter)
            for position, block, row in opened.find(low, high, read):
                if not is_any and block not in is_within:
                    is_within[block] = _is_within(opened.directory.stored_within(block), begin, end)
                if is_any or is_within[block]:
                    self._remember(archive, position, (block, row))
                    yield position

    def _remember(self, archive: int, position: int, place: tuple[int, int]) -> None:
        self._found[archive, position] = place
        while len(self._found) > FOUND_CACHED_MAX:
            with contextlib.suppress(KeyError):  # as above
                self._found.popitem(last=False)

    # --- the whole store ---

    def numbers(self) -> Collection[int]:
        """See `Archived.numbers`."""
        return [number for number, row in self._rows.items() if row.state == "live"]

    def contents(self, archive: int) -> Contents:
        """See `Archived.contents`."""
        opened = self.archive(archive)
        with _archive_errors(opened.name):
            return contents(opened, archive)

    def split_overlaps(self, held: Iterable[ArchivedRange]) -> list[ArchivedRange]:
        """See `Archived.split_overlaps`."""
        return split_overlaps(held, self.archive)

    def find_again(
        self, store_id: bytes, number: int, in_log: Callable[[int], bool]
    ) -> list[tuple[bytes, bytes]]:
        """See `Archived.find_again`."""
        delete_at = self._clock.now_ms() + SUPERSEDED_GRACE_MS
        return find_again(
            self._place_at(FOLDER), store_id.hex(), number, in_log=in_log, delete_at=delete_at,
            coming=self._attach_intents().announced(),
        )  # fmt: skip

    def forget_attach(self) -> None:
        """See `Archived.forget_attach`."""
        self._attach_intents().set_whole(False)

    def _attach_intents(self) -> Intents:
        return Intents(self._folder / WORK / ATTACH_NOTES, self._files)

    def stats(self) -> list[TierStats]:
        """See `Archived.stats`."""
        out = []
        opened = self._opened.sizes()
        waits = read_waits(self._folder / WORK / FILE, self._files)
        for tier in ("warm", "cold"):
            mine = [r for r in self._rows.values() if r.tier == tier and r.state == "live"]
            waiting = [f"{wait.what}: {wait.why}" for wait in waits if tier in wait.tiers]
            if mine or waiting:
                row_bytes = sum(r.raw_bytes for r in mine), sum(r.size for r in mine)
                used = sum(opened.get(r.number, 0) for r in mine)
                count = sum(r.number in opened for r in mine)
                messages = sum(r.messages for r in mine)
                found = TierStats(tier, len(mine), messages, *row_bytes, count, used, waiting)
                out.append(found)
        return out

    def cache_stats(self) -> CacheStats:
        """The block cache's counts."""
        return self._cache.stats()

    def verify(
        self,
        *,
        thorough: bool,
        look_again: Callable[[], None] = lambda: None,
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[ArchiveProblem]:
        """See `Archived.verify`."""
        live = [row for row in self.rows() if row.state == "live"]
        found: list[tuple[ArchiveRow, str]] = []
        for done, row in enumerate(live):
            tell(done, len(live))
            found += [(row, told) for told in self._problems(row, thorough=thorough)]
        if found:
            look_again()
        # An archive that was replaced, or went elsewhere, meanwhile has none.
        return [
            ArchiveProblem(row.name, told)
            for row, told in found
            if self._rows.get(row.number) == row
        ]

    def _problems(self, row: ArchiveRow, *, thorough: bool) -> list[str]:
        try:
            size = self.place(row).size(row.key)
            if size != row.size:
                return [f"has {size} bytes, the catalog says {row.size}"]
            found = archive_problems(self.archive(row.number)) if thorough else ()
            return [str(problem) for problem in found]
        except StoreError as e:
            return [str(e)]

    def close(self) -> None:
        """Ends the reader threads; reads that are under way are finished."""
        self._cache.close()


@contextlib.contextmanager
def _archive_errors(
    name: str, block: int = -1, following: Callable[[], int] | None = None
) -> Iterator[None]:
    """Turns a place's error about an object into the store's error about the archive."""
    try:
        yield
    except (ObjectNotFound, ObjectTooShort) as e:
        raise ArchiveMissing(
            f"archive {name} is not where the catalog says, or not whole: {e}; bring the object "
            "back, or drop the archive",
            name,
            block,
            following() if following is not None else None,
        ) from e
    except PlaceError as e:
        raise ArchiveUnavailable(f"archive {name} can't be read now: {e}; try again", name) from e
    except ArchiveDamaged as e:
        raise _placed(e, name, block, following() if following is not None else None) from e


def _is_within(stored: tuple[int, int], begin: int | None, end: int | None) -> bool:
    """Whether a time of the first and last message meets `begin` to `end`, both included."""
    return (begin is None or stored[1] >= begin) and (end is None or stored[0] <= end)


def _is_too_much(groups: Collection[BlockGroup]) -> bool:
    return (
        len(groups) > GROUPS_CACHED_MAX
        or sum(g.memory_bytes for g in groups) > GROUPS_CACHED_BYTES_MAX
    )


def _placed(error: ArchiveDamaged, name: str, block: int, following: int | None) -> ArchiveDamaged:
    return error.placed(
        str(error),
        error.archive or name,
        error.block if error.block >= 0 else block,
        error.next_offset if error.next_offset is not None else following,
    )
