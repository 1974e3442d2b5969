"""Rewrites archives: merges, compacts, re-encrypts, and parts topics that share an archive.

The idea: each is a merge, which `Replacer` makes of as few archives as possible. Here they are only
chosen. `merge.choose` says which archives are worth a merge. Archives with another step due are
left out, and a group that failed is left alone for a while.

Compacting takes all neighbours of compacted classes that may be together, and an archive that
stands alone if messages in it supersede each other. Re-encrypting takes each archive by itself, if
a topic in it is not under the key that its messages would get now.

Topics of one class share archives, and an archive goes when the time of all its messages is over. A
topic whose retention changed since is of another class, and waits for its neighbours, or they for
it. Parting makes two of its archive: the topic's messages in one of the class that the topic has
today, all others in the second. Both are merges of the one archive, each without the topics of the
other.

Invariants: an archive in which nothing would change is not touched, so a second call does nothing;
an archive that fails stays as it was, is noted, and the others go on; messages whose key is
destroyed are not re-encrypted. Both parts were read back before one batch puts them in the place of
the old one; the messages of both, and those of deleted topics, are all that the old one has; one of
the two keeps the old one's shares of the log (see `manifest.shares_of`), so that a list of the
place alone shows that the old one is superseded, and nothing else is. It is published last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from typing import Final

import msgspec

from kvstore.errors import (
    ArchiveDamaged,
    CallerError,
    ConfigError,
    FormatTooNew,
    KeyDestroyed,
    StoreError,
)
from tiering.archive.coder import LEVEL_DEFAULTS
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.catalog.catalog import ArchiveRow, is_own, read_topics
from tiering.errors import PlaceDenied, PlaceFull, PlaceUnavailable
from tiering.keys.crypto import KeyProvider, KeysAtHand
from tiering.merge.compact import QueueCompaction
from tiering.merge.merge import COMPACTED_BYTES, choose
from tiering.merge.partition import Merged, MergeJob
from tiering.merge.partition_task import QueueRows, Window
from tiering.policy.effective_class import Today
from tiering.policy.retention_classes import class_of_archive, life_of
from tiering.policy.schedule import Agenda
from tiering.worker.context import WorkContext
from tiering.worker.replace import Replacement, Replacer, is_compacted
from tiering.worker.runs import Run, record_errors
from tiering.worker.store_protocols import TopicFacts
from tiering.worker.store_snapshot import Snapshotter, StoreSnapshot

MERGING: Final = "merging archives"
"""The name of the progress, in bytes of archives."""
FAILED_FOR: Final = 3600.0
"""Seconds for which archives that could not be merged are left alone."""


class MergeScheduler:
    """Merges a store's archives, one group after the other."""

    def __init__(self, context: WorkContext, replacer: Replacer) -> None:
        self._context = context
        self._replacer = replacer
        self._failed: dict[int, float] = {}
        self._merged_bytes = 0

    def begin(self, *, anew: bool) -> None:
        """Begins a run; `anew`: groups that failed before are tried, too."""
        self._merged_bytes = 0
        now = self._context.clock.monotonic()
        self._failed = {} if anew else {n: at for n, at in self._failed.items() if at > now}

    def schedule(
        self,
        agenda: Agenda,
        snapshot: StoreSnapshot,
        target_bytes: int,
        *,
        at_any_size: bool = False,
    ) -> list[list[ArchiveRow]]:
        """The groups that are worth a merge now (see `choose`), without archives that are due to go
        cold or to be deleted, and without those that failed lately.
        """
        busy = {archive.key for archive in agenda.archives}
        rows = [
            row
            for row in self._context.rows()
            if row.key not in busy
            and row.number not in self._failed
            and is_own(row, self._context.handover.store_id)
        ]
        hot = [segment.first_position for segment in self._context.handover.sealed()]
        kinds = {a.key: a.kind for a in snapshot.archives}
        settings = self._context.settings
        level = LEVEL_DEFAULTS[settings.codec] if settings.level is None else settings.level
        return choose(
            rows, target_bytes, kinds, hot, at_any_size=at_any_size,
            written_as=(settings.codec, level),
        )  # fmt: skip

    def merge_first(
        self, groups: list[list[ArchiveRow]], snapshot: StoreSnapshot, now_ms: int, run: Run
    ) -> None:
        """Merges the first of the groups. An error is noted."""
        group = groups[0]
        began = self._context.clock.monotonic()
        left = sum(row.size for one in groups for row in one)
        self._context.tell(MERGING, self._merged_bytes, self._merged_bytes + left)
        # After any error, others may still be merged.
        with record_errors(lambda _, e: self._back_off(groups, e, run), "", Exception):
            done = self._replacer.merge(group, snapshot.today.traits, now_ms)
            run.replaced(done, self._context.clock.monotonic() - began)
        self._merged_bytes += sum(row.size for row in group)

    def _back_off(self, groups: list[list[ArchiveRow]], why: Exception, run: Run) -> None:
        """Leaves the archive alone for a while that is to blame; the first group, if none can be
        told; all archives in the same place, if the place is away.
        """
        group = groups[0]
        named = why.archive if isinstance(why, ArchiveDamaged | FormatTooNew) else ""
        blamed = [row for row in group if named.endswith(row.key)] or group
        run.note_failure(blamed[0].key, why)
        if isinstance(why, PlaceUnavailable | PlaceDenied | PlaceFull):
            blamed = [row for one in groups for row in one if row.place == group[0].place]
        until = self._context.clock.monotonic() + FAILED_FOR
        self._failed.update((row.number, until) for row in blamed)


