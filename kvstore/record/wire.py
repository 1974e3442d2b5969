"""The client batch: how RocketMQ's clients send several messages of one topic in one request body.

The idea: messages one after the other, each with its size first (RocketMQ:
MessageDecoder.encodeMessage and decodeMessage), all integers big-endian:

    size 4 | magic 4 (0) | body CRC 4 (0) | flags 4 | body length 4 | body
    | properties length 2 | properties

Topic, queue and times are those of the request. Magic and CRC are written as 0 and not looked at.

Invariants: `decode_batch(encode_batch(m)) == m`; any bytes give messages or MessageIllegal.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as struct_error
from typing import Final

import msgspec

from kvstore.errors import MessageIllegal, PropertiesTooLarge
from kvstore.record.layout import PROPERTIES_MAX
from kvstore.record.properties import decode_properties

_HEAD: Final = Struct(">IIIII")
"""Size, magic, body CRC, flags, body length."""
_PROPERTIES_SIZE: Final = Struct(">H")
_FIXED: Final = _HEAD.size + _PROPERTIES_SIZE.size


class WireMessage(msgspec.Struct, gc=False):
    """One message of a batch; `flags` are 32 bits, `raw_properties` as on the wire."""

    body: bytes
    raw_properties: bytes = b""
    flags: int = 0

    @property
    def properties(self) -> dict[str, str]:
        """The properties, decoded anew each time."""
        return decode_properties(self.raw_properties)


def encode_batch(messages: Iterable[WireMessage]) -> bytes:
    """The batch's bytes; raises MessageIllegal or PropertiesTooLarge for what doesn't fit its
    field."""
    parts: list[bytes] = []
    for index, m in enumerate(messages):
        body, raw = m.body, m.raw_properties
        if len(raw) > PROPERTIES_MAX:
            raise PropertiesTooLarge(
                f"message {index}: properties take {len(raw)} bytes, at most {PROPERTIES_MAX} fit",
                len(raw),
                PROPERTIES_MAX,
            )
        size = _FIXED + len(body) + len(raw)
        try:
            head = _HEAD.pack(size, 0, 0, m.flags, len(body))
        except struct_error:
            raise MessageIllegal(f"message {index}: flags or size don't fit 32 bits") from None
        parts += (head, body, _PROPERTIES_SIZE.pack(len(raw)), raw)
    return b"".join(parts)


def decode_batch(raw: bytes) -> list[WireMessage]:
    """The messages of a batch, in order; none for no bytes.

    Raises MessageIllegal, with the index of the message, if a length doesn't fit the bytes there
    are or the lengths inside a message don't add up to its size.
    """
    found: list[WireMessage] = []
    at, end = 0, len(raw)
    while at < end:
        if end - at < _FIXED:
            raise _illegal(found, f"{end - at} bytes are left, a message has at least {_FIXED}")
        size, _magic, _crc, flags, body_size = _HEAD.unpack_from(raw, at)
        if not _FIXED <= size <= end - at:
            raise _illegal(found, f"its size is {size}, {end - at} bytes are left")
        if body_size > size - _FIXED:
            raise _illegal(found, f"its body's length is {body_size} in a size of {size}")
        body_at = at + _HEAD.size
        length_at = body_at + body_size
        properties_at = length_at + _PROPERTIES_SIZE.size
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(raw, length_at)
        if properties_size > PROPERTIES_MAX or properties_at + properties_size != at + size:
            raise _illegal(
                found,
                f"properties length is {properties_size}, {at + size - properties_at} bytes remain",
            )
        at += size
        found.append(WireMessage(raw[body_at:length_at], raw[properties_at:at], flags))
    return found


def _illegal(found: list[WireMessage], what: str) -> MessageIllegal:
    return MessageIllegal(f"not a message batch: message {len(found)}: {what}")
