"""Fields and records of columns; see record_columns.pyx.

Texts side by side are some bytes and their bounds: the begin of each text, and the end of the last.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvstore.core.records import Buffer

I64 = NDArray[np.int64]
Joined = tuple[bytes, I64]

def join_fields(
    shapes: list[tuple[bytes, ...]], shape_of: I64, columns: Mapping[bytes, Joined]
) -> Joined:
    """The properties fields of rows with these shapes (see `packed_texts.split_fields`), side by
    side. `columns` has the values by name, in the order of rows. Raises ValueError where a value is
    missing, MemoryError.
    """

def join_records(
    numbers: I64,
    crcs: I64 | None,
    topics: bytes,
    topic_bounds: I64,
    topic_of: I64,
    bodies: bytes,
    body_bounds: I64,
    properties: bytes,
    property_bounds: I64,
    born_more: bytes,
    store_more: bytes,
) -> Joined:
    """Records, side by side. `numbers` has twelve rows, with one number a record in each: queue,
    flags, offset, position, system flags, born time, the first 8 bytes of the born host, store
    time, the same of the store host, reconsume times, prepared position, version (1 or 2). `crcs`
    are those of the bodies; None: they are worked out. `topic_of` are numbers of topics. The other
    12 bytes of each IPv6 host are in `born_more` and `store_more`, in order.

    Raises ValueError for columns of several lengths or texts that are too long for a record,
    MemoryError.
    """

def place_records(room: Buffer, base: int, positions: I64, data: bytes, bounds: I64) -> int:
    """Copies those records to their positions that begin in a part of the log: `room`, which may be
    written to, begins at position `base`. Returns how many they were. Other threads run meanwhile.
    Raises ValueError for a record that ends behind the room, when those before it are copied,
    and BufferError for a room that can't be written to.
    """
