"""Calls that read messages, by queue and offset, key, time, id and position."""

from __future__ import annotations

from kvstore.api.parts import Parts
from kvstore.message import Bounds, PullResult, StoredMessage
from kvstore.read.filters import compile_filter
from kvstore.read.pull import pull
from kvstore.read.sql import SqlFilter


class ReadCalls(Parts):
    """Calls that read and change nothing."""

    def get(self, topic: str, queue: int, offset: int) -> StoredMessage:
        """The message at an offset of a queue; `OffsetNotFound` (with the bounds) if it holds none
        there.
        """
        self._check_open()
        return self._reader.get(self._topics.get(topic), queue, offset)

    def pull(
        self,
        topic: str,
        queue: int,
        offset: int,
        limit: int = 32,
        *,
        max_bytes: int | None = None,
        filter: str | SqlFilter | None = None,
    ) -> PullResult:
        """Up to `limit` messages (and `max_bytes` of records, but at least one message) from an
        offset on.

        `filter` is a tag expression such as `"paid || shipped"`, or `kvstore.sql("amount > 5")`;
        `FilterIllegal` says where one is wrong. `next_offset` is where to go on, also when nothing
        was found: below the queue's bounds its first offset, behind them its next one."""
        self._check_open()
        return pull(
            self._reader,
            self._topics.get(topic),
            queue,
            offset,
            limit,
            max_bytes,
            compile_filter(filter),
        )

    def query(
        self,
        topic: str,
        key: str,
        begin: int | None = None,
        end: int | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Messages of a topic with a key (or unique id), newest first; `begin` and `end` bound the
        store time, ms, both included.
        """
        self._check_open()
        return self._finder.query(self._topics.get(topic), key, begin, end, limit)

    def read_at(self, position: int) -> StoredMessage:
        """The message whose record begins at a position of the log; `MessageNotFound`,
        `RecordDamaged`.
        """
        return self._reader.read_at(position)

    def find(self, message_id: str) -> StoredMessage:
        """The message with a unique id or a position id; `MessageNotFound`, and `ArchiveDamaged`
        where it may be in an archive that is damaged or missing.
        """
        return self._finder.find(message_id)

    def offset_at(self, topic: str, queue: int, time: int, *, upper: bool = False) -> int:
        """The first offset stored at or after a time (ms since the epoch); the next offset if there
        is none.

        With `upper` the last offset stored at or before it; 0 if there is none.
        """
        self._check_open()
        return self._reader.offset_at(self._topics.get(topic), queue, time, upper=upper)

    def bounds(self, topic: str, queue: int) -> Bounds:
        """A queue's first held offset and its next offset."""
        self._check_open()
        self._reader.look_again()
        return self._reader.bounds(self._topics.get(topic).key(queue))
