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

FOLLOWS: Final = b"\x00"
"""Every body CRC is that of the body."""
SELDOM: Final = 7
"""The number of columns that are usually the same in all rows."""
U32_MAX: Final = 0xFFFF_FFFF
_I32_OFFSET: Final = 1 << 31
_CONSTANTS_MAX: Final = 128
"""The most bytes that these columns take if all are constant."""
_VALUES: Final = struct.Struct(f"={SELDOM}q")

T = TypeVar("T", int, Column)


def misfits(flags: T, system_flags: T, version: T, reconsume_times: T) -> T:
    """Not zero where one of the values does not fit its field."""
    unsigned = flags | system_flags | (reconsume_times + _I32_OFFSET)
    return unsigned & ~U32_MAX | (version - 1) & ~1


class Constants(NamedTuple):
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
        """The columns for `count` rows; they take no memory, and can't be written to."""
        # All rows share one place in memory: a third of the time of `broadcast_to`.
        values = _VALUES.pack(*self[:SELDOM])
        return np.ndarray((SELDOM, count), np.int64, values, 0, (_VALUES.size // SELDOM, 0))


class Varying(NamedTuple):
    """The same columns where values differ, one array each."""

    each: Sequence[Column]
    is_ordinary: bool

    def columns(self, count: int) -> Iterable[Column]:
        """The columns; they have `count` rows already."""
        assert len(self.each[0]) == count, "of the same group"
        return self.each


def host_of(number: int) -> bytes:
    """The bytes of an IPv4 host from its number in the columns."""
    return number.to_bytes(8, "big", signed=True)


def constants_of(data: bytes) -> Constants | None:
    """The columns, if `data` is all of them, none differs within the group, and the CRCs are the
    bodies'. None: decode each column.
    """
    return _constants(data) if len(data) <= _CONSTANTS_MAX else None


@lru_cache(maxsize=256)
def _constants(data: bytes) -> Constants | None:
    values, at = [], 0
    for _ in range(SELDOM):
        if data[at : at + 1] != bytes((CONSTANT,)):
            return None
        value, at = read_signed(data, at + 1)
        values.append(value)
    flags, system_flags, version, reconsume_times, prepared_position, born, store = values
    is_wrong = misfits(flags, system_flags, version, reconsume_times)
    if data[at:] != FOLLOWS or system_flags & HOSTS_V6 or is_wrong:
        return None
    is_ordinary = not system_flags & NOT_ORDINARY and version == 1
    return Constants(
        flags, system_flags, version, reconsume_times, prepared_position, born, store, is_ordinary
    )
