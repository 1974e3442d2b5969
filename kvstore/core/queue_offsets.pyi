"""The next offsets of queues; see queue_offsets.pyx."""

from collections.abc import Callable
from typing import final

@final
class QueueOffsets:
    """The next offset of each queue that was put to."""

    def __init__(self, end: Callable[[int], int]) -> None:
        """`end` gives the next offset of a queue that is not known here."""

    def __len__(self) -> int:
        """The number of queues known here."""

    def forget(self, queue: int) -> None:
        """Asks `end` again for a queue."""

    def forget_all(self) -> None:
        """Asks `end` again for all queues."""
