"""Parts archives: a topic leaves the archives that it shares with topics of another retention.

The idea: topics of one class share archives, and an archive goes when all of it is over. A topic
whose retention changed since is of another class, and waits for its neighbours, or they for it. Its
archive becomes two: the topic's messages in one of the class that the topic has today, all others
in the second. Both are merges of the one archive, each without the topics of the other.

Invariants: both archives were read back before one batch puts them in the place of the old one; the
messages of both, and those of deleted topics, are all that the old one has; one of the two keeps
the old one's class, so that a list of the place alone shows that the old one is superseded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from kvstore.clock import Clock
from kvstore.errors import ArchiveDamaged, StoreClosed, StoreError
from tiering.archive.manifest import Manifest
from tiering.catalog.catalog import ArchiveRow, is_own, read_topics
from tiering.errors import TieringStopped
from tiering.merge.merge import MergeJob
from tiering.merge.merge_job import Merged
from tiering.policy.effective_class import Today
from tiering.policy.retention_classes import class_of_archive, life_of
from tiering.worker.looking import Looker
from tiering.worker.replace import Ready, Replacer
from tiering.worker.runs import Run
from tiering.worker.store_side import Store, TopicFacts


class Parter:
    """Parts the archives of a store that hold one topic beside others."""

    def __init__(
        self,
        store: Store,
        replacer: Replacer,
        looker: Looker,
        clock: Clock,
        check: Callable[[], None],
        tell: Callable[[str, int, int], None],
    ) -> None:
        self._store = store
        self._side = store.handover
        self._replacer = replacer
        self._looker = looker
        self._clock = clock
        self._check = check
        self._tell = tell

    def part(self, topic: TopicFacts, now_ms: int, run: Run) -> None:
        """Parts all archives where that changes when something goes. Errors are noted."""
        today = self._looker.look(now_ms).today
        rows = [row for row in self._looker.rows() if self._may_hold(row, topic.id)]
        done, total = 0, sum(row.size for row in rows)
        for row in rows:
            self._check()
            self._tell(f"parting archives of topic {topic.name}", done, total)
            done += row.size
            began = self._clock.monotonic()
            try:
                parted = self._part(row, topic, today)
            except (TieringStopped, StoreClosed):
                raise
            except (StoreError, OSError) as e:
                run.failed_with(row.key, e)
            else:
                if parted:
                    run.parted(row, parted, self._clock.monotonic() - began)

    def _may_hold(self, row: ArchiveRow, topic: int) -> bool:
        named = row.topics is None or topic in read_topics(row.topics)
        return named and is_own(row, self._side.store_id)

    def _part(self, row: ArchiveRow, topic: TopicFacts, today: Today) -> list[ArchiveRow]:
        """Parts one archive; returns nothing where that would change nothing."""
        manifest = self._replacer.manifest_of(row)
        classes = _classes(row, manifest, topic, today)
        if classes is None:
            return []
        job = self._replacer.job_of([row], [manifest])
        ids = ({topic.id}, job.topics.keys() - {topic.id})
        made: list[Ready] = []
        try:
            for number, (name, own) in enumerate(zip(classes, ids, strict=True)):
                one = msgspec.structs.replace(
                    job, topics={i: job.topics[i] for i in own}, retention_class=name,
                    path=f"{job.path}.{number}",
                )  # fmt: skip
                made.append(self._replacer.made([row], one, self._check))
            _check_whole(row, manifest, job, [ready.merged for ready in made])
            return self._replacer.settle_all(made)
        finally:
            for ready in made:
                self._replacer.remove(Path(ready.path))


def _classes(
    row: ArchiveRow, manifest: Manifest, topic: TopicFacts, today: Today
) -> tuple[str, str] | None:
    """The classes of the topic's archive and of the rest's; None: nothing is to be parted."""
    if not any(t.id == topic.id for t in manifest.topics):
        return None
    others = [
        t.name
        for t in manifest.topics
        if t.id != topic.id and today.names.get(t.id) == t.name and t.name in today.traits
    ]
    mine = life_of(today.policy, today.traits[topic.name]).kind
    if mine is None or not others:
        return None
    rest = class_of_archive(today.policy, row.retention_class, others, today.traits)
    if (mine.leaves_warm, mine.ends) == (rest.leaves_warm, rest.ends):
        return None
    if mine.name == row.retention_class:
        return mine.name, rest.name
    return mine.name, row.retention_class


def _check_whole(row: ArchiveRow, manifest: Manifest, job: MergeJob, parts: list[Merged]) -> None:
    """Raises if a message is in neither part, unless its topic is deleted or it is unreadable."""
    kept = sum(part.made.manifest.messages for part in parts if part.made is not None)
    deleted = sum(topic.messages for topic in manifest.topics if topic.id not in job.topics)
    unreadable = sum(part.dropped.unreadable for part in parts)
    if kept + deleted + unreadable != manifest.messages:
        raise ArchiveDamaged(
            f"{row.name} holds {manifest.messages} messages; its parts have {kept}, and {deleted} "
            f"are of deleted topics, {unreadable} unreadable; nothing was changed", row.name,
        )  # fmt: skip
