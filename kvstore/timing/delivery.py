"""Delivery: the thread that delivers messages when they are due.

The idea: the thread sleeps until the next message is due, and a put of one that is due earlier
wakes it. It looks at the time at least twice a second, since an operator may step the clock, and a
turn may have failed.

Invariant: a refused put (the disk is full) leaves its messages due, and is tried again.
"""

from __future__ import annotations

import logging
from typing import Final

from kvstore.clock import Clock
from kvstore.errors import PutRefused, TopicNotFound
from kvstore.process.background import Background
from kvstore.timing.timers import Timers

_LOOK: Final = 0.5
"""Seconds between two looks at the time."""
_AGAIN: Final = 0.05
_log = logging.getLogger("kvmq")


class DeliveryThread:
    """The thread, see the module. It delivers what is overdue at once."""

    def __init__(self, timers: Timers, clock: Clock) -> None:
        self._timers = timers
        self._failure: str | None = None
        self.thread = Background("kvmq-delivery", self._turn, clock, _LOOK, at_once=True)
        timers.wake = self.thread.wake.set
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread after the delivery it is at."""
        self.thread.stop()

    def _turn(self) -> None:
        while not self.thread.is_stopping:
            try:
                seconds = self._timers.deliver()
            except PutRefused as e:
                self._fail(f"messages that are due can't be delivered: {e}")
                return
            except TopicNotFound:
                # It is being deleted, and takes its messages with it.
                self.thread.start_next_in(_AGAIN)
                return
            if seconds == 0:
                self.thread.did("delivering messages")
                continue
            if seconds is not None:
                self.thread.start_next_in(seconds)
            self._fail(None)
            return

    def _fail(self, why: str | None) -> None:
        if why is not None and self._failure is None:
            _log.error("%s; they stay due", why)
        self._failure = why
        self.thread.failing(why)
