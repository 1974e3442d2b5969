"""Restores a store from archives alone.

The idea: objects are named by store, position and number, and each describes itself, so a place is
a catalog. An archive is superseded and left out if a newer generation has its shares of the log. An
archive that is wanted whole is attached where it is, or copied. One that is wanted in part is
written anew, with that part alone, into the target's own folder. The store itself is founded by
kvstore, on plain data.

Invariants:

- The source is only read.
- The target has no byte of topics and times that were not asked for, and names no archive that has
  one.
- A damaged archive is reported and costs itself alone.
- A restore that fails leaves the target as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from math import gcd
from pathlib import Path
from typing import Any

import msgspec

from kvstore.config import StoreConfig
from kvstore.errors import (
    ConfigError,
    KeyDestroyed,
    KeyMissing,
)
from kvstore.files import local_path
from kvstore.index.archived import ArchivedRange, ArchivedTopic
from kvstore.opening.restoring import Restored, found_store
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.manifest import ArchivedTopic as DescribedTopic
from tiering.archive.manifest import Manifest
from tiering.catalog.bucket import AT_ONCE, DAMAGE, ArchiveObject, newest
from tiering.catalog.catalog import (
    FOLDER,
    ArchiveRow,
    Tier,
    contents,
    encode_row,
    fields_of,
    row_of,
)
from tiering.catalog.overlaps import split_overlaps
from tiering.catalog.pipeline import go_on, pipelined
from tiering.errors import NothingToRestore, TargetNotEmpty
from tiering.keys.crypto import KeyProvider
from tiering.merge.rewrite import KeptMessages, rewrite
from tiering.operations.source_place import (
    OpenedArchive,
    SourceContext,
    open_all,
    open_source,
    topics_of,
    with_room,
)
from tiering.places.failures import typed
from tiering.places.objects import object_key
from tiering.places.place import open_place
from tiering.places.publish import fetch
from tiering.places.settings import is_remote
from tiering.worker.store_protocols import Progress


class RestoreProblem(msgspec.Struct, frozen=True):
    """An archive that was restored only in part, or not at all, and the reason."""

    archive: str
    reason: str


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore. `attached` archives are read where they are, `copied` and
    `rewritten` ones are in the target; `superseded` ones have a newer generation, `left_out` ones
    nothing that was asked for. `messages`, `raw_bytes` and `bytes` are those of the archives the
    store has now; the log goes on at `position`.

    `unreadable` names encrypted topics that can't be read with the given keys, with the reason;
    archives that are attached or copied hold them all the same, for a process that opens the store
    with the key.
    """

    store_id: str
    source_id: str
    topics: list[str]
    attached: int = 0
    copied: int = 0
    rewritten: int = 0
    superseded: int = 0
    left_out: int = 0
    messages: int = 0
    raw_bytes: int = 0
    bytes: int = 0
    position: int = 0
    unreadable: dict[str, str] = {}
    problems: list[RestoreProblem] = []


