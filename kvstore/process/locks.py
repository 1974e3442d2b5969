"""Locks and waits that an interrupt can't spoil.

An interrupt may come between the taking of a lock and a `try` behind it. So a lock that can't be
taken by `with`, because it is only tried, or waited for with a limit, is taken inside the `try`,
and its `finally` calls `release` itself, and passes over the RuntimeError of a lock that this
thread does not have. Python lets an interrupt in where a function of Python begins, so no such
function is called in that `finally`.

The waits of Python's own `threading` begin such functions while they hold locks: an interrupt in
`Condition.wait` may arrive as a RuntimeError, and one in `Thread.join` or `Thread.is_alive` makes
Python take a live thread for one that has ended. So a thread of a caller waits for a `Signal`, and
nothing asks a thread of ours whether it lives.

Invariant: `Signal` holds no lock that another thread waits for, so an interrupt of a wait arrives
as itself, and leaves the signal as it was.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")
_TRIES: Final = 8
_PAUSE: Final = 0.0002
"""Seconds: long enough for the holder to go on if it only waits for Python's lock."""
_LOOK: Final = 1.0
"""Seconds after which a waiter looks for the result by itself: the thread that makes it may have
been struck as it woke the waiter.
"""


def is_mine(lock: threading.RLock) -> bool:
    """Whether this thread has the lock."""
    mine: bool = lock._is_owned()  # type: ignore[attr-defined]  # as threading.Condition asks
    return mine


class Signal(threading.Event):
    """An event whose waits may be interrupted. Each waiter waits for a lock of its own, which `set`
    releases.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_on = False
        self._waiters: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Whether it was set, and not cleared since."""
        return self._is_on

    def set(self) -> None:
        """Wakes all threads that wait; those that come later do not wait until it is cleared."""
        self._is_on = True
        while self._waiters:
            try:
                waiter = self._waiters.pop()
            except IndexError:
                return  # the last waiter went by itself
            waiter.release()

    def clear(self) -> None:
        """Lets threads wait again."""
        self._is_on = False

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, for at most `timeout` seconds; False if they passed."""
        waiter = threading.Lock()
        waiter.acquire()
        try:
            self._waiters.append(waiter)
            # Looked at only now: a `set` from here on finds the waiter.
            return self._is_on or waiter.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            with suppress(ValueError):  # of a waiter that was woken
                self._waiters.remove(waiter)


_never: Final = Signal()


def let_others() -> None:
    """Lets waiting threads have a lock before this one takes it again."""
    _never.wait(_PAUSE)


def acquire(lock: threading.RLock) -> None:
    """Takes a lock, inside the `try` that lets it go."""
    if lock.acquire(False):
        return
    for _ in range(_TRIES):
        _never.wait(_PAUSE)
        if lock.acquire(False):
            return
    lock.acquire()


def result_of(future: Future[T]) -> T:
    """The result of a call that another thread makes, once it is there; raises its error."""
    done = Signal()
    future.add_done_callback(lambda _: done.set())
    while not done.wait(_LOOK) and not future.done():
        pass
    return future.result()
