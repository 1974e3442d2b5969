"""One connection of HTTP/2: streams, windows, settings, and the limits that a client must keep.

The idea: a connection is told of bytes, and tells its server of calls that may begin. Answers go
out through its `H2Sender`.

Invariants:

- A fault of one stream ends that stream; a fault of the connection ends it, with GOAWAY.
- Header blocks are decoded in the order in which they came, those of refused streams too.
- Requests that are kept for their handlers are bounded, and so is the work that is not theirs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from kvstore.core.transport.h2_frames import read_head, split_frames
from kvstore.core.transport.hpack import HeaderDecoder
from kvstore.errors import FormatError
from kvstore.serve.http2.grpc_call import Bidirectional, Call, Fields, Line, Method
from kvstore.serve.http2.grpc_status import CallFailed, Code, timeout_seconds
from kvstore.serve.http2.h2_limits import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_MAX,
    WINDOW,
    WINDOW_MAX,
    FrameKind,
    H2Limits,
)
from kvstore.serve.http2.h2_sending import H2Sender

if TYPE_CHECKING:
    from kvstore.core.transport.h2_frames import Frame

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_GRPC_TYPE: Final = re.compile(r"application/grpc(?:[+;].*)?")
_TOO_MUCH_HELD: Final = "too many requests are not yet whole, or answers not yet taken"
_LEAVING: Final = b"leaving."
"""The PING whose answer says that the client knows of GOAWAY."""

# HTTP/2's error codes.
_NO_ERROR: Final = 0
_PROTOCOL_ERROR: Final = 1
_FLOW_CONTROL_ERROR: Final = 3
_STREAM_CLOSED: Final = 5
_REFUSED_STREAM: Final = 7
_COMPRESSION_ERROR: Final = 9
_ENHANCE_YOUR_CALM: Final = 11


class _Fault(Exception):
    """The connection's, or with no text one stream's."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Hub(Protocol):
    """The server of a connection, as the connection needs it."""

    limits: H2Limits
    methods: dict[str, Method]
    buffer: memoryview
    unsent: Callable[[Line, int], None]

    def opened(self, connection: H2Connection) -> None:
        """The connection is there."""

    def closed(self, connection: H2Connection) -> None:
        """The connection is gone."""

    def arrived(self, call: Call) -> None:
        """The call may begin."""

    def to_write(self, connection: H2Connection) -> None:
        """The connection wants `flush` to be called at the turn's end."""

    def set_deadline(self, call: Call, seconds: float) -> None:
        """The call ends in so many seconds."""

    def forget(self, call: Call) -> None:
        """The call is over."""

    def held_more(self, size: int) -> H2Connection | None:
        """The connections hold so many bytes more, or less; returns the one that has to end."""


