"""Session: a Spark on this machine that needs nothing set up; or the one that is there.

The idea: a verb or a script asks for a session. On a cluster (`spark-submit`) there is one, and it
is used. Else one is started here: Java is found, workers run this Python with this kvmq, and the
output of Spark and its JVM goes to a file, which is shown only if Spark does not start. Spark fails
with pages of Java where something is missing or too old, so each need is checked before, and said
in a line. An error of ours comes back from a task as text, in the midst of tracebacks of two
languages: it is looked for there, and raised alone.

Invariants: a session that somebody else started is not ended here, and its settings stay; nothing
of Spark is on the terminal but our own progress; Spark's whole text is the cause of an error that
is raised in its place.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvstore.clock import Clock, SystemClock
from kvstore.errors import StoreError
from kvstore.process.freed_memory import keep_freed
from tiering.errors import ExtraMissing, SparkFailed, SparkUnsuitable
from tiering.worker.store_protocols import Progress

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
_MARK: Final = "spark.kvmq.session"
"""The setting by which a session that was started here is told from one that was there."""
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
    """A session for the time of the block: the one that is there, that of `spark-submit`, or one on
    this machine (`master`; one of all cores if nothing says another). Blocks that run at one time,
    in whatever threads, share a session that was started here; the last of them stops it.

    `settings` are Spark's, and `jvm` are options of its JVM, for a session that is started here (a
    JVM stays as long as the process, and with it the options of the first session); `progress` is
    told of the stages that run, in tasks.

    >>> with session() as spark:
    ...     spark.read.format("kvmq").load("data").count()  # doctest: +SKIP

    Raises SparkUnsuitable, ExtraMissing; and SparkFailed for an error of Spark within the block.
    """
    check_packages()
    found, is_ours = _shared.take(lambda: _started(name, master, dict(settings or {}), jvm))
    try:
        with spark_errors(), watched(found, progress):
            yield found
    finally:
        if is_ours:
            _shared.give_back()


class _Shared:
    """The session that was started here, and the number of blocks that use it.

    The lock is held while one is started or stopped: no block is given a session that another
    stops, and a JVM takes its options and its standard error from the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours: SparkSession | None = None
        self._users = 0

    def take(self, start: Callable[[], SparkSession]) -> tuple[SparkSession, bool]:
        """The session that is there, or else the started one; and whether to give it back."""
        with self._lock:
            found = _at_hand()
            if found is None:
                found = start()
                # Somebody may have begun one just now, which Spark gives instead of another.
                if found.sparkContext.getConf().get(_MARK) is None:
                    return found, False
                self._ours, self._users = found, 0
            is_ours = found is self._ours
            self._users += is_ours
            return found, is_ours

    def give_back(self) -> None:
        """Ends a block's use; the last one stops the session."""
        with self._lock:
            self._users -= 1
            if not self._users:
                # Stopping it again would end one that somebody has begun since.
                if self._ours is not None and _at_hand() is self._ours:
                    self._ours.stop()
                self._ours = None


_shared: Final = _Shared()


def _at_hand() -> SparkSession | None:
    """The session of this thread, or else of any; None if there is none, or it was stopped."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 # after `check_packages`
    from pyspark.sql import SparkSession  # noqa: PLC0415

    try:
        found = SparkSession.active()
    except PySparkRuntimeError:
        return None
    # One of Spark Connect has no context here.
    context = getattr(found, "_sc", None)
    return None if context is not None and context._jsc is None else found


def _started(
    name: str, master: str | None, settings: dict[str, str], jvm: Sequence[str]
) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder.appName(name).config(_MARK, name)
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
    with _quiet() as log, _told(jvm):
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


# --- needs ----------------------------------------------------------------------------------------


PYSPARK: Final = (4, 2)
"""The first version that limits a stream's batches (`latestOffset` with a limit)."""
PYARROW: Final = (18,)
JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""
_HOMES: Final = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "~/.sdkman/candidates/java")
_MAC: Final = "Contents/Home"
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS: Final = 30


