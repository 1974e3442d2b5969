"""The HTTP/2 server: its doors, its connections, and the turns in which calls and answers go.

The idea: all calls that arrived in one turn of the loop begin together, at the next turn's start;
then each connection with something to send writes it, once. TLS and plaintext come through one
door: the first byte of a connection tells which, and is looked at without being taken.

Invariants: no call of a client makes another's wait longer than its handler runs; a deadline ends
no call early, and each within a tenth of a second; after `close` no task of a handler is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

from kvstore.process.background import traced
from kvstore.serve.http2.grpc_call import (
    Bidirectional,
    Call,
    Gathered,
    Line,
    Method,
    ServerStream,
    Unary,
)
from kvstore.serve.http2.grpc_status import CallFailed, Code
from kvstore.serve.http2.h2_connection import H2Connection
from kvstore.serve.http2.h2_limits import H2Limits

_log = logging.getLogger("kvmq")

_READ: Final = 256 << 10
_TLS_HANDSHAKE: Final = b"\x16"
_DUE_PER_SECOND: Final = 10
_ACCEPTED_MAX: Final = 64
"""Connections accepted in one turn, so that those that are there get theirs."""
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LEAVE_WITHIN: Final = 0.5
"""Seconds of a server that drains for clients that have no calls."""
_UNFINISHED: Final = "the server stops"


def server_tls(certificates: str, key: str) -> ssl.SSLContext:
    """The TLS of a server: 1.2 or newer, for HTTP/2; paths of PEM files with the chain and the key.
    Raises OSError (ssl.SSLError) for files that are not such.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificates, key)
    return context


