"""Replay: adding the records that recovery or a rebuild found to the index tail.

The idea: a put adds entries to the tail while it writes; replay adds the same entries from the log
afterwards. Ordinary queues go on where the index ends. An offset that doesn't follow is a gap where
damage was skipped; elsewhere it is a flipped bit, in this record or in the one before, and the
queue's next record tells which.

Invariants: a message that was found by a key when it was put is found by it again; an entry's
offset is the one written in the record; an offset that the index has already is not added again;
records that are not indexed are listed in `refused`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from kvstore.core.hashing import xxh32
from kvstore.index.index import Index
from kvstore.record.facts import delay_level_of, facts, names_of
from kvstore.record.hashes import tags_code
from kvstore.record.names import PREPARED, ROLLBACK, SCHEDULE_TOPIC, TRANSACTION_MASK

if TYPE_CHECKING:
    from kvstore.record.check import Buffer


_CODES_CACHED_MAX: Final = 4096
_ALL_KEYS: Final = 2

_Row = tuple[int, int, int, int, int, int]
"""Queue key, offset, position, size, tag hash, store time."""


class ReplayTopic(Protocol):
    """The facts of a topic that replay needs."""

    name: str
    base: int
    since: int
    hash_byte: int
    key_level: int
    """The keys that its key index takes: 0 nothing, 1 the unique id, 2 all keys as well."""
    keys_ever: bool
    """Whether it takes anything, or ever did."""

    def key_level_at(self, position: int) -> int:
        """Which keys the topic indexes of a record at a position: by its setting of then, or of
        now.
        """
        ...


class Replay:
    """Records of a log on their way into the tail."""

    def __init__(
        self,
        index: Index,
        topic_of: Callable[[bytes, int, int], ReplayTopic | None],
        on_gap: Callable[[], None],
    ) -> None:
        self._index = index
        self._topic_of = topic_of
        self._on_gap = on_gap
        self.entries = 0
        self.keys = 0
        self.gaps_expected = False
        """Whether damage was passed over: only then may a queue's offsets jump."""
        self.gone_records = 0
        """How many records may have stood in segments that left the log behind the beginning of
        this replay: the offsets of a queue may jump by so many, where no place tells of it.
        """
        self.is_anew = False
        """Whether the log is replayed from its beginning: a queue's first record may follow on what
        is not in the log any more, wherever that ended.
        """
        self.before_archives: set[int] = set()
        """Queues of which entries came before some that archives have: they end behind those."""
        self.refused: list[tuple[int, int, int, int]] = []
        """Records that were not indexed: position, size, offset, and the offset that was due."""
        self._held: dict[int, _Row] = {}
        self.last_stored = 0
        """The newest store time so far: an entry's is never below it, so that times rise in a run
        even where a clock was stepped back while another program wrote the log. """
        self._known: dict[tuple[bytes, int], ReplayTopic] = {}
        self._codes: dict[bytes, int] = {b"": 0}
        self._following: dict[int, int] = {}
        """The next offset of each queue that has entries since the last checkpoint."""
        self._rows: list[int] = []
        self._keys: list[int] = []

    def add(self, buffer: Buffer, base: int, positions: array[int], sizes: array[int]) -> None:
        """Add checked records, in log order."""
        known = self._known
        for position, size in zip(positions, sizes, strict=True):
            raw, queue, offset, flags, stored_at, properties = facts(buffer, position - base, size)
            self.last_stored = max(self.last_stored, stored_at)
            topic = known.get((raw, queue))
            if topic is None:
                topic = self._topic_of(raw, queue, position)
                if topic is None:
                    continue
                self._index.set_topic_byte(topic.base >> 32, topic.hash_byte)
                known[raw, queue] = topic
            if position < topic.since:
                continue
            unique, keys, tag = names_of(properties)
            kind = flags & TRANSACTION_MASK
            if kind not in (PREPARED, ROLLBACK):
                code = self._code(topic, tag, stored_at, properties)
                self._add_entry(topic.base + queue, offset, position, size, code)
            if kind != ROLLBACK and topic.keys_ever:
                self._add_keys(topic, queue, position, unique, keys)
        self._fill_tail()

    def _code(self, topic: ReplayTopic, tag: bytes, stored_at: int, properties: bytes) -> int:
        if topic.name == SCHEDULE_TOPIC:
            level = delay_level_of(properties)
            return tags_code(topic.name, tag.decode("utf-8", "replace"), level, stored_at)
        code = self._codes.get(tag)
        if code is None:
            code = tags_code(topic.name, tag.decode("utf-8", "replace"), None, stored_at)
            if len(self._codes) < _CODES_CACHED_MAX:
                self._codes[tag] = code
        return code

    def _add_entry(self, key: int, offset: int, position: int, size: int, code: int) -> None:
        """Add an entry, or hold it back until the queue's next one tells whether it is right."""
        row = (key, offset, position, size, code, self.last_stored)
        following = self._end(key)
        held = self._held.pop(key, None)
        if held is not None:
            if offset == held[1] + 1:
                self._take(held)  # two that agree: the gap is before them
                self._take(row)
                return
            self._refuse(held, following)
            if offset == following + 1:
                self._take(row)  # the held-back one should have been at `following`
                return
        is_gap = offset > following and (self.gaps_expected or not following)
        if offset == following or is_gap or self._is_beside_archives(key, offset, following):
            self._take(row)
        else:
            self._held[key] = row

    def _is_beside_archives(self, key: int, offset: int, following: int) -> bool:
        """Whether an entry may be where it is because other entries of its queue are in archives,
        before or behind it: an erasure moves segments out of turn. Archives get their locations
        before replay.
        """
        if not self.is_anew:
            return False
        if key not in self._following and offset > following:
            return True
        archived = self._index.locations.archived(key)
        if key not in self._following:
            self.before_archives.update([key] if archived else ())
            return bool(archived)
        at = bisect_left(archived, following)
        return at < len(archived) and archived[at] <= offset

    def _end(self, key: int) -> int:
        found = self._following.get(key)
        return self._index.end(key) if found is None else found

    def _take(self, row: _Row) -> None:
        key, offset = row[:2]
        if offset != self._end(key) and key in self._following:
            self._on_gap()
        self._following[key] = offset + 1
        self.entries += 1
        self._rows += row

    def _refuse(self, row: _Row, due: int) -> None:
        self.refused.append((row[2], row[3], row[1], due))

    def finish(self) -> None:
        """Decide about the entries that are held back, and put everything into the tail, before a
        checkpoint.
        """
        for key, row in self._held.items():
            following = self._end(key)
            # No later record contradicts it.
            if 0 < row[1] - following <= self.gone_records:
                self._take(row)
            else:
                self._refuse(row, following)
        self._held.clear()
        self._fill_tail()

    def _add_keys(
        self, topic: ReplayTopic, queue: int, position: int, unique: bytes, keys: list[bytes]
    ) -> None:
        key_level = (
            topic.key_level if topic.key_level == _ALL_KEYS else topic.key_level_at(position)
        )
        digests = {xxh32(unique)} if unique and key_level else set()
        if key_level == _ALL_KEYS:
            digests.update(map(xxh32, keys))
        for digest in digests:
            self._keys += (topic.base + queue, position, digest)
        self.keys += len(digests)

    def _fill_tail(self) -> None:
        """Put the collected entries into the tail."""
        tail = self._index.tails.active
        rows, keys = self._rows, self._keys
        tail.add(rows[0::6], rows[1::6], rows[2::6], rows[3::6], rows[4::6], rows[5::6])
        tail.add_digests(keys[0::3], keys[1::3], keys[2::3])
        self._rows, self._keys = [], []
