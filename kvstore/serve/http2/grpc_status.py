"""How calls end, and the forms of gRPC's fields: status codes, messages, timeouts, compression.

Invariants: the text of an error goes out as ASCII; no field makes more than the bytes it may.
"""

from __future__ import annotations

import enum
import re
import zlib
from typing import Final
from urllib.parse import quote

from kvstore.core.transport.hpack import encode_fields

_TIMEOUT: Final = re.compile(r"(\d{1,8})([HMSmun])")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PLAIN: Final = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")
_TEXT_MAX: Final = 1024
"""Bytes of a text. Clients refuse header lists above 8 KiB, and a byte becomes three."""
_GZIP: Final = 31


class Code(enum.IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallFailed(Exception):
    """A handler raises this to end its call with a code and a text for the client."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def status_block(code: Code, text: str) -> bytes:
    """The header block of the trailers that say how a call ended; the text cut to 1,024 bytes, and
    percent-encoded.
    """
    fields = [("grpc-status", str(int(code)))]
    if text:
        cut = text.encode("utf-8", "replace")[:_TEXT_MAX].decode("utf-8", "ignore")
        fields.append(("grpc-message", quote(cut, safe=_PLAIN)))
    return encode_fields(fields)


def timeout_seconds(value: str) -> float:
    """The seconds of a `grpc-timeout`. Raises CallFailed for another form."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise CallFailed(Code.INTERNAL, f"grpc-timeout is {value[:40]!r}; see gRPC over HTTP/2")
    return int(found[1]) * _UNITS[found[2]]


def inflate(data: bytes, encoding: str, size_max: int) -> bytes:
    """A compressed message as it was. Raises CallFailed where that is more than `size_max` bytes,
    or another encoding, or damaged.
    """
    if encoding != "gzip":
        raise CallFailed(Code.INTERNAL, f"a message is compressed, but grpc-encoding is {encoding}")
    inflater = zlib.decompressobj(_GZIP)
    try:
        message = inflater.decompress(data, size_max + 1)
    except zlib.error:
        raise CallFailed(Code.INTERNAL, "a message is no gzip") from None
    if len(message) > size_max:
        raise CallFailed(
            Code.RESOURCE_EXHAUSTED, f"a message is above {size_max} bytes when uncompressed"
        )
    if not inflater.eof:
        raise CallFailed(Code.INTERNAL, "a message's gzip is cut short")
    return message