class H2Connection(asyncio.BufferedProtocol):
    """The server's end of a connection, as asyncio's protocol."""

    def __init__(self, hub: Hub) -> None:
        self.limits = hub.limits
        self.peer = ""
        self.when_lost: dict[str, Callable[[], None]] = {}
        self.calls: dict[int, Call] = {}
        self._hub = hub
        self._sender = H2Sender(
            hub.limits, self._to_write, self._answered, lambda size: hub.unsent(self, size)
        )
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._decoder = HeaderDecoder()
        self._rest = b""
        self._has_preface = False
        self._has_settings = False
        self._block_head: Frame | None = None
        """The first frame of a header block that is not whole, and the block so far."""
        self._block = b""
        self._last = 0
        """The highest stream that the client opened; those of `_skipped` it never will."""
        self._skipped = range(0)
        self._reset: dict[int, None] = {}
        """The last streams that were reset here: their frames that come late are passed over."""
        self._window = WINDOW
        self.held = 0
        """Bytes of requests that are not whole, or not taken by their handlers."""
        self._is_closing = False
        self._is_leaving = False
        self._has_left = False
        """Whether the client was told which calls are the last."""
        self._idle_frames = 0
        self._resets = 0
        self._since = self._loop.time()
        """The time of the last progress, for what has to come or to be taken within a time."""

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        limits = self.limits
        transport.set_write_buffer_limits(high=limits.written_bytes)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix"
        settings = ((3, limits.streams), (4, limits.stream_window), (6, limits.header_list_bytes))
        payload = b"".join(n.to_bytes(2, "big") + v.to_bytes(4, "big") for n, v in settings)
        self._sender.put_frame(FrameKind.SETTINGS, 0, 0, payload)
        self._credit_all()
        self._hub.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio. All connections share a buffer, which is empty again after each read."""
        return self._hub.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._is_closing:
            return
        data: memoryview | bytes = self._hub.buffer[:nbytes]
        if self._rest:
            data = self._rest + data
        try:
            if not self._has_preface:
                if data[: len(_PREFACE)] != _PREFACE[: len(data)]:
                    raise _Fault(_PROTOCOL_ERROR, "this is no HTTP/2")
                if len(data) < len(_PREFACE):
                    self._rest = bytes(data)
                    return
                self._has_preface = True
                data = data[len(_PREFACE) :]
            frames, used = split_frames(data, FRAME_MAX)
            self._rest = bytes(data[used:])
            for frame in frames:
                self._receive(frame)
        except _Fault as e:
            self._end(e.code, e.text)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._is_closing = True
        self._cancel_all()
        self._hub.closed(self)
        for lost in self.when_lost.values():
            lost()
        self.when_lost.clear()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._sender.is_writable = False
        self._since = self._loop.time()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._sender.is_writable = True
        self._to_write()

    # --- the server's side ---

    @property
    def unsent(self) -> int:
        """Bytes of answers that wait for the client."""
        return self._sender.unsent

    def _to_write(self) -> None:
        self._hub.to_write(self)

    def flush(self) -> None:
        """Writes all that there is to send, as far as the windows and the socket let it."""
        if self._transport is not None and not self._is_closing:
            self._sender.flush(self._transport)
            if self._has_left and not self.calls:
                self._is_closing = True
                self._transport.close()

    def tick(self, now: float) -> None:
        """Each second: counts anew, and ends a connection that keeps waiting for its client."""
        self._idle_frames = self._resets = self._sender.sent_frames = 0
        is_begun = self._has_settings and self._block_head is None and not self._is_closing
        wait = self.limits.stall_seconds if is_begun else self.limits.first_seconds
        if (not is_begun or not self._sender.is_writable) and now - self._since > wait:
            self.abort()

    def leave(self) -> None:
        """Takes no new calls; the client is told, and the connection ends with its last call. Calls
        that are on their way are still taken, until the client has answered a PING.
        """
        if not self._is_leaving and not self._is_closing:
            self._is_leaving = True
            self._put_goaway(WINDOW_MAX, _NO_ERROR, "")
            self._sender.put_frame(FrameKind.PING, 0, 0, _LEAVING)

    def shut(self, code: Code, text: str) -> None:
        """Fails all calls, and ends the connection."""
        for call in list(self.calls.values()):
            call.give_up(code, text)
        self._end(_NO_ERROR, text)

    def end_held(self) -> None:
        """See `Line.end_held`."""
        self._end(_ENHANCE_YOUR_CALM, _TOO_MUCH_HELD)

    def abort(self) -> None:
        """Cuts the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, code: int, text: str) -> None:
        """Ends the connection: what can be written now, then GOAWAY, and no more."""
        if not self._is_closing and self._transport is not None:
            self._sender.flush(self._transport)
            self._is_closing = True
            self._since = self._loop.time()
            self._cancel_all()
            self._put_goaway(self._last, code, text)
            self._sender.flush(self._transport)
            self._transport.close()

    def _put_goaway(self, last: int, code: int, text: str) -> None:
        payload = last.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()
        self._sender.put_frame(FrameKind.GOAWAY, 0, 0, payload)

    # --- frames ---

    def _receive(self, frame: Frame) -> None:
        kind, _, stream, _, _, fault = frame
        if fault > 0 or self._block_head is not None or not self._has_settings:
            self._check_order(frame)
        try:
            if fault and kind != FrameKind.HEADERS:
                self._count_idle()
                raise _Fault(-fault)
            _BY_KIND.get(kind, H2Connection._on_other)(self, frame)
        except _Fault as e:
            if e.text:
                raise
            self._count_reset()
            self._cancel(self.calls.get(stream))
            self._put_reset(stream, e.code)

    def _check_order(self, frame: Frame) -> None:
        kind, flags, stream, _, _, fault = frame
        head = self._block_head
        if head is not None and (kind != FrameKind.CONTINUATION or stream != head[2]):
            raise _Fault(_PROTOCOL_ERROR, "a header block is interrupted")
        if fault > 0:
            raise _Fault(fault, f"a frame of kind {kind} is illegal")
        if not self._has_settings and (kind != FrameKind.SETTINGS or flags & ACK):
            raise _Fault(_PROTOCOL_ERROR, "SETTINGS must come first")
        self._has_settings = True

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > self.limits.idle_frames + 2 * self._sender.sent_frames:
            raise _Fault(_ENHANCE_YOUR_CALM, "too many frames carry no work")

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > self.limits.resets:
            raise _Fault(_ENHANCE_YOUR_CALM, "too many calls are taken back")

    def _cancel(self, call: Call | None) -> None:
        if call is not None:
            self._remove(call)
            call.stop()

    def _cancel_all(self) -> None:
        for call in list(self.calls.values()):
            self._cancel(call)

    def _put_reset(self, stream: int, code: int) -> None:
        self._reset[stream] = None
        if len(self._reset) > self.limits.resets:
            del self._reset[next(iter(self._reset))]
        self._sender.put_frame(FrameKind.RST_STREAM, 0, stream, code.to_bytes(4, "big"))

    def _is_idle(self, stream: int) -> bool:
        return stream > self._last or not stream & 1

    def _on_settings(self, frame: Frame) -> None:
        self._count_idle()
        if frame[1] & ACK:
            return
        payload, sender = frame[3], self._sender
        for at in range(0, len(payload), 6):
            number = int.from_bytes(payload[at : at + 2], "big")
            value = int.from_bytes(payload[at + 2 : at + 6], "big")
            if number == 2 and value > 1:
                raise _Fault(_PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is 0 or 1")
            if number == 4:
                more, sender.initial_window = value - sender.initial_window, value
                if value > WINDOW_MAX or not sender.widen(self.calls.values(), more):
                    raise _Fault(_FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is too large")
            elif number == 5:
                if not FRAME_MAX <= value < 1 << 24:
                    raise _Fault(_PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is illegal")
                sender.resize_frames(value)
        sender.put_frame(FrameKind.SETTINGS, ACK, 0, b"")

    def _on_window(self, frame: Frame) -> None:
        self._count_idle()
        stream, more = frame[2], int.from_bytes(frame[3], "big") & WINDOW_MAX
        if not stream:
            if not self._sender.widen_all(more):
                raise _Fault(_FLOW_CONTROL_ERROR, "the connection's window is too large")
        elif (call := self.calls.get(stream)) is not None:
            if not self._sender.widen((call,), more):
                raise _Fault(_FLOW_CONTROL_ERROR)
        elif self._is_idle(stream):
            raise _Fault(_PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream")

    def _on_ping(self, frame: Frame) -> None:
        self._count_idle()
        if not frame[1] & ACK:
            self._sender.put_frame(FrameKind.PING, ACK, 0, frame[3])
        elif self._is_leaving and frame[3] == _LEAVING:
            self._put_goaway(self._last, _NO_ERROR, "")
            self._has_left = True

    def _on_reset(self, frame: Frame) -> None:
        if self._is_idle(frame[2]):
            raise _Fault(_PROTOCOL_ERROR, "RST_STREAM of an idle stream")
        self._count_reset()
        self._reset.pop(frame[2], None)
        self._cancel(self.calls.get(frame[2]))

    def _on_other(self, frame: Frame) -> None:
        self._count_idle()

    # --- the heads of requests ---

    def _on_headers(self, frame: Frame) -> None:
        if frame[1] & END_HEADERS:
            self._on_block(frame, frame[3])
        else:
            self._since = self._loop.time()
            self._block_head = frame
            self._block = frame[3]

    def _on_continuation(self, frame: Frame) -> None:
        head = self._block_head
        if head is None:
            raise _Fault(_PROTOCOL_ERROR, "a CONTINUATION continues nothing")
        self._count_idle()
        self._block += frame[3]
        if len(self._block) > self.limits.header_block_bytes:
            raise _Fault(_ENHANCE_YOUR_CALM, "a header block is too large")
        if frame[1] & END_HEADERS:
            self._block_head = None
            self._on_block(head, self._block)

    def _on_block(self, frame: Frame, block: bytes) -> None:
        _, flags, stream, _, _, fault = frame
        try:
            fields = self._decoder.decode(block, self.limits.header_list_bytes)
        except FormatError as e:
            raise _Fault(_COMPRESSION_ERROR, str(e)) from None
        call = self.calls.get(stream)
        if call is None and not self._opens(stream):
            return
        if fault:
            raise _Fault(-fault)
        try:
            if call is None:
                self._begin(stream, fields, flags)
            else:
                self._on_trailers(call, fields, flags)
        except FormatError:
            raise _Fault(_PROTOCOL_ERROR) from None

    def _opens(self, stream: int) -> bool:
        """Whether HEADERS open a stream; False if they came late."""
        if stream in self._reset:
            return False
        if stream <= self._last and stream & 1 and stream not in self._skipped:
            raise _Fault(_STREAM_CLOSED, "HEADERS of a stream that is over")
        if self._is_idle(stream) and stream & 1:
            self._skipped = range(self._last + 2 if self._last else 1, stream, 2)
            self._last = stream
            return True
        raise _Fault(_PROTOCOL_ERROR, "clients open streams of odd numbers, in rising order")

    def _on_trailers(self, call: Call, fields: Fields | None, flags: int) -> None:
        if call.is_ended:
            raise _Fault(_STREAM_CLOSED)
        if not flags & END_STREAM:
            raise _Fault(_PROTOCOL_ERROR)
        if fields is not None:
            read_head(fields, True)
        self._on_end(call)

    def _begin(self, stream: int, fields: Fields | None, flags: int) -> None:
        sender, limits = self._sender, self.limits
        is_full = len(self.calls) >= limits.streams or sender.unsent > limits.unsent_bytes
        if is_full or self._has_left:
            raise _Fault(_REFUSED_STREAM)
        name, path, metadata = ("", "", {}) if fields is None else read_head(fields, False)
        method = self._hub.methods.get(path)
        call = Call(self, stream, path, method, metadata, sender.initial_window)
        self.calls[stream] = call
        self._set_length(call, metadata.get("content-length"), bool(flags & END_STREAM))
        if fields is None:
            call.refusal = "431", "the header list is too large\n"
        elif name != "POST":
            call.refusal = "405", "gRPC calls are POST requests\n"
        elif not _GRPC_TYPE.fullmatch(metadata.get("content-type", "")):
            call.refusal = "415", "gRPC calls are of the type application/grpc\n"
        else:
            self._accept(call)
            return
        if call.is_ended:
            sender.refuse(call)

    def _set_length(self, call: Call, length: str | None, is_ended: bool) -> None:
        call.is_ended = is_ended
        if length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 16):
                raise _Fault(_PROTOCOL_ERROR)
            call.length_left = int(length)
            if is_ended and call.length_left:
                raise _Fault(_PROTOCOL_ERROR)

    def _accept(self, call: Call) -> None:
        timeout = call.metadata.get("grpc-timeout")
        encoding = call.metadata.get("grpc-encoding", "identity")
        try:
            if call.method is None:
                raise CallFailed(Code.UNIMPLEMENTED, f"there is no method {call.path}")
            if timeout is not None:
                self._hub.set_deadline(call, timeout_seconds(timeout))
            if encoding not in ("identity", "gzip"):
                raise CallFailed(
                    Code.UNIMPLEMENTED, f"grpc-encoding is {encoding}; identity and gzip are known"
                )
            if call.is_ended:
                call.end_requests()
        except CallFailed as e:
            call.give_up(e.code, e.text)
            return
        if isinstance(call.method, Bidirectional):
            self._hub.arrived(call)

    # --- the bodies of requests ---

    def _on_data(self, frame: Frame) -> None:
        _, flags, stream, data, size, _ = frame
        self._window -= size
        if self._window < 0:
            raise _Fault(_FLOW_CONTROL_ERROR, "DATA is beyond the connection's window")
        if 2 * self._window < self.limits.connection_window:
            self._credit_all()
        if not data and not flags & END_STREAM:
            self._count_idle()
        call = self.calls.get(stream)
        if call is None or call.is_ended:
            if self._is_idle(stream):
                raise _Fault(_PROTOCOL_ERROR, "DATA of an idle stream")
            if stream not in self._reset:
                raise _Fault(_STREAM_CLOSED)
            return
        self._count_data(call, size, len(data))
        if not call.is_over and call.refusal is None:
            self._feed(call, data)
        if flags & END_STREAM:
            self._on_end(call)
        else:
            self._credit(call)

    def _count_data(self, call: Call, size: int, data_size: int) -> None:
        call.receive_window -= size
        if call.receive_window < 0:
            raise _Fault(_FLOW_CONTROL_ERROR)
        if call.length_left is not None:
            call.length_left -= data_size
            if call.length_left < 0:
                raise _Fault(_PROTOCOL_ERROR)

    def _feed(self, call: Call, data: bytes) -> None:
        try:
            call.feed(data)
            self._hold(call, call.size_held())
            if self.held > self.limits.held_bytes:
                raise CallFailed(Code.RESOURCE_EXHAUSTED, "too many requests are not yet whole")
        except CallFailed as e:
            call.give_up(e.code, e.text)

    def _hold(self, call: Call, size: int) -> None:
        more = size - call.held
        self.held += more
        call.held = size
        most = self._hub.held_more(more)
        if most is self:
            raise _Fault(_ENHANCE_YOUR_CALM, _TOO_MUCH_HELD)
        if most is not None:
            most.end_held()

    def _on_end(self, call: Call) -> None:
        call.is_ended = True
        if call.length_left:
            raise _Fault(_PROTOCOL_ERROR)
        if call.is_over:
            return
        if call.refusal is not None:
            self._sender.refuse(call)
            return
        try:
            call.end_requests()
        except CallFailed as e:
            call.give_up(e.code, e.text)
            return
        if not isinstance(call.method, Bidirectional):
            self._hub.arrived(call)

    def taken(self, call: Call) -> None:
        """See `Line.taken`."""
        self._hold(call, call.size_held())
        self._credit(call)

    def _credit(self, call: Call) -> None:
        window = self.limits.stream_window
        more = window - call.untaken - call.receive_window
        if 2 * more >= window and not call.is_ended and not call.is_over:
            call.receive_window += more
            payload = more.to_bytes(4, "big")
            self._sender.put_frame(FrameKind.WINDOW_UPDATE, 0, call.stream, payload)

    def _credit_all(self) -> None:
        more = self.limits.connection_window - self._window
        self._window += more
        self._sender.put_frame(FrameKind.WINDOW_UPDATE, 0, 0, more.to_bytes(4, "big"))

    # --- the ends of calls ---

    def answer(self, call: Call, message: bytes | None, trailers: bytes | None) -> None:
        """See `Line.answer`."""
        self._sender.answer(call, message, trailers)

    def _answered(self, call: Call) -> None:
        """The answer is whole; a client that still sends is told that nobody reads it."""
        if not call.is_ended:
            self._put_reset(call.stream, _NO_ERROR)
        self._remove(call)

    def _remove(self, call: Call) -> None:
        if self.calls.pop(call.stream, None) is not None:
            self._hold(call, 0)
            self._sender.drop(call)
            self._hub.forget(call)
            if self._has_left:
                self._to_write()


_BY_KIND: Final[dict[int, Callable[[H2Connection, Frame], None]]] = {
    FrameKind.DATA: H2Connection._on_data,
    FrameKind.HEADERS: H2Connection._on_headers,
    FrameKind.RST_STREAM: H2Connection._on_reset,
    FrameKind.SETTINGS: H2Connection._on_settings,
    FrameKind.PING: H2Connection._on_ping,
    FrameKind.WINDOW_UPDATE: H2Connection._on_window,
    FrameKind.CONTINUATION: H2Connection._on_continuation,
}
