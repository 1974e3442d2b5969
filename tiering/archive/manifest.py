"""Manifest: an archive's description of itself, in JSON that any program can read.

The idea: catalog, `kvmq dump` and `kvmq restore` need to know the contents of an archive and its
topics; the directory adds each topic's figures. The manifest does not say when or where it was
made, so that the same input and settings give the same bytes.

Invariants: sorted keys and no spaces; a field that came later has a default; fields of a later
version are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kvstore.errors import FormatError
from tiering.archive.columns.packed import I64
from tiering.archive.directory import DirectoryRows
from tiering.archive.layout import BLOCK_BYTES_DEFAULT, FORMAT_VERSION

STORE_ID_NONE = "0" * 32
T = TypeVar("T")


class _TopicFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a topic that are known before anything is written."""

    name: str
    id: int
    kind: str = "normal"
    queues: int = 1
    read_queues: int | None = None
    since: int = 0
    key_index: str = "all"
    key_history: tuple[tuple[int, str], ...] = ()
    retention: dict[str, Any] = {}
    attributes: dict[str, str] = {}
    compress_above: int | None = None
    compression: str | None = None
    takes_delays: bool = True
    dedup_window: float | None = None
    key_id: str | None = None


class ArchivedTopic(_TopicFields, frozen=True, kw_only=True):
    """A topic as it was when the archive was written; `restore` creates the topic from it.

    `id` is the store's. `key_index` says which keys of a message are in the key index ("off",
    "unique", "all"); `key_history` has its values, each with the log position from which it held,
    where it ever changed. `retention` holds the fields of `kvstore.config.Retention`. The writer
    fills in the topic's figures, its times, and the id of its encryption key.
    """

    messages: int = 0
    raw_bytes: int = 0
    first_stored_at: int = 0
    last_stored_at: int = 0


Shares = dict[str, tuple[tuple[int, int], ...]]
"""Names of shares, and the ranges of the log of which they are."""


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a manifest that the catalog has as well, and that tell one archive from
    another.
    """

    retention_class: str = ""
    generation: int = 0
    messages: int = 0
    raw_bytes: int = 0
    first_position: int = 0
    last_position: int = 0
    first_stored_at: int = 0
    last_stored_at: int = 0


class Manifest(ManifestHead, frozen=True, kw_only=True):
    """The contents of an archive. Times are ms since the epoch, positions bytes in the log.

    `segments` are the ranges of the log, first position to end, whose messages the archive holds;
    `raw_bytes` is the size of their records. `generation` is 0 for an archive made from segments.
    After a merge it is one more than the highest of the merged archives. `ancestors` are the ids of
    other stores that made archives which were merged into this one: the store was restored from
    theirs, or lost its index and has a new id.

    `shares` says which archives this one supersedes, see `shares_of`; empty: those of its class.
    """

    format: int = FORMAT_VERSION
    store_id: str = STORE_ID_NONE
    ancestors: tuple[str, ...] = ()
    segments: tuple[tuple[int, int], ...] = ()
    shares: Shares = {}
    codec: str = "zstd"
    level: int = 3
    block_bytes: int = BLOCK_BYTES_DEFAULT
    blocks: int = 0
    topics: tuple[ArchivedTopic, ...] = ()


class _StoredTopic(_TopicFields, frozen=True, kw_only=True, omit_defaults=True):
    """A topic as it is stored."""


_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(_TopicFields)
    if field.default is not msgspec.NODEFAULT
}


class _StoredManifest(Manifest, frozen=True, kw_only=True):
    """A manifest as it is stored."""

    ancestors: tuple[str, ...] | UnsetType = UNSET  # type: ignore[assignment]
    shares: Shares | UnsetType = UNSET  # type: ignore[assignment]
    topics: tuple[_StoredTopic, ...] = ()  # type: ignore[assignment]


def encode_manifest(manifest: Manifest) -> bytes:
    """The stored form of a manifest: without the figures of topics, which the directory has."""
    topics = tuple(map(_with_defaults, manifest.topics))
    stored = msgspec.convert(
        replace(manifest, topics=topics), _StoredManifest, from_attributes=True
    )
    if not manifest.ancestors:
        stored = replace(stored, ancestors=UNSET)
    if not manifest.shares:
        stored = replace(stored, shares=UNSET)
    return msgspec.json.encode(stored, order="sorted")


def shares_of(manifest: Manifest) -> Shares:
    """The shares of the log's ranges that an archive has, by name.

    The messages that a segment gives to one archive are a share, named by the class of that
    archive. Whatever is made of an archive later has its shares; a topic that is parted from it has
    shares of its own. So of two archives with the same share one is made of the other.
    """
    return manifest.shares or {manifest.retention_class: manifest.segments}


def joined_shares(
    every: Sequence[Manifest], retention_class: str, part: int | None = None
) -> Shares:
    """The shares of an archive of a class that is made of others; `part` is the id of the topic
    that is parted from them, if one is.
    """
    found: dict[str, set[tuple[int, int]]] = {}
    for said in every:
        for name, ranges in shares_of(said).items():
            own = name if part is None else f"{name}/{part}"
            found.setdefault(own, set()).update(ranges)
    joined = {name: tuple(sorted(ranges)) for name, ranges in sorted(found.items())}
    return {} if joined.keys() == {retention_class} else joined


def _with_defaults(topic: ArchivedTopic) -> ArchivedTopic:
    """A copy of the topic, with the default objects themselves where its values equal them. The
    encoder leaves out defaults by identity, which a text from another process does not have.
    """
    same = {name: value for name, value in _DEFAULTS.items() if getattr(topic, name) == value}
    return replace(topic, **same)


def decode_manifest(data: bytes) -> Manifest:
    """The inverse of `encode_manifest`; raises FormatError. The figures of topics are missing: see
    `with_figures`.
    """
    return _decoded(data, Manifest)


def decode_head(data: bytes) -> ManifestHead:
    """A manifest without all that takes long to decode, as its topics. Raises FormatError."""
    return _decoded(data, ManifestHead)


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"a manifest can't be read: {error}") from None


def with_figures(manifest: Manifest, rows: DirectoryRows) -> Manifest:
    """A manifest with the figures of its topics, from the directory; FormatError if the directory's
    topics are others.
    """
    if len(manifest.topics) != len(rows.topic_ids):
        raise FormatError("manifest and directory do not have the same topics")
    topics = topic_figures(
        manifest.topics, rows.topics, rows.messages, rows.raw_bytes,
        rows.least_stored_at, rows.greatest_stored_at,
    )  # fmt: skip
    return replace(manifest, topics=topics)


def topic_figures(
    topics: Sequence[ArchivedTopic],
    topic_of: I64,
    messages: I64,
    raw_bytes: I64,
    least_stored_at: I64,
    greatest_stored_at: I64,
) -> tuple[ArchivedTopic, ...]:
    """The topics, each with the figures of its blocks. The columns have one row a block; `topic_of`
    has the number of its topic. These numbers rise, and each topic has a block.
    """
    if not topics:
        return ()
    begins = np.searchsorted(topic_of, np.arange(len(topics)))
    figures = zip(
        topics,
        np.add.reduceat(messages, begins).tolist(),
        np.add.reduceat(raw_bytes, begins).tolist(),
        np.minimum.reduceat(least_stored_at, begins).tolist(),
        np.maximum.reduceat(greatest_stored_at, begins).tolist(),
        strict=True,
    )
    return tuple(
        replace(topic, messages=a, raw_bytes=b, first_stored_at=c, last_stored_at=d)
        for topic, a, b, c, d in figures
    )
