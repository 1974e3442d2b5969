"""A merge in partitions gives the same bytes in any process, and no partition is much too large."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvstore.errors import ArchiveDamaged
from kvstore.files import LocalFiles
from tests.rocketmq.logs import NOW, record
from tests.tiering.archive.making import SMALL_BLOCKS, MemorySource, Queue, keyed, plain_queues
from tests.tiering.merge.merging import (
    STORE,
    Records,
    Shuffled,
    deal,
    input_of,
    made_of,
    merged,
    records_in,
    records_of,
    topics_of,
)
from tiering.archive.archive_check import archive_problems
from tiering.archive.archive_reader import Archive
from tiering.archive.layout import NO_QUEUE
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.tail import FileSource
from tiering.archive.writer import ArchiveSettings
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.keys.crypto import KeysAtHand, TopicKey
from tiering.merge.compact import Compaction
from tiering.merge.merge import merge, merge_with
from tiering.merge.partition import (
    Dropped,
    Merged,
    MergeJob,
    partition_jobs,
    plan_merge,
)

KEYS = {f"topic{n}": TopicKey("first", bytes([n + 1]) * 32) for n in range(4)}
STRETCH = 4096
SLOW = (Phase.reuse, Phase.generate)
"""Not made smaller: each example is many jobs of other processes."""


@pytest.fixture(scope="module")
def executor() -> Iterator[Shuffled]:
    found = Shuffled()
    yield found
    found.close()


def going_on() -> None:
    """Nobody gives up."""


def secret(names: set[str]) -> KeysAtHand:
    mine = {name: key for name, key in KEYS.items() if name in names}
    reading = {(name, key.key_id): key for name, key in mine.items()}
    return KeysAtHand(writing=mine, reading=reading)


@st.composite
def mixed_queues(draw: st.DrawFn) -> list[Queue]:
    """Many small queues and a large one, of topics of all kinds, and records in no queue."""
    made: list[Queue] = []
    position = 0
    count = draw(st.integers(1, 4))
    large = draw(st.integers(0, count - 1))
    for number in range(count):
        kind = draw(st.sampled_from(["normal", "compacted"]))
        topic = ArchivedTopic(name=f"topic{number}", id=9 - number, kind=kind)
        for queue in (*range(draw(st.integers(1, 3))), NO_QUEUE):
            is_large = number == large and queue == 0
            found = Queue(topic, queue, {})
            for n in range(60 if is_large else draw(st.integers(0, 5))):
                key = f"k{(n * 7) % draw(st.sampled_from([3, 11]))}"
                body = b"" if n % 9 == 4 else f"{key} says {n} ".encode() * draw(st.integers(1, 20))
                offset = 2 * n + 10
                raw = record(
                    position, body, topic=topic.name, queue=0 if queue == NO_QUEUE else queue,
                    offset=0 if queue == NO_QUEUE else offset, stored_at=NOW + n,
                    system_flags=4 if queue == NO_QUEUE else 0,
                    properties=keyed(f"ID{position}", key, f"topic{number}"),
                )  # fmt: skip
                found.records[position if queue == NO_QUEUE else offset] = raw
                position += len(raw)
            if found.records:
                made.append(found)
    return made


class Made:
    """Archives in a folder, and a job to merge them."""

    def __init__(self, folder: Path, archives: list[bytes], **facts: Any) -> None:
        self.folder = folder
        inputs = []
        for number, data in enumerate(archives):
            (folder / f"{number}.kvarc").write_bytes(data)
            inputs.append(input_of(data, str(folder), f"{number}.kvarc"))
        given: dict[str, Any] = {
            "inputs": inputs, "topics": topics_of(*archives), "settings": SMALL_BLOCKS,
            "store_id": STORE, "retention_class": "week", "path": str(folder / "merged"),
            "partition_bytes": STRETCH,
        }  # fmt: skip
        self.job = MergeJob(**(given | facts))

    def open(self) -> list[Archive]:
        return [
            Archive.open(
                FileSource(self.folder / one.row.key, LocalFiles()), keys=self.job.settings.keys
            )
            for one in self.job.inputs
        ]

    def data(self, found: Merged) -> bytes:
        return (self.folder / "merged").read_bytes() if found.made is not None else b""

    def here(self) -> tuple[Merged, bytes]:
        found = merge(self.open(), self.job, LocalFiles())
        return found, self.data(found)

    def spread(self, executor: Shuffled) -> tuple[Merged, bytes]:
        found = merge_with(executor, going_on, self.job, LocalFiles())
        return found, self.data(found)


def expected(queues: list[Queue], job: MergeJob) -> Records:
    """The records that a merge must leave, worked out message by message."""
    left: Records = {}
    for queue in queues:
        if queue.topic.id not in job.topics:
            continue
        mine = dict(queue.records)
        if job.without is not None:
            erased = job.without.rows(list(mine.values())).tolist()
            mine = {o: r for (o, r), gone in zip(mine.items(), erased, strict=True) if not gone}
        if job.compaction is not None and queue.topic.kind == "compacted":
            mine = newest(mine) if queue.queue != NO_QUEUE else mine
        if mine:
            left[queue.topic.name, queue.queue] = mine
    return left


def newest(records: dict[int, bytes]) -> dict[int, bytes]:
    by_key = {
        raw.partition(b"KEYS\x01")[2].partition(b" ")[0]: offset for offset, raw in records.items()
    }
    return {offset: records[offset] for offset in sorted(by_key.values())}


@settings(
    deadline=None,
    max_examples=20,
    suppress_health_check=list(HealthCheck),
    phases=SLOW,
)
@given(mixed_queues(), st.data())
def test_stretches_done_anywhere_in_any_order_give_the_bytes_of_one_process(
    executor: Shuffled, queues: list[Queue], data: st.DataObject
) -> None:
    names = {queue.topic.name for queue in queues}
    encrypted = data.draw(st.sets(st.sampled_from(sorted(KEYS))))
    count = data.draw(st.integers(1, 3))
    how = data.draw(st.sampled_from([lambda _, o: o // 7 % count, lambda _, o: o % count]))
    keys = secret(encrypted) if encrypted else None
    written = msgspec.structs.replace(SMALL_BLOCKS, block_bytes=700, keys=keys)
    archives = made_of(deal(queues, how), written)
    topics = topics_of(*archives)
    if data.draw(st.booleans()):
        topics.pop(data.draw(st.sampled_from(sorted(topics))))
    facts = {
        "topics": topics,
        "compaction": data.draw(
            st.sampled_from([None, Compaction(tombstones_before=0, whole_below={})])
        ),
        "without": data.draw(
            st.sampled_from(
                [
                    None,
                    ErasurePredicate(key="k1"),
                    ErasurePredicate(key="topic0"),
                    ErasurePredicate(before=NOW + 3),
                ]
            )
        ),
        "settings": written,
        "partition_bytes": data.draw(st.sampled_from([2000, 6000, 1 << 20])),
    }
    executor.draw.seed(data.draw(st.integers(0, 1 << 32)))
    with tempfile.TemporaryDirectory() as folder:
        made = Made(Path(folder), archives, **facts)
        here, there = made.here(), made.spread(executor)
        assert there == here
        due = expected(queues, made.job)
        assert (here[0].made is None) == (not due)
        if due:
            archive = Archive.open(MemorySource(here[1]), keys=keys)
            assert records_in(archive) == due
            assert list(archive_problems(archive)) == []
        assert here[0].messages == sum(len(queue.records) for queue in queues)
        assert names >= {queue.topic.name for queue in queues if queue.topic.id in topics}


def test_each_step_of_a_merge_is_done_by_the_executor(executor: Shuffled, tmp_path: Path) -> None:
    queues = plain_queues(topics=2, messages=60)
    made = Made(tmp_path, made_of(deal(queues, lambda _, o: o // 20)))
    executor.done.clear()
    made.spread(executor)
    plan = plan_merge(made.open(), made.job)
    assert len(plan.partitions) > 4
    assert sorted(executor.done) == sorted(["plan_task", *["encode_task"] * len(plan.partitions)])


def one_large_queue() -> list[Queue]:
    """Six queues of a few messages each, one of which has 400."""
    queues = plain_queues(topics=3, queues=2, messages=400)
    return [
        queue if (queue.topic.name, queue.queue) == ("topic1", 0) else
        queue._replace(records=dict(list(queue.records.items())[:6]))
        for queue in queues
    ]  # fmt: skip


def test_a_queue_that_outweighs_all_others_becomes_many_stretches(tmp_path: Path) -> None:
    queues = one_large_queue()
    blocks = ArchiveSettings(block_bytes=1024)
    made = Made(
        tmp_path, made_of(deal(queues, lambda _, o: o // 100), blocks), settings=blocks
    )  # fmt: skip
    plan = plan_merge(made.open(), made.job)
    raw = sum(len(record) for queue in queues for record in queue.records.values())
    assert len(plan.partitions) >= raw // STRETCH
    archive = Archive.open(MemorySource(made.here()[1]))
    rows = archive.rows()
    sizes = np.zeros(len(plan.partitions), np.int64)
    begins = [stretch.begin for stretch in plan.partitions]
    for block in range(archive.directory.blocks):
        where = (int(rows.topics[block]), int(rows.queues[block]), int(rows.first_offset[block]))
        sizes[sum(begin <= where for begin in begins) - 1] += rows.raw_bytes[block]
    assert sizes.min() > 0
    assert sizes.max() <= STRETCH + 1024
    assert records_in(archive) == records_of(queues)


def test_small_queues_are_not_cut(tmp_path: Path) -> None:
    queues = plain_queues(topics=4, queues=4, messages=2)
    made = Made(tmp_path, made_of(deal(queues, lambda _, o: o)))
    plan = plan_merge(made.open(), made.job)
    assert len(plan.partitions) > 1
    archive = Archive.open(MemorySource(made.here()[1]))
    assert all(len(blocks) == 1 for _, _, blocks in archive.directory.queues())


def test_a_stretch_has_its_own_topics_keys_and_blocks_alone(tmp_path: Path) -> None:
    queues = plain_queues(topics=4, queues=1, messages=60)
    keys = secret(set(KEYS))
    blocks = ArchiveSettings(block_bytes=1024, keys=keys)
    made = Made(
        tmp_path, made_of(deal(queues, lambda _, o: o // 20), blocks), settings=blocks
    )  # fmt: skip
    archives = made.open()
    plan = plan_merge(archives, made.job)
    gone = {(queues[0].topic.id, 0): np.arange(60)}
    jobs = partition_jobs(made.job, plan, gone)
    assert len(jobs) > 4
    for job in jobs:
        names = {topic.name for _, topic in job.topics.values()}
        assert isinstance(job.settings.keys, KeysAtHand)
        assert set(job.settings.keys.writing) == names
        assert len(names) <= 2
        assert set(job.gone) <= {(i, 0) for i in job.topics}
        for span in job.partition.spans:
            assert span.stop - span.start < archives[span.number].directory.blocks
    dropped = [offset for job in jobs for offsets in job.gone.values() for offset in offsets]
    assert dropped == list(range(60))


def test_what_is_encrypted_opens_where_the_topics_before_it_are_erased(
    executor: Shuffled, tmp_path: Path
) -> None:
    queues = plain_queues(topics=3, queues=1, messages=30)
    keys = secret(set(KEYS))
    written = msgspec.structs.replace(SMALL_BLOCKS, keys=keys)
    kept = [
        queue._replace(records={
            offset: record(
                offset * 1000, b"x" * 50, topic=queue.topic.name, offset=offset,
                properties=keyed(f"ID{offset}", queue.topic.name),
            ) for offset in queue.records
        })
        for queue in queues
    ]  # fmt: skip
    archives = made_of([kept[:1], kept[1:2]], written)
    without = ErasurePredicate(key="topic0")
    made = Made(tmp_path, archives, settings=written, without=without, topics={
        q.topic.id: q.topic for q in queues})  # fmt: skip
    found, data = made.here()
    assert made.spread(executor) == (found, data)
    assert found.dropped == Dropped(erased=30)
    archive = Archive.open(MemorySource(data), keys=keys)
    assert [topic.name for topic in archive.manifest.topics] == ["topic1"]
    assert records_in(archive) == records_of(kept[1:2])


def test_a_stretch_that_cannot_be_read_ends_the_merge_and_leaves_no_file(
    executor: Shuffled, tmp_path: Path
) -> None:
    made = Made(tmp_path, made_of(deal(plain_queues(messages=60), lambda _, o: o // 20)))
    path = tmp_path / "1.kvarc"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArchiveDamaged):
        made.spread(executor)
    assert not (tmp_path / "merged").exists()


class Forgetful(LocalFiles):
    """A disk that gives one byte of what was written back as another."""

    def __init__(self, name: str, at: int) -> None:
        self._name, self._at = name, at

    def read(self, path: Path, offset: int = 0, size: int = -1) -> bytes:
        data = bytearray(super().read(path, offset, size))
        if path.name == self._name and offset <= self._at < offset + len(data):
            data[self._at - offset] ^= 1
        return bytes(data)


@pytest.mark.parametrize("at", [0, 500, -1])
def test_a_disk_that_does_not_give_back_what_was_written_is_found_out(
    tmp_path: Path, at: int
) -> None:
    made = Made(tmp_path, made_of(deal(plain_queues(), lambda _, o: o // 20)))
    size = len(made.here()[1])
    with pytest.raises(ArchiveDamaged, match="is not what was put there"):
        merge(made.open(), made.job, Forgetful("merged", at % size))


def test_stretches_of_any_size_hold_the_same_messages() -> None:
    queues = one_large_queue()
    archives = made_of(deal(queues, lambda _, o: o % 3))
    for size in (1, 5000, 1 << 30):
        assert records_in(merged(archives, partition_bytes=size).open()) == records_of(queues)
