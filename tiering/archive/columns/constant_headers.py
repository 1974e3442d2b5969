"""Seldom: what differs seldom among the records of a group, and how it is told that nothing does.

The idea: flags, version, retries, hosts are the same in all rows as a rule, and so are the bytes
that say it, of each group and the next. They are read once, and what they say is kept by them.

Invariant: what fits no record's field is never told as constant.
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
"""Columns that are the same in all rows as a rule."""
U32_MAX: Final = 0xFFFF_FFFF
_I32_OFFSET: Final = 1 << 31
_CONSTANTS_MAX: Final = 128
"""Bytes that these take at most, if so."""
_VALUES: Final = struct.Struct(f"={SELDOM}q")

T = TypeVar("T", int, Column)


def misfits(flags: T, system_flags: T, version: T, reconsume_times: T) -> T:
    """What is not zero where one of them does not fit its field."""
    unsigned = flags | system_flags | (reconsume_times + _I32_OFFSET)
    return unsigned & ~U32_MAX | (version - 1) & ~1


class Constants(NamedTuple):
    """What differs seldom, where it is the same in all rows: one value a column, and whether
    `decode` has its shortcut for such messages.
    """

    flags: int
    system_flags: int
    version: int
    reconsume_times: int
    prepared_position: int
    born_host: int
    store_host: int
    """Of IPv4, its 8 bytes as a number, and so the other."""
    is_ordinary: bool

    def columns(self, count: int) -> Iterable[Column]:
        """The columns of so many rows; they take no memory, and can't be written to."""
        # All rows lie at the same place: a third of what `broadcast_to` takes.
        values = _VALUES.pack(*self[:SELDOM])
        return np.ndarray((SELDOM, count), np.int64, values, 0, (_VALUES.size // SELDOM, 0))


class Varying(NamedTuple):
    """The same where it does differ, a column each."""

    each: Sequence[Column]
    is_ordinary: bool

    def columns(self, count: int) -> Iterable[Column]:
        """These; they have so many rows."""
        assert len(self.each[0]) == count, "of the same group"
        return self.each


def host_of(number: int) -> bytes:
    """The bytes of a host of IPv4, of which columns have a number."""
    return number.to_bytes(8, "big", signed=True)


def constants_of(data: bytes) -> Constants | None:
    """The columns that differ seldom, if those bytes are all of them, none differs here, and CRCs
    are the bodies'; None: look at each.
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
