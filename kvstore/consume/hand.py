"""The messages that a consumer holds: which wait, run, are to be settled, or need a renewal.

The idea: each popped message becomes a `Held`, which goes one way: it waits, runs, has an outcome
(ack, nack, undo), and leaves when the store knows the outcome. Handlers only set outcomes; the
settler takes many of them at once, with the receipts that are good now.

Invariants: a message leaves the hand once, and only when its outcome was told to the store, or its
lock is lost; an outcome is set once; a message that was given back has not begun, and never does.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from kvstore.clock import Clock
from kvstore.consume.consuming import ConsumerStats, Consuming
from kvstore.core.popping.receipts import Popped
from kvstore.errors import ReceiptExpired, ReceiptIllegal
from kvstore.process.background import traced

_RENEWALS: Final = 3
"""A lock is renewed so many times in its time."""
_TOGETHER: Final = 0.1
"""The part of the time between two renewals by which one comes early to go with others."""
_UNSETTLED_MAX: Final = 1024
"""Outcomes that the store does not know yet, before no more is popped."""
_REASON_CHARS: Final = 1024
_log = logging.getLogger("kvmq")

Answer = bool | str | ReceiptExpired | ReceiptIllegal
"""The answer of a store about one receipt."""


class Outcome(Enum):
    """The outcome of a message: `ACK` it is done, `NACK` it is tried again, `CANCEL` its handler
    was ended by a stop, `UNDO` no handler began.
    """

    ACK = "handled"
    NACK = "failed"
    CANCEL = "cancelled"
    UNDO = "undone"


class Held:
    """A message in a consumer's hand, and the receipt that is good now."""

    __slots__ = (
        "began_at",
        "has_returned",
        "is_lost",
        "is_queued",
        "is_replaced",
        "outcome",
        "popped",
        "reason",
        "receipt",
        "renew_at",
    )

    def __init__(self, popped: Popped, renew_at: float) -> None:
        self.popped = popped
        self.receipt: str = popped.receipt
        self.renew_at = renew_at
        self.began_at: float | None = None
        self.outcome: Outcome | None = None
        self.reason = ""
        self.is_lost = False
        self.is_queued = False
        """Whether it was given to a handler's thread or task."""
        self.has_returned = False
        """Whether its handler has ended; set by a thread that may be replaced."""
        self.is_replaced = False
        """Whether another thread took the place of the one that its handler does not leave."""


class Reported(Exception):
    """A failure of a handler that the handler itself reports: it is not logged."""


