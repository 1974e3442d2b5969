"""Reads messages ahead, for the pops to come.

The idea: reading many messages at once costs a third of reading each when it is wanted. So an
in-flight table keeps, per queue, a list of the next messages, the next one last: taking a message
takes the end of the list.

Invariants: a list has consecutive offsets; nothing that left the log or its place since it was read
is handed out, because it may be erased; a pop that takes from it has seen that it begins where
its queue goes on, so nothing has to be undone when the queue's next offset is set otherwise.
"""

from __future__ import annotations

from typing import Final

from kvstore.errors import ArchiveUnavailable
from kvstore.message import StoredMessage
from kvstore.meta.topics import Topic
from kvstore.pop.inflight.table import InflightTable
from kvstore.read.cold import READ_ERRORS
from kvstore.read.pull import take
from kvstore.read.reader import Reader

AHEAD: Final = 1024
_AHEAD_BYTES: Final = 512 << 10
"""Behind the messages that a pop wants, a topic has at most `AHEAD` messages, and this many bytes,
read ahead.
"""


def prefetch(
    table: InflightTable,
    reader: Reader,
    topic: Topic,
    queue: int,
    at: int,
    count: int,
    max_bytes: int | None = None,
) -> list[StoredMessage]:
    """A table's list for a queue that goes on at `at`. Both `at` and `at` + `count` - 1 are inside
    the bounds. The list has `count` messages, and more if they are small. It has fewer only where
    damage or messages that are not held any more follow, or where `count` messages exceed
    `max_bytes`. It begins behind `at` if that message is not held. Raises every error of reading.
    """
    kept = table.ahead(queue, reader.mark())
    if not kept or kept[-1].offset != at:
        kept = []
    wanted = count - len(kept)
    most = min(AHEAD, _AHEAD_BYTES // table.message_bytes) // topic.read_queues
    first = kept[0].offset + 1 if kept else at
    room = max(max_bytes or 0, _AHEAD_BYTES // topic.read_queues)
    found = take(reader, topic, queue, first, max(wanted, most), room)
    if not found or (kept and found[0].offset != first):
        return kept
    if max_bytes is None and len(found) < wanted and found[-1].offset == first + len(found) - 1:
        # The caller wants these, whatever their size; only what comes behind them is bounded.
        found += _rest(reader, topic, queue, found[-1].offset + 1, wanted - len(found))
    if found[-1].offset - found[0].offset != len(found) - 1:
        del found[_before_gap(found) :]
    table.message_bytes = max(1, sum(m.size for m in found) // len(found))
    found.reverse()
    found += kept
    table.prefetched[queue] = found
    return found


def _rest(reader: Reader, topic: Topic, queue: int, at: int, count: int) -> list[StoredMessage]:
    """Up to `count` messages from `at` on, to damage; none if the first of them can't be read."""
    try:
        return take(reader, topic, queue, at, count, None)
    except (*READ_ERRORS, ArchiveUnavailable):
        return []


def _before_gap(messages: list[StoredMessage]) -> int:
    """How many messages come before the first gap."""
    first = messages[0].offset
    return next(i for i, m in enumerate(messages) if m.offset != first + i)
