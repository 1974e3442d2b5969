"""Writers: `df.write.format("kvmq")` and `df.writeStream.format("kvmq")`.

The idea: Spark makes a writer on the driver, sends it to the tasks, and gives the tasks' return
values to `commit`, on the driver again. All that the commit needs is in these messages: a stream's
writer is made anew for the commit. A batch of a stream is a job whose name follows from query and
batch, so that done twice it counts once.

Invariants: a writer is plain data; a task that fails, at any step, has committed nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
from tiering.keys.sources import keys_at_hand, provider_of
from tiering.places.commits import CommitLog, CommittedArchive, TopicIds, take_ids
from tiering.places.dead_jobs import abort, sweep, sweep_jobs
from tiering.places.place import Place
from tiering.spark.options import SinkOptions, sink_options
from tiering.spark.session import tune_process
from tiering.spark.sink.archives import ArchiveMaker, Collector
from tiering.spark.sink.frame_columns import check_schema
from tiering.spark.sink.jobs import PlaceState, commit, read_state
from tiering.spark.sink.row_records import RecordMaker, TaskStart

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
    """The result of a task: whose archives, of which job, which began at so many commits."""

    store_id: str
    begun: int
    job: str
    query: str = ""
    archives: list[CommittedArchive] = field(default_factory=list)


def write_task(
    options: SinkOptions, state: PlaceState, job: str, task: int, batches: Iterator[pa.RecordBatch]
) -> list[CommittedArchive]:
    """A task's part of a job: its rows as archives in the place, none of which counts yet. Raises
    RowIllegal, JobTooLarge, PlaceError, ArchiveDamaged.
    """
    tune_process()
    files = LocalFiles()
    with _folder() as folder:
        maker = RecordMaker(SystemClock(), TaskStart(task, state.position, state.ends))
        found = Collector(maker, folder, options.spill_bytes, files).collect(batches)
        try:
            place = options.open()
            keys = keys_at_hand(provider_of(options.key_file, files), found.topics)
            archives = ArchiveMaker(
                options, state.store_id, state.begun, job, place, folder, files, keys
            )
            known = TopicIds(state.ids, state.lists)
            return archives.make(
                found, lambda names: take_ids(place, state.store_id, names, known=known).ids
            )
        finally:
            found.close()


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder of the task's own, where Spark has its local disks."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    inside = local if local and Path(local).is_dir() else None
    made = tempfile.mkdtemp(prefix="kvmq-sink-", dir=inside)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


class _Writing:
    """The base of both writers. Raises ConfigError, StoresAmbiguous, PlaceError."""

    def __init__(
        self,
        schema: StructType,
        given: Mapping[str, str],
        sweep: Callable[[Place, PlaceState, int], list[str]],
        *,
        overwrite: bool,
    ) -> None:
        check_schema(schema)
        self.options = sink_options(given)
        self.overwrite = overwrite
        place = self.options.open()
        if "://" not in self.options.path:
            LocalFiles().make_dir(Path(self.options.path))
        self.state = read_state(place, self.options, overwrite=overwrite)
        try:
            for name in sweep(place, self.state, SystemClock().now_ms()):
                _log.info("removed what a dead job has left: %s", name)
        except PlaceError as e:
            _log.warning("leftovers of dead jobs stay: %s", str(e))


def _sweep_place(place: Place, state: PlaceState, now: int) -> list[str]:
    del state
    return sweep(place, now)


def _sweep_store(place: Place, state: PlaceState, now: int) -> list[str]:
    # This runs for each batch: the objects that it reads must not grow with those that are there.
    return sweep_jobs(CommitLog(place, state.store_id), now)


class KvmqWriter(DataSourceArrowWriter):
    """Writes a frame; see the module."""

    def __init__(self, schema: StructType, given: Mapping[str, str], *, overwrite: bool) -> None:
        writing = _Writing(schema, given, _sweep_place, overwrite=overwrite)
        self._options, self._state = writing.options, writing.state
        self._overwrite = overwrite
        self._job = secrets.token_hex(_JOB_BYTES)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows; runs where Spark runs tasks. Raises as `write_task`."""
        made = write_task(self._options, self._state, self._job, _task(), iterator)
        return TaskCommit(self._state.store_id, self._state.begun, self._job, archives=made)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes all archives of the job count. Raises OffsetsTaken, JobAborted, PlaceError,
        CommitUncertain.
        """
        commit(
            self._options.open(), self._state, self._job, _archives(messages),
            overwrite=self._overwrite,
        )  # fmt: skip

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes the objects that tasks have put; committed ones stay."""
        del messages
        log = CommitLog(self._options.open(), self._state.store_id)
        abort(log, self._state.begun, self._job)


class KvmqStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, one batch after the other; see the module."""

    def __init__(self, schema: StructType, given: Mapping[str, str], *, overwrite: bool) -> None:
        writing = _Writing(schema, given, _sweep_store, overwrite=overwrite)
        self._options, self._state = writing.options, writing.state
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows of a batch. Raises as `write_task`."""
        query = self._options.query or _told(_QUERY)
        batch = _told(_BATCH)
        if not query or not batch:
            raise ConfigError(
                "Spark does not tell which query this is; give the stream a name that stays, by "
                "the option query"
            )
        job = job_of(query, int(batch))
        made = write_task(self._options, self._state, job, _task(), iterator)
        return TaskCommit(self._state.store_id, self._state.begun, job, query, made)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 # Spark's name
        """Makes the batch count, unless it does already. Raises as for a frame."""
        done = next((one for one in messages if isinstance(one, TaskCommit)), None)
        if done is not None:
            commit(
                self._options.open(), PlaceState(store_id=done.store_id, begun=done.begun),
                done.job, _archives(messages), overwrite=self._overwrite, query=done.query,
                batch=batchId,
            )  # fmt: skip

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Removes the objects that tasks have put for the batch; committed ones stay."""
        del batchId
        done = next((one for one in messages if isinstance(one, TaskCommit)), None)
        if done is not None:
            abort(CommitLog(self._options.open(), done.store_id), done.begun, done.job)


def job_of(query: str, batch: int) -> str:
    """The name of the job that writes a batch of a query."""
    text = f"{query}\0{batch}".encode()
    return hashlib.blake2b(text, digest_size=_JOB_BYTES).hexdigest()


def _archives(messages: Sequence[WriterCommitMessage | None]) -> list[CommittedArchive]:
    return [
        one for message in messages if isinstance(message, TaskCommit) for one in message.archives
    ]


def _task() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _told(name: str) -> str | None:
    context = TaskContext.get()
    found = None
    with suppress(AttributeError):  # a context without properties
        found = context.getLocalProperty(name) if context is not None else None
    return found or None
