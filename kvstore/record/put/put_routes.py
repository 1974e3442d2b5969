"""Put routes: the facts of topics that a put needs, found by one look-up of the topic's name.

The idea: a topic's facts are an object of the compiled core, `PutRoute`, from which `Encoder` reads
numbers. A topic that doesn't exist yet is made when all messages of a batch are checked.

Invariants: a route that was read before a topic changed is never used after `clear`; no topic is
made for a batch with a refused message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final

from kvstore.core.encoding import PutRoute
from kvstore.record.put.explain import TopicFacts, TopicOf

_ROUTES_MAX: Final = 1 << 18


class PutRoutes(dict[str, PutRoute]):
    """Topic -> route, for those that were put to; another one is made by `find`."""

    def __init__(
        self,
        find: Callable[[str], TopicFacts | None],
        facts_of: TopicOf,
        make: Callable[[Iterable[str]], None],
        on_use: Callable[[int, int], None],
        make_pending_topic: Callable[[str], object],
    ) -> None:
        """`find` gives an existing topic; `facts_of` gives one that exists or would be made, or
        raises; `make` makes topics. `on_use` gets each used topic's id and hash byte.
        `make_pending_topic` makes a topic in which messages wait.
        """
        super().__init__()
        self.facts_of = facts_of
        self._make = make
        self._find = find
        self._on_use = on_use
        self._make_pending_topic = make_pending_topic
        self._lock = Lock()
        self._version = 0

    def find(self, name: str) -> PutRoute | None:
        """The route of an existing topic; None if there is no such topic."""
        version = self._version
        topic = self._find(name)
        if topic is None:
            return None
        route = topic.route
        self._on_use(route.base >> 32, topic.hash_byte)
        with self._lock:
            # A route that was read while a topic changed is used once and not kept.
            if version == self._version:
                if len(self) >= _ROUTES_MAX:
                    super().clear()
                self[name] = route
        return route

    def make_pending(self, name: str) -> PutRoute:
        """The route of a topic in which messages wait; makes the topic if it is not there."""
        self._make_pending_topic(name)
        found = self.find(name)
        if found is None:
            raise ValueError(f"the topic {name} was deleted meanwhile")
        return found

    def make_missing(
        self,
        names: Sequence[str],
        queues: Sequence[int | None],
        sizes: Sequence[int],
        record_max: int,
    ) -> list[PutRoute]:
        """The routes of all these messages; makes the topics that are not there. Makes none if one
        of them can't be made, or if a message would be refused in the topic that it gets: then
        raises ValueError, or the topic's error. `sizes` are those of the records without their
        topics' overhead.
        """
        different = dict.fromkeys(names)
        facts_of = {name: self.facts_of(name) for name in different}
        for name, queue, size in zip(names, queues, sizes, strict=True):
            route = facts_of[name].route
            if queue is not None and not 0 <= queue < route.write_queues:
                raise ValueError("no such queue")
            if size + route.overhead > record_max:
                raise ValueError("the record is too large")
        self._make([name for name in different if self._find(name) is None])
        found = {name: self.find(name) for name in different}
        routes = [found[name] for name in names]
        if None in routes:
            raise ValueError("a topic was deleted meanwhile")
        return [route for route in routes if route is not None]

    def clear(self) -> None:
        """Drops all routes, since a topic changed."""
        with self._lock:
            self._version += 1
            super().clear()
