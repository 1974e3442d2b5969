"""Writer: records of one queue after the other -> one archive, written from front to back.

The idea: blocks go out as they are full; of each message only a position and its keys' digests are
kept, in plain arrays, until the indexes are made of them at the end. Some megabytes of records are
encoded together, whatever queues they are of, because a queue may have but a few.

Invariants: nothing is written twice or out of order; memory is some megabytes of records and a few
dozen bytes a message; the same records and settings give the same bytes, however `add` was given
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import google_crc32c
import msgspec
import numpy as np

from kvstore.errors import CallerError
from tiering.archive import filter as key_filter
from tiering.archive import keyindex, positions
from tiering.archive.coder import LEVEL_DEFAULT, CodecName, Coder
from tiering.archive.crypto import KeyProvider
from tiering.archive.directory import encode_directory
from tiering.archive.encoding import BlockRows, BlockSpan, EncodedGroup, cut, encode_blocks
from tiering.archive.integers import bounds_of
from tiering.archive.keyed import Levels, digests_in_columns, digests_of, is_taken_back
from tiering.archive.layout import (
    BLOCK_BYTES_DEFAULT,
    CRC,
    FOOTER_ROW,
    FORMAT_VERSION,
    HEADER,
    HEADER_COVERED,
    HEADER_MAGIC,
    NO_QUEUE,
    TRAILER,
    TRAILER_COVERED,
    TRAILER_MAGIC,
    Section,
)
from tiering.archive.manifest import (
    STORE_ID_NONE,
    ArchivedTopic,
    Manifest,
    encode_manifest,
    figured,
)
from tiering.archive.packed import I64
from tiering.archive.records import Fields, RecordBatch

BATCH_BYTES: Final = 8 << 20
"""Raw bytes that are encoded together, about."""
MESSAGES_MAX: Final = (1 << 32) - 1
"""A message's rank takes 32 bits in memory."""
_ROW_COLUMNS: Final = 2 + len(BlockRows._fields)
_GROUP_COLUMNS: Final = 7


class Sink(Protocol):
    """What an archive is written to; whoever made it closes it."""

    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How an archive is written."""

    codec: CodecName = "zstd"
    level: int = LEVEL_DEFAULT
    block_bytes: int = BLOCK_BYTES_DEFAULT
    dictionary: bytes | None = None
    keys: KeyProvider | None = None


class ArchiveOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where what an archive holds comes from; see `Manifest`."""

    store_id: str = STORE_ID_NONE
    segments: tuple[tuple[int, int], ...] = ()
    retention_class: str = ""
    generation: int = 0


class _Queue(NamedTuple):
    """Records of a queue that are not encoded yet; later ones may follow unless `is_whole`."""

    topic_number: int
    queue: int
    records: RecordBatch


