"""Commits: the archives that a store's jobs have added to a place, and the ids of their topics.

The idea: a commit is put under the next number on condition that the number is free, so one job
alone gets it; each commit was therefore compared with all before it. A reader begins with the
checkpoint, takes older commits sixteen at a time from pages, and asks for newer ones by their
numbers until there is none. Nothing is listed.

The next job needs to know little of the commits before it, and that doesn't grow with their number:
for each queue the first and the next offset, and the end of positions. This sum is a `CommitHead`.
It is kept beside the commits, and can be made again from them.

Topics have ids in archives, and tasks that do not know each other must give the same ones. Lists of
ids are put on condition, numbered one behind the other. A task that comes second reads the first
one's list, and goes on behind it. A job gets the ids that were known when it began, so that it
reads newer lists alone.

Invariants:

- Commits and lists of ids are never changed, and no commit is passed over.
- Checkpoint and pages can be deleted without loss, and an older checkpoint in place of a newer one
  only costs reading.
- A page is put before the checkpoint that relies on it.
- A head follows from its commits alone, except for `swept`, `swept_at`, `cleared`, `ids` and
  `lists`, which may lag behind.
- An id is given to one topic, and a topic has one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from kvstore.errors import FormatError, FormatTooNew
from tiering.errors import CommitUncertain, ObjectExists, ObjectNotFound, ObjectTooShort, PlaceError
from tiering.places.objects import checkpoint_key, commit_key, ids_key, page_key
from tiering.places.place import Place

FORMAT: Final = 2
PAGE: Final = 16
"""Commits in a page. More make a page dearer to put, fewer make more pages for a reader."""


class HeldRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of a queue that an archive has, from `first` to `last` but for gaps."""

    topic: str
    queue: int
    first: int
    last: int


class CommittedArchive(msgspec.Struct, frozen=True, kw_only=True):
    """An archive that a commit names: its name in the place, size in bytes, crc32c and contents.
    `first_position` and `end_position` are those of its first record and behind its last one.
    """

    key: str
    size: int
    crc: int
    messages: int
    first_position: int
    end_position: int
    queues: list[HeldRange]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job. `begun` is the number of commits that there were when the job began;
    `query` and `batch` identify the batch of a stream. With `overwrites` no commit before it
    counts. A commit with `aborts` is of no job, and names those that never count.
    """

    job: str = ""
    begun: int = 0
    archives: list[CommittedArchive] = []
    query: str = ""
    batch: int = -1
    overwrites: bool = False
    aborts: list[str] = []
    format: int = FORMAT


class CommitHead(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of the commits before `number`.

    Those before `counts_from` were overwritten, and the archives of those before `cleared` are
    gone. `queues` has the first and the next offset of each queue, by topic, of the commits that
    count. `queries` has the last batch of each stream. `tail` are the commits behind the last page.
    `ids` are the ids of topics, from the first `lists` lists. Leftovers of jobs that began before
    `swept` are gone; the last sweep was at `swept_at`, in ms.
    """

    number: int = 0
    counts_from: int = 0
    cleared: int = 0
    position: int = 0
    queues: dict[str, dict[int, tuple[int, int]]] = {}
    queries: dict[str, int] = {}
    tail: list[Commit] = []
    ids: dict[str, int] = {}
    lists: int = 0
    swept: int = 0
    swept_at: int = 0
    format: int = FORMAT

    @property
    def paged(self) -> int:
        """The number of commits that are in pages."""
        return self.number - len(self.tail)

    def ends(self) -> dict[str, dict[int, int]]:
        """The next offset of each queue, by topic."""
        return {
            topic: {queue: end for queue, (_, end) in queues.items()}
            for topic, queues in self.queues.items()
        }

    def may_hold(self, archive: CommittedArchive) -> bool:
        """Whether a commit that counts may have a position or an offset of this archive."""
        if archive.first_position < self.position:
            return True
        for one in archive.queues:
            first, end = self.queues.get(one.topic, {}).get(one.queue, (0, 0))
            if one.first < end and one.last >= first:
                return True
        return False


def head_after(head: CommitHead, commit: Commit) -> CommitHead:
    """The head after one more commit."""
    queues = {} if commit.overwrites else dict(head.queues)
    copied: set[str] = set()
    for archive in commit.archives:
        for one in archive.queues:
            if one.topic not in copied:
                queues[one.topic] = dict(queues.get(one.topic, {}))
                copied.add(one.topic)
            first, end = queues[one.topic].get(one.queue, (one.first, 0))
            queues[one.topic][one.queue] = min(first, one.first), max(end, one.last + 1)
    queries = head.queries
    if commit.query:
        # No batch is committed behind a later one: a job checks that first.
        queries = {**queries, commit.query: commit.batch}
    return replace(
        head,
        number=head.number + 1,
        counts_from=head.number if commit.overwrites else head.counts_from,
        position=max([head.position, *(one.end_position for one in commit.archives)]),
        queues=queues,
        queries=queries,
        tail=[*head.tail, commit],
    )


