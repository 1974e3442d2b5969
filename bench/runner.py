"""Runs scenarios in fresh processes and folders, and takes medians."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.figure import Figure, Options, Result, combine
from bench.isolated import contained
from bench.scenarios import Scenario, derive, run_scenario


def run_all(
    scenarios: Sequence[Scenario], options: Options, runs: int, place: Path | None
) -> Iterator[list[Result]]:
    """Each scenario's results as soon as they are there; at last what follows from several."""
    medians: dict[str, list[Figure]] = {}
    for scenario in scenarios:
        found = [_once(scenario, options, place) for _ in range(scenario.runs or runs)]
        results = combine(scenario.name, found)
        medians[scenario.name] = [result.figure for result in results]
        yield results
    for name, figures in derive(medians).items():
        yield combine(name, [figures])


def _once(scenario: Scenario, options: Options, place: Path | None) -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{scenario.name}-", dir=place))
    try:
        return contained(run_scenario, scenario, folder, options)
    finally:
        shutil.rmtree(folder)