class ArchiveWriter:
    """Writes one archive to `sink`: `add` in the order of topic name and queue, then `finish`."""

    def __init__(
        self, sink: Sink, settings: ArchiveSettings | None = None,
        origin: ArchiveOrigin | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings = settings or ArchiveSettings()
        self._origin = origin or ArchiveOrigin()
        self._coder = Coder(settings.codec, settings.level, settings.dictionary)
        self._file = _Counted(sink)
        self._topics: list[_Topic] = []
        self._waiting: list[_Queue] = []
        self._waiting_bytes = 0
        self._rows = [array("q") for _ in range(_ROW_COLUMNS)]
        self._groups = [array("q") for _ in range(_GROUP_COLUMNS)]
        self._positions = array("q")
        self._digests = array("I")
        self._keyed = array("I")
        self._last: tuple[int, int, int] | None = None
        head = HEADER.pack(HEADER_MAGIC, FORMAT_VERSION, 0, 0)[:HEADER_COVERED]
        self._file.write(head + CRC.pack(google_crc32c.value(head)))

    @property
    def messages(self) -> int:
        """How many messages are written, or encoded soon."""
        return len(self._positions) + sum(len(some.records.starts) for some in self._waiting)

    def add(self, topic: ArchivedTopic, queue: int, records: RecordBatch) -> None:
        """Take records of one queue; offsets rise, also over several calls for the same queue.

        Raises CallerError for what comes out of order.
        """
        if not len(records.starts):
            return
        number = self._number(topic)
        if self._waiting or self._last is not None:
            before = self._waiting[-1][:2] if self._waiting else (self._last or (-1, -1))[:2]
            if (number, queue) < before:
                raise CallerError(f"queue {queue} of {topic.name!r} comes after a later one")
        total = int(records.sizes.sum())
        if self._waiting_bytes + total < BATCH_BYTES:
            self._waiting.append(_Queue(number, queue, records))
            self._waiting_bytes += total
            return
        ends = np.cumsum(records.sizes)
        at = 0
        while at < len(ends):
            done = int(ends[at - 1]) if at else 0
            room = max(BATCH_BYTES - self._waiting_bytes, 0)
            stop = max(int(np.searchsorted(ends, done + room, side="right")), at + 1)
            some = records.rows(at, stop)
            self._waiting.append(_Queue(number, queue, some))
            self._waiting_bytes += int(ends[stop - 1]) - done
            at = stop
            if self._waiting_bytes >= BATCH_BYTES:
                self._encode(is_last=False)

    def finish(self) -> Manifest:
        """Write what is left, and everything behind the blocks."""
        self._encode(is_last=True)
        return _Ending(self).write()

    def _number(self, topic: ArchivedTopic) -> int:
        if not self._topics or self._topics[-1].topic.name != topic.name:
            if self._topics and self._topics[-1].topic.name > topic.name:
                raise CallerError(f"topic {topic.name!r} comes after {self._topics[-1].topic.name}")
            keys = self._settings.keys
            key = keys.key_for_writing(topic.name) if keys is not None else None
            if key is not None:
                topic = msgspec.structs.replace(topic, key_id=key.key_id)
            elif topic.key_id is not None:
                topic = msgspec.structs.replace(topic, key_id=None)
            self._topics.append(_Topic(topic, key.secret if key is not None else None))
        return len(self._topics) - 1

    # --- blocks ---

    def _encode(self, is_last: bool) -> None:
        """Encode and write what waits, but for a last block that may still grow."""
        if not self._waiting:
            return
        fields = Fields(RecordBatch.join([some.records for some in self._waiting]))
        spans: list[BlockSpan] = []
        at = begin = 0
        left = fields.count
        for (number, queue), count in self._stretches():
            topic = self._topics[number]
            if queue == NO_QUEUE:
                fields.offset[at : at + count] = fields.position[at : at + count]
            pieces = cut(fields.sizes, at, at + count, self._settings.block_bytes)
            begin, at = at, at + count
            if at == fields.count and not is_last:
                left = pieces.pop()[0]
            spans += [
                BlockSpan(topic.topic.name, queue, start, stop, number, topic.secret)
                for start, stop in pieces
            ]
        self._check_order(fields.offsets)
        most = self._settings.block_bytes
        done = fields.part(0, left)
        self._write_blocks(spans, *encode_blocks(done, spans, self._coder, group_bytes=most))
        self._note(done, spans)
        number, queue, _ = self._waiting[-1]
        is_begun = left > begin
        self._last = (number, queue, int(fields.offsets[left - 1])) if is_begun else None
        self._waiting.clear()
        self._waiting_bytes = 0
        if left < fields.count:
            rest = fields.rest(left)
            self._waiting.append(_Queue(number, queue, rest))
            self._waiting_bytes = int(rest.sizes.sum())

    def _stretches(self) -> Iterable[tuple[tuple[int, int], int]]:
        """The queues that wait, each with how many records."""
        counts: dict[tuple[int, int], int] = {}
        for some in self._waiting:
            key = some.topic_number, some.queue
            counts[key] = counts.get(key, 0) + len(some.records.starts)
        return counts.items()

    def _check_order(self, offsets: I64) -> None:
        stretches = list(self._stretches())
        wrong = np.zeros(len(offsets), np.bool_)
        wrong[1:] = offsets[1:] <= offsets[:-1]
        begins = bounds_of([count for _, count in stretches])[:-1]
        wrong[begins] = False
        last = self._last
        wrong[0] = last is not None and last[:2] == stretches[0][0] and offsets[0] <= last[2]
        if bool(wrong.any()):
            at = int(np.searchsorted(begins, np.argmax(wrong), side="right")) - 1
            number, queue = stretches[at][0]
            name = self._topics[number].topic.name
            raise CallerError(f"the offsets of queue {queue} of {name!r} do not rise")

    def _write_blocks(
        self, spans: Sequence[BlockSpan], groups: Sequence[EncodedGroup], rows: BlockRows
    ) -> None:
        for group in groups:
            self._file.write(group.data)
            values = (group.blocks, *group.part_sizes, *group.decoded_sizes)
            for column, value in zip(self._groups, values, strict=True):
                column.append(value)
        self._rows[0].extend([span.topic_number for span in spans])
        self._rows[1].extend([span.queue for span in spans])
        for column, found in zip(self._rows[2:], rows, strict=True):
            column.frombytes(found.tobytes())

    # --- what the indexes are made of ---

    def _note(self, fields: Fields, spans: Sequence[BlockSpan]) -> None:
        base = len(self._positions)
        if base + fields.count > MESSAGES_MAX:
            raise CallerError(f"an archive holds at most {MESSAGES_MAX:,} messages")
        self._positions.frombytes(fields.positions.tobytes())
        if not spans or all(self._topics[span.topic_number].levels.none for span in spans):
            return
        each = [self._topics[span.topic_number].levels for span in spans]
        if any(found.changes for found in each):
            stretches = [fields.positions[span.start : span.stop] for span in spans]
            levels = np.concatenate([a.of(b) for a, b in zip(each, stretches, strict=True)])
        else:
            counts = [span.stop - span.start for span in spans]
            levels = np.repeat(np.array([found.only for found in each], np.int64), counts)
        for span in spans:
            if span.queue == NO_QUEUE:
                some = slice(span.start, span.stop)
                levels[some][is_taken_back(fields.system_flags[some])] = 0
        if fields.even is not None:
            digests, rows = digests_in_columns(fields.even.columns, levels)
            self._digests.frombytes(digests.astype(np.uint32).tobytes())
            self._keyed.frombytes((rows + base).astype(np.uint32).tobytes())
            return
        for row, level in enumerate(levels.tolist()):
            for digest in digests_of(fields.property_list[row], level):
                self._digests.append(digest)
                self._keyed.append(base + row)


class _Topic:
    """A topic that is being written."""

    def __init__(self, topic: ArchivedTopic, secret: bytes | None) -> None:
        self.topic = topic
        self.secret = secret
        self.levels = Levels(topic)


class _Counted:
    """A sink that knows how much it was given."""

    def __init__(self, sink: Sink) -> None:
        self._write = sink.write
        self.at = 0

    def write(self, data: bytes) -> None:
        self._write(data)
        self.at += len(data)


class _Ending:
    """Everything of an archive behind its blocks."""

    def __init__(self, writer: ArchiveWriter) -> None:
        self._file = writer._file
        self._coder = writer._coder
        self._settings = writer._settings
        self._origin = writer._origin
        self._topics = writer._topics
        self._rows = [np.frombuffer(column, np.int64) for column in writer._rows]
        self._groups = [np.frombuffer(column, np.int64) for column in writer._groups]
        self._positions = np.frombuffer(writer._positions, np.int64)
        self._digests = np.frombuffer(writer._digests, np.uint32)
        self._keyed = np.frombuffer(writer._keyed, np.uint32)
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
                section = self._chunks(Section.KEY_INDEX, keyindex.encode_chunks(pairs))
                fences.append((Section.KEY_FENCES, keyindex.encode_fences(len(pairs), *section)))
                distinct = (pairs >> 32).astype(np.uint32)
                distinct = distinct[np.concatenate(([True], distinct[1:] != distinct[:-1]))]
                filtered = key_filter.build(distinct, messages)
                del pairs, distinct
            starts = np.cumsum(self._rows[4]) - self._rows[4]
            chunks = positions.encode_chunks(rising, order, starts)
            section = self._chunks(Section.POSITION_INDEX, chunks)
            fences.append((Section.POSITION_FENCES, positions.encode_fences(messages, *section)))
        begin = self._file.at
        self._section(Section.MANIFEST, encode_manifest(manifest))
        if self._settings.dictionary:
            self._section(Section.DICTIONARY, self._settings.dictionary)
        ids = [topic.topic.id for topic in self._topics]
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
        return keyindex.sort_pairs(self._digests, ranks[self._keyed])

    def _chunks(self, kind: Section, chunks: Iterable[tuple[int, bytes]]) -> tuple[I64, I64]:
        """Write the chunks of a section; returns the first value and the size of each."""
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
            level=settings.level,
            block_bytes=settings.block_bytes,
            blocks=len(rows[0]),
            messages=len(self._positions),
            raw_bytes=int(rows[9].sum()),
            first_position=int(self._positions.min()) if some else 0,
            last_position=int(self._positions.max()) if some else 0,
            first_stored_at=int(rows[7].min()) if some else 0,
            last_stored_at=int(rows[8].max()) if some else 0,
            topics=figured(
                [one.topic for one in self._topics], rows[0], rows[4], rows[9], rows[7], rows[8]
            ),
        )
