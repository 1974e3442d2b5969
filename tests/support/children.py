"""Child processes: quick to make, free of the parent's threads, and there to be killed.

The idea: RocksDB's threads don't survive a fork, so a process that has opened a store must not fork
one that opens another. A fork server that has imported kvmq and opened nothing makes a child in a
few milliseconds, where a new interpreter takes half a second.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import select
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Final, Self

from kvstore.files import LocalFiles
from tests.support.disk import half_full

context: Final = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "pytest",
        "kvstore",
        "kvstore.opening.rebuild",
        "tests.support.files",
        "tests.support.stores",
        "tiering.merge.merge",
        "tiering.executor.pool",
        "tiering.executor.segment",
    ]
)
_PATIENCE: Final = 60.0
FORK_PATIENCE: Final = 30
"""Seconds after which a forked child that hangs is ended."""
_STACKS_WITHIN: Final = 2.0
"""Seconds for the stacks of a process that hangs."""
_PART: Final = 1 << 16
_ERROR: Final = "!"
_FAILED: Final = 99


class Child:
    """A process that does some work and prints its progress in lines.

    `work` is called with what it tells by; what it raises is raised again by `join`.
    """

    def __init__(self, work: Callable[..., object], *args: Any) -> None:
        self._reading, writing = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(writing, work, *args), daemon=True)
        self._process.start()
        writing.close()
        self.pid = self._process.pid
        self._cut = b""
        self._told: deque[str] = deque()
        self._errors: list[str] = []
        self._has_ended = False

    def lines(self, seconds: float = _PATIENCE) -> Iterator[str]:
        """The lines that come within so many seconds from now, or until the end."""
        until = time.monotonic() + seconds
        while True:
            while self._told:
                yield self._told.popleft()
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], left)[0]:
                return
            data = os.read(self._reading.fileno(), _PART)
            if not data:
                self._has_ended = True
                return
            # A kill may cut a line: what was not told whole was not told.
            *whole, self._cut = (self._cut + data).split(b"\n")
            for line in whole:
                kept = self._errors if line.startswith(_ERROR.encode()) else self._told
                kept.append(line.decode())

    def wait_for(self, word: str) -> str:
        """Read on to the line that begins with a word."""
        for line in self.lines():
            if line.startswith(word):
                return line
        at = "its end" if self._has_ended else self._threads()
        self.join()
        raise AssertionError(f"the child never told {word!r}; it was at:\n{at}")

    def _threads(self) -> str:
        """Where each thread of the process is."""
        os.kill(self._process.pid or 0, signal.SIGUSR1)
        return "\n".join(self.lines(_STACKS_WITHIN))

    def kill(self) -> list[str]:
        """End the process, whatever it is doing; returns what it had still told."""
        self._process.kill()
        return self._finish()

    def join(self) -> list[str]:
        """Wait for the end of the work; returns what it had still told."""
        told = self._finish()
        assert self.code == 0, f"the child ended with {self.code}\n" + "\n".join(self._errors)
        return told

    def ended(self) -> int:
        """Wait for the end, whatever it is; the exit code."""
        self._finish()
        return self.code

    def _finish(self) -> list[str]:
        told = list(self.lines())
        self._process.join(_PATIENCE)
        self.code = self._process.exitcode or 0
        self._process.kill()
        self._process.join()
        self._process.close()
        self._reading.close()
        assert not self._errors, "in the child:\n" + "\n".join(self._errors)
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._reading.closed:
            self.kill()


class Teller:
    """A child's way to report: when the call returns the line is there, whatever happens then."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, line: str) -> None:
        data = line.encode() + b"\n"
        assert len(data) <= select.PIPE_BUF, "two threads' lines would mix"
        os.write(self._connection.fileno(), data)


def in_child(work: Callable[..., object], *args: Any) -> list[str]:
    """Do some work, to its end, in a process of its own; returns what it told."""
    with Child(work, *args) as child:
        return child.join()


def fail(tell: Teller) -> None:
    """Tell the exception under way, and end the process."""
    for line in traceback.format_exc().splitlines():
        tell(_ERROR + line[:1000])
    os._exit(_FAILED)


def _run(writing: Connection, work: Callable[..., object], *args: Any) -> None:
    tell = Teller(writing)
    faulthandler.register(signal.SIGUSR1, writing.fileno())
    half_full(LocalFiles)
    try:
        work(tell, *args)
    except BaseException:
        fail(tell)


def forked(tell: Teller, work: Callable[[], object]) -> int:
    """Does some work in a fork of this process; returns how it ended."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(FORK_PATIENCE)
        try:
            work()
        except BaseException:
            fail(tell)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
