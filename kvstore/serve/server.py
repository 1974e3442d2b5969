"""The server: a store, its gatherer and its doors, from the first `ready` to the last reply.

The idea: doors start one after the other, and stop together. Stopping drains: no new requests, pops
that wait are answered, what was taken is made; then the store is closed by its owner.

Invariants: if a door can't start, the doors before it are stopped; all that was taken before the
stop is made and answered, if that takes no longer than `DRAIN` seconds; the drain takes no longer,
whatever a call waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Final

from kvstore.api.store import Store
from kvstore.serve.door import Door, MakesDoor
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.tier_jobs import TierJobs

DRAIN: Final = 8.0
"""Seconds that requests under way have when the server ends; the store's closing comes behind."""
_LOOK: Final = 0.02
"""Seconds between two looks at whether the work of tiering has ended."""
Gathers = Callable[[Store], Gatherer]
"""Makes the gatherer, in the loop."""


class Server:
    """Serves a store; see the module. It is made and run in the loop. `tier_jobs` does the work of
    tiering that clients ask for.
    """

    def __init__(
        self,
        store: Store,
        makers: Iterable[MakesDoor],
        gathers: Gathers = Gatherer,
        tier_jobs: TierJobs | None = None,
    ) -> None:
        self._store = store
        self._gathers = gathers
        self._makers = list(makers)
        self._tier_jobs = tier_jobs
        self._stopping = asyncio.Event()
        self.doors: list[Door] = []
        """Those that are open."""

    async def run(self, ready: Callable[[Door], None]) -> None:
        """Opens the doors, calls `ready` with each, and serves until `stop` is called."""
        gatherer = self._gathers(self._store)
        gatherer.tier_jobs = jobs = self._tier_jobs
        loop = asyncio.get_running_loop()
        try:
            for make in self._makers:
                door = make(loop, self._store, gatherer)
                await door.start()
                self.doors.append(door)
                gatherer.counts.watch(door)
                if len(self.doors) == 1:
                    self._store._say_served(door.url)
                ready(door)
            await self._stopping.wait()
        finally:
            until = loop.time() + DRAIN
            stops = [loop.create_task(door.stop(DRAIN)) for door in self.doors]
            stopping: threading.Thread | None = None
            if jobs is not None:
                # Their clients wait for an answer, which is that they were stopped. A job may wait
                # for a place that does not answer, and the process waits for no such thread.
                stopping = threading.Thread(target=jobs.stop, name="kvmq-jobs-stop", daemon=True)
                stopping.start()
            # The doors take no more first: a pop that came now would be refused, not waited for.
            await asyncio.sleep(0)
            gatherer.end_polls()
            await asyncio.gather(*stops)
            self._store._say_served("")
            await gatherer.close(max(until - loop.time(), 0.0))
            while stopping is not None and stopping.is_alive() and loop.time() < until:
                await asyncio.sleep(_LOOK)

    def stop(self) -> None:
        """Lets `run` drain and end; called in the loop."""
        self._stopping.set()
