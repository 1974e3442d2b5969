"""A peer of the archive format: the same messages as Parquet with zstd, and what each takes.

The idea: messages sorted as an archive sorts them, by topic, queue and offset, every field of their
records in a column of its own. Row groups of an archive's block let a reader fetch one message by
one ranged read, as an archive does; the footer, which a reader needs first, has a row for each
column of each of them.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.archives import FileSource, Log
from bench.figure import Figure, Options
from kvstore.core.messages import decode
from tiering.archive.archive_reader import Archive
from tiering.archive.layout import BLOCK_BYTES_DEFAULT
from tiering.archive.writer import ArchiveSettings

_MESSAGES: Final = 60_000
_TOPICS: Final = (8, 5_000)
_QUEUES: Final = 8
_PROPERTIES: Final = ("UNIQ_KEY", "KEYS", "TAGS", "region")
_COLUMNS: Final = (
    "topic", "queue", "offset", "position", "born_at", "stored_at", "body", *_PROPERTIES,
)  # fmt: skip
_INDEXES: Final = ("filter", "key_index", "key_fences", "position_index", "position_fences")


def run(folder: Path, options: Options) -> list[Figure]:
    """Bytes of the same messages as an archive and as Parquet, and what a reader needs first."""
    found = []
    for topics in (options.topics,) if options.topics else _TOPICS:
        log = Log(options.messages or _MESSAGES, topics, options.queues or _QUEUES)
        found += _compared(folder, log, f"{topics:,} topics")
    return found


def _compared(folder: Path, log: Log, name: str) -> list[Figure]:
    archive = log.write(ArchiveSettings())
    path = folder / "archive"
    path.write_bytes(archive)
    sizes = Archive.open(FileSource(path)).section_sizes()
    indexes = sum(sizes.get(section, 0) for section in _INDEXES)
    table = _table(log)
    rows = max(BLOCK_BYTES_DEFAULT * log.messages // len(log.raw), 1)
    large, small = _parquet(table, len(table)), _parquet(table, rows)
    footer = pq.ParquetFile(BytesIO(small)).metadata.serialized_size
    return [
        Figure(f"{name}: archive without its indexes / Parquet, one row group",
               (len(archive) - indexes) / len(large), "", better="lower"),
        Figure(f"{name}: archive / Parquet, one row group",
               len(archive) / len(large), "", better="lower"),
        Figure(f"{name}: archive / Parquet, row groups of a block",
               len(archive) / len(small), "", better="lower"),
        Figure(f"{name}: footer of Parquet with row groups of a block", footer / 1024, "KiB",
               better="lower", note=f"of {len(log.raw):,} B of records"),
        Figure(f"{name}: manifest and directory of the archive",
               (sizes["manifest"] + sizes["directory"]) / 1024, "KiB", better="lower"),
    ]  # fmt: skip


def _table(log: Log) -> pa.Table:
    """All that the records say, but for the columns that one value fills."""
    columns: dict[str, list[object]] = {name: [] for name in _COLUMNS}
    for _, _, batch in log.queues:
        for start, size in zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True):
            m = decode(log.raw, start, start + size, position=start)
            row = (m.topic, m.queue, m.offset, m.position, m.born_at, m.stored_at, m.body)
            values = (*row, *(m.properties[key] for key in _PROPERTIES))
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    return pa.table(columns)


def _parquet(table: pa.Table, rows: int) -> bytes:
    sink = BytesIO()
    pq.write_table(table, sink, row_group_size=rows, compression="zstd", compression_level=3)
    return sink.getvalue()
