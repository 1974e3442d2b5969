"""Source place: a place with archives that a caller names, which need not be any of the store's.

The idea: the caller gives the place's address and settings; those that are left out are the
store's. Each archive there is opened, and describes itself; of many only the last few stay
open.

Invariant: the place is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from kvstore.config import StoreConfig
from kvstore.errors import TopicNotFound
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.catalog.archive_pool import OpenArchives
from tiering.catalog.bucket import ArchiveObject, objects_of, open_several
from tiering.keys.crypto import KeyProvider
from tiering.keys.key_file import provider_of
from tiering.places.place import Place, open_place
from tiering.places.settings import is_remote
from tiering.worker.store_protocols import Progress

OPEN_BYTES: Final = 64 << 20
"""Bytes of memory for the archives that stay open."""


def no_progress(step: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """A place whose archives are restored or attached: `store_id` (hex) is the store that is asked
    for there, None if there is only one; `keys` are those of encrypted topics. `config` is the
    target store's, and `tell` reports progress.
    """

    place: Place
    store_id: str | None
    keys: KeyProvider | None
    config: StoreConfig
    tell: Progress

    def objects(self) -> tuple[str, list[ArchiveObject]]:
        """The id of the store, in hex, and its archives' objects."""
        return objects_of(self.place, self.store_id)


def open_source(
    where: str | Path,
    options: Mapping[str, object] | None,
    keys: KeyProvider | None,
    config: StoreConfig,
    progress: Progress | None,
) -> SourceContext:
    """Opens a place. `options` are its settings, and `store_id`; those that are not given are the
    store's, and so are the keys. Raises PlaceError.
    """
    access, files = config.archives, config.files
    given = dict(options or {})
    store_id = given.pop("store_id", None)
    if is_remote(str(where)):
        given = {**access.options, **given}
    return SourceContext(
        open_place(where, options=given, files=files, clock=config.clock),
        None if store_id is None else str(store_id),
        provider_of(access.keys, files) if keys is None else keys,
        config,
        progress or no_progress,
    )


class OpenedArchive(NamedTuple):
    """An archive's object, and its manifest."""

    object: ArchiveObject
    manifest: Manifest
    open: Callable[[], Archive]

    @property
    def archive(self) -> Archive:
        """The archive; opened again if it was closed meanwhile. Raises as its opening does."""
        return self.open()


def open_all(
    source: SourceContext,
    objects: Sequence[ArchiveObject],
    damaged: Callable[[ArchiveObject, Exception], None] | None = None,
) -> list[OpenedArchive]:
    """Opens some archives (`bucket.open_several`); the last ones asked for stay open."""

    def open_one(number: int) -> Archive:
        one = objects[number]
        return open_lazily(source.place.source(one.key, one.size), keys=source.keys)

    kept = OpenArchives(open_one, OPEN_BYTES)

    def look(number: int) -> OpenedArchive:
        archive = kept.get(number)
        assert archive.directory is not None, "it is decoded, or raises"
        return OpenedArchive(objects[number], archive.manifest, partial(kept.get, number))

    tell_of = None if damaged is None else lambda number, e: damaged(objects[number], e)
    return open_several(range(len(objects)), look, tell_of, tell=source.tell)


def topics_of(
    found: Sequence[OpenedArchive], wanted: Collection[str] | None, place: Place
) -> dict[str, ArchivedTopic]:
    """The wanted topics (None: all), as the newest archive describes each. Of several of one name
    (it was deleted and made again) the last one counts. Raises `TopicNotFound`.
    """
    known: dict[str, ArchivedTopic] = {}
    for one in sorted(found, key=lambda f: f.manifest.last_position):
        for topic in one.manifest.topics:
            before = known.get(topic.name)
            if before is None or topic.id >= before.id:
                known[topic.name] = topic
    missing = sorted(set(wanted or ()) - known.keys())
    if missing:
        raise TopicNotFound(
            f"no archive in {place.name} has messages of {', '.join(missing)}; there are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return {name: topic for name, topic in known.items() if wanted is None or name in wanted}


def with_room(topic: ArchivedTopic, queues: int) -> ArchivedTopic:
    """A topic with so many queues at least: a task that made an archive knew its own alone."""
    if queues <= (topic.read_queues or topic.queues):
        return topic
    return replace(topic, queues=queues, read_queues=queues)
