"""Every limit of what is kept in memory, at its smallest: the models hold all the same.

A limit that is never reached in tests hides what happens at it. So each is tried alone, and all of
them together; and what the source compares a size with is listed here, or said to be no such limit.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import kvstore
from tests.api.test_states import Stores
from tests.meta.test_offsets_model import OffsetsMachine
from tests.pop.test_pop_model import Pops

SOURCE: Final = Path(kvstore.__file__).parent


class Limit(NamedTuple):
    """Where it stands, as far as one takes it from another; its smallest; who reaches it."""

    names: tuple[str, ...]
    value: int
    models: tuple[type[RuleBasedStateMachine], ...]


POPPED: Final = (Pops,)
EVERYWHERE: Final = (Pops, Stores)
LIMITS: Final = (
    Limit(("pop.inflight.prefetch.AHEAD",), 1, POPPED),
    Limit(("pop.inflight.prefetch._AHEAD_BYTES",), 1, POPPED),
    Limit(("pop.take._DEAD_AT_ONCE",), 1, POPPED),
    Limit(("pop.inflight.tables.ENDED_MAX", "pop.popper.ENDED_MAX"), 1, POPPED),
    Limit(("pop.inflight.tables._PREFETCHED_MAX",), 0, POPPED),
    Limit(("pop.inflight.tables._KEPT_MAX",), 1, POPPED),
    Limit(("pop.inflight.held._EMPTY_MAX",), 0, POPPED),
    Limit(("pop.ordered._READ_AT_ONCE",), 1, POPPED),
    Limit(("pop.ordered._READ_BYTES",), 1, POPPED),
    Limit(("pop.pop._CHECKED_MAX",), 1, POPPED),
    Limit(("read.pull._AT_ONCE",), 1, EVERYWHERE),
    Limit(("pop.fast_path._ASKS_MAX",), 1, POPPED),
    Limit(("pop.receipts._REMEMBERED",), 1, POPPED),
    Limit(("pop.redrive._AT_ONCE",), 1, POPPED),
    Limit(("pop.inflight.tally._STALE_MAX",), 0, POPPED),
    Limit(("index.index.HEADS_KEPT",), 1, EVERYWHERE),
    Limit(("index.message_keys.key_lookup.FILTERS_KEPT_BYTES",), 1, (Stores,)),
    Limit(("index.queue_locations.RUNS_KEPT",), 1, EVERYWHERE),
    Limit(("index.queue_locations.SPANS_KEPT",), 1, EVERYWHERE),
    Limit(("index.replay._CODES_KEPT",), 1, (Stores,)),
    Limit(("index.checkpoint.CODES_MAX",), 1, EVERYWHERE),
    Limit(("log.segments.MAPS_MAX",), 1, EVERYWHERE),
    Limit(("meta.groups.CACHED_MAX",), 1, (Pops, OffsetsMachine)),
    Limit(("meta.groups._CACHED_OF_A_BATCH",), 0, (Pops, OffsetsMachine)),
    Limit(("meta.offsets._LAST_MAX",), 1, (Pops, OffsetsMachine)),
    Limit(("meta.topics.CACHED_MAX",), 1, EVERYWHERE),
    Limit(("meta.topics._CACHED_OF_A_BATCH",), 0, EVERYWHERE),
    Limit(("record.put.prepare._INTERNED_MAX",), 1, EVERYWHERE),
    Limit(("record.put.put_routes._ROUTES_MAX",), 1, EVERYWHERE),
)
LET_OUT: Final = {
    "engine.upkeep._PARTS_MAX": "tests/engine/test_checkpoints.py",
    "index.archived._FETCHED_MAX": "tests/tiering/catalog/test_same_groups.py",
    "index.queue_locations._FOLLOWED_KEPT": "tests/tiering/catalog/test_followed.py",
    "pop.ordered.PARKED_MAX": "it is no cache: what is parked waits, so the model would not "
    "hold: tests/pop/test_bounds.py",
}
"""Not of the models; and the test that lowers it."""
LIMITS_OF_TIERING: Final = {
    "catalog.tiers.SCANS_KEPT": "tests/tiering/catalog/test_bounds.py",
    "catalog.tiers.FOUND_KEPT": "tests/tiering/catalog/test_bounds.py",
    "catalog.tiers.GROUPS_KEPT": "tests/tiering/catalog/test_bounds.py",
    "catalog.tiers.GROUPS_BYTES": "tests/tiering/catalog/test_bounds.py",
    "catalog.tiers.QUEUE_BLOCKS_KEPT": "tests/tiering/catalog/test_bounds.py",
    "operations.attach_conflicts._KEPT": "tests/tiering/catalog/test_bounds.py",
    "spark.stream.directory_tables._BLOCKS_MAX": "tests/tiering/spark/stream/test_stream_model.py",
    "worker.runs._BYTES_MAX": "tests/tiering/catalog/test_bounds.py",
}
"""Limits of tiering, and the test that lowers each."""
NO_LIMITS_OF_MEMORY: Final = frozenset(
    {
        "BLOCK_BYTES", "GROUP_MAX", "KEPT", "LENGTH_MAX", "NAME_MAX", "PROPERTIES_MAX", "SCAN_MAX",
        "TOPIC_MAX", "_DIGITS_MAX", "_DISK_CHECK_BYTES", "_ID_CHARACTERS_MAX",
        "_INTEGER_LENGTH_MAX", "_PROBLEMS_KEPT", "_PROBLEMS_MAX", "_SHOWN_MAX",
        # Of tiering: what one archive, one batch, one name or one plot may have.
        "BATCH_BYTES", "INPUTS_MAX", "KEY_BYTES_MAX", "MESSAGES_MAX", "PART_BYTES_MAX",
        "TOPICS_MAX", "_CONSTANTS_MAX", "_NAME_MAX", "_RUN_MAX",
    }
)  # fmt: skip
"""What else is held against a size: of what is given, or written to the disk."""


NAMED_SO: Final = re.compile("(MAX|KEPT|BYTES|REMEMBERED)$")


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
    for model in limit.models:
        run(model, 6 if model is Pops else 3)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("model", [Pops, Stores, OffsetsMachine])
def test_the_models_hold_with_all_limits_at_their_smallest(
    monkeypatch: pytest.MonkeyPatch, model: type[RuleBasedStateMachine]
) -> None:
    for limit in LIMITS:
        lower(monkeypatch, limit)
    run(model, 60 if model is Pops else 6)


@pytest.mark.parametrize("package", ["kvstore", "tiering"])
def test_every_limit_of_the_source_is_tried_here(package: str) -> None:
    """What a `len`, or a count of what is kept, is compared with."""
    tried = {name for limit in LIMITS for name in limit.names} | LET_OUT.keys()
    listed = tried if package == "kvstore" else LIMITS_OF_TIERING
    known = {name.rpartition(".")[2] for name in listed} | NO_LIMITS_OF_MEMORY
    missing = set()
    for path in (SOURCE.parent / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            text = ast.unparse(node.left)
            names = {
                n.id
                for c in node.comparators
                for n in ast.walk(c)
                if isinstance(n, ast.Name) and NAMED_SO.search(n.id)
            }
            if any(part in text for part in ("len(", "_kept", "_bytes", "self._")):
                missing |= {f"{path.name}: {name}" for name in names - known}
    assert not missing, "list it in LIMITS, or in LIMITS_OF_TIERING with the test that lowers it"


LOWERED: Final = {
    **{f"kvstore.{name}": told for name, told in LET_OUT.items()},
    **{f"tiering.{name}": path for name, path in LIMITS_OF_TIERING.items()},
}


@pytest.mark.parametrize("name", LOWERED)
def test_a_limit_that_the_models_do_not_reach_is_lowered_by_the_test_that_is_named(
    name: str,
) -> None:
    path = SOURCE.parent / LOWERED[name].rpartition(" ")[2]
    module, _, constant = name.rpartition(".")
    assert hasattr(importlib.import_module(module), constant)
    assert constant in path.read_text(encoding="utf-8")
