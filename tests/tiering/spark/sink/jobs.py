"""Jobs without Spark: tasks are calls; and a place whose calls are counted, and can be stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.tiering.spark.test_reading import read
from tiering.places.commits import CommitLog, CommittedArchive
from tiering.places.dead_jobs import abort
from tiering.places.place import ObjectInfo, Place, open_place
from tiering.spark.arrow import SCHEMA
from tiering.spark.options import SinkOptions, sink_options
from tiering.spark.sink.archives import write_task
from tiering.spark.sink.jobs import PlaceState, commit, read_state

JOB = "ab" * 16
Row = dict[str, Any]


def frame(rows: Iterable[Row]) -> pa.RecordBatch:
    """A batch of rows that have the same columns."""
    given = list(rows)
    names = [name for name in SCHEMA.names if name in given[0]]
    return pa.RecordBatch.from_pylist(given, schema=pa.schema([SCHEMA.field(n) for n in names]))


def made_up(topic: str, count: int, **more: Any) -> list[Row]:
    """Rows that say little."""
    return [{"topic": topic, "body": b"%d of " % n + topic.encode()} | more for n in range(count)]


class Job:
    """One job; `names` are told apart by two characters."""

    def __init__(
        self, folder: Path, name: str = "ab", *, overwrite: bool = False, **options: str
    ) -> None:
        self.options: SinkOptions = sink_options({"path": str(folder), **options})
        self.place: Place = open_place(folder)
        folder.mkdir(exist_ok=True)
        self.name = name * 16
        self.overwrite = overwrite
        self.state: PlaceState = read_state(self.place, self.options, overwrite=overwrite)
        self.archives: list[CommittedArchive] = []

    def task(self, number: int, *batches: list[Row]) -> list[CommittedArchive]:
        """A task that comes through."""
        given = map(frame, batches)
        made = write_task(self.options, self.state, self.name, number, given)
        self.archives += made
        return made

    def commit(self, *, query: str = "", batch: int = -1) -> bool:
        """Ends the job."""
        return commit(
            self.place, self.state, self.name, self.archives, overwrite=self.overwrite,
            query=query, batch=batch,
        )  # fmt: skip

    def abort(self) -> list[str]:
        """The other end."""
        return abort(self.log(), self.state.begun, self.name)

    def log(self) -> CommitLog:
        """The commits as they are now."""
        log = CommitLog(self.place, self.state.store_id)
        log.look()
        return log


def write(folder: Path, *tasks: list[Row], name: str = "ab", **options: Any) -> Job:
    """A whole job."""
    job = Job(folder, name, **options)
    for number, rows in enumerate(tasks):
        job.task(number, rows)
    assert job.commit()
    return job


def bodies(folder: Path) -> list[bytes]:
    """All that a reader finds, sorted."""
    return sorted(row["body"] for row in read(folder)[0])


def objects(folder: Path) -> set[str]:
    """The names of all archives there are, whether or not they count."""
    return {path.name for path in folder.rglob("*.kvarc")}


class Watched:
    """A place whose calls are counted; `before` and `after` are told each that changes it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.inner: Place = open_place(folder)
        self.counts: Counter[str] = Counter()
        self.before: Callable[[str, str], None] = nothing
        self.after: Callable[[str, str], None] = nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, key: str, given: Any, **more: Any) -> ObjectInfo:
        self.counts["put"] += 1
        self.before("put", key)
        done = self.inner.put(key, given, **more)
        self.after("put", key)
        return done

    def delete(self, key: str) -> None:
        self.counts["delete"] += 1
        self.before("delete", key)
        self.inner.delete(key)
        self.after("delete", key)

    def size(self, key: str) -> int:
        self.counts["looked at"] += 1
        return self.inner.size(key)

    def read(self, key: str, offset: int, size: int) -> bytes:
        self.counts["read"] += 1
        self.counts["bytes"] += size
        return self.inner.read(key, offset, size)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in self.inner.list(prefix):
            self.counts["listed"] += 1
            yield info

    def folders(self) -> Any:
        found = self.inner.folders()
        self.counts["listed"] += len(found)
        return found


def nothing(*_: str) -> None:
    pass
