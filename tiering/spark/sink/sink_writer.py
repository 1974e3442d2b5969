"""Writers: `df.write.format("kvmq")` and `df.writeStream.format("kvmq")`.

The idea: Spark makes a writer on the driver, sends it to the tasks, and gives the tasks' return
values to `commit`, on the driver again. A stream's writer is made anew for the commit, so all that
a commit needs beside the options is in these messages. A batch of a stream is a job whose name
follows from query and batch, so that done twice it counts once.

Invariants: a writer is plain data; a task that fails, at any step, has committed nothing.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kvstore.clock import SystemClock
from kvstore.errors import ConfigError
from kvstore.files import LocalFiles
from tiering.errors import PlaceError
from tiering.places.commits import CommitLog, CommittedArchive
from tiering.places.dead_jobs import abort, sweep, sweep_jobs
from tiering.places.settings import is_url
from tiering.spark.options import SinkOptions, sink_options
from tiering.spark.sink.archives import write_task
from tiering.spark.sink.frame_columns import check_schema
from tiering.spark.sink.jobs import PlaceState, commit, read_state

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
"""The properties by which Spark tells the tasks of a stream its query and batch."""
_JOB_BYTES: Final = 16
_log = logging.getLogger("kvmq")


@dataclass
class TaskCommit(WriterCommitMessage):
    """The result of a task: the id of the store that the archives are of, the number of commits
    when the job began, the job's name, the stream's query, and the archives.
    """

    store_id: str
    begun: int
    job: str
    query: str = ""
    archives: list[CommittedArchive] = field(default_factory=list)


class _WriterSettings(NamedTuple):
    """A writer's settings, and the state of the place as it was made."""

    options: SinkOptions
    state: PlaceState
    overwrite: bool

    def log(self) -> CommitLog:
        """The commits of the place."""
        return CommitLog(self.options.open(), self.state.store_id)


def _begin(
    schema: StructType, given: Mapping[str, str], *, overwrite: bool, is_stream: bool
) -> _WriterSettings:
    """Looks at the place, and removes what dead jobs have left. Raises ConfigError,
    StoresAmbiguous, PlaceError.
    """
    check_schema(schema)
    options = sink_options(given)
    place = options.open()
    if not is_url(options.path):
        LocalFiles().make_dir(Path(options.path))
    state = read_state(place, options, overwrite=overwrite)
    now = SystemClock().now_ms()
    try:
        # A stream's writer is made for each batch: the objects that it reads must not grow with
        # those that are there.
        log = CommitLog(place, state.store_id)
        for name in sweep_jobs(log, now) if is_stream else sweep(place, now):
            _log.info("removed what a dead job has left: %s", name)
    except PlaceError as e:
        _log.warning("leftovers of dead jobs stay: %s", str(e))
    return _WriterSettings(options, state, overwrite)


class KvmqWriter(DataSourceArrowWriter):
    """Writes a frame; see the module."""

    def __init__(self, schema: StructType, given: Mapping[str, str], *, overwrite: bool) -> None:
        self._settings = _begin(schema, given, overwrite=overwrite, is_stream=False)
        self._job = secrets.token_hex(_JOB_BYTES)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows; runs where Spark runs tasks. Raises as `write_task`."""
        return _write(self._settings, self._job, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes all archives of the job count. Raises OffsetsTaken, JobAborted, PlaceError,
        CommitUncertain.
        """
        options, state, overwrite = self._settings
        commit(options.open(), state, self._job, _archives(messages), overwrite=overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes the objects that tasks have put; committed ones stay."""
        del messages
        abort(self._settings.log(), self._settings.state.begun, self._job)


class KvmqStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, one batch after the other; see the module."""

    def __init__(self, schema: StructType, given: Mapping[str, str], *, overwrite: bool) -> None:
        self._settings = _begin(schema, given, overwrite=overwrite, is_stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows of a batch. Raises as `write_task`."""
        query = self._settings.options.query or _told(_QUERY)
        batch = _told(_BATCH)
        if not query or not batch:
            raise ConfigError(
                "Spark does not tell which query this is; give the stream a name that stays, by "
                "the option query"
            )
        return _write(self._settings, job_of(query, int(batch)), iterator, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 # Spark's name
        """Makes the batch count, unless it does already. Raises as for a frame."""
        done = next((one for one in messages if isinstance(one, TaskCommit)), None)
        if done is not None:
            options, _, overwrite = self._settings
            state = PlaceState(store_id=done.store_id, begun=done.begun)
            commit(
                options.open(), state, done.job, _archives(messages), overwrite=overwrite,
                query=done.query, batch=batchId,
            )  # fmt: skip

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Removes the objects that tasks have put for the batch; committed ones stay."""
        del batchId
        done = next((one for one in messages if isinstance(one, TaskCommit)), None)
        if done is not None:
            log = CommitLog(self._settings.options.open(), done.store_id)
            abort(log, done.begun, done.job)


def job_of(query: str, batch: int) -> str:
    """The name of the job that writes a batch of a query."""
    text = f"{query}\0{batch}".encode()
    return hashlib.blake2b(text, digest_size=_JOB_BYTES).hexdigest()


def _archives(messages: Sequence[WriterCommitMessage | None]) -> list[CommittedArchive]:
    return [
        one for message in messages if isinstance(message, TaskCommit) for one in message.archives
    ]


def _write(
    settings: _WriterSettings, job: str, batches: Iterator[pa.RecordBatch], query: str = ""
) -> TaskCommit:
    options, state, _ = settings
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    made = write_task(options, state, job, task, batches)
    return TaskCommit(state.store_id, state.begun, job, query, made)


def _told(name: str) -> str | None:
    context = TaskContext.get()
    found = None
    with suppress(AttributeError):  # a context without properties
        found = context.getLocalProperty(name) if context is not None else None
    return found or None
