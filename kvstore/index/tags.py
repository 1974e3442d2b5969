"""Tag codes: one byte in an entry instead of the hash of one of the store's usual tags.

The idea: most stores know a handful of tags, and a hash takes four bytes that don't compress. So
the store numbers the tag hashes it meets, the first `CODES_MAX` of them, and runs hold the numbers:
one byte an entry, which compresses to almost nothing. A code is a value no hash can have (a Java
hash has 32 bits, a delivery time is positive), so a run says by itself which of its values are
codes.

Invariants: a code stands for one hash, for ever; the table is written in the batch of the first run
that uses a new code; it is no derived family, so a rebuild keeps it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import FormatError
from kvstore.index.families import Batch
from kvstore.index.keys import META, TAG_CODES

I64 = NDArray[np.int64]

CODES_MAX: Final = 4096
FIRST: Final = -(1 << 40)
"""The value of code 0; code n is `FIRST + n`."""


class TagCodes:
    """The table of codes and hashes. It is changed under the index's write lock only, and read
    without it.
    """

    def __init__(self, row: bytes | None) -> None:
        self._hashes = np.frombuffer(row or b"", dtype=">i8").astype(np.int64)
        self._written = len(self._hashes)

    def coded(self, tag_hashes: I64) -> I64:
        """The column with codes in the place of hashes; gives codes to new ones."""
        if not len(tag_hashes):
            return tag_hashes
        low = int(tag_hashes.min())
        different = np.array([low]) if low == int(tag_hashes.max()) else np.unique(tag_hashes)
        room = CODES_MAX - len(self._hashes)
        fresh = different[~np.isin(different, self._hashes)][:room]
        if len(fresh):
            self._hashes = np.concatenate([self._hashes, fresh])
        order = np.argsort(self._hashes)
        place = np.searchsorted(self._hashes, different, sorter=order).clip(max=len(order) - 1)
        code = order[place]
        values = np.where(self._hashes[code] == different, FIRST + code, different)
        return values[np.searchsorted(different, tag_hashes)]

    def put_new(self, batch: Batch) -> None:
        """Put the table into a batch if it has grown since it was last written."""
        if len(self._hashes) != self._written:
            batch.put(META, TAG_CODES, self._hashes.astype(">i8").tobytes())

    def written(self) -> None:
        """Note that the batch was written."""
        self._written = len(self._hashes)

    def hashes(self, values: I64) -> I64:
        """The inverse of `coded`; `FormatError` for a code that was never given."""
        codes = values - FIRST
        is_code = (codes >= 0) & (codes < CODES_MAX)
        if not is_code.any():
            return values
        known = self._hashes
        if int(codes[is_code].max()) >= len(known):
            raise FormatError(f"tag code {int(codes[is_code].max())} was never given")
        return np.where(is_code, known[np.where(is_code, codes, 0)], values)
