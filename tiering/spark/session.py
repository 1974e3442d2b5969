"""Session: a Spark on this machine that needs nothing set up; or the one that is there.

The idea: a verb or a script asks for a session. On a cluster (`spark-submit`) there is one, and it
is used. Else one is started here: Java is found, workers run this Python with this kvmq, and the
output of Spark and its JVM goes to a file, which is shown only if Spark does not start.

Invariants: a session that somebody else started is not ended here, and its settings stay; nothing
of Spark is on the terminal but our own progress.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvstore.clock import Clock, SystemClock
from kvstore.errors import StoreError
from tiering.errors import SparkUnsuitable
from tiering.spark.job_errors import spark_errors
from tiering.spark.needs import check_packages, java_home
from tiering.worker.store_side import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK: Final = 0.2
_SHOWN: Final = 2000
"""Characters of Spark's own log that an error shows."""
_STDERR: Final = 2
_ROOT: Final = Path(__file__).resolve().parents[2]
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": "262144",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.maxResultSize": "0",
    "spark.sql.shuffle.partitions": "8",
    "spark.task.maxFailures": "4",
}
"""The settings of a Spark that is started here, unless the caller gives others. Without the socket,
Python and Spark wait 40 ms for each other at each task's end. The larger buffer between them saves
3 % of a scan. Results are of any size, because the answers of tasks come back through the
driver."""
SCANS: Final = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
"""Options of its JVM for scans: Arrow does not check the bounds of each value again, which would
take a tenth longer."""
JOBS: Final = ("-XX:TieredStopAtLevel=1",)
"""Options of a JVM that only hands out the worker's steps: it has little to do, and would take half
as long again to compile its own code well. No garbage collector is named: a JVM that is given two
does not start."""
_starting: Final = threading.Lock()
"""A JVM takes its options and its standard error from the process, so one is started at a time."""
_JVM: Final = "SPARK_SUBMIT_OPTS"
"""The variable that adds options to the JVM's, before all others. Spark's own settings for that
(`spark.driver.defaultJavaOptions`, `spark.driver.extraJavaOptions`) belong to the site and the
user: a value given here would replace theirs."""


@contextmanager
def session(
    name: str = "kvmq",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    jvm: Sequence[str] = SCANS,
    progress: Progress | None = None,
) -> Iterator[SparkSession]:
    """A session for the time of the block: the active one, that of `spark-submit`, or one on this
    machine (`master`; one of all cores if nothing says another). `settings` are Spark's, and `jvm`
    are options of its JVM, for a session that is started here (a JVM stays as long as the process,
    and with it the options of the first session); `progress` is told of the stages that run, in
    tasks.

    >>> with session() as spark:
    ...     spark.read.format("kvmq").load("data").count()  # doctest: +SKIP

    Raises SparkUnsuitable, ExtraMissing; and SparkFailed for an error of Spark within the block.
    """
    check_packages()
    from pyspark.sql import SparkSession  # noqa: PLC0415 # loads Spark, which the check is before

    found = SparkSession.getActiveSession()
    if found is not None:
        with spark_errors(), watched(found, progress):
            yield found
        return
    made = _started(name, master, dict(settings or {}), jvm)
    try:
        with spark_errors(), watched(made, progress):
            yield made
    finally:
        made.stop()


def _started(
    name: str, master: str | None, settings: dict[str, str], jvm: Sequence[str]
) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has a JVM already, and says where; its options go before ours.
        for key, value in settings.items():
            builder = builder.config(key, value)
        made: SparkSession = builder.getOrCreate()
        return made
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    path = os.environ.get("PYTHONPATH", "")
    if str(_ROOT) not in path.split(os.pathsep):
        # Workers must import kvmq also where it was not installed.
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(_ROOT), path) if part)
    # The second figure: how often a task is tried; Spark on one machine says once otherwise.
    builder = builder.master(master or "local[*,4]")
    for key, value in {**SETTINGS, **settings}.items():
        builder = builder.config(key, value)
    with _starting, _quiet() as log, _told(jvm):
        try:
            made = builder.getOrCreate()
        except Exception as e:
            said = log.read_text(encoding="utf-8", errors="replace")[-_SHOWN:].strip()
            raise SparkUnsuitable(f"Spark does not start: {e}; it said: {said or 'nothing'}") from e
    made.sparkContext.setLogLevel("ERROR")
    # It prints errors that are raised anyway, with all of the JVM's stack.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    return made


@contextmanager
def _told(options: Sequence[str]) -> Iterator[None]:
    """Gives a JVM that is started in the block these options, before those that it gets anyway."""
    before = os.environ.get(_JVM)
    os.environ[_JVM] = " ".join((*options, before or "")).strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ[_JVM]
        else:
            os.environ[_JVM] = before


@contextmanager
def _quiet() -> Iterator[Path]:
    """Gives processes that are started in the block a file as their standard error, for good."""
    fd, name = tempfile.mkstemp(prefix="kvmq-spark-", suffix=".log")
    before = os.dup(_STDERR)
    os.dup2(fd, _STDERR)
    try:
        yield Path(name)
    finally:
        os.dup2(before, _STDERR)
        os.close(before)
        os.close(fd)
        # The JVM has the file open still; nobody else needs its name.
        with suppress(OSError):
            Path(name).unlink()


@contextmanager
def watched(
    spark: SparkSession, progress: Progress | None, clock: Clock | None = None
) -> Iterator[None]:
    """Reports, while the block runs, which stages run and how many of their tasks are done."""
    if progress is None:
        yield
        return
    stop = threading.Event()
    clock = clock or SystemClock()
    context = spark.sparkContext
    tell = progress

    def look() -> None:
        tracker = context.statusTracker()
        while not clock.wait(stop, _LOOK):
            with suppress(StoreError, OSError, AttributeError):
                stages = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
                known = [one for one in stages if one is not None]
                if known:
                    done = sum(one.numCompletedTasks for one in known)
                    tell("tasks of Spark", done, sum(one.numTasks for one in known))

    thread = threading.Thread(target=look, name="kvmq spark's progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
