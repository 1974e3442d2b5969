"""A client's side of a session: its requests until their replies, over any number of connections.

The idea: no sockets here. A connection asks for the hello and what is to be sent, and gives the
bodies of frames that came; so threads and asyncio share all rules of docs/protocol.md.

Invariants: a request is sent to one server once, however often the connection breaks; to a new
server it is sent again only as the table of calls allows; a reply belongs to one request. Messages
that come by a pop whose caller has given up go back, unless they can be had again by its
`attempt_id`.
"""

from __future__ import annotations

import copy
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kvstore.errors import (
    CallerError,
    Cancelled,
    ConnectionLost,
    FormatError,
    MessageTooLarge,
    NotAuthenticated,
    ProtocolMismatch,
    StoreError,
    StoreForked,
    shown,
)
from kvstore.wire.call_table import read_result, repeat_of
from kvstore.wire.failures import make_error
from kvstore.wire.frames import (
    BYE,
    CANCEL,
    CONFIRM_BYTES,
    EVENT,
    FAILURE,
    GOODBYE,
    HELLO,
    LENGTH,
    NAME,
    OUTSTANDING_MAX,
    RECEIVED,
    REPLY,
    REQUEST,
    REQUEST_COSTS,
    REQUEST_MAX,
    SESSION_SIZE,
    VERSION,
    WELCOME,
    elements,
    framed,
    reply_parts,
)
from kvstore.wire.proof import Proof

_encode: Final = msgspec.msgpack.Encoder().encode
_HEAD: Final = bytes([0x96, REQUEST])
_FALSE: Final = b"\xc2"
_TRUE: Final = b"\xc3"
_WELCOME_MAX: Final = 8 << 20
"""Bytes of a welcome, which may list many pops."""


class Sent:
    """A request: what is sent, and what came back. `changed` is called when something came.
    `is_undone`: it is a pop whose messages go back if its caller gives up.
    """

    __slots__ = (
        "changed", "error", "events", "has_events", "is_done", "is_undone", "method", "number",
        "parts", "result", "was_sent",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        given: bytes,
        named: bytes,
        *,
        has_events: bool = False,
        is_undone: bool = False,
    ) -> None:
        self.method = method
        self.parts = b"".join((_encode(method), given, named))
        self.number = 0
        self.was_sent = False
        self.is_done = False
        self.result: msgspec.Raw | None = None
        self.error: Exception | None = None
        self.has_events = has_events
        self.is_undone = is_undone
        self.events: deque[Any] = deque()
        self.changed: Callable[[], object] | None = None

    def frame(self, *, again: bool) -> bytes:
        """The request's frame."""
        number, last = _encode(self.number), _TRUE if again else _FALSE
        size = len(_HEAD) + len(number) + len(self.parts) + len(last)
        return b"".join((LENGTH.pack(size), _HEAD, number, self.parts, last))

    def end(self, error: Exception | None) -> None:
        """Notes that nothing more will come."""
        self.error = error
        self.is_done = True
        if self.changed is not None:
            self.changed()


