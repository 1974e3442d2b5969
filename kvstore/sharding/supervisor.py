"""The supervisor: one process that keeps the servers of several shards running.

The idea: each shard is a process of its own, made by a command. It prints a line of JSON for each
of its doors, and ends when its standard input does, so none outlives a supervisor that was killed.

Invariants: a shard that ends by itself is started again, sooner or later, until the supervisor
stops; one that never opened a door ends the supervisor instead; when `run` returns or raises no
shard runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from kvstore.errors import StoreError

_PAUSE: Final = 0.1
_PAUSE_MAX: Final = 5.0
"""Seconds before a shard that died is started again: the first pause, and the longest."""
_STEADY: Final = 10.0
"""Seconds after which a shard that dies is started with the first pause."""
_KILLED_AFTER: Final = 30.0
"""Seconds after SIGTERM at which a shard that has not ended is killed."""
_log = logging.getLogger("kvmq.serve")
Command = Sequence[str]
Told = Callable[[str, Mapping[str, Any]], None]
"""Takes a shard's name and what it says of a door: `door`, `url` and `pid`."""


class Supervisor:
    """See the module; made and run in the loop. `commands` are by the shards' names."""

    def __init__(self, commands: Mapping[str, Command], told: Told) -> None:
        self._commands = commands
        self._told = told
        self._stopping = asyncio.Event()
        self._running: dict[str, Process] = {}

    def stop(self) -> None:
        """Lets `run` drain the shards and end; called in the loop."""
        self._stopping.set()
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all shards that run."""
        for process in self._running.values():
            _send(process, number)

    async def run(self) -> None:
        """Runs the shards until `stop` is called; `StoreError` if one can't be started."""
        loop = asyncio.get_running_loop()
        keepers = [loop.create_task(self._keep(*one)) for one in self._commands.items()]
        stopping = loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*keepers, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not self._stopping.is_set():
                self.stop()
            with suppress(TimeoutError):
                await asyncio.wait_for(_all(keepers), _KILLED_AFTER)
            for name, process in self._running.items():
                _log.error("the shard %s did not end and is killed", name)
                _send(process, signal.SIGKILL)
            ended = await asyncio.gather(*keepers, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _keep(self, name: str, command: Command) -> None:
        """Keeps one shard running."""
        loop = asyncio.get_running_loop()
        pause, has_served = _PAUSE, False
        while not self._stopping.is_set():
            began = loop.time()
            # A group of its own: an interrupt of the terminal is for the supervisor.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, start_new_session=True
            )
            self._running[name] = process
            if self._stopping.is_set():
                _send(process, signal.SIGTERM)
            try:
                has_served = await self._listen(name, process) or has_served
                code = await process.wait()
            finally:
                del self._running[name]
            if self._stopping.is_set():
                return
            if not has_served:
                raise StoreError(f"the shard {name} can't be served: its lines above say why")
            if loop.time() - began > _STEADY:
                pause = _PAUSE
            _log.error(
                "the shard %s died (process %d, %s); it is started again in %.1f s",
                name, process.pid, _how(code), pause,
            )  # fmt: skip
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(2 * pause, _PAUSE_MAX)

    async def _listen(self, name: str, process: Process) -> bool:
        """Passes on the lines of a shard until its end; whether it opened a door."""
        assert process.stdout is not None, "it was made with a pipe"
        has_served = False
        async for line in process.stdout:
            with suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict) and "url" in said:
                    has_served = True
                    self._told(name, said)
        return has_served


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
