"""A segment's archives and report are the same whatever portions its records are sorted in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import kvstore
from kvstore import StoreConfig, StoreError
from kvstore.errors import ArchiveDamaged, SegmentDamaged
from kvstore.files import Files, LocalFiles
from kvstore.record.layout import QUEUE_OFFSET_AT
from tests.support.clock import VirtualClock
from tests.support.everyfile import EveryFile, faults
from tiering.archive import external_sort
from tiering.archive.archive_check import prove
from tiering.archive.archive_reader import Archive
from tiering.archive.coder import Coder
from tiering.archive.layout import PartKind
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.tail import FileSource
from tiering.archive.writer import ArchiveSettings, ArchiveWriter
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.segment_encoder import EncodedSegment, SegmentJob, TopicPlan, encode_segment
from tiering.places.objects import SUFFIX

SEGMENT = 64 << 10
CLASSES = {"bills": "cold", "orders": "warm", "over": None, "visits": "cold"}
"""Of the topics that a job plans; it does not know the topic "unplanned"."""
KEY = "k-3"


class Made(NamedTuple):
    """A sealed segment: its file and its messages."""

    path: Path
    topics: dict[str, int]
    messages: list[kvstore.StoredMessage]


@pytest.fixture
def segment(tmp_path: Path) -> Made:
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", StoreConfig(segment_size=SEGMENT, clock=clock)) as store:
        names = [*CLASSES, "unplanned"]
        for name in names:
            store.create_topic(name, queues=3)
        for n in range(300):
            clock.advance(0.01)
            keys = (f"k-{n % 7}", "all")
            store.put(names[n % 5], b"%d" % n, queue=n // 5 % 3, keys=keys)
        store.seal()
        messages = [
            found
            for name in names
            for queue in range(3)
            for found in store.pull(name, queue, 0, 1000).messages
        ]
        topics = {name: store.topic(name).id for name in names}
    return Made(min((tmp_path / "s" / "commitlog").iterdir()), topics, messages)


def job_of(segment: Made, folder: Path, without: ErasurePredicate | None = None) -> SegmentJob:
    folder.mkdir()
    return SegmentJob(
        number=0, path=str(segment.path), base=0, store_id="ab" * 16, folder=str(folder),
        topics={
            name: TopicPlan(ArchivedTopic(name=name, id=segment.topics[name], queues=3), kind)
            for name, kind in CLASSES.items()
        },
        settings=ArchiveSettings(block_bytes=1 << 10), without=without,
    )  # fmt: skip


def told(made: EncodedSegment, folder: Path) -> tuple[Any, dict[str, bytes]]:
    """The report without its paths, and the archives' bytes by their names."""
    plain = msgspec.to_builtins(made, enc_hook=lambda path: Path(path).name)
    return plain, {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "ROWS_MAX", 16)
    monkeypatch.setattr(external_sort, "_BLOCK_MIN", 2)
    monkeypatch.setattr("kvstore.record.walk._BATCH", 7)


@pytest.mark.parametrize("without", [None, ErasurePredicate(key=KEY)], ids=["all", "erasing"])
def test_small_portions_give_the_same_archives_and_the_same_report(
    segment: Made, tmp_path: Path, request: pytest.FixtureRequest, without: ErasurePredicate | None
) -> None:
    whole = job_of(segment, tmp_path / "whole", without)
    wanted = told(encode_segment(whole, LocalFiles()), tmp_path / "whole")
    request.getfixturevalue("few_rows")
    parts = job_of(segment, tmp_path / "parts", without)
    assert told(encode_segment(parts, LocalFiles()), tmp_path / "parts") == wanted


def stays(segment: Made, kind: str, *, erasing: bool) -> list[tuple[str, int, int, int]]:
    """The messages that an archive should have, in its order."""
    return sorted(
        (m.topic, m.queue, m.offset, m.position)
        for m in segment.messages
        if CLASSES.get(m.topic) == kind and not (erasing and KEY in m.keys)
    )


@pytest.mark.parametrize("erasing", [False, True])
@pytest.mark.usefixtures("few_rows")
def test_each_archive_has_its_classes_messages_and_the_report_counts_the_others(
    segment: Made, tmp_path: Path, erasing: bool
) -> None:
    job = job_of(segment, tmp_path / "made", ErasurePredicate(key=KEY) if erasing else None)
    made = encode_segment(job, LocalFiles())
    assert [a.manifest.retention_class for a in made.archives] == ["cold", "warm"]
    for archive in made.archives:
        kind = archive.manifest.retention_class
        opened = Archive.open(FileSource(archive.path, LocalFiles()))
        blocks = [opened.read_block(number) for number in range(opened.directory.blocks)]
        found = [
            (block.topic, block.queue, offset, position)
            for block in blocks
            for offset, position in zip(
                block.offsets.tolist(), block.positions.tolist(), strict=True
            )
        ]
        assert found == stays(segment, kind, erasing=erasing)
        ids = {number: name for name, number in segment.topics.items()}
        assert [
            (ids[q.topic], q.queue, q.first, q.last, q.messages) for q in archive.queues
        ] == _held(found)
    of = Counter(m.topic for m in segment.messages)
    erased = [m for m in segment.messages if erasing and KEY in m.keys and m.topic in CLASSES]
    assert made.left_out == of["unplanned"] + len(erased)
    over = segment.topics["over"]
    queues = sorted({m.queue for m in segment.messages if m.topic == "over"})
    assert made.over == made.unkept == [(over, queue) for queue in queues]
    last = max(m.position for m in segment.messages if m.topic == "unplanned")
    assert made.unplanned == {"unplanned": last}
    assert (made.whole is None) != erasing


