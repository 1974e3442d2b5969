"""Many records of a log at once; see scan.pyx."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvstore.core.records import Buffer

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

Stop = Literal["end", "blank", "zeros", "damaged", "torn", "limit"]
"""Why a scan stopped: at the end it was given, exactly behind a record; at a blank record; where
nothing was written (size and magic are 0); at what is none of these, `check_record` says why; at a
record with zeros in its topic or properties; or behind as many records as were asked for."""

class Scan:
    """Records in order, one row each in every column."""

    end: int
    """The index behind the last record."""
    stop: Stop
    def __len__(self) -> int: ...
    @property
    def positions(self) -> I64: ...
    @property
    def sizes(self) -> I64: ...
    @property
    def owners(self) -> I64:
        """The number of each record's queue; queues are numbered as they came."""

    @property
    def topic_places(self) -> tuple[I64, I64]:
        """The indexes in the buffer at which the topic of each queue begins, and behind it."""

    @property
    def queue_ids(self) -> I64:
        """The id of each queue in its topic."""

    def owner_names(self, buffer: Buffer) -> list[tuple[bytes, int]]:
        """The topic and the id of each queue; `buffer` is that of the scan, else ValueError."""

    @property
    def offsets(self) -> I64: ...
    @property
    def flags(self) -> I64:
        """The system flags."""

    @property
    def stored_at(self) -> I64: ...
    @property
    def prepared_positions(self) -> I64:
        """The prepared positions of the headers."""

    @property
    def tag_hashes(self) -> I64:
        """The Java hashes of the tags, 0 for no tag. Only of a scan `with_names`."""

    @property
    def keys(self) -> tuple[I64, U64, I64]:
        """The keys of the records, in their order: the row of each, its XXH32, and the least level
        of a topic's key index that takes it: 0 a dedup id, 1 a unique id, 2 any other. The keys of
        a row differ. Only of a scan `with_names`.
        """

def scan(
    buffer: Buffer,
    at: int,
    end: int,
    base: int,
    limit: int,
    *,
    property_crc: bool = False,
    with_names: bool = False,
    whole_from: int | None = None,
) -> Scan:
    """Checks records one after the other, from index `at` of `buffer` on, as `check_record` does.

    `base` is the log position of the buffer's index 0. Takes at most `limit` records, up to index
    `end`. From the position `whole_from` on, a record is torn if it has zeros where one of its
    pages may not have reached the disk. Other threads run meanwhile. Raises MemoryError.
    """
