"""The dedup ids that were put lately; see known_ids.pyx."""

from collections.abc import Iterable
from typing import final

from kvstore.core.encoding import PreparedBatch

Found = tuple[int, int, int, str, str]
"""A row of a batch as it was given; the row before it that has its id, or -1; a position at which
the id may have been put, or -1; topic and id.
"""

@final
class KnownIds:
    """The ids put at or behind the time `since` (ms), and all that stand at `first_position` of the
    log or behind it.
    """

    since: int
    first_position: int

    def __init__(self, since: int, first_position: int, most: int) -> None:
        """Two generations have `most` ids each, and those of one put more."""

    def __len__(self) -> int:
        """How many there are, those among them whose window has passed."""

    def fetch(self, batch: PreparedBatch) -> None:
        """Begins to look for the ids of a batch, so that memory answers until `find` is called."""

    def find(self, batch: PreparedBatch, now: int, end: int) -> list[Found]:
        """Behind `fetch`, the rows of a batch whose ids are not known to be new: those that repeat
        another row, those that have a position here, and all whose window reaches behind `since`.
        The log ends at `end`. A row that was found before is found again only if its position has
        changed.
        """

    def add(self, batch: PreparedBatch) -> None:
        """Adds the ids of a batch, after `Tail.add`."""

    def arriving(self, newest: int, end: int) -> None:
        """Notes that messages come that are not put: ids of messages stored at `newest` or before,
        and below position `end`, may not be here.
        """

def drop_rows(batch: PreparedBatch, rows: Iterable[int]) -> None:
    """Takes rows, by their numbers as they were given, out of a batch that has dedup ids. Raises
    ValueError, with the batch as it was, after `Tail.add`.
    """
