"""Archives that jobs write to an object store: all of a job or none, whatever the store answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kvstore
import tiering
from kvstore import StoredMessage
from kvstore.config import ArchiveAccess
from tests.support.clock import VirtualClock
from tests.tiering.places.buckets import SECRET, fetch, open_bucket
from tests.tiering.places.faulty import Fault, FaultyServer
from tests.tiering.spark.conftest import by_position
from tests.tiering.spark.sink.jobs import JOB, frame, made_up
from tests.tiering.spark.test_reading import read
from tiering.errors import CommitUncertain, OffsetsTaken
from tiering.places.commits import CommittedArchive
from tiering.places.dead_jobs import sweep
from tiering.places.objects import OF_JOB, commit_key, job_object_key
from tiering.places.place import Place
from tiering.spark.arrow import spark_schema
from tiering.spark.options import sink_options
from tiering.spark.sink.archives import write_task
from tiering.spark.sink.jobs import PlaceState, commit, read_state
from tiering.spark.sink.sink_writer import KvmqWriter

DAY = 86_400_000


@dataclass
class OnceItWasPut(Fault):
    """A fault that begins with the first put of what it is about."""

    asked: list[str] = field(default_factory=list)

    def takes(self, method: str, target: str) -> bool:
        put = any(line.startswith("PUT ") and self.part in line for line in self.asked)
        return put and super().takes(method, target)


def settings(endpoint: str) -> dict[str, str]:
    return {
        "endpoint": endpoint, "access_key_id": "tester", "secret_access_key": SECRET,
        "region": "us-east-1",
    }  # fmt: skip


def test_a_frame_goes_to_a_bucket_and_comes_back_byte_for_byte(
    s3: str, bucket: str, folder: Path, held: dict[int, StoredMessage], tmp_path: Path
) -> None:
    place, where = open_bucket(s3, bucket), f"s3://{bucket}/store/one"
    reached = {f"place.{name}": value for name, value in settings(s3).items()}
    # So that archives go the way of large objects, under another name at first.
    given = {"path": where, "place.whole_put_bytes": "1000", **reached}
    rows = read(folder)[0]
    half = len(rows) // 2

    def written() -> KvmqWriter:
        writer = KvmqWriter(spark_schema(list(rows[0])), given, overwrite=False)
        done = [writer.write(iter([frame(part)])) for part in (rows[:half], rows[half:])]
        try:
            writer.commit(done)
        except OffsetsTaken:
            writer.abort(done)
            raise
        return writer

    written()
    there = [info for info in place.list() if OF_JOB.match(info.key)]
    assert len(there) == 2
    with pytest.raises(OffsetsTaken):
        written()
    assert [info for info in place.list() if OF_JOB.match(info.key)] == there
    assert list(place.leftovers()) == []
    found = read(where, names=None, **reached)[0]
    assert sorted(found, key=lambda r: r["position"]) == sorted(rows, key=lambda r: r["position"])
    tiering.restore(where, tmp_path / "restored", options=settings(s3))
    config = kvstore.StoreConfig(archives=ArchiveAccess(options=settings(s3)))
    with kvstore.open(tmp_path / "restored", config) as store:
        assert by_position(store) == held


def made(place: Place, endpoint: str) -> tuple[PlaceState, list[CommittedArchive]]:
    """A job of which only the commit is to come."""
    options = sink_options(
        {"path": place.name, **{f"place.{k}": v for k, v in settings(endpoint).items()}}
    )
    state = read_state(place, options, overwrite=False)
    return state, write_task(options, state, JOB, 0, iter([frame(made_up("a", 5))]))


def test_a_commit_whose_answer_was_lost_for_good_is_found_to_count(
    s3: str, faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = open_bucket(faulty.url, bucket, clock=clock, retry_for=1)
    state, archives = made(place, s3)
    faulty.faults = [Fault("lose", "PUT", ".commit"), Fault("status", "PUT", ".commit", 1000)]
    assert commit(place, state, JOB, archives)
    assert not commit(place, state, JOB, archives)


def test_a_job_of_which_nobody_knows_whether_it_counts_is_said_to_be_one(
    s3: str, faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = open_bucket(faulty.url, bucket, clock=clock, retry_for=1)
    state, archives = made(place, s3)
    faulty.faults = [
        Fault("lose", "PUT", ".commit"),
        OnceItWasPut("status", "*", ".commit", 1000, asked=faulty.asked),
    ]
    with pytest.raises(
        CommitUncertain, match=rf"does if {place.name}/{commit_key(state.store_id, 0)} "
    ):
        commit(place, state, JOB, archives)
    faulty.faults = []
    assert not commit(place, state, JOB, archives), "it did"


def test_what_a_job_that_died_has_left_without_a_name_goes_a_day_later(
    s3: str, bucket: str
) -> None:
    place = open_bucket(s3, bucket)
    key = job_object_key("ab" * 16, 0, JOB, 0, 7, "warmever")
    for name in (key, "of-somebody-else"):
        fetch(s3, "PUT", f"/{bucket}/store/one/.uploading/{'cd' * 8}/{name}")
    left = sorted(place.leftovers(), key=lambda info: info.key)
    sweep(place, left[0].modified + DAY // 2)
    assert len(list(place.leftovers())) == 2
    sweep(place, left[0].modified + DAY + 2000)
    assert list(place.leftovers()) == left[1:]
