"""What Spark makes of a store is what the embedded worker makes of it, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.clock import VirtualClock
from tests.tiering.spark.jobs.twins import DAY, both
from tiering import Worker
from tiering.spark.jobs.executor import SparkExecutor


def test_moving_segments_and_archives_through_all_tiers_gives_the_same(
    tmp_path: Path, made: tuple[Path, int], executor: SparkExecutor
) -> None:
    def work(worker: Worker, clock: VirtualClock) -> Any:
        first = worker.run_once()
        clock.advance(1.5 * DAY)
        brief = worker.run_once()
        clock.advance(8 * DAY)
        rest = worker.run_once()
        return first, brief, rest, [a.key for a in worker.archives()]

    one, _ = both(tmp_path, *made, executor, work)
    first, brief, rest, _ = one.told
    assert len(first.segments) >= 5
    assert len(brief.shifted) == len(rest.expired) >= 3
    assert len(rest.shifted) >= 5
    assert first.failed == brief.failed == rest.failed == {}
