"""Ids and hosts: unique ids of messages, position ids, and the packed hosts inside them.

The idea: ids are upper-case hex text in the forms RocketMQ uses, so that its tools can read them.

    unique id      address 4 or 16 | process id 2 | token 4 | ms since the month began 4 | counter 2
    position id    store host 8 or 20 | position 8
    host           address 4 (IPv4) or 16 (IPv6) | port 4

(RocketMQ: MessageClientIDSetter; MessageDecoder.createMessageId;
MessageExt.socketAddress2ByteBuffer.) The parts of a unique id are for people who read a trace. The
store never takes one apart, and a producer may give any other text. A millisecond has 65,536 unique
ids; when they are used up, the time in the id goes on by 1 ms.

Invariants: unpacking a host, or parsing a position id, gives its parts back; no unique id comes
twice from one source within a month, even with a clock that stands still or goes back. In later
months the same time comes again, and an id does if the counter agrees as well.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from datetime import UTC, datetime, timedelta
from typing import Final

from kvstore.errors import MessageIllegal, shown

ADDRESS_V4_SIZE: Final = 4
ADDRESS_V6_SIZE: Final = 16
PORT: Final = struct.Struct(">I")
"""A port takes 4 bytes, although 2 would do."""
HOST_V4_SIZE: Final = ADDRESS_V4_SIZE + PORT.size
HOST_V6_SIZE: Final = ADDRESS_V6_SIZE + PORT.size
PORT_MAX: Final = 0xFFFF


def pack_host(address: str, port: int) -> bytes:
    """8 bytes for an IPv4, 20 for an IPv6 address (numeric, no names, no zone) with its port.

    Raises MessageIllegal if the address is invalid or the port is not 0 to 65535.
    """
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        packed = socket.inet_pton(family, address)
    except (OSError, ValueError, TypeError):
        raise MessageIllegal(f"{shown(address)} is not an IPv4 or IPv6 address") from None
    if type(port) is not int or not 0 <= port <= PORT_MAX:
        raise MessageIllegal(f"port {shown(port)} is not a number from 0 to {PORT_MAX}")
    return packed + PORT.pack(port)


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


IDS_AT_ONCE: Final = 1 << 16
"""The ids of one millisecond."""
_MONTH_MIN_MS: Final = 28 * 86_400_000


class UniqueIds:
    """The source of a store's unique ids."""

    def __init__(self, address: bytes, pid: int, token: int) -> None:
        self._prefix = id_prefix(address, pid, token)
        self._lock = threading.Lock()
        self._counter = 0
        self._now = 0
        self._used = 0
        self._month_start = 0
        self._month_end = 0
        self._stem = ""
        self._begin(0)

    def make(self, now_ms: int, count: int) -> list[str]:
        """`count` new ids."""
        ids: list[str] = []
        while len(ids) < count:
            part = min(count - len(ids), IDS_AT_ONCE)
            stem, first = self.reserve(now_ms, part)
            ids += [f"{stem}{i & 0xFFFF:04X}" for i in range(first, first + part)]
        return ids

    def reserve(self, now_ms: int, count: int) -> tuple[str, int]:
        """The beginning of `count` new ids, at most `IDS_AT_ONCE`, and the number in the last four
        digits of the first; the number of the next one is greater by 1, modulo 65,536.
        """
        with self._lock:
            if now_ms > self._now:
                self._begin(now_ms)
            elif self._used + count > IDS_AT_ONCE:
                self._begin(self._now + 1)
            self._used += count
            first = self._counter
            self._counter = (first + count) & 0xFFFF
            return self._stem, first

    def _begin(self, now_ms: int) -> None:
        """Go on with another millisecond, in which no id is used up yet."""
        self._now, self._used = now_ms, 0
        if not self._month_start <= now_ms < self._month_end:
            self._month_start = month_start_ms(now_ms)
            # From the end of the shortest month on, the month is looked up for each new
            # millisecond.
            self._month_end = self._month_start + _MONTH_MIN_MS
        self._stem = f"{self._prefix}{(now_ms - self._month_start) & 0xFFFFFFFF:08X}"
