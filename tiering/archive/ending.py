"""Ending: writes an archive's header, and everything behind its blocks.

The idea: blocks leave columns behind. Directory, filter, key index, position index and manifest are
made of them when the last block is written. It makes no difference whether one process wrote the
blocks from front to back, or many a part each.

Invariant: the same columns, topics and settings give the same bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import google_crc32c
import msgspec
import numpy as np

from kvstore.errors import CallerError
from kvstore.record import key_filter
from tiering.archive.blocks import TailColumns
from tiering.archive.coder import CodecName, Coder
from tiering.archive.columns.packed import I64
from tiering.archive.layout import (
    BLOCK_BYTES_DEFAULT,
    CRC,
    FOOTER_ROW,
    FORMAT_VERSION,
    HEADER,
    HEADER_COVERED,
    HEADER_MAGIC,
    TRAILER,
    TRAILER_COVERED,
    TRAILER_MAGIC,
    Section,
)
from tiering.archive.lookup import key_index, positions
from tiering.archive.lookup.directory import encode_directory
from tiering.archive.manifest import (
    STORE_ID_NONE,
    ArchivedTopic,
    Manifest,
    encode_manifest,
    topic_figures,
)
from tiering.keys.crypto import KeyProvider

BITS_A_KEY: Final = 10
BITS_A_MESSAGE: Final = 12
"""Bits of the filter for each message. With 12, directory, filter and fences stay below two bytes a
message. Of keys that are nowhere, about one in twenty costs a read of a small chunk of the key
index, and about one in 300 a read of a block.
"""


class Sink(Protocol):
    """The output of an archive; the caller closes it."""

    def write(self, data: bytes, /) -> object:
        """Takes the next bytes."""


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an archive's bytes. `level` None: the codec's default."""

    codec: CodecName = "zstd"
    level: int | None = None
    block_bytes: int = BLOCK_BYTES_DEFAULT
    keys: KeyProvider | None = None


class ArchiveOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of an archive's messages; see `Manifest`."""

    store_id: str = STORE_ID_NONE
    segments: tuple[tuple[int, int], ...] = ()
    retention_class: str = ""
    generation: int = 0


class ArchiveFile:
    """An archive being written. Making it writes the header, `write` appends blocks, and `end` adds
    the sections behind them. It counts its bytes.
    """

    def __init__(self, sink: Sink) -> None:
        self._write = sink.write
        self.at = 0
        head = HEADER.pack(HEADER_MAGIC, FORMAT_VERSION, 0, 0)[:HEADER_COVERED]
        self.write(head + CRC.pack(google_crc32c.value(head)))

    def write(self, data: bytes) -> None:
        """Appends the next bytes."""
        self._write(data)
        self.at += len(data)

    def end(
        self,
        settings: ArchiveSettings,
        origin: ArchiveOrigin,
        coder: Coder,
        topics: Sequence[ArchivedTopic],
        columns: TailColumns,
    ) -> Manifest:
        """Writes everything behind the blocks, from the blocks' columns and the topics by their
        numbers. Raises CallerError if two records have one position.
        """
        return _Ending(self, settings, origin, coder, topics, columns).write()


