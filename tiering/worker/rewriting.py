"""Rewrites archives because a caller asks for it: compacted, or under the keys of today.

The idea: both are merges, of as few archives as possible, which `Replacer` makes and hands over.
Here they are only chosen. Compacting takes all neighbours of compacted classes that may be
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

from kvstore.clock import Clock
from kvstore.errors import CallerError, ConfigError, KeyDestroyed, StoreClosed, StoreError
from tiering.archive.archive_reader import Archive
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic
from tiering.catalog.catalog import ArchiveRow, is_own, read_topics
from tiering.errors import TieringStopped
from tiering.executor.ahead import ahead
from tiering.executor.pool import Executor
from tiering.keys.crypto import KeyProvider
from tiering.keys.sources import KeysAtHand
from tiering.merge.compact import QueueCompaction
from tiering.merge.merge import COMPACTED_BYTES, MergeJob
from tiering.merge.sequential_reader import QueueRows, Window
from tiering.places.place import open_place
from tiering.policy.schedule import Agenda
from tiering.policy.trusted_clock import TrustedClock
from tiering.worker.choose import Merger
from tiering.worker.looking import Looker, StoreSnapshot
from tiering.worker.replace import Ready, Replacer, is_compacted
from tiering.worker.runs import Run
from tiering.worker.store_side import Store, TopicFacts

AT_ONCE: Final = 4
"""Archives that are made anew at the same time at most: each is several jobs by itself."""
_WINDOW_BYTES: Final = 8 << 20


class Rewriter:
    """Compacts or re-encrypts the archives of a store."""

    def __init__(
        self,
        store: Store,
        replacer: Replacer,
        looker: Looker,
        merger: Merger,
        executor: Executor,
        clock: Clock,
        trusted: TrustedClock,
        check: Callable[[], None],
        tell: Callable[[str, int, int], None],
    ) -> None:
        self._store = store
        self._side = store.handover
        self._replacer = replacer
        self._looker = looker
        self._merger = merger
        self._executor = executor
        self._clock = clock
        self._trusted = trusted
        self._check = check
        self._tell = tell

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
        settled: set[int] = set()
        while True:
            self._check()
            due, sight = agenda()
            groups = [
                group
                for group in self._merger.next(due, sight, COMPACTED_BYTES, at_any_size=True)
                if is_compacted(group[0])
                and any(_may_have(row, only) for row in group)
                and not settled.issuperset(row.number for row in group)
            ]
            if not groups:
                return
            first = groups[0]
            now = self._trusted.now_ms()
            if len(first) > 1 or self._is_worth_it(first[0], now, run):
                self._merger.merge(groups, sight, now, run)
            else:
                settled.add(first[0].number)

    def _is_worth_it(self, row: ArchiveRow, now: int, run: Run) -> bool:
        """Whether anything in an archive that stands alone is superseded."""
        try:
            manifest = self._replacer.manifest_of(row)
            compaction = self._replacer.compaction_of([row], now)
            job = self._replacer.job_of([row], [manifest], compaction=compaction)
            return self._executor.run(self._check, superseded_in, job) > 0
        except (TieringStopped, StoreClosed):
            raise
        except (StoreError, OSError) as e:
            run.failed_with(row.key, e)
            return False

    # --- re-encrypting ---

    def reencrypt(self, topic: str | None, run: Run) -> None:
        """See `Worker.reencrypt`."""
        keys = self._replacer.provider
        if keys is None:
            raise ConfigError(
                "nothing can be re-encrypted without keys: give the worker some, or name a key "
                "file in the store's settings"
            )
        only = self.topic(topic).id if topic is not None else None
        known = {info.id for info in self._store.topics()} if only is None else {only}
        rows = [
            row
            for row in self._looker.rows()
            if _may_have(row, only) and is_own(row, self._side.store_id)
        ]

        def make(row: ArchiveRow, check: Callable[[], None]) -> Ready | None:
            manifest = self._replacer.manifest_of(row)
            if not any(is_under_another(t, keys, known) for t in manifest.topics):
                return None
            return self._replacer.anew(row, manifest, check)

        width = min(self._executor.width, AT_ONCE)
        done, total = 0, sum(row.size for row in rows)
        with closing(ahead(width, self._check, rows, make)) as coming:
            for row, made in coming:
                self._check()
                self._tell("re-encrypting archives", done, total)
                began = self._clock.monotonic()
                try:
                    ready = made()
                    if ready is not None:
                        found = self._replacer.settle(ready)
                        run.replaced(found, self._clock.monotonic() - began, "reencrypted")
                except (TieringStopped, StoreClosed):
                    raise
                except (StoreError, OSError) as e:
                    run.failed_with(row.key, e)
                done += row.size


def _may_have(row: ArchiveRow, topic: int | None) -> bool:
    """Whether an archive may hold messages of a topic (None: of any)."""
    return topic is None or row.topics is None or topic in read_topics(row.topics)


def is_under_another(topic: ArchivedTopic, keys: KeyProvider, known: Collection[int]) -> bool:
    """Whether an archive has a topic's messages under another key than they would get now; topics
    that are not `known` by id were deleted, and don't matter.
    """
    if topic.id not in known:
        return False
    try:
        now = keys.key_for_writing(topic.name)
        if topic.key_id is not None and (now is None or now.key_id != topic.key_id):
            keys.key_for_reading(topic.name, topic.key_id)
    except KeyDestroyed:
        return False  # the one it has: gone for good; the one it would get: there is none yet
    return (now.key_id if now is not None else None) != topic.key_id


def superseded_in(job: MergeJob) -> int:
    """How many messages a merge of the job's only archive would drop by its compaction: the task
    that another process is given.
    """
    assert job.compaction is not None, "only asked of compacted ones"
    (one,) = job.inputs
    keys = job.settings.keys
    source = open_place(one.place, options=one.options or None).source(one.key, one.size)
    archive = Archive.open(source, keys=keys)
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
