"""What a task does with a job: it answers, whatever comes, and writes where nobody else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.errors import ArchiveDamaged
from tests.tiering.spark.jobs import works
from tiering.archive.writer import ArchiveSettings
from tiering.errors import SparkFailed
from tiering.executor.segment_encoder import SegmentJob
from tiering.spark.jobs.executor import answer_of, answers, packed


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
