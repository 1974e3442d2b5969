"""The housekeeper: one thread for what has to be done while nobody asks for it.

The idea: it wakes when the log says that something is due (the next segment, a checkpoint) and at
an interval, and does one job after the other. Everything it does can be done by a call as well; a
store works without it, only less promptly.

Invariant: a job that fails is told and tried again later; it never ends the thread, and never the
process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from kvstore.clock import Clock
from kvstore.errors import StoreError

_INTERVAL: Final = 0.5
_log = logging.getLogger("kvmq")


class Job:
    """Something to do: `due` is asked often and must be cheap."""

    def __init__(self, name: str, due: Callable[[], bool], run: Callable[[], object]) -> None:
        self.name = name
        self.due = due
        self.run = run
        self.failure: Exception | None = None


class Housekeeper:
    """See the module."""

    def __init__(self, clock: Clock, wake: threading.Event, jobs: list[Job]) -> None:
        self._clock = clock
        self._wake = wake
        self.jobs = jobs
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="kvmq-housekeeper", daemon=True)
        self._thread.start()

    def stopping(self) -> bool:
        """Whether the thread was asked to end: long jobs look here."""
        return self._stopping

    def stop(self) -> None:
        """End the thread after the job it is at."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._clock.wait(self._wake, _INTERVAL)
            self._wake.clear()
            for job in self.jobs:
                self._do(job)

    def _do(self, job: Job) -> None:
        try:
            if not self._stopping and job.due():
                job.run()
                job.failure = None
        except (StoreError, OSError) as e:
            if str(e) != str(job.failure):
                _log.error("kvmq could not do %s: %s", job.name, e)
            job.failure = e