# --- bytes ----------------------------------------------------------------------------------------

_Decoded = TypeVar("_Decoded")


class _Version(msgspec.Struct):
    format: int


def encode_commit(commit: Commit) -> bytes:
    """A commit as it is put: JSON, the same for the same commit."""
    return msgspec.json.encode(commit, order="sorted")


def decode_commit(data: bytes, name: str) -> Commit:
    """The inverse. Raises FormatError, FormatTooNew."""
    return _decoded(data, Commit, name, "commit of a job")


def encode_page(commits: Sequence[Commit]) -> bytes:
    """Commits that follow each other as one object, the same for the same commits."""
    return msgspec.json.encode({"format": FORMAT, "commits": commits}, order="sorted")


def decode_page(data: bytes, name: str) -> list[Commit]:
    """The inverse. Raises FormatError, FormatTooNew."""
    return _decoded(data, _Page, name, "page of commits").commits


def encode_head(head: CommitHead) -> bytes:
    """A head as it is put, as the checkpoint."""
    return msgspec.json.encode(head)


def decode_head(data: bytes, name: str) -> CommitHead:
    """The inverse. Raises FormatError, FormatTooNew."""
    return _decoded(data, CommitHead, name, "checkpoint of commits")


class _Page(msgspec.Struct):
    commits: list[Commit]


def _decoded(data: bytes, kind: type[_Decoded], name: str, called: str) -> _Decoded:
    try:
        version = msgspec.json.decode(data, type=_Version).format
        # The version first: a later format may have other fields.
        if version <= FORMAT:
            return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise FormatError(f"{name} is no {called}: {e}; copy it from a backup of the place") from e
    raise FormatTooNew(
        f"{name} has format {version}, this version of kvmq reads up to {FORMAT}; use a newer kvmq",
        version,
        FORMAT,
    )


class TopicIds(NamedTuple):
    """The ids of topics by name, from the first `lists` lists."""

    ids: Mapping[str, int]
    lists: int


NO_IDS = TopicIds({}, 0)


def read_ids(place: Place, store_id: str, known: TopicIds = NO_IDS) -> TopicIds:
    """All ids that were given. Raises FormatError, PlaceError."""
    ids, number = dict(known.ids), known.lists
    while True:
        try:
            ids |= _read_list(place, ids_key(store_id, number))
        except ObjectNotFound:
            return TopicIds(ids, number)
        number += 1


