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

def known_positions(
    parts: list[tuple[int, int, int, int]],
    filters: dict[tuple[int, int], bytes],
    blocks: dict[tuple[int, int], list[tuple[int, bytes]]],
    asked: dict[int, bool],
    wanted: int,
    begin: int,
    end: int,
    piece_blocks: int,
    hashes: int,
) -> list[int] | None:
    """The positions from `begin` to before `end` that parts have of a hash, falling, each once;
    None if these pieces of filters and these blocks, sorted by their first hashes, can't tell.
    A part is its number, its first position and the one behind its last, and the blocks of its
    filter, of which a piece has `piece_blocks`; a digest sets `hashes` bits. Pieces are named by
    the numbers of part and piece. `asked` gets what the filters of parts said, by the part's
    number. Raises FormatError for bytes that are not a block, ValueError for numbers that no hash
    or filter has.
    """

def count_in(value: bytes) -> int:
    """The number of pairs in a block; FormatError if the value is not one."""
