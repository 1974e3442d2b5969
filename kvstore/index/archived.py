"""What the store asks of its archives; `tiering.catalog.tiers` answers.

The idea: places name archives by number; everything else about archives (where they are kept, how
they are read, what of them is in memory) is behind this. So the store reads through tiers without
knowing what an archive is.

Invariants of every method that reads: what is damaged or missing is `ArchiveDamaged` or
`ArchiveMissing`, with the offset behind what is lost where that is known; a place that doesn't
answer is `ArchiveUnavailable`; nothing is left out silently but what is not held any more (erased,
superseded)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.config import StoreConfig
from kvstore.errors import ArchiveMissing, ArchiveUnavailable, StoreError
from kvstore.record.values import StoredMessage

T = TypeVar("T")
_FETCHED_MAX: Final = 256
"""Things that a call keeps; what it wants beyond that it reads when it comes to it."""
I64 = NDArray[np.int64]
Queue = tuple[int, int]
"""Topic id and queue."""
Row = tuple[bytes, bytes | None]
"""A key of `archives` and its value; None: the row goes."""


class Arriving(NamedTuple):
    """An archive that comes into the catalog: its row, and what it holds of which queue."""

    number: int
    first_position: int
    row: bytes
    queues: Iterable[tuple[int, int, int, int]]
    """Topic id, queue, first offset that is held, its store time; once a queue."""


class Sealed(NamedTuple):
    """A segment that may be handed over: sealed, on the disk, and wholly in the index. Its records
    stand from `first_position` to before `end_position`.
    """

    number: int
    path: Path
    first_position: int
    end_position: int


class Entries(NamedTuple):
    """Entries of a segment as columns, by topic id, queue and offset; positions are of the log."""

    topics: I64
    queues: I64
    offsets: I64
    positions: I64
    sizes: I64
    stored_at: I64


class Covered(NamedTuple):
    """An archive that may hold what is looked for, and the stretch of the log that it is of."""

    archive: int
    first_position: int
    end_position: int


class Catalog(NamedTuple):
    """The store's id, and its rows of `archives`, by first position and number."""

    store_id: bytes
    rows: list[tuple[bytes, bytes]]


class TierStats(msgspec.Struct, frozen=True):
    """What a tier ("warm": archives on local disk, "cold": in an object store) holds. `raw_bytes`
    is what its messages had in the log, `bytes` what they take now. `opened` archives are open, and
    take `memory_bytes` in memory, blocks not among them. `waiting` is what a worker leaves alone
    that is to go there, each with the reason: segments that could not be moved, or the place.
    """

    tier: str
    archives: int
    messages: int
    raw_bytes: int
    bytes: int
    opened: int = 0
    memory_bytes: int = 0
    waiting: list[str] = []


class ArchivedRange(NamedTuple):
    """Entries of a queue that an archive holds, in one stretch but for gaps: a block's."""

    topic: int
    queue: int
    first: int
    last: int
    stored_at: int
    archive: int


class AttachedRange(NamedTuple):
    """Offsets of a queue that an archive brings to a store, from `first` to `last` but for gaps;
    the first was stored at `stored_at`, the last not after `last_stored_at`.
    """

    topic: int
    queue: int
    first: int
    last: int
    stored_at: int
    last_stored_at: int
    archive: int


class Here(NamedTuple):
    """Offsets that a store has of a queue, from `first` to `last`; `archive` None: in the log. What
    an archive has of the stretch, and until when that was stored, it knows itself.
    """

    first: int
    last: int
    first_stored_at: int
    last_stored_at: int
    archive: int | None


class ArchivedTopic(NamedTuple):
    """A topic as an archive knows it: `fields` are those of a topic's row that it has."""

    id: int
    name: str
    fields: dict[str, Any]


