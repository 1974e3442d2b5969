"""A plan over many archives opens few of them, some at once, and keeps none."""

from __future__ import annotations

import sys
import threading
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual

import kvstore
import tiering
from tests.support import inside_tiering
from tests.tiering.spark.sink.jobs import Job
from tiering.archive import archive_reader
from tiering.archive.archive_reader import Archive
from tiering.archive.layout import OPENING_READ
from tiering.catalog.bucket import AT_ONCE
from tiering.spark.listing import ListedArchive, Opener, listing
from tiering.spark.options import read_options
from tiering.spark.splits import Packing, Split, plan_splits
from tiering.spark.wanted import QueryFilter

ARCHIVES = 60
EACH = 66
"""Messages in an archive."""
STEP = 3_600_000
"""Ms from one to the next archive's first message."""
BEGIN = 1_790_000_000_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place of many archives, an hour each; topic `rare` is in every tenth."""
    out = tmp_path_factory.mktemp("many") / "out"
    job = Job(out, archive_bytes="65536")
    for number in range(ARCHIVES):
        at = [BEGIN + number * STEP + n for n in range(EACH)]
        topic = "rare" if number % 10 == 3 else "often"
        job.task(number, [
            {
                "topic": topic, "queue": number, "offset": n, "body": b"%d " % n * 20,
                "stored_at": datetime.fromtimestamp(ms / 1000, UTC), "keys": [f"{number}-{n}"],
                # Not by chance: else a filter passes another archive's key now and then.
                "message_id": f"{number * EACH + n:032X}",
                "position": (number * EACH + n) * 1000,
            }
            for n, ms in enumerate(at)
        ])  # fmt: skip
    assert job.commit()
    assert len(job.archives) == ARCHIVES
    return out


@pytest.fixture(scope="module")
def store(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has them in its catalog."""
    target = tmp_path_factory.mktemp("restored") / "store"
    tiering.restore(many, target)
    return target


class Census:
    """How many archives were opened, and how many were open at one time."""

    def __init__(self) -> None:
        self.opened = 0
        self.most = 0
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Archive] = weakref.WeakSet()

    def note(self, one: Archive) -> None:
        with self._lock:
            self.opened += 1
            self._open.add(one)
            self.most = max(self.most, len(self._open))


@pytest.fixture
def census(monkeypatch: pytest.MonkeyPatch) -> Census:
    found = Census()
    init = archive_reader.Archive.__init__

    def noted(self: Archive, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        found.note(self)

    monkeypatch.setattr(archive_reader.Archive, "__init__", noted)
    return found


def planned(path: Path, *filters: Filter, **options: str) -> tuple[list[Split], Opener]:
    given = read_options({"path": str(path), **options})
    opener = Opener(given)
    wanted = QueryFilter.of(given).narrowed(filters)
    return plan_splits(listing(given), wanted, given, opener), opener


def pieces(splits: list[Split]) -> int:
    return len({piece.held.key for split in splits for piece in split.pieces})


def test_a_plan_opens_the_archives_that_the_catalog_does_not_rule_out(
    store: Path, census: Census
) -> None:
    def opened(*filters: Filter, **options: str) -> tuple[int, int]:
        before = census.opened
        splits, _ = planned(store, *filters, **options)
        return census.opened - before, pieces(splits)

    late = datetime.fromtimestamp((BEGIN + 57 * STEP) / 1000, UTC)
    assert opened() == (ARCHIVES, ARCHIVES)
    assert opened(GreaterThanOrEqual(("stored_at",), late)) == (3, 3)
    assert opened(EqualTo(("topic",), "rare")) == (6, 6)
    assert opened(topics="rare") == (6, 6)
    assert opened(EqualTo(("topic",), "rare"), GreaterThanOrEqual(("stored_at",), late)) == (0, 0)
    for border in (30 * EACH * 1000, (31 * EACH - 1) * 1000):
        assert opened(EqualTo(("position",), border)) == (1, 1)
    assert opened(EqualTo(("topic",), "nowhere")) == (0, 0)


@pytest.mark.parametrize("which", ["store", "many"])
def test_a_plan_keeps_no_archive_open(
    which: str, census: Census, request: pytest.FixtureRequest
) -> None:
    splits, _ = planned(request.getfixturevalue(which))
    assert pieces(splits) == census.opened == ARCHIVES
    assert census.most <= 2 * AT_ONCE + 2


def test_a_plan_reads_no_filter_unless_keys_are_asked_for(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections: list[str] = []
    step = inside_tiering.reading_of_sections()
    section = step.now

    def noted(self: Archive, kind: Any, *args: Any, **more: Any) -> Any:
        sections.append(kind.name)
        return section(self, kind, *args, **more)

    step.replace(noted, monkeypatch)
    _, opener = planned(many)
    assert set(sections) == {"MANIFEST", "DIRECTORY"}
    assert opener.read <= ARCHIVES * OPENING_READ
    splits, _ = planned(many, keys="7-7")
    assert "FILTER" in sections
    assert pieces(splits) == 1


def test_blocks_that_do_not_follow_each_other_are_packed_by_their_own_sizes() -> None:
    packing = Packing(100)
    packing.add(ListedArchive("place", "a", 1), np.array([0, 7, 9]), np.array([90, 5, 500]))
    assert [split.bytes for split in packing.splits] == [595]


def test_a_restore_and_an_attach_keep_few_archives_open(
    many: Path, census: Census, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("source_place", "attach", "attach_conflicts"):
        # Room for four: each weighs 8 KiB and more.
        monkeypatch.setattr(sys.modules[f"tiering.operations.{name}"], "OPEN_BYTES", 32 << 10)
    assert tiering.restore(many, tmp_path / "new").messages == ARCHIVES * EACH
    assert census.opened >= ARCHIVES
    assert census.most <= 2 * AT_ONCE + 8
    census.most = 0
    with kvstore.open(tmp_path / "other", kvstore.StoreConfig(segment_size=1 << 16)) as target:
        assert tiering.attach(target, many).messages == ARCHIVES * EACH
        assert census.most <= 2 * AT_ONCE + 8
        assert target.verify(archives=True).problems == []


def test_a_commit_that_compares_offsets_keeps_few_archives_open(
    tmp_path: Path, census: Census, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiering.spark.sink.jobs.OPEN_BYTES", 1)
    job, count = Job(tmp_path / "out"), 20
    for number in range(count):
        rows = [{"topic": "a", "queue": 0, "offset": n, "body": b""} for n in (number, 99 - number)]
        job.task(number, rows)
    census.most = census.opened = 0
    assert job.commit()
    assert census.opened >= count, "each overlaps all others"
    assert census.most <= 6
