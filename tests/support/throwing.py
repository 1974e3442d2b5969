"""Exceptions that strike a thread at any of its steps.

The idea: a step is a call that kvmq's own code makes, of Python or of C: a sync, a write to
RocksDB, a wait. A run that only watches lists a thread's steps; then each run throws at one of
them, as if that call had failed, be it for want of memory or by an exception set from outside.
"""

from __future__ import annotations

import errno
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

_ROOT: Final = str(Path(__file__).parents[2])
_SOURCE: Final = (f"{_ROOT}/kvstore/", f"{_ROOT}/tiering/")
Error = Callable[[], BaseException]
ERRORS: Final[tuple[Error, ...]] = (
    MemoryError,
    partial(RuntimeError, "struck"),
    partial(OSError, errno.EIO, "struck"),
    KeyboardInterrupt,
    partial(SystemExit, 3),
)


class Step(NamedTuple):
    """A call that the code at `line` of `file` makes."""

    file: str
    line: int
    called: str


class Thrower:
    """Watches the steps of threads whose names begin with one, and throws at one of them, once."""

    def __init__(self, thread: str, at: Step | None = None, error: Error = MemoryError) -> None:
        self.thread = thread
        self._at = at
        self._error = error
        self.steps: dict[Step, None] = {}
        self.has_thrown = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The threads that begin in here are watched."""
        threading.setprofile(self._look)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            caller, called = frame, arg.__name__
        elif event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return  # it goes on, or is freed, where an exception would be lost
        elif event == "call" and frame.f_back is not None:
            caller, called = frame.f_back, frame.f_code.co_name
        else:
            return
        # A lock's release does not fail, and what the garbage collector calls is nobody's step.
        if called in (
            "release",
            "__exit__",
            "__del__",
            "_remove",
        ) or not caller.f_code.co_filename.startswith(_SOURCE):
            return
        if not threading.current_thread().name.startswith(self.thread):
            return
        step = Step(caller.f_code.co_filename[len(_ROOT) + 1 :], caller.f_lineno, called)
        self.steps[step] = None
        if step == self._at and not self.has_thrown.is_set():
            self.has_thrown.set()
            del arg  # a method of an iterator, perhaps, which this frame would keep
            raise self._error()


def some(steps: dict[Step, None], count: int) -> list[tuple[Step, Error]]:
    """Up to so many of the steps, spread over all, each with an error of its own."""
    every = max(1, len(steps) // count)
    return list(zip(list(steps)[::every], itertools.cycle(ERRORS), strict=False))
