"""Archived messages: the protocol between the store and its archives; `tiering.catalog.tiers`
implements it.

The idea: locations name archives by number. This protocol hides everything else: where archives are
kept, how they are read, and which parts are in memory. So the store reads through tiers without
knowing what an archive is.

Invariants of every method that reads: damaged bytes raise `ArchiveDamaged`, a missing archive
`ArchiveMissing`, with the offset behind the loss where that is known; a place that doesn't answer
raises `ArchiveUnavailable`; only messages that no archive holds any more (erased, superseded) are
left out silently.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.config import StoreConfig
from kvstore.core.messages import StoredMessage
from kvstore.errors import ArchiveMissing, ArchiveUnavailable, StoreError

T = TypeVar("T")
FETCHED_MAX: Final = 256
"""Results that one call keeps; further ones are read when they are needed."""
I64 = NDArray[np.int64]
Queue = tuple[int, int]
"""Topic id and queue."""
Row = tuple[bytes, bytes | None]
"""A key of `archives` and its value; None: the row goes."""
Meant = Callable[[Sequence[bytes]], NDArray[np.bool_]]
"""Which of some records an erasure is about."""


class Arriving(NamedTuple):
    """An archive that enters the catalog: its row, and the offsets it holds of each queue."""

    number: int
    first_position: int
    row: bytes
    queues: Iterable[tuple[int, int, int, int]]
    """Topic id, queue, first offset that is held, its store time; once a queue."""


class Sealed(NamedTuple):
    """A segment that may be handed over: it is sealed, on the disk, and wholly in the index. Its
    records stand from `first_position` to before `end_position`.
    """

    number: int
    path: Path
    first_position: int
    end_position: int


class Entries(NamedTuple):
    """Entries of a segment as columns, by topic id, queue and offset; positions are positions in
    the log.
    """

    topics: I64
    queues: I64
    offsets: I64
    positions: I64
    sizes: I64
    stored_at: I64


class Covered(NamedTuple):
    """An archive that may hold the wanted message, and the stretch of the log that it came from."""

    archive: int
    first_position: int
    end_position: int


class ArchivedRecords(NamedTuple):
    """Records as they were in the log: the position of each, and all of them in `data`; a record
    begins at its bound, and ends at the next one.
    """

    positions: I64
    data: bytes
    bounds: I64


class Catalog(NamedTuple):
    """The store's id, and its rows of `archives`, by first position and number."""

    store_id: bytes
    rows: list[tuple[bytes, bytes]]


class TierStats(msgspec.Struct, frozen=True):
    """Figures of a tier ("warm": archives on local disk, "cold": in an object store). `raw_bytes`
    is the size of its messages in the log, `bytes` their size now. `opened` archives are open; they
    take `memory_bytes` in memory, their blocks not counted. `waiting` lists the segments that a
    worker could not move there, or the place that refuses, each with the reason.
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
    """Entries of one queue in one block of an archive: one range, except for gaps."""

    topic: int
    queue: int
    first: int
    last: int
    stored_at: int
    archive: int


class AttachedRange(NamedTuple):
    """Offsets of a queue that an archive brings to a store, from `first` to `last` except for gaps.
    The first was stored at `stored_at`, the last not after `last_stored_at`.
    """

    topic: int
    queue: int
    first: int
    last: int
    stored_at: int
    last_stored_at: int
    archive: int


class HeldRange(NamedTuple):
    """Offsets that a store has of a queue, from `first` to `last`; with `archive` None they are in
    the log. Only the archive itself knows which of them it holds, and when the last was stored.
    """

    first: int
    last: int
    first_stored_at: int
    last_stored_at: int
    archive: int | None


class ArchivedTopic(NamedTuple):
    """A topic as an archive knows it: `fields` are the fields of the topic's row that the archive
    has.
    """

    id: int
    name: str
    fields: dict[str, Any]


class Contents(NamedTuple):
    """The facts in an archive that the index needs: stretches of the log (first position, end),
    topics, the ranges of their queues, and the newest store time, ms.
    """

    segments: Sequence[tuple[int, int]]
    topics: Sequence[ArchivedTopic]
    held: Sequence[ArchivedRange]
    last_stored_at: int


class EndedWaits(NamedTuple):
    """How many waits an erasure ended, of delayed messages and of prepared ones, with those of
    their sets; and the names of schedules whose next message it would have meant, and that go on.
    """

    delayed: int
    prepared: int
    schedules: list[str]


class PlannedWaits(NamedTuple):
    """The waits that an erasure would end now, and how many of the notes that say so it is about as
    well, with the segments in which these would stand.
    """

    ended: EndedWaits
    notes: int
    segments: list[int]


class ArchiveProblem(NamedTuple):
    """A fault of an archive."""

    archive: str
    message: str


class Attaches(NamedTuple):
    """How many attaches have begun, and ended, since the store was opened."""

    begun: int = 0
    ended: int = 0


class Arrivals:
    """The attaches to one open store, one at a time. A step holds `lock` from a look for older
    messages to its change, so that it has missed no attach.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.attaches = Attaches()
        self._turn = threading.Lock()

    def begin(self) -> bool:
        """Begins an attach; False if one is under way."""
        if not self._turn.acquire(blocking=False):
            return False
        self.attaches = self.attaches._replace(begun=self.attaches.begun + 1)
        return True

    def end(self) -> None:
        """Ends the attach that was begun."""
        self.attaches = self.attaches._replace(ended=self.attaches.ended + 1)
        self._turn.release()


