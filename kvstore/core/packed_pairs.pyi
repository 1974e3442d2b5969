"""Blocks of sorted (hash, position) pairs as bytes; see packed_pairs.pyx."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

def sort_pairs(hashes: I64, positions: I64) -> tuple[I64, I64]:
    """Pairs in the order of blocks: by hash, and those of one hash in the order they had. Raises
    ValueError for columns of two lengths.
    """

def pack_blocks(hashes: I64, positions: I64, together: int) -> list[tuple[int, bytes]]:
    """Blocks of `together` sorted pairs each as (first hash, value); a hash with many pairs begins
    several. Raises ValueError for hashes that fall, or columns of two lengths.
    """

def pack_block(first: int, hashes: I64, positions: I64) -> bytes:
    """One block of a few sorted pairs, none below `first`."""

def unpack_blocks(firsts: Sequence[int], values: Sequence[bytes]) -> tuple[I64, I64]:
    """Hashes and positions of consecutive blocks; FormatError if one of the values is not a
    block.
    """

def unpack_block(first: int, value: bytes) -> tuple[I64, I64]:
    """Hashes and positions of a block; FormatError if the value is not a block."""

def find_in_block(first: int, value: bytes, low: int, high: int) -> list[tuple[int, int]]:
    """The pairs whose hash is `low` to `high`, both included: hashes and positions, in order.
    Raises FormatError if the value is not a block.
    """

def positions_inside(first: int, value: bytes, wanted: int) -> list[int] | None:
    """The positions of a hash between the first hash of a block and the last, in order; None if it
    is not between them, so that other blocks may have it. Raises FormatError if the value is not a
    block.
    """

def count_in(value: bytes) -> int:
    """The number of pairs in a block; FormatError if the value is not one."""