def restore(
    source: str | Path,
    target: str | Path,
    *,
    topics: Collection[str] | None = None,
    until: int | None = None,
    keys: KeyProvider | None = None,
    options: Mapping[str, object] | None = None,
    copy: bool = False,
    take_over: bool = False,
    config: StoreConfig | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Makes a store at `target`, a folder that is empty or not there, of the archives in a place.

    `topics` restores those alone; `until`, in ms, leaves out messages that were stored later.
    `options` are settings of the place, and `store_id` (hex) where several stores have archives
    there; `keys` are those of encrypted topics. Options and keys that are not given are taken from
    `config.archives`. `copy` takes the archives along; else the store reads them where they are,
    and never changes them. The store has an id of its own. With `take_over` it goes on under the
    old one, and its worker will remove archives that are not needed any more: only for a store that
    is gone for good. Groups and their offsets are in no archive.

    >>> tiering.restore("s3://bucket/prefix", "data", topics=["orders"])  # doctest: +SKIP

    Raises `TargetNotEmpty`, `NothingToRestore`, `StoresAmbiguous`, `TopicNotFound`, `PlaceError`.
    """
    settings = config if config is not None else StoreConfig()
    folder = local_path(target)
    with typed(folder):
        found = open_source(source, options, keys, settings, progress)
        was_there = folder.exists()
        if was_there and (not folder.is_dir() or any(folder.iterdir())):
            raise TargetNotEmpty(
                f"{folder} is not an empty folder; a store is restored to a new one"
            )
        source_id, objects = found.objects()
        wanted = KeptMessages(None if topics is None else frozenset(topics), until)
        one = _Restore(_Wish(found, source_id, folder, wanted, copy, take_over))
        try:
            return one.run(objects, settings, is_given=config is not None)
        except BaseException:
            for path in folder.iterdir() if folder.exists() else ():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if folder.exists() and not was_there:
                folder.rmdir()
            raise


@dataclass(frozen=True, slots=True)
class _Wish:
    """All that one restore is asked for; `source_id` is the id of the archives' store, in hex."""

    source: SourceContext
    source_id: str
    folder: Path
    wanted: KeptMessages
    copy: bool
    take_over: bool


class _Restore:
    """One restore."""

    def __init__(self, wish: _Wish) -> None:
        self._wish = wish
        self._source = wish.source
        self._place = wish.source.place
        self._files = wish.source.config.files
        self._tier: Tier = "cold" if is_remote(self._place.name) else "warm"
        self._problems: list[RestoreProblem] = []
        self._unreadable: dict[str, str] = {}
        self._rows: list[ArchiveRow] = []
        self._held: list[ArchivedRange] = []
        self._taken: dict[int, Callable[[], Archive]] = {}
        self._counts = {"attached": 0, "copied": 0, "rewritten": 0, "left_out": 0}

    def run(
        self, objects: Sequence[ArchiveObject], config: StoreConfig, *, is_given: bool
    ) -> RestoreReport:
        """See `restore`; `is_given`: the segment size is the caller's."""
        every = open_all(self._source, objects, self._damaged)
        found = newest(every)
        if not is_given:
            config = _sized(config, [f.manifest for f in every])
        described = topics_of(found, self._wish.wanted.topics, self._place)
        if not found:
            why = self._problems[0].reason if self._problems else "there are none"
            raise NothingToRestore(f"no archive in {self._place.name} can be read: {why}")
        with closing(pipelined(AT_ONCE, go_on, found, lambda one, _: one.archive)) as each:
            for number, (one, opened) in enumerate(each):
                self._source.tell("restoring archives", number, len(found))
                try:
                    self._add(one, opened())
                except DAMAGE as e:
                    self._damaged(one.object, e)
        topics, held = self._topics(described)
        size = config.segment_size
        ends = [end for f in every for _, end in f.manifest.segments]
        restored = Restored(
            store_id=bytes.fromhex(self._wish.source_id) if self._wish.take_over else None,
            position=max([*ends, *(o.position + size for o in objects)]),
            stored_at=max((row.last_stored_at for row in self._rows), default=0),
            next_topic=max((t.id for f in every for t in f.manifest.topics), default=0) + 1,
            next_archive=max(o.number for o in objects) + 1,
            topics=topics,
            held=held,
            rows=[(row.catalog_key, encode_row(row)) for row in self._rows],
        )
        store_id = found_store(self._wish.folder, restored, config)
        return RestoreReport(
            store_id=store_id.hex(),
            source_id=self._wish.source_id,
            topics=sorted(topic.name for topic in topics),
            superseded=len(every) - len(found),
            messages=sum(row.messages for row in self._rows),
            raw_bytes=sum(row.raw_bytes for row in self._rows),
            bytes=sum(row.size for row in self._rows),
            position=-(-restored.position // size) * size,
            unreadable=dict(sorted(self._unreadable.items())),
            problems=self._problems,
            **self._counts,
        )

    def _damaged(self, one: ArchiveObject, error: Exception) -> None:
        self._problems.append(RestoreProblem(f"{self._place.name}/{one.key}", str(error)))

    def _add(self, one: OpenedArchive, archive: Archive) -> None:
        """Adds an archive, or the part of it that is wanted, to the store."""
        wish, keys = self._wish, self._source.keys
        share = wish.wanted.share(one.manifest)
        if share == 0:
            self._counts["left_out"] += 1
            return
        self._note_unreadable(one.manifest)
        if share == 1 and not wish.copy:
            done = "attached"
            place, key, size, crc = self._place.name, one.object.key, one.object.size, 0
            opener = one.open
        else:
            key = object_key(
                bytes.fromhex(wish.source_id), one.object.position, one.object.number,
                one.manifest.retention_class,
            )  # fmt: skip
            place, path = FOLDER, wish.folder / FOLDER / key
            self._files.make_dir(path.parent)
            if share == 1:
                done = "copied"
                crc = fetch(self._place.source(one.object.key, one.object.size), path, self._files)
            else:
                lost: list[str] = []
                written = rewrite(archive, wish.wanted, path, self._files, keys, lost)
                name = f"{self._place.name}/{one.object.key}"
                self._problems += [RestoreProblem(name, reason) for reason in dict.fromkeys(lost)]
                if written is None:
                    self._counts["left_out"] += 1
                    return
                done = "rewritten"
                crc = written.crc
            own = open_place(
                wish.folder / FOLDER, files=self._files, clock=self._source.config.clock
            )
            size = own.size(key)
            opener = partial(open_lazily, own.source(key, size), keys=keys)
            archive = opener()
        number = one.object.number
        tier: Tier = self._tier if place != FOLDER else "warm"
        self._held += contents(archive, number).held
        self._counts[done] += 1
        self._taken[number] = opener
        self._rows.append(
            row_of(
                archive.manifest, number=number, place=place, key=key, tier=tier, size=size, crc=crc
            )
        )

    def _note_unreadable(self, manifest: Manifest) -> None:
        """Notes the topics that can't be read."""
        for topic in manifest.topics:
            if topic.key_id is None or not self._wish.wanted.has_topic(topic.name):
                continue
            if self._source.keys is None:
                why = f"it is encrypted with key {topic.key_id}, and no keys were given"
                self._unreadable[topic.name] = why
                continue
            try:
                self._source.keys.key_for_reading(topic.name, topic.key_id)
            except (KeyMissing, KeyDestroyed) as e:
                self._unreadable[topic.name] = str(e)

    def _topics(
        self, described: Mapping[str, DescribedTopic]
    ) -> tuple[list[ArchivedTopic], list[ArchivedRange]]:
        """The topics, with room for all queues, and what is held of them."""
        ids = {topic.id for topic in described.values()}
        mine = [held for held in self._held if held.topic in ids]
        queues: dict[int, int] = {}
        for held in mine:
            queues[held.topic] = max(queues.get(held.topic, 0), held.queue + 1)
        wide = (with_room(topic, queues.get(topic.id, 0)) for topic in described.values())
        topics = [ArchivedTopic(topic.id, topic.name, fields_of(topic)) for topic in wide]
        return topics, split_overlaps(mine, lambda number: self._taken[number]())


def _sized(config: StoreConfig, manifests: Sequence[Manifest]) -> StoreConfig:
    """The settings with the segment size that the archives' ranges of the log show, if they do."""
    size = gcd(*(at for m in manifests for segment in m.segments for at in segment))
    changed: dict[str, Any] = {"segment_size": size}
    try:
        return msgspec.structs.replace(config, **changed)
    except ConfigError:
        return config
