"""Locks that an interrupt can't leave held.

An interrupt may come between the taking of a lock and a `try` behind it. So a lock that can't be
taken by `with`, because the wait has an end, is taken inside the `try`, and `let_go` asks the lock
itself whether this thread has it.
"""

from __future__ import annotations

import threading


def is_mine(lock: threading.RLock) -> bool:
    """Whether this thread has the lock."""
    mine: bool = lock._is_owned()  # type: ignore[attr-defined]  # as threading.Condition asks
    return mine


def let_go(lock: threading.RLock) -> None:
    """Releases a lock if this thread has it."""
    if lock._is_owned():  # type: ignore[attr-defined]  # as above; called by each put and pop
        lock.release()
