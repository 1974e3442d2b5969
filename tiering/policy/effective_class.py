"""Effective class: the class by which each archive is judged today, by today's policy and topics.

The idea: an archive is judged by its topics. Its row in the catalog has their ids if they are few.
If the row has none, the archive's manifest is read only if the topics make a difference: as long as
every topic of the store would lead to the same fate, the class in its name is enough. A manifest is
read once, and the ids are remembered.

Invariants: an archive whose topics are all deleted is judged by its name. So is, until the next
run, one that can't be read: before it is deleted, `topics_of` is asked again, and raises the
reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from kvstore.errors import StoreClosed, StoreError
from tiering.archive.manifest import Manifest
from tiering.catalog.catalog import ArchiveRow, pack_topics, read_topics
from tiering.errors import PlaceDenied, PlaceUnavailable, TieringStopped
from tiering.policy.policy import Policy
from tiering.policy.retention_classes import (
    RetentionClass,
    TopicTraits,
    class_of_archive,
    life_of,
    read_class,
)
from tiering.policy.schedule import Archived, fate

_log = logging.getLogger("kvmq")

ManifestOf = Callable[[ArchiveRow], Manifest]
"""Reads an archive's manifest."""


class Today:
    """The present topics, and the policy's meaning for them."""

    def __init__(
        self, policy: Policy, names: Mapping[int, str], traits: Mapping[str, TopicTraits]
    ) -> None:
        self.policy = policy
        self.names = names
        """Names of topics by id."""
        self.traits = traits
        self._classes: dict[tuple[str, bytes], RetentionClass] = {}

    def class_of(self, made_as: str, topics: bytes) -> RetentionClass:
        """The class of an archive with these topics that was made as the class `made_as`."""
        found = self._classes.get((made_as, topics))
        if found is None:
            names = [self.names[n] for n in read_topics(topics) if n in self.names]
            found = class_of_archive(self.policy, made_as, names, self.traits)
            self._classes[made_as, topics] = found
        return found

    @cached_property
    def extremes(self) -> Sequence[RetentionClass]:
        """The extreme classes: that of any archive lies between them, unless none of its topics is
        left.
        """
        lives = (life_of(self.policy, traits).kind for traits in self.traits.values())
        kinds = {kind for kind in lives if kind is not None}
        if not kinds:
            return ()
        return [
            RetentionClass(next(iter(kinds)).first, leaves, ends)
            for leaves in _extremes(kind.leaves_warm for kind in kinds)
            for ends in _extremes(kind.ends for kind in kinds)
        ]


def _extremes(ages: Iterable[int | None]) -> set[int | None]:
    every = set(ages)
    some = [age for age in every if age is not None]
    found: set[int | None] = {min(some), max(some)} if some else set()
    return found | {None} if None in every else found


class ClassResolver:
    """Says by which class each archive is judged. `manifest_of` reads an archive's manifest;
    `check` may raise to end a long round of such reads.
    """

    def __init__(self, manifest_of: ManifestOf, check: Callable[[], None] = lambda: None) -> None:
        self._manifest_of = manifest_of
        self._check = check
        self._learned: dict[int, bytes] = {}
        self._same: dict[bytes, bytes] = {}
        self._away: set[str] = set()

    def begin(self) -> None:
        """Begins a run: archives that could not be read are tried again, once."""
        self._away.clear()

    def archives(self, rows: Iterable[ArchiveRow], today: Today, now_ms: int) -> list[Archived]:
        """The live archives of a catalog as the policy sees them."""
        rows = list(rows)
        self._forget_others(rows)
        return [
            Archived(
                row.key, row.tier, row.size, row.raw_bytes, row.last_stored_at,
                self.class_of(row, today, now_ms),
            )
            for row in rows
            if row.state == "live"
        ]  # fmt: skip

    def _forget_others(self, rows: Sequence[ArchiveRow]) -> None:
        """Forgets the topics of archives that the catalog does not have any more."""
        if self._learned:
            learned = self._learned
            self._learned = {r.number: learned[r.number] for r in rows if r.number in learned}
            self._same = {known: known for known in self._learned.values()}

    def class_of(self, row: ArchiveRow, today: Today, now_ms: int) -> RetentionClass:
        """The class by which an archive is judged now."""
        known = row.topics if row.topics is not None else self._learned.get(row.number)
        if known is None and self._is_open(row, today, now_ms):
            known = self._try(row)
        if known is None:
            return read_class(row.retention_class)
        return today.class_of(row.retention_class, known)

    def topics_of(self, row: ArchiveRow) -> bytes:
        """The ids of an archive's topics; raises if they are only in the manifest and that can't be
        read.
        """
        known = row.topics if row.topics is not None else self._learned.get(row.number)
        if known is None:
            manifest = self._manifest_of(row)
            known = pack_topics(topic.id for topic in manifest.topics)
            # Neighbouring archives mostly have the same topics.
            known = self._learned[row.number] = self._same.setdefault(known, known)
        return known

    def _is_open(self, row: ArchiveRow, today: Today, now_ms: int) -> bool:
        """Whether the archive's fate depends on its topics."""
        age = now_ms - row.last_stored_at
        kinds = (read_class(row.retention_class), *today.extremes)
        return len({fate(today.policy, row.tier, kind, age) for kind in kinds}) > 1

    def _try(self, row: ArchiveRow) -> bytes | None:
        if row.place in self._away or row.name in self._away:
            return None
        self._check()
        try:
            return self.topics_of(row)
        except (TieringStopped, StoreClosed):
            raise
        except (StoreError, OSError) as e:
            # A place that is away answers for none of its archives; a damaged archive says nothing
            # of others.
            is_away = isinstance(e, PlaceUnavailable | PlaceDenied)
            self._away.add(row.place if is_away else row.name)
            _log.warning("tiering: %s is judged by its name: %s", row.name, str(e))
            return None
