"""Archives: what they take, how fast they are made and read, what they cost in memory.

The idea: orders and events of about 1 KB, as JSON with the repetition that such data has, put in
turn to the queues of few topics or of thousands. The raw segment is compressed whole by zstd and
lz4 as well, which is what an archive has to beat while each message stays readable by itself.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
import uuid
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

import lz4.frame
import numpy as np
import zstandard
from zlib_ng.zlib_ng import crc32

from bench.figure import Figure, Options
from kvstore.core.messages import StoredMessage
from kvstore.record.layout import CRC_MASK
from kvstore.record.properties import encode_properties
from tests.reference.encode import encode_record
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.block import Block
from tiering.archive.coder import CodecName
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveSettings, ArchiveWriter
from tiering.executor.segment_encoder import SegmentJob, TopicPlan, segment_task

_MESSAGES: Final = 100_000
_MANY_TOPICS: Final = 5_000
_FEW_TOPICS: Final = 8
_QUEUES: Final = 8
_CODECS: Final[tuple[tuple[CodecName, float], ...]] = (("zstd", 0.9), ("lz4", 1.0))
"""And what of the codec over the whole segment an archive may take."""
_NOW: Final = 1_767_323_045_680
_CITIES: Final = ("Berlin", "Hamburg", "Wien", "Zürich", "Paris", "Lyon", "Madrid", "Porto")
_STATES: Final = ("created", "paid", "packed", "shipped", "delivered", "returned")
_NOTES: Final = (
    "left at the door, rang twice; customer asked to call before delivery; gift wrap, no invoice "
    "in the parcel; second attempt tomorrow morning; leave with neighbour; fragile, keep upright"
)


class FileSource:
    """An archive in a file."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._file = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._file).st_size

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file, size, offset)

    def close(self) -> None:
        os.close(self._file)


def body_of(draw: random.Random, number: int) -> bytes:
    """One order."""
    customer = draw.randrange(20_000)
    lines = [
        {
            "sku": f"SKU-{draw.randrange(5000):06}", "name": f"Article {draw.randrange(5000)}",
            "quantity": draw.randint(1, 5), "price": draw.randrange(99, 49_999) / 100,
            "currency": "EUR", "discount": None,
        }
        for _ in range(draw.randint(2, 5))
    ]  # fmt: skip
    order = {
        "event": "order_changed", "version": 3, "orderId": f"ORD-{number:010}",
        "traceId": f"{draw.getrandbits(128):032x}", "customerId": f"C{customer:07}",
        "state": draw.choice(_STATES), "occurredAt": _NOW + number * 3 + draw.randrange(40),
        "shipTo": {
            "name": f"Customer {customer}", "street": f"Street {customer % 977} {customer % 61}",
            "city": draw.choice(_CITIES), "zip": f"{customer * 7 % 100_000:05}", "country": "DE",
        },
        "note": " ".join(draw.choices(_NOTES.split(), k=draw.randint(4, 16))), "lines": lines,
        "totals": {"net": draw.randrange(999, 99_999) / 100, "vat": 0.19, "shipping": 4.9},
    }  # fmt: skip
    return json.dumps(order, ensure_ascii=False, separators=(",", ":")).encode()


def records(messages: int, topics: int, queues: int) -> Iterator[tuple[int, int, bytes]]:
    """Topic, queue and record of each message of a log, in its order."""
    draw = random.Random(7)
    host = bytes((10, 0, 0, 7, 0, 0, 0x2A, 0x9F))
    process = uuid.UUID(int=draw.getrandbits(128)).hex[:16].upper()
    offsets: dict[tuple[int, int], int] = {}
    position = 0
    for number in range(messages):
        topic, queue = draw.randrange(topics), draw.randrange(queues)
        body = body_of(draw, number)
        offset = offsets[topic, queue] = offsets.get((topic, queue), 10_000) + 1
        stored_at = _NOW + number * 3
        properties = encode_properties(
            {
                "UNIQ_KEY": f"{process}{number * 3 + 77:08X}{number & 0xFFFF:08X}",
                "KEYS": f"ORD-{number:010} C{draw.randrange(20_000):07}",
                "TAGS": draw.choice(_STATES),
                "region": draw.choice(("eu", "us")),
            }
        )
        raw = encode_record(
            StoredMessage(
                f"orders-{topic:05}", queue, offset, position, 0, body, properties, 0, 0,
                stored_at - 1, stored_at, host, host, 0, 0, crc32(body) & CRC_MASK,
            )
        )  # fmt: skip
        yield topic, queue, raw
        position += len(raw)


