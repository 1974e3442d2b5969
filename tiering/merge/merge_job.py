"""Merge jobs: the input of a merge, and its result.

The idea: they are values alone, so that a job can be handed to another process, or to another
machine that reaches the places.

Invariant: no job and no result prints a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveSettings
from tiering.executor.match import Match
from tiering.executor.regroup import Made
from tiering.merge.compact import Compaction

Queue = tuple[int, int]
"""Topic id and queue."""
STRETCH_BYTES: Final = 32 << 20
"""Of records, in a stretch, about. (A quarter of it, as coded, is what a task holds and gives back;
each costs it an opening of the archives, and queues that are cut a block that is not full.)"""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """An archive to merge: where it is, with the settings of that place, and the id of the store
    that made it. `unkept` are the ids of topics whose messages in it are over.
    """

    place: str
    key: str
    size: int
    store_id: str
    options: dict[str, object] = {}
    unkept: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"Input({self.place}/{self.key})"


class MergeJob(msgspec.Struct, frozen=True, kw_only=True):
    """One merge. `topics` are those that exist, by id: others were deleted. `path` is the file to
    write. The keys of `settings` have to be at hand. About `stretch_bytes` of records are done at a
    time; another number may make other bytes.
    """

    inputs: Sequence[Input]
    topics: dict[int, ArchivedTopic]
    settings: ArchiveSettings
    store_id: str
    retention_class: str
    path: str
    compaction: Compaction | None = None
    without: Match | None = None
    stretch_bytes: int = STRETCH_BYTES


class Dropped(msgspec.Struct, kw_only=True):
    """How many messages were dropped, by reason: their topic was deleted, or they are over;
    superseded; tombstones; erased; nobody can decrypt them any more.
    """

    deleted: int = 0
    over: int = 0
    superseded: int = 0
    tombstones: int = 0
    erased: int = 0
    unreadable: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in self.__struct_fields__)


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job: the archive (None: nothing was left for one), all queues of which the
    inputs held anything, and how many messages they held.
    """

    made: Made | None
    queues: list[Queue]
    messages: int
    dropped: Dropped
