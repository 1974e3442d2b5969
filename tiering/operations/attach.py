"""Attaches archives of a place to a store that is open.

The idea: the archives must fit: offsets that nobody has, in queues that exist or that are made.
That is checked first. Then the log gives up a range of positions. Each archive is written anew into
the store's own folder, with the store's topic ids and positions of that range, announced and read
back. One WriteBatch has topics, catalog and places change together.

A catalog that is made anew takes the archives of the store's folder, but not those that are
announced. So before the batch a file says that all are there, and behind it the notes go first.

Invariants:

- Until that batch a reader sees nothing of the attach, and after it all.
- An index that is lost shows none of an attach, or all.
- The remains of a kill are removed by the next attach or erasure.
- The source is only read, but for what dead jobs have left there.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from kvstore.errors import CallerError, StoreError
from kvstore.index.archived import ArchivedTopic as TopicRow
from kvstore.index.archived import Arriving, Queue
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveOrigin
from tiering.catalog.archive_pool import OpenArchives
from tiering.catalog.bucket import newest
from tiering.catalog.catalog import FOLDER, ArchiveRow, contents, decode_rows, encode_row, fields_of
from tiering.catalog.overlaps import OffsetRange, ranges_of
from tiering.errors import (
    AttachConflict,
    NothingToRestore,
    PlaceError,
    PolicyIllegal,
)
from tiering.keys.crypto import KeyProvider
from tiering.merge.rewrite import RebasePlan, plan_rebase, rebase
from tiering.operations.attach_conflicts import ConflictChecker
from tiering.operations.source_place import (
    OPEN_BYTES,
    OpenedArchive,
    SourceContext,
    open_all,
    open_source,
    topics_of,
    with_room,
)
from tiering.places.dead_jobs import sweep
from tiering.places.failures import typed
from tiering.places.objects import SUFFIX
from tiering.places.place import Place, open_place
from tiering.places.publish import Pacing
from tiering.places.work_folder import ATTACH, ATTACH_NOTES, WORK, overwrite_all
from tiering.policy.retention_classes import RetentionClass, read_class
from tiering.worker.archive_segment import archived_topic
from tiering.worker.context import Publisher
from tiering.worker.store_protocols import Progress, Store, TopicFacts, attaching

SEGMENTS_MAX: Final = 999
"""Segments that the log leaves out at most: it would not be known for one log any more."""
_EVER: Final = RetentionClass("warm", None, None).name


class AttachReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attach: `archives` with so many `messages`, whose records take `raw_bytes`
    and whose archives take `bytes`, of `topics`, of which `made` are new in the store. Their
    positions are from `position` to before `end`. `left_out` messages of the archives were not
    asked for, or in no queue; `superseded` archives have a newer generation.
    """

    source_id: str
    topics: list[str]
    made: list[str]
    archives: int
    messages: int
    raw_bytes: int
    bytes: int
    position: int
    end: int
    left_out: int = 0
    superseded: int = 0


class _ArchivePart(NamedTuple):
    """An archive to attach, and the part of it that is taken."""

    found: OpenedArchive
    plan: RebasePlan