class _Ending:
    """Writes the sections; see `ArchiveFile.end`."""

    def __init__(
        self,
        file: ArchiveFile,
        settings: ArchiveSettings,
        origin: ArchiveOrigin,
        coder: Coder,
        topics: Sequence[ArchivedTopic],
        columns: TailColumns,
    ) -> None:
        self._file = file
        self._settings = settings
        self._origin = origin
        self._coder = coder
        self._topics = topics
        self._rows, self._groups, self._positions, self._digests, self._keyed = columns
        self._footer: list[bytes] = []

    def write(self) -> Manifest:
        manifest = self._manifest()
        fences: list[tuple[Section, bytes]] = []
        filtered = b""
        messages = len(self._positions)
        if messages:
            order = np.argsort(self._positions, kind="stable")
            rising = self._positions[order]
            if bool((rising[1:] == rising[:-1]).any()):
                raise CallerError("two records have the same position")
            if len(self._digests):
                pairs = self._pairs(order)
                section = self._chunks(Section.KEY_INDEX, key_index.encode_chunks(pairs))
                fences.append((Section.KEY_FENCES, key_index.encode_fences(len(pairs), *section)))
                distinct = (pairs >> 32).astype(np.uint32)
                distinct = distinct[np.concatenate(([True], distinct[1:] != distinct[:-1]))]
                filtered = key_filter.build(distinct, filter_bits(len(distinct), messages))
                del pairs, distinct
            starts = np.cumsum(self._rows[4]) - self._rows[4]
            chunks = positions.encode_chunks(rising, order, starts)
            section = self._chunks(Section.POSITION_INDEX, chunks)
            fences.append((Section.POSITION_FENCES, positions.encode_fences(messages, *section)))
        begin = self._file.at
        self._section(Section.MANIFEST, encode_manifest(manifest))
        ids = [topic.id for topic in self._topics]
        self._section(Section.DIRECTORY, encode_directory(ids, self._rows, self._groups))
        if filtered:
            self._section(Section.FILTER, filtered)
        for kind, payload in fences:
            self._section(kind, payload)
        footer = self._coder.encode(b"".join(self._footer))
        self._file.write(footer)
        end = TRAILER.pack(len(footer), self._file.at - begin, FORMAT_VERSION, 0, 0, TRAILER_MAGIC)
        covered = end[:TRAILER_COVERED]
        self._file.write(covered + CRC.pack(google_crc32c.value(covered)) + TRAILER_MAGIC)
        return manifest

    def _pairs(self, order: I64) -> I64:
        """Key digests, each with the rank of its message in the order of positions."""
        ranks = np.empty(len(order), np.uint32)
        ranks[order] = np.arange(len(order), dtype=np.uint32)
        return key_index.sort_pairs(self._digests, ranks[self._keyed])

    def _chunks(self, kind: Section, chunks: Iterable[tuple[int, bytes]]) -> tuple[I64, I64]:
        """Writes the chunks of a section; returns the first value and the size of each."""
        begin = self._file.at
        firsts, sizes = array("q"), array("q")
        for first, payload in chunks:
            part = self._coder.encode(payload)
            self._file.write(part)
            firsts.append(first)
            sizes.append(len(part))
        self._footer.append(FOOTER_ROW.pack(kind, begin, self._file.at - begin, len(sizes)))
        return np.frombuffer(firsts, np.int64), np.frombuffer(sizes, np.int64)

    def _section(self, kind: Section, payload: bytes) -> None:
        part = self._coder.encode(payload)
        self._footer.append(FOOTER_ROW.pack(kind, self._file.at, len(part), 1))
        self._file.write(part)

    def _manifest(self) -> Manifest:
        settings, origin, rows = self._settings, self._origin, self._rows
        some = len(self._positions) > 0
        return Manifest(
            store_id=origin.store_id,
            segments=origin.segments,
            retention_class=origin.retention_class,
            generation=origin.generation,
            codec=settings.codec,
            level=self._coder.level,
            block_bytes=settings.block_bytes,
            blocks=len(rows[0]),
            messages=len(self._positions),
            raw_bytes=int(rows[9].sum()),
            first_position=int(self._positions.min()) if some else 0,
            last_position=int(self._positions.max()) if some else 0,
            first_stored_at=int(rows[7].min()) if some else 0,
            last_stored_at=int(rows[8].max()) if some else 0,
            topics=topic_figures(self._topics, rows[0], rows[4], rows[9], rows[7], rows[8]),
        )


def filter_bits(keys: int, messages: int) -> int:
    """The bits of a filter for this many keys, however many keys a message has."""
    return min(BITS_A_KEY * keys, BITS_A_MESSAGE * messages)
