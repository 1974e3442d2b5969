"""A connection for asyncio: calls of many tasks are under way at a time, and none has a thread.

Invariants: all is in the loop's thread; what tasks send in one turn of the loop is one write; a
connection that breaks is made again, for `reconnect_for` seconds, while the calls wait. A forked
child lets go of its copy of the socket, and asks nothing of the loop: the descriptor by which that
waits is the parent's as well.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from typing import Any, Final, TypeVar

from kvstore.client.exchange import (
    Exchange,
    Sent,
    bye_frame,
    cancel_frame,
    is_final,
)
from kvstore.client.loop_batches import LoopBatches
from kvstore.client.reconnecting import Reconnecting
from kvstore.client.served_calls import Requests, result_of_call
from kvstore.client.served_target import CONNECT_WITHIN, NO_ANSWER, Target, closed, unreachable
from kvstore.clock import SystemClock
from kvstore.errors import StoreError
from kvstore.process.forking import let_go, release_in_child
from kvstore.wire.addresses import reachable
from kvstore.wire.frames import REPLY_MAX, FrameReader

_CLOSE_WITHIN: Final = 1.0
_LOOK: Final = 1.0
"""Seconds after which a thread that waits for a loop looks whether the loop has ended."""

T = TypeVar("T")


class _Stream(asyncio.Protocol):
    """A connection of a link; the link takes what comes as long as the connection is its own."""

    def __init__(self, link: LoopLink) -> None:
        self.transport: asyncio.Transport | None = None
        self.welcomed = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.reader = FrameReader(REPLY_MAX)
        self._link = link

    @property
    def is_ready(self) -> bool:
        """Whether requests can be sent."""
        return self.welcomed.done() and self.transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._link.hello())

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._link.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.gone.set()
        self._link.lost(self, OSError("the server closed the connection"))

    def end(self) -> None:
        """Breaks it off."""
        if self.transport is not None:
            self.transport.abort()


class LoopLink:
    """See the module; `connect` is to be awaited first."""

    def __init__(self, target: Target, reconnect_for: float) -> None:
        self.address = target.address
        self._tls = target.tls
        self._loop = asyncio.get_running_loop()
        self._reconnecting = Reconnecting(reconnect_for, self._loop.time)
        self._exchange = Exchange(target.proof)
        self._stream: _Stream | None = None
        self._out: list[bytes] = []
        self._is_closed = False
        self._connecting: asyncio.Task[None] | None = None
        self._no_room: deque[asyncio.Future[None]] = deque()
        self._given_back = asyncio.Event()
        """No pop whose caller has gone waits for its answer; of a link that is being closed."""
        release_in_child(self)

    @property
    def folder(self) -> str:
        """The served store's folder."""
        return self._exchange.folder

    @property
    def is_up(self) -> bool:
        """Whether a request would be sent at once."""
        return self._stream is not None and self._stream.is_ready

    def seek(self) -> None:
        """Begins to connect again, if there is no connection."""
        if self._stream is None and self._connecting is None and not self._is_closed:
            self._connecting = self._loop.create_task(self._connect_again())

    # --- calls ---

    async def call(self, sent: Sent) -> None:
        """Sends a request, and returns when it is done, or has an event. A cancelled call is taken
        back, see `give_up`.
        """
        await self.begin(sent)
        try:
            await self.wait(sent)
        except asyncio.CancelledError:
            self.give_up(sent)
            raise

    async def begin(self, sent: Sent) -> None:
        """Sends a request, at the end of the loop's turn."""
        while self._exchange.is_full and not self._is_closed:
            future = self._loop.create_future()
            self._no_room.append(future)
            await future
        if self._is_closed:
            raise closed(self.address.url)
        self._exchange.add(sent)
        self.seek()
        if self.is_up:
            sent.was_sent = True
            self._write(sent.frame(again=False))

    async def wait(self, sent: Sent) -> None:
        """Returns when a request is done, or has an event."""
        if sent.is_done or sent.events:
            return
        future = self._loop.create_future()

        def changed() -> None:
            if not future.done():
                future.set_result(None)

        sent.changed = changed
        await future

    def cancel(self, sent: Sent) -> None:
        """Takes a request back, if it is not done; its caller waits for the answer."""
        if sent.is_done:
            return
        if self.is_up:
            self._write(cancel_frame(sent))
        else:
            self._exchange.take_back(sent)
            self._make_room()

    def give_up(self, sent: Sent) -> None:
        """Takes a request back whose caller has gone. Messages that a pop has brought, or
        brings yet, go back to the server.
        """
        if not sent.is_undone:
            self.cancel(sent)
            return
        frames = self._exchange.give_up(sent)
        if frames and self.is_up:
            self._write(frames)
        self._make_room()

    # --- the stream ---

    def hello(self) -> bytes:
        """The first frame of a new stream."""
        return self._exchange.hello()

    def received(self, stream: _Stream, data: bytes) -> None:
        """Takes what came by a stream."""
        if stream is not self._stream:
            return
        try:
            for body in stream.reader.feed(data):
                if stream.welcomed.done():
                    self._exchange.take(body)
                else:
                    self._out += self._exchange.welcome(body)
                    stream.welcomed.set_result(None)
                    self._reconnecting.made(self._exchange.received)
                    self._loop.call_soon(self._flush)
        except StoreError as e:
            self.lost(stream, e)
            return
        answers = self._exchange.answers()
        if answers:
            self._write(answers)
        if not self._exchange.has_given_up:
            self._given_back.set()
        self._make_room()

    def lost(self, stream: _Stream, why: StoreError | OSError) -> None:
        """Goes on after the end of a stream."""
        if stream is not self._stream:
            return
        self._stream = None
        self._given_back.set()
        self._out.clear()
        stream.end()
        error = unreachable(self.address, why) if isinstance(why, OSError) else why
        if not stream.welcomed.done():
            stream.welcomed.set_exception(error)
            return  # the task that connects goes on
        self._reconnecting.lost(why, self._exchange.received)
        if is_final(error):
            self._fail(error)
        if self._exchange.outstanding:
            self.seek()

    def _fail(self, error: StoreError) -> None:
        """Ends all calls that are under way; those that waited for room go on."""
        self._exchange.fail(error)
        self._make_room()

    def _write(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        stream = self._stream
        if stream is not None and stream.is_ready and stream.transport is not None:
            out, self._out = self._out, []
            stream.transport.write(b"".join(out))

    def _make_room(self) -> None:
        """Lets the next call go on that waits for room, which lets the one behind it go on."""
        while self._no_room and (self._is_closed or not self._exchange.is_full):
            future = self._no_room.popleft()
            if not future.done():
                future.set_result(None)
                if not self._is_closed:
                    self._loop.call_soon(self._make_room)
                    return

    # --- connecting ---

    async def connect(self) -> None:
        """`ConnectionLost` if nobody serves there."""
        self._stream = stream = _Stream(self)
        self._out.clear()
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                if self.address.path is None:
                    host, port = self.address.host, self.address.port
                    await self._loop.create_connection(lambda: stream, host, port, ssl=self._tls)
                else:
                    with reachable(self.address.path) as name:
                        await self._loop.create_unix_connection(lambda: stream, name)
                await stream.welcomed
        except BaseException as e:
            self._stream = None
            stream.end()
            if stream.welcomed.done() and not stream.welcomed.cancelled():
                stream.welcomed.exception()  # it is known
            if isinstance(e, ssl.SSLError):
                raise unreachable(self.address, e) from e
            if isinstance(e, OSError):
                text = e.args[1] if len(e.args) > 1 else str(e)
                why = e if isinstance(e, NO_ANSWER) else OSError(text)
                raise unreachable(self.address, why) from e
            raise

    async def _connect_again(self) -> None:
        """As `SocketLink` does."""
        error = self._reconnecting.begin()
        while error is None:
            await asyncio.sleep(self._reconnecting.pause())
            try:
                await self.connect()
                break
            except StoreError as e:
                if self._reconnecting.is_over(e):
                    error = e
        self._connecting = None
        if error is not None:
            self._fail(error)
        elif self._exchange.outstanding:
            self.seek()  # it may be lost by now

    # --- the end ---

    async def close(self) -> None:
        """Ends the session. Calls that are under way raise `StoreClosed`."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError, StoreError):
                await self._connecting
        error = closed(self.address.url)
        if self.is_up:
            self._write(self._exchange.give_up_pops(error))
        self._fail(error)
        stream = self._stream
        if stream is None:
            return
        try:
            await asyncio.sleep(0)  # calls that were cancelled in this turn give up now
            await self._pops_back()
            if stream is self._stream and stream.transport is not None:
                self._flush()
                stream.transport.write(bye_frame())
                stream.transport.close()
                self._stream = None
            # TLS ends by an answer of the server.
            with suppress(TimeoutError):
                await asyncio.wait_for(stream.gone.wait(), _CLOSE_WITHIN)
        finally:
            stream.end()

    async def _pops_back(self) -> None:
        """Waits for the answers to pops whose callers have gone: they may bring messages."""
        if self.is_up and self._exchange.has_given_up:
            self._given_back.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._given_back.wait(), _CLOSE_WITHIN)

    def forked(self) -> None:
        """See `process.forking.Holder`."""
        self._exchange.forked()
        transport = None if self._stream is None else self._stream.transport
        if transport is not None:
            descriptor = transport.get_extra_info("socket").fileno()
            let_go([descriptor] if descriptor >= 0 else [])


class LoopCalls:
    """The calls of a served store by a link."""

    def __init__(self, link: LoopLink) -> None:
        self.link = link
        self.requests = Requests(SystemClock())
        self.url = link.address.url
        self._batches = LoopBatches(lambda method, asked: self.call(method, (asked,), {}))

    @property
    def folder(self) -> str:
        """The served store's folder."""
        return self.link.folder

    async def call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Makes a call, and returns its result."""
        sent = self.requests.make(method, args, named)
        await self.link.call(sent)
        return result_of_call(sent)

    async def single(self, method: str, asked: Any, size: int = 0) -> Any:
        """The result of one element of a call that takes a list, of so many bytes; see
        `LoopBatches`.
        """
        return await self._batches.call(method, asked, size)

    async def close(self) -> None:
        """Ends the session."""
        await self.link.close()


def made_in_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], url: str) -> T:
    """The result of work that a loop does for a thread; `StoreClosed` if the loop ends before the
    work, or has ended already. `url` is that of the store.
    """
    try:
        made = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
        raise closed(url) from None
    try:
        while not wait([made], _LOOK).done:
            if loop.is_closed() and not made.done():
                work.close()  # the loop did not come to begin it
                raise closed(url)
        return made.result()
    except CancelledError:
        raise closed(url) from None
    finally:
        if not loop.is_closed():
            made.cancel()  # the thread was interrupted, or all is done


class LoopBridge:
    """A link in a loop, for the threads of the loop's process: as `SocketLink`."""

    def __init__(self, link: LoopLink, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop

    @property
    def folder(self) -> str:
        """The served store's folder."""
        return self._link.folder

    def begin(self, sent: Sent) -> None:
        """See `SocketLink.begin`."""
        self._run(self._link.begin(sent))

    def wait(self, sent: Sent) -> None:
        """See `SocketLink.wait`."""
        self._run(self._link.wait(sent))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        made_in_loop(self._loop, work, self._link.address.url)

    def cancel(self, sent: Sent) -> None:
        """See `SocketLink.cancel`."""
        with suppress(RuntimeError):  # the loop is closed, and nothing is under way
            self._loop.call_soon_threadsafe(self._link.give_up, sent)

    def close(self) -> None:
        """The link's owner closes it, in the loop."""
