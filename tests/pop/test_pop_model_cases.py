"""Steps of the model of pops that random runs found, each of which once went wrong.

A redriven message is in a row with a due time, as a locked one is; and a pop that has no room under
its group's cap looks at no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.pop.test_pop_model import Pops


@pytest.fixture(scope="module", autouse=True)
def _store_is_dropped() -> Iterator[None]:
    yield
    Pops.drop_store()


class Given:
    """Draws the values that it was given, in turn."""

    def __init__(self, *values: Any) -> None:
        self._values = iter(values)

    def draw(self, strategy: object) -> Any:
        return next(self._values)


def group_of(**chosen: object) -> dict[str, object]:
    plain = {
        "max_attempts": 16,
        "backoff": (),
        "max_in_flight": None,
        "ordered": False,
        "dead_letter_expired": False,
    }
    return plain | chosen


def popping(**asked: object) -> tuple[str, dict[str, Any]]:
    plain: dict[str, Any] = {
        "group": 0,
        "topic": "a",
        "limit": 1,
        "queue": None,
        "invisible_for": 1.0,
        "wanted": None,
        "attempt_id": None,
        "max_bytes": None,
    }
    return "pop", plain | asked


def puts(*expiries: float | None) -> tuple[str, dict[str, Any]]:
    """Messages of one queue, which expire so many seconds from now."""
    return "put", {"topic": "a", "drafts": [(0, 1, "x", None, time) for time in expiries]}


def passes(seconds: float) -> tuple[str, dict[str, Any]]:
    return "time_passes", {"seconds": seconds}


SET_BACK: Final = "clock_is_set", {"seconds": -3600}
REDRIVE: Final = "redrive", {"group": 0, "limit": None, "dice": 0}
OTHERS: Final = "put", {"topic": "b", "drafts": [(0, 1, "x", None, None)] * 2}
FIGURES: Final = "figures", {"group": 0}


@pytest.mark.parametrize(
    ("settings_of_group", "steps"),
    [
        # A redriven message waits behind a clock that is set back, as a lock does.
        (group_of(max_attempts=1),
         [puts(None), popping(), passes(5.0), popping(), REDRIVE, SET_BACK, FIGURES, popping()]),
        # Meanwhile the messages behind it come.
        (group_of(max_attempts=1),
         [puts(None, None, None), popping(), passes(5.0), popping(), REDRIVE, SET_BACK,
          popping(), FIGURES]),
        # Its row refuses a commit, and takes a place under the cap until it is due.
        (group_of(max_attempts=1),
         [puts(None), popping(), passes(5.0), popping(), REDRIVE,
          ("commit", {"group": 0, "topic": "a", "queue": 0, "data": Given(0)})]),
        (group_of(max_attempts=1, max_in_flight=2),
         [puts(None, None, None), popping(limit=2), passes(5.0), popping(), REDRIVE, SET_BACK,
          popping(limit=2), FIGURES]),
        # An ordered group parks it: it comes whatever the clock says.
        (group_of(max_attempts=1, ordered=True),
         [puts(None), popping(), passes(5.0), popping(), REDRIVE, SET_BACK, popping(), FIGURES]),
        # A locked message that a filter refuses, or that expired, stays while the cap has no room.
        (group_of(max_in_flight=2),
         [puts(None, None), popping(limit=2), OTHERS, passes(4000.0), popping(limit=2, topic="b"),
          popping(limit=40, wanted="y"), FIGURES]),
        (group_of(max_in_flight=2),
         [puts(20.0, 20.0), popping(limit=2), OTHERS, passes(4000.0), popping(limit=2, topic="b"),
          popping(limit=40), FIGURES]),
    ],
)  # fmt: skip
def test_cases_that_random_runs_found(
    settings_of_group: dict[str, object], steps: list[tuple[str, dict[str, Any]]]
) -> None:
    machine = Pops()
    machine.begin(made=(settings_of_group, group_of()))
    for name, given in steps:
        getattr(machine, name)(**given)
        machine.committed_is_the_end_of_what_is_done()
    machine.teardown()
