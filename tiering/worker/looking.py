"""Looking: what a worker sees of its store, again and again.

The idea: a look costs what is new. A sealed segment does not change, so what a policy sees of it is
kept until a topic that was there is not, or is not as it was: then all are looked at anew. What the
policy means for each topic is kept as long as the topics are the same; the topics of archives are
remembered by `effective_class`.

Invariants: what is seen is as if everything had been looked at anew; of a segment nothing is kept
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
    """What there is: sealed segments, oldest first, live archives, and the topics."""

    segments: Sequence[Segment]
    archives: Sequence[Archived]
    today: Today


class Looker:
    """See the module."""

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
        """What there is now."""
        # Before the topics: of one that comes later these segments hold nothing.
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
