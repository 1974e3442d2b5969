"""What is attached into the gaps of archives that the store has."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

import kvstore
import tiering
from tests.support.clock import VirtualClock
from tests.tiering.operations.attach.test_attach import config, rows, whole
from tests.tiering.spark.sink.jobs import write


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
