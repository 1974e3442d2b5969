"""How small and how fast the blocks of archives are: JSON-like messages of about 1 KB.

The idea: messages as an ordering system might send them, with the repetition such have and ids that
have none, are laid out as a log; what its blocks take is compared with the
codec over the whole log, as it lies. Time is that of this process alone.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import zstandard
from zlib_ng.zlib_ng import crc32

from bench.figure import Figure, Options
from kvstore.core.messages import StoredMessage
from kvstore.record.layout import CRC_MASK
from tests.reference.encode import encode_record
from tiering.archive.block import BlockGroup, GroupBlocks
from tiering.archive.block_writer import BlockRows, BlockSpan, EncodedGroup, cut, encode_blocks
from tiering.archive.coder import CodecName, Coder
from tiering.archive.columns.header_fields import OffsetRanges
from tiering.archive.columns.records import Fields, RecordBatch
from tiering.archive.layout import BLOCK_BYTES_DEFAULT

_SIZE_TARGETS = {"zstd": 0.9, "lz4": 1.0}
_ENCODE_TARGET = 80.0
_PULL_TARGET = 200_000.0
_CHUNK = 8 << 20
"""Bytes of records that are encoded together."""


Encoded = tuple[list[EncodedGroup], BlockRows]


def run_few(folder: Path, options: Options) -> list[Figure]:
    """8 topics, zstd: size, encoding, decoding."""
    return _run(options, 8, "zstd")


def run_many(folder: Path, options: Options) -> list[Figure]:
    """5,000 topics, zstd."""
    return _run(options, 5_000, "zstd")


def run_lz4(folder: Path, options: Options) -> list[Figure]:
    """8 topics, lz4."""
    return _run(options, 8, "lz4")


def _run(options: Options, topics: int, codec: CodecName) -> list[Figure]:
    topics = options.topics or topics
    records, rows = _log(options.messages or 72_000, topics)
    raw = b"".join(records)
    whole = (
        zstandard.ZstdCompressor(level=3).compress(raw)
        if codec == "zstd"
        else lz4.frame.compress(raw)
    )
    batch = RecordBatch.of_records(records)
    order = np.concatenate(list(rows.values()))
    batch = RecordBatch(batch.buffer, batch.starts[order], batch.sizes[order])
    encoded, spans, coder, seconds = _encode(batch, rows, codec)
    stored = sum(len(group.data) for groups, _ in encoded for group in groups)
    pulled = _timed(lambda: _pull(encoded, spans, coder))
    name = f"{topics:,} topics, {codec}"
    return [
        Figure(f"{name}: blocks / {codec} of the whole log", stored / len(whole), "",
               _SIZE_TARGETS[codec], "lower", f"{len(raw):,} B of records, {stored:,} stored"),
        Figure(f"{name}: encode", len(raw) / seconds / 1e6, "MB/s", _ENCODE_TARGET),
        Figure(f"{name}: decode to messages", len(records) / pulled, "msg/s", _PULL_TARGET),
    ]  # fmt: skip


def _encode(
    batch: RecordBatch, rows: dict[int, list[int]], codec: CodecName
) -> tuple[list[Encoded], list[BlockSpan], Coder, float]:
    started = time.process_time()
    fields = Fields(batch)
    coder = Coder(codec)
    spans: list[BlockSpan] = []
    at = 0
    for number, numbers in rows.items():
        found = cut(batch.sizes, at, at + len(numbers))
        spans += [BlockSpan(f"topic-{number}", 0, a, b, number) for a, b in found]
        at += len(numbers)
    encoded: list[Encoded] = []
    chunk: list[BlockSpan] = []
    size = 0
    for i, span in enumerate(spans):
        chunk.append(span)
        size += int(batch.sizes[span.start : span.stop].sum())
        if size >= _CHUNK or i == len(spans) - 1:
            encoded.append(encode_blocks(fields, chunk, coder, group_bytes=BLOCK_BYTES_DEFAULT))
            chunk, size = [], 0
    return encoded, spans, coder, time.process_time() - started


def _pull(encoded: list[Encoded], spans: list[BlockSpan], coder: Coder) -> None:
    begin = 0
    for groups, rows in encoded:
        at = 0
        for group in groups:
            mine = slice(at, at + group.blocks)
            named = spans[begin + at : begin + at + group.blocks]
            blocks = GroupBlocks(
                [span.topic for span in named],
                [0] * len(named),
                OffsetRanges(rows.messages[mine], rows.first_offset[mine], rows.last_offset[mine]),
            )
            found = BlockGroup(group.data, group.part_sizes, group.decoded_sizes, coder, blocks)
            for i in range(found.blocks):
                block = found.block(i)
                assert len(block.messages(0, block.count)) == rows.messages[at + i]
            at += group.blocks
        begin += at


def _timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _log(count: int, topics: int) -> tuple[list[bytes], dict[int, list[int]]]:
    """The records of a log, and the numbers of each topic's."""
    draw = random.Random(5)
    vocabulary = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(3, 10)))
        for _ in range(2_000)
    ]
    goods = [f"SKU-{draw.randrange(10**6):06d}" for _ in range(3_000)]
    records, position = [], 0
    rows: list[list[int]] = [[] for _ in range(topics)]
    for number in range(count):
        topic = draw.randrange(topics)
        now = 1_700_000_000_000 + number // 40
        body = json.dumps(_order(draw, topic, now, vocabulary, goods), separators=(",", ":"))
        unique = f"7F0000014BFBDFDE4650{now & 0xFFFFFFFF:08X}{number & 0xFFFF:04X}"
        properties = f"UNIQ_KEY\1{unique}\2KEYS\1o-{number}\2TAGS\1t{topic % 5}\2"
        records.append(_record(topic, len(rows[topic]), position, now, body, properties))
        rows[topic].append(number)
        position += len(records[-1])
    return records, {topic: part for topic, part in enumerate(rows) if part}


def _order(
    draw: random.Random, topic: int, now: int, vocabulary: list[str], goods: list[str]
) -> dict[str, Any]:
    def text(words: int) -> str:
        return " ".join(draw.choices(vocabulary, k=words))

    return {
        "event_id": f"{draw.getrandbits(128):032x}",
        "type": ("order.created", "order.paid", "cart.updated", "page.view")[topic % 4],
        "occurred_at": now,
        "customer": {"id": draw.randrange(200_000), "name": text(2).title(), "city": text(1)},
        "items": [
            {
                "sku": draw.choice(goods),
                "quantity": draw.randrange(1, 6),
                "price": round(draw.random() * 200, 2),
                "description": text(5),
            }
            for _ in range(draw.randrange(2, 6))
        ],
        "total": round(draw.random() * 900, 2),
        "source": f"web-frontend-{draw.randrange(8)}",
        "trace": f"{draw.getrandbits(64):016x}",
        "note": text(draw.randrange(4, 16)),
    }


def _record(topic: int, offset: int, position: int, now: int, body: str, properties: str) -> bytes:
    raw = body.encode()
    message = StoredMessage(
        topic=f"topic-{topic}",
        queue=0,
        offset=offset,
        position=position,
        size=0,
        body=raw,
        raw_properties=properties.encode(),
        flags=0,
        system_flags=0,
        born_at=now,
        stored_at=now,
        raw_born_host=b"\x7f\0\0\1\0\0\0\0",
        raw_store_host=b"\x7f\0\0\1\0\0\x2a\x9f",
        reconsume_times=0,
        prepared_position=0,
        body_crc=crc32(raw) & CRC_MASK,
    )
    return encode_record(message)
