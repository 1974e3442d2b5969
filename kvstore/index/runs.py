"""Runs: consecutive entries of one queue inside one segment, as one small value.

The idea: columns, not rows. Position deltas, sizes, tag hashes and store-time deltas each take the
fewest whole bytes that fit the run's largest, and a constant column takes none. A column is stored
plane by plane (all lowest bytes, then the next): RocksDB's block compression does well on planes.
Sizes, tags and times that fit less than a byte take only the bits they need; positions take whole
bytes. Layout in docs/runs.md; `kvstore.core.packed_runs` makes the bytes.

Invariant: `unpack_many(pack_many(x)) == x`; bytes whose length does not follow from their header
raise `FormatError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.packed_runs import pack_runs, unpack_runs
from kvstore.errors import FormatError

I64 = NDArray[np.int64]

RUN_MAX: Final = 1024
"""Entries in one run: bounds what one read decodes."""

# Little-endian: widths (position, size), widths (tag, time), count, first position in the segment,
# smallest size, smallest tag hash, first store time (low 4, high 2 bytes).
HEADER: Final = Struct("<BBHIIqIH")
_SIZE: Final = HEADER.size


class Columns(NamedTuple):
    """Entries as columns; positions are relative to the segment, times in ms."""

    positions: I64
    sizes: I64
    tag_hashes: I64
    stored_at: I64


class Packed(NamedTuple):
    """Many consecutive runs: run `i` is `data[ends[i - 1]:ends[i]]`."""

    data: bytes
    starts: list[int]
    ends: list[int]


def split_long(starts: I64, end: int) -> I64:
    """Adds boundaries so that no run has more than `RUN_MAX` entries."""
    counts = np.diff(starts, append=end)
    if not len(counts) or int(counts.max()) <= RUN_MAX:
        return starts
    pieces = -(-counts // RUN_MAX)
    owner = np.repeat(np.arange(len(starts)), pieces)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.asarray(starts[owner] + nth * RUN_MAX, dtype=np.int64)


def pack_many(columns: Columns, starts: I64) -> Packed:
    """Packs runs; run `i` begins at entry `starts[i]`, and none is longer than `RUN_MAX`."""
    return Packed(*pack_runs(*columns, starts))


def count_of(value: bytes) -> int:
    """How many entries a run has."""
    if len(value) < _SIZE:
        raise FormatError(f"a run has {len(value)} bytes, at least {_SIZE} are needed")
    return int.from_bytes(value[2:4], "little")


def first_position(value: bytes) -> int:
    """Where in the segment a run's first entry stands."""
    count_of(value)
    return int.from_bytes(value[4:8], "little")


def unpack(value: bytes) -> Columns:
    """One run's columns; `FormatError` if the value is not a run."""
    return unpack_many([value])[0]


def unpack_many(values: Sequence[bytes]) -> tuple[Columns, I64]:
    """The columns of many consecutive runs, and where each begins; the inverse of `pack_many`."""
    *columns, starts = unpack_runs(values)
    return Columns(*columns), starts
