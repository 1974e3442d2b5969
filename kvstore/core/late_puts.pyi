"""Batches that were begun before a queue was closed; see late_puts.pyx."""

from kvstore.core.encoding import Encoder, PreparedBatch

def count_closing(encoder: Encoder) -> None:
    """Lets the batches that were begun until now be late."""

def late_targets(batch: PreparedBatch, encoder: Encoder) -> list[int] | None:
    """The queue that each message of a late batch goes to, of one that waits the last: topic id
    << 32 | queue. None if no queue was closed since the batch was begun.
    """
