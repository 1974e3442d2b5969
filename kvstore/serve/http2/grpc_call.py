"""Calls, as handlers see them: a request, what it came with, and the ways to answer it.

The idea: a table says for each path which kind of handler it has.

    methods = {
        "/kvmq.Echo/One": Unary(echo),                # async (call, request) -> answer
        "/kvmq.Echo/Many": Gathered(echo_all),        # (calls), all of one turn of the loop
        "/kvmq.Echo/Stream": ServerStream(stream),    # async generator (call, request)
        "/kvmq.Echo/Talk": Bidirectional(talk),       # async generator (call, requests)
    }

A call of the first, third or fourth kind has a task, which is cancelled when the client takes the
call back, its deadline passes or its connection is lost. A gathered call has none: its handler
answers it at once, or later from a callback, by `send`, `finish` and `fail`.

Invariants: a call ends once; all that is said behind its end is dropped without an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kvstore.serve.http2.grpc_status import CallFailed, Code, inflate, status_block
from kvstore.serve.http2.h2_limits import H2Limits

Fields = list[tuple[str, str]]

PREFIX: Final = 5
"""Bytes in front of a message: whether it is compressed, and its size."""
_OK: Final = status_block(Code.OK, "")
_DRAIN_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Unary:
    """One request, one answer."""

    handler: Callable[[Call, bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class ServerStream:
    """One request, any number of answers; each waits until the client takes those before it."""

    handler: Callable[[Call, bytes], AsyncGenerator[bytes, None]]


@dataclass(frozen=True, slots=True)
class Bidirectional:
    """Requests and answers in any order; a client may send ahead as far as its window reaches."""

    handler: Callable[[Call, AsyncIterator[bytes]], AsyncGenerator[bytes, None]]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Calls with one request each, all together that came in one turn of the loop. The handler must
    not wait. An error that it raises ends those of its calls that are not answered.
    """

    handler: Callable[[list[Call]], None]


Method = Unary | ServerStream | Bidirectional | Gathered


class Line(Protocol):
    """The connection of a call, as the call needs it."""

    peer: str
    limits: H2Limits
    when_lost: dict[str, Callable[[], None]]
    """Called when the connection is gone, by names that its users chose."""

    def answer(self, call: Call, message: bytes | None, trailers: bytes | None) -> None:
        """Sends a message, and the block of the trailers that end the call, as soon as the windows
        let it.
        """
        ...

    def taken(self, call: Call) -> None:
        """A request was taken, so the client may send more."""
        ...

    def end_held(self) -> None:
        """Ends the connection, because the server holds too much for it."""
        ...


