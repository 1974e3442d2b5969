"""The two steps that make up nearly all of popping, written for speed.

The idea: mostly nothing is due, messages were read ahead, and a row is acked as a whole, as it was
popped. Then a pop is one row and one offset, and an ack one deletion; what the row is need not be
read again, because whoever else changes rows of a flight says so by its `epoch`. Everything else is
left to `claim` and `settle`, which do the same at two to three times the cost.

Invariant: what is done here is exactly what `claim` and `settle` would have done.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from kvstore.clock import Clock
from kvstore.consume.flight import Flight
from kvstore.consume.flights import Flights
from kvstore.consume.locks import pack_fresh
from kvstore.consume.popped import Popped, Wanted
from kvstore.consume.receipts import Delivery, Receipts
from kvstore.consume.waiting import Waiting
from kvstore.index.families import Families
from kvstore.index.keys import LOCKS, LockKey, lock_key
from kvstore.meta.groups import GroupInfo
from kvstore.meta.offsets import Offsets
from kvstore.meta.topic import Topic


class Quick:
    """See the module."""

    def __init__(
        self,
        families: Families,
        offsets: Offsets,
        flights: Flights,
        receipts: Receipts,
        waiting: Waiting,
        clock: Clock,
        nonces: Iterator[int],
    ) -> None:
        self._families = families
        self._offsets = offsets
        self._flights = flights
        self._receipts = receipts
        self._waiting = waiting
        self._clock = clock
        self._nonces = nonces

    def pop(
        self, flight: Flight, group: GroupInfo, topic: Topic, wanted: Wanted
    ) -> list[Popped] | None:
        """A claim on what was read ahead; None if there is more to be done. The flight's lock is
        held.
        """
        now, limit = self._clock.now_ms(), wanted.limit
        queue = flight.turn % topic.read_queues if wanted.queue is None else wanted.queue
        ahead = flight.ahead.get(queue)
        if (
            ahead is None
            or len(ahead) < limit
            or flight.next.get(queue) != ahead[-1].offset
            or ahead[-limit].offset - ahead[-1].offset != limit - 1
            or flight.may_be_due(now)
            or flight.has_parked
            or topic.is_priority
        ):
            return None
        last = ahead[-1]
        first = last.offset
        due = now + wanted.invisible_ms
        if group.backoff and group.max_attempts > 1:
            due += round(group.backoff_after(1) * 1000)
        locked, nonce = (1 << limit) - 1, next(self._nonces)
        key = LockKey(flight.group, flight.topic, due, queue, first)
        raw_key = lock_key(*key)
        batch = self._families.batch()
        batch.put(LOCKS, raw_key, pack_fresh(self._offsets.recoveries, nonce, locked))
        self._offsets.stage_next(batch, flight, queue, first + limit, now)
        self._families.write(batch)
        flight.next[queue] = first + limit
        if wanted.queue is None:
            flight.turn += 1
        flight.added(key, limit)
        delivery = Delivery(key, nonce)
        delivery.raw_key, delivery.epoch = raw_key, flight.epoch
        receipts = self._receipts.make(delivery, locked)
        if limit == 1:
            ahead.pop()
            return [Popped(last, receipts[0], 1, due)]
        messages = ahead[: -limit - 1 : -1]
        del ahead[-limit:]
        return list(map(Popped, messages, receipts, repeat(1), repeat(due)))

    def ack(self, delivery: Delivery) -> bool:
        """Ack all of a row, if nobody has touched it since it was popped; False if that is not
        known.
        """
        key = delivery.key
        flight = self._flights.get(key.group, key.topic)
        with flight.lock:
            if delivery.epoch != flight.epoch or flight.gone or flight.order is not None:
                return False
            self._families.delete(LOCKS, delivery.raw_key)
            delivery.epoch = -1
            flight.removed(key, len(delivery.receipts))
            self._flights.end(delivery.nonce, 0)
            if flight.capped:
                self._waiting.made_room(flight.group)
        return True
