"""Locks that an interrupt can't leave held.

An interrupt may come between the taking of a lock and a `try` behind it. So a lock that can't be
taken by `with`, because the wait has an end, is taken inside the `try`, and its `finally` calls
`release` itself, and passes over the RuntimeError of a lock that this thread does not have. Python
lets an interrupt in where a function of Python begins, so no such function is called there.
"""

from __future__ import annotations

import threading


def is_mine(lock: threading.RLock) -> bool:
    """Whether this thread has the lock."""
    mine: bool = lock._is_owned()  # type: ignore[attr-defined]  # as threading.Condition asks
    return mine