class AtHand:
    """The parts of archives that one call may use while it holds a lock that others want: those in
    memory, and those that it read before by `fetch`, when it held no lock.

    The call looks, and gets `ArchiveUnavailable`. If there are `misses`, it releases the lock,
    fetches them, and looks again. Every turn fetches something, and everything fetched is kept
    until the call is over, so the turns come to an end.
    """

    def __init__(self) -> None:
        self.turn: int | None = None
        """The turn of this pop, however often it looks; None before its first look."""
        self.is_patient = False
        """Whether a read is allowed now."""
        self._found: dict[object, object] = {}
        self._failed: dict[object, ArchiveUnavailable | ArchiveMissing] = {}
        self._doubtful: set[object] = set()
        self._missed: dict[object, Callable[[], object]] = {}

    @property
    def misses(self) -> bool:
        """Whether there is something to fetch."""
        return bool(self._missed)

    def get(self, key: object, read: Callable[[], T]) -> T:
        """The result of `read`; `ArchiveUnavailable` if it was not fetched yet."""
        if key in self._found:
            return cast("T", self._found[key])
        if key in self._failed:
            raise self._failed[key]
        if key in self._doubtful or len(self._found) >= FETCHED_MAX:
            self.is_patient = True
            try:
                return read()
            finally:
                self.is_patient = False
        self._missed[key] = read
        raise ArchiveUnavailable("the message is in an archive, and not read yet; try again")

    def fetch(self) -> None:
        """Reads the misses. A caller that holds a lock must not call this."""
        missed, self._missed = self._missed, {}
        for key, read in missed.items():
            try:
                self._found[key] = read()
            except (ArchiveUnavailable, ArchiveMissing) as e:
                # If the archive was replaced, the next look asks for its successor.
                self._failed[key] = e
            except StoreError:
                # The caller reports damage: it can see whether the archive was only moved.
                self._doubtful.add(key)


class Archived(Protocol):
    """A store's archives, as the store reads them. Every call may be made from several threads."""

    def note(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Notes rows of the catalog: new ones before locations name them, removed (None) after."""
        ...

    def at_hand(self, kept: AtHand) -> AbstractContextManager[object]:
        """Within this block no request of this thread reads anything: its answer is in memory, or
        in `kept`, or it raises `ArchiveUnavailable` and `kept` has
        a miss.
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
        """The message whose record stood at a position of the log, looked for in all archives."""
        ...

    def record(self, archive: int, position: int) -> StoredMessage | None:
        """The message whose record stood at a position of the log, in one archive."""
        ...

    def records(self, archive: int) -> Iterator[ArchivedRecords]:
        """All records of an archive, a part of them at a time."""
        ...

    def covering(
        self, begin: int | None, end: int | None, low: int, high: int
    ) -> Sequence[Covered]:
        """The archives that may hold messages stored from `begin` to `end`, except those known to
        have no key with a hash from `low` to `high`. Reads nothing.
        """
        ...

    def span(self, archive: int) -> tuple[int, int]:
        """The positions of an archive's first and last record in the log. Reads nothing."""
        ...

    def candidates(
        self, archive: int, low: int, high: int, begin: int | None = None, end: int | None = None
    ) -> Iterator[int]:
        """Positions of an archive's messages with a key hash in range, newest first, found as the
        caller goes on; of its blocks those alone that may have messages stored from `begin` to
        `end`.
        """
        ...

    def numbers(self) -> Collection[int]:
        """The archives that locations may name."""
        ...

    def contents(self, archive: int) -> Contents:
        """The contents of an archive, of all queues; read from the archive."""
        ...

    def split_overlaps(self, held: Iterable[ArchivedRange]) -> list[ArchivedRange]:
        """The ranges, split so that none overlaps another; the archives are read for it."""
        ...

    def find_again(
        self, store_id: bytes, number: int, in_log: Callable[[int], bool]
    ) -> list[tuple[bytes, bytes]]:
        """Rows for the catalog of a store that has lost its catalog: the archives in the store's
        own folder, numbered from `number` on. `in_log` says whether the log has the segment of a
        position, and so all messages of the archives of that segment.
        """
        ...

    def forget_attach(self) -> None:
        """Notes that an attach was cut off before the index had it: `find_again` finds none of its
        archives.
        """
        ...

    def stats(self) -> list[TierStats]:
        """The figures of each tier. Fetches nothing."""
        ...

    def verify(
        self,
        *,
        thorough: bool,
        look_again: Callable[[], None] = lambda: None,
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[ArchiveProblem]:
        """Compares the archives with the catalog; with `thorough` every byte of them is read.
        `tell` is called before each with the number of those that are done, and of all; it may
        raise. `look_again` notes the rows that the catalog has by now: problems of other rows do
        not count.
        """
        ...

    def close(self) -> None:
        """Closes all archives."""
        ...


class OpenArchives(Protocol):
    """Opens the archives of the store in a folder, as its rows of the catalog name them."""

    def __call__(
        self, path: Path, rows: Iterable[tuple[bytes, bytes]], config: StoreConfig
    ) -> Archived:
        """Reads nothing but the rows."""
        ...
