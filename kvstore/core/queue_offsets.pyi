"""The next offsets of queues; see queue_offsets.pyx."""

from collections.abc import Callable
from typing import final

from kvstore.core.encoding import Encoder, PreparedBatch

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

def count_closing(encoder: Encoder) -> None:
    """Lets the batches that were begun until now be late."""

def late_targets(batch: PreparedBatch, encoder: Encoder) -> list[int] | None:
    """The queue that each message of a late batch goes to, of one that waits the last: topic id
    << 32 | queue. None if no queue was closed since the batch was begun.
    """
