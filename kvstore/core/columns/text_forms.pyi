"""Columns of texts as archives have them; see text_forms.pyx."""

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

def decode_texts(data: bytes, at: int, born: I64, limit: int) -> tuple[bytes, I64, int, int]:
    """The column of texts that begins at index `at`, of records that were born at these times.

    Gives the texts side by side; the begin of each, and the end of the last; the index behind the
    column; and the bytes that count towards the limit. No bytes are read for no records. Raises
    ArchiveDamaged, MemoryError.
    """
