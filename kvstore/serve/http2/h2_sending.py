"""The sending half of a connection: answers, windows, and one write for all that a turn has.

The idea: an answer that fits into its windows becomes bytes at once. Another one waits in its call,
and calls that wait send one frame each in turn, as windows and the socket let them.

Invariants: no more DATA is sent than both windows allow; no header block needs a dynamic table, and
the first one says so; the bytes of a turn are bounded by `H2Limits.written_bytes` and one answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kvstore.core.transport.h2_frames import answer_frames, frame_of
from kvstore.core.transport.hpack import encode_fields
from kvstore.serve.http2.grpc_call import PREFIX, Call
from kvstore.serve.http2.h2_limits import (
    END_HEADERS,
    END_STREAM,
    FRAME_MAX,
    WINDOW,
    WINDOW_MAX,
    FrameKind,
    H2Limits,
)

_HEAD: Final = encode_fields([(":status", "200"), ("content-type", "application/grpc")])
_NO_TABLE: Final = b"\x20"
"""The beginning of the first header block: the dynamic table has 0 bytes (RFC 7541, 6.3)."""
_SENT_MAX: Final = 65_536
"""Bytes of the largest DATA frame that is sent, to clients that allow it."""


class H2Sender:
    """The answers and other frames of a connection. `to_write` asks for a `flush` at the turn's
    end; `ended` is told of each call whose answer is whole, and `keeps` how many bytes more or less
    are unsent.
    """

    def __init__(
        self,
        limits: H2Limits,
        to_write: Callable[[], None],
        ended: Callable[[Call], None],
        keeps: Callable[[int], None],
    ) -> None:
        self.unsent = 0
        """Bytes of answers that wait for their windows."""
        self.sent_frames = 0
        """DATA frames since this was last set to 0."""
        self.initial_window = WINDOW
        self.is_writable = True
        self._limits = limits
        self._to_write = to_write
        self._ended = ended
        self._begin = _NO_TABLE
        self._keeps = keeps
        self._told = 0
        """The unsent bytes of which `keeps` was told."""
        self._window = WINDOW
        self._frame_max = FRAME_MAX
        self._out: list[bytes] = []
        self._out_size = 0
        self._waiting: dict[int, Call] = {}
        """Calls with something to send, and a window for it."""

    def put(self, frames: bytes) -> None:
        """Sends frames that no window holds back."""
        if not self._out:
            self._to_write()
        self._out.append(frames)
        self._out_size += len(frames)

    def put_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Sends one such frame."""
        self.put(frame_of(kind, flags, stream, payload))

    def flush(self, transport: asyncio.Transport) -> None:
        """Writes all that there is to send, as far as the windows and the socket let it."""
        while True:
            while self._waiting and self._window > 0 and not self._is_full():
                self._send_piece(next(iter(self._waiting.values())))
            if not self._out:
                break
            transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._out.clear()
            self._out_size = 0
        self._tell()

    def _tell(self) -> None:
        """Says how many bytes are unsent. It may end the connection, so it stands behind the rest
        of a step.
        """
        change = self.unsent - self._told
        if change:
            self._told = self.unsent
            self._keeps(change)

    def _is_full(self) -> bool:
        return not self.is_writable or self._out_size > self._limits.written_bytes

    # --- answers ---

    def answer(self, call: Call, message: bytes | None, trailers: bytes | None) -> None:
        """See `Line.answer`."""
        size = 0 if message is None else PREFIX + len(message)
        must_wait = self._waiting or size > min(call.send_window, self._window) or self._is_full()
        if call.answers_size or (size and must_wait):
            self._keep(call, message, size, trailers)
            return
        call.send_window -= size
        self._window -= size
        self.sent_frames += 1
        head = b"" if call.has_head else self._begun(_HEAD)
        call.has_head = True
        if message is None and trailers is not None:
            head, trailers = b"", head + trailers
        self.put(answer_frames(call.stream, head, message, trailers, self._frame_max))
        if trailers is not None:
            self._ended(call)

    def refuse(self, call: Call) -> None:
        """Answers as to a browser: not by gRPC's status, but by HTTP's, with a text."""
        assert call.refusal is not None
        status, text = call.refusal
        block = encode_fields([(":status", status), ("content-type", "text/plain")])
        self.put_frame(FrameKind.HEADERS, END_HEADERS, call.stream, self._begun(block))
        call.has_head = call.is_over = True
        call.rest, call.trailers = text.encode(), b""
        self._wait(call, len(call.rest))
        self._tell()

    def _begun(self, block: bytes) -> bytes:
        """The first header block of an answer, as the connection sends it."""
        begin, self._begin = self._begin, b""
        return begin + block if begin else block

    def _keep(self, call: Call, message: bytes | None, size: int, trailers: bytes | None) -> None:
        call.trailers = trailers
        if message is not None:
            if call.answers is None:
                call.answers = deque()
            call.answers.append(message)
            self._wait(call, size)
            self._tell()

    def _wait(self, call: Call, size: int) -> None:
        call.answers_size += size
        self.unsent += size
        if call.answers_size and call.send_window > 0:
            self._waiting[call.stream] = call
            self._to_write()

    def _send_piece(self, call: Call) -> None:
        """Sends one frame of a call that waits, and puts the call behind the others that do."""
        del self._waiting[call.stream]
        if not call.has_head:
            call.has_head = True
            self.put_frame(FrameKind.HEADERS, END_HEADERS, call.stream, self._begun(_HEAD))
        if call.rest_at == len(call.rest) and call.answers:
            message = call.answers.popleft()
            call.rest, call.rest_at = b"\0" + len(message).to_bytes(4, "big") + message, 0
        left = len(call.rest) - call.rest_at
        size = min(self._frame_max, call.send_window, self._window, left)
        piece = call.rest[call.rest_at : call.rest_at + size]
        call.rest_at += size
        call.send_window -= size
        self._window -= size
        self.sent_frames += 1
        self._wait(call, -size)
        is_last = not call.answers_size and call.trailers == b""
        self.put_frame(FrameKind.DATA, END_STREAM if is_last else 0, call.stream, piece)
        if not call.answers_size and call.trailers is not None:
            if call.trailers:
                flags = END_HEADERS | END_STREAM
                self.put_frame(FrameKind.HEADERS, flags, call.stream, call.trailers)
            self._ended(call)
        call.wake_sender()

    def drop(self, call: Call) -> None:
        """Forgets the answers that a call still has."""
        self._waiting.pop(call.stream, None)
        size, call.answers_size = call.answers_size, 0
        call.answers, call.rest, call.rest_at = None, b"", 0
        if size:
            self.unsent -= size
            self._tell()

    # --- windows ---

    def resize_frames(self, size: int) -> None:
        """The client's SETTINGS_MAX_FRAME_SIZE."""
        self._frame_max = min(size, _SENT_MAX)

    def widen(self, calls: Iterable[Call], more: int) -> bool:
        """Widens the windows of calls (`more` may be below 0); False if one would be too wide."""
        is_legal = True
        for call in calls:
            call.send_window += more
            is_legal = is_legal and call.send_window <= WINDOW_MAX
            self._wait(call, 0)
        return is_legal

    def widen_all(self, more: int) -> bool:
        """Widens the window of the connection; False if it would be too wide."""
        self._window += more
        if self._waiting:
            self._to_write()
        return self._window <= WINDOW_MAX
