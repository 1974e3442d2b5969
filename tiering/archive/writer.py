"""Writer: records of one queue after the other -> one archive, written from front to back.

The idea: a group of blocks is written as soon as it is full (`block_writer`). The blocks leave
columns behind. Directory, filter, key index, position index and manifest are made of these when the
last block is written. It makes no difference whether one process wrote the blocks from front to
back, or many a part each (`pieces`).

Invariants: nothing is written twice or out of order; memory is some megabytes of records, the sorts
of `tail_columns`, and the directory and the filter, which take two bytes a message; the same
records and settings give the same bytes, however `add` was given them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Final, Protocol, TypeVar

import google_crc32c
import msgspec
import numpy as np

from kvstore.errors import CallerError
from kvstore.files import Files, LocalFiles, Scratch
from kvstore.record.key_filter import FilterBuilder
from tiering.archive.block_writer import BlockWriter, TopicToWrite
from tiering.archive.coder import CodecName, Coder
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import RecordBatch
from tiering.archive.directory import encode_directory
from tiering.archive.external_sort import ExternalSort, MakeScratch
from tiering.archive.indexes import (
    CHUNK,
    U64,
    encode_key_chunks,
    encode_key_fences,
    encode_position_chunks,
    encode_position_fences,
)
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
from tiering.archive.manifest import (
    STORE_ID_NONE,
    ArchivedTopic,
    Manifest,
    Shares,
    encode_manifest,
    topic_figures,
)
from tiering.archive.tail_columns import ArchiveColumns
from tiering.keys.crypto import KeyProvider

BITS_A_KEY: Final = 10
BITS_A_MESSAGE: Final = 12
"""Bits of the filter for each message. With 12, directory, filter and fences stay below two bytes a
message. Of keys that are nowhere, about one in twenty costs a read of a small chunk of the key
index, and about one in 300 a read of a block.
"""


_MESSAGES: Final = 4
"""The column of a block's messages."""


def temporary() -> Scratch:
    """A scratch file of a writer whose output is no file: in the folder for temporary files."""
    return LocalFiles().scratch(Path(gettempdir()))


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
    ancestors: tuple[str, ...] = ()
    segments: tuple[tuple[int, int], ...] = ()
    shares: Shares = {}
    retention_class: str = ""
    generation: int = 0


class ArchiveFile:
    """An archive being written. Making it writes the header, `write` appends blocks, and `end` adds
    the sections behind them. It counts its bytes.
    """

    def __init__(
        self, sink: Sink, settings: ArchiveSettings, origin: ArchiveOrigin, scratch: MakeScratch
    ) -> None:
        self._sink = sink
        self._settings = settings
        self._origin = origin
        self.coder = Coder(settings.codec, settings.level)
        self.columns = ArchiveColumns(scratch)
        self._at = 0
        self._footer: list[bytes] = []
        head = HEADER.pack(HEADER_MAGIC, FORMAT_VERSION, 0, 0)[:HEADER_COVERED]
        self.write(head + CRC.pack(google_crc32c.value(head)))

    def write(self, data: bytes) -> None:
        """Appends the next bytes."""
        self._sink.write(data)
        self._at += len(data)

    def end(self, topics: Sequence[ArchivedTopic]) -> Manifest:
        """Writes everything behind the blocks, from their `columns` and the topics by their
        numbers. Raises CallerError if two records have one position.
        """
        columns = self.columns
        blocks = columns.blocks
        manifest = self._manifest(topics, blocks.rows)
        fences: list[tuple[Section, bytes]] = []
        filtered = b""
        if columns.messages:
            pairs = columns.key_pairs()
            if pairs.rows:
                digests = _distinct_digests(pairs.sorted())
                built = FilterBuilder(digests, filter_bits(digests, columns.messages))
                chunks = encode_key_chunks(_filtered(pairs, built), pairs.rows)
                section = self._chunks(Section.KEY_INDEX, chunks)
                fences.append((Section.KEY_FENCES, encode_key_fences(pairs.rows, *section)))
                filtered = built.payload()
            starts = np.cumsum(blocks.rows[_MESSAGES]) - blocks.rows[_MESSAGES]
            chunks = encode_position_chunks(columns.by_position(), starts)
            section = self._chunks(Section.POSITION_INDEX, chunks)
            payload = encode_position_fences(columns.messages, *section)
            fences.append((Section.POSITION_FENCES, payload))
        begin = self._at
        self._section(Section.MANIFEST, encode_manifest(manifest))
        ids = [topic.id for topic in topics]
        self._section(Section.DIRECTORY, encode_directory(ids, blocks.rows, blocks.groups))
        if filtered:
            self._section(Section.FILTER, filtered)
        for kind, payload in fences:
            self._section(kind, payload)
        footer = self.coder.encode(b"".join(self._footer))
        self.write(footer)
        end = TRAILER.pack(len(footer), self._at - begin, FORMAT_VERSION, 0, 0, TRAILER_MAGIC)
        covered = end[:TRAILER_COVERED]
        self.write(covered + CRC.pack(google_crc32c.value(covered)) + TRAILER_MAGIC)
        return manifest

    def _chunks(self, kind: Section, chunks: Iterable[tuple[int, bytes]]) -> tuple[I64, I64]:
        """Writes the chunks of a section; returns the first value and the size of each."""
        begin = self._at
        firsts, sizes = array("q"), array("q")
        for first, payload in chunks:
            part = self.coder.encode(payload)
            self.write(part)
            firsts.append(first)
            sizes.append(len(part))
        self._footer.append(FOOTER_ROW.pack(kind, begin, self._at - begin, len(sizes)))
        return np.frombuffer(firsts, np.int64), np.frombuffer(sizes, np.int64)

    def _section(self, kind: Section, payload: bytes) -> None:
        part = self.coder.encode(payload)
        self._footer.append(FOOTER_ROW.pack(kind, self._at, len(part), 1))
        self.write(part)

    def _manifest(self, topics: Sequence[ArchivedTopic], rows: Sequence[I64]) -> Manifest:
        settings, origin, columns = self._settings, self._origin, self.columns
        some = columns.messages > 0
        return Manifest(
            store_id=origin.store_id,
            ancestors=origin.ancestors,
            segments=origin.segments,
            shares=origin.shares,
            retention_class=origin.retention_class,
            generation=origin.generation,
            codec=settings.codec,
            level=self.coder.level,
            block_bytes=settings.block_bytes,
            blocks=len(rows[0]),
            messages=columns.messages,
            raw_bytes=int(rows[9].sum()),
            first_position=columns.first_position,
            last_position=columns.last_position,
            first_stored_at=int(rows[7].min()) if some else 0,
            last_stored_at=int(rows[8].max()) if some else 0,
            topics=topic_figures(topics, rows[0], rows[4], rows[9], rows[7], rows[8]),
        )


