"""Taking a lock that many threads take again and again, for short work.

The idea: a thread that loses Python's own lock while it holds this one goes on as soon as the
others let it. So whoever finds it held lets a moment pass and tries again, and only after some
times waits for it in earnest. A lock that somebody waits for goes to him with the next release, and
whoever had it waits in turn: each of these hand-overs costs as much as a whole pop. Four threads
popping one by one had 45 % of the rate of one, and have 95 %.

Invariant: afterwards the lock is held, as after `acquire`.
"""

from __future__ import annotations

import threading
from typing import Final

_TRIES: Final = 8
_PAUSE: Final = 0.0002
"""Seconds: so long that the holder, if it only waits for Python's lock, has it."""
_never: Final = threading.Event()


def let_others() -> None:
    """Let those have a lock who wait for it, before it is taken again."""
    _never.wait(_PAUSE)


def acquire(lock: threading.RLock) -> None:
    """Have a lock; the caller releases it."""
    if lock.acquire(False):
        return
    for _ in range(_TRIES):
        _never.wait(_PAUSE)
        if lock.acquire(False):
            return
    lock.acquire()
