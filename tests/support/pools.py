"""Processes that make archives, begun from a fork server: a new interpreter takes a second each.

Such a process runs the product's own `tiering.executor.pool.serve`, and is new each time; only its
start is another. Workers in processes that tests start begin theirs as the product does, and so do
the callers of `started_anew`.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import IO, Final, cast

from kvstore.files import LocalFiles
from tests.support import inside_tiering
from tests.support.children import context
from tests.support.disk import half_full
from tiering.executor.pool import Pool, serve

_start_anew: Final = inside_tiering.start_of_pools()


class _Forked:
    """As much of `subprocess.Popen` as a pool needs."""

    def __init__(self) -> None:
        theirs_in, ours_out = context.Pipe(duplex=False)
        ours_in, theirs_out = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_served, args=(theirs_in, theirs_out, os.getcwd(), dict(os.environ))
        )
        self._process.start()
        theirs_in.close()
        theirs_out.close()
        self.stdin = _file(ours_out, "wb")
        self.stdout = _file(ours_in, "rb")
        self.pid = self._process.pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(cast(int, self.pid), signal.SIGKILL)

    def wait(self) -> int:
        self._process.join()
        self.returncode = self._process.exitcode
        self._process.close()
        return self.returncode or 0


def _file(end: Connection, mode: str) -> IO[bytes]:
    found = os.fdopen(os.dup(end.fileno()), mode, buffering=0)
    end.close()
    return cast(IO[bytes], found)


def _served(given: Connection, taken: Connection, folder: str, environment: dict[str, str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    half_full(LocalFiles)
    os.dup2(given.fileno(), sys.stdin.fileno())
    os.dup2(taken.fileno(), sys.stdout.fileno())
    given.close()
    taken.close()
    serve()


def quick_pools() -> None:
    """From here on, in this process, the processes of pools are forked."""

    def start(self: Pool) -> _Forked:
        self._process = process = _Forked()  # type: ignore[assignment] # it does what one does
        return process

    inside_tiering.start_pools_by(start)
