"""Expired messages that a claim meets: each is done, once it has a dead letter if its group wants
that.

The idea: a pop reads ahead, so whether a message has expired is asked when it would be handed out,
by the time of the claim. The messages that have are collected queue by queue; a read that has to be
done again takes its own back. They are counted by the change that passes them over.

Invariant: a message is passed over only by a claim in which it had expired; where dead letters
can't be put now, it stays where it is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kvstore.core.popping.inflight import Change
from kvstore.message import StoredMessage
from kvstore.pop.inflight.lock_rows import Lock

UNREAD: Final = Lock(0, 0, 0, 0)
"""The lock of a message that has none."""


class Expired(NamedTuple):
    """An expired message, and the lock under which it was."""

    message: StoredMessage
    lock: Lock


def has_expired(message: StoredMessage, now: int) -> bool:
    """Whether a message has expired at a time, in ms since the epoch."""
    time = message.expires_at
    return time is not None and time <= now


class ExpiredMessages:
    """Those that one claim meets, see the module. `stay`: they are not passed over. `letters` are
    those that get dead letters, where the group wants that.
    """

    def __init__(self, now: int, *, buried: bool, stay: bool) -> None:
        self.now = now
        self.stay = stay
        self.letters: list[Expired] = []
        self._buried = buried
        self._found: list[Expired] = []
        """Those of the queue that is read now."""
        self._noted = 0

    @property
    def count(self) -> int:
        """How many there are so far."""
        return self._noted + len(self._found)

    def take(self, message: StoredMessage, lock: Lock = UNREAD) -> bool:
        """Takes an expired message; False if it has to stay."""
        if not self.stay:
            self._found.append(Expired(message, lock))
        return not self.stay

    def take_back(self) -> None:
        """Forgets those of the present queue, which is read again."""
        self._found.clear()

    def note(self, change: Change, queue: int) -> None:
        """Adds those of a queue to the change that passes them over."""
        if self._found:
            change.expired[queue] = change.expired.get(queue, 0) + len(self._found)
            self._noted += len(self._found)
            if self._buried:
                self.letters += self._found
            self._found.clear()
