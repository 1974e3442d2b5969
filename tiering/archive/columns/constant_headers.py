"""Constant headers: the head fields that are mostly the same in all records of a group.

The idea: flags, version, retries and hosts are usually the same in all rows. So the bytes that
encode them repeat from group to group. They are decoded once, and the result is cached by these
bytes.

Invariant: a value that fits no record's field is never taken for a constant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np

from kvstore.record.layout import HOSTS_V6, NOT_ORDINARY
from tiering.archive.columns.integers import CONSTANT, Column, read_signed

CRCS_OMITTED: Final = b"\x00"
"""Behind the columns: each record's body CRC is that of its body, and is not stored."""
HEADER_COLUMNS: Final = 7
"""The number of columns that are usually the same in all rows."""
U32_MAX: Final = 0xFFFF_FFFF
_I32_OFFSET: Final = 1 << 31
_CONSTANTS_MAX: Final = 128
"""The most bytes that these columns take if all are constant."""
_VALUES: Final = struct.Struct(f"={HEADER_COLUMNS}q")

T = TypeVar("T", int, Column)


def misfits(flags: T, system_flags: T, version: T, reconsume_times: T) -> T:
    """Not zero where one of the values does not fit its field."""
    unsigned = flags | system_flags | (reconsume_times + _I32_OFFSET)
    return unsigned & ~U32_MAX | (version - 1) & ~1


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


def constant_headers(data: bytes) -> ConstantHeaders | None:
    """The columns, if `data` has all of them and nothing else, each is constant, and the CRCs are
    the bodies'. None: decode each column.
    """
    return _constant_headers(data) if len(data) <= _CONSTANTS_MAX else None


@lru_cache(maxsize=256)
def _constant_headers(data: bytes) -> ConstantHeaders | None:
    values, at = [], 0
    for _ in range(HEADER_COLUMNS):
        if data[at : at + 1] != bytes((CONSTANT,)):
            return None
        value, at = read_signed(data, at + 1)
        values.append(value)
    flags, system_flags, version, reconsume_times, prepared_position, born, store = values
    is_wrong = misfits(flags, system_flags, version, reconsume_times)
    if data[at:] != CRCS_OMITTED or system_flags & HOSTS_V6 or is_wrong:
        return None
    is_ordinary = not system_flags & NOT_ORDINARY and version == 1
    return ConstantHeaders(
        flags, system_flags, version, reconsume_times, prepared_position, born, store, is_ordinary
    )
