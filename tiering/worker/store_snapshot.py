"""Store snapshots: the store as a policy sees it, taken again and again at the cost of the news.

The idea: a sealed segment does not change, so its summary is kept until a topic is deleted or
changed; then all segments are summarized anew. The policy's meaning for each topic is kept as long
as the topics are the same. The topics of archives are remembered by `effective_class`.

Invariants: the result is as if everything had been read anew; nothing larger than the summary is
kept of a segment; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiering.policy.effective_class import ClassResolver, Today
from tiering.policy.retention_classes import TopicTraits
from tiering.policy.schedule import Archived, Segment, encrypted_of, segments_of, traits_of
from tiering.worker.context import WorkContext


class StoreSnapshot(NamedTuple):
    """The store at one moment: sealed segments, oldest first, live archives, and the topics."""

    segments: Sequence[Segment]
    archives: Sequence[Archived]
    today: Today


class Snapshotter:
    """Takes snapshots of a store, and keeps the parts that do not change."""

    def __init__(self, context: WorkContext) -> None:
        self._context = context
        self._handover = context.handover
        self.resolver = ClassResolver(context.manifest_of, context.check)
        self._today = Today(context.policy, {}, {})
        self._segments: dict[int, Segment] = {}

    def take(self, now_ms: int) -> StoreSnapshot:
        """The store as it is now."""
        # Segments before topics: these segments hold nothing of a topic that is made later.
        numbers = [segment.number for segment in self._handover.sealed()]
        today = self._topics()
        archives = self.resolver.archives(self._context.rows(), today, now_ms)
        return StoreSnapshot(self._sealed(numbers, today), archives, today)

    def _topics(self) -> Today:
        topics = self._context.store.topics()
        traits = traits_of(topics, encrypted_of(topics, self._context.keys))
        names = {topic.id: topic.name for topic in topics}
        before = self._today
        if names == before.names and traits == before.traits:
            return before
        if not _has_all(names, traits, before):
            self._segments.clear()
        self._today = Today(self._context.policy, names, traits)
        return self._today

    def _sealed(self, numbers: Sequence[int], today: Today) -> list[Segment]:
        known = self._segments
        new = self._handover.stats([number for number in numbers if number not in known])
        found = {s.number: s for s in segments_of(self._context.policy, new, today.traits)}
        self._segments = {n: found.get(n) or known[n] for n in numbers}
        return list(self._segments.values())


def _has_all(names: dict[int, str], traits: dict[str, TopicTraits], before: Today) -> bool:
    """Whether all topics of an earlier snapshot are there, unchanged."""
    return all(
        names.get(number) == name and traits[name] == before.traits[name]
        for number, name in before.names.items()
    )
