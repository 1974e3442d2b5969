"""Commits: the archives that one job adds to a place, and the sum of all commits so far.

The idea: commits are numbered, so each follows on all before it. The next job needs to know little
of them, and that doesn't grow with their number: for each queue the first and the next offset, and
the end of positions. This sum is a `CommitHead`. It is kept beside the commits, and can be made
again from them.

Invariants: all here is plain data; a head follows from its commits alone, except for `swept`,
`swept_at`, `cleared`, `ids` and `lists`, which may lag behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from kvstore.errors import FormatError, FormatTooNew

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
