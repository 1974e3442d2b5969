"""The fixed columns of groups; see group_heads.pyx."""

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

def decode_heads(
    data: bytes, queues: I64, counts: I64, first_offsets: I64, last_offsets: I64
) -> tuple[I64, I64, bool, bool, int]:
    """Decodes the fixed part of a group, whose blocks have these queues, numbers of messages, and
    first and last offsets.

    Gives the numbers as `record_columns.join_records` takes them; the begin of each body, and the
    end of the last; whether the group holds whole records, which then are the bodies, and only
    offsets, positions and store times are there; whether each of the last seven columns is
    constant; and the index behind what was read. Raises ArchiveDamaged, and ValueError for columns
    of several lengths.
    """