class Log:
    """A segment in memory, and its records by queue."""

    def __init__(self, messages: int, topics: int, queues: int) -> None:
        places: dict[tuple[int, int], list[tuple[int, int]]] = {}
        parts, at = [], 0
        for topic, queue, raw in records(messages, topics, queues):
            places.setdefault((topic, queue), []).append((at, len(raw)))
            parts.append(raw)
            at += len(raw)
        self.messages = messages
        self.raw = b"".join(parts)
        self.queues = [
            (ArchivedTopic(name=f"orders-{topic:05}", id=topic + 1, queues=queues), queue,
             RecordBatch(self.raw, *np.array(places[topic, queue], np.int64).T))
            for topic, queue in sorted(places)
        ]  # fmt: skip

    def write(self, settings: ArchiveSettings) -> bytes:
        sink = BytesIO()
        writer = ArchiveWriter(sink, settings)
        for topic, queue, batch in self.queues:
            writer.add(topic, queue, batch)
        writer.finish()
        return sink.getvalue()


def run_size(folder: Path, options: Options) -> list[Figure]:
    """Size against zstd -3 and lz4 over the whole segment, and how fast archives are made."""
    found = []
    for topics in (options.topics,) if options.topics else (_FEW_TOPICS, _MANY_TOPICS):
        log = Log(options.messages or _MESSAGES, topics, options.queues or _QUEUES)
        whole = {
            "zstd": len(zstandard.ZstdCompressor(level=3).compress(log.raw)),
            "lz4": len(lz4.frame.compress(log.raw)),
        }
        name = f"{topics:,} topics"
        for codec, target in _CODECS:
            begin, cpu = time.perf_counter(), time.process_time()
            settings = ArchiveSettings(codec=codec)
            trained = time.perf_counter() - begin
            data = log.write(settings)
            seconds = time.perf_counter() - begin
            used = time.process_time() - cpu
            archive = _opened(folder, data)[0]
            sections = ", ".join(f"{k} {v:,}" for k, v in archive.section_sizes().items())
            found += [
                Figure(f"{name}: {codec} archive / {codec} of the whole",
                       len(data) / whole[codec], "", target, "lower",
                       f"{len(log.raw) / len(data):.2f}x; {sections}"),
                Figure(f"{name}: {codec} encoded", len(log.raw) / used / 1e6, "MB/s", 80.0,
                       note=f"per core; {trained / seconds:.0%} is training"),
                _regrouped(folder, log, name, codec),
            ]  # fmt: skip
    return found


def _regrouped(folder: Path, log: Log, name: str, codec: CodecName) -> Figure:
    """All that becomes of a segment: checked, encoded, written, read back and compared."""
    path = folder / "segment"
    path.write_bytes(log.raw)
    topics = {topic.name: TopicPlan(topic, "all") for topic, _, _ in log.queues}
    job = SegmentJob(
        number=0, path=str(path), base=0, topics=topics, settings=ArchiveSettings(codec=codec),
        store_id="0" * 32, folder=str(folder),
    )  # fmt: skip
    cpu = time.process_time()
    made = segment_task(job)
    used = time.process_time() - cpu
    assert made.messages == log.messages
    return Figure(f"{name}: {codec} segment to proven archive", len(log.raw) / used / 1e6, "MB/s",
                  note="per core; checked, encoded, written, read back and compared")  # fmt: skip


def _opened(folder: Path, data: bytes) -> tuple[Archive, FileSource]:
    path = folder / "archive"
    path.write_bytes(data)
    source = FileSource(path)
    return Archive.open(source), source


