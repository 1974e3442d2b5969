"""Frames: how a stream of bytes is cut into messages of the protocol (docs/protocol.md).

The idea: a frame is a length and a body. `FrameReader` takes bytes as they come, in pieces of any
size, and gives bodies as soon as they are whole.

Invariants: a length above the limit raises before a byte of the body is kept; no memory is taken
for bytes that have not come.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kvstore.errors import FormatError

NAME: Final = "kvmq"
VERSION: Final = 2
LENGTH: Final = struct.Struct(">I")
GREETING_MAX: Final = 4 << 10
"""Bytes of a frame before the welcome."""
REQUEST_MAX: Final = 64 << 20
REPLY_MAX: Final = 1 << 30

# Kinds of frames of a client.
HELLO: Final = 0
REQUEST: Final = 1
RECEIVED: Final = 2
CANCEL: Final = 3
BYE: Final = 4
# Kinds of frames of a server.
WELCOME: Final = 0
REPLY: Final = 1
FAILURE: Final = 2
EVENT: Final = 3
GOODBYE: Final = 4

SESSION_SIZE: Final = 16
CONFIRM_BYTES: Final = 32 << 10
"""Bytes of replies after which a client confirms them."""
UNCONFIRMED_MAX: Final = 16 << 20
"""Bytes of a session's replies that a client may leave unconfirmed for longer than a while."""
CONFIRM_WITHIN: Final = 10.0
"""Seconds of that while."""
UNDER_WAY_MAX: Final = 16 << 20
"""Bytes of a session's requests at which a server reads no more from it."""
OUTSTANDING_MAX: Final = 32 << 20
"""Bytes of requests without a reply at which a client sends no more."""
REQUEST_COSTS: Final = 1 << 10
"""Bytes that each of these counts as, beside its own."""
HELLO_WITHIN: Final = 10.0
"""Seconds for the TLS of a connection, and for its hello."""
FRAME_WITHIN: Final = 120.0
"""Seconds for a frame, from its first byte to its last."""
STALLED_AFTER: Final = 60.0
"""Seconds in which a client must take most of the bytes that wait for it."""
UNFINISHED_MAX: Final = 256 << 20
"""Bytes of frames that are not whole, of all connections of a door together."""
SESSION_KEPT: Final = 60.0
"""Seconds that a session without a connection is kept."""
LOST_MAX: Final = 20_000
"""Sessions of a door without a connection."""

_encode: Final = msgspec.msgpack.Encoder().encode


def frame(body: bytes) -> bytes:
    """A body with its length."""
    return LENGTH.pack(len(body)) + body


def framed(*elements: Any) -> bytes:
    """A frame of the given elements, which are MessagePack's own values."""
    return frame(_encode(elements))


class FrameReader:
    """The bodies of frames in a stream. `limit` is the longest that is taken, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept = bytearray()

    @property
    def kept(self) -> int:
        """The bytes of a frame that is not whole."""
        return len(self._kept)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Takes the next bytes of the stream; gives the bodies that are whole now. `FormatError`
        for a length that can't be; nothing more is to be read then. The limit may change between
        two bodies; the buffer of the bytes, behind the last one.
        """
        if not self._kept:
            whole = memoryview(data)
        else:
            self._kept += data
            if len(self._kept) < LENGTH.size or len(self._kept) < self._wanted(self._kept, 0):
                return
            whole = memoryview(bytes(self._kept))
            self._kept.clear()
        at, end = 0, len(whole)
        while end - at >= LENGTH.size:
            size = self._wanted(whole, at)
            if end - at < size:
                break
            body = bytes(whole[at + LENGTH.size : at + size])
            at += size
            yield body
        self._kept += whole[at:]

    def _wanted(self, data: bytearray | memoryview, at: int) -> int:
        """The bytes of a frame, with its length."""
        (size,) = LENGTH.unpack_from(data, at)
        if not 0 < size <= self.limit:
            raise FormatError(
                f"a frame of {size} bytes; it must have 1 to {self.limit}: the other side speaks "
                "another protocol, or the message is too large"
            )
        return int(size) + LENGTH.size


_request: Final = msgspec.msgpack.Decoder(tuple[int, int, str, msgspec.Raw, msgspec.Raw, bool])
_REQUEST_HEAD: Final = bytes([0x96, REQUEST])
"""An array of six elements, of which the first is this number."""
SMALL_MAX: Final = 64 << 10
"""Bytes of a frame that is no request, but for a client's answers."""


def request_parts(body: bytes) -> tuple[int, int, str, msgspec.Raw, msgspec.Raw, bool] | None:
    """A request's elements, arguments as they are; None if the body is another frame.
    `FormatError`.
    """
    if not body.startswith(_REQUEST_HEAD):
        return None
    try:
        return _request.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise FormatError(f"a request can't be read: {e}") from None


def elements(body: bytes, limit: int = SMALL_MAX) -> list[Any]:
    """The array that a body is, with its kind, a whole number, in front; `FormatError`."""
    if len(body) > limit:
        raise FormatError(f"a frame of this kind has {len(body)} bytes; it has {limit} at most")
    try:
        found = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as e:
        raise FormatError(f"a frame's body is no MessagePack: {e}") from None
    if not isinstance(found, list) or not found or type(found[0]) is not int:
        # It may be a hello, with credentials in it.
        kind = type(found).__name__
        raise FormatError(f"a frame's body is a {kind}; it must be an array with a kind in front")
    return found


_reply: Final = msgspec.msgpack.Decoder(tuple[int, int, msgspec.Raw])
_REPLY_HEAD: Final = 0x93
"""An array of three elements."""


def reply_parts(body: bytes) -> tuple[int, int, msgspec.Raw] | None:
    """Kind, id and value of a reply, failure or event; None if the body is another frame.
    `FormatError`.
    """
    if body[0] != _REPLY_HEAD:
        return None
    try:
        return _reply.decode(body)
    except (msgspec.DecodeError, RecursionError) as e:
        raise FormatError(f"a reply can't be read: {e}") from None
