"""The executor of Spark: answers in order, errors as they are, and nothing left behind.

A task answers, whatever comes, and writes where nobody else does.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kvstore.errors import ArchiveDamaged
from tests.tiering.spark.jobs import works
from tiering.archive.writer import ArchiveSettings
from tiering.errors import SparkFailed, TieringStopped
from tiering.executor.pool import WorkerDied
from tiering.executor.segment_encoder import SegmentJob
from tiering.spark.jobs.executor import SparkExecutor, answer_of, answers, packed
from tiering.spark.jobs.executor import executor as an_executor


def never() -> None:
    """The check that runs meanwhile; it stops nothing."""


def test_answers_come_in_the_order_of_their_jobs(executor: SparkExecutor) -> None:
    assert executor.width == 2
    assert list(executor.each(never, works.doubled, range(7))) == [0, 2, 4, 6, 8, 10, 12]
    assert list(executor.each(never, works.doubled, [])) == []
    assert executor.run(never, works.summed, 1, 2, 3) == 6


def test_an_error_comes_back_as_itself_behind_the_answers_before_it(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    found = executor.each(never, works.refused, range(6))
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ArchiveDamaged, match="3 is damaged") as caught:
        next(found)
    assert (caught.value.archive, caught.value.block) == ("3", 7)
    noted = tmp_path / "noted"
    with pytest.raises(ArchiveDamaged):
        executor.run(never, works.counted_refused, str(noted))
    assert noted.read_text() == "x"  # what would fail again is not tried again


def test_a_task_that_is_killed_is_done_again_and_costs_nothing(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    assert executor.run(never, works.killed_once, str(tmp_path / "noted")) == 2


def test_a_task_that_dies_again_and_again_is_given_up_with_the_reason(
    executor: SparkExecutor,
) -> None:
    with pytest.raises(WorkerDied, match="ended in the middle"):
        executor.run(never, works.killed, 1)
    with pytest.raises(SparkFailed, match="can't be sent"):
        executor.run(never, works.unsendable, 1)
    assert executor.run(never, works.doubled, 1) == 2


def test_who_gives_up_has_his_own_jobs_cancelled_and_no_others(
    executor: SparkExecutor, spark: SparkSession, tmp_path: Path
) -> None:
    began, ended = tmp_path / "began", threading.Event()
    found: list[object] = []

    def check() -> None:
        if ended.is_set() and began.exists():
            raise TieringStopped("told to stop")

    def other() -> None:
        found.extend(SparkExecutor(spark).each(never, works.doubled, range(4)))
        ended.set()

    beside = threading.Thread(target=other)
    beside.start()
    with pytest.raises(TieringStopped):
        executor.run(check, works.waited, str(began))
    beside.join()
    assert found == [0, 2, 4, 6]
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert executor.run(never, works.doubled, 2) == 4


def test_closing_ends_what_another_thread_waits_for(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    caught: list[Exception] = []

    def wait() -> None:
        try:
            executor.run(never, works.waited, str(began))
        except SparkFailed as e:
            caught.append(e)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not began.exists():
        threading.Event().wait(0.01)
    executor.close()
    waiting.join()
    assert len(caught) == 1


def test_what_a_worker_has_loaded_is_not_looked_through_after_each_task(
    executor: SparkExecutor,
) -> None:
    assert executor.run(never, gc.get_freeze_count) > 10_000


def test_the_spark_that_is_there_does_the_jobs_and_stays(spark: SparkSession) -> None:
    with an_executor(settings={"spark.app.name": "another"}) as found:
        assert found.run(never, works.doubled, 4) == 8
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.app.name") != "another"


@pytest.fixture
def job(tmp_path: Path) -> SegmentJob:
    return SegmentJob(
        number=0, path="x", base=0, topics={}, settings=ArchiveSettings(), store_id="0" * 32,
        folder=str(tmp_path),
    )  # fmt: skip


def test_two_attempts_of_a_job_have_folders_of_their_own(tmp_path: Path, job: SegmentJob) -> None:
    task = packed(works.folder_of, (job,))
    found = [answer_of(data) for data in answers([task, task])]
    assert all(answer.is_done for answer in found)
    folders = {Path(answer.found) for answer in found}
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path}
    assert all(folder.is_dir() for folder in folders)


def test_an_attempt_that_comes_too_late_has_nowhere_to_write(
    tmp_path: Path, job: SegmentJob
) -> None:
    tmp_path.rmdir()
    (data,) = answers([packed(works.folder_of, (job,))])
    answer = answer_of(data)
    assert not answer.is_done
    assert isinstance(answer.found, FileNotFoundError)
    assert not tmp_path.exists()


def test_what_the_work_raises_is_an_answer_and_what_can_not_be_sent_is_told() -> None:
    tasks = [packed(works.refused, (n,)) for n in (2, 3, 4)]
    two, three, four = (answer_of(data) for data in answers(tasks))
    assert (two.found, four.found) == (2, 4)
    assert isinstance(three.found, ArchiveDamaged)
    assert not three.is_done
    (data,) = answers([packed(works.unsendable, (1,))])
    assert isinstance(answer_of(data).found, SparkFailed)
