"""In which order a pop looks at a topic's queues.

The idea: the order turns with each pop, so none starves another. In a topic of kind `priority` a
queue's number is its priority, and the highest comes first; every fourth pop begins with one of the
others, in turn, so that these go on too. (RocketMQ's RIP-80 has the queue-per-priority idea.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHARE: Final = 4
"""One pop in so many begins with a lower priority."""


def order(queues: int, turn: int, *, priority: bool) -> Sequence[int]:
    """The queues from 0 to `queues` - 1 in the order of this turn (0, 1, 2, ...)."""
    if not priority:
        first = turn % queues
        return range(queues) if not first else (*range(first, queues), *range(first))
    highest_first = range(queues - 1, -1, -1)
    if queues == 1 or turn % SHARE != SHARE - 1:
        return highest_first
    favoured = turn // SHARE % (queues - 1)
    return (favoured, *(q for q in highest_first if q != favoured))