def _read_list(place: Place, key: str) -> dict[str, int]:
    data = place.read(key, 0, place.size(key))
    try:
        return msgspec.json.decode(data, type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise FormatError(
            f"{place.name}/{key} is no list of topic ids: {e}; copy it from a backup of the place"
        ) from e


def take_ids(
    place: Place,
    store_id: str,
    names: Sequence[str],
    *,
    known: TopicIds = NO_IDS,
    given: Mapping[str, int] | None = None,
) -> TopicIds:
    """Ids that include one for each of these topics. `given` are ids that these topics must have,
    and that no other topic may get. Raises FormatError, PlaceError.
    """
    given = given or {}
    while True:
        known = read_ids(place, store_id, known)
        missing = [name for name in dict.fromkeys(names) if name not in known.ids]
        if not missing:
            return known
        following = max([0, *known.ids.values(), *given.values()]) + 1
        new: dict[str, int] = {}
        for name in missing:
            new[name] = given.get(name) or following
            following += new[name] == following
        try:
            place.put(ids_key(store_id, known.lists), msgspec.json.encode(new, order="sorted"))
        except ObjectExists:
            continue  # another task was first: its ids hold


AT_ONCE: Final = 16
"""Small objects that are read at the same time: a bucket takes its time for each."""
_TRIES: Final = 5
_log = logging.getLogger("kvmq")


class CommitLog:
    """The commits of one store's jobs. One thread at a time may use it; `head` is as of the last
    `look`.
    """

    def __init__(self, place: Place, store_id: str) -> None:
        self.place = place
        self.store_id = store_id
        self.head = CommitHead()
        self._has_looked = False
        self._counting: list[tuple[int, Commit]] = []
        self._counting_to = 0

    # --- reading ---

    def look(self) -> CommitHead:
        """Looks for new commits; returns the head of all commits. Raises FormatError, FormatTooNew,
        PlaceError.
        """
        if not self._has_looked:
            self.head = self._checkpoint()
            self._has_looked = True
        window = 1
        while True:
            first = self.head.number
            found = self._read(range(first, first + window))
            for one in found:
                if one is None:
                    # A later commit may have come while these were read; the next look finds it.
                    return self.head
                self.head = head_after(self.head, one)
            window = AT_ONCE

    def since(self, number: int) -> list[Commit]:
        """The commits from a number on, as of the last look. Raises as `look`."""
        paged = self.head.paged
        pages = range(number // PAGE * PAGE, paged, PAGE)
        found: list[Commit] = []
        if pages:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kvmq-commits") as pool:
                for page in pool.map(self._page, pages):
                    found += page
            found = found[number - pages[0] :]
        return found + self.head.tail[max(number - paged, 0) :]

    def counting(self) -> list[Commit]:
        """The commits that count, as of the last look. Of commits that an earlier call returned,
        none is read again. Raises as `look`.
        """
        first = max(self._counting_to, self.head.counts_from)
        self._counting += enumerate(self.since(first), first)
        self._counting_to = self.head.number
        self._counting = [one for one in self._counting if one[0] >= self.head.counts_from]
        return [commit for _, commit in self._counting]

    def _checkpoint(self) -> CommitHead:
        key = checkpoint_key(self.store_id)
        error: Exception | None = None
        for _ in range(_TRIES):
            try:
                return decode_head(self._bytes(key), f"{self.place.name}/{key}")
            except ObjectNotFound:
                return CommitHead()
            except (FormatError, ObjectTooShort) as e:
                # The object may have been replaced after its size was asked for.
                error = e
        _log.warning("all commits are read instead: %s", str(error))
        return CommitHead()

    def _page(self, number: int) -> list[Commit]:
        key = page_key(self.store_id, number)
        try:
            page = decode_page(self._bytes(key), f"{self.place.name}/{key}")
            if len(page) == PAGE:
                return page
        except ObjectNotFound:
            pass
        except FormatError as e:
            _log.warning("its commits are read one by one instead: %s", str(e))
        return [self._commit(one) for one in range(number, number + PAGE)]

    def _commit(self, number: int) -> Commit:
        """A commit that must exist."""
        key = commit_key(self.store_id, number)
        try:
            return decode_commit(self._bytes(key), f"{self.place.name}/{key}")
        except ObjectNotFound as e:
            raise FormatError(
                f"{self.place.name}/{key} is not there, and {self.head.number} commits were; "
                "copy it from a backup of the place"
            ) from e

    def _read(self, numbers: Iterable[int]) -> list[Commit | None]:
        def read(number: int) -> Commit | None:
            key = commit_key(self.store_id, number)
            try:
                return decode_commit(self._bytes(key), f"{self.place.name}/{key}")
            except ObjectNotFound:
                return None

        wanted = list(numbers)
        if len(wanted) == 1:
            return [read(wanted[0])]
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kvmq-commits") as pool:
            return list(pool.map(read, wanted))

    def _bytes(self, key: str) -> bytes:
        return self.place.read(key, 0, self.place.size(key))

    # --- writing ---

    def append(self, commit: Commit) -> bool:
        """Puts a commit behind those of `head`. Returns False if another job was first; `head` then
        has that job's commit. Raises PlaceError: the commit may then still appear, as long as no
        other commit takes its number. Raises CommitUncertain if the place can't be asked whether
        the commit is there.
        """
        number = self.head.number
        key = commit_key(self.store_id, number)
        try:
            self.place.put(key, encode_commit(commit))
        except PlaceError as e:
            # The put may have succeeded although its answer was lost.
            if not self._is_there(commit, e):
                if not isinstance(e, ObjectExists) and self.head.number == number:
                    raise
                return False
            return True
        self.head = head_after(self.head, commit)
        return True

    def _is_there(self, commit: Commit, error: PlaceError) -> bool:
        """Looks again; returns whether the next commit is this one."""
        number = self.head.number
        try:
            self.look()
        except PlaceError:
            key = commit_key(self.store_id, number)
            raise CommitUncertain(
                f"{error}. It is not known whether job {commit.job} counts: it does if "
                f"{self.place.name}/{key} is there and names it. Look before it is run again: rows "
                "without offsets would be there twice",
                self.place.name,
            ) from error
        return self.head.number > number and self.since(number)[0] == commit

    def note(self, head: CommitHead) -> None:
        """Puts a checkpoint, and before it the pages that are full. Raises PlaceError."""
        while len(head.tail) >= PAGE:
            key = page_key(self.store_id, head.paged)
            # Replaces a damaged page; an intact one is the same.
            self.place.put(key, encode_page(head.tail[:PAGE]), if_absent=False)
            head = replace(head, tail=head.tail[PAGE:])
        self.place.put(checkpoint_key(self.store_id), encode_head(head), if_absent=False)
        self.head = head


class CommitLogs:
    """The commit logs of a place, by store, for callers that ask for them repeatedly."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._logs: dict[str, CommitLog] = {}

    def log(self, store_id: str) -> CommitLog:
        """The log of a store's jobs."""
        if store_id not in self._logs:
            self._logs[store_id] = CommitLog(self._place, store_id)
        return self._logs[store_id]
