"""The options and the results of a scenario."""

from __future__ import annotations

from statistics import median
from typing import Literal

import msgspec


class Options(msgspec.Struct, frozen=True):
    """The options that the command line may change. None: the scenario's own, to which its target
    belongs.
    """

    size: int | None = None
    """Bytes of a body."""
    messages: int | None = None
    topics: int | None = None
    queues: int | None = None
    tags: int = 8
    """How many different tags the messages have in turn."""


class Figure(msgspec.Struct, frozen=True):
    """One measured value, and the issue's target for it if there is one."""

    name: str
    value: float
    unit: str
    target: float | None = None
    better: Literal["higher", "lower"] = "higher"
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "higher" else self.value <= self.target


class Result(msgspec.Struct, frozen=True):
    """A figure over several runs: `figure.value` is their median."""

    scenario: str
    figure: Figure
    runs: list[float]
    reached: bool | None = None


def combine(scenario: str, runs: list[list[Figure]]) -> list[Result]:
    """The results of several runs of one scenario, each of which returned the same figures."""
    results = []
    for same in zip(*runs, strict=True):
        values = [figure.value for figure in same]
        middle = msgspec.structs.replace(same[0], value=median(values))
        results.append(Result(scenario, middle, values, middle.reached))
    return results
