"""Stream view: all that there is for a stream at one moment, and noticing that there is more.

The idea: a store is looked at again when its index was written to, which a few file sizes tell. A
place of archives is listed, and only new archives are opened. So a stream with nothing to do costs
next to nothing. A stream asks the same directories again and again, until it has gone past them:
only the columns that say which messages a block has are kept of each, in bounded memory.

Invariants: each message is in the view once; the knowledge of an archive is kept as long as it is
there; a table is of one object, which never changes, so it is never old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvstore.clock import Clock, SystemClock
from kvstore.config import StoreConfig
from kvstore.opening import viewing
from kvstore.opening.viewing import Reach
from tiering.archive.layout import NO_QUEUE
from tiering.catalog.bucket import AT_ONCE, newest, open_several
from tiering.catalog.pipeline import Check, go_on, pipelined
from tiering.errors import NothingToRestore
from tiering.places.commits import CommitLogs
from tiering.places.settings import is_remote
from tiering.spark.listing import (
    ListedArchive,
    LogPart,
    Opener,
    archives_of,
    is_store,
    live_rows,
    log_parts,
)
from tiering.spark.options import ReadOptions
from tiering.spark.splits import InspectedArchive, code_of, queue_of

I64 = NDArray[np.int64]
BLOCKS_MAX: Final = 2_000_000
"""Blocks that are kept: 56 bytes each."""


class Table(NamedTuple):
    """The blocks of queues, one row each: number in the archive, the queue's code, first and last
    offset, messages, bytes of records, position of the first message.
    """

    blocks: I64
    codes: I64
    first: I64
    last: I64
    messages: I64
    raw_bytes: I64
    position: I64

    def take(self, rows: NDArray[np.bool_] | I64) -> Table:
        """The rows of these numbers, or those where a mask is true."""
        return Table(*(column[rows] for column in self))


StreamedArchive = InspectedArchive[Table]


class DirectoryTables:
    """Opens archives for their tables, and keeps the tables in bounded memory."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._kept: dict[ListedArchive, Table] = {}
        self._blocks = 0

    def look(self, held: ListedArchive) -> StreamedArchive:
        """Opens an archive. Raises ArchiveDamaged, FormatTooNew, PlaceError."""
        archive = self._opener.opened(held)
        rows = archive.rows()
        mine = rows.queues != NO_QUEUE
        table = Table(
            np.arange(len(mine)), code_of(rows.topic_ids[rows.topics], rows.queues),
            rows.first_offset, rows.last_offset, rows.messages, rows.raw_bytes,
            rows.first_position,
        )  # fmt: skip
        return StreamedArchive(held, archive.manifest, table.take(mine))

    def each(
        self, held: Sequence[ListedArchive]
    ) -> Iterator[tuple[ListedArchive, Table | Exception]]:
        """The tables of archives, in that order; those that are not kept are opened several at
        once. If an archive can't be read, the error is given in its place.
        """
        with closing(pipelined(AT_ONCE, go_on, held, self._table)) as coming:
            for one, found in coming:
                try:
                    table = found()
                except Exception as e:  # the caller raises it, or leaves the archive out
                    yield one, e
                else:
                    self.keep(one, table)
                    yield one, table

    def _table(self, held: ListedArchive, _: Check) -> Table:
        kept = self._kept.get(held)
        return self.look(held).taken if kept is None else kept

    def keep(self, held: ListedArchive, table: Table) -> None:
        """Keeps a table; drops those that were asked for longest ago."""
        self.forget([held])
        self._kept[held] = table
        self._blocks += len(table.blocks)
        while self._blocks > BLOCKS_MAX and len(self._kept) > 1:
            self.forget([next(iter(self._kept))])

    def forget(self, held: Iterable[ListedArchive]) -> None:
        """Drops tables."""
        for one in held:
            found = self._kept.pop(one, None)
            if found is not None:
                self._blocks -= len(found.blocks)


# --- views ----------------------------------------------------------------------------------------


_COMPACTED: Final = "compacted"
_LOOKS: Final = 5
_REST_STORE: Final = 0.5
"""Seconds after a look that found nothing new, though something was written."""
_REST: Final = 5.0
"""Seconds between two listings of a bucket, each of which is paid for."""


class LiveTopic(NamedTuple):
    """A topic that is there: its id, and the position that it begins at. In a compacted one
    messages are missing by design.
    """

    id: int
    since: int
    is_compacted: bool


class ViewedArchive(NamedTuple):
    """An archive in view: its number (None where numbers say nothing), and the position of its
    first record.
    """

    held: ListedArchive
    number: int | None
    first_position: int

    def is_from(self, number: int) -> bool:
        """Whether it may have messages that archives of numbers from this one on have."""
        return self.number is None or self.number >= number


class StreamView(NamedTuple):
    """All that there is at one moment. Archives and the log are in the order of positions. Messages
    that come later are in archives of numbers from `next_archive` on, and in the log from
    `position` on.
    """

    store: str | None
    topics: Mapping[str, LiveTopic]
    archives: list[ViewedArchive]
    log: list[LogPart]
    position: int
    next_archive: int

    def names(self) -> dict[int, str]:
        """The topics' names by id."""
        return {topic.id: name for name, topic in self.topics.items()}


