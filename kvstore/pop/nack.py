"""Changes of locks that a caller asks for: to hold a message longer, or to give it back.

The idea: renewing a lock, giving a message back, giving it back with a reason, and undoing a pop
are one operation with other numbers. The calls make a `LockChange` of each, and `Acks.change` takes
many of them at once.

Invariants: pure values; a `LockChange` that exists is right: whole milliseconds, and a reason that
a lock row and a property of a dead letter can hold.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from kvstore.errors import CallerError, shown
from kvstore.pop.inflight.lock_rows import REASON_MAX
from kvstore.pop.popped import check_seconds

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that a property's value can't have, or that no reader wants; tabs and line ends
stay.
"""


class Nack(msgspec.Struct, frozen=True):
    """A message that is given back, by its receipt: for another attempt after `delay` seconds, or
    after the group's backoff. `reason` says why; of a longer one the first 512 bytes are kept.
    """

    receipt: str
    delay: float | None = None
    reason: str = ""


class LockChange(NamedTuple):
    """A new end for the lock of a receipt's message, in ms from now; None: after the group's
    backoff. With `gives_back`, or with 0 and None, nobody holds the message any more; `unseen`
    attempts are taken back then, and `reason` is kept with the attempt.
    """

    receipt: str
    lasts_ms: int | None
    gives_back: bool = False
    unseen: int = 0
    reason: bytes | None = None


def renewal(receipt: str, invisible_for: float | None, *, gives_back: bool) -> LockChange:
    """The change that `Store.change_invisible` asks for."""
    wanted = None
    if invisible_for is not None:
        wanted = check_seconds("invisible_for", invisible_for)
    if type(gives_back) is not bool:
        raise CallerError(f"gives_back is {gives_back!r}; it must be True or False")
    return LockChange(receipt, wanted, gives_back)


def nack_change(nack: Nack) -> LockChange:
    """The change that `Store.nack` asks for."""
    if not isinstance(nack, Nack):
        raise CallerError(f"{shown(nack)} is no Nack; nack_batch takes a list of kvstore.Nack")
    delay = None if nack.delay is None else check_seconds("delay", nack.delay)
    return LockChange(nack.receipt, delay, True, 0, reason_bytes(nack.reason))


def undoing(receipt: str) -> LockChange:
    """The change that `Store.undo_pop` asks for."""
    return LockChange(receipt, 0, True, 1)


def reason_bytes(reason: object) -> bytes:
    """A reason as a lock row keeps it: UTF-8, cut at a character, a space for each control
    character.
    """
    if not isinstance(reason, str):
        raise CallerError(f"reason is {shown(reason)}; it must be a text")
    # Only so many characters can fit; the rest of a long text is not looked at.
    clean = _CONTROL.sub(" ", reason[:REASON_MAX]).encode("utf-8", "replace")
    return clean[:REASON_MAX].decode("utf-8", "ignore").encode()
