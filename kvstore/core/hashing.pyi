"""Hashes by which messages are found; see hashing.pyx."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

SEPARATOR: Final[str]
"""Between two texts; no key and no id may contain it."""

def xxh32(data: bytes) -> int:
    """XXH32 of some bytes, with seed 0."""

def xxh32_many(joined: str) -> NDArray[np.uint32]:
    """XXH32 of each of the texts in `joined`, which are separated by `SEPARATOR`, as UTF-8.

    Raises UnicodeEncodeError for a text that has no UTF-8. Other threads run meanwhile.
    """
