"""Rewrites archives because a caller asks for it: compacted, or under the keys of today.

The idea: both are merges, of as few archives as possible, which `Replacer` makes. Here they are
only chosen. Compacting takes all neighbours of compacted classes that may be
together, and an archive that stands alone if messages in it supersede each other. Re-encrypting
takes each archive by itself, if a topic in it is not under the key that its messages would get now.

Invariants: an archive in which nothing would change is not touched, so a second call does nothing;
an archive that fails stays as it was, is noted, and the others go on; messages whose key is
destroyed are not re-encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from typing import Final

from kvstore.errors import CallerError, ConfigError, KeyDestroyed, StoreClosed, StoreError
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic
from tiering.catalog.catalog import ArchiveRow, is_own, read_topics
from tiering.errors import TieringStopped
from tiering.keys.crypto import KeyProvider
from tiering.keys.sources import KeysAtHand
from tiering.merge.compact import QueueCompaction
from tiering.merge.merge import COMPACTED_BYTES, MergeJob
from tiering.merge.sequential_reader import QueueRows, Window
from tiering.policy.schedule import Agenda
from tiering.worker.context import WorkContext
from tiering.worker.merge_scheduler import MergeScheduler
from tiering.worker.replace import Replacement, Replacer, is_compacted
from tiering.worker.runs import Run
from tiering.worker.store_side import TopicFacts
from tiering.worker.store_snapshot import StoreSnapshot

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
        try:
            manifest = self._context.manifest_of(row)
            compaction = self._replacer.compaction_of([row], now)
            job = self._replacer.merge_job([row], [manifest], compaction=compaction)
            return self._context.executor.run(self._context.check, count_superseded, job) > 0
        except (TieringStopped, StoreClosed):
            raise
        except (StoreError, OSError) as e:
            run.note_failure(row.key, e)
            return False

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
            if _may_have(row, only) and is_own(row, context.side.store_id)
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
                try:
                    replacement = built()
                    if replacement is not None:
                        found = self._replacer.replace(replacement)
                        run.replaced(found, context.clock.monotonic() - began, "reencrypted")
                except (TieringStopped, StoreClosed):
                    raise
                except (StoreError, OSError) as e:
                    run.note_failure(row.key, e)
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
