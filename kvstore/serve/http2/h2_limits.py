"""The numbers of HTTP/2 that the server uses, and its own limits.

Invariant: each limit bounds memory or work that a client could ask for, of that client alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

FRAME_MAX: Final = 16_384
"""Bytes of a frame's payload: SETTINGS_MAX_FRAME_SIZE, the least that HTTP/2 allows."""
WINDOW: Final = 65_535
"""Bytes of a window before any SETTINGS or WINDOW_UPDATE."""
WINDOW_MAX: Final = (1 << 31) - 1
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4


class FrameKind:
    """The kinds of frames that are sent, or mean something when they come: numbers, since each
    frame looks some up, and a member of an Enum takes 0.1 us.
    """

    DATA: Final = 0
    HEADERS: Final = 1
    RST_STREAM: Final = 3
    SETTINGS: Final = 4
    PING: Final = 6
    GOAWAY: Final = 7
    WINDOW_UPDATE: Final = 8
    CONTINUATION: Final = 9


class H2Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers for each connection, unless they say otherwise."""

    connections: int = 20_000
    """Of a server; more are closed when they come."""
    streams: int = 4096
    """Calls at a time; more are refused, and clients try them again."""
    message_bytes: int = 8 << 20
    """Of one request, also when it is uncompressed; a larger one ends its call."""
    held_bytes: int = 64 << 20
    """Of requests that are not yet whole, or not yet taken by their handlers."""
    all_held_bytes: int = 256 << 20
    """Of such requests at all connections of a server; beyond, the one with most of them ends."""
    unsent_bytes: int = 64 << 20
    """Of answers that the client does not take; above them new calls are refused."""
    written_bytes: int = 256 << 10
    """Handed to the socket ahead of its client; other answers wait in their calls."""
    stream_window: int = 1 << 20
    """Bytes that a client may send ahead in one call."""
    connection_window: int = 8 << 20
    """Bytes that a client may send ahead in all calls."""
    header_list_bytes: int = 32 << 10
    """Of a header list, by RFC 9113's count; a call with a longer one fails."""
    header_block_bytes: int = 64 << 10
    """Of a header block in all its frames; a longer one ends the connection."""
    idle_frames: int = 2000
    """Frames a second that carry no work: PING, SETTINGS, PRIORITY, empty ones, unknown ones, and
    WINDOW_UPDATE beyond two for each DATA frame that was sent."""
    resets: int = 1000
    """Calls a second that the client takes back, or begins against the rules; and streams whose
    late frames are still passed over after they were reset."""
    first_seconds: float = 10.0
    """For the first byte, TLS, the preface with SETTINGS, and the rest of a header block."""
    stall_seconds: float = 60.0
    """In which a client must take most of the bytes that were handed to the socket."""
