"""Sessions: a server's knowledge of its clients, also while no connection is there.

The idea: a session counts what it sends, and keeps it until the client confirms it, so that a new
connection goes on where the last one broke (docs/protocol.md).

Invariants:

- Each request is made once, whatever becomes of its connections.
- A session without a connection lets no pop wait, and ends after `SESSION_KEPT`. There are
  `LOST_MAX` of them at most: of more the first ones end.
- A client is kept `UNCONFIRMED_MAX` bytes, or more for `CONFIRM_WITHIN` seconds, and no more than
  its room for replies lets (`serve.replies`).
- Requests that wait for room, or for messages, do not keep the client's confirmations from being
  read, as long as a client sends no more of them than it may.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from kvstore.errors import FormatError, StoreBusy, StoreError
from kvstore.serve.access.call_rights import CallGuard
from kvstore.serve.questions import Questions
from kvstore.serve.replies.open_calls import OpenCall
from kvstore.serve.replies.reply_room import ReplyRoom, ReplyRooms
from kvstore.wire.frames import (
    CONFIRM_WITHIN,
    LOST_MAX,
    OUTSTANDING_MAX,
    REQUEST_COSTS,
    SESSION_KEPT,
    UNCONFIRMED_MAX,
    UNDER_WAY_MAX,
)

_REPLY_COSTS: Final = 8 << 10
"""Bytes that a request counts as, beside its own: for its reply, and what it holds meanwhile."""
_READS_MAX: Final = OUTSTANDING_MAX + (1 << 20)
"""Bytes of reads and pops at which no more is read: more than a client sends."""
_CUT_COSTS: Final = 64
"""Bytes that a request which was cut short counts as."""


class ClientLink(Protocol):
    """A session's connection."""

    def write(self, data: bytes) -> None:
        """Sends a frame, soon."""

    def drop(self) -> None:
        """Breaks it off."""

    def give_up(self, why: StoreError) -> None:
        """Ends it and its session without the replies that it has not sent yet."""

    def check(self) -> None:
        """Reads on, or not, as the session is now."""


class UnderWay:
    """A request that is being made. `waits` says that it is a pop, or work of tiering, which is not
    to go on for a client that went away; `is_read` that its reply asks for room of its own; `end`
    ends a checker.
    """

    __slots__ = ("call", "end", "is_read", "method", "questions", "size", "waits")

    def __init__(self, method: str, *, waits: bool, is_read: bool) -> None:
        self.method = method
        self.is_read = is_read
        self.size = 0
        self.waits = waits
        self.call: OpenCall[Any] | None = None
        self.end: Callable[[], None] | None = None
        self.questions: Questions | None = None


SessionKey = tuple[str, bytes]
"""The client's name in the file of credentials, and the number that it chose: no client comes into
the session of another one."""