def _distinct_digests(pairs: Iterable[U64]) -> int:
    """The number of different digests of pairs, which rise."""
    count, before = 0, -1
    for some in pairs:
        digests = some >> np.uint64(32)
        count += int(digests[0] != before) + int(np.count_nonzero(digests[1:] != digests[:-1]))
        before = int(digests[-1])
    return count


def _filtered(pairs: ExternalSort, built: FilterBuilder) -> Iterator[U64]:
    """The pairs, some chunks at a time, whose digests are added to a filter on the way."""
    for some in pairs.sorted(multiple_of=CHUNK):
        built.add((some >> np.uint64(32)).astype(np.uint32))
        yield some


def filter_bits(keys: int, messages: int) -> int:
    """The bits of a filter for this many keys, however many keys a message has."""
    return min(BITS_A_KEY * keys, BITS_A_MESSAGE * messages)


class ArchiveWriter:
    """Writes one archive to `sink`: `add` in the order of topic name and queue, then `finish`."""

    def __init__(
        self, sink: Sink, settings: ArchiveSettings | None = None,
        origin: ArchiveOrigin | None = None, scratch: MakeScratch = temporary,
    ) -> None:  # fmt: skip
        settings = settings or ArchiveSettings()
        self._keys = settings.keys
        self._topics: list[TopicToWrite] = []
        self._file = ArchiveFile(sink, settings, origin or ArchiveOrigin(), scratch)
        self._blocks = BlockWriter(
            self._file.write, self._file.columns.add, self._file.coder, settings.block_bytes,
            self._topics,
        )  # fmt: skip

    def add(self, topic: ArchivedTopic, queue: int, records: RecordBatch) -> None:
        """Takes records of one queue; offsets rise, also over several calls for the same queue.

        Raises CallerError for records out of order.
        """
        if len(records.starts):
            self._blocks.add(self._number(topic), queue, records)

    def finish(self) -> Manifest:
        """Writes the rest, and everything behind the blocks."""
        self._blocks.flush()
        return self._file.end([one.topic for one in self._topics])

    def _number(self, topic: ArchivedTopic) -> int:
        if not self._topics or self._topics[-1].topic.name != topic.name:
            if self._topics and self._topics[-1].topic.name > topic.name:
                raise CallerError(f"topic {topic.name!r} comes after {self._topics[-1].topic.name}")
            self._topics.append(TopicToWrite(topic, self._keys))
        return len(self._topics) - 1


class WrittenArchive(msgspec.Struct, frozen=True, kw_only=True):
    """An archive in the file at `path`; `crc` is the crc32c of all its bytes."""

    path: Path
    size: int
    crc: int
    manifest: Manifest


class _Finishing(Protocol):
    def finish(self) -> Manifest: ...


W = TypeVar("W", bound=_Finishing)


def write_archive(
    path: Path,
    files: Files,
    writer_to: Callable[[Sink, MakeScratch], W],
    fill: Callable[[W], Iterable[object]],
) -> WrittenArchive | None:
    """Writes an archive to a file, which is there whole or not at all.

    `writer_to` makes the writer of a sink, which sorts in scratch files of the file's folder.
    `fill` adds the records to the writer; whenever it yields, the bytes so far go to the file.
    Returns None, without a file, if no message was added.
    """
    sink = _Buffered()
    manifest: list[Manifest] = []

    def chunks() -> Iterator[bytes]:
        for _ in fill(writer):
            yield from sink.taken()
        manifest.append(writer.finish())
        yield from sink.taken()

    with scratches(files, path.parent) as scratch:
        writer = writer_to(sink, scratch)
        files.write_new(path, chunks(), replace=True)
    if not manifest[0].messages:
        files.remove(path)
        return None
    return WrittenArchive(path=path, size=sink.size, crc=sink.crc, manifest=manifest[0])


@contextmanager
def scratches(files: Files, folder: Path) -> Iterator[MakeScratch]:
    """Makes scratch files in a folder, and closes them at the end."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(files.scratch(folder)))


class _Buffered:
    """A sink that keeps its bytes until they are taken, and knows their number and crc32c."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0
        self.crc = 0

    def write(self, data: bytes) -> None:
        """Takes the next bytes."""
        self._chunks.append(data)
        self.size += len(data)
        self.crc = google_crc32c.extend(self.crc, data)

    def taken(self) -> list[bytes]:
        """The bytes that came since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks
