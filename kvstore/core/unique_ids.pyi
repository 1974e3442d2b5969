"""The source of unique ids; see unique_ids.pyx."""

from typing import final

@final
class UniqueIds:
    """The source of a store's unique ids: upper-case hex, 32 digits (56 with an IPv6 address)."""

    prefix: str
    """The part that stays the same: 20 hex digits, or 44."""

    def __init__(self, address: bytes, pid: int, token: int) -> None:
        """Of `pid` the low 2 bytes count, of `token` the low 4. ValueError if `address` isn't 4 or
        16 bytes long.
        """

    def make(self, now_ms: int, count: int) -> list[str]:
        """`count` new ids of a time, in ms since the epoch."""
