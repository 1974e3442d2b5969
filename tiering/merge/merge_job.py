"""Merge jobs: the input of a merge, and its result.

The idea: they are values alone, so that a job can be handed to another process, or to another
machine that reaches the places.

Invariant: no job and no result prints a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tiering.archive.archive_reader import Archive
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveSettings
from tiering.executor.match import Match
from tiering.executor.regroup import Made
from tiering.keys.crypto import KeyProvider
from tiering.merge.compact import Compaction
from tiering.places.place import open_place

Queue = tuple[int, int]
"""Topic id and queue."""
PARTITION_BYTES: Final = 32 << 20
"""The bytes of records in a partition, about. A task holds and returns about a quarter of that, as
coded. Each partition costs an opening of the archives, and each queue that is cut a block that is
not full.
"""


class MergeInput(msgspec.Struct, frozen=True, kw_only=True):
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
        return f"MergeInput({self.place}/{self.key})"

    def open(self, keys: KeyProvider | None) -> Archive:
        """Opens the archive, with the places and files of this machine."""
        place = open_place(self.place, options=self.options or None)
        return Archive.open(place.source(self.key, self.size), keys=keys)


class MergeJob(msgspec.Struct, frozen=True, kw_only=True):
    """One merge. `topics` are those that exist, by id: others were deleted. `path` is the file to
    write. The keys of `settings` have to be `KeysAtHand`. A partition has about `partition_bytes`
    of records; another number may make other bytes.
    """

    inputs: Sequence[MergeInput]
    topics: dict[int, ArchivedTopic]
    settings: ArchiveSettings
    store_id: str
    retention_class: str
    path: str
    compaction: Compaction | None = None
    without: Match | None = None
    partition_bytes: int = PARTITION_BYTES


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
