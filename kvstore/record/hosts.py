"""Hosts: an address and a port as the 8 or 20 bytes in records and ids, and back.

The idea: RocketMQ (MessageExt.socketAddress2ByteBuffer) writes 4 bytes of IPv4 or 16 bytes of IPv6
address, then the port in 4 bytes. The record's system flags say which of the two it is; here the
length says it.

Invariant: `unpack_host(pack_host(a, p)) == (a, p)` for every address in its usual short form.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from kvstore.errors import (
    FormatError,
    MessageIllegal,
    shown,
)

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


def unpack_host(raw: bytes) -> tuple[str, int]:
    """Address (dotted, or IPv6 in its short form) and port.

    The port is the 4 bytes as they are, so bytes written elsewhere can give more than 65535. Raises
    FormatError if `raw` is not 8 or 20 bytes long.
    """
    if len(raw) == HOST_V4_SIZE:
        family = socket.AF_INET
    elif len(raw) == HOST_V6_SIZE:
        family = socket.AF_INET6
    else:
        raise FormatError(f"a host takes {HOST_V4_SIZE} or {HOST_V6_SIZE} bytes, not {len(raw)}")
    address = socket.inet_ntop(family, raw[: -PORT.size])
    return address, PORT.unpack_from(raw, len(raw) - PORT.size)[0]
