"""The order of an ordered group: which message groups have a locked or a parked message.

The idea: a message may be handed out when no earlier one of its message group is locked or parked.
So for each locked and each parked message its offset is known, and the hash of its message group
(messages without one belong to their queue). Parked messages of a queue are two arrays. A message
group is `ripe` when it is free and has parked messages.

Invariants: this agrees with the rows, from which it is made when the in-flight table is first used;
two message groups with the same hash are kept in order as if they were one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from xxhash import xxh3_64_intdigest

from kvstore.index.keys import LockKey
from kvstore.message import StoredMessage
from kvstore.pop.inflight.lock_rows import Lock, offsets_of

Read = Callable[[int, list[int]], Iterable[StoredMessage]]
"""Reads the messages of a queue at these offsets, without the lost ones."""
LockRows = Iterable[tuple[LockKey, Lock]]


def group_hash(message: StoredMessage) -> int:
    """The 64-bit hash of a message's group."""
    name = message.message_group
    text = f"queue {message.queue}" if name is None else f"group {name}"
    return xxh3_64_intdigest(text.encode())


class _Parked:
    """The parked messages of a queue, by offset."""

    __slots__ = ("hashes", "offsets")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.hashes = array("Q")


class Order:
    """The locked and parked messages by message group; see the module."""

    def __init__(self) -> None:
        self.ripe: set[int] = set()
        self._locked: dict[tuple[int, int], int] = {}
        self._busy: dict[int, list[tuple[int, int]]] = {}
        """Message group -> queue and offset of its locked messages, in order: mostly one."""
        self._waiting: Counter[int] = Counter()
        self._parked: dict[int, _Parked] = {}

    @classmethod
    def of(cls, locked: LockRows, parked: LockRows, read: Read) -> Order:
        """The order that these rows of an in-flight table give."""
        order = cls()
        for key, lock in locked:
            for message in read(key.queue, offsets_of(key.first, lock.locked)):
                order.lock(key.queue, message.offset, group_hash(message))
        for key, lock in parked:
            for message in read(key.queue, offsets_of(key.first, lock.locked)):
                order.park(key.queue, message.offset, group_hash(message))
        return order

    # --- what may be handed out ---

    def is_free(self, hashed: int) -> bool:
        """Whether a message of this group that comes behind all others may be handed out."""
        return hashed not in self._busy and hashed not in self._waiting

    def rivals(self, queue: int, offset: int) -> list[tuple[int, int]]:
        """All locked messages, this one included, of a locked message's group, in order: one,
        unless they were locked while the group was not an ordered one.
        """
        hashed = self._locked.get((queue, offset))
        return [] if hashed is None else self._busy[hashed]

    def heads(self, queue: int | None) -> Iterator[tuple[int, int, int]]:
        """Queue, offset and hash of the first parked message of each ripe message group."""
        left = set(self.ripe)
        for number in list(self._parked) if queue is None else [queue]:
            parked = self._parked.get(number)
            if parked is None:
                continue
            for offset, hashed in zip(parked.offsets, parked.hashes, strict=True):
                if not left:
                    return
                if hashed in left:
                    left.discard(hashed)
                    yield number, offset, hashed

    def parked_in(self, queue: int) -> int:
        """How many messages of a queue are parked."""
        parked = self._parked.get(queue)
        return 0 if parked is None else len(parked.offsets)

    def block(self, queue: int, first: int, size: int) -> list[int]:
        """The parked offsets of a queue from `first` to before `first` + `size`."""
        parked = self._parked.get(queue)
        if parked is None:
            return []
        offsets = parked.offsets
        start, end = bisect_left(offsets, first), bisect_left(offsets, first + size)
        return list(offsets[start:end])

    # --- changes ---

    def lock(self, queue: int, offset: int, hashed: int) -> None:
        """A message was locked."""
        self._locked[queue, offset] = hashed
        insort(self._busy.setdefault(hashed, []), (queue, offset))
        self.ripe.discard(hashed)

    def free(self, queue: int, offset: int) -> bool:
        """Removes a done message; True if another one may be handed out by that."""
        hashed = self._locked.pop((queue, offset), None)
        if hashed is None:
            return False
        busy = self._busy[hashed]
        busy.remove((queue, offset))
        if busy:
            return True
        del self._busy[hashed]
        return self._ripen(hashed)

    def park(self, queue: int, offset: int, hashed: int) -> None:
        """Adds a message that was passed over, or put back."""
        parked = self._parked.setdefault(queue, _Parked())
        at = bisect_left(parked.offsets, offset)
        parked.offsets.insert(at, offset)
        parked.hashes.insert(at, hashed)
        self._waiting[hashed] += 1
        self._ripen(hashed)

    def unpark(self, queue: int, offset: int) -> None:
        """Removes a parked message that was locked, or is gone."""
        parked = self._parked[queue]
        at = bisect_left(parked.offsets, offset)
        hashed = parked.hashes[at]
        del parked.offsets[at], parked.hashes[at]
        if not parked.offsets:
            del self._parked[queue]
        self._waiting[hashed] -= 1
        if not self._waiting[hashed]:
            del self._waiting[hashed]
        self.ripe.discard(hashed)
        self._ripen(hashed)

    def _ripen(self, hashed: int) -> bool:
        if hashed in self._waiting and hashed not in self._busy:
            self.ripe.add(hashed)
            return True
        return False
