"""A connection that threads share: calls of many threads are under way at a time.

The idea: there is no thread of its own. One of the threads that wait for replies reads the socket
for all of them; when it has its own reply, it appoints another. One of the threads that send writes
what all have to send by then. So a single call costs no switch of threads, and many calls share
their system calls.

Invariants: as long as a thread waits for a reply, one of them reads, or was woken to do so; a
connection that breaks is made again by the reading thread, for `reconnect_for` seconds, and no
other thread notices; an interrupt in a thread costs its own call alone. A forked child closes its
copy of the socket, sends nothing by it, and connects anew at its first call, in a session of its
own.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from kvstore.client.exchange import (
    Exchange,
    Sent,
    bye_frame,
    is_final,
)
from kvstore.client.reconnecting import Reconnecting
from kvstore.client.served_target import Target, closed, unreachable
from kvstore.client.tls_socket import TlsSocket
from kvstore.clock import Clock
from kvstore.errors import StoreError
from kvstore.process.forking import release_in_child
from kvstore.process.locks import Signal
from kvstore.wire.frames import REPLY_MAX, FrameReader

_READ: Final = 256 << 10
_CLOSE_WITHIN: Final = 1.0
_LOOK: Final = 1.0
"""Seconds after which a waiting thread looks by itself whether anybody reads."""
_UNSAID: Final = 1 << 20
"""Bytes of replies whose confirmation does not wait for the next request."""
_PAUSE: Final = 0.05
"""Seconds between two looks of a thread that waits for another one."""
_log = logging.getLogger("kvmq")


class SocketLink:
    """See the module."""

    def __init__(self, target: Target, clock: Clock, reconnect_for: float) -> None:
        self.address = target.address
        self._target = target
        self._clock = clock
        self._reconnect_for = reconnect_for
        self._closed = Signal()
        self._begin_session()
        self._connect()

    def _begin_session(self) -> None:
        """A new session, with nothing under way and no connection."""
        self._exchange = Exchange(self._target.proof)
        self._reconnecting = Reconnecting(self._reconnect_for, self._clock.monotonic)
        self._lock = threading.Lock()
        """Around the exchange, the queue and the socket."""
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._queue: deque[bytes] = deque()
        self._socket: socket.socket | TlsSocket | None = None
        self._reader = FrameReader(REPLY_MAX)
        self._unsaid = 0
        """Bytes that came since something was written."""
        self._has_room = Signal()
        release_in_child(self)

    @property
    def folder(self) -> str:
        """The served store's folder."""
        return self._exchange.folder

    # --- calls ---

    def begin(self, sent: Sent) -> None:
        """Sends a request, soon."""
        while True:
            with self._lock:
                if self._closed.is_set():
                    raise closed(self.address.url)
                if not self._exchange.is_full:
                    self._exchange.add(sent)
                    if self._socket is not None:
                        sent.was_sent = True
                        self._queue.append(sent.frame(again=False))
                    break
                self._has_room.clear()
            if self._reading.acquire(False):
                # Those that wait for replies may all wait here.
                try:
                    self._read()
                finally:
                    self._reading.release()
                    self._appoint()
            else:
                self._has_room.wait(_PAUSE)
        self._write()

    def wait(self, sent: Sent) -> None:
        """Returns when a request is done, or has an event."""
        signal: Signal | None = None
        try:
            while not sent.is_done and not sent.events:
                if self._reading.acquire(False):
                    try:
                        while not sent.is_done and not sent.events:
                            self._read()
                    finally:
                        self._reading.release()
                        self._appoint()
                elif signal is None:
                    # From here on the reading thread sets it, so this one looks once more first.
                    signal = Signal()
                    sent.changed = signal.set
                else:
                    signal.wait(_LOOK)
                    signal.clear()
        finally:
            if not sent.is_done:
                self._appoint()

    def cancel(self, sent: Sent) -> None:
        """Takes a request back whose caller has gone. Messages that a pop has brought, or
        brings yet, go back to the server.
        """
        with self._lock:
            frames = self._exchange.give_up(sent)
            if frames and self._socket is not None:
                self._queue.append(frames)
        self._write()

    def _appoint(self) -> None:
        """Wakes a thread that waits, to read for the others."""
        with self._lock:
            for sent in self._exchange.outstanding.values():
                if sent.changed is not None:
                    sent.changed()
                    return

    # --- the socket ---

    def _write(self) -> None:
        """Writes what is to be sent, unless another thread does."""
        while self._queue and self._writing.acquire(False):
            try:
                with self._lock:
                    connection = self._socket
                    data = b"".join(self._queue)
                    self._queue.clear()
                    self._unsaid = 0
                if connection is not None and data:
                    connection.sendall(data)
            except OSError:
                self._break()
            except BaseException:
                self._break()  # a part of a frame may be out
                raise
            finally:
                self._writing.release()

    def _read(self) -> None:
        """Reads once, and hands out what came; connects again if the connection is gone."""
        connection = self._socket
        if connection is None:
            self._connect_again()
            return
        try:
            data = connection.recv(_READ)
            if data:
                self._take(data)
                return
        except OSError:
            self._break()
        except StoreError as e:
            self._goodbye(e)
            self._break(e)
        except BaseException:
            self._break()  # what came may be lost; the server sends it again
            raise
        else:
            self._break()

    def _take(self, data: bytes) -> None:
        with self._lock:
            was_full = self._exchange.is_full
            for body in self._reader.feed(data):
                self._exchange.take(body)
            answers = self._exchange.answers()
            if answers:
                self._queue.append(answers)
            self._unsaid += len(data)
            if was_full and not self._exchange.is_full:
                self._has_room.set()
        if self._queue and self._unsaid >= _UNSAID:
            self._write()

    def _goodbye(self, error: StoreError) -> None:
        """The server ended the connection, and said why."""
        if is_final(error):
            with self._lock:
                self._exchange.fail(error)

    def _break(self, why: StoreError | None = None) -> None:
        with self._lock:
            connection, self._socket = self._socket, None
            if connection is not None:
                self._reconnecting.lost(why, self._exchange.received)
            self._queue.clear()
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    # --- connecting ---

    def _connect_again(self) -> None:
        """Connects, as soon as the server is there; when it has not come in time, all calls that
        are under way raise `ConnectionLost`.
        """
        error = self._reconnecting.begin()
        while error is None and not self._clock.wait(self._closed, self._reconnecting.pause()):
            try:
                self._connect()
                return
            except StoreError as e:
                if self._reconnecting.is_over(e):
                    error = e
        with self._lock:
            self._exchange.fail(error or closed(self.address.url))

    def _connect(self) -> None:
        """`ConnectionLost` if nobody serves there."""
        try:
            connection = self._target.open()
        except OSError as e:
            raise unreachable(self.address, e) from e
        try:
            reader = FrameReader(REPLY_MAX)
            # A server that refuses at once has said why, and closed its end.
            with self._lock, suppress(BrokenPipeError):
                connection.sendall(self._exchange.hello())
            bodies = deque[bytes]()
            while not bodies:
                data = connection.recv(_READ)
                if not data:
                    raise OSError("the server closed the connection")
                bodies.extend(reader.feed(data))
            connection.settimeout(None)
            with self._lock:
                if self._closed.is_set():
                    raise closed(self.address.url)
                self._queue = deque(self._exchange.welcome(bodies.popleft()))
                for body in bodies:
                    self._exchange.take(body)
                self._queue.append(self._exchange.answers())
                self._reader = reader
                self._socket = connection
                self._reconnecting.made(self._exchange.received)
        except OSError as e:
            connection.close()
            raise unreachable(self.address, e) from e
        except BaseException:
            connection.close()
            raise
        self._write()

    # --- the end ---

    def close(self) -> None:
        """Ends the session. Calls that are under way raise `StoreClosed`."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._get_pops_back()
        with suppress(OSError), self._writing:
            if self._socket is not None:
                self._socket.sendall(bye_frame())
        self._break()
        with self._lock:
            self._exchange.fail(closed(self.address.url))
            self._has_room.set()

    def _get_pops_back(self) -> None:
        """Gives up the pops that are under way, and waits for their answers: they may bring
        messages.
        """
        until = self._clock.monotonic() + _CLOSE_WITHIN
        with self._lock:
            self._queue.append(self._exchange.give_up_pops(closed(self.address.url)))
        self._write()
        while self._exchange.has_given_up and (left := until - self._clock.monotonic()) > 0:
            if not self._reading.acquire(timeout=_PAUSE):
                continue
            try:
                connection = self._socket
                if connection is None:
                    return
                connection.settimeout(left)
                self._read()
            finally:
                self._reading.release()
        self._write()

    def forked(self) -> None:
        """See `process.forking.Holder`: the session, its calls and its locks are the parent's."""
        connection, before, was_closed = self._socket, self._exchange, self._closed.is_set()
        before.forked()
        self._closed = Signal()
        if was_closed:
            self._closed.set()
        self._begin_session()
        self._exchange.folder = before.folder
        if connection is not None:
            connection.close()
