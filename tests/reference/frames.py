"""Frames of HTTP/2, plainly: the judge of kvstore.core.transport.h2_frames."""

from __future__ import annotations

import re
from typing import Final

Frame = tuple[int, int, int, bytes, int, int]

PROTOCOL_ERROR: Final = 1
FRAME_SIZE_ERROR: Final = 6
_SIZES: Final = {3: 4, 6: 8, 8: 4}
_OF_STREAMS: Final = (0, 1, 2, 3, 5, 9)
_OF_CONNECTIONS: Final = (4, 6, 7)
_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"(?![ \t])[\t\x20-\x7e\x80-\U0010ffff]*(?<![ \t])")
_OF_HTTP_1: Final = (
    "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade",
)  # fmt: skip


def head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")


def split(data: bytes, size_max: int) -> tuple[list[Frame], int]:
    found: list[Frame] = []
    at = 0
    while len(data) - at >= 9:
        size = int.from_bytes(data[at : at + 3], "big")
        kind, flags = data[at + 3], data[at + 4]
        stream = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFFFFFF
        if size > size_max:
            found.append((kind, flags, stream, b"", size, FRAME_SIZE_ERROR))
            return found, len(data)
        payload = data[at + 9 : at + 9 + size]
        if len(payload) < size:
            break
        at += 9 + size
        payload, fault = _judged(kind, flags, stream, payload)
        found.append((kind, flags, stream, payload, size, fault))
        if fault > 0:
            return found, len(data)
    return found, at


def _judged(kind: int, flags: int, stream: int, payload: bytes) -> tuple[bytes, int]:
    if (kind in _OF_STREAMS and not stream) or (kind in _OF_CONNECTIONS and stream) or kind == 5:
        return payload, PROTOCOL_ERROR
    if kind in (0, 1):
        return _unpadded(kind, flags, stream, payload)
    depends = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
    if kind == 2:
        wrong = -FRAME_SIZE_ERROR if len(payload) != 5 else -PROTOCOL_ERROR
        return payload, wrong if len(payload) != 5 or depends == stream else 0
    if len(payload) != _SIZES.get(kind, len(payload)):
        return payload, FRAME_SIZE_ERROR
    if kind == 4 and (len(payload) % 6 or (flags & 1 and payload)):
        return payload, FRAME_SIZE_ERROR
    if kind == 7 and len(payload) < 8:
        return payload, FRAME_SIZE_ERROR
    if kind == 8 and not depends:
        return payload, -PROTOCOL_ERROR if stream else PROTOCOL_ERROR
    return payload, 0


def _unpadded(kind: int, flags: int, stream: int, payload: bytes) -> tuple[bytes, int]:
    padding = 0
    if flags & 8:
        if not payload:
            return payload, FRAME_SIZE_ERROR
        padding, payload = payload[0], payload[1:]
    depends = -1
    if kind == 1 and flags & 0x20:
        if len(payload) < 5:
            return payload, FRAME_SIZE_ERROR
        depends, payload = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, payload[5:]
    if padding > len(payload):
        return payload, PROTOCOL_ERROR
    return payload[: len(payload) - padding], -PROTOCOL_ERROR if depends == stream else 0


def answer(
    stream: int, header: bytes, message: bytes | None, trailers: bytes | None, size_max: int
) -> bytes:
    out = head(len(header), 1, 4, stream) + header if header else b""
    if message is not None:
        data = b"\0" + len(message).to_bytes(4, "big") + message
        for at in range(0, len(data), size_max):
            part = data[at : at + size_max]
            out += head(len(part), 0, 0, stream) + part
    if trailers is not None:
        out += head(len(trailers), 1, 5, stream) + trailers
    return out


def request_head(
    fields: list[tuple[str, str]], is_trailer: bool
) -> tuple[str, str, dict[str, str]] | None:
    """None for a malformed one."""
    pseudo: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in fields:
        if not _VALUE.fullmatch(value):
            return None
        if name.startswith(":"):
            if others or is_trailer or name in pseudo:
                return None
            pseudo[name] = value
            continue
        is_forbidden = name in _OF_HTTP_1 or (name == "te" and value != "trailers")
        if is_forbidden or not _NAME.fullmatch(name):
            return None
        others[name] = f"{others[name]},{value}" if name in others else value
    if is_trailer:
        return "", "", others
    authority = {":authority": pseudo.pop(":authority")} if ":authority" in pseudo else {}
    if set(pseudo) != {":method", ":path", ":scheme"} or not pseudo[":path"]:
        return None
    return pseudo[":method"], pseudo[":path"], authority | others
