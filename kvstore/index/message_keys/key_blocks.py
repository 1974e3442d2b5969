"""Key blocks: (key hash, position) pairs, sorted by both and packed.

The idea: a pair is the key's 40-bit hash and the record's position behind the part's beginning.
Hashes are stored as distance from the block's first (which is in the row's key), both columns plane
by plane like a run's: the high planes of a sorted column compress to almost nothing. Layout in
docs/keys.md; `kvstore.core.packed_pairs` makes the bytes and searches them.

Invariant: pairs of one hash keep the order they had, so that their positions rise.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

BLOCK: Final = 256
"""Pairs in a block."""


def sort_pairs(hashes: I64, positions: I64) -> tuple[I64, I64]:
    """Pairs in the order of blocks: by hash. Pairs of one hash come in the order they had."""
    if len(hashes) < 1 << 24:
        # One sort of one number (hash, then place in the input) is five times as fast as argsort.
        joint = hashes.astype(np.uint64)
        joint <<= np.uint64(24)
        joint |= np.arange(len(hashes), dtype=np.uint64)
        joint.sort()
        order = (joint & np.uint64(0xFFFFFF)).view(np.int64)
        joint >>= np.uint64(24)
        return joint.view(np.int64), positions[order]
    order = np.argsort(hashes, kind="stable")
    return hashes[order], positions[order]