AT_ONCE: Final = 4
"""Archives that are rebuilt at the same time at most: each is several jobs by itself."""
_WINDOW_BYTES: Final = 8 << 20


class Rewriter:
    """Compacts or re-encrypts the archives of a store."""

    def __init__(self, context: WorkContext, replacer: Replacer, merges: MergeScheduler) -> None:
        self._context = context
        self._store = context.store
        self._replacer = replacer
        self._merges = merges

    def topic(self, name: str) -> TopicFacts:
        """The store's facts of a topic; `CallerError` if it has none of that name."""
        found = next((info for info in self._store.topics() if info.name == name), None)
        if found is None:
            raise CallerError(f"there is no topic {name!r} in {self._store.path}")
        return found

    # --- compacting ---

    def compact(
        self, topic: str | None, agenda: Callable[[], tuple[Agenda, StoreSnapshot]], run: Run
    ) -> None:
        """See `Worker.compact`."""
        only: int | None = None
        if topic is not None:
            info = self.topic(topic)
            if info.kind != "compacted":
                raise CallerError(
                    f"topic {topic!r} is of kind {info.kind}; only topics of kind compacted have "
                    "messages that supersede others"
                )
            only = info.id
        unchanged: set[int] = set()
        while True:
            self._context.check()
            due, snapshot = agenda()
            groups = [
                group
                for group in self._merges.schedule(due, snapshot, COMPACTED_BYTES, at_any_size=True)
                if is_compacted(group[0])
                and any(_may_have(row, only) for row in group)
                and not unchanged.issuperset(row.number for row in group)
            ]
            if not groups:
                return
            first = groups[0]
            now = self._context.trusted.now_ms()
            if len(first) > 1 or self._is_worth_it(first[0], now, run):
                self._merges.merge_first(groups, snapshot, now, run)
            else:
                unchanged.add(first[0].number)

    def _is_worth_it(self, row: ArchiveRow, now: int, run: Run) -> bool:
        """Whether anything in an archive that stands alone is superseded."""
        superseded = 0
        with record_errors(run.note_failure, row.key, StoreError, OSError):
            manifest = self._context.manifest_of(row)
            compaction = self._replacer.compaction_of([row], now)
            job = self._replacer.merge_job([row], [manifest], compaction=compaction)
            superseded = self._context.executor.run(self._context.check, count_superseded, job)
        return superseded > 0

    # --- re-encrypting ---

    def reencrypt(self, topic: str | None, run: Run) -> None:
        """See `Worker.reencrypt`."""
        context, keys = self._context, self._context.keys
        if keys is None:
            raise ConfigError(
                "nothing can be re-encrypted without keys: give the worker some, or name a key "
                "file in the store's settings"
            )
        only = self.topic(topic).id if topic is not None else None
        known = {info.id for info in self._store.topics()} if only is None else {only}
        rows = [
            row
            for row in context.rows()
            if _may_have(row, only) and is_own(row, context.handover.store_id)
        ]

        def build(row: ArchiveRow, check: Callable[[], None]) -> Replacement | None:
            manifest = context.manifest_of(row)
            if not any(is_under_another(t, keys, known) for t in manifest.topics):
                return None
            return self._replacer.rebuild(row, manifest, check)

        done, total = 0, sum(row.size for row in rows)
        with closing(context.pipelined(rows, build, most=AT_ONCE)) as coming:
            for row, built in coming:
                context.check()
                context.tell("re-encrypting archives", done, total)
                began = context.clock.monotonic()
                with record_errors(run.note_failure, row.key, StoreError, OSError):
                    replacement = built()
                    if replacement is not None:
                        found = self._replacer.replace(replacement)
                        run.replaced(found, context.clock.monotonic() - began, "reencrypted")
                done += row.size


