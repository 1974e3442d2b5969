"""A new store that another process serves, and processes that end with the work they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import AnyStr, Final, NamedTuple

import kvstore

_QUEUES: Final = 8
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Server(NamedTuple):
    """A server that is measured: its process, and the port at which it takes RocketMQ's clients."""

    pid: int
    port: int

    def cpu(self) -> float:
        """Seconds of processor time that it took so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def ending(
    process: subprocess.Popen[AnyStr], seconds: float = 20.0
) -> Iterator[subprocess.Popen[AnyStr]]:
    """Ends a process when the block ends, however that ends; RuntimeError if it had to be killed.

    A Popen's own `with` waits for ever for a process that does not end.
    """
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"SIGTERM did not end {process.args!r} in {seconds:g} s") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """A server of a new store with topic "t" and group "g"."""
    with kvstore.open(folder) as store:
        store.create_topic("t", queues=_QUEUES)
        store.create_group("g")
    command = [sys.executable, "-m", "kvstore", "serve", str(folder), "--json"]
    command += ["--grpc", "127.0.0.1:0"]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        door = process.stdout.readline()
        yield Server(process.pid, int(door.rpartition("127.0.0.1:")[2].partition('"')[0]))