class Hand:
    """See the module. Threads share it."""

    def __init__(self, plan: Consuming, clock: Clock) -> None:
        self.plan = plan
        self.is_closing = False
        """Whether no handler begins any more."""
        self.is_empty_handed = False
        """Whether a consumer that ends when there is nothing found nothing."""
        self._clock = clock
        self._third = plan.invisible_for / _RENEWALS
        self._capacity = plan.concurrency + plan.prefetch
        self._lock = threading.RLock()
        self._held: dict[int, Held] = {}
        """By the id of the popped message."""
        self._counts: Counter[str] = Counter()

    # --- popping ---

    def room(self) -> int:
        """How many more messages may be popped now."""
        with self._lock:
            if self.is_closing or self.is_spent:
                return 0
            open_ones = sum(held.outcome is None for held in self._held.values())
            if len(self._held) - open_ones >= _UNSETTLED_MAX:
                return 0
            left = self._capacity - open_ones
            count = self.plan.count
            return left if count is None else min(left, count - self._taken)

    @property
    def _taken(self) -> int:
        return self._counts["taken"] - self._counts["undone"]

    @property
    def is_spent(self) -> bool:
        """Whether it is to take no more messages ever."""
        count = self.plan.count
        return self.is_empty_handed or (count is not None and self._taken >= count)

    @property
    def is_empty(self) -> bool:
        """Whether no message is in it."""
        return not self._held

    def take(self, popped: Sequence[Popped]) -> None:
        """Takes messages, which wait for handlers. Those that come while it closes go back."""
        renew_at = self._clock.monotonic() + self._third
        with self._lock:
            taken = [Held(one, renew_at) for one in popped]
            self._held.update((id(held.popped), held) for held in taken)
            self._counts["taken"] += len(taken)
            if self.is_closing:
                self._undo(taken)

    def unqueued(self) -> list[Held]:
        """The messages that are yet to be given to a handler's thread or task."""
        with self._lock:
            return [h for h in self._held.values() if not h.is_queued and h.outcome is None]

    # --- handling ---

    def begin(self, held: Held) -> bool:
        """Whether the handler of a message may begin now."""
        with self._lock:
            if held.is_lost or held.outcome is not None or held.began_at is not None:
                return False
            held.began_at = self._clock.monotonic()
            return True

    def end(self, held: Held, outcome: Outcome, reason: str = "") -> bool:
        """Sets the outcome of a message; False if it had one, or its lock was lost."""
        with self._lock:
            if held.is_lost or held.outcome is not None:
                return False
            held.outcome, held.reason = outcome, reason
            return True

    def failed(self, held: Held, error: BaseException) -> None:
        """The handler of a message raised an exception."""
        if self.end(held, Outcome.NACK, reason_of(error)) and not isinstance(error, Reported):
            _log.warning("a handler of group %r failed: %s", self.plan.group, traced(error))

    def has_lost(self, popped: Popped) -> bool:
        """Whether the lock of a message was lost, or given up, while its handler runs."""
        held = self._held.get(id(popped))
        return held is None or held.popped is not popped or held.outcome is not None

    # --- settling ---

    def unsettled(self, *kinds: Outcome) -> list[Held]:
        """The messages whose outcome is one of these, and not told to the store yet."""
        with self._lock:
            return [held for held in self._held.values() if held.outcome in kinds]

    def settled(self, helds: Iterable[Held], answers: Iterable[Answer]) -> None:
        """The store has answered about outcomes: these messages leave the hand."""
        with self._lock:
            for held, answer in zip(helds, answers, strict=True):
                assert held.outcome is not None, "an outcome was told before it was there"
                self._counts["lost" if answer is not True else held.outcome.value] += 1
                self._held.pop(id(held.popped), None)

    def overdue(self) -> list[Held]:
        """Gives up the messages whose handlers have run for too long, and returns them."""
        limit = self.plan.time_limit
        if limit is None:
            return []
        now, reason = self._clock.monotonic(), f"the handler ran for more than {limit:g} s"
        with self._lock:
            late = [
                held
                for held in self._held.values()
                if held.began_at is not None and now - held.began_at >= limit
            ]
            gone = [held for held in late if self.end(held, Outcome.NACK, reason)]
            self._counts["timed_out"] += len(gone)
            return gone

    def renewals(self) -> list[Held]:
        """The messages whose locks are to be renewed now."""
        soon = self._clock.monotonic() + self._third * _TOGETHER
        with self._lock:
            return [h for h in self._held.values() if h.outcome is None and h.renew_at <= soon]

    def renewed(self, helds: Iterable[Held], answers: Iterable[Answer]) -> list[Held]:
        """The store has answered about renewals; returns the messages whose locks are lost. They
        leave the hand.
        """
        renew_at, gone = self._clock.monotonic() + self._third, list[Held]()
        with self._lock:
            for held, answer in zip(helds, answers, strict=True):
                if isinstance(answer, str):
                    held.receipt, held.renew_at = answer, renew_at
                    self._counts["renewed"] += 1
                    continue
                held.is_lost = True
                self._held.pop(id(held.popped), None)
                self._counts["lost"] += 1
                gone.append(held)
        return gone

    def next_in(self) -> float | None:
        """Seconds until there may be a renewal or a time limit to see to; None if there is none."""
        limit, now = self.plan.time_limit, self._clock.monotonic()
        with self._lock:
            unsettled = [held for held in self._held.values() if held.outcome is None]
            times = [held.renew_at for held in unsettled]
            if limit is not None:
                # Nobody is told when a handler begins: one that has not may begin now.
                begun = [now if held.began_at is None else held.began_at for held in unsettled]
                times += [began + limit for began in begun]
        return max(0.0, min(times) - now) if times else None

    # --- the end ---

    def close(self) -> None:
        """Begins no handler any more: messages that wait go back."""
        with self._lock:
            self.is_closing = True
            self._undo(held for held in self._held.values() if held.began_at is None)

    def _undo(self, helds: Iterable[Held]) -> None:
        for held in helds:
            if held.outcome is None and not held.is_lost:
                held.outcome = Outcome.UNDO

    def abandon(self) -> int:
        """Drops all messages: their locks run out by themselves. Returns how many there were."""
        with self._lock:
            count = len(self._held)
            for held in self._held.values():
                held.is_lost = True
            self._counts["lost"] += count
            self._held.clear()
            return count

    def stats(self) -> ConsumerStats:
        """The figures now."""
        with self._lock:
            running = [h for h in self._held.values() if h.outcome is None]
            begun = sum(held.began_at is not None for held in running)
            return ConsumerStats(**self._counts, running=begun, waiting=len(running) - begun)


def reason_of(error: BaseException) -> str:
    """The reason of a nack, from the exception of a handler."""
    try:
        text = str(error)
    except Exception:
        text = "an exception without a text"
    name = type(error).__name__
    return f"{name}: {text[:_REASON_CHARS]}" if text else name