def _may_have(row: ArchiveRow, topic: int | None) -> bool:
    """Whether an archive may hold messages of a topic (None: of any)."""
    return topic is None or row.topics is None or topic in read_topics(row.topics)


def is_under_another(topic: ArchivedTopic, keys: KeyProvider, known: Collection[int]) -> bool:
    """Whether an archive has a topic's messages under another key than they would get now. Topics
    that are not `known` by id were deleted, and don't count.
    """
    if topic.id not in known:
        return False
    try:
        now = keys.key_for_writing(topic.name)
        if topic.key_id is not None and (now is None or now.key_id != topic.key_id):
            keys.key_for_reading(topic.name, topic.key_id)
    except KeyDestroyed:
        return False  # unreadable for good, or there is no key to write with yet
    return (now.key_id if now is not None else None) != topic.key_id


def count_superseded(job: MergeJob) -> int:
    """Counts the messages that a merge of the job's only archive would drop by its compaction: the
    task that another process is given.
    """
    assert job.compaction is not None, "only asked of compacted ones"
    (one,) = job.inputs
    keys = job.settings.keys
    archive = one.open(keys)
    window = Window(archive, _WINDOW_BYTES)
    count = 0
    for number, queue, blocks in archive.directory.queues():
        described = archive.manifest.topics[number]
        topic = job.topics.get(archive.directory.topic_id(number))
        is_gone = (
            described.key_id is not None
            and isinstance(keys, KeysAtHand)
            and keys.is_gone(described.name, described.key_id)
        )
        if topic is None or topic.kind != "compacted" or queue == NO_QUEUE or is_gone:
            continue
        messages = QueueCompaction(job.compaction, (topic.id, queue))
        for block in blocks:
            rows = QueueRows.of(window.block(block))
            messages.add(rows.records, rows.offsets)
        count += sum(map(len, messages.finish()))
    return count


class TopicSeparator:
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
            with record_errors(run.note_failure, row.key, StoreError, OSError):
                parted = self._part(row, topic, today)
                if parted:
                    run.parted(row, parted, context.clock.monotonic() - began)

    def _may_hold(self, row: ArchiveRow, topic: int) -> bool:
        named = row.topics is None or topic in read_topics(row.topics)
        return named and is_own(row, self._context.handover.store_id)

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
            for number in (1, 0):  # the rest, then the topic
                is_parted = number == 0 and parts[0].merged.made is not None
                one = msgspec.structs.replace(
                    job, topics={i: job.topics[i] for i in ids[number]},
                    retention_class=classes[number], path=f"{job.path}.{number}",
                    part=topic.id if is_parted else None,
                )  # fmt: skip
                parts.insert(0, self._replacer.build([row], one, self._context.check))
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
