"""Header fields: the fixed head fields of a group's records, in columns.

The idea: each field is a column. A value that follows from others (sizes, mostly the body's CRC) or
from the directory (a block's rows and its first offset) is not among them. Flags, version, retries
and hosts are usually the same in all rows (`ConstantHeaders`). A group may instead hold whole
records; it then has only the columns by which they are found.

Not in here: columns <-> payload (`header_codec`).

Invariants: a record that is regular (see `tiering.archive.columns.records`) comes back byte for
byte; a value that fits no record's field is never taken for a constant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from kvstore.core.columns.record_columns import join_records
from kvstore.errors import ArchiveDamaged
from kvstore.record.layout import (
    FIXED_V1,
    FIXED_V2,
    NOT_ORDINARY,
    PROPERTIES_MAX,
    TOPIC_MAX,
    TOPIC_MAX_V2,
    V6_EXTRA,
)
from kvstore.record.names import BORN_HOST_V6, STORE_HOST_V6
from tiering.archive.columns.integers import Column
from tiering.archive.columns.text_columns import Joined, join_values

HOST_REST: Final = np.dtype([("middle", ">i8"), ("last", ">i4")])
"""The bytes of an IPv6 host behind the first 8."""
HEADER_COLUMNS: Final = 7
"""The number of columns that are usually the same in all rows."""
_VALUES: Final = struct.Struct(f"={HEADER_COLUMNS}q")


class ConstantHeaders(NamedTuple):
    """The columns where all rows have the same values: one value a column. `is_ordinary` says
    whether `decode` has its shortcut for such messages.
    """

    flags: int
    system_flags: int
    version: int
    reconsume_times: int
    prepared_position: int
    born_host: int
    store_host: int
    """An IPv4 host's 8 bytes as one number, as in `born_host`."""
    is_ordinary: bool

    def columns(self, count: int) -> Iterable[Column]:
        """The columns for `count` rows. They take 56 bytes of memory, and can't be written to."""
        # All rows share one place in memory: a third of the time of `broadcast_to`.
        values = _VALUES.pack(*self[:HEADER_COLUMNS])
        strides = _VALUES.size // HEADER_COLUMNS, 0
        return np.ndarray((HEADER_COLUMNS, count), np.int64, values, 0, strides)


class VaryingHeaders(NamedTuple):
    """The same columns where values differ, one array each. `born_more` and `store_more` have the
    bytes behind the first 8 of each row's host, if any host of the group is IPv6; `body_crc` the
    CRCs, if any is not that of its body.
    """

    each: Sequence[Column]
    born_more: list[bytes] | None = None
    store_more: list[bytes] | None = None
    body_crc: Column | None = None


def host_of(number: int) -> bytes:
    """The bytes of an IPv4 host from its number in the columns."""
    return number.to_bytes(8, "big", signed=True)


class Owners(NamedTuple):
    """The queues that rows belong to: the topics' names in UTF-8, and by row the number of its name
    and its queue id.
    """

    topics: list[bytes]
    topic_of: Column
    queues: Column

    @property
    def topic_sizes(self) -> Column:
        """The lengths of the rows' names in bytes."""
        return np.array(list(map(len, self.topics)), np.int64)[self.topic_of]


class OffsetRanges(NamedTuple):
    """The messages of a group, block by block: their number, and their first and last offsets."""

    counts: Column
    first_offsets: Column
    last_offsets: Column


class HeaderColumns:
    """The columns of one group.

    `is_whole`: the group holds whole records. It has only `offset`, `position`, `stored_at` and
    `ends`, and the `ends` are those of its records, not of its bodies. `constants`: the columns
    that are mostly constant, if they are known to be the same in all rows.
    """

    born_at: Column

    def __init__(
        self,
        offset: Column,
        position: Column,
        stored_at: Column,
        ends: Column,
        headers: ConstantHeaders | VaryingHeaders | None,
    ) -> None:
        self.offset, self.position, self.stored_at, self.ends = offset, position, stored_at, ends
        self.count = len(offset)
        self.is_whole = headers is None
        self.body_crc: Column | None = None
        self.constants: ConstantHeaders | None = None
        self.has_v6 = False
        if isinstance(headers, ConstantHeaders):
            self.constants = headers
            self.is_ordinary = headers.is_ordinary
            self._take(headers.columns(self.count))
        elif headers is not None:
            self.body_crc = headers.body_crc
            self._take(headers.each)
            if headers.born_more is not None and headers.store_more is not None:
                self.has_v6 = True
                self._born_more, self._store_more = headers.born_more, headers.store_more

    def _take(self, columns: Iterable[Column]) -> None:
        (
            self.flags, self.system_flags, self.version, self.reconsume_times,
            self.prepared_position, self._born_host, self._store_host,
        ) = columns  # fmt: skip

    @cached_property
    def is_ordinary(self) -> bool:
        """Whether `decode` has its shortcut for all of the messages."""
        return (
            not self.is_whole
            and self.body_crc is None
            and not (self.system_flags & NOT_ORDINARY).any()
            and not (self.version != 1).any()
        )

    @property
    def places(self) -> Column:
        """Three rows: offsets, positions, store times."""
        return np.stack((self.offset, self.position, self.stored_at))

    @property
    def host_numbers(self) -> tuple[Column, Column]:
        """The first 8 bytes of every row's born host and store host, as numbers."""
        return self._born_host, self._store_host

    def record_sizes(self, owners: Owners, properties: Column) -> Column:
        """The sizes of whole records, whose properties have these sizes."""
        sizes = np.where(self.version == 1, FIXED_V1, FIXED_V2).astype(np.int64)
        sizes += owners.topic_sizes
        if self.has_v6:
            for bit in (BORN_HOST_V6, STORE_HOST_V6):
                sizes += np.where(self.system_flags & bit, V6_EXTRA, 0)
        sizes += np.diff(self.ends)
        sizes += properties
        return sizes

    def records(self, owners: Owners, bodies: Joined, properties: Joined) -> Joined:
        """All records, from their bodies and properties. Raises ArchiveDamaged."""
        if int(np.diff(properties.bounds).max()) > PROPERTIES_MAX:
            raise ArchiveDamaged("its properties are too long for a record")
        if (owners.topic_sizes > np.where(self.version == 1, TOPIC_MAX, TOPIC_MAX_V2)).any():
            raise ArchiveDamaged("its topic is too long for a record")
        numbers = np.stack(
            [
                owners.queues, self.flags, self.offset, self.position, self.system_flags,
                self.born_at, self._born_host, self.stored_at, self._store_host,
                self.reconsume_times, self.prepared_position, self.version,
            ]
        )  # fmt: skip
        more = [b"", b""]
        if self.has_v6:
            more = [b"".join(hosts) for hosts in (self._born_more, self._store_more)]
        topics = join_values(owners.topics)
        return Joined(
            *join_records(
                numbers, self.body_crc, *topics, owners.topic_of, *bodies, *properties, *more
            )
        )
