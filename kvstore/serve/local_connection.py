"""A connection of the local protocol: its stream becomes frames, and frames become requests.

The idea: a connection begins with a hello, which finds its session or makes one. All replies that
one step of the store brings are one write.

Invariants: nothing that a client sends ends the server, or costs others more than their turn; a
client whose frames are wrong gets a goodbye that says why; a connection that is closed leaves no
pop that waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any, Final

from kvstore.api.store import Store
from kvstore.errors import FormatError, ProtocolMismatch, StoreBusy, StoreError, shown
from kvstore.process.background import traced
from kvstore.serve.client_requests import Request
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.sessions import ClientSession, Sessions
from kvstore.wire.failures import pack_error
from kvstore.wire.frames import (
    BYE,
    CANCEL,
    GOODBYE,
    GREETING_MAX,
    HELLO,
    HELLO_WITHIN,
    NAME,
    RECEIVED,
    REQUEST_MAX,
    SESSION_SIZE,
    VERSION,
    WELCOME,
    FrameReader,
    elements,
    framed,
    request_parts,
)

CONNECTIONS_MAX: Final = 20_000
_WRITE_MAX: Final = 64 << 10
"""Bytes that a connection keeps to be written, beside the socket's own buffer."""
_log = logging.getLogger("kvmq.serve")


class Connection(asyncio.Protocol):
    """One client's connection; see the module. `others` has all connections of the door."""

    def __init__(
        self, store: Store, gatherer: Gatherer, sessions: Sessions, others: set[Connection]
    ) -> None:
        self._store = store
        self._gatherer = gatherer
        self._sessions = sessions
        self._others = others
        self._loop = gatherer.loop
        self._reader = FrameReader(GREETING_MAX)
        self._session: ClientSession | None = None
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._is_closing = False
        self._is_choked = False
        self._is_paused = False
        self._waits_for_room = False
        self._takes_no_more = False
        self._hello_timer: asyncio.TimerHandle | None = None

    # --- asyncio's ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(_WRITE_MAX)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._hello_timer = self._loop.call_later(HELLO_WITHIN, self._is_silent)
        self._others.add(self)
        if len(self._others) > CONNECTIONS_MAX:
            self._refuse(StoreBusy(f"the server has {CONNECTIONS_MAX} connections; try later"))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._is_closing:
            return
        try:
            for body in self._reader.feed(data):
                if not self._is_closing:
                    self._take(body)
        except StoreError as e:
            self._refuse(e)
        except Exception as e:
            _log.error("a client's frame broke its connection: %s", traced(e))
            self._refuse(FormatError("the frame can't be read"))
        else:
            self.check()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._is_closing = True
        self._others.discard(self)
        self._stop_hello_timer()
        session, self._session = self._session, None
        if session is not None and session.link is self:
            self._sessions.lost(session)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: the client does not read what was sent."""
        self._is_choked = True
        self.check()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_choked = False
        self.check()

    # --- writing ---

    def write(self, data: bytes) -> None:
        """See `serve.sessions.ClientLink`: at the end of the step, or of the loop's turn."""
        if not self._out:
            self._gatherer.behind(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def drop(self) -> None:
        """See `serve.sessions.ClientLink`."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes it behind what is still to be written."""
        self._is_closing = True
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _refuse(self, why: StoreError) -> None:
        """Says goodbye. Earlier requests are made, but their replies go nowhere."""
        self.write(framed(GOODBYE, pack_error(why)))
        session, self._session = self._session, None
        if session is not None:
            self._sessions.end(session)
        self.close()

    def _is_silent(self) -> None:
        if not self._is_closing:
            self._refuse(ProtocolMismatch(f"no hello came within {HELLO_WITHIN:.0f} s"))

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
        pause = self._is_choked or self._waits_for_room or session.is_full or self._takes_no_more
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
        if session.is_new(number):
            assert self._transport is not None
            session.check_confirmed(self._transport.get_write_buffer_size())
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
            case [bytes(key), int(received)] if len(key) == SESSION_SIZE:
                session, known = self._sessions.get(key)
            case _:
                raise FormatError(f"the hello says {shown(rest)} of its session")
        if known:
            session.confirm(received)
        self._stop_hello_timer()
        self._reader.limit = REQUEST_MAX
        self._session = session
        cut, folder = sorted(session.cut_short), str(self._store.path)
        self.write(framed(WELCOME, NAME, VERSION, known, session.last_id, cut, os.getpid(), folder))
        session.send_missing(self)
