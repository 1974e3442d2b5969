"""A lock lasts for as long as was promised: it never ends a fraction of a millisecond early."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Store
from kvstore.clock import SystemClock, cut_ms, whole_ms
from tests.support.clock import FineClock, VirtualClock

ROOT: Final = Path(kvstore.__file__).resolve().parent.parent
INSTANTS: Final = {
    "kvstore/cli/terminal/opening.py": 1,
    "kvstore/cli/spark/spark_options.py": 1,
    "kvstore/serve/access/credentials.py": 1,
    "kvstore/timing/recurrence.py": 1,
    "tiering/places/object_store.py": 1,
    "tiering/spark/wanted.py": 1,
    "tiering/policy/trusted_clock.py": 1,
}
"""How many conversions a file has of a point in time, or of a time that has passed: these are no
promises."""


pytestmark = pytest.mark.group(max_attempts=3, backoff=[0.05])


@pytest.fixture
def clock() -> FineClock:
    return FineClock()


@pytest.fixture
def store(store: Store) -> Store:
    """One message is in it."""
    store.put("t", b"1")
    return store


def popped(store: Store) -> None:
    store.pop("g", "t", invisible_for=0.25)


def popped_quickly(store: Store) -> None:
    """Where a pop was made before, the next one takes the short way."""
    store.put("t", b"2")
    store.pop("g", "t", invisible_for=3600.0)
    store.pop("g", "t", invisible_for=0.25)


def popped_with_a_filter(store: Store) -> None:
    store.pop("g", "t", invisible_for=0.25, filter="*")


def popped_again(store: Store) -> None:
    (first,) = store.pop("g", "t")
    store.change_invisible(first.receipt, 0)
    store.pop("g", "t", invisible_for=0.25)


def extended(store: Store) -> None:
    (first,) = store.pop("g", "t")
    store.change_invisible(first.receipt, 0.25)


def given_back_later(store: Store) -> None:
    (first,) = store.pop("g", "t")
    store.change_invisible(first.receipt, 0.3, gives_back=True)


@pytest.mark.parametrize(
    "locks",
    [popped, popped_quickly, popped_with_a_filter, popped_again, extended, given_back_later],
)
def test_a_lock_of_300_ms_that_begins_late_in_a_millisecond_lasts_300_ms(
    store: Store, clock: FineClock, locks: Callable[[Store], None]
) -> None:
    clock.pass_us(900)
    locks(store)
    clock.pass_us(299_999)
    assert store.pop("g", "t") == []
    clock.pass_us(1_001)
    assert len(store.pop("g", "t")) == 1


def test_a_backoff_that_begins_late_in_a_millisecond_is_not_cut(
    store: Store, clock: FineClock
) -> None:
    clock.pass_us(900)
    (first,) = store.pop("g", "t")
    store.change_invisible(first.receipt)
    clock.pass_us(49_999)
    assert store.pop("g", "t") == []
    clock.pass_us(2_000)
    assert len(store.pop("g", "t")) == 1


def test_a_lock_of_a_fraction_of_a_millisecond_is_one_and_not_a_giving_back(
    store: Store, clock: FineClock
) -> None:
    store.alter_group("g", backoff=[])
    (first,) = store.pop("g", "t")
    store.change_invisible(first.receipt, 0.0001)
    assert store.pop("g", "t") == []
    clock.pass_us(2_000)
    assert len(store.pop("g", "t")) == 1


@pytest.mark.parametrize(
    ("seconds", "ms"),
    [(0, 0), (1e-4, 1), (0.001, 1), (0.0011, 2), (0.069, 69), (0.3, 300), (1.1, 1100),
     (2.5e8, 250_000_000_000), (1e9, 1_000_000_000_000)],
)  # fmt: skip
def test_durations_are_rounded_up_to_milliseconds_but_not_for_the_noise_of_a_float(
    seconds: float, ms: int
) -> None:
    assert whole_ms(seconds) == ms


def test_the_machines_clock_cuts_milliseconds_and_a_virtual_one_has_none_to_cut() -> None:
    assert cut_ms(SystemClock()) == 1
    assert cut_ms(VirtualClock()) == 0


def test_seconds_become_milliseconds_in_one_place() -> None:
    """Rounding anywhere else would let what was promised end early."""
    found: dict[str, int] = {}
    for package in ("kvstore", "tiering", "pyspark_kvmq"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            count = sum(_rounds_milliseconds(node) for node in ast.walk(tree))
            if count and path.name != "clock.py":
                found[path.relative_to(ROOT).as_posix()] = count
    assert found == INSTANTS


def _rounds_milliseconds(node: Any) -> bool:
    """Whether a node is `round(x * 1000)`, `int(x * 1000)`, or the like."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("round", "int", "math.ceil", "math.floor")
        and any(
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Mult)
            and any(
                isinstance(side, ast.Constant) and side.value in (1000, 1e3, 1e6)
                for side in (part.left, part.right)
            )
            for argument in node.args
            for part in ast.walk(argument)
        )
    )
