"""Pops messages, each under a lock of its own.

The idea: a claim looks for messages and collects the change that locks them; this module writes the
change and wakes waiters. A pop that finds nothing waits for a put, for a lock that runs out, or for
its time. (docs/pop.md)

Invariants: a message is handed out only after the WriteBatch that locks it was written. An
in-flight table's lock is held from the look to the write, and no longer than one claim takes, which
is bounded however many messages a filter refuses. Nothing is read from an archive under that lock:
a claim that needs an archive is put off until the messages are read, and looks again. A claim that
raised changed nothing; messages that earlier claims of the same pop had locked come back when these
locks run out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from kvstore.clock import Clock
from kvstore.errors import ArchiveMissing, ArchiveUnavailable, PutRefused, StoreError
from kvstore.index.archived import AtHand, NotAtHand
from kvstore.index.families import Families
from kvstore.index.keys import LockKey
from kvstore.message import Bounds
from kvstore.meta.groups import GroupInfo
from kvstore.meta.offsets import Offsets
from kvstore.meta.topics import Topic
from kvstore.pop.dead_letters import DeadLetters
from kvstore.pop.fast_path import let_others
from kvstore.pop.inflight.lock_rows import offsets_of
from kvstore.pop.inflight.table import Change, InflightTable
from kvstore.pop.inflight.tables import InflightTables
from kvstore.pop.inflight.waiting import Waiting
from kvstore.pop.ordered import OrderedClaim
from kvstore.pop.poll import Poll, PollResult
from kvstore.pop.popped import UNLIMITED, Popped, Wanted, check_wanted
from kvstore.pop.receipts import Delivery, Receipts
from kvstore.pop.take import Claim
from kvstore.read.at_offsets import Away, first_at, messages_at
from kvstore.read.cold import AWAY_ERRORS
from kvstore.read.pull import SCAN_MAX
from kvstore.read.reader import Reader
from kvstore.read.sql import SqlFilter

SHARE: Final = 4
"""One pop in so many begins with a lower priority."""


def order(queues: int, turn: int, *, priority: bool) -> Sequence[int]:
    """The queues from 0 to `queues` - 1 in the order of this turn (0, 1, 2, ...)."""
    if not priority:
        first = turn % queues
        return range(queues) if not first else (*range(first, queues), *range(first))
    highest_first = range(queues - 1, -1, -1)
    if queues == 1 or turn % SHARE != SHARE - 1:
        return highest_first
    favoured = turn // SHARE % (queues - 1)
    return (favoured, *(q for q in highest_first if q != favoured))


_log = logging.getLogger("kvmq")
_CHECKED_MAX: Final = 1024
_LOOKED_MAX: Final = 8 * SCAN_MAX
"""Messages that a pop with a filter looks at before it says that it found none: some 30 ms."""
_free: Final = nullcontext()
_NOTHING: Final = Wanted(0, UNLIMITED, 0, None, None, b"")
"""Asks for nothing: a claim by it only sends rows to the dead letters."""


class Pop:
    """Pops by one or several claims; see the module."""

    def __init__(
        self,
        families: Families,
        reader: Reader,
        offsets: Offsets,
        flights: InflightTables,
        receipts: Receipts,
        waiting: Waiting,
        dead_letters: DeadLetters,
        clock: Clock,
        nonces: Iterator[int],
        still_there: Callable[[GroupInfo, Topic], tuple[GroupInfo, Topic]],
        topic_of: Callable[[int], Topic | None],
    ) -> None:
        self._families = families
        self._reader = reader
        self._offsets = offsets
        self._flights = flights
        self._receipts = receipts
        self._waiting = waiting
        self._dead_letters = dead_letters
        self._clock = clock
        self._nonces = nonces
        self._still_there = still_there
        self._topic_of = topic_of
        self._counting = threading.RLock()
        self._checked: dict[tuple[object, ...], Wanted] = {}

    def pop(self, group: GroupInfo, topic: Topic, wait: float, *asked: Any) -> list[Popped]:
        """See `Store.pop`; `asked` are its limit, max_bytes, invisible_for, queue, filter and
        attempt_id.
        """
        wanted = self.wanted(topic, asked)
        return self.claim(group, topic, wanted).popped or (
            self._wait(group, topic, wanted, wait) if wait > 0 else []
        )

    def wanted(self, topic: Topic, asked: tuple[Any, ...]) -> Wanted:
        """The arguments of a pop, checked."""
        # The same few arguments come again and again: finding them costs a third of checking them.
        limit, max_bytes, invisible_for, queue, filter, attempt_id = asked
        # True equals 1, but only one of the two types is right.
        is_usual = (
            attempt_id is None
            and max_bytes is None
            and type(limit) is int
            and type(invisible_for) is float
            and (queue is None or type(queue) is int)
            and (filter is None or isinstance(filter, str | SqlFilter))
        )
        wanted = self._checked.get((topic, *asked)) if is_usual else None
        if wanted is None:
            wanted = check_wanted(topic, *asked)
            if is_usual:
                if len(self._checked) >= _CHECKED_MAX:
                    self._checked.clear()
                self._checked[topic, *asked] = wanted
        return wanted

    def _wait(self, group: GroupInfo, topic: Topic, wanted: Wanted, wait: float) -> list[Popped]:
        event = threading.Event()
        poll = self.poll(group, topic, wanted, wait, event.set)
        try:
            while True:
                event.clear()
                found = poll.look()
                if found or poll.left() <= 0:
                    return found
                if not poll.due_in:
                    let_others()
                while (nap := poll.nap(until_due=True)) > 0 and not self._clock.wait(event, nap):
                    poll.rested()
        finally:
            poll.end()

    def poll(
        self,
        group: GroupInfo,
        topic: Topic,
        wanted: Wanted,
        wait: float,
        wake: Callable[[], None],
    ) -> Poll:
        """Begins to wait; `wake` is called from any thread when there may be messages."""
        # Under the table's lock: a table that is let go has no waiters, and gets none.
        with self._flights.flying(group.id, topic.id) as flight:
            return Poll(
                self._waiting,
                flight,
                self._clock,
                lambda: self.claim(*self._still_there(group, topic), wanted),
                self._flights.next_due,
                wait,
                wake,
                picky=wanted.queue is not None or wanted.matches is not None,
            )

    # --- one look ---

    def claim(self, group: GroupInfo, topic: Topic, wanted: Wanted) -> PollResult:
        """Hands out the messages there are now. One claim may pass messages over, or send some to
        the dead letters, and so uncover messages for the next claim; between two of them others
        have their turn.
        """
        out: list[Popped] = []
        looked, kept = 0, AtHand()
        stuck: dict[LockKey, ArchiveMissing] = {}
        while True:
            try:
                with self.counted(group), self._reader.at_hand(kept):
                    claim = self._claim(group, topic, wanted, out, kept, stuck)
            except NotAtHand:
                kept.fetch()
                continue
            kept = AtHand()
            if claim is None or not claim.left:
                return PollResult(out)
            whole = wanted.max_bytes != UNLIMITED or wanted.attempt_id
            if not claim.made_way or (out and whole):
                if claim.unavailable is not None and not out:
                    raise claim.unavailable
                return PollResult(out)
            looked += claim.looked
            if looked >= _LOOKED_MAX:
                return PollResult(out, goes_on=not out)
            wanted = wanted._replace(limit=claim.left)
            let_others()

    def counted(self, group: GroupInfo) -> AbstractContextManager[object]:
        """Around an operation that makes locks live: where a group's locked messages are capped,
        those in its other topics count as well. Taken before any table's lock.
        """
        return _free if group.max_in_flight is None else self._counted(group.id)

    @contextmanager
    def _counted(self, group: int) -> Iterator[None]:
        with self._counting:
            self._flights.count(group)
            yield

    def _claim(
        self,
        group: GroupInfo,
        topic: Topic,
        wanted: Wanted,
        out: list[Popped],
        kept: AtHand,
        stuck: dict[LockKey, ArchiveMissing],
    ) -> Claim | None:
        """Claims once, and adds the messages taken to `out`; None if there is nothing more to be
        had. `NotAtHand`, with nothing changed, if that takes a read.
        """
        with self._flights.flying(group.id, topic.id) as flight:
            if flight.dead:
                self._still_there(group, topic)
                return None  # being deleted
            if wanted.attempt_id:
                again = self._again(flight, topic, group.name, wanted.attempt_id)
                if again:
                    out += again
                    return None
            claim = self._take(flight, group, topic, wanted, kept, stuck)
            out += claim.popped(self._receipts)
            if claim.taken and flight.waiters:
                # A waiter may have to look again earlier than it thought.
                self._waiting.freed(flight, 1)
            return claim

    def _take(
        self,
        flight: InflightTable,
        group: GroupInfo,
        topic: Topic,
        wanted: Wanted,
        kept: AtHand,
        stuck: dict[LockKey, ArchiveMissing],
    ) -> Claim:
        claim = self._claim_of(flight, group, topic, wanted)
        claim.stuck = stuck
        flight.capped = group.max_in_flight is not None
        if group.max_in_flight is not None:
            # Before the count: an ack from now on wakes the pops that found no room.
            self._waiting.short.add(group.id)
            # Locks that have run out count no more: nobody may ever ask for their messages again.
            claim.room = group.max_in_flight - self._flights.live_at(group.id, claim.now)
        if topic.is_priority and wanted.queue is None:
            self._take_by_priority(claim, flight, topic, group, kept)
        else:
            claim.take_due()
            if claim.dead:
                self._bury(claim, topic, group)
            if flight.parked_count:
                claim.take_parked(wanted.queue)
            self._take_unread(claim, flight, topic, group, wanted, kept)
        if claim.unavailable is not None and kept.misses:
            raise NotAtHand(str(claim.unavailable))
        self._write(claim, flight)
        if flight.ahead:
            self._flights.reads_ahead(flight)
        return claim

    def _claim_of(
        self, flight: InflightTable, group: GroupInfo, topic: Topic, wanted: Wanted
    ) -> Claim:
        return (OrderedClaim if group.ordered else Claim)(
            flight,
            Change(self._families.batch()),
            self._reader,
            topic,
            group,
            wanted,
            self._clock,
            self._offsets.recoveries,
            self._nonces,
        )

    # --- dead letters ---

    def bury(self, flight: InflightTable, group: GroupInfo, key: LockKey) -> None:
        """Sends a due row whose last attempt has failed to the dead letters. If that can't be done
        now, it stays due, and a later pop does it. The table's lock is held.
        """
        topic, lock = self._topic_of(key.topic), flight.get(key)
        if topic is None or lock is None:
            return
        claim = self._claim_of(flight, group, topic, _NOTHING)
        claim.dead.append((key, lock))
        try:
            with self._reader.at_hand(AtHand()):
                self._bury(claim, topic, group)
                self._write(claim, flight)
        except AWAY_ERRORS:
            pass  # an archive must not be read under the lock
        except StoreError as e:
            _log.error("kvmq will copy a dead letter of group %r later: %s", group.name, str(e))

    def _bury(self, claim: Claim, topic: Topic, group: GroupInfo) -> None:
        try:
            ended, stuck = self._dead_letters.bury(claim.change, topic, group, claim.dead)
        except PutRefused as e:
            # The rows stay due; other messages don't have to wait for a disk with room.
            claim.made_way = False
            _log.error("kvmq can't copy the dead letters of group %r: %s", group.name, str(e))
        except ArchiveUnavailable as e:
            claim.made_way, claim.unavailable = False, e
        else:
            claim.ended += ended
            claim.buried(stuck)

    def _write(self, claim: Claim, flight: InflightTable) -> None:
        claim.finish()
        change = claim.change
        if change or change.next:
            for queue in change.next.keys() | change.passed.keys():
                offset = change.next.get(queue)
                if offset is None:
                    offset = self.goes_on(flight, claim.group, claim.topic, queue)
                passed = flight.passed.get(queue, 0) + change.passed.get(queue, 0)
                self._offsets.stage_pop(change.batch, flight, queue, offset, passed)
            self._families.write(change.batch)
            flight.settle(change)
            claim.settled()
        for nonce, bad in claim.ended:
            self._flights.end(nonce, bad)

    def _take_unread(
        self,
        claim: Claim,
        flight: InflightTable,
        topic: Topic,
        group: GroupInfo,
        wanted: Wanted,
        kept: AtHand,
    ) -> None:
        if wanted.queue is not None:
            queues: Sequence[int] = (wanted.queue,)
        else:
            queues = order(topic.read_queues, _turn(flight, kept), priority=False)
        for queue in queues:
            if not claim.left or claim.room <= 0:
                return
            self._take_unread_of(claim, flight, topic, group, queue)

    def _take_unread_of(
        self, claim: Claim, flight: InflightTable, topic: Topic, group: GroupInfo, queue: int
    ) -> None:
        end = self._reader.next_offset(topic.base + queue)
        # A queue that never had a message has no offset to begin with.
        if not end:
            return
        try:
            at = self.goes_on(flight, group, topic, queue)
        except AWAY_ERRORS as e:
            claim.unavailable = e
            return
        if at < end:
            if claim.is_tired:
                claim.made_way = True
            else:
                claim.take_unread(queue, at)

    def _take_by_priority(
        self, claim: Claim, flight: InflightTable, topic: Topic, group: GroupInfo, kept: AtHand
    ) -> None:
        """Takes each queue's due rows, then its unread messages, before those of the next queue."""
        if flight.parked_count and not group.ordered:
            claim.take_parked(None)
        for queue in order(topic.read_queues, _turn(flight, kept), priority=True):
            if not claim.left:
                break
            claim.take_due_of(queue)
            if flight.parked_count and group.ordered:
                claim.take_parked(queue)
            if claim.left and claim.room > 0:
                self._take_unread_of(claim, flight, topic, group, queue)
        if claim.dead:
            self._bury(claim, topic, group)

    def goes_on(self, flight: InflightTable, group: GroupInfo, topic: Topic, queue: int) -> int:
        """The offset at which a group goes on in a queue, or begins. An offset that is not stored
        is not kept either: it follows the group's settings until a message is taken.
        """
        at = flight.next.get(queue)
        if at is not None:
            return at
        bounds = self._reader.bounds(topic.base + queue)
        found = self._offsets.committed(group.id, topic.id, queue, bounds)
        if found is not None:
            flight.next[queue] = found.offset
            if found.passed_over:
                flight.passed[queue] = found.passed_over
            flight.starts.pop(queue, None)
            return found.offset
        kept = flight.starts.get(queue)
        if kept is None or kept[0] is not group or kept[1] != bounds.next_offset:
            kept = group, bounds.next_offset, self._start(group, topic, queue, bounds)
            flight.starts[queue] = kept
        return kept[2]

    def _start(self, group: GroupInfo, topic: Topic, queue: int, bounds: Bounds) -> int:
        if group.start == "begin":
            return bounds.min_offset
        if group.start == "end":
            return self._offsets.first_at(topic.base + queue, group.since, bounds)
        return first_at(self._reader, topic, queue, group.start, group.name)

    def _again(
        self, flight: InflightTable, topic: Topic, group: str, attempt_id: bytes
    ) -> list[Popped]:
        """The messages that an earlier pop with this attempt id took and still locks."""
        now, out, away = self._clock.now_ms(), list[Popped](), Away()
        for key in flight.rows_of(attempt_id):
            lock = flight.get(key)
            if lock is None or lock.attempt_id != attempt_id or key.due <= now:
                continue
            offsets = offsets_of(key.first, lock.locked)
            made = self._receipts.make(Delivery(key, lock.nonce), lock.locked)
            receipts = dict(zip(offsets, made, strict=True))
            for message in messages_at(self._reader, topic, key.queue, offsets, group, away):
                receipt = receipts[message.offset]
                out.append(Popped(message, receipt, lock.attempts, key.due))
        if away.error is not None and not out:
            raise away.error
        return out


def _turn(flight: InflightTable, kept: AtHand) -> int:
    """The turn of a pop: it keeps it when it has to look again, and other pops have the next."""
    if kept.turn is None:
        kept.turn = flight.turn
        flight.turn += 1
    return kept.turn
