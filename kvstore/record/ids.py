"""Ids and hosts: position ids, and the packed hosts inside them.

The idea: ids are upper-case hex text in the forms RocketMQ uses, so that its tools can read them.
(Unique ids are made by `kvstore.core.unique_ids`.)

    position id    store host 8 or 20 | position 8
    host           address 4 (IPv4) or 16 (IPv6) | port 4

(RocketMQ: MessageDecoder.createMessageId; MessageExt.socketAddress2ByteBuffer.)

Invariant: unpacking a host, or parsing a position id, gives its parts back.
"""

from __future__ import annotations

import re
import socket
import struct
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


_POSITION: Final = struct.Struct(">Q")

_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})+", re.ASCII)
_POSITION_SIZES: Final = (HOST_V4_SIZE + _POSITION.size, HOST_V6_SIZE + _POSITION.size)
_ID_CHARACTERS_MAX: Final = 2 * max(_POSITION_SIZES)


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
