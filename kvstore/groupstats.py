"""Figures about a group in a topic: what `Store.group_stats`, `kvmq top` and `kvmq work` go by.

The idea: everything is read from rows (offsets, locks), none of it from what an open store knows in
memory: so a store that is opened read-only beside a writer has the same figures.

Invariant: nothing is changed; a message is counted as unread, in flight or done, once; what
retention took away is done.
"""

from __future__ import annotations

import msgspec

from kvstore.consume.at import first_at
from kvstore.consume.locks import unpack_lock
from kvstore.consume.reader import Reader
from kvstore.errors import TopicNotFound
from kvstore.index.families import Families
from kvstore.index.keys import LOCKS, PARKED, behind, lock_prefix, read_lock_key
from kvstore.meta.groups import GroupInfo
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topic, Topics


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a topic, counted in messages over all queues.

    `end`: put so far. `taken`: handed out, or passed over by a filter, once at least. `unread`: not
    yet handed out. `in_flight`: handed out and not done; of these the lock of `due` has run out,
    and `redelivered` were handed out more than once. `lag`: unread and in flight together. (That of
    `Store.lag` counts all behind the committed offset, what was acked out of turn too.)
    `oldest_due`: when the first lock runs out, or did, ms since the epoch; None if there is none.
    `dead_letters`: of this group, from all topics, that were neither taken nor put back.
    """

    group: str
    topic: str
    end: int
    taken: int
    unread: int
    in_flight: int
    due: int
    redelivered: int
    lag: int
    oldest_due: int | None
    dead_letters: int


class _Locked:
    """What the lock rows of a flight say."""

    def __init__(
        self, families: Families, group: int, topic: int, now: int, lowest: dict[int, int]
    ) -> None:
        """`lowest` is what the queues begin with: what stood before that counts no more."""
        self.messages = self.due = self.redelivered = self.parked = 0
        self.oldest_due: int | None = None
        prefix = lock_prefix(group, topic)
        for raw, value in families.rows(LOCKS, prefix, behind(prefix)):
            key, lock = read_lock_key(raw), unpack_lock(value)
            gone = max(0, lowest.get(key.queue, 0) - key.first)
            count = (lock.locked >> gone).bit_count()
            if not count:
                continue
            if key.due == PARKED:
                self.parked += count
                continue
            if self.oldest_due is None:
                self.oldest_due = key.due
            self.messages += count
            self.due += count if key.due <= now else 0
            self.redelivered += count if lock.attempts > 1 else 0


def collect_group(
    families: Families,
    reader: Reader,
    topics: Topics,
    offsets: Offsets,
    group: GroupInfo,
    topic: Topic,
    now: int,
) -> GroupStats:
    """Look once."""
    end = taken = unread = 0
    lowest: dict[int, int] = {}
    for queue in range(topic.read_queues):
        bounds = reader.bounds(topic.base + queue)
        lowest[queue] = bounds.min_offset
        following = offsets.get(group.id, topic.id, queue, bounds)
        if following is None:
            following = start_of(reader, offsets, group, topic, queue)
        else:
            taken += following
        end += bounds.next_offset
        unread += bounds.next_offset - max(following, bounds.min_offset)
    locked = _Locked(families, group.id, topic.id, now, lowest)
    unread += locked.parked
    return GroupStats(
        group=group.name,
        topic=topic.name,
        end=end,
        taken=taken - locked.parked,
        unread=unread,
        in_flight=locked.messages,
        due=locked.due,
        redelivered=locked.redelivered,
        lag=unread + locked.messages,
        oldest_due=locked.oldest_due,
        dead_letters=_dead_letters(reader, topics, offsets, group),
    )


def start_of(reader: Reader, offsets: Offsets, group: GroupInfo, topic: Topic, queue: int) -> int:
    """Where a group begins in a queue in which it never committed."""
    bounds = reader.bounds(topic.base + queue)
    if group.start == "begin":
        return bounds.min_offset
    if group.start == "end":
        return offsets.behind(topic.base + queue, group.since, bounds)
    return first_at(reader, topic, queue, group.start, group.name)


def _dead_letters(reader: Reader, topics: Topics, offsets: Offsets, group: GroupInfo) -> int:
    try:
        letters = topics.get(group.dead_letters)
    except TopicNotFound:
        return 0
    count = 0
    for queue in range(letters.read_queues):
        bounds = reader.bounds(letters.base + queue)
        taken = offsets.get(group.id, letters.id, queue, bounds)
        count += bounds.next_offset - max(taken or 0, bounds.min_offset)
    return count
