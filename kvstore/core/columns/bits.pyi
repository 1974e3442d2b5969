"""Numbers at any number of bits; see bits.pyx."""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

def pack(values: U64, width: int) -> bytes:
    """The lowest `width` bits (0 to 64) of each value, one value behind the other, its highest bit
    first.
    """

def unpack(data: bytes | memoryview, at: int, width: int, count: int, skip: int = 0) -> U64:
    """The inverse of `pack`, for values that begin at index `at` of `data`: `count` of them, behind
    the first `skip`. Raises FormatError if their bytes are not all there.
    """