def check_packages() -> None:
    """Raises ExtraMissing, SparkUnsuitable."""
    for name, least in (("pyspark", PYSPARK), ("pyarrow", PYARROW)):
        needed = ".".join(map(str, least))
        try:
            found = version(name)
        except PackageNotFoundError as e:
            raise ExtraMissing(
                f"this takes {name} {needed} or newer, which is not installed: "
                "pip install 'kvmq[spark]'", "spark",
            ) from e  # fmt: skip
        if _numbers(found) < least:
            raise SparkUnsuitable(
                f"{name} is {found}; this takes {needed} or newer: pip install -U 'kvmq[spark]'"
            )


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The home of a Java that Spark runs on: that of JAVA_HOME, of the PATH, or one that is
    installed where Java usually is; of these the oldest that is new enough, which Spark knows best.
    Raises SparkUnsuitable.
    """
    env = os.environ if environment is None else environment
    seen: list[str] = []
    for home in _asked_for(env):
        number = java_version(home)
        if number is None or number >= JAVA:
            return home
        seen.append(f"{home} is Java {number}")
    usual = [(number, home) for home in _installed() if (number := java_version(home)) is not None]
    fit = sorted((number, home) for number, home in usual if number >= JAVA)
    if fit:
        return fit[0][1]
    seen += [f"{home} is Java {number}" for number, home in usual]
    found = "; ".join(seen) or "no Java was found by JAVA_HOME, on the PATH, or where it usually is"
    raise SparkUnsuitable(
        f"Spark takes Java {JAVA} or newer: {found}. Install one, such as openjdk-17-jre-headless, "
        "or set JAVA_HOME"
    )


def _asked_for(env: Mapping[str, str]) -> Iterator[Path]:
    """Homes that the environment names."""
    named = env.get("JAVA_HOME")
    if named:
        home = Path(named)
        if not (home / "bin" / "java").is_file():
            raise SparkUnsuitable(
                f"JAVA_HOME is {named}, where there is no bin/java; unset it, or name a Java's home"
            )
        yield home
        return
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path:
        # /usr/bin/java on a Mac is a stub that has no home.
        home = Path(on_path).resolve().parent.parent
        if (home / "lib").is_dir():
            yield home


def _installed() -> Iterator[Path]:
    for root in map(Path, map(os.path.expanduser, _HOMES)):
        for home in sorted(root.iterdir()) if root.is_dir() else ():
            for one in (home, home / _MAC):
                if (one / "bin" / "java").is_file() and not home.is_symlink():
                    yield one


def java_version(home: Path) -> int | None:
    """The version of the Java at a home; None if that can't be told."""
    command = [str(home / "bin" / "java"), "-version"]
    try:
        run = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _JAVA_VERSION.search(run.stderr + run.stdout)
    return int(found[1]) if found else None


# --- errors ---------------------------------------------------------------------------------------


_OURS: Final = re.compile(r"^(?:\w+\.)*(?:kvstore|tiering)\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
_JAVA: Final = re.compile(r"(?:[\w$]+\.)+([\w$]+(?:Exception|Error)): (.+)")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raises `SparkFailed`, with one line, for any error of Spark in the block."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 # only where Spark is there
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError) as e:
        raise SparkFailed(error_line(str(e))) from e


def error_line(text: str) -> str:
    """The most telling line of an error's text."""
    ours = _OURS.findall(text)
    if ours:
        kind, said = ours[-1]
        return f"{said.strip()} ({kind})"
    first = next((line for line in text.splitlines() if line.strip()), "Spark failed")
    jvm = _JAVA.findall(text)
    if jvm and first.startswith("An error occurred while calling"):
        kind, said = jvm[-1]
        return f"{said.strip()} ({kind})"
    return first.strip()


# --- workers --------------------------------------------------------------------------------------


_KEPT: Final = 64 << 20
"""64 MiB: some batches of messages, which a task has in several forms."""
_LARGEST: Final = 32 << 20
"""32 MiB, the most that `keep_freed` takes."""


@cache
def tune_process() -> None:
    """Keeps the objects loaded by now, and freed memory, for good. Tasks call it as they begin;
    only the first call has an effect.

    After each task Spark has a worker search all its objects for garbage. Nearly all of them are
    modules, which stay; without them it takes 30 ms less. And a task takes and gives back the same
    few megabytes over and over: if the C library keeps them, instead of handing them to the system
    and having them cleared anew, reading takes a tenth less time.
    """
    gc.freeze()
    keep_freed(_KEPT, _LARGEST)
