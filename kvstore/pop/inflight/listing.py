"""Messages in flight as values, listed a page at a time.

The idea: a page is read off the lock rows, the lock that ends first in each topic at the top. The
rows are read under the table's lock, the messages without it, since those may be in an archive.

Invariants: a look changes nothing; a page has at most `limit` messages, and none twice, and no more
bytes than `PAGE_BYTES` beside the first; a message
that is under lock from the first page to the last is on one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from kvstore.errors import CallerError, StoreError, shown
from kvstore.index.keys import PARKED, LockKey
from kvstore.message import StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic, Topics
from kvstore.pop.inflight.lock_rows import offsets_of
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import InflightTables
from kvstore.read.pull import PAGE_BYTES
from kvstore.read.reader import Reader

PAGE_MAX: Final = 10_000

Place = tuple[int, int, int, int, int]
"""Where a page ended: topic, due time, queue and first offset of a row, and an offset in it."""
_START: Final[Place] = (0, 0, 0, 0, -1)
_LARGEST: Final[Place] = ((1 << 32) - 1, PARKED - 1, (1 << 32) - 1, (1 << 64) - 1, (1 << 64) - 1)


class InFlightMessage(msgspec.Struct, frozen=True):
    """A message that a group was handed and is not done with: the attempt that was its last, when
    it is due again unless it is acked (ms since the epoch; in the past: it waits to be taken), and
    why it was given back last. `message` and its id are None if it can't be read now.
    """

    group: str
    topic: str
    queue: int
    offset: int
    attempt: int
    due_at: int
    reason: str
    message_id: str | None
    message: StoredMessage | None


class InFlightPage(msgspec.Struct, frozen=True):
    """Messages in flight, by topic the next due first. `count` is how many there are in all, in the
    topic that was asked for; `next` is what the next page is asked for with, None if this is the
    last. A page has up to 64 MiB of messages, or one: it may have fewer than were asked for.
    """

    messages: list[InFlightMessage]
    count: int
    next: Place | None


class _Seen(NamedTuple):
    """A message in a lock row."""

    topic: Topic
    offset: int
    key: LockKey
    attempt: int
    reason: bytes


@dataclass(frozen=True, slots=True)
class InFlightList:
    """Lists the messages that groups have under lock."""

    reader: Reader
    topics: Topics
    tables: InflightTables

    def page(
        self, group: GroupInfo, topic: Topic | None, limit: object, after: object
    ) -> InFlightPage:
        """See `Store.in_flight`."""
        size, place = _check_page(limit, after)
        seen, count = list[_Seen](), 0
        for used in self._topics(group, topic):
            with self.tables.locked(group.id, used.id) as table:
                low = [
                    self.reader.bounds(used.base + q).min_offset for q in range(used.read_queues)
                ]
                count += sum(table.held_from(queue, first)[0] for queue, first in enumerate(low))
                if used.id < place[0] or len(seen) > size:
                    continue
                since = place if used.id == place[0] else _START
                for one in _seen(table, used, since, low):
                    seen.append(one)
                    if len(seen) > size:
                        break
        found: list[InFlightMessage] = []
        room = PAGE_BYTES
        for one in seen[:size]:
            shown_one = self._shown(group, one)
            taken = 0 if shown_one.message is None else shown_one.message.size
            if found and taken > room:
                break
            found.append(shown_one)
            room -= taken
        ended = None
        if len(seen) > len(found):
            key, offset = seen[len(found) - 1].key, seen[len(found) - 1].offset
            ended = (key.topic, key.due, key.queue, key.first, offset)
        return InFlightPage(found, count, ended)

    def _topics(self, group: GroupInfo, topic: Topic | None) -> list[Topic]:
        """The topics in which a group has messages under lock, in the order of their ids."""
        if topic is not None:
            return [topic]
        ids = sorted(table.topic for table in self.tables.busy_tables(group.id))
        names = (self.topics.name_of(number) for number in ids)
        found = (self.topics.find(name) for name in names if name is not None)
        return [one for one in found if one is not None]

    def _shown(self, group: GroupInfo, seen: _Seen) -> InFlightMessage:
        key = seen.key
        message: StoredMessage | None = None
        try:
            message = self.reader.get(seen.topic, key.queue, seen.offset)
        except StoreError:
            self.reader.check_open()  # else it is damaged, or its archive is not at hand
        return InFlightMessage(
            group.name,
            seen.topic.name,
            key.queue,
            seen.offset,
            seen.attempt,
            key.due,
            seen.reason.decode("utf-8", "replace"),
            None if message is None else message.message_id,
            message,
        )


def _seen(table: InflightTable, topic: Topic, place: Place, low: list[int]) -> Iterator[_Seen]:
    """The messages under lock behind a place that their queues hold."""
    _, due, queue, first, last = place
    for key, lock in table.rows_from(due, queue, first):
        locked = lock.locked & table.held(key.queue, key.first, lock.locked.bit_length())
        start = low[key.queue] if key.queue < len(low) else key.first
        if key[2:] == (due, queue, first):
            start = max(start, last + 1)
        for offset in offsets_of(key.first, locked):
            if offset >= start:
                yield _Seen(topic, offset, key, lock.attempts, lock.reason)


def _check_page(limit: object, after: object) -> tuple[int, Place]:
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise CallerError(f"limit is {shown(limit)}; it must be 1 to {PAGE_MAX}")
    if after is None:
        return limit, _START
    match after:
        case [int(), int(), int(), int(), int()] as place if all(
            type(n) is int and 0 <= n <= most for n, most in zip(place, _LARGEST, strict=True)
        ):
            topic, due, queue, first, offset = place
            return limit, (topic, due, queue, first, offset)
    raise CallerError(f"after is {shown(after)}; it must be the `next` of a page before, or None")
