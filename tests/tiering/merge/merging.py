"""Merges in memory, and executors that spread them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from kvstore.files import LocalFiles
from tests.tiering.archive.making import ORIGIN, SMALL_BLOCKS, Made, MemorySource, Queue, make
from tiering.archive.archive_reader import Archive
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveSettings
from tiering.catalog.catalog import row_of
from tiering.executor.pool import Executor, Pool
from tiering.merge.merge import merge
from tiering.merge.partition import Merged, MergeInput, MergeJob

STORE: Final = ORIGIN.store_id
Records = dict[tuple[str, int], dict[int, bytes]]


class Result(NamedTuple):
    """The result of a merge; `data` is the archive's bytes, empty if there is none."""

    merged: Merged
    data: bytes

    def open(self, keys: Any = None) -> Archive:
        return Archive.open(MemorySource(self.data), keys=keys)


def deal(queues: Iterable[Queue], archive_of: Callable[[Queue, int], int]) -> list[list[Queue]]:
    """Each message to the archive whose number `archive_of` says."""
    dealt: dict[int, list[Queue]] = {}
    for queue in queues:
        mine: dict[int, dict[int, bytes]] = {}
        for offset, record in queue.records.items():
            mine.setdefault(archive_of(queue, offset), {})[offset] = record
        for number, records in mine.items():
            dealt.setdefault(number, []).append(queue._replace(records=records))
    return [dealt[number] for number in sorted(dealt)]


def made_of(dealt: Iterable[list[Queue]], settings: ArchiveSettings = SMALL_BLOCKS) -> list[bytes]:
    return [make(queues, settings).data for queues in dealt]


def topics_of(*archives: bytes | Made) -> dict[int, ArchivedTopic]:
    found = {}
    for data in archives:
        opened = Archive.open(MemorySource(data if isinstance(data, bytes) else data.data))
        for topic in opened.manifest.topics:
            found[topic.id] = msgspec.structs.replace(topic, key_id=None)
    return found


def input_of(data: bytes, place: str, key: str, unkept: frozenset[int] = frozenset()) -> MergeInput:
    """An archive as a job names it."""
    row = row_of(
        Archive.open(MemorySource(data)).manifest, number=0, place=place, key=key, tier="warm",
        size=len(data), crc=0,
    )  # fmt: skip
    return MergeInput(place=place, row=row, unkept=unkept)


def merged(
    archives: Sequence[bytes],
    topics: dict[int, ArchivedTopic] | None = None,
    settings: ArchiveSettings = SMALL_BLOCKS,
    unkept: Sequence[frozenset[int]] = (),
    catalog: Sequence[bytes] = (),
    **job: Any,
) -> Result:
    """The archives merged into one; `catalog` are those that the catalog has instead."""
    inputs = [
        input_of(data, "", str(n), unkept[n] if unkept else frozenset())
        for n, data in enumerate(catalog or archives)
    ]
    opened = [
        Archive.open(MemorySource(data, f"archive {n}"), keys=settings.keys)
        for n, data in enumerate(archives)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "merged"
        facts: dict[str, Any] = {
            "inputs": inputs,
            "topics": topics_of(*archives) if topics is None else topics,
            "settings": settings,
            "store_id": STORE,
            "retention_class": "week",
            "path": str(path),
        }
        found = merge(opened, MergeJob(**(facts | job)), LocalFiles())
        return Result(found, path.read_bytes() if found.made is not None else b"")


def records_in(archive: Archive) -> Records:
    """Every record, by topic, queue and offset, in the archive's order."""
    found: Records = {}
    for number, queue, blocks in archive.directory.queues():
        mine = found.setdefault((archive.manifest.topics[number].name, queue), {})
        for block in map(archive.read_block, blocks):
            mine.update(zip(block.offsets.tolist(), block.records(), strict=True))
    return found


def records_of(queues: Iterable[Queue]) -> Records:
    return {(queue.topic.name, queue.queue): queue.records for queue in queues}


T = TypeVar("T")
J = TypeVar("J")


class Shuffled(Executor):
    """See `tiering.executor.pool.Executor`; `draw` says who does which job, and when. `done` are
    the names of what was done.
    """

    width = 2

    def __init__(self) -> None:
        self.draw = random.Random(1)
        self.done: list[str] = []
        self._pools = [Pool(), Pool()]

    def run(self, check: Callable[[], None], work: Callable[..., T], *args: Any) -> T:
        self.done.append(work.__name__)
        return self.draw.choice(self._pools).run(check, work, *args)

    def each(
        self, check: Callable[[], None], work: Callable[[J], T], jobs: Sequence[J]
    ) -> Iterator[T]:
        order = list(range(len(jobs)))
        self.draw.shuffle(order)
        found = {number: self.run(check, work, jobs[number]) for number in order}
        yield from (found[number] for number in range(len(jobs)))

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
