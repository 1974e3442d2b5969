"""The memory that encoding and checking take does not depend on how many messages there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import kvstore
from kvstore import Message, StoreConfig
from kvstore.files import LocalFiles
from tiering.archive.archive_check import Problem, archive_problems
from tiering.archive.archive_reader import Archive
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.tail import FileSource
from tiering.archive.writer import ArchiveSettings
from tiering.executor.segment_encoder import EncodedSegment, SegmentJob, TopicPlan, encode_segment

T = TypeVar("T")
MEMORY_PER_MESSAGE = 4
"""Bytes: of directory and filter, and of copies of these while they are written or checked."""


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and sorts are small here, so that small segments have several."""
    monkeypatch.setattr("tiering.archive.block_writer.BATCH_BYTES", 1 << 18)
    monkeypatch.setattr("tiering.archive.external_sort.ROWS_MAX", 1 << 11)
    monkeypatch.setattr("tiering.archive.external_sort._BLOCK_MIN", 1 << 6)
    monkeypatch.setattr("kvstore.record.walk._BATCH", 1 << 11)


def encoding(folder: Path, segment_size: int) -> Callable[[], EncodedSegment]:
    """A call that encodes a segment of so many bytes, full of the smallest messages with a key."""
    with kvstore.open(folder / "store", StoreConfig(segment_size=segment_size)) as store:
        store.create_topic("orders", queues=2)
        batch = [Message("orders", b"x", queue=n % 2, keys=(f"{n}",)) for n in range(500)]
        while store.put_batch(batch)[-1].position < segment_size:
            pass
        store.seal()
    path = min((folder / "store" / "commitlog").iterdir())
    (folder / "made").mkdir()
    job = SegmentJob(
        number=0, path=str(path), base=0, store_id="ab" * 16, folder=str(folder / "made"),
        topics={"orders": TopicPlan(ArchivedTopic(name="orders", id=1, queues=2), "coldever")},
        settings=ArchiveSettings(),
    )  # fmt: skip
    return lambda: encode_segment(job, LocalFiles())


def peak_of(work: Callable[[], T]) -> tuple[T, int]:
    """The result, and the bytes of memory that the work took at most: the less of two tries, since
    other threads of the process add to one now and then.
    """
    (result, first), (_, second) = _peak_once(work), _peak_once(work)
    return result, min(first, second)


def _peak_once(work: Callable[[], T]) -> tuple[T, int]:
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _problems(archive: Archive) -> list[Problem]:
    return list(archive_problems(archive))


def test_encoding_and_checking_take_a_few_bytes_of_filter_and_ranks_for_each_message(
    tmp_path: Path,
) -> None:
    found = []
    for name, size in (("small", 2 << 20), ("large", 8 << 20)):
        (tmp_path / name).mkdir()
        made, encoded = peak_of(encoding(tmp_path / name, size))
        archive = Archive.open(FileSource(made.archives[0].path, LocalFiles()))
        problems, checked = peak_of(partial(_problems, archive))
        assert problems == []
        found.append((made.messages, encoded, checked))
    (few, *little), (many, *much) = found
    assert many > 3.9 * few
    for less, more in zip(little, much, strict=True):
        assert (more - less) / (many - few) <= MEMORY_PER_MESSAGE
