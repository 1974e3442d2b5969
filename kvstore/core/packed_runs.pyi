"""Runs as bytes; see packed_runs.pyx."""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

def pack_runs(
    positions: I64, sizes: I64, tag_hashes: I64, stored_at: I64, starts: I64
) -> tuple[bytes, list[int], list[int]]:
    """Packs consecutive runs; run `i` begins at entry `starts[i]`, the first at 0, and none is
    empty. Gives the bytes of all, where each run begins in them, and where it ends.

    Raises FormatError for a run whose positions or times fall, or of more than 65,535 entries, and
    ValueError for starts that do not rise or columns of several lengths.
    """

def unpack_runs(values: Sequence[bytes]) -> tuple[I64, I64, I64, I64, I64]:
    """The positions, sizes, tag hashes and store times of many runs one behind the other, and the
    entry with which each begins; the inverse of `pack_runs`. Raises FormatError.
    """

@final
class DecodedRuns:
    """The positions that some runs say, by queue and offset. A queue is named by a number."""

    def __init__(self) -> None: ...
    def __len__(self) -> int:
        """The number of runs."""

    def add(self, queue: int, first: int, base: int, value: bytes) -> None:
        """Adds a run whose first offset is `first`, of a segment that begins at position `base`, in
        the place of those that begin in it. Raises FormatError.
        """

    def forget(self) -> None:
        """Removes all."""

    def positions(self, queue: int, offset: int, limit: int) -> list[int]:
        """Positions of up to `limit` entries from `offset` on, all of one run; none if it is not
        here.
        """
