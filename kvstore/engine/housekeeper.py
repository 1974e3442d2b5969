"""The housekeeper: one thread for the work that no call asks for.

The idea: it wakes at an interval, and when the log says that a job is due (the next segment, a
checkpoint); it does one job after the other. A call can do each of its jobs as well; a store works
without it, only less promptly. A job waits for nothing but the disk, since the others wait for it:
a job that wants a pause is due again later.

Invariant: a job that fails, with whatever error, is logged, shown in `Store.stats` and tried again
later; the other jobs are done all the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from kvstore.clock import Clock
from kvstore.config import StoreConfig
from kvstore.errors import StoreError
from kvstore.process.background import Background, traced

_INTERVAL: Final = 0.5
_log = logging.getLogger("kvmq")


class Again(NamedTuple):
    """A job's answer: it has more to do, in so many seconds."""

    seconds: float


def housekeeping_interval(config: StoreConfig) -> float:
    """Seconds from one turn to the next: no more than the shortest time promised."""
    promised = config.offset_sync_interval
    return _INTERVAL if not promised else min(_INTERVAL, promised)


class Job:
    """Something to do: `due` is asked often and must be cheap."""

    def __init__(self, name: str, due: Callable[[], bool], run: Callable[[], object]) -> None:
        self.name = name
        self.due = due
        self.run = run
        self.failure: str | None = None
        self.failed_when_due = False


class Housekeeper:
    """The thread that runs the jobs, see the module. `interval` is in seconds."""

    def __init__(
        self, clock: Clock, wake: threading.Event, jobs: list[Job], interval: float
    ) -> None:
        self.jobs = jobs
        self.thread = Background("kvmq-housekeeper", self._turn, clock, interval, wake=wake)
        self.thread.start()

    def stop(self) -> None:
        """End the thread after the job it is at."""
        self.thread.stop()

    def _turn(self) -> None:
        for job in self.jobs:
            self._do(job)

    def _do(self, job: Job) -> None:
        if self.thread.is_stopping:
            return
        was_due = False
        try:
            was_due = job.due()
            if was_due:
                found = job.run()
                if isinstance(found, Again):
                    self.thread.take_next_in(found.seconds)
                self.thread.did(job.name)
        except BaseException as e:
            self._failed(job, e, was_due=was_due)
        else:
            # A failure is over only when the job was done; a job that is not due has not succeeded.
            if was_due or not job.failed_when_due:
                job.failure = None
        failures = [job.failure for job in self.jobs if job.failure is not None]
        self.thread.failing("; ".join(failures) or None)

    def _failed(self, job: Job, why: BaseException, *, was_due: bool) -> None:
        failure = f"{job.name}: {type(why).__name__}: {why}"
        if failure != job.failure:
            told = str(why) if isinstance(why, StoreError | OSError) else traced(why)
            _log.error("kvmq could not do %s: %s", job.name, told)
        job.failure, job.failed_when_due = failure, was_due
