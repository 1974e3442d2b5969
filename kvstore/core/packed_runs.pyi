"""Runs as bytes; see packed_runs.pyx."""

from collections.abc import Sequence

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

def run_positions(value: bytes) -> I64:
    """The positions of one run, without its other columns. Raises FormatError."""
