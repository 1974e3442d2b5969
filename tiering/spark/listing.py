"""Lists the archives, and the parts of the log, that there are to read.

The idea: a store's folder is asked for its catalog, its topics and its log; a place that has only
archives for its list, as a restore does. Either way the answer is a value that travels to tasks on
other machines, where it is enough to read by.

Invariants: each message of a store is in one listed archive or part of the log; archives of a place
that others supersede are listed, too (`splits.inspect_archives` leaves them out); nothing of the
store is changed or held open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvstore.config import StoreConfig
from kvstore.errors import ArchiveMissing, SegmentDamaged, StoreNotFound
from kvstore.files import Files, LocalFiles
from kvstore.opening.viewing import View, view_store
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.tail import Source
from tiering.catalog.bucket import objects_of
from tiering.catalog.catalog import ArchiveRow, Tier, decode_rows
from tiering.executor.segment import Damage
from tiering.keys.key_file import provider_of
from tiering.places.commits import CommitLogs
from tiering.places.place import Place
from tiering.places.settings import is_remote, is_url
from tiering.spark.options import ReadOptions

if TYPE_CHECKING:
    from kvstore.core.records import Buffer


class ListedArchive(msgspec.Struct, frozen=True):
    """An archive: the place as it is opened, its name there, its size in bytes, its tier."""

    place: str
    key: str
    size: int
    tier: Tier = "warm"

    @property
    def name(self) -> str:
        """The archive's name in errors."""
        return f"{self.place.rstrip('/')}/{self.key}"


class LogPart(msgspec.Struct, frozen=True):
    """A part of the hot log: a segment's file, the position that it begins at, the part's first
    position and end, and how far the file has records. A record that begins in the part belongs to
    it. `known` is where a record begins, at the part's first position or before it.
    """

    path: str
    base: int
    begin: int
    end: int
    used: int
    known: int


def segment_gone(log_part: LogPart) -> ArchiveMissing:
    """The error for a part whose file is not there any more."""
    return ArchiveMissing(
        f"segment {log_part.path} left the log after it was listed; run it again", log_part.path
    )


def segment_damaged(log_part: LogPart, damage: Damage) -> SegmentDamaged:
    """The error for damage that was met in a part."""
    path = log_part.path
    return SegmentDamaged(f"{path} is damaged at {damage.position}: {damage.reason}", path)


@contextmanager
def mapped(files: Files, log_part: LogPart) -> Iterator[Buffer]:
    """The bytes of the file that a part of the log is in. Raises ArchiveMissing."""
    path = Path(log_part.path)
    if files.size(path) is None:
        raise segment_gone(log_part)
    found = files.map(path, writable=False)
    try:
        yield found.buffer
    finally:
        found.close()


class Listing(msgspec.Struct, frozen=True):
    """All archives and parts of the log at a path. `topics` are the ids and first positions of
    existing topics, by name; None: of each name the highest id that an archive has. `rows` are
    the archives' rows in a catalog; None: a place alone has none.
    """

    archives: list[ListedArchive]
    log: list[LogPart] = []
    topics: dict[str, tuple[int, int]] | None = None
    rows: list[ArchiveRow] | None = None


class Opener:
    """Opens archives of a listing; it opens each place once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._places: dict[str, Place] = {}
        self._last: tuple[ListedArchive, Archive] | None = None
        self.files = LocalFiles()
        self._keys = provider_of(options.key_file, self.files)
        self.read = 0
        """Bytes read from archives and the log, which tell how much a filter saved."""

    def place(self, where: str) -> Place:
        """The place of that name."""
        found = self._places.get(where)
        if found is None:
            found = self._places[where] = self._options.open(where)
        return found

    def archive(self, held: ListedArchive) -> Archive:
        """An archive; the last one stays open. Raises ArchiveDamaged, FormatTooNew, PlaceError."""
        last = self._last
        if last is not None and last[0] == held:
            return last[1]
        archive = self.opened(held)
        self._last = held, archive
        return archive

    def opened(self, held: ListedArchive) -> Archive:
        """An archive, opened anew, which several threads may do at once."""
        source = self.place(held.place).source(held.key, held.size)
        return open_lazily(CountedSource(source, self), keys=self._keys)


class CountedSource:
    """A source that reports to its opener how much is read."""

    def __init__(self, source: Source, opener: Opener) -> None:
        self._source, self._opener = source, opener
        self.name, self.size = source.name, source.size

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`."""
        self._opener.read += size
        return self._source.read(offset, size)


def is_store(options: ReadOptions) -> bool:
    """Whether there is a store at the path, and not archives alone. Raises StoreNotFound if there
    is nothing.
    """
    if is_url(options.path):
        return False
    folder = Path(options.path)
    if (folder / "index").is_dir():
        return True
    if not folder.is_dir():
        raise StoreNotFound(
            f"there is no folder {options.path}; give a store's, one of archives, or a bucket's URL"
        )
    return False


def listing(options: ReadOptions) -> Listing:
    """All archives and parts of the log at the path. Raises StoreNotFound, NothingToRestore,
    StoresAmbiguous, PlaceError.
    """
    if is_store(options):
        return _of_store(options)
    return Listing(archives_of(options)[1])


def archives_of(
    options: ReadOptions, jobs: CommitLogs | None = None
) -> tuple[str, list[ListedArchive]]:
    """The id of the store that a place has archives of, and these. `jobs` keeps what was read of
    the place, so that it is not read again.
    """
    store_id, objects = objects_of(options.open(), options.store_id, jobs)
    tier: Tier = "cold" if is_remote(options.path) else "warm"
    return store_id, [ListedArchive(options.path, one.key, one.size, tier) for one in objects]


def live_rows(folder: Path, view: View) -> list[tuple[ArchiveRow, ListedArchive]]:
    """The archives that count in a store, and where they are."""
    found = []
    for row in decode_rows(view.catalog.rows):
        if row.state == "live":
            where = row.place if is_url(row.place) else str((folder / row.place).absolute())
            found.append((row, ListedArchive(where, row.key, row.size, row.tier)))
    return found


def log_parts(view: View) -> list[LogPart]:
    """The log of a store."""
    return [
        LogPart(
            str(part.path.absolute()), part.first_position, part.first_position,
            part.end_position, part.end_position, part.first_position,
        )
        for part in view.log
    ]  # fmt: skip


def _of_store(options: ReadOptions) -> Listing:
    folder = Path(options.path)
    view = view_store(folder, StoreConfig())
    topics = {topic.name: (topic.id, int(topic.fields["since"])) for topic in view.topics}
    live = live_rows(folder, view)
    return Listing(
        [held for _, held in live],
        log_parts(view) if options.hot else [],
        topics,
        [row for row, _ in live],
    )
