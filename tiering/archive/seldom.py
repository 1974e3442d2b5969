"""Seldom: what differs seldom among the records of a group, and how it is told that nothing does.

The idea: flags, version, retries, hosts are the same in all rows as a rule, and so are the bytes
that say it, of each group and the next. They are read once, and what they say is kept by them.

Invariant: what fits no record's field is never told as constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from kvstore.record.layout import HOSTS_V6, NOT_ORDINARY
from tiering.archive.integers import CONSTANT, Column, read_signed

FOLLOWS: Final = b"\x00"
"""Every body CRC is that of the body."""
SELDOM: Final = 7
"""Columns that are the same in all rows as a rule."""
U32_MAX: Final = 0xFFFF_FFFF
_I32_OFFSET: Final = 1 << 31
_CONSTANTS_MAX: Final = 128
"""Bytes that these take at most, if so."""

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


class Varying(NamedTuple):
    """The same where it does differ, a column each."""

    columns: Sequence[Column]
    is_ordinary: bool


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