class StoreLooker:
    """Looks at a store's folder."""

    def __init__(self, options: ReadOptions, clock: Clock) -> None:
        self._options = options
        self._folder = Path(options.path)
        self._config = StoreConfig()
        self._clock = clock
        self._written: tuple[object, ...] = ()
        self._seen: StreamView | None = None
        self._rests_until = 0.0

    def look(self, *, anew: bool = False) -> StreamView:
        """The view; the same object as before, if nothing is new. `anew`: as it is now; else it may
        be the view of a moment ago.
        """
        # Taken before the look: the next look sees writes that come during it.
        written = viewing.written(self._folder, self._config)
        seen = self._seen
        if seen is not None:
            rests = not anew and self._clock.monotonic() < self._rests_until
            if written == self._written or rests:
                return seen
        found = self._look()
        self._rests_until = 0.0
        if seen is not None and found == seen:
            # Consumers write to the index all the time, and Spark asks a hundred times a second.
            self._rests_until = self._clock.monotonic() + _REST_STORE
            found = seen
        self._seen, self._written = found, written
        return found

    def _look(self) -> StreamView:
        view = viewing.view_store(self._folder, self._config)
        topics = {
            topic.name: LiveTopic(
                topic.id, int(topic.fields["since"]), topic.fields["kind"] == _COMPACTED
            )
            for topic in view.topics
        }
        archives = [
            ViewedArchive(held, row.number, row.first_position)
            for row, held in live_rows(self._folder, view)
        ]
        archives.sort(key=lambda one: one.first_position)
        hot = self._options.hot
        return StreamView(
            view.catalog.store_id.hex(),
            topics,
            archives,
            log_parts(view) if hot else [],
            view.position if hot else 0,
            view.next_archive,
        )

    def homes(self, spans: Iterable[tuple[int, int, int]]) -> tuple[StreamView, set[int] | None]:
        """The view, and the numbers of the archives that have offsets of queues; each span is the
        code, the first offset and the one behind the last.
        """
        every = [(queue_of(code), low, end) for code, low, end in spans]
        view = self.look()
        for _ in range(_LOOKS):
            homes = viewing.homes(self._folder, self._config, every)
            before, view = view, self.look(anew=True)
            # Nothing was moved between the two looks.
            if view.archives == before.archives and len(view.log) >= len(before.log):
                return view, homes
        return view, None

    def reach(self, queues: Iterable[tuple[int, int]] | None) -> Reach:
        """The offsets that queues have."""
        return viewing.reach(self._folder, self._config, queues)


class PlaceLooker:
    """Looks at a folder or bucket of archives."""

    def __init__(
        self, options: ReadOptions, tables: DirectoryTables, clock: Clock, rest: float = 0.0
    ) -> None:
        self._options = options
        self._tables = tables
        self._clock = clock
        self._rest = rest
        """Seconds between two listings, at least: Spark asks a hundred times a second."""
        self._listed_at = -rest
        self._known: dict[ListedArchive, InspectedArchive[None] | None] = {}
        """None: one that can't be read, and is left out."""
        self._topics: dict[str, LiveTopic] = {}
        self._seen = StreamView(None, {}, [], [], 0, 0)
        self._jobs: CommitLogs | None = None

    def look(self, *, anew: bool = False) -> StreamView:
        """The view; the same object as before, if nothing came and nothing went. `anew`: as it is
        now.
        """
        now = self._clock.monotonic()
        if not anew and now - self._listed_at < self._rest:
            return self._seen
        self._listed_at = now
        try:
            if self._jobs is None:
                self._jobs = CommitLogs(self._options.open())
            store, held = archives_of(self._options, self._jobs)
        except NothingToRestore:
            # A worker may put the first archive at any time.
            store, held = None, []
        there = set(held)
        if store == self._seen.store and there == self._known.keys():
            return self._seen
        self._known = {one: known for one, known in self._known.items() if one in there}
        new = [one for one in held if one not in self._known]
        for looked in open_several(new, self._tables.look, self._leave_out):
            self._take(looked)
        kept = newest(one for one in self._known.values() if one is not None)
        archives = [ViewedArchive(one.held, None, one.manifest.first_position) for one in kept]
        self._seen = StreamView(store, dict(self._topics), archives, [], 0, 0)
        return self._seen

    def _leave_out(self, held: ListedArchive, error: Exception) -> None:
        self._options.leave_out(held.name, error)
        self._known[held] = None

    def _take(self, looked: StreamedArchive) -> None:
        self._tables.keep(looked.held, looked.taken)
        for topic in looked.manifest.topics:
            before = self._topics.get(topic.name)
            if before is None or before.id <= topic.id:
                is_compacted = topic.kind == _COMPACTED
                self._topics[topic.name] = LiveTopic(topic.id, topic.since, is_compacted)
        # Without topics, which may be thousands in each of thousands of archives.
        manifest = replace(looked.manifest, topics=())
        self._known[looked.held] = InspectedArchive(looked.held, manifest, None)

    def homes(self, spans: Iterable[tuple[int, int, int]]) -> tuple[StreamView, set[int] | None]:
        """The view, and None: only the tables say which archives have the offsets."""
        return self.look(), None

    def reach(self, queues: Iterable[tuple[int, int]] | None) -> Reach:
        """The offsets that queues have, by all archives; each that is not kept is opened."""
        wanted = None if queues is None else {code_of(*queue) for queue in queues}
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for _, table in self._tables.each([one.held for one in self._seen.archives]):
            if isinstance(table, Exception):
                continue
            columns = (table.codes, table.first, table.last)
            for code, first, last in zip(*(c.tolist() for c in columns), strict=True):
                if wanted is None or code in wanted:
                    queue = queue_of(code)
                    low, end = found.get(queue, (first, 0))
                    found[queue] = min(low, first), max(end, last + 1)
        return Reach(0, found)


def looker(options: ReadOptions, tables: DirectoryTables) -> StoreLooker | PlaceLooker:
    """The looker for the path of the options."""
    if is_store(options):
        return StoreLooker(options, SystemClock())
    rest = _REST if is_remote(options.path) else 0.0
    return PlaceLooker(options, tables, SystemClock(), rest)
