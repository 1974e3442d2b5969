"""Which of many things have series of their own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore.serve.metrics.chosen import Chosen

AMOUNTS = st.dictionaries(st.integers(0, 30), st.integers(1, 40), min_size=1, max_size=30)
MOVES = st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=30)


def test_all_are_chosen_where_they_are_few() -> None:
    chosen = Chosen[str, int](3, 10, 0)
    costs = {"a": 4, "b": 4, "c": 2}
    assert chosen.look(costs, lambda k: (len(k), 0)) == {"a": 1, "b": 1, "c": 1}
    assert chosen.looks == 10


def test_one_that_moves_takes_the_place_of_the_one_that_was_idle_for_longest() -> None:
    chosen = Chosen[str, int](2, 10, 10)
    costs = dict.fromkeys("abcd", 1)
    at = dict.fromkeys("abcd", 0)

    def look() -> set[str]:
        return set(chosen.look(costs, lambda k: (0, at[k])))

    assert look() == {"a", "b"}
    at["a"] += 1
    look()
    at["d"] += 1
    assert look() == {"a", "d"}
    at["a"] += 1
    at["c"] += 1
    assert look() == {"a", "c"}
    assert look() == {"a", "c"}


def test_what_costs_more_than_all_may_is_never_looked_at() -> None:
    chosen = Chosen[str, int](5, 10, 100)
    seen: list[str] = []

    def read(key: str) -> tuple[int, int]:
        seen.append(key)
        return 0, 0

    assert chosen.look({"a": 11, "b": 1}, read) == {"b": 0}
    assert seen == ["b"]


def test_a_large_one_that_does_not_fit_holds_up_no_other() -> None:
    chosen = Chosen[str, int](2, 3, 1)
    costs = {"a": 1, "large": 3, "b": 1, "c": 1}
    at = dict.fromkeys(costs, 0)
    seen = set[str]()
    for _ in range(6):
        at["c"] += 1
        seen |= chosen.look(costs, lambda k: (0, at[k])).keys()
    assert "c" in seen


@given(AMOUNTS, MOVES, st.integers(1, 6), st.integers(1, 40), st.integers(0, 20))
def test_a_look_keeps_its_bounds_and_shows_true_values(
    costs: dict[int, int], moves: list[list[int]], shown: int, most: int, ahead: int
) -> None:
    chosen = Chosen[int, int](shown, most, ahead)
    at = dict.fromkeys(range(31), 0)
    gone = set[int]()
    for moved in moves:
        for key in moved:
            at[key] += 1
        if len(moved) == 5:
            gone.add(moved[0])
        found = chosen.look(costs, lambda k: None if k in gone else (at[k], at[k]))
        assert len(found) <= shown
        assert sum(costs[key] for key in found) <= most
        assert chosen.looks <= 2 * most + max(ahead, most)
        assert found == {key: at[key] for key in found}
        assert not gone & found.keys()
        fit = [key for key in costs if costs[key] <= most]
        if not gone & costs.keys() and len(fit) <= shown and sum(costs[key] for key in fit) <= most:
            assert found.keys() == set(fit)