class Restored(NamedTuple):
    """What a store is founded on that is made from archives alone: catalog rows, topics, what is in
    which archive, the position behind all that was archived, the greatest store time, and the ids
    and numbers to go on with. `store_id` None: it gets a new one.
    """

    store_id: bytes | None
    position: int
    stored_at: int
    next_topic: int
    next_archive: int
    topics: Sequence[ArchivedTopic]
    held: Sequence[ArchivedRange]
    rows: Sequence[tuple[bytes, bytes]]


Founder = Callable[[Path, Restored, StoreConfig], bytes]
"""Founds a store in a folder; gives its id."""
_founders: list[Founder] = []


def set_founder(founder: Founder) -> None:
    """Have `founder` do what tiering, which knows no store, asks of the one there is."""
    _founders[:] = [founder]


def found_store(path: Path, restored: Restored, config: StoreConfig) -> bytes:
    """Found a store on what archives say; returns its id."""
    return _founders[0](path, restored, config)


class LogFile(NamedTuple):
    """A segment's file: its records stand from `first_position` to before `end_position`, and are
    on the disk.
    """

    path: Path
    first_position: int
    end_position: int


class View(NamedTuple):
    """What a store has at one moment, for whoever reads its files without it: the catalog, the
    topics, and the log as far as it is on the disk, which is to before `position`. Archives that
    come later have numbers from `next_archive` on.
    """

    catalog: Catalog
    topics: Sequence[ArchivedTopic]
    log: Sequence[LogFile]
    position: int
    next_archive: int


class Reach(NamedTuple):
    """Which offsets queues have, by topic id and queue: the first that is held, and the next one,
    of all that stands below `position` in the log.
    """

    position: int
    queues: Mapping[Queue, tuple[int, int]]


class Viewer(Protocol):
    """Looks at stores that others may be writing to. Raises what opening them for reading does."""

    def view(self, path: Path, config: StoreConfig) -> View:
        """What a store has."""
        ...

    def reach(self, path: Path, config: StoreConfig, queues: Iterable[Queue] | None) -> Reach:
        """Which offsets some queues have; None: all. Costs a few seeks each."""
        ...

    def homes(
        self, path: Path, config: StoreConfig, spans: Iterable[tuple[Queue, int, int]]
    ) -> set[int]:
        """The numbers of the archives that have offsets of queues: each with its first, and the one
        behind its last.
        """
        ...

    def written(self, path: Path, config: StoreConfig) -> tuple[object, ...]:
        """What is another as soon as a view may be; takes no more than a look at some files."""
        ...


_viewers: list[Viewer] = []


def set_viewer(viewer: Viewer) -> None:
    """The same for looking at a store."""
    _viewers[:] = [viewer]


def viewer() -> Viewer:
    """Who looks at stores."""
    return _viewers[0]


def view_store(path: Path, config: StoreConfig) -> View:
    """Look at a store, which others may be writing to. Raises what opening it for reading does."""
    return viewer().view(path, config)


class Contents(NamedTuple):
    """What an archive says of itself that the index has to know: stretches of the log (first
    position, end), topics, and what it holds of their queues.
    """

    segments: Sequence[tuple[int, int]]
    topics: Sequence[ArchivedTopic]
    held: Sequence[ArchivedRange]


class ArchiveProblem(NamedTuple):
    """Something about an archive that is not as it should be."""

    archive: str
    message: str


class NotAtHand(ArchiveUnavailable):
    """What was asked for would have to be read, and whoever asks holds a lock (`AtHand`)."""