class Call:
    """One call of a client. Handlers use what stands before `task`; its connection, the rest."""

    __slots__ = (
        "_arrived", "_bytes", "_callback", "_drained", "_waiting", "answers", "answers_size",
        "deadline", "has_head", "has_request", "held", "is_ended", "is_over", "length_left",
        "line", "metadata", "method", "path", "receive_window", "refusal", "request", "rest",
        "rest_at", "send_window", "stream", "task", "trailers", "untaken",
    )  # fmt: skip

    def __init__(
        self,
        line: Line,
        stream: int,
        path: str,
        method: Method | None,
        metadata: dict[str, str],
        send_window: int,
    ) -> None:
        self.path = path
        self.metadata = metadata
        """By names in lower case. Values of one name are joined by commas; binary ones (`…-bin`)
        are as they came."""
        self.deadline: float | None = None
        """In the loop's time."""
        self.request = b""
        """The one of a call that has one."""
        self.is_over = False
        """Whether it was answered, or the client does not wait for an answer any more."""
        self.task: asyncio.Task[None] | None = None
        self.line = line
        self.stream = stream
        self.method = method
        self.is_ended = False
        """Whether the client has sent all."""
        self.has_head = False
        """Whether the answer's header block was sent."""
        self.has_request = False
        self.send_window = send_window
        self.receive_window = line.limits.stream_window
        self.length_left: int | None = None
        """Bytes of DATA that `content-length` still promises."""
        self.held = 0
        """The bytes of requests that the connection counts for the call."""
        self.untaken = 0
        """The bytes of whole requests that the handler has not taken."""
        self.answers: deque[bytes] | None = None
        """Messages that wait for their windows."""
        self.answers_size = 0
        self.refusal: tuple[str, str] | None = None
        """HTTP's status and a text for a request that is no call, once it is whole."""
        self.rest = b""
        """The message that is being sent, from `rest_at` on unsent."""
        self.rest_at = 0
        self.trailers: bytes | None = None
        """The block that ends the answer; empty: its last message does."""
        self._bytes: bytearray | None = None
        self._arrived: deque[bytes] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._callback: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.line.peer

    def seconds_left(self) -> float | None:
        """Until the deadline; None if there is none."""
        if self.deadline is None:
            return None
        return max(self.deadline - asyncio.get_running_loop().time(), 0.0)

    # --- answering ---

    def send(self, message: bytes) -> None:
        """Sends an answer that is not the last; what does not fit into the windows waits here."""
        _check(message)
        if not self.is_over:
            self.line.answer(self, message, None)

    async def drain(self) -> None:
        """Waits until the client has taken most of the answers."""
        while not self.is_over and self.answers_size > _DRAIN_BYTES:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def finish(self, message: bytes | None = None) -> None:
        """Ends the call well, with a last answer if there is one."""
        _check(message)
        if not self.is_over:
            self.is_over = True
            self.line.answer(self, message, _OK)

    def fail(self, code: Code, text: str) -> None:
        """Ends the call with an error; answers before it still go out."""
        if not self.is_over:
            self.is_over = True
            self.line.answer(self, None, status_block(code, text))

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Calls back, once, if the call ends by itself: taken back, too late, or cut off."""
        self._callback = callback

    # --- the connection's side ---

    def give_up(self, code: Code, text: str) -> None:
        """Fails the call, whatever its handler does."""
        self.fail(code, text)
        self.stop()

    def stop(self) -> None:
        """Ends the handler's work, because nobody waits for it any more."""
        self.is_over = True
        self._wake_reader()
        self.wake_sender()
        if self.task is not None:
            self.task.cancel()
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def wake_sender(self) -> None:
        """Lets `drain` look again."""
        if self._drained is not None and (self.is_over or self.answers_size <= _DRAIN_BYTES):
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    # --- requests ---

    def feed(self, data: bytes) -> None:
        """Takes bytes of requests. Raises CallFailed for a message that is too large or can't be
        read, and for a second one where one is allowed.
        """
        buffer: bytes | bytearray = data
        if self._bytes:
            self._bytes += data
            buffer = self._bytes
        at, end = 0, len(buffer)
        size_max = self.line.limits.message_bytes
        while end - at >= PREFIX:
            size = int.from_bytes(buffer[at + 1 : at + PREFIX], "big")
            if size > size_max:
                raise CallFailed(
                    Code.RESOURCE_EXHAUSTED,
                    f"a message has {size} bytes; {size_max} are the most here",
                )
            if end - at - PREFIX < size:
                break
            message = bytes(buffer[at + PREFIX : at + PREFIX + size])
            if buffer[at]:
                encoding = self.metadata.get("grpc-encoding", "identity")
                message = inflate(message, encoding, size_max)
            at += PREFIX + size
            self._take(message)
        if buffer is self._bytes:
            del self._bytes[:at]
        elif at < end:
            self._bytes = bytearray(data[at:])

    def _take(self, message: bytes) -> None:
        if isinstance(self.method, Bidirectional):
            if self._arrived is None:
                self._arrived = deque()
            self._arrived.append(message)
            self._wake_reader()
        elif self.has_request:
            raise CallFailed(Code.INTERNAL, "the call has more than one request")
        else:
            self.request = message
            self.has_request = True
        self.untaken += len(message)

    def size_held(self) -> int:
        """The bytes of requests that are not whole, or not taken."""
        return self.untaken + (len(self._bytes) if self._bytes else 0)

    def end_requests(self) -> None:
        """The client has sent all. Raises CallFailed where something is missing."""
        self.is_ended = True
        if self._bytes:
            raise CallFailed(Code.INTERNAL, "a request is cut short")
        if isinstance(self.method, Bidirectional):
            self._wake_reader()
        elif not self.has_request:
            raise CallFailed(Code.INTERNAL, "the call has no request")

    def _wake_reader(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def requests(self) -> AsyncIterator[bytes]:
        """The requests of a bidirectional call, as they come."""
        while not self.is_over:
            if self._arrived:
                message = self._arrived.popleft()
                self.untaken -= len(message)
                self.line.taken(self)
                yield message
            elif self.is_ended:
                return
            else:
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting


def _check(message: object) -> None:
    """Refuses other answers before any of their frames is made."""
    if message is not None and type(message) is not bytes:
        raise TypeError(f"an answer is bytes, not {type(message).__name__}")
