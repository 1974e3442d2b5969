"""Regrouping takes a bounded number of bytes for each message of a segment."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, StoreConfig
from kvstore.files import LocalFiles
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveSettings
from tiering.executor.segment_encoder import SegmentJob, TopicPlan, encode_segment

MEMORY_PER_MESSAGE = 100
"""Bytes, as `tiering.executor.segment_encoder` says."""


def peak_of(folder: Path, segment_size: int) -> tuple[int, int]:
    """How many messages a segment of so many bytes holds, and what encoding it takes at most."""
    with kvstore.open(folder / "store", StoreConfig(segment_size=segment_size)) as store:
        store.create_topic("orders", queues=2)
        batch = [Message("orders", b"x", queue=n % 2) for n in range(500)]
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
    tracemalloc.start()
    try:
        made = encode_segment(job, LocalFiles())
        return made.messages, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_encoding_takes_no_more_for_each_message_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are an eighth of theirs, so that small segments have several."""
    monkeypatch.setattr("tiering.archive.block_writer.BATCH_BYTES", 1 << 20)
    for name in ("segment_encoder._AT_ONCE", "segment._AT_ONCE", "segment._SCANNED"):
        monkeypatch.setattr(f"tiering.executor.{name}", 1 << 13)
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    few, little = peak_of(tmp_path / "small", 2 << 20)
    many, much = peak_of(tmp_path / "large", 4 << 20)
    assert many > 1.9 * few
    assert (much - little) / (many - few) <= MEMORY_PER_MESSAGE
