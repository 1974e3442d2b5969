"""Calls: how many the interpreter makes while a work is done, of Python and of C.

The idea: a work that makes an object of each message, or looks at each in Python, makes calls for
each, so the calls grow with the messages. A work in columns makes a few for each batch.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType


def calls_of(work: Callable[[], object]) -> int:
    """The calls that a work makes in this thread, and in those that it starts."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    threading.setprofile(counted)
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count
