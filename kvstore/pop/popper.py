"""Wires the parts of popping together for one open store.

The idea: pop, ack and the dead letters share the in-flight tables, the receipts and the waiters.
Other changes to offsets, topics and groups have to take the locks along: they do so by the hooks
that this module sets.

Invariant: the rows of `locks` go with their group or topic, and with a reset, in the same
WriteBatch.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from kvstore.clock import Clock
from kvstore.errors import GroupNotFound, InFlight, TopicNotFound
from kvstore.index.families import Batch, Families
from kvstore.index.keys import (
    LOCKS,
    META,
    RECEIPT_SECRET,
    U32,
    behind,
    lock_key,
    lock_prefix,
    read_lock_key,
)
from kvstore.meta.groups import GroupInfo, Groups
from kvstore.meta.offsets import Commit, Offsets
from kvstore.meta.topics import Topic, TopicInfo, Topics
from kvstore.pop.ack import Settle
from kvstore.pop.dead_letters import DeadLetters, Put
from kvstore.pop.fast_path import Quick
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.inflight.tables import ENDED_MAX, InflightTables
from kvstore.pop.inflight.waiting import Waiting
from kvstore.pop.pop import Pop
from kvstore.pop.receipts import Receipts
from kvstore.pop.redrive import Redrive
from kvstore.read.find import Finder
from kvstore.read.reader import Reader

_SECRET_BYTES: Final = 32


class Popper:
    """The parts of popping in an open store; see the module."""

    def __init__(
        self,
        families: Families,
        reader: Reader,
        finder: Finder,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        clock: Clock,
        waiting: Waiting,
        put: Put,
    ) -> None:
        self._families = families
        self._groups = groups
        self._topics = topics
        receipts = Receipts(_secret(families))
        nonces = itertools.count(secrets.randbits(62))
        self.waiting = waiting
        self.flights = InflightTables(families, offsets, reader.bounds)
        dead_letters = DeadLetters(reader, finder, topics, put)
        self.quick = Quick(
            families, reader, offsets, self.flights, receipts, waiting, clock, nonces
        )
        self.pop = Pop(
            families,
            reader,
            offsets,
            self.flights,
            receipts,
            self.waiting,
            dead_letters,
            clock,
            nonces,
            self._still_there,
            self._topic_of,
        )
        self.settle = Settle(
            families,
            self.flights,
            receipts,
            self.waiting,
            clock,
            nonces,
            groups.by_id,
            self.pop.counted,
            self.pop.bury,
        )
        self.redrive = Redrive(
            families,
            reader,
            finder,
            topics,
            offsets,
            self.flights,
            self.waiting,
            clock,
            nonces,
            put,
            self.pop.goes_on,
        )
        groups.removing.append(self._removing_group)
        groups.removed.append(lambda info: self._end(self.flights.forget_group(info.id)))
        topics.removing.append(self._removing_topic)
        topics.removed.append(lambda info: self._end(self.flights.forget_topic(info.id)))
        offsets.resetting.append(self._resetting)

    def _end(self, flights: list[InflightTable]) -> None:
        """Wakes the waiters of tables that are gone: they learn that the group or topic is."""
        for flight in flights:
            self.waiting.freed(flight, len(flight.waiters))
        for group in {flight.group for flight in flights}:
            self.waiting.made_room(group)

    def _still_there(self, group: GroupInfo, topic: Topic) -> tuple[GroupInfo, Topic]:
        """A group and a topic as they are now; `GroupNotFound`, `TopicNotFound` if they were
        deleted.
        """
        known, used = self._groups.get(group.name), self._topics.get(topic.name)
        if known.id != group.id:
            raise GroupNotFound(f"group {group.name!r} was deleted meanwhile, and made anew")
        if used.id != topic.id:
            raise TopicNotFound(f"topic {topic.name!r} was deleted meanwhile, and made anew")
        return known, used

    def _topic_of(self, number: int) -> Topic | None:
        """The topic with an id; None if it was deleted."""
        name = self._topics.name_of(number)
        with suppress(TopicNotFound):
            return None if name is None else self._topics.get(name)
        return None

    # --- other changes that take locks along ---

    def _removing_group(self, batch: Batch, group: GroupInfo) -> None:
        batch.delete_range(LOCKS, U32.pack(group.id), U32.pack(group.id + 1))

    def _removing_topic(self, batch: Batch, topic: TopicInfo) -> None:
        # One seek for each group that has any locks.
        it, families, group = self._families.iter(LOCKS), self._families, 0
        while True:
            it.seek(lock_prefix(group, topic.id))
            if not families.valid(it):
                return
            key = read_lock_key(it.key())
            if key.topic == topic.id:
                prefix = lock_prefix(key.group, topic.id)
                batch.delete_range(LOCKS, prefix, behind(prefix))
            elif key.topic < topic.id:
                group = key.group
                continue
            group = key.group + 1

    @contextmanager
    def _resetting(
        self, batch: Batch, group: GroupInfo, topic: Topic, offsets: Mapping[int, int]
    ) -> Iterator[None]:
        with (
            self.pop.counted(group),
            self.flights.flying(group.id, topic.id) as flight,
        ):
            ended: dict[int, int] = {}
            read = {queue: self.flights.next_of(flight, queue) for queue in offsets}
            for key, lock in itertools.chain(flight.all(), flight.parked()):
                if key.queue in offsets:
                    batch.delete(LOCKS, lock_key(*key))
                    if len(ended) < ENDED_MAX:
                        ended[lock.nonce] = lock.locked | lock.moved
            try:
                yield
            finally:
                self.flights.reload(flight)
            for nonce, bad in ended.items():
                self.flights.end(nonce, bad)
            for queue, offset in offsets.items():
                if offset < read[queue]:
                    self.flights.set_back(group.id, topic.id, queue, offset)
            self.waiting.made_room(group.id)
            self.waiting.freed(flight, len(flight.waiters))

    @contextmanager
    def committing(self, commits: Collection[Commit]) -> Iterator[None]:
        """Around committing offsets, which `InFlight` refuses where messages are locked."""
        with ExitStack() as held:
            flights: dict[tuple[int, int], InflightTable] = {}
            for group, topic in sorted({(c.group, c.topic) for c in commits}):
                # Also where there is no table yet: a first pop must not come in between.
                flights[group, topic] = held.enter_context(self.flights.flying(group, topic))
            for group, topic, queue, offset in commits:
                used = flights.get((group, topic))
                if used is not None and used.lowest(queue) is not None:
                    raise InFlight(
                        f"offset {offset} can't be committed: messages of queue {queue} are locked "
                        "by this group; ack them, or use reset_offset"
                    )
            back = [c for c in commits if self.flights.ended and self._goes_back(c)]
            yield
            for commit in back:
                self.flights.set_back(*commit)
            for group, topic, queue, _ in commits:
                if (group, topic) in flights:
                    flights[group, topic].forget_next(queue)

    def _goes_back(self, commit: Commit) -> bool:
        """Whether a commit makes done messages unread again."""
        flight = self.flights.find(commit.group, commit.topic)
        return flight is not None and commit.offset < self.flights.next_of(flight, commit.queue)


def _secret(families: Families) -> bytes:
    """The secret that signs the store's receipts; made once."""
    found = families.get(META, RECEIPT_SECRET)
    if found is None:
        found = secrets.token_bytes(_SECRET_BYTES)
        batch = families.batch()
        batch.put(META, RECEIPT_SECRET, found)
        families.write(batch, sync=True)
    return found
