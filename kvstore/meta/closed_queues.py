"""Closed queues: those that take no messages any more, though a put may have begun before.

The idea: a put finds its queues before it waits for its turn to write. A topic may be deleted
meanwhile, or a queue taken from its readers. So a queue is closed while no put writes, and a put
that began before looks here when its turn comes; then it finds its queues anew. Ids of topics are
given once, so what is noted of a deleted topic holds for ever.

Invariant: no message is written to a closed queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kvstore.errors import TopicNotFound
from kvstore.meta.id_set import IdSet


class ClosedQueues:
    """The queues of a store that this opening has closed; see the module."""

    def __init__(self) -> None:
        self._deleted = IdSet()
        """Ids of topics all of whose queues are closed."""
        self._open: dict[int, int] = {}
        """Of other topics, by their ids: how many queues, the first ones, are not closed."""

    def keep(self, topics: Collection[int], queues: int) -> None:
        """Closes all queues of topics but so many, the first ones."""
        self.open(topics)
        if queues:
            self._open.update(dict.fromkeys(topics, queues))
        else:
            self._deleted.update(topics)

    def open(self, topics: Collection[int]) -> None:
        """Opens all queues of topics."""
        self._deleted.difference_update(topics)
        for topic in topics:
            self._open.pop(topic, None)

    def check(self, late: Iterable[int] | None) -> None:
        """`TopicNotFound` if a queue of a late put is closed; its key is topic id << 32 | queue."""
        for key in late or ():
            topic, queue = key >> 32, key & 0xFFFFFFFF
            if topic in self._deleted or queue >= self._open.get(topic, queue + 1):
                raise TopicNotFound(
                    "a topic was deleted, or lost a queue, while a message was put there; nothing "
                    "was put, try again"
                )
