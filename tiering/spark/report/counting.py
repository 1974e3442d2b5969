"""Counts messages and bytes by topic, tier and day, of archives and of the log.

The idea: an archive's directory has the queue, the times and the size of each block, so most blocks
are counted without being read. Of a block that spans midnight the store times are read, and no
more. The log is scanned, record by record, and its bodies passed over.

Invariants: each message is counted once, on the day (UTC) that it was stored; the sizes of an
archive's blocks sum up to its size. Bytes of a block of several days are divided by its messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import KeyDestroyed, KeyMissing
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.packed import I64
from tiering.archive.columns.records import Fields, RecordBatch
from tiering.archive.directory import DirectoryRows, Groups

DAY_MS: Final = 86_400_000
F64 = NDArray[np.float64]
Key = tuple[str, str, int]
"""Topic, tier, and day since 1970."""


class Tally:
    """Sums by topic, tier and day: messages, bytes of records, bytes as stored."""

    def __init__(self) -> None:
        self._sums: dict[Key, F64] = {}

    def add(
        self, tier: str, names: Sequence[str], topics: I64, days: I64, *amounts: I64 | F64
    ) -> None:
        """Adds rows: which of `names` each is of, its day, its amounts."""
        if not len(topics):
            return
        keys, inverse = np.unique(np.stack([topics, days]), axis=1, return_inverse=True)
        sums = np.stack(
            [np.bincount(inverse.reshape(-1), amount, keys.shape[1]) for amount in amounts], axis=1
        )
        for topic, day, more in zip(*keys.tolist(), sums, strict=True):
            key = names[topic], tier, day
            before = self._sums.get(key)
            self._sums[key] = more if before is None else before + more

    def rows(self) -> Iterator[tuple[str, str, int, int, int, float]]:
        """The sums so far."""
        for (topic, tier, day), (messages, raw, stored) in self._sums.items():
            yield topic, tier, day, round(messages), round(raw), float(stored)


def count_log(tally: Tally, records: RecordBatch) -> None:
    """Counts records of the log; their stored size is that of the records."""
    fields = Fields(records)
    topics = fields.topics()
    numbers = {name: i for i, name in enumerate(dict.fromkeys(topics))}
    of = np.fromiter(map(numbers.__getitem__, topics), np.int64, len(topics))
    names = [name.decode("utf-8", "replace") for name in numbers]
    sizes = fields.sizes
    tally.add("hot", names, of, fields.stored_at // DAY_MS, np.ones_like(of), sizes, sizes)


def count_archive(tally: Tally, archive: Archive, tier: str, blocks: I64) -> None:
    """Counts some blocks of an archive. Raises ArchiveDamaged, PlaceError."""
    rows = archive.rows()
    names = [topic.name for topic in archive.manifest.topics]
    stored = stored_bytes(archive, rows)
    first, last = rows.least_stored_at // DAY_MS, rows.greatest_stored_at // DAY_MS
    is_whole = first[blocks] == last[blocks]
    whole = blocks[is_whole]
    tally.add(
        tier, names, rows.topics[whole], first[whole],
        rows.messages[whole], rows.raw_bytes[whole], stored[whole],
    )  # fmt: skip
    for block, days, counts in _divided(archive, rows, blocks[~is_whole]):
        share = counts / rows.messages[block]
        topics = np.full(len(days), rows.topics[block])
        raw = np.diff(np.round(np.cumsum(share) * rows.raw_bytes[block]), prepend=0)
        tally.add(tier, names, topics, days, counts, raw, share * stored[block])


def stored_bytes(archive: Archive, rows: DirectoryRows) -> F64:
    """The bytes of an archive that each block takes: its share of the group, by its bytes of
    records, and of the parts that are no block (indexes, directory), by its messages.
    """
    if not len(rows.groups):
        return np.zeros(0)
    fixed, properties, bodies = rows.part_sizes
    sizes = (fixed + properties + bodies).astype(np.float64)
    raw = np.bincount(rows.groups, rows.raw_bytes)
    rest = archive.source.size - float(sizes.sum())
    of_groups: F64 = sizes[rows.groups] * rows.raw_bytes / raw[rows.groups]
    return of_groups + rest * rows.messages / int(rows.messages.sum())


def _divided(archive: Archive, rows: DirectoryRows, blocks: I64) -> Iterator[tuple[int, I64, I64]]:
    """Blocks of several days, each with its days and how many of its messages are of each."""
    for members, place in Groups(rows).having(blocks):
        try:
            group = archive.lazy_group(place)
            times = group.columns.stored_at
        except (KeyMissing, KeyDestroyed):
            # Nobody can tell their days; the messages are there, and are paid for, all the same.
            for block in members.tolist():
                yield block, *_evenly(rows, block)
            continue
        for block in members.tolist():
            mine = times[group.rows_of(block)] // DAY_MS
            days, counts = np.unique(mine, return_counts=True)
            yield block, days, counts


def _evenly(rows: DirectoryRows, block: int) -> tuple[I64, I64]:
    """A block's messages as if they had come evenly between its first and its last."""
    least, greatest = int(rows.least_stored_at[block]), int(rows.greatest_stored_at[block])
    days = np.arange(least // DAY_MS, greatest // DAY_MS + 1)
    ends = np.minimum((days + 1) * DAY_MS, greatest) - least
    counts = np.diff(np.round(ends / (greatest - least) * rows.messages[block]), prepend=0)
    return days, counts.astype(np.int64)
