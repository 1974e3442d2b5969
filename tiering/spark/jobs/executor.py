"""Runs the worker's steps as tasks of Spark.

The idea: a step is a task of a Spark job. Many are sent at once, a window of them as one Spark job,
and the next window while the first is under way, so that nobody waits for the slowest. The store
stays with the driver. Tasks read and write files, and their results are handed over here, one after
the other, as the embedded worker does. Spark may begin a task again, while the first one is still
at work somewhere: so an attempt of a job that writes files has a folder of its own inside the one
that the job names. The maker of that folder removes it whole, with the files that lost attempts
have left in it.

Invariants:

- An error of a task is raised here, the same error, without another try.
- A task that died is tried again (by Spark, or here where a local Spark does not), and costs
  nothing but time.
- An attempt makes no folder but its own, so that one which comes too late has nowhere to write.
- A caller that gives up has its own Spark jobs cancelled, and no others.
- The driver holds the answers of two windows at most.
"""

from __future__ import annotations

import itertools
import pickle
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from kvstore.errors import shown
from tiering.errors import SparkFailed, SparkUnsuitable
from tiering.executor.pool import Executor, WorkerDied, pack_error, unpack_error
from tiering.executor.segment_encoder import SegmentJob
from tiering.spark.session import JOBS, error_line, session, tune_process

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
J = TypeVar("J")
Check = Callable[[], None]
_TURNS: Final = 4
"""Tasks of a window that a core has one after the other: at a window's end cores may wait."""
WINDOW_MAX: Final = 64
"""The most tasks of a window: their answers are in the driver's memory together."""
_WINDOWS: Final = 2
_LOOK: Final = 0.1
_END: Final = 5.0
"""Seconds that a cancelled job is waited for."""
_TRIES: Final = 4
_TRIES_ONCE: Final = re.compile(r"local(\[[^,\]]*\])?")
"""Masters of which Spark begins no task a second time, whatever `spark.task.maxFailures` says."""
_DIED: Final = re.compile(
    r"Python worker exited|worker.*crashed|ExecutorLost|EOFException|Connection reset|Broken pipe"
)


class SparkExecutor(Executor):
    """An `Executor` (see `tiering.executor.pool`) of a Spark session; `close` cancels the jobs
    under way. Several threads may use it. Folders that jobs name must be seen by the driver and by
    all tasks.

    >>> with session() as spark:
    ...     Worker(store, policy, executor=SparkExecutor(spark)).run_once()  # doctest: +SKIP

    Raises `SparkUnsuitable` for a session of Spark Connect, which runs no Python of ours.
    """

    def __init__(self, spark: SparkSession) -> None:
        try:
            self._context: SparkContext = spark.sparkContext
        except Exception as e:
            raise SparkUnsuitable(
                "this session is one of Spark Connect, which can't run the worker's steps; start "
                "one with a driver of its own (spark-submit, or a master)"
            ) from e
        # Two at least: an executor of one job at a time is asked to write a merge's file, which no
        # attempt of a task has for itself.
        self.width = max(self._context.defaultParallelism, 2)
        self._tag = f"kvmq-{secrets.token_hex(8)}"
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._windows: set[_Window] = set()

    def run(self, check: Check, work: Callable[..., T], *args: Any) -> T:
        """See `Executor.run`: a job of one task."""
        window = self._begin(work, [args])
        try:
            (found,) = self._taken(check, window)
        finally:
            self._end(window)
        result: T = found
        return result

    def each(self, check: Check, work: Callable[[J], T], jobs: Sequence[J]) -> Iterator[T]:
        """See `Executor.each`: a task for each job."""
        size = min(_TURNS * self.width, WINDOW_MAX)
        begun: deque[_Window] = deque()
        try:
            for at in range(0, len(jobs), size):
                begun.append(self._begin(work, [(job,) for job in jobs[at : at + size]]))
                if len(begun) == _WINDOWS:
                    yield from self._taken(check, begun[0])
                    self._end(begun.popleft())
            while begun:
                yield from self._taken(check, begun[0])
                self._end(begun.popleft())
        finally:
            for window in begun:
                self._end(window)

    def close(self) -> None:
        """See `Executor.close`."""
        with self._lock:
            under_way = list(self._windows)
        for window in under_way:
            self._end(window)

    def _begin(self, work: Callable[..., object], args: Sequence[tuple[object, ...]]) -> _Window:
        tasks = [packed(work, one) for one in args]
        name = getattr(work, "__name__", "work").replace("_", " ")
        window = _Window(self._context, f"{self._tag}-{next(self._numbers)}", name, tasks)
        with self._lock:
            self._windows.add(window)
        return window

    def _taken(self, check: Check, window: _Window) -> Iterator[Any]:
        """Yields its tasks' answers, in order, and keeps none."""
        while not futures.wait([window.answers], _LOOK).done:
            check()
        found = window.answers.result()
        while found:
            answer = answer_of(found.popleft())
            if not answer.is_done:
                raise answer.found
            yield answer.found

    def _end(self, window: _Window) -> None:
        """Ends a window: cancels it, if it is not over."""
        window.cancel()
        with self._lock:
            self._windows.discard(window)


