"""A connection of the local protocol: its stream becomes frames, and frames become requests.

The idea: a connection begins with a hello, which proves who the client is, and finds its session or
makes one. All replies that one step of the store brings are one write; more than `_PIECE` goes out
in pieces, as the client takes them, so a large reply costs the loop no more than others.

Invariants:

- Nothing that a client sends ends the server, or costs others more than their turn.
- A client whose frames are wrong gets a goodbye that says why.
- A connection that is closed leaves no pop that waits.
- A client that proved nothing learns nothing of the store, and a hello is shown to nobody.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from kvstore.api.store import Store
from kvstore.errors import (
    FormatError,
    NotAuthenticated,
    ProtocolMismatch,
    StoreBusy,
    StoreError,
    shown,
)
from kvstore.process.background import traced
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.call_rights import CallGuard
from kvstore.serve.access.credentials import LOCAL, Client
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.client_requests import Request
from kvstore.serve.connection_watch import ConnectionWatch
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.sessions import ClientSession, Sessions
from kvstore.wire.failures import pack_error
from kvstore.wire.frames import (
    BYE,
    CANCEL,
    FRAME_WITHIN,
    GOODBYE,
    GREETING_MAX,
    HELLO,
    HELLO_WITHIN,
    NAME,
    RECEIVED,
    REQUEST_MAX,
    SESSION_SIZE,
    STALLED_AFTER,
    VERSION,
    WELCOME,
    FrameReader,
    elements,
    framed,
    request_parts,
)

DOOR: Final = "local protocol"
"""The name of the door, for people and for metrics."""
CONNECTIONS_MAX: Final = 20_000
_WRITE_MAX: Final = 64 << 10
"""Bytes that a connection keeps to be written, beside the socket's own buffer."""
_READ: Final = 256 << 10
"""Bytes that are read from a socket at a time."""
_PIECE: Final = 256 << 10
"""Bytes that are handed to the socket at a time."""
_log = logging.getLogger("kvmq.serve")