class AtHand:
    """What one call has of archives while it holds a lock that others want: what is in memory, and
    what it had read before, by `fetch`, when it held none.

    So it looks, and is told `NotAtHand`; it lets go of the lock, fetches, and looks again. Every
    turn fetches something, and all of that is kept until the call is over, so it comes to an end.
    """

    def __init__(self) -> None:
        self.turn: int | None = None
        """For whoever has turns: which one this call has, however often it looks."""
        self.is_patient = False
        """Whether something is to be read after all."""
        self._found: dict[object, object] = {}
        self._failed: dict[object, ArchiveUnavailable | ArchiveMissing] = {}
        self._doubtful: set[object] = set()
        self._missed: dict[object, Callable[[], object]] = {}

    @property
    def misses(self) -> bool:
        """Whether there is something to fetch."""
        return bool(self._missed)

    def get(self, key: object, read: Callable[[], T]) -> T:
        """What `read` reads; `NotAtHand` if it was not fetched yet."""
        if key in self._found:
            return cast("T", self._found[key])
        if key in self._failed:
            raise self._failed[key]
        if key in self._doubtful or len(self._found) >= _FETCHED_MAX:
            self.is_patient = True
            try:
                return read()
            finally:
                self.is_patient = False
        self._missed[key] = read
        raise NotAtHand("what is asked for is in an archive, and not read yet; try again")

    def fetch(self) -> None:
        """Read what was missed. Whoever holds a lock must not call this."""
        missed, self._missed = self._missed, {}
        for key, read in missed.items():
            try:
                self._found[key] = read()
            except (ArchiveUnavailable, ArchiveMissing) as e:
                # If it was replaced, the next look asks for what came in its place.
                self._failed[key] = e
            except StoreError:
                # Damage is told by whoever can see if it was only moved.
                self._doubtful.add(key)


class Archived(Protocol):
    """See the module. Every call may be made from several threads."""

    def note(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take note of rows of the catalog: new ones before places name them, those that go (None)
        after.
        """
        ...

    def at_hand(self, kept: AtHand) -> AbstractContextManager[object]:
        """Within this nothing that this thread asks is read: it is in memory, or `kept` has it, or
        it is `NotAtHand`.
        """
        ...

    def messages(
        self, archive: int, topic: int, queue: int, offset: int, end: int, limit: int
    ) -> list[StoredMessage]:
        """Up to `limit` messages that the archive holds from `offset` to before `end`, in order;
        fewer where that is cheaper, none only if there are none.
        """
        ...

    def first_from(
        self, archive: int, topic: int, queue: int, time: int, offset: int, end: int
    ) -> int | None:
        """The first held offset from `offset` to before `end` stored at or after `time`."""
        ...

    def at(self, position: int) -> StoredMessage | None:
        """The message whose record stood at a position of the log, in whichever archive."""
        ...

    def record(self, archive: int, position: int) -> StoredMessage | None:
        """The same of one archive."""
        ...

    def covering(
        self, begin: int | None, end: int | None, low: int, high: int
    ) -> Sequence[Covered]:
        """The archives that may hold messages stored from `begin` to `end`, but for those that are
        known to have no key with a hash of `low` to `high`; nothing is read for it.
        """
        ...

    def span(self, archive: int) -> tuple[int, int]:
        """Where an archive's first and last record stood in the log; nothing is read for it."""
        ...

    def candidates(self, archive: int, low: int, high: int) -> list[int]:
        """Positions of an archive's messages with a key hash in range, in order."""
        ...

    def numbers(self) -> Collection[int]:
        """The archives that places may name."""
        ...

    def contents(self, archive: int) -> Contents:
        """What an archive holds, of all queues; read from it."""
        ...

    def untangled(self, held: Iterable[ArchivedRange]) -> list[ArchivedRange]:
        """The same, of stretches that overlap those that do not; read from the archives."""
        ...

    def find_again(self, store_id: bytes, number: int) -> list[tuple[bytes, bytes]]:
        """Rows for the catalog of a store that has lost its own: what archives of the store there
        are in its own folder, numbered from `number` on.
        """
        ...

    def stats(self) -> list[TierStats]:
        """What each tier holds; nothing is fetched for it."""
        ...

    def verify(self, *, thorough: bool) -> list[ArchiveProblem]:
        """Hold the archives against the catalog; `thorough`: read every byte of them."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