class Exchange:
    """See the module. The caller lets one thread in at a time. `proof` is None for a server that
    asks for none.
    """

    def __init__(self, proof: Proof | None = None) -> None:
        self._proof = proof
        self._key = secrets.token_bytes(SESSION_SIZE)
        self._next = 1
        self._received = 0
        self._unconfirmed_bytes = 0
        self.outstanding: dict[int, Sent] = {}
        self._outstanding_bytes = 0
        self._given_up: dict[int, Sent] = {}
        """Pops whose callers have gone, and that the server has not answered."""
        self._undos: list[bytes] = []
        """Frames that give back what came for these, and are to be sent."""
        self.folder = ""
        """The served store's, as the last welcome said."""

    @property
    def received(self) -> int:
        """How many frames have come in the session."""
        return self._received

    # --- connecting ---

    def hello(self) -> bytes:
        """The first frame of a connection."""
        self._unconfirmed_bytes = 0
        self._undos.clear()  # their requests are outstanding
        proof = None if self._proof is None else self._proof.sent()
        return framed(HELLO, NAME, VERSION, self._key, self._received, proof)

    def welcome(self, body: bytes) -> list[bytes]:
        """Takes the server's first frame; returns what is to be sent now. `ProtocolMismatch`, or
        the error of a goodbye.
        """
        match elements(body, _WELCOME_MAX):
            case [kind, error] if kind == GOODBYE:
                raise goodbye(error)
            case [kind, *said, bool(known), int(last), list(cut), int(), str(folder)] if (
                kind == WELCOME and said == [NAME, VERSION]
            ):
                self.folder = folder
                return self._go_on(last, set(cut)) if known else self._begin_anew()
            case found:
                raise ProtocolMismatch(f"the server's welcome is {shown(found)}", 0, VERSION)

    def _go_on(self, last: int, cut: set[int]) -> list[bytes]:
        frames: list[bytes] = []
        for number in list(self._given_up):
            if number > last or number in cut:
                del self._given_up[number]
        for number, sent in self.outstanding.items():
            if number > last or number in cut:
                sent.was_sent = True
                frames.append(sent.frame(again=False))
        return frames

    def _begin_anew(self) -> list[bytes]:
        self._received = 0
        self._given_up.clear()
        frames: list[bytes] = []
        for sent in list(self.outstanding.values()):
            if sent.was_sent and repeat_of(sent.method) == "never":
                self._forget(sent)
                sent.end(
                    ConnectionLost(
                        f"the server went away while {sent.method} was under way: it may have been "
                        "done or not; look before you call it again"
                    )
                )
                continue
            frames.append(sent.frame(again=sent.was_sent))
            sent.was_sent = True
        return frames

    # --- requests ---

    @property
    def is_full(self) -> bool:
        """Whether requests have to wait for replies."""
        return self._outstanding_bytes >= OUTSTANDING_MAX

    def add(self, sent: Sent) -> None:
        """Adds a request, to be sent behind all that were added before. `MessageTooLarge` for one
        that has no room in a frame; `CallerError`, if it has no messages.
        """
        if len(sent.parts) + _HEAD_MAX > REQUEST_MAX:
            text = (
                f"the arguments of {sent.method} take {len(sent.parts)} bytes; a request has "
                f"{REQUEST_MAX} at most: use several"
            )
            if repeat_of(sent.method) == "ids":
                raise MessageTooLarge(text, len(sent.parts), REQUEST_MAX)
            raise CallerError(text)
        sent.number = self._next
        self._next += 1
        self.outstanding[sent.number] = sent
        self._outstanding_bytes += len(sent.parts) + REQUEST_COSTS

    def take_back(self, sent: Sent) -> None:
        """Ends a request whose caller has given up while there is no connection."""
        if sent.number in self.outstanding:
            self._forget(sent)
            sent.end(Cancelled("the call was cancelled while there was no connection"))

    def give_up(self, sent: Sent, error: StoreError | None = None) -> bytes:
        """Takes a request back whose caller has gone, done or not; returns the frames that are to
        be sent, if there is a connection. A pop that is not done ends now, with the error or
        `Cancelled`.
        """
        if sent.is_done:
            return self._undo(sent)
        if sent.number not in self.outstanding:
            return b""
        if sent.is_undone:
            self._forget(sent)
            if sent.was_sent:
                self._given_up[sent.number] = sent
            sent.end(error or Cancelled("the call was cancelled by its caller"))
            if not sent.was_sent:
                return b""
        return cancel_frame(sent)

    def give_up_pops(self, error: StoreError) -> bytes:
        """Gives up all pops that are under way."""
        return b"".join(
            self.give_up(sent, copy.copy(error))
            for sent in list(self.outstanding.values())
            if sent.is_undone
        )

    @property
    def has_given_up(self) -> bool:
        """Whether answers are to come to pops whose callers have gone."""
        return bool(self._given_up)

    def _undo(self, sent: Sent) -> bytes:
        """A request that gives back what a pop has brought, if it has brought any."""
        if not sent.is_undone or sent.result is None:
            return b""
        receipts = [popped.receipt for popped in read_result(sent.method, sent.result)]
        sent.result = None
        if not receipts:
            return b""
        undo = Sent("undo_pop", _encode([receipts]), _encode({}))
        self.add(undo)
        return undo.frame(again=False)

    def _forget(self, sent: Sent) -> None:
        if self.outstanding.pop(sent.number, None) is not None:
            self._outstanding_bytes -= len(sent.parts) + REQUEST_COSTS

    def fail(self, error: StoreError) -> None:
        """Ends all requests with an error."""
        for sent in list(self.outstanding.values()):
            self._forget(sent)
            sent.end(copy.copy(error))  # each caller adds its own traceback

    def forked(self) -> None:
        """In a forked child: ends all requests, which are the parent's. Nobody is woken: those who
        waited are threads and tasks of the parent.
        """
        for sent in self.outstanding.values():
            sent.error = StoreForked(f"{sent.method} was called before the fork, by the parent")
            sent.is_done = True

    # --- what came ---

    def take(self, body: bytes) -> None:
        """Takes a frame behind the welcome; raises the error of a goodbye, `FormatError`."""
        parts = reply_parts(body)
        if parts is None:
            match elements(body):
                case [kind, error] if kind == GOODBYE:
                    raise goodbye(error)
            raise FormatError("the server sent a frame that is none")
        kind, number, value = parts
        self._received += 1
        self._unconfirmed_bytes += len(body)
        sent = self.outstanding.get(number)
        if sent is None:
            given_up = self._given_up.pop(number, None)
            if given_up is not None and kind == REPLY:
                given_up.result = value
                self._undos.append(self._undo(given_up))
            return  # its caller has given up
        if kind == EVENT:
            sent.events.append(value)
            if sent.changed is not None:
                sent.changed()
            return
        self._forget(sent)
        if kind == REPLY:
            sent.result = value
            sent.end(None)
        elif kind == FAILURE:
            sent.end(make_error(msgspec.msgpack.decode(value)))
        else:
            sent.end(FormatError(f"the server sent a frame of kind {kind}"))

    def answers(self) -> bytes:
        """The frames that are to be sent for what came: one that confirms it, if it is time for
        one, and those that give back what nobody waits for.
        """
        frames, self._undos = b"".join(self._undos), []
        if self._unconfirmed_bytes < CONFIRM_BYTES:
            return frames
        self._unconfirmed_bytes = 0
        return framed(RECEIVED, self._received) + frames


_HEAD_MAX: Final = 64


def goodbye(packed: Any) -> StoreError:
    """The error of a server's goodbye."""
    error = make_error(packed)
    return error if isinstance(error, StoreError) else StoreError(str(error))


def cancel_frame(sent: Sent) -> bytes:
    """A frame that takes a request back."""
    return framed(CANCEL, sent.number)


def bye_frame() -> bytes:
    """A frame that ends the session."""
    return framed(BYE)


def is_final(error: StoreError) -> bool:
    """Whether a goodbye with this error is the session's end."""
    return isinstance(error, ProtocolMismatch | FormatError)


def is_refusal(error: StoreError) -> bool:
    """Whether a server that answers a hello so would do it again. Credentials that changed while a
    client was connected end its connection, and may be good for the next one.
    """
    return is_final(error) or isinstance(error, NotAuthenticated)