def run_read(folder: Path, options: Options) -> list[Figure]:
    """Cold and cached gets, sequential decoding, finding by key, and memory."""
    topics, queues = options.topics or _FEW_TOPICS, options.queues or _QUEUES
    log = Log(options.messages or _MESSAGES, topics, queues)
    archive, source = _opened(folder, log.write(ArchiveSettings()))
    draw = random.Random(3)
    wanted = []
    for _ in range(2000):
        topic, queue, batch = draw.choice(log.queues)
        wanted.append((topic.id, queue, 10_001 + draw.randrange(len(batch.starts))))
    cold = []
    for topic_id, queue, offset in wanted:
        begin = time.perf_counter()
        number = archive.block_at(topic_id, queue, offset)
        assert number is not None
        block = archive.read_block(number)
        row = int(np.searchsorted(block.offsets, offset))
        (message,) = block.messages(row, row + 1)
        cold.append(time.perf_counter() - begin)
        assert message.offset == offset
    kept = dict(enumerate(_blocks(archive)))
    for block in kept.values():
        block.records()
    begin = time.perf_counter()
    for topic_id, queue, offset in wanted * 5:
        number = archive.block_at(topic_id, queue, offset)
        assert number is not None
        block = kept[number]
        row = int(np.searchsorted(block.offsets, offset))
        block.messages(row, row + 1, check_crc=False)
    cached = 5 * len(wanted) / (time.perf_counter() - begin)
    kept.clear()
    begin = time.perf_counter()
    count = 0
    for block in _blocks(archive):
        count += len(block.messages(0, block.count))
    sequential = count / (time.perf_counter() - begin)
    parts = (archive.directory, archive.filter, archive.key_fences, archive.position_fences)
    memory = sum(part.memory_bytes for part in parts if part is not None)
    return [
        Figure("cold get, p99", float(np.percentile(cold, 99)) * 1000, "ms", 5.0, "lower",
               f"median {float(np.median(cold)) * 1000:.2f}, the file in the page cache"),
        Figure("cached get", cached, "1/s", 20_000),
        Figure("sequential decoding", sequential, "msg/s", 200_000),
        Figure("directory, filter, fences in memory", memory / log.messages, "B/msg", 2.0, "lower"),
        *_by_key(archive, log),
        *_opening(source, log),
    ]  # fmt: skip


def _blocks(archive: Archive) -> Iterator[Block]:
    """All blocks, group by group."""
    for group in archive.groups():
        yield from map(group.block, range(group.blocks))


def _by_key(archive: Archive, log: Log) -> list[Figure]:
    from kvstore.record.hashes import key_hash

    names = [f"nowhere-{number}".encode() for number in range(20_000)]
    begin = time.perf_counter()
    for name in names:
        low = key_hash(b"orders-00001", name)
        list(archive.find(low, low))
    absent = len(names) / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for number in range(0, log.messages, max(log.messages // 1000, 1)):
        low = key_hash(b"orders-00001", f"ORD-{number:010}".encode())
        list(archive.find(low & ~0xFF, low | 0xFF))
    present = 1000 / (time.perf_counter() - begin)
    return [
        Figure("keys that are not there", absent, "1/s"),
        Figure("keys that are there, to position, block and row", present, "1/s"),
    ]


def _opening(source: FileSource, log: Log) -> list[Figure]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    opened = [open_lazily(source) for _ in range(10_000)]
    seconds = time.perf_counter() - begin
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    topic, queue, _ = log.queues[0]
    return [
        Figure("opening 10,000", seconds, "s", 2.0, "lower",
               f"{grown / 10_000:.1f} KiB of memory each"),
        Figure("the first get after it", _first_get(opened[99], topic.id, queue) * 1000, "ms"),
    ]  # fmt: skip


def _first_get(archive: Archive, topic_id: int, queue: int) -> float:
    begin = time.perf_counter()
    number = archive.block_at(topic_id, queue, 10_001)
    assert number is not None
    archive.read_block(number)
    return time.perf_counter() - begin
