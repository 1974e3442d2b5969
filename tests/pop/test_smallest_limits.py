"""Every limit of what is kept in memory, at its smallest: the models hold all the same.

Each limit of `tests/support/limits.py` is tried alone, and all of them together.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.api.test_states import Stores
from tests.meta.test_offsets_model import OffsetsMachine
from tests.pop.test_pop_model import Pops
from tests.support.limits import LIMITS, Limit

MODELS: Final[dict[str, type[RuleBasedStateMachine]]] = {
    "Pops": Pops,
    "Stores": Stores,
    "OffsetsMachine": OffsetsMachine,
}


@pytest.fixture
def clean() -> Iterator[None]:
    """No store of other tests is used here, nor one of these by others."""
    Pops.drop_store()
    yield
    Pops.drop_store()


def lower(monkeypatch: pytest.MonkeyPatch, limit: Limit) -> None:
    for name in limit.names:
        module, _, constant = f"kvstore.{name}".rpartition(".")
        monkeypatch.setattr(importlib.import_module(module), constant, limit.value)
        if constant == "ENDED_MAX":
            monkeypatch.setattr(Pops, "remembers", False)


def run(model: type[RuleBasedStateMachine], examples: int) -> None:
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.names[0])
def test_the_models_hold_with_a_limit_at_its_smallest(
    monkeypatch: pytest.MonkeyPatch, limit: Limit
) -> None:
    lower(monkeypatch, limit)
    for name in limit.models:
        run(MODELS[name], 6 if name == "Pops" else 3)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("model", MODELS.values())
def test_the_models_hold_with_all_limits_at_their_smallest(
    monkeypatch: pytest.MonkeyPatch, model: type[RuleBasedStateMachine]
) -> None:
    for limit in LIMITS:
        lower(monkeypatch, limit)
    run(model, 60 if model is Pops else 6)