def attach(
    store: Store,
    source: str | Path,
    *,
    topics: Collection[str] | None = None,
    keys: KeyProvider | None = None,
    options: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> AttachReport:
    """Adds the archives of a place to an open store, with the offsets that they have.

    `topics` attaches those alone; `options` are settings of the place, and `store_id` (hex) where
    several stores have archives there; `keys` are those of encrypted topics. Options and keys that
    are not given are taken from the store's settings. Messages get positions behind the log's end,
    and with these other ids if they have none of their own. Attached twice, the second time is a
    conflict.

    >>> tiering.attach(store, "s3://bucket/prefix", topics=["orders"])  # doctest: +SKIP

    Raises `AttachConflict` for offsets that the store has, and for anything else that does not fit;
    nothing that a reader sees was changed then. `NothingToRestore`, `StoresAmbiguous`,
    `TopicNotFound`, `ArchiveDamaged`, `PlaceError`, `TieringBusy` if another attach is under way.
    """
    with typed(store.path):
        found = open_source(source, options, keys, store.config, progress)
        with attaching(store.handover):
            return _Attach(store, found).run(topics)


class _Attach:
    """One attach."""

    def __init__(self, store: Store, source: SourceContext) -> None:
        self._store = store
        self._handover = store.handover
        self._files = store.config.files
        self._source = source
        self._made = store.path / WORK / ATTACH
        notes = store.path / WORK / ATTACH_NOTES
        self._at = 0, 0
        """The archives that were brought, and all; also what is told meanwhile."""
        pacing = Pacing(self._tell, self._tell)
        self._publisher = Publisher(store, notes, source.tell, pacing)
        self._intents = self._publisher.intents
        self._own = open_place(store.path / FOLDER, files=self._files, clock=store.config.clock)
        rows = {row.number: row for row in decode_rows(self._handover.rows())}
        self._conflicts = ConflictChecker(store, source, rows)
        self._known = {row.key for row in rows.values()}

    def run(self, topics: Collection[str] | None) -> AttachReport:
        """See `attach`."""
        self._clean_up()
        source_id, objects = self._source.objects()
        every = open_all(self._source, objects)
        found = newest(every)
        described = _described(found, topics, self._source.place)
        # Objects put so far count; the last step notes those that are put from here on.
        self._store.checkpoint()
        known = {info.name: info for info in self._store.topics()}
        ranges = [r for one in found for r in _wanted(one, described)]
        self._conflicts.check_topics(ranges, described, known)
        archives = {one.object.key: one.open for one in found}
        self._conflicts.check_offsets(archives, ranges, known)
        coming = self._planned(found, described, known)
        return self._bring(coming, found, described, known, source_id, len(every) - len(found))

    # --- what there is ---

    def _clean_up(self) -> None:
        """Removes the remains of a cut-off attach, here and in the source."""
        for _ in self._intents.unfinished(self._known):
            pass  # those of an attach that the catalog has are forgotten
        self._intents.set_whole(False)
        self._publisher.clean_up([self._own], self._known, _raise)
        overwrite_all(self._made, self._files)
        with suppress(PlaceError):
            # Where nothing may be removed, the remains cost space, and no more.
            sweep(self._source.place, self._store.config.clock.now_ms())

    def _planned(
        self,
        found: Sequence[OpenedArchive],
        described: Mapping[str, ArchivedTopic],
        known: Mapping[str, TopicFacts],
    ) -> list[_ArchivePart]:
        """The part of each archive that is taken, topics as the store has them; topics that it
        lacks have no id yet.
        """
        coming = []
        for number, one in enumerate(found):
            self._source.tell("looking at archives", number, len(found))
            mine = {
                topic.name: archived_topic(known[topic.name])
                if topic.name in known
                else described[topic.name]
                for topic in one.manifest.topics
                if topic.name in described and topic.id == described[topic.name].id
            }
            taken = plan_rebase(one.archive, mine) if mine else None
            if taken is not None and taken.messages:
                coming.append(_ArchivePart(one, taken))
        if not coming:
            place = self._source.place.name
            raise NothingToRestore(f"no archive in {place} has messages to attach")
        segments = sum(self._segments(one) for one in coming)
        if segments > SEGMENTS_MAX:
            raise AttachConflict(
                f"the archives take {segments} segments of the log, and {SEGMENTS_MAX} can be left "
                "out at once: attach topic by topic, or `kvmq restore` them to a store of their own"
            )
        return coming

    def _segments(self, one: _ArchivePart) -> int:
        return -(-one.plan.bytes // self._handover.segment_size)

    # --- bringing it ---

    def _bring(
        self,
        coming: Sequence[_ArchivePart],
        found: Sequence[OpenedArchive],
        described: Mapping[str, ArchivedTopic],
        known: Mapping[str, TopicFacts],
        source_id: str,
        superseded: int,
    ) -> AttachReport:
        size = self._handover.segment_size
        names = sorted({name for one in coming for name in one.plan.topics})
        made = [name for name in names if name not in known]
        segments = sum(map(self._segments, coming))
        position, topic_id = self._handover.reserve(segments, len(made))
        topics = {
            name: replace(
                described[name], id=topic_id + i, since=position, key_history=(), key_id=None
            )
            for i, name in enumerate(made)
        }
        rows: list[ArchiveRow] = []
        base = position
        try:
            for number, one in enumerate(coming):
                self._at = number, len(coming)
                self._tell()
                mine = {n: topics.get(n, topic) for n, topic in one.plan.topics.items()}
                end = base + self._segments(one) * size
                rows.append(
                    self._publish(one._replace(plan=one.plan._replace(topics=mine)), base, end)
                )
                base = end
            self._take_in(rows, [topics[name] for name in made])
        except BaseException:
            with suppress(StoreError, OSError):
                self._intents.set_whole(False)
            self._publisher.withdraw(rows, self._own)
            raise
        finally:
            shutil.rmtree(self._made, ignore_errors=True)
        self._publisher.confirm(rows)
        self._intents.set_whole(False)
        messages = sum(row.messages for row in rows)
        return AttachReport(
            source_id=source_id, topics=names, made=made, archives=len(rows), messages=messages,
            raw_bytes=sum(row.raw_bytes for row in rows), bytes=sum(row.size for row in rows),
            position=position, end=base, superseded=superseded,
            left_out=sum(one.manifest.messages for one in found) - messages,
        )  # fmt: skip

    def _tell(self, size: int = 0) -> None:
        """Tells the progress, whose receiver may raise to end the attach; `size` is for a pace."""
        self._source.tell("attaching archives", *self._at)

    def _publish(self, one: _ArchivePart, base: int, end: int) -> ArchiveRow:
        """Writes an archive anew, and puts it into the store's folder."""
        said, keys = one.found.manifest, self._source.keys
        origin = ArchiveOrigin(
            store_id=self._handover.store_id.hex(), segments=((base, end),),
            retention_class=_class_of(said.retention_class),
        )  # fmt: skip
        self._files.make_dir(self._made)
        self._files.make_dir(self._store.path / FOLDER)
        path = self._made / f"{secrets.token_hex(8)}{SUFFIX}"
        made = rebase(
            one.found.archive, one.plan, base, origin, path, self._files, keys, self._tell
        )
        row = self._publisher.publish(made, "warm", self._own)
        self._files.remove(path)
        return row

    def _take_in(self, rows: Sequence[ArchiveRow], made: Sequence[ArchivedTopic]) -> None:
        by_number = {row.number: row for row in rows}
        kept = OpenArchives(lambda n: self._own_archive(by_number[n]), OPEN_BYTES)
        new = {number: partial(kept.get, number) for number in by_number}
        held = [h for number, opened in new.items() for h in contents(opened(), number).held]
        queues = dict.fromkeys((one.topic, one.queue) for one in held)
        heres = {queue: self._handover.held_ranges(*queue) for queue in queues}
        ranges = self._conflicts.attached_ranges(held, new, heres)
        ends: dict[Queue, int] = {}
        for one in ranges:
            end = heres[one.topic, one.queue][1]
            if one.last >= end:
                ends[one.topic, one.queue] = end
        arriving = [Arriving(row.number, row.first_position, encode_row(row), ()) for row in rows]
        topics = [TopicRow(topic.id, topic.name, fields_of(topic)) for topic in made]
        try:
            with self._handover.arrivals.lock:
                self._intents.set_whole(True)
                self._handover.take_in(arriving, ranges, ends, topics)
        except CallerError as e:
            raise AttachConflict(f"{e}; try again") from e

    def _own_archive(self, row: ArchiveRow) -> Archive:
        return open_lazily(self._own.source(row.key, row.size), keys=self._source.keys)


def _raise(_: str, error: PlaceError) -> None:
    raise error


def _class_of(name: str) -> str:
    """The class of an archive, as far as there is such a class."""
    try:
        return read_class(name).name
    except PolicyIllegal:
        return _EVER


def _described(
    found: Sequence[OpenedArchive], wanted: Collection[str] | None, place: Place
) -> dict[str, ArchivedTopic]:
    """The wanted topics (see `topics_of`), with room for all queues."""
    described = topics_of(found, wanted, place)
    queues: dict[str, int] = {}
    for one in found:
        for held in _wanted(one, described):
            queues[held.topic] = max(queues.get(held.topic, 0), held.queue + 1)
    return {name: with_room(topic, queues.get(name, 0)) for name, topic in described.items()}


def _wanted(one: OpenedArchive, described: Mapping[str, ArchivedTopic]) -> Iterator[OffsetRange]:
    """The ranges of the wanted topics in an archive, which is not opened if it has none."""
    mine = {
        topic.name
        for topic in one.manifest.topics
        if topic.name in described and topic.id == described[topic.name].id
    }
    if mine:
        yield from (held for held in ranges_of(one.archive, one.object.key) if held.topic in mine)
