"""Order: which message groups of an ordered group's flight are being worked on.

The idea: a message may be handed out when no earlier one of its message group is locked or parked.
So what is known of each locked and each parked message is its offset and the hash of its message
group (messages without one belong to their queue). Parked messages of a queue are two arrays; a
message group is `ripe` when it is free and has parked messages.

Invariants: what is here agrees with the rows, from which it is made when the flight is first used;
two message groups with the same hash are kept in order as if they were one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from xxhash import xxh3_64_intdigest

from kvstore.consume.flight import Flight
from kvstore.consume.locks import offsets_of
from kvstore.message import StoredMessage

Read = Callable[[int, list[int]], Iterable[StoredMessage]]
"""The messages of a queue at these offsets, those that are lost left out."""


def group_hash(message: StoredMessage) -> int:
    """What stands for a message's group; 64 bits."""
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
    """See the module."""

    def __init__(self) -> None:
        self.ripe: set[int] = set()
        self._locked: dict[tuple[int, int], int] = {}
        self._busy: Counter[int] = Counter()
        self._waiting: Counter[int] = Counter()
        self._parked: dict[int, _Parked] = {}

    @classmethod
    def of(cls, flight: Flight, read: Read) -> Order:
        """What the rows of a flight say."""
        order = cls()
        for key, lock in flight.all():
            for message in read(key.queue, offsets_of(key.first, lock.locked)):
                order.lock(key.queue, message.offset, group_hash(message))
        for key, lock in flight.parked():
            for message in read(key.queue, offsets_of(key.first, lock.locked)):
                order.park(key.queue, message.offset, group_hash(message))
        order.ripe = {hashed for hashed in order._waiting if not order._busy[hashed]}
        return order

    # --- what may be handed out ---

    def is_free(self, hashed: int) -> bool:
        """Whether a message of this group that comes behind all others may be handed out."""
        return not self._busy[hashed] and not self._waiting[hashed]

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
        self._busy[hashed] += 1
        self.ripe.discard(hashed)

    def free(self, queue: int, offset: int) -> bool:
        """A message is done; True if another one may be handed out by that."""
        hashed = self._locked.pop((queue, offset), None)
        if hashed is None:
            return False
        self._busy[hashed] -= 1
        return self._ripen(hashed)

    def park(self, queue: int, offset: int, hashed: int) -> None:
        """A message was passed; it comes behind all that are parked in its queue."""
        parked = self._parked.setdefault(queue, _Parked())
        parked.offsets.append(offset)
        parked.hashes.append(hashed)
        self._waiting[hashed] += 1

    def unpark(self, queue: int, offset: int) -> None:
        """A parked message was locked, or is gone."""
        parked = self._parked[queue]
        at = bisect_left(parked.offsets, offset)
        hashed = parked.hashes[at]
        del parked.offsets[at], parked.hashes[at]
        if not parked.offsets:
            del self._parked[queue]
        self._waiting[hashed] -= 1
        self.ripe.discard(hashed)
        self._ripen(hashed)

    def _ripen(self, hashed: int) -> bool:
        busy, waiting = self._busy[hashed], self._waiting[hashed]
        if not busy:
            del self._busy[hashed]
        if not waiting:
            del self._waiting[hashed]
        if waiting and not busy:
            self.ripe.add(hashed)
            return True
        return False
