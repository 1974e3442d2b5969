"""Archives are attached into the gaps between archives that the store has."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import kvstore
import tiering
from kvstore.index.archived import ArchivedRange, Contents
from tests.support.clock import VirtualClock
from tests.tiering.operations.attach.test_attach import config, rows, whole
from tests.tiering.spark.sink.jobs import write
from tiering.archive.archive_reader import Archive
from tiering.catalog.catalog import contents
from tiering.operations import attach_conflicts


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_neighbours_fit_into_one_gap_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    clock = VirtualClock()
    now = clock.now_ms()
    clock.advance(1)
    write(tmp_path / "around", [*rows(0, 0, 1, at=now), *rows(0, 20, 21, at=now + 20)])
    for n in range(3):
        write(tmp_path / f"part{n}", rows(0, *range(4 * n + 4, 4 * n + 8), at=now + 4 * n + 4))
    with kvstore.open(tmp_path / "store", config(clock)) as store:
        tiering.attach(store, tmp_path / "around")
        for n in order:
            tiering.attach(store, tmp_path / f"part{n}")
        assert [m.offset for m in whole(store)["orders", 0]] == [0, 1, *range(4, 16), 20, 21]


def test_an_attach_reads_each_archive_beside_it_once_and_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Read(ArchivedRange):
        """A range that was read from an archive, and is counted while somebody has it."""

        alive = 0
        is_copy = True

        def __del__(self) -> None:
            Read.alive -= not self.is_copy

    clock = VirtualClock()
    now, archives, queues = clock.now_ms(), 30, 3
    clock.advance(1)

    def held(*offsets: int) -> list[dict[str, Any]]:
        """Rows of every queue, each stored as many milliseconds after `now` as its offset says."""
        return [rows(q, n, at=now + n)[0] for q in range(queues) for n in offsets]

    write(tmp_path / "around", *(held(10 * n, 10 * n + 5) for n in range(archives)))
    gaps = [10 * n + 2 for n in range(5, archives)]
    write(tmp_path / "between", held(*gaps))
    read: Counter[int] = Counter()

    def noted(archive: Archive, number: int) -> Contents:
        assert Read.alive <= 1, "the loop's variable alone has one of the archive before"
        read[number] += 1
        found = contents(archive, number)
        ranges = [Read(*one) for one in found.held]
        for one in ranges:
            one.is_copy = False
        Read.alive += len(ranges)
        assert len(ranges) == queues
        return found._replace(held=ranges)

    with kvstore.open(tmp_path / "store", config(clock)) as store:
        tiering.attach(store, tmp_path / "around")
        monkeypatch.setattr(attach_conflicts, "contents", noted)
        tiering.attach(store, tmp_path / "between")
        assert sorted(read.values()) == [1] * (archives - 5), "those before the gaps are not read"
        both = sorted([*gaps, *range(0, 10 * archives, 5)])
        found = whole(store)
        assert all([m.offset for m in found["orders", q]] == both for q in range(queues))
