"""The next offsets of queues, and their heads; see queue_offsets.pyx."""

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

@final
class QueueHeads:
    """The ends of queues as of the last checkpoint: next offsets, and the segments in which the
    last locations are (-1: none). A next offset below 0 is not kept.
    """

    def __init__(self) -> None: ...
    def __len__(self) -> int:
        """The number of queues known here, with those that are forgotten one by one."""

    def next_offset(self, queue: int) -> int | None:
        """A queue's next offset; None if it is not known."""

    def segment(self, queue: int) -> int | None:
        """A queue's segment; None if it is not known."""

    def note(self, queues: list[int], next_offsets: list[int], segments: list[int]) -> None:
        """Sets the ends of queues; `ValueError` for lists of several lengths, and a segment beyond
        32 bits.
        """

    def forget(self, queue: int) -> None:
        """A queue is not known any more."""

    def forget_all(self) -> None:
        """No queue is known any more."""

def count_closing(encoder: Encoder) -> None:
    """Lets the batches that were begun until now be late."""

def late_targets(batch: PreparedBatch, encoder: Encoder) -> list[int] | None:
    """The queue that each message of a late batch goes to, of one that waits the last: topic id
    << 32 | queue. None if no queue was closed since the batch was begun.
    """
