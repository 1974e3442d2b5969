"""Chosen: which of very many things get series of their own, so that a scrape stays short.

The idea: a look at a topic costs a look at each of its queues. Where all are few, all are chosen.
Else a scrape looks at those that are chosen, and at some of the others, in turn. One of the others
that moved since its last look takes the place of the chosen one that has not moved for longest. So
idle topics make room for busy ones within some scrapes, and a busy topic keeps its series.

Invariants:

- At most `shown_max` are chosen, whose costs together are at most `costs_max`.
- A look at others, beyond those that fill the room, costs at most `ahead`, or one thing's cost.
- A thing that costs more than `costs_max` by itself is never chosen.
- Each of the others has its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Read = Callable[[K], tuple[V, int] | None]
"""A look: the value, and a number that changes when the thing moves; None if it is not there."""


class Chosen(Generic[K, V]):
    """A choice, see the module. `looks` counts what the last one cost."""

    def __init__(self, shown_max: int, costs_max: int, ahead: int) -> None:
        self._shown_max = shown_max
        self._costs_max = costs_max
        self._ahead = ahead
        self._shown: dict[K, int] = {}
        """The chosen ones with their last numbers; first the one that has not moved for longest."""
        self._last: dict[K, int] = {}
        """The last numbers of the others."""
        self._costs: Mapping[K, int] = {}
        self._order: list[K] = []
        self._at = 0
        self.looks = 0

    def look(self, costs: Mapping[K, int], read: Read[K, V]) -> dict[K, V]:
        """The values of the chosen ones among the keys of `costs`, which says what a look at each
        costs. The same mapping, unchanged, is to be given again while nothing came or went.
        """
        self._take(costs)
        self.looks = 0
        values: dict[K, V] = {}
        idle = self._look_at_shown(read, values)
        self._look_ahead(read, values, idle)
        return values

    def _take(self, costs: Mapping[K, int]) -> None:
        if costs is not self._costs:
            self._costs, self._order = costs, list(costs)
            self._shown = {key: at for key, at in self._shown.items() if key in costs}
            self._last = {key: at for key, at in self._last.items() if key in costs}

    def _look_at_shown(self, read: Read[K, V], values: dict[K, V]) -> list[K]:
        """Reads the chosen ones; returns those that did not move, the longest idle last."""
        idle = []
        for key, before in list(self._shown.items()):
            self.looks += self._costs[key]
            found = read(key)
            if found is None:
                del self._shown[key]
                continue
            values[key], now = found
            if now == before:
                idle.append(key)
            else:
                del self._shown[key]
                self._shown[key] = now
        idle.reverse()
        return idle

    def _look_ahead(self, read: Read[K, V], values: dict[K, V], idle: list[K]) -> None:
        """Reads some of the others, and chooses those that moved, or for which there is room."""
        used = sum(self._costs[key] for key in self._shown)
        begun, until = self.looks, self.looks + self._ahead
        for _ in range(len(self._order)):
            key = self._order[self._at % len(self._order)]
            cost = self._costs[key]
            is_other = key not in self._shown and cost <= self._costs_max
            is_beyond = self.looks > begun and self.looks + cost > until
            if is_other and is_beyond and not self._has_room(used + cost):
                return  # the next look begins with this one
            self._at = (self._at + 1) % len(self._order)
            if not is_other:
                continue
            self.looks += cost
            found = read(key)
            if found is None:
                continue
            value, now = found
            before, self._last[key] = self._last.get(key), now
            moved = before is not None and before != now
            while moved and not self._has_room(used + cost) and idle:
                out = idle.pop()
                used -= self._costs[out]
                self._last[out] = self._shown.pop(out)
                del values[out]
            if self._has_room(used + cost):
                used += cost
                self._shown[key] = now
                del self._last[key]
                values[key] = value

    def _has_room(self, costs: int) -> bool:
        return len(self._shown) < self._shown_max and costs <= self._costs_max