@contextmanager
def executor(
    master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkExecutor]:
    """An executor for the time of the block: of the active Spark, or of one that is started for
    nothing else. Raises as `session` does.
    """
    with session(master=master, settings=settings, jvm=JOBS) as spark:
        found = SparkExecutor(spark)
        try:
            yield found
        finally:
            found.close()


class _Window:
    """Some tasks as one Spark job, which a thread waits for. `answers` has those of the tasks, or
    WorkerDied or SparkFailed.
    """

    def __init__(self, context: SparkContext, tag: str, name: str, tasks: list[bytes]) -> None:
        from pyspark import InheritableThread  # noqa: PLC0415 # only where Spark is there

        self._context = context
        self._tag = tag
        self._name = name
        self._tasks = tasks
        self._is_cancelled = False
        self.answers: futures.Future[deque[bytes]] = futures.Future()
        try:
            # The job inherits the settings of the caller's thread, for example its pool.
            InheritableThread(target=self._run, name="kvmq Spark job", daemon=True).start()
        except Exception as e:
            raise SparkFailed(f"Spark takes no more jobs, it was stopped: {e!r}") from e

    def cancel(self) -> None:
        """Cancels the window, unless it has ended."""
        self._is_cancelled = True
        if self.answers.done():
            return
        try:
            self._context.cancelJobsWithTag(self._tag)
        except Exception:  # Spark itself is at its end
            return
        futures.wait([self.answers], _END)

    def _run(self) -> None:
        try:
            found = self._collected()
        except Exception as e:
            error = self._said(str(e))
            error.__cause__ = e
            self.answers.set_exception(error)
        else:
            self.answers.set_result(deque(found))
        finally:
            self._tasks = []

    def _collected(self) -> list[bytes]:
        context = self._context
        context.addJobTag(self._tag)
        context.setJobDescription(f"kvmq: {self._name}")
        tries = _TRIES if _TRIES_ONCE.fullmatch(context.master or "") else 1
        while True:
            if self._is_cancelled:
                raise SparkFailed("the job was cancelled")
            try:
                found: list[bytes] = (
                    context.parallelize(self._tasks, len(self._tasks))
                    .mapPartitions(answers)
                    .collect()
                )
            except Exception as e:
                tries -= 1
                if self._is_cancelled or not tries or not _DIED.search(str(e)):
                    raise
            else:
                return found

    def _said(self, text: str) -> Exception:
        if _DIED.search(text) and not self._is_cancelled:
            return WorkerDied(
                f"a task of Spark ({self._name}) ended in the middle, again and again, perhaps for "
                f"want of memory: {error_line(text)}; nothing was changed, the next run begins "
                "again"
            )
        return SparkFailed(f"a job of Spark ({self._name}) failed: {error_line(text)}")


# --- in tasks -------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """The answer of a task: the value that the work returned, or the error that it raised."""

    is_done: bool
    found: Any


def packed(work: Callable[..., object], args: tuple[object, ...]) -> bytes:
    """A task as it is sent: a function of a module, and all that it needs."""
    return pickle.dumps((work, args), pickle.HIGHEST_PROTOCOL)


def answers(tasks: Iterable[bytes]) -> Iterator[bytes]:
    """Runs packed tasks, one after the other: the function that Spark applies to a part of its
    data.

    Yields the answers, packed; see `answer_of`.
    """
    tune_process()
    for task in tasks:
        # The driver sent it; nobody else has an end of the pipe.
        work, args = pickle.loads(task)  # noqa: S301
        yield _answered(work, args)


def answer_of(data: bytes) -> Answer:
    """Unpacks the answer of a task."""
    # A task of ours sends it to us.
    is_done, found = pickle.loads(data)  # noqa: S301
    return Answer(is_done, found if is_done else unpack_error(found))


def _answered(work: Callable[..., object], args: tuple[object, ...]) -> bytes:
    attempt = secrets.token_hex(8)
    try:
        found = work(*(apart(one, attempt) for one in args))
    except Exception as e:  # whatever it is, the other side raises it
        return pickle.dumps((False, pack_error(e)), pickle.HIGHEST_PROTOCOL)
    try:
        return pickle.dumps((True, found), pickle.HIGHEST_PROTOCOL)
    except Exception as e:
        told = SparkFailed(f"a task answered what can't be sent ({e}): {shown(found)}")
        return pickle.dumps((False, pack_error(told)), pickle.HIGHEST_PROTOCOL)


@singledispatch
def apart(job: Any, attempt: str) -> Any:
    """A job as one attempt does it: with a folder of its own, if it writes files."""
    return job


@apart.register
def _(job: SegmentJob, attempt: str) -> SegmentJob:
    folder = Path(job.folder) / attempt
    # Folders above it are not made: if their giver has removed them, this attempt is too late.
    folder.mkdir()
    return msgspec.structs.replace(job, folder=str(folder))
