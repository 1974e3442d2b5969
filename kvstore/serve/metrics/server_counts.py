"""Server counts: the connections of a server's doors, and its calls by name and result.

The idea: calls are counted where they end, all those of one step by one addition for each result
that occurred. Connections are not counted: a door knows how many it has, and is asked at a scrape.
All is counted in the server's loop, so nothing is locked.

Invariant: there is a number for each door, call and result that occurred, and these are few: a door
names its own calls, and counts those that it does not know as `UNKNOWN`; a result is `OK` or the
name of an error's class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

OK: Final = "ok"
UNKNOWN: Final = "unknown"
GATHERED: Final = "gathered"
"""In the place of a door: calls that the gatherer made for all doors together."""


class HasConnections(Protocol):
    """A door that tells how many connections it has."""

    @property
    def name(self) -> str:
        """The door's name."""

    @property
    def connections(self) -> int:
        """How many are open now."""


class ServerCounts:
    """Counts of one server; see the module."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str, str]] = Counter()
        """By door, call and result."""
        self._doors: list[HasConnections] = []

    def called(self, door: str, call: str, error: BaseException | None = None, n: int = 1) -> None:
        """Counts `n` calls that ended so."""
        self.calls[door, call, OK if error is None else type(error).__name__] += n

    def gathered(self, call: str) -> Callable[[Sequence[Any]], None]:
        """A function that counts the results of a step of that call: values and errors."""

        def count(results: Sequence[Any]) -> None:
            errors = [one for one in results if isinstance(one, BaseException)]
            if len(results) > len(errors):
                self.called(GATHERED, call, n=len(results) - len(errors))
            for error in errors:
                self.called(GATHERED, call, error)

        return count

    def watch(self, door: HasConnections) -> None:
        """Has a door asked for its connections."""
        self._doors.append(door)

    def connections(self) -> Counter[str]:
        """The connections that are open, by door."""
        found = Counter[str]()
        for door in self._doors:
            found[door.name] += door.connections
        return found