@dataclass(frozen=True, slots=True)
class LocalParts:
    """The parts that all connections of a door share. `is_private`: only the store's owner can
    connect.
    """

    store: Store
    gatherer: Gatherer
    sessions: Sessions
    watch: ConnectionWatch
    access: AccessControl
    limits: ClientLimits
    is_private: bool
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_READ)))
    """Into it each connection reads; it is empty again after each read."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection; see the module."""

    def __init__(self, parts: LocalParts) -> None:
        self.client: Client | None = None
        """The client, once it has shown who it is."""
        self.unfinished = 0
        """See `serve.connection_watch.WatchedConnection`."""
        self.is_choked = False
        """See there."""
        self._parts = parts
        self._store = parts.store
        self._gatherer = parts.gatherer
        self._sessions = parts.sessions
        self._watch = parts.watch
        self._loop = parts.gatherer.loop
        self._reader = FrameReader(GREETING_MAX)
        self._session: ClientSession | None = None
        self._transport: asyncio.Transport | None = None
        self._out: deque[bytes | memoryview] = deque()
        self._out_size = 0
        self._is_closing = False
        self._is_paused = False
        self._waits_for_room = False
        self._takes_no_more = False
        self._hello_timer: asyncio.TimerHandle | None = None
        self._frame_since = 0.0
        """The time of the first byte of a frame that is not whole."""
        self._stalled_since = 0.0
        """The time since which the client must read: it is choked, or the connection closes."""
        self._is_counted = False
        """Whether it is one of the connections of its client."""

    # --- asyncio's ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(_WRITE_MAX)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._hello_timer = self._loop.call_later(HELLO_WITHIN, self._is_silent)
        self._watch.connections.add(self)
        if len(self._watch.connections) > CONNECTIONS_MAX:
            self.refuse(StoreBusy(f"the server has {CONNECTIONS_MAX} connections; try later"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._parts.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._is_closing:
            return
        is_whole = False
        try:
            for body in self._reader.feed(self._parts.buffer[:nbytes]):
                is_whole = True
                if not self._is_closing:
                    self._take(body)
        except StoreError as e:
            self.refuse(e)
        except Exception as e:
            _log.error("a client's frame broke its connection: %s", traced(e))
            self.refuse(FormatError("the frame can't be read"))
        else:
            kept = self._reader.kept
            if kept != self.unfinished:
                if is_whole or not self.unfinished:
                    self._frame_since = self._loop.time()
                self._watch.keeps(self, kept)
            self.check()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_closing = True
        self._watch.gone(self)
        self._stop_hello_timer()
        if self._is_counted and self.client is not None:
            self._parts.limits.disconnect(self.client.name)
        session, self._session = self._session, None
        if session is not None and session.link is self:
            self._sessions.lost(session)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: the client does not read what was sent."""
        self.is_choked = True
        self._stalled_since = self._loop.time()
        self.check()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.is_choked = False
        self._flush()
        self.check()

    # --- writing ---

    def write(self, data: bytes) -> None:
        """See `serve.sessions.ClientLink`: at the end of the step, or of the loop's turn."""
        if not self._out:
            self._gatherer.behind(self._flush)
        self._out.append(data)
        self._out_size += len(data)

    def _flush(self) -> None:
        """Writes as much as the client takes."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self._out.clear()
            return
        while self._out and not self.is_choked:
            piece = self._piece()
            self._out_size -= len(piece)
            transport.write(piece)
        if self._is_closing and not self._out:
            # Not at once: within `resume_writing` asyncio closes behind us, and once more then.
            self._loop.call_soon(transport.close)

    def _piece(self) -> bytes | memoryview:
        """The next bytes to be written."""
        out = self._out
        if len(out[0]) > _PIECE:
            whole = memoryview(out[0])
            out[0] = whole[_PIECE:]
            return whole[:_PIECE]
        pieces, size = [out.popleft()], 0
        while out and (size := size + len(out[0])) <= _PIECE:
            pieces.append(out.popleft())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def _unsent(self) -> int:
        assert self._transport is not None
        return self._out_size + self._transport.get_write_buffer_size()

    def drop(self) -> None:
        """See `serve.sessions.ClientLink`."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes it behind what is still to be written, without the frame that is not whole."""
        self._is_closing = True
        self._stalled_since = self._loop.time()
        self._reader = FrameReader(GREETING_MAX)
        self._watch.keeps(self, 0)
        self._flush()

    def refuse(self, why: StoreError) -> None:
        """Says goodbye. Earlier requests are made, but their replies go nowhere; unless the client
        has to prove anew who it is, and goes on then.
        """
        if self._is_closing:
            return
        self.write(framed(GOODBYE, pack_error(why)))
        if not isinstance(why, NotAuthenticated):
            session, self._session = self._session, None
            if session is not None:
                self._sessions.end(session)
        self.close()

    def give_up(self, why: StoreError) -> None:
        """See `serve.sessions.ClientLink`."""
        self._out.clear()
        if self.is_choked:
            self.drop()
        else:
            self.refuse(why)

    def check_time(self, now: float) -> None:
        """See `serve.connection_watch.WatchedConnection`."""
        must_read = self.is_choked or self._is_closing
        if must_read and now - self._stalled_since > STALLED_AFTER:
            self.drop()
        elif self.unfinished and now - self._frame_since > FRAME_WITHIN and not self._is_paused:
            self.refuse(FormatError(f"a frame did not come within {FRAME_WITHIN:.0f} s"))
        elif self._session is not None and self._session.room.is_waited_for:
            try:
                self._session.check_confirmed(self._unsent, now)
            except FormatError as e:
                self.refuse(e)

    def _is_silent(self) -> None:
        if not self._is_closing:
            self.refuse(ProtocolMismatch(f"no hello came within {HELLO_WITHIN:.0f} s"))

    def _stop_hello_timer(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    # --- flow control ---

    def take_no_more(self) -> None:
        """Reads no more requests: the server ends."""
        self._takes_no_more = True
        self.check()

    def check(self) -> None:
        """See `serve.sessions.ClientLink`."""
        session = self._session
        if self._is_closing or session is None or self._transport is None:
            return
        room = None if self._waits_for_room else self._gatherer.room()
        if room is not None:
            self._waits_for_room = True
            room.add_done_callback(self._has_room)
        pause = self.is_choked or self._waits_for_room or session.is_full or self._takes_no_more
        if pause != self._is_paused:
            self._is_paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def _has_room(self, _: asyncio.Future[None]) -> None:
        self._waits_for_room = False
        self.check()

    # --- frames ---

    def _take(self, body: bytes) -> None:
        session = self._session
        if session is None:
            self._greet(elements(body))
            return
        parts = request_parts(body)
        if parts is None:
            self._take_other(session, elements(body))
            return
        _, number, method, given, named, again = parts
        if self.client is not None:
            # Before it is noted: with a new proof the client sends it again.
            self._parts.access.check_current(self.client)
        if session.is_new(number):
            session.check_confirmed(self._unsent, self._loop.time())
            request = Request(self._store, self._gatherer, session, number, method)
            request.begin(len(body), given, named, again=again)

    def _take_other(self, session: ClientSession, frame: list[Any]) -> None:
        match frame:
            case [kind, total] if kind == RECEIVED:
                session.confirm(total)
            case [kind, int(number)] if kind == CANCEL:
                session.cancel(number)
            case [kind] if kind == BYE:
                self._session = None
                self._sessions.end(session)
                self.close()
            case _:
                raise FormatError(f"a frame of a client is {shown(frame)}, which is none")

    def _greet(self, frame: list[Any]) -> None:
        match frame:
            case [kind, str(name), int(version), *rest] if kind == HELLO and name == NAME:
                if version != VERSION:
                    raise ProtocolMismatch(
                        f"the client speaks version {version} of the protocol; the server speaks "
                        f"{VERSION}: update the older of the two",
                        version,
                        VERSION,
                    )
            case _:
                raise ProtocolMismatch("the connection does not begin with kvmq's hello")
        match rest:
            case [bytes(key), int(received), proof] if len(key) == SESSION_SIZE:
                client = self._client_of(proof)
            case _:
                raise FormatError("the hello does not say its session, replies and credentials")
        session, known = self._sessions.get((client.name, key))
        try:
            self._admit(client, session)
            if known:
                session.confirm(received)
        except StoreError:
            if not known:
                self._sessions.end(session)
            raise
        self._stop_hello_timer()
        self._reader.limit = REQUEST_MAX
        self._session = session
        cut, folder = sorted(session.cut_short), str(self._store.path)
        self.write(framed(WELCOME, NAME, VERSION, known, session.last_id, cut, os.getpid(), folder))
        session.send_missing(self)

    def _client_of(self, proof: Any) -> Client:
        """Who the client is, by the proof in its hello; `NotAuthenticated`."""
        access, count = self._parts.access, self._gatherer.counts.called
        try:
            match proof:
                case _ if self._parts.is_private:
                    found = LOCAL
                case str(token):
                    found = access.of_token(token)
                case [str(key), str(secret)]:
                    found = access.of_secret(key, secret)
                case None:
                    found = access.anonymous()
                case _:
                    raise NotAuthenticated("the credentials are no token, nor a key and its secret")
        except NotAuthenticated as e:
            count(DOOR, "hello", e)
            raise
        count(DOOR, "hello")
        return found

    def _admit(self, client: Client, session: ClientSession) -> None:
        """Counts the connection as one of the client's; `LimitExceeded`. The store's owner has no
        limits.
        """
        self.client = client
        session.guard = None
        if client is not LOCAL:
            self._parts.limits.connect(client.name)
            self._is_counted = True
            session.guard = CallGuard(self._parts.access, self._parts.limits, client)