class H2Server:
    """A server of gRPC calls, to be used within one running loop."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: H2Limits | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        is_plain: bool = True,
        unsent: Callable[[Line, int], None] = lambda line, size: None,
    ) -> None:
        """`methods` by path (`/package.Service/Method`); `tls` from `server_tls`, None for none;
        `is_plain`: whether plaintext is served, too; `unsent` is told how many bytes of answers
        more, or less, wait for a connection's client.
        """
        self.methods = dict(methods)
        self.limits = limits or H2Limits()
        self.buffer = memoryview(bytearray(_READ))
        self.connections: dict[H2Connection, None] = {}
        self._tls = tls
        self._is_plain = is_plain
        self.unsent = unsent
        self._loop = asyncio.get_running_loop()
        self._doors: list[socket.socket] = []
        self._coming: dict[socket.socket, float] = {}
        """Connections of which no byte has come, and since when."""
        self._greeting = set[asyncio.Task[None]]()
        self._running = set[asyncio.Task[None]]()
        self._arrived: list[Call] = []
        self._to_write: dict[H2Connection, None] = {}
        self._has_turn = False
        self._held = 0
        """Bytes of requests that connections hold."""
        self._due: dict[int, set[Call]] = {}
        """Calls by the tenth of a second in which their deadline is over."""
        self._due_from = 0
        self._due_timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._ticker = self._loop.call_later(1.0, self._tick)

    @property
    def count(self) -> int:
        """How many connections there are, with those that have not begun to speak."""
        return len(self.connections) + len(self._coming) + len(self._greeting)

    # --- doors ---

    def listen(self, door: socket.socket) -> None:
        """Serves a listening socket, TCP or Unix, until `drain` or `close`, which close it."""
        door.setblocking(False)
        self._doors.append(door)
        self._loop.add_reader(door, self._accept, door)

    def _accept(self, door: socket.socket) -> None:
        for _ in range(_ACCEPTED_MAX):
            try:
                came, _ = door.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _NO_FILES:
                    raise
                _log.warning("no connection can be accepted for a second: %s", e.strerror)
                self._loop.remove_reader(door)
                self._loop.call_later(1.0, self._reopen, door)
                return
            if self.count >= self.limits.connections:
                came.close()
                continue
            came.setblocking(False)
            if came.family != socket.AF_UNIX:
                came.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                came.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._coming[came] = self._loop.time()
            self._loop.add_reader(came, self._greet, came)

    def _reopen(self, door: socket.socket) -> None:
        if door in self._doors:
            self._loop.add_reader(door, self._accept, door)

    def _greet(self, came: socket.socket) -> None:
        """The first byte has come."""
        self._loop.remove_reader(came)
        self._coming.pop(came, None)
        try:
            first = came.recv(1, socket.MSG_PEEK)
        except OSError:
            first = b""
        is_tls = first == _TLS_HANDSHAKE and self._tls is not None
        if not first or not (is_tls or self._is_plain):
            came.close()
            return
        task = self._loop.create_task(self._connect(came, self._tls if is_tls else None))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _connect(self, came: socket.socket, tls: ssl.SSLContext | None) -> None:
        wait = self.limits.first_seconds if tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: H2Connection(self), came, ssl=tls, ssl_handshake_timeout=wait
            )
        except OSError as e:
            # A client that gives up, or speaks no TLS; asyncio has closed the socket.
            _log.debug("a connection did not come about: %s", str(e))

    def opened(self, connection: H2Connection) -> None:
        """See `Hub.opened`."""
        self.connections[connection] = None

    def closed(self, connection: H2Connection) -> None:
        """See `Hub.closed`."""
        self.connections.pop(connection, None)
        self._to_write.pop(connection, None)
        self._gone.set()

    # --- turns ---

    def arrived(self, call: Call) -> None:
        """See `Hub.arrived`."""
        self._arrived.append(call)
        self._need_turn()

    def to_write(self, connection: H2Connection) -> None:
        """See `Hub.to_write`."""
        self._to_write[connection] = None
        self._need_turn()

    def _need_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        arrived, self._arrived = self._arrived, []
        together: dict[Gathered, list[Call]] = {}
        for call in arrived:
            if call.is_over:
                continue
            if isinstance(call.method, Gathered):
                together.setdefault(call.method, []).append(call)
            else:
                call.task = self._loop.create_task(_handle(call))
                self._running.add(call.task)
                call.task.add_done_callback(self._running.discard)
        for method, calls in together.items():
            try:
                method.handler(calls)
            except Exception as e:
                _log.error("the handler of %s failed: %s", calls[0].path, traced(e))
                for call in calls:
                    call.fail(Code.INTERNAL, "the handler failed")
        to_write, self._to_write = self._to_write, {}
        self._has_turn = False
        for connection in to_write:
            connection.flush()

    def held_more(self, size: int) -> H2Connection | None:
        """See `Hub.held_more`."""
        self._held += size
        if size <= 0 or self._held <= self.limits.all_held_bytes:
            return None
        return max(self.connections, key=lambda one: one.held)

    # --- deadlines ---

    def set_deadline(self, call: Call, seconds: float) -> None:
        """See `Hub.set_deadline`."""
        call.deadline = self._loop.time() + seconds
        self._due.setdefault(_tenth(call.deadline), set()).add(call)
        if self._due_timer is None:
            self._due_from = int(self._loop.time() * _DUE_PER_SECOND)
            self._due_timer = self._loop.call_later(1 / _DUE_PER_SECOND, self._end_due)

    def forget(self, call: Call) -> None:
        """See `Hub.forget`."""
        if call.deadline is not None:
            tenth = _tenth(call.deadline)
            calls = self._due.get(tenth)
            if calls is not None:
                calls.discard(call)
                if not calls:
                    del self._due[tenth]

    def _end_due(self) -> None:
        now = int(self._loop.time() * _DUE_PER_SECOND)
        for tenth in range(self._due_from, now + 1):
            for call in list(self._due.get(tenth, ())):
                call.give_up(Code.DEADLINE_EXCEEDED, "the call's deadline is over")
        self._due_from = now + 1
        self._due_timer = None
        if self._due:
            self._due_timer = self._loop.call_later(1 / _DUE_PER_SECOND, self._end_due)

    # --- time, and the end ---

    def _tick(self) -> None:
        now = self._loop.time()
        self._ticker = self._loop.call_later(1.0, self._tick)
        for connection in list(self.connections):
            connection.tick(now)
        for came, since in list(self._coming.items()):
            if now - since > self.limits.first_seconds:
                self._drop(came)

    def _drop(self, came: socket.socket) -> None:
        del self._coming[came]
        self._loop.remove_reader(came)
        came.close()

    async def drain(self, seconds: float) -> None:
        """Closes the doors, tells clients to go elsewhere, and waits until their calls are
        answered, `seconds` at most; then closes.
        """
        self._shut_doors()
        until = self._loop.time() + seconds
        was_idle = set[H2Connection]()
        while (self._greeting or self.connections) and (left := until - self._loop.time()) > 0:
            for connection in list(self.connections):
                connection.leave()
            self._gone.clear()
            try:
                await asyncio.wait_for(self._gone.wait(), min(left, _LEAVE_WITHIN))
            except TimeoutError:
                for task in self._greeting:
                    task.cancel()
                idle = {one for one in self.connections if not one.calls and not one.unsent}
                for connection in idle - was_idle:
                    connection.shut(Code.UNAVAILABLE, _UNFINISHED)
                for connection in idle & was_idle:
                    connection.abort()  # TLS ends by an answer as well
                was_idle = idle
        await self.close()

    async def close(self) -> None:
        """Fails the calls that are not answered, and closes all connections and doors."""
        self._shut_doors()
        for connection in list(self.connections):
            connection.shut(Code.UNAVAILABLE, _UNFINISHED)
        for task in (*self._greeting, *self._running):
            task.cancel()
        await asyncio.gather(*self._greeting, *self._running, return_exceptions=True)
        for connection in list(self.connections):
            connection.abort()
        self._ticker.cancel()
        if self._due_timer is not None:
            self._due_timer.cancel()

    def _shut_doors(self) -> None:
        for door in self._doors:
            self._loop.remove_reader(door)
            door.close()
        self._doors.clear()
        for came in list(self._coming):
            self._drop(came)


def _tenth(deadline: float) -> int:
    """The first tenth of a second that begins behind the deadline."""
    return int(deadline * _DUE_PER_SECOND) + 1


async def _handle(call: Call) -> None:
    """Runs the handler of a call that has a task."""
    try:
        match call.method:
            case Unary(handler):
                call.finish(await handler(call, call.request))
            case ServerStream(stream):
                await _stream(call, stream(call, call.request))
            case Bidirectional(talk):
                await _stream(call, talk(call, call.requests()))
    except CallFailed as e:
        call.fail(e.code, e.text)
    except asyncio.CancelledError:
        call.fail(Code.CANCELLED, "the call was cancelled")
        raise
    except Exception as e:
        _log.error("the handler of %s failed: %s", call.path, traced(e))
        call.fail(Code.INTERNAL, "the handler failed")


async def _stream(call: Call, answers: AsyncGenerator[bytes, None]) -> None:
    async with contextlib.aclosing(answers):
        async for message in answers:
            call.send(message)
            await call.drain()
    call.finish()