class ClientSession:
    """One client, as the server knows it; see the module. `give_up` ends it if it keeps most."""

    def __init__(
        self, key: SessionKey, rooms: ReplyRooms, give_up: Callable[[ClientSession], None]
    ) -> None:
        self.key = key
        self.kept = 0
        """Bytes of frames that are kept for the client."""
        self.room = ReplyRoom(rooms, partial(give_up, self))
        self.link: ClientLink | None = None
        self.guard: CallGuard | None = None
        """None for a client that may do everything."""
        self.requests: dict[int, UnderWay] = {}
        self._under_way_bytes = 0
        self._reads_bytes = 0
        self.last_id = 0
        """The highest id of a request that came."""
        self.cut_short: set[int] = set()
        """Requests that were ended because the connection broke; the client sends them again."""
        self.end_timer: asyncio.TimerHandle | None = None
        self._unconfirmed: deque[bytes] = deque()
        self._unconfirmed_since: float | None = None
        """The time since which the client left more unconfirmed than it may."""
        self._confirmed = 0
        """How many frames the client has confirmed since the session began."""

    @property
    def is_full(self) -> bool:
        """Whether no more is to be read from the client for now."""
        return self._under_way_bytes >= UNDER_WAY_MAX or self._reads_bytes >= _READS_MAX

    def check_confirmed(self, unsent: int, now: float) -> None:
        """`FormatError` if the client reads, but does not confirm in time; so many bytes were not
        sent. Requests that it sent before it had a large reply may come before it confirms this.
        """
        if self.kept - unsent <= UNCONFIRMED_MAX:
            self._unconfirmed_since = None
        elif self._unconfirmed_since is None:
            self._unconfirmed_since = now
        elif now - self._unconfirmed_since > CONFIRM_WITHIN:
            raise FormatError(
                f"the client has not confirmed {self.kept} bytes of replies for "
                f"{CONFIRM_WITHIN:.0f} s; it must confirm before {UNCONFIRMED_MAX}"
            )

    def send(self, framed: bytes) -> None:
        """Sends the frame of a reply, a failure or an event, and keeps it."""
        self._unconfirmed.append(framed)
        if self.link is not None:
            self.link.write(framed)
        self._keep(len(framed))

    def _keep(self, change: int) -> None:
        self.kept += change
        self.room.hold(change)

    def confirm(self, total: Any) -> None:
        """Forgets what the client says it has; `FormatError` for a number that can't be."""
        if type(total) is not int or not (
            self._confirmed <= total <= self._confirmed + len(self._unconfirmed)
        ):
            sent = self._confirmed + len(self._unconfirmed)
            raise FormatError(f"the client confirms {total!r} frames; it was sent {sent}")
        if self._confirmed < total:
            self._unconfirmed_since = None
        while self._confirmed < total:
            self._keep(-len(self._unconfirmed.popleft()))
            self._confirmed += 1

    def send_missing(self, link: ClientLink) -> None:
        """Sends by a new connection what the last one may have lost."""
        self.link = link
        for framed in self._unconfirmed:
            link.write(framed)

    def is_new(self, number: Any) -> bool:
        """Whether a request has to be made: its id is higher than all before, or it is a pop that
        was cut short. `FormatError` for an id that is none.
        """
        if type(number) is not int or not 0 < number < 1 << 63:
            raise FormatError(f"a request has the id {number!r}; it must be a number from 1 on")
        if number in self.cut_short:
            self.cut_short.discard(number)
            self._keep(-_CUT_COSTS)
            return True
        if number <= self.last_id:
            return False
        self.last_id = number
        return True

    def begin(self, number: int, request: UnderWay) -> None:
        """Notes a request that is being made."""
        self.requests[number] = request
        if request.is_read:
            request.size += REQUEST_COSTS
            self._reads_bytes += request.size
        else:
            request.size += _REPLY_COSTS
            self._under_way_bytes += request.size

    def ended(self, number: int) -> None:
        """Notes that it is made."""
        request = self.requests.pop(number, None)
        if request is not None:
            was_full = self.is_full
            if request.is_read:
                self._reads_bytes -= request.size
            else:
                self._under_way_bytes -= request.size
            if was_full and self.link is not None:
                self.link.check()

    def cancel(self, number: int) -> None:
        """Takes a request back, if it is under way."""
        request = self.requests.get(number)
        if request is None:
            return
        if request.end is not None:
            request.end()
        elif request.call is not None:
            request.call.cancel()

    def cut(self) -> None:
        """The connection is gone: nothing waits for a client that may not come back."""
        self.link = None
        known = len(self.cut_short)
        for number, request in list(self.requests.items()):
            if request.waits and request.call is not None and not request.call.done():
                self.cut_short.add(number)
                self.ended(number)
                request.call.cancel()
        self._keep((len(self.cut_short) - known) * _CUT_COSTS)

    def end(self) -> None:
        """Forgets all; what is under way is made, and its reply goes nowhere. Reads that wait for
        room are not made.
        """
        self.cut()
        requests = list(self.requests.values())
        for request in requests:
            if request.end is not None:
                request.end()
        self.requests.clear()
        for request in requests:
            if request.is_read and request.call is not None:
                request.call.cancel()
        self._unconfirmed.clear()
        self.cut_short.clear()
        self._keep(-self.kept)


class Sessions:
    """The sessions of a door. `rooms` are those of the server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rooms: ReplyRooms) -> None:
        self._loop = loop
        self._rooms = rooms
        self._by_key: dict[SessionKey, ClientSession] = {}
        self._lost: dict[SessionKey, ClientSession] = {}
        """Those without a connection, in the order in which they lost it."""

    def get(self, key: SessionKey) -> tuple[ClientSession, bool]:
        """The session of a client that connects, and whether it was known."""
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = ClientSession(key, self._rooms, self._give_up)
            return known, False
        self._lost.pop(key, None)
        if known.link is not None:
            link = known.link
            link.drop()  # the client knows before the server that it is broken
            known.cut()
            if self._by_key.get(key) is not known:
                return self.get(key)  # there was no room for it
        if known.end_timer is not None:
            known.end_timer.cancel()
        return known, True

    def lost(self, session: ClientSession) -> None:
        """A session's connection is gone; it is kept for a while."""
        session.end_timer = self._loop.call_later(SESSION_KEPT, self.end, session)
        self._lost[session.key] = session
        session.cut()
        if len(self._lost) > LOST_MAX:
            self.end(next(iter(self._lost.values())))

    def _give_up(self, session: ClientSession) -> None:
        """Ends a session that keeps too much."""
        if session.link is not None:
            session.link.give_up(
                StoreBusy("the server keeps too many replies for its clients; try later")
            )
        self.end(session)

    def end(self, session: ClientSession) -> None:
        """Ends a session."""
        if session.end_timer is not None:
            session.end_timer.cancel()
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
            self._lost.pop(session.key, None)
        session.end()

    def end_all(self) -> None:
        """Ends all sessions."""
        for session in list(self._by_key.values()):
            self.end(session)

    @property
    def is_busy(self) -> bool:
        """Whether requests are under way that will have a reply."""
        return any(
            request.end is None
            for session in self._by_key.values()
            for request in session.requests.values()
        )
