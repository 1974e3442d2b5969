"""Ending: a process that ends within a time, whatever its threads wait for.

The idea: Python waits for its threads before it ends, and nothing can stop a thread that reads from
a place which does not answer. Such a thread writes nothing of its own that could be left half done:
as after a kill, the operating system closes files and frees locks.

Invariant: the process ends by itself if it can, and else when the time is over.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kvstore.process.locks import Signal

_UNFINISHED: Final = 1
_log = logging.getLogger("kvmq.serve")


def end_within(seconds: float, is_safe: Callable[[], bool]) -> None:
    """Ends the process after so many seconds, unless it has ended by then. `is_safe` says then
    whether all that must be on the disk is there: the exit code is 0 if so, else 1.
    """
    threading.Thread(target=_end, args=(seconds, is_safe), name="kvmq-end", daemon=True).start()


def _end(seconds: float, is_safe: Callable[[], bool]) -> None:
    Signal().wait(seconds)
    safe = is_safe()
    if safe:
        _log.warning("ending without calls that can't be stopped; the store is checkpointed")
    else:
        _log.error(
            "ending without the store's last checkpoint, which was not made in time: the next "
            "opening recovers what was put"
        )
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0 if safe else _UNFINISHED)
