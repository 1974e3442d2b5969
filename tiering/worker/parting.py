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

import msgspec

from kvstore.errors import ArchiveDamaged, StoreClosed, StoreError
from tiering.archive.manifest import Manifest
from tiering.catalog.catalog import ArchiveRow, is_own, read_topics
from tiering.errors import TieringStopped
from tiering.merge.merge import MergeJob
from tiering.merge.merge_job import Merged
from tiering.policy.effective_class import Today
from tiering.policy.retention_classes import class_of_archive, life_of
from tiering.worker.context import WorkContext
from tiering.worker.replace import Replacement, Replacer
from tiering.worker.runs import Run
from tiering.worker.store_side import TopicFacts
from tiering.worker.store_snapshot import Snapshotter


class Parter:
    """Parts the archives of a store that hold one topic beside others."""

    def __init__(self, context: WorkContext, replacer: Replacer, snapshots: Snapshotter) -> None:
        self._context = context
        self._replacer = replacer
        self._snapshots = snapshots

    def part(self, topic: TopicFacts, run: Run) -> None:
        """Parts all archives where that changes when messages expire. Errors are noted."""
        context = self._context
        today = self._snapshots.take(context.trusted.now_ms()).today
        rows = [row for row in context.rows() if self._may_hold(row, topic.id)]
        done, total = 0, sum(row.size for row in rows)
        for row in rows:
            context.check()
            context.tell(f"parting archives of topic {topic.name}", done, total)
            done += row.size
            began = context.clock.monotonic()
            try:
                parted = self._part(row, topic, today)
            except (TieringStopped, StoreClosed):
                raise
            except (StoreError, OSError) as e:
                run.note_failure(row.key, e)
            else:
                if parted:
                    run.parted(row, parted, context.clock.monotonic() - began)

    def _may_hold(self, row: ArchiveRow, topic: int) -> bool:
        named = row.topics is None or topic in read_topics(row.topics)
        return named and is_own(row, self._context.side.store_id)

    def _part(self, row: ArchiveRow, topic: TopicFacts, today: Today) -> list[ArchiveRow]:
        """Parts one archive; returns nothing where that would change nothing."""
        manifest = self._context.manifest_of(row)
        classes = _classes(row, manifest, topic, today)
        if classes is None:
            return []
        job = self._replacer.merge_job([row], [manifest])
        ids = ({topic.id}, job.topics.keys() - {topic.id})
        parts: list[Replacement] = []
        try:
            for number, (name, own) in enumerate(zip(classes, ids, strict=True)):
                one = msgspec.structs.replace(
                    job, topics={i: job.topics[i] for i in own}, retention_class=name,
                    path=f"{job.path}.{number}",
                )  # fmt: skip
                parts.append(self._replacer.build([row], one, self._context.check))
            _check_whole(row, manifest, job, [part.merged for part in parts])
            return self._replacer.replace_by(parts)
        finally:
            for part in parts:
                self._replacer.discard(part)


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