def _held(found: list[tuple[str, int, int, int]]) -> list[tuple[str, int, int, int, int]]:
    queues = dict.fromkeys(one[:2] for one in found)
    mine = {queue: [one[2] for one in found if one[:2] == queue] for queue in queues}
    return [(*queue, some[0], some[-1], len(some)) for queue, some in mine.items()]


@pytest.mark.usefixtures("few_rows")
def test_a_queue_of_a_dropped_topic_is_told_though_all_its_messages_are_erased(
    segment: Made, tmp_path: Path
) -> None:
    job = job_of(segment, tmp_path / "made", ErasurePredicate(topic="over"))
    made = encode_segment(job, LocalFiles())
    assert {topic for topic, _ in made.over} == {segment.topics["over"]}


@pytest.mark.usefixtures("few_rows")
def test_an_offset_that_does_not_rise_is_refused_wherever_it_stands(
    segment: Made, tmp_path: Path
) -> None:
    """Portions end at many places of a queue."""
    data = segment.path.read_bytes()
    queue = [m for m in segment.messages if (m.topic, m.queue) == ("orders", 1)]
    assert len(queue) > 16
    for n, message in enumerate(queue[1:]):
        forged = bytearray(data)
        at = message.position + QUEUE_OFFSET_AT
        forged[at : at + 8] = (message.offset - 1).to_bytes(8, "big")
        segment.path.write_bytes(forged)
        with pytest.raises(SegmentDamaged, match=f"at {message.position} says offset"):
            encode_segment(job_of(segment, tmp_path / str(n)), LocalFiles())


class Careless(Coder):
    """Changes a byte of every text."""

    def encode(self, payload: bytes, **how: Any) -> bytes:
        if how.get("kind") == PartKind.BODIES:
            payload = payload[:-1] + b"?"
        return super().encode(payload, **how)


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("kind", ["changed", "fewer"])
def test_an_archive_that_does_not_give_back_its_records_is_refused(
    segment: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    add = ArchiveWriter.add
    if kind == "changed":
        monkeypatch.setattr("tiering.archive.writer.Coder", Careless)
    else:
        monkeypatch.setattr(
            ArchiveWriter, "add",
            lambda writer, topic, queue, records: (topic.name, queue) == ("visits", 2)
            or add(writer, topic, queue, records),
        )  # fmt: skip
    with pytest.raises(ArchiveDamaged, match="the segment stays as it is"):
        encode_segment(job_of(segment, tmp_path / "made"), LocalFiles())


def test_records_behind_the_last_of_an_archive_are_missed(segment: Made, tmp_path: Path) -> None:
    made = encode_segment(job_of(segment, tmp_path / "made"), LocalFiles())
    (found,) = (a.path for a in made.archives if a.manifest.retention_class == "warm")
    data = segment.path.read_bytes()
    rows = [(m.position, m.size) for m in segment.messages if m.topic == "orders"]
    starts, sizes = np.array(rows, np.int64).T
    given = [(starts, sizes)]
    prove(found, LocalFiles(), None, data, given, stays="")
    with pytest.raises(ArchiveDamaged, match="lacks records"):
        prove(found, LocalFiles(), None, data, [*given, (starts[:1], sizes[:1])], stays="")


@pytest.mark.usefixtures("few_rows")
def test_a_file_operation_that_fails_is_told_and_the_next_attempt_makes_the_same(
    segment: Made, tmp_path: Path
) -> None:
    def encode(name: str, files: Files) -> tuple[Any, dict[str, bytes]]:
        made = encode_segment(job_of(segment, tmp_path / name), files)
        return told(made, tmp_path / name)

    files = EveryFile()
    wanted = encode("whole", files)
    counts = Counter(files.kinds())
    assert counts["append"] > 3
    for n, fault in enumerate(faults(counts)):
        files = EveryFile()
        files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
        with pytest.raises((StoreError, OSError)):
            encode(f"failed-{n}", files)
        assert {path.suffix for path in (tmp_path / f"failed-{n}").iterdir()} <= {SUFFIX}
        assert encode(f"again-{n}", LocalFiles()) == wanted
