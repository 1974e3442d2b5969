"""Contents: what archives state about themselves, to make an index or a catalog anew.

The idea: the directory has every block's queue, offsets and times; the manifest has the topics and
the ranges of the log. A folder of archives is therefore a catalog, except for archives that a merge
has superseded: of two with the same ranges and the same class the one of the higher generation is
current.

Invariant: an archive of another store is left alone, and so is an unreadable one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from kvstore.errors import ArchiveDamaged, FormatTooNew, FormatTooOld
from kvstore.index.archived import ArchivedRange, ArchivedTopic, Contents
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import STORE_ID_NONE, Manifest
from tiering.archive.manifest import ArchivedTopic as TopicOfArchive
from tiering.catalog.catalog import TOPICS_MAX, ArchiveRow, Tier, encode_row, pack_topics
from tiering.errors import PlaceError
from tiering.places.objects import is_of_jobs
from tiering.places.place import Place

T = TypeVar("T")
FOLDER: Final = "archive"
"""The folder within a store's folder for archives of its own."""

_log = logging.getLogger("kvmq")


def contents(archive: Archive, number: int) -> Contents:
    """The contents of an archive."""
    rows = archive.rows()
    columns = (
        rows.topic_ids[rows.topics],
        rows.queues,
        rows.first_offset,
        rows.last_offset,
        rows.least_stored_at,
    )
    blocks = zip(*(column.tolist() for column in columns), strict=True)
    manifest = archive.manifest
    return Contents(
        manifest.segments,
        [ArchivedTopic(topic.id, topic.name, fields_of(topic)) for topic in manifest.topics],
        [
            ArchivedRange(topic, queue, first, last, stored_at, number)
            for topic, queue, first, last, stored_at in blocks
            if queue != NO_QUEUE
        ],
    )


def fields_of(topic: TopicOfArchive) -> dict[str, Any]:
    """The fields of a topic's row, from the topic's description in an archive."""
    return {
        "read_queues": topic.read_queues or topic.queues,
        "write_queues": topic.queues,
        "kind": topic.kind,
        "key_index": topic.key_index,
        "key_history": topic.key_history,
        "retention": topic.retention,
        "since": topic.since,
        "attributes": topic.attributes,
        "compress_above": topic.compress_above,
        "compression": topic.compression,
    }


def row_of(
    manifest: Manifest,
    *,
    number: int,
    place: str,
    key: str,
    tier: Tier,
    size: int,
    crc: int,
    made_at: int = 0,
) -> ArchiveRow:
    """The catalog's row of an archive, from the archive's own statements and its place."""
    few = len(manifest.topics) <= TOPICS_MAX
    return ArchiveRow(
        number=number,
        place=place,
        key=key,
        tier=tier,
        size=size,
        crc=crc,
        first_position=manifest.first_position,
        last_position=manifest.last_position,
        first_stored_at=manifest.first_stored_at,
        last_stored_at=manifest.last_stored_at,
        messages=manifest.messages,
        raw_bytes=manifest.raw_bytes,
        segments=list(manifest.segments),
        retention_class=manifest.retention_class,
        codec=manifest.codec,
        level=manifest.level,
        generation=manifest.generation,
        is_encrypted=any(topic.key_id is not None for topic in manifest.topics),
        made_at=made_at,
        topics=pack_topics(topic.id for topic in manifest.topics) if few else None,
    )


def not_superseded(found: Iterable[T], manifest_of: Callable[[T], Manifest]) -> Iterator[T]:
    """Archives, higher generations first, without those that a merge has superseded: archives
    before them cover all their ranges of the log, in the same class.
    """
    covered: dict[str, set[tuple[int, int]]] = {}
    for one in found:
        manifest = manifest_of(one)
        mine = covered.setdefault(manifest.retention_class, set())
        if manifest.segments and mine.issuperset(manifest.segments):
            continue
        mine.update(manifest.segments)
        yield one


def _own_ids(found: Sequence[Manifest], store_id: str) -> set[str]:
    """The ids under which a store has made archives, as the archives in its folder show them."""
    ids = {manifest.store_id for manifest in found}
    if store_id in ids:
        return {store_id, STORE_ID_NONE}
    # The store lost its index, and has a new id. If it was once restored, there are archives of the
    # store before it as well. Its log went on behind them, so no range belongs to both.
    makers: dict[int, set[str]] = {}
    for manifest in found:
        for first, _ in manifest.segments:
            makers.setdefault(first, set()).add(manifest.store_id)
    is_one = len(ids) == 1 or all(len(mine) == 1 for mine in makers.values())
    return ids if is_one else {store_id, STORE_ID_NONE}


def find_again(place: Place, store_id: str, number: int) -> list[tuple[bytes, bytes]]:
    """Rows of the archives in a store's own folder, numbered from `number` on."""
    found: list[tuple[str, int, Manifest]] = []
    try:
        for info in place.list():
            if is_of_jobs(info.key):
                continue
            try:
                manifest = open_lazily(place.source(info.key, info.size)).manifest
            except (ArchiveDamaged, FormatTooNew, FormatTooOld) as e:
                _log.error("%s/%s is left alone: %s", place.name, info.key, str(e))
                continue
            found.append((info.key, info.size, manifest))
    except PlaceError as e:
        _log.warning("no archives are found again in %s: %s", place.name, str(e))
    own = _own_ids([manifest for _, _, manifest in found], store_id)
    for key, _, manifest in found:
        if manifest.store_id not in own:
            _log.warning(
                "%s/%s is of store %s, and left alone; `kvmq restore` makes a store of it",
                place.name, key, manifest.store_id,
            )  # fmt: skip
    found = [one for one in found if one[2].store_id in own]
    found.sort(key=lambda one: (-one[2].generation, one[2].first_position, one[0]))
    rows = []
    for key, size, manifest in not_superseded(found, lambda one: one[2]):
        row = row_of(manifest, number=number, place=FOLDER, key=key, tier="warm", size=size, crc=0)
        rows.append((row.catalog_key, encode_row(row)))
        number += 1
    return rows
