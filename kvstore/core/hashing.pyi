"""Hashes by which messages are found; see hashing.pyx."""

import numpy as np
from numpy.typing import NDArray

def xxh32(data: bytes) -> int:
    """XXH32 of some bytes, with seed 0."""

def java_hash(text: str) -> int:
    """Java's `String.hashCode`: 31-polynomial over UTF-16 code units, as a signed 32-bit number."""

def add_digests(
    filled: bytearray | NDArray[np.uint8],
    digests: NDArray[np.uint32],
    blocks: int,
    first: int,
    hashes: int,
) -> None:
    """Adds digests to the blocks from `first` on of a filter of `blocks` blocks, 64 bytes each;
    every digest sets `hashes` bits, 7 at most. Raises ValueError, with nothing added, for a digest
    of another block, and for numbers out of their range; BufferError where `filled` is only
    to be read.
    """

def may_hold(data: bytes, at: int, blocks: int, first: int, digest: int, hashes: int) -> bool:
    """Whether a digest may have been added: all its bits are set in the filter whose block `first`
    begins at byte `at` of `data`, or `data` does not have its block. Raises ValueError for numbers
    out of their range.
    """

def count_denied(
    data: bytes, at: int, blocks: int, digests: NDArray[np.uint32], hashes: int
) -> int:
    """The number of digests, of any order, that a whole filter denies: its `blocks` blocks begin at
    byte `at` of `data`. Raises ValueError if they are not there, and for numbers out of their
    range.
    """

def masks_of(digest: int) -> bytes:
    """The block of a filter that has this digest alone, for each number of bits from 0 to 7."""
