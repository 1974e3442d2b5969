"""Header fields: the fixed head fields of a group's records, in columns.

The idea: each field is a column. A value that follows from others (sizes, mostly the body's CRC) or
from the directory (a block's rows and its first offset) is not among them. Flags, version, retries
and hosts are usually the same in all rows (`ConstantHeaders`). A group may instead hold whole
records; it then has only the columns by which they are found.

Not in here: columns <-> payload (`header_codec`).

Invariant: a record that is regular (see `tiering.archive.columns.records`) comes back byte for
byte.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from kvstore.core.columns.record_columns import join_records
from kvstore.core.names import BORN_HOST_V6, STORE_HOST_V6
from kvstore.errors import ArchiveDamaged
from kvstore.record.layout import (
    FIXED_V1,
    FIXED_V2,
    NOT_ORDINARY,
    V6_EXTRA,
)
from tiering.archive.columns.integers import Column
from tiering.archive.columns.text_columns import Joined

HOST_REST: Final = np.dtype([("middle", ">i8"), ("last", ">i4")])
"""The bytes of an IPv6 host behind the first 8."""


class ConstantHeaders(NamedTuple):
    """The fields that are usually the same in all rows, where they are: one value a field."""

    flags: int
    system_flags: int
    version: int
    reconsume_times: int
    prepared_position: int
    born_host: int
    """A host's first 8 bytes as one number."""
    store_host: int


def host_of(number: int) -> bytes:
    """The bytes of an IPv4 host from its number in the columns."""
    return number.to_bytes(8, "big", signed=True)


class OffsetRanges(NamedTuple):
    """The messages of a group, block by block: their number, and their first and last offsets."""

    counts: Column
    first_offsets: Column
    last_offsets: Column


class HeaderColumns:
    """The columns of one group; see the module. `numbers` has them in the order in which
    `join_records` takes them, `ends` the begin of each body in the group's bodies, and the end of
    the last one.

    `is_whole`: the group holds whole records. It has only `offset`, `position`, `stored_at` and
    `ends`, and the `ends` are those of its records. `body_crc` is None if each CRC is that of its
    body; `more_hosts` has the bytes behind the first 8 of born and store hosts that are IPv6.
    """

    def __init__(
        self, numbers: Column, ends: Column, *, is_whole: bool, is_constant: bool
    ) -> None:  # fmt: skip
        self.numbers, self.ends, self.is_whole = numbers, ends, is_whole
        self.count = len(ends) - 1
        self.body_crc: Column | None = None
        self.more_hosts: list[bytes] = []
        self._is_constant = is_constant
        (
            self.queue, self.flags, self.offset, self.position, self.system_flags, self.born_at,
            self.born_host, self.stored_at, self.store_host, self.reconsume_times,
            self.prepared_position, self.version,
        ) = numbers  # fmt: skip

    @property
    def constants(self) -> ConstantHeaders | None:
        """The fields that are usually the same in all rows; None if they are not known to be."""
        if not self._is_constant:
            return None
        return ConstantHeaders(*[int(getattr(self, name)[0]) for name in ConstantHeaders._fields])

    @property
    def is_ordinary(self) -> bool:
        """Whether all messages are of the first version, with IPv4 hosts and bodies as they were
        put, and have the CRCs of these.
        """
        if self.is_whole or self.body_crc is not None:
            return False
        if self._is_constant:
            return not self.system_flags[0] & NOT_ORDINARY and int(self.version[0]) == 1
        return not ((self.system_flags & NOT_ORDINARY) | (self.version - 1)).any()

    @property
    def places(self) -> Column:
        """Three rows: offsets, positions, store times."""
        return np.stack((self.offset, self.position, self.stored_at))

    def record_sizes(self, topic_sizes: Column, properties: Column) -> Column:
        """The sizes of whole records, whose topics and properties have these sizes."""
        sizes = np.where(self.version == 1, FIXED_V1, FIXED_V2).astype(np.int64)
        for bit in (BORN_HOST_V6, STORE_HOST_V6):
            sizes += np.where(self.system_flags & bit, V6_EXTRA, 0)
        return sizes + topic_sizes + np.diff(self.ends) + properties

    def records(
        self, topics: Joined, topic_of: Column, bodies: bytes, properties: Joined
    ) -> Joined:
        """All records, from their topics, bodies and properties. Raises ArchiveDamaged."""
        try:
            return Joined(
                *join_records(
                    self.numbers, self.body_crc, *topics, topic_of, bodies, self.ends,
                    *properties, *self.more_hosts,
                )
            )  # fmt: skip
        except ValueError as e:
            raise ArchiveDamaged(str(e)) from None
