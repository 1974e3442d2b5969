"""Ids: the unique id from a message's producer, and the position id that says where a record is.

The idea: both are upper-case hex text, in the forms RocketMQ uses, so that its tools can read them.

    unique id      address 4 or 16 | process id 2 | token 4 | ms since the month began 4 | counter 2
    position id    store host 8 or 20 | position 8

(RocketMQ: MessageClientIDSetter; MessageDecoder.createMessageId.) The parts of a unique id are for
people who read a trace. The store never takes one apart, and a producer may give any other text.

Invariant: parsing a position id gives its parts back.
"""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta
from typing import Final

from kvstore.errors import MessageIllegal, shown
from kvstore.record.hosts import ADDRESS_V4_SIZE, ADDRESS_V6_SIZE, HOST_V4_SIZE, HOST_V6_SIZE

_PREFIX_TAIL: Final = struct.Struct(">HI")
"""After the address: process id, token."""
_POSITION: Final = struct.Struct(">Q")

_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})+", re.ASCII)
_POSITION_SIZES: Final = (HOST_V4_SIZE + _POSITION.size, HOST_V6_SIZE + _POSITION.size)
_ID_CHARACTERS_MAX: Final = 2 * max(_POSITION_SIZES)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def id_prefix(address: bytes, pid: int, token: int) -> str:
    """The part of a unique id that stays the same: 20 hex digits (44 with an IPv6 address).

    Of `pid` the low 2 bytes count, of `token` the low 4. Raises MessageIllegal if `address` isn't 4
    or 16 bytes long.
    """
    if len(address) not in (ADDRESS_V4_SIZE, ADDRESS_V6_SIZE):
        raise MessageIllegal(f"an address takes 4 or 16 bytes, not {len(address)}")
    return (address + _PREFIX_TAIL.pack(pid & 0xFFFF, token & 0xFFFF_FFFF)).hex().upper()


def month_start_ms(now_ms: int) -> int:
    """When the month of `now_ms` began, in ms since the epoch.

    In UTC; RocketMQ takes the machine's time zone. The number only has to make ids differ. Raises
    MessageIllegal for a time outside the years 1 to 9999.
    """
    try:
        now = _EPOCH + timedelta(milliseconds=now_ms)
    except OverflowError:
        raise MessageIllegal(f"{now_ms} is not a time in ms since the epoch") from None
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (start - _EPOCH) // _MILLISECOND


def position_id(store_host: bytes, position: int) -> str:
    """RocketMQ's offset message id: 32 hex digits, or 56 with an IPv6 host.

    `store_host` is packed (8 or 20 bytes). Raises MessageIllegal if it isn't, or for a negative
    position.
    """
    if len(store_host) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise MessageIllegal(f"a packed host takes 8 or 20 bytes, not {len(store_host)}")
    try:
        return (store_host + _POSITION.pack(position)).hex().upper()
    except struct.error:
        raise MessageIllegal(f"{shown(position)} is not a position in a log") from None


def parse_position_id(text: str) -> tuple[bytes, int]:
    """Packed store host and position; raises MessageIllegal if `text` isn't 32 or 56 hex digits."""
    raw = _from_hex(text)
    if raw is None or len(raw) not in _POSITION_SIZES:
        raise MessageIllegal(f"{text!r:.80} is not a position id: it has no 32 or 56 hex digits")
    host = raw[: -_POSITION.size]
    return host, _POSITION.unpack_from(raw, len(host))[0]


def _from_hex(text: str) -> bytes | None:
    """The bytes; None for a text that isn't all hex digits (`bytes.fromhex` would skip blanks)."""
    if not isinstance(text, str) or len(text) > _ID_CHARACTERS_MAX or not _HEX.fullmatch(text):
        return None
    return bytes.fromhex(text)
