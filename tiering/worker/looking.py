"""Looks at the store for a worker, again and again, at the cost of the news alone.

The idea: a sealed segment does not change, so what a policy sees of it is kept until a topic is
deleted or changed; then all segments are looked at anew. The policy's meaning for each topic is
kept as long as the topics are the same. The topics of archives are remembered by `effective_class`.

Invariants: the result is as if everything had been looked at anew; nothing is kept of a segment
that is larger than what `due` sees of it; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tiering.catalog.catalog import ArchiveRow, decode_rows
from tiering.keys.crypto import KeyProvider
from tiering.policy.effective_class import Judge, ManifestOf, Today
from tiering.policy.policy import Policy
from tiering.policy.retention_classes import TopicTraits
from tiering.policy.schedule import Archived, Segment
from tiering.policy.snapshot import encrypted_of, segments_of, traits_of
from tiering.worker.store_side import Store


class StoreSnapshot(NamedTuple):
    """The store at one moment: sealed segments, oldest first, live archives, and the topics."""

    segments: Sequence[Segment]
    archives: Sequence[Archived]
    today: Today


class Looker:
    """Takes snapshots of a store, and keeps what does not change."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        keys: KeyProvider | None,
        manifest_of: ManifestOf,
        check: Callable[[], None],
    ) -> None:
        self._store = store
        self._side = store.handover
        self._policy = policy
        self._keys = keys
        self.judge = Judge(manifest_of, check)
        self._today = Today(policy, {}, {})
        self._segments: dict[int, Segment] = {}

    def look(self, now_ms: int) -> StoreSnapshot:
        """The store as it is now."""
        # Segments before topics: these segments hold nothing of a topic that is made later.
        numbers = [segment.number for segment in self._side.sealed()]
        today = self._topics()
        archives = self.judge.archives(self.rows(), today, now_ms)
        return StoreSnapshot(self._sealed(numbers, today), archives, today)

    def hot(self) -> list[int]:
        """The first positions of the sealed segments in the log, rising."""
        return [segment.first_position for segment in self._side.sealed()]

    def rows(self) -> list[ArchiveRow]:
        """The live archives of the catalog."""
        return [row for row in decode_rows(self._side.rows()) if row.state == "live"]

    def _topics(self) -> Today:
        topics = self._store.topics()
        traits = traits_of(topics, encrypted_of(topics, self._keys))
        names = {topic.id: topic.name for topic in topics}
        before = self._today
        if names == before.names and traits == before.traits:
            return before
        if not _has_all(names, traits, before):
            self._segments.clear()
        self._today = Today(self._policy, names, traits)
        return self._today

    def _sealed(self, numbers: Sequence[int], today: Today) -> list[Segment]:
        known = self._segments
        new = self._side.stats([number for number in numbers if number not in known])
        found = {s.number: s for s in segments_of(self._policy, new, today.traits)}
        self._segments = {n: found.get(n) or known[n] for n in numbers}
        return list(self._segments.values())


def _has_all(names: dict[int, str], traits: dict[str, TopicTraits], before: Today) -> bool:
    """Whether the topics that were there are there, as they were."""
    return all(
        names.get(number) == name and traits[name] == before.traits[name]
        for number, name in before.names.items()
    )
