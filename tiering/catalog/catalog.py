"""The catalog: rows of the `archives` family, one an archive, and how an archive makes its row.

The idea: a row answers the questions about an archive that must not cost opening it: its place, its
ranges of the log and of time, its sizes, its state. Everything else is in the archive. So ten
thousand archives are known in a fraction of a second, and none is touched before it is read. An
archive states all that its row and its part of the index need: the directory has every block's
queue, offsets and times; the manifest has the topics and the ranges of the log.

Invariants: a row can be read by every later version (a field that came later has a default); an
unreadable row is a `FormatError` with the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kvstore.errors import ArchiveDamaged, FormatError
from kvstore.index.archived import ArchivedRange, ArchivedTopic, Contents
from kvstore.index.keys import archive_key, read_archive_key
from tiering.archive.archive_reader import Archive
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic as TopicOfArchive
from tiering.archive.manifest import Manifest, ManifestHead
from tiering.archive.tail import Source
from tiering.keys.crypto import KeyProvider
from tiering.places.objects import jobs_folder
from tiering.places.settings import is_url

Tier = Literal["warm", "cold"]
State = Literal["live", "retired"]
FOLDER: Final = "archive"
"""The folder within a store's folder for archives of its own."""
TOPICS_MAX: Final = 64
"""A row has the topics' ids up to this many: ten thousand rows should be small, too."""
_ID: Final = 4


class ArchiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One archive. Positions are bytes of the log, times ms since the epoch, sizes bytes.

    `place` is the path (relative to the store's folder, if it is inside) or URL of the archive's
    place, `key` its name there; `size` and `crc` (crc32c) are of the whole object. `segments` are
    the archive's ranges of the log. `topics` are the ids of its topics, 4 bytes each; None: there
    are more than `TOPICS_MAX`, or the row is of a version that did not note them. `state`
    "retired": nothing names the archive any more, and its object is deleted at `delete_at`; None:
    at once, and overwritten first if it is a file, since an erasure replaced the archive.
    """

    number: int
    place: str
    key: str
    tier: Tier
    size: int
    crc: int
    first_position: int
    last_position: int
    first_stored_at: int
    last_stored_at: int
    messages: int
    raw_bytes: int
    segments: list[tuple[int, int]] = []
    retention_class: str = ""
    codec: str = ""
    level: int = 0
    generation: int = 0
    is_encrypted: bool = False
    made_at: int = 0
    topics: bytes | None = None
    state: State = "live"
    delete_at: int | None = None

    @property
    def name(self) -> str:
        """The archive's name in errors."""
        return f"{self.place.rstrip('/')}/{self.key}"

    @property
    def catalog_key(self) -> bytes:
        """The row's key in `archives`."""
        return archive_key(self.first_position, self.number)


class ArchiveInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An archive as `Worker.archives` lists it; sizes are bytes, positions of the log, times ms."""

    key: str
    place: str
    tier: Tier
    messages: int
    raw_bytes: int
    bytes: int
    first_position: int
    last_position: int
    first_stored_at: int
    last_stored_at: int
    retention_class: str
    generation: int


def info_of(row: ArchiveRow) -> ArchiveInfo:
    """A row in the form for callers."""
    return ArchiveInfo(
        key=row.key, place=row.place, tier=row.tier, messages=row.messages,
        raw_bytes=row.raw_bytes, bytes=row.size, first_position=row.first_position,
        last_position=row.last_position, first_stored_at=row.first_stored_at,
        last_stored_at=row.last_stored_at, retention_class=row.retention_class,
        generation=row.generation,
    )  # fmt: skip


def is_own(row: ArchiveRow, store_id: bytes) -> bool:
    """Whether the store may remove an archive's object. An archive that was restored without being
    adopted belongs to another store.
    """
    is_inside = not is_url(row.place) and not Path(row.place).is_absolute()
    store = store_id.hex()
    return is_inside or row.key.startswith((f"{store}/", jobs_folder(store)))


def kept_as(place: str, folder: Path) -> str:
    """The catalog's name of a place. A place inside the store's folder is named relative to the
    folder, so that a store that is moved takes its archives along.
    """
    if is_url(place):
        return place
    path = Path(place).absolute()
    inside = folder.absolute()
    return str(path.relative_to(inside)) if path.is_relative_to(inside) else str(path)


def pack_topics(ids: Iterable[int]) -> bytes:
    """Ids of topics in the form of a row, in order."""
    return b"".join(number.to_bytes(_ID, "big") for number in sorted(set(ids)))


def read_topics(packed: bytes) -> list[int]:
    """The inverse of `pack_topics`."""
    return [int.from_bytes(packed[at : at + _ID], "big") for at in range(0, len(packed), _ID)]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ArchiveRow).decode


def encode_row(row: ArchiveRow) -> bytes:
    """The stored form of a row."""
    return _encode(row)


def decode_row(key: bytes, value: bytes) -> ArchiveRow:
    """The inverse of `encode_row`; `FormatError` if it is no row of this key."""
    number = read_archive_key(key)[1] if len(key) == len(archive_key(0, 0)) else -1
    try:
        row = _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise FormatError(f"the catalog's row of archive {number} can't be read: {e}") from e
    if row.number != number:
        raise FormatError(f"the catalog has archive {row.number} under the key of {number}")
    return row


def decode_rows(rows: Iterable[tuple[bytes, bytes]]) -> list[ArchiveRow]:
    """The rows of a catalog."""
    return [decode_row(key, value) for key, value in rows]


# --- from an archive ---


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
        manifest.last_stored_at,
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
        "takes_delays": topic.takes_delays,
        "dedup_window": topic.dedup_window,
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


def disagreements(row: ArchiveRow, manifest: ManifestHead) -> list[str]:
    """Where an archive's row and its manifest say different things: it is another archive then. Ids
    of stores tell nothing: a store that was restored has archives that other stores made.
    """
    each = (
        (name, getattr(row, name), getattr(manifest, name))
        for name in (
            "messages", "raw_bytes", "first_position", "last_position", "first_stored_at",
            "last_stored_at", "retention_class", "generation",
        )
    )  # fmt: skip
    return [
        f"the catalog says {n} {said}, its manifest {has}" for n, said, has in each if said != has
    ]


def open_archive(row: ArchiveRow, source: Source, keys: KeyProvider | None = None) -> Archive:
    """Opens the archive of a row. `ArchiveDamaged` also if the object is another archive: messages
    that it lacks would look as if they had been erased.
    """
    opened = Archive.open(source, keys=keys)
    for told in disagreements(row, opened.manifest_head()):
        raise ArchiveDamaged(
            f"{row.name} is another archive: {told}; bring the right one back, or drop it", row.name
        )
    return opened
