"""Commits follow each other one by one: none is lost, seen twice, or paid for by later ones."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiering.places.dead_jobs
import tiering.places.objects
from kvstore.errors import FormatError
from tests.tiering.spark.sink.jobs import Watched, nothing
from tiering.catalog.bucket import archives_in
from tiering.errors import JobAborted, PlaceUnavailable
from tiering.places.commits import (
    PAGE,
    CommitLog,
    CommitLogs,
    CommittedArchive,
    HeldRange,
    TopicIds,
    decode_page,
    encode_page,
    take_ids,
)
from tiering.places.dead_jobs import DAY, HOUR, abort, sweep_jobs
from tiering.places.objects import checkpoint_key, commit_key, job_object_key, page_key
from tiering.places.place import ObjectInfo, Place, open_place
from tiering.spark.options import sink_options
from tiering.spark.sink.jobs import PlaceState, commit, read_state

STORE = "5a" * 16


class Batch:
    """A batch of a stream whose archives are only names; it holds one offset of queue 0."""

    def __init__(self, place: Any, number: int) -> None:
        self.place = place
        options = sink_options({"path": str(place.name), "store_id": STORE})
        self.state: PlaceState = read_state(place, options, overwrite=False)
        self.number = number
        self.job = f"{number:032x}"
        first = self.state.position
        self.archive = CommittedArchive(
            key=job_object_key(STORE, self.state.begun, self.job, first, 1, "warmever"), size=1,
            crc=0, messages=1, first_position=first, end_position=first + 1,
            queues=[HeldRange("a", 0, number, number)],
        )  # fmt: skip

    def make(self) -> Batch:
        known = TopicIds(self.state.ids, self.state.lists)
        take_ids(self.place, STORE, ["a"], known=known)
        self.place.put(self.archive.key, b"x")
        return self

    def commit(self) -> bool:
        return commit(
            self.place, self.state, self.job, [self.archive], query="query", batch=self.number
        )

    def abort(self) -> list[str]:
        return abort(CommitLog(self.place, STORE), self.state.begun, self.job)


def written(place: Any, count: int) -> None:
    for number in range(count):
        assert Batch(place, number).make().commit()


def jobs_in(place: Any) -> list[int]:
    """The batches that a reader finds, each with its archive."""
    found = archives_in(place, STORE)
    if found is None:
        return []
    for one in found.committed:
        assert place.size(one.key) == one.size
    return [int(one.key.split("/")[-2][-32:], 16) for one in found.committed]


@pytest.mark.parametrize("group", [4, 2 * PAGE])
def test_the_cost_of_a_batch_does_not_grow_with_the_batches_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    """Each begins with the look for dead jobs that comes once an hour: it lists a group or two."""
    for module in (tiering.places.objects, tiering.places.dead_jobs):
        monkeypatch.setattr(module, "GROUP", group)
    place = Watched(tmp_path / "out")
    costs: list[Counter[str]] = []
    for number in range(100):
        place.counts.clear()
        now = place.inner.info(commit_key(STORE, 0)).modified if number else 0
        sweep_jobs(CommitLog(place, STORE), now + number * HOUR, 2 * HOUR)
        assert Batch(place, number).make().commit()
        costs.append(Counter(place.counts))
    turn = max(PAGE, group)
    for what in ("put", "looked at", "read", "listed", "delete"):
        by_number = [one[what] for one in costs]
        assert max(by_number[-turn:]) <= max(by_number[turn : 2 * turn]), (what, by_number)
    assert max(one["read"] for one in costs) <= 10 + group // PAGE
    assert max(one["listed"] for one in costs) <= 8 + group
    largest = [max(one["bytes"] for one in costs[i : i + turn]) for i in (turn, 100 - turn)]
    assert largest[1] <= largest[0] * 1.1
    assert jobs_in(place) == list(range(100))


def test_a_reader_reads_pages_and_of_a_place_it_knows_what_is_new(tmp_path: Path) -> None:
    place = Watched(tmp_path / "out")
    written(place, 40)
    place.counts.clear()
    jobs = CommitLogs(place)
    found = archives_in(place, STORE, jobs)
    assert found is not None
    assert len(found.committed) == 40
    assert place.counts["read"] == 3, "two pages and the checkpoint"
    Batch(place, 40).make().commit()
    place.counts.clear()
    for _ in range(10):
        found = archives_in(place, STORE, jobs)
    assert found is not None
    assert len(found.committed) == 41
    assert place.counts["read"] == 1


class Killed(BaseException):
    """The process is gone."""


def _killed_after(steps: int, plain: Place, count: int) -> Callable[[str, str], None]:
    taken = 0

    def step(what: str, key: str) -> None:
        nonlocal taken
        # A reader beside it sees each commit once.
        assert jobs_in(plain) in (list(range(count)), list(range(count + 1)))
        taken += 1
        if taken > steps:
            raise Killed(f"{what} {key}")

    return step


@pytest.mark.parametrize("count", [PAGE - 1, 3])
def test_a_commit_that_is_cut_off_at_any_step_counts_whole_or_not_at_all(
    tmp_path: Path, count: int
) -> None:
    base = tmp_path / "base"
    written(Watched(base), count)
    Batch(Watched(base), count).make()
    steps = 0
    while True:
        out = tmp_path / f"cut-{steps}"
        shutil.copytree(base, out)
        place = Watched(out)
        plain = open_place(out)
        place.before = place.after = _killed_after(steps, plain, count)
        batch = Batch(place, count)
        try:
            assert batch.commit()
        except Killed:
            pass
        else:
            break
        seen = jobs_in(plain)
        again = Batch(plain, count).make()
        assert again.commit() == (seen == list(range(count)))
        assert jobs_in(plain) == list(range(count + 1))
        assert Batch(plain, count + 1).make().commit()
        # And nobody reads more for it: the checkpoint, and a page where there is one.
        reader = Watched(out)
        assert jobs_in(reader) == list(range(count + 2))
        assert reader.counts["read"] <= 2
        steps += 1
        shutil.rmtree(out)
    assert steps >= 4


def test_an_older_a_damaged_or_no_checkpoint_costs_reading_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    place = Watched(out)
    written(place, 5)
    older = (out / checkpoint_key(STORE)).read_bytes()
    for number in range(5, 40):
        assert Batch(place, number).make().commit()
    newer = (out / checkpoint_key(STORE)).read_bytes()
    page = (out / page_key(STORE, 16)).read_bytes()
    following = 40
    for damage in (older, newer[:-9], b"", None):
        if damage is None:
            (out / checkpoint_key(STORE)).unlink()
        else:
            (out / checkpoint_key(STORE)).write_bytes(damage)
        assert jobs_in(place) == list(range(following))
        assert Batch(place, following).make().commit()
        following += 1
    assert "all commits are read instead" in caplog.text
    (out / page_key(STORE, 0)).unlink()
    for damage in (page[:-9], encode_page(decode_page(page, "")[1:])):
        (out / page_key(STORE, 16)).write_bytes(damage)
        assert jobs_in(place) == list(range(following))
    # A batch committed under an old checkpoint is still found not to be new.
    (out / checkpoint_key(STORE)).write_bytes(older)
    assert not Batch(place, 30).make().commit()
    (out / commit_key(STORE, 3)).unlink()
    (out / page_key(STORE, 0)).unlink(missing_ok=True)
    with pytest.raises(FormatError, match="is not there, and 44 commits were"):
        jobs_in(place)


def test_a_commit_that_arrives_after_its_job_was_aborted_does_not_count(tmp_path: Path) -> None:
    place = Watched(tmp_path / "out")
    written(place, 2)
    late: list[tuple[str, bytes]] = []
    batch = Batch(place, 2).make()
    put = place.inner.put

    def lost(key: str, given: Any, **more: Any) -> ObjectInfo:
        if not key.endswith(".commit") or late:
            return put(key, given, **more)
        late.append((key, bytes(given)))
        raise PlaceUnavailable("no answer")

    place.put = lost  # type: ignore[method-assign]
    with pytest.raises(PlaceUnavailable):
        batch.commit()
    assert batch.abort() == [batch.archive.key]
    with pytest.raises(tiering.errors.ObjectExists):
        put(*late[0])
    assert jobs_in(place) == [0, 1]
    with pytest.raises(JobAborted, match="given up"):
        batch.commit()
    again = Batch(place, 2).make()
    assert again.commit(), "an aborted batch may be done again"
    assert jobs_in(place) == [0, 1, 2]
    assert again.abort() == []
    assert jobs_in(place) == [0, 1, 2]


def test_an_abort_of_a_job_whose_commit_came_through_removes_nothing_of_it(tmp_path: Path) -> None:
    place = Watched(tmp_path / "out")
    batch = Batch(place, 0).make()

    def unanswered(what: str, key: str) -> None:
        if key.endswith(".commit"):
            place.counts["unanswered"] += 1
            raise PlaceUnavailable("no answer")

    place.after = unanswered
    assert batch.commit(), "it is looked whether it is there"
    assert place.counts["unanswered"] == 1
    place.after = nothing
    assert batch.abort() == []
    assert jobs_in(place) == [0]


def test_a_job_that_is_taken_for_dead_can_not_commit_any_more(tmp_path: Path) -> None:
    place = Watched(tmp_path / "out")
    written(place, 2)
    batch = Batch(place, 2).make()
    now = place.info(batch.archive.key).modified
    assert sweep_jobs(CommitLog(place, STORE), now + DAY // 2) == []
    assert sweep_jobs(CommitLog(place, STORE), now + DAY + 2) == [batch.archive.key]
    with pytest.raises(JobAborted, match="for a day"):
        batch.commit()
    assert jobs_in(place) == [0, 1]
    place.put(batch.archive.key, b"x")
    with pytest.raises(JobAborted):
        batch.commit()


def test_what_a_task_puts_after_its_job_has_committed_goes_a_day_later(tmp_path: Path) -> None:
    place = Watched(tmp_path / "out")
    late = Batch(place, 0).make()
    assert late.commit()
    key = late.archive.key.replace("-00000001-", "-00000002-")
    place.put(key, b"loser of a race")
    now = place.info(key).modified
    assert sweep_jobs(CommitLog(place, STORE), now + DAY // 2) == []
    assert sweep_jobs(CommitLog(place, STORE), now + DAY + 2) == [key]
    assert sweep_jobs(CommitLog(place, STORE), now + 2 * DAY) == []
    assert jobs_in(place) == [0]


def test_a_job_is_as_old_as_the_youngest_of_its_objects(tmp_path: Path) -> None:
    place = Watched(tmp_path / "out")
    batch = Batch(place, 0).make()
    second = batch.archive.key.replace("-00000001-", "-00000002-")
    place.put(second, b"y")
    now = place.info(second).modified
    os.utime(tmp_path / "out" / batch.archive.key, (0, 0))
    assert sweep_jobs(CommitLog(place, STORE), now + DAY // 2) == []
    assert batch.commit()


def test_a_job_that_was_young_at_a_search_is_found_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tiering.places.objects, tiering.places.dead_jobs):
        monkeypatch.setattr(module, "GROUP", 4)
    place = Watched(tmp_path / "out")
    dead = Batch(place, 99).make()
    written(place, 10)
    now = place.info(dead.archive.key).modified
    assert sweep_jobs(CommitLog(place, STORE), now + DAY // 2) == []
    assert sweep_jobs(CommitLog(place, STORE), now + DAY + 2) == [dead.archive.key]


def test_leftovers_are_searched_for_once_an_hour(tmp_path: Path) -> None:
    place = Watched(tmp_path / "out")
    written(place, 3)
    now = place.info(commit_key(STORE, 0)).modified
    listed = []
    for at in (now, now + HOUR - 1, now + HOUR):
        place.counts.clear()
        sweep_jobs(CommitLog(place, STORE), at)
        listed.append(place.counts["listed"])
    assert listed == [3, 0, 3]
