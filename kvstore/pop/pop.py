"""Pops messages, each under a lock of its own.

The idea: a claim looks for messages and locks them by one change. Mostly the core makes the change
from messages that were read ahead; a `Claim` looks in all other cases. One way for both would be
slower (docs/decisions/0021). This module claims as often as that finds more, and wakes waiters. A
pop that finds nothing waits for a put, for a lock that runs out, or until its own wait is over. A
`Poll` is one pop that waits: it stands with its in-flight tables (one for each topic), looks, and
says how long nothing will happen by itself. Its caller lets that time pass: a thread waits for a
signal, a coroutine for a future. (docs/pop.md)

Invariants: a message is handed out only after the WriteBatch that locks it was written. An
in-flight table's lock is held from the look to the write, and no longer than one claim takes, which
is bounded however many messages a filter refuses. Nothing is read from an archive under that lock:
a claim that needs an archive is put off until the messages are read, and looks again. A claim that
raised changed nothing; messages that earlier claims of the same pop had locked come back when these
locks run out. A poll is among the waiters from its first look until `end`; before its first look it
is not. A message that comes between a look and the sleep after it wakes the sleeper.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import NoneType
from typing import Any, Final, NamedTuple

from kvstore.core.popping.receipts import Delivery, Popped
from kvstore.errors import (
    ArchiveMissing,
    ArchiveUnavailable,
    GroupNotFound,
    StoreError,
    TopicNotFound,
)
from kvstore.index.archived import AtHand
from kvstore.index.keys import LockKey
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic
from kvstore.pop.claim import Claim, Claimed, Look
from kvstore.pop.claimant import Claimant
from kvstore.pop.context import PopContext
from kvstore.pop.dead_letters import DeadLetters
from kvstore.pop.inflight.lock_rows import offsets_of
from kvstore.pop.inflight.table import InflightTable, Waiter
from kvstore.pop.inflight.waiting import TICK
from kvstore.pop.ordered import OrderedClaim
from kvstore.pop.popped import UNLIMITED, Wanted, check_wanted
from kvstore.pop.several import Several, TopicSets, is_pattern
from kvstore.process.locks import Signal, acquire, let_others
from kvstore.read.cold import UNAVAILABLE_ERRORS
from kvstore.read.pull import SCAN_MAX, ReadResult
from kvstore.read.sql import SqlFilter

_NEVER: Final = float("inf")
_PAUSE: Final = 0.02
"""Seconds until another look where a row stays due that is not for this poll."""
_log = logging.getLogger("kvmq")
_CHECKED_MAX: Final = 1024
_QUEUE_TYPES: Final = (NoneType, int)
_LOOKED_MAX: Final = 8 * SCAN_MAX
"""Messages that a pop with a filter looks at before it says that it found none: some 30 ms."""
_free: Final = nullcontext()
_NOTHING: Final = Wanted(0, UNLIMITED, 0, None, None, b"")
"""Asks for nothing: a claim by it only sends rows to the dead letters."""


class _Stand(NamedTuple):
    """An in-flight table, and the waiter of a poll there."""

    table: InflightTable
    waiter: Waiter


class Poll:
    """One waiting pop, see the module. After a look, `end` is to be called in any case. `due_in`
    says, as of the last look that found nothing, in how many seconds the first lock of its tables
    runs out; 0 is to look again. `dues` has that time for each table.
    """

    __slots__ = (
        "_asked",
        "_claim",
        "_clock",
        "_due_at",
        "_stands",
        "_tables",
        "_until",
        "_waiting",
        "_wake",
        "due_in",
        "dues",
    )

    def __init__(
        self,
        context: PopContext,
        asked: Claimant | Several,
        claim: Callable[[], list[Popped] | None],
        wait: float,
        wake: Callable[[], None],
    ) -> None:
        self.due_in = 0.0
        self.dues: list[tuple[InflightTable, float]] = []
        self._asked = asked
        self._due_at = 0.0
        self._waiting = context.waiting
        self._clock = context.clock
        self._claim = claim
        self._tables = context.tables
        self._until = self._clock.monotonic() + wait
        self._wake = wake
        self._stands: dict[tuple[int, int], _Stand] = {}

    @property
    def tables(self) -> list[InflightTable]:
        """The tables among whose waiters it is."""
        return [stand.table for stand in self._stands.values()]

    def look(self) -> list[Popped]:
        """Hands out the messages there are now. A caller that sleeps on something that `wake` sets
        clears it before. `StoreClosed` if the store closes.
        """
        self._waiting.check_open()
        asked = self._asked
        if isinstance(asked, Several):
            if asked.topics.is_open:
                self._waiting.expect_topics(self._wake)
            places = {(asked.group.id, topic.id) for topic in asked.topics.topics()}
            for gone in self._stands.keys() - places:
                self._waiting.leave(*self._stands.pop(gone))
            for place in places:
                self._stand(*place)
        else:
            self._stand(asked.table.group, asked.table.topic)
        for stand in self._stands.values():
            self._waiting.rest(stand.table, stand.waiter)
        found = self._claim()
        if not found:
            self.dues = [] if found is None else [(t, self._until_due(t)) for t in self.tables]
            self.due_in = 0.0 if found is None else min([d for _, d in self.dues] or [_NEVER])
            self._due_at = self._clock.monotonic() + self.due_in
        return found or []

    def _stand(self, group: int, topic: int) -> None:
        stand = self._stands.get((group, topic))
        if stand is None or stand.waiter not in stand.table.waiters:
            asked = self._asked
            waiter = Waiter(self._wake, asked.limit, selective=asked.is_selective)
            # Under the table's lock: a table that is let go has no waiters, and gets none.
            with self._tables.locked(group, topic) as table:
                self._stands[group, topic] = _Stand(table, waiter)
                self._waiting.enter(table, waiter)

    def _until_due(self, table: InflightTable) -> float:
        due = self._tables.next_due(table)
        if due is None:
            return _NEVER
        # A row that is due by now was not for this poll: it is of another queue.
        left = due - self._clock.now_ms()
        return left / 1000 if left > 0 else _PAUSE

    def nap(self, *, until_due: bool) -> float:
        """Seconds to sleep, and then to call `rested`; 0 or less if it is time to look. With
        `until_due` no longer than to when the first lock runs out.
        """
        left = self.left()
        if until_due:
            left = min(left, self._due_at - self._clock.monotonic())
        first = next(iter(self._stands.values()), None)
        if left > TICK and first is not None and self._waiting.keeps_watch(first.waiter):
            return TICK
        return left

    def rested(self) -> None:
        """Marks that a nap ended without an interruption; to be called after each such nap."""
        self._waiting.glance()

    def left(self) -> float:
        """Seconds until its time is over; 0 or less afterwards."""
        return self._until - self._clock.monotonic()

    def end(self) -> None:
        """Stops waiting; once more does nothing."""
        for stand in self._stands.values():
            self._waiting.leave(stand.table, stand.waiter)
        self._waiting.expect_no_topics(self._wake)


class Pop:
    """Pops by one or several claims; see the module."""

    def __init__(self, context: PopContext) -> None:
        self._context = context
        self._dead_letters = DeadLetters(context)
        self._counting = threading.RLock()
        self._checked: dict[tuple[object, ...], Claimant] = {}
        self._sets = TopicSets(context.topics)
        self._write = context.tables.write

    def claimant(self, group: GroupInfo, topic: Topic, asked: tuple[Any, ...]) -> Claimant:
        """Who pops, with the arguments of the pop, checked. `asked` are limit, max_bytes,
        invisible_for, queue, filter and attempt_id of `Store.pop`.
        """
        # The same few arguments come again and again: finding them costs a third of checking them.
        limit, max_bytes, invisible_for, queue, filter, attempt_id = asked
        usual = id(group), id(topic), asked
        # True equals 1, but only one of the two types is right.
        is_typed = (
            type(limit) is int and type(invisible_for) is float and type(queue) in _QUEUE_TYPES
        )
        if is_typed:
            try:
                known = self._checked.get(usual)
            except TypeError:
                known = None  # a filter of a wrong type
            if known is not None and not (known.table.gone or known.table.dead):
                return known
        made = Claimant(self._context, group, topic, check_wanted(topic, *asked))
        is_usual = max_bytes is None and attempt_id is None
        if is_typed and is_usual and (filter is None or isinstance(filter, str | SqlFilter)):
            if len(self._checked) >= _CHECKED_MAX:
                self._checked.clear()
            self._checked[usual] = made
        return made

    def asking(
        self, group: GroupInfo, topic: str | Sequence[str], asked: tuple[Any, ...]
    ) -> Claimant | Several:
        """Who pops one topic, or several: as `claimant`, for a name, a pattern or a list."""
        if isinstance(topic, str):
            # Mostly it is in memory, and then it is no pattern.
            known = self._context.topics.known(topic)
            if known is not None:
                return self.claimant(group, known, asked)
            if not is_pattern(topic):
                return self.claimant(group, self._context.topics.get(topic), asked)
        check_wanted(None, *asked)
        topics = self._sets.get(group, topic)
        return Several(
            group,
            topics,
            asked,
            lambda one, given: self._claim_one(group, one, given),
            lambda one, given: self._have_one(group, one, given),
        )

    def _claim_one(
        self, group: GroupInfo, topic: Topic, asked: tuple[Any, ...]
    ) -> list[Popped] | None:
        claimant = self._still_there(self.claimant(group, topic, asked))
        return self.claim(claimant) if claimant.may_find() else []

    def _have_one(self, group: GroupInfo, topic: Topic, asked: tuple[Any, ...]) -> list[Popped]:
        """The messages of a topic that an earlier pop with the same attempt id has."""
        wanted = check_wanted(topic, *asked)
        with self._context.tables.locked(group.id, topic.id) as table:
            return self._again(table, topic, group.name, wanted.attempt_id)

    def wait(self, asked: Claimant | Several, seconds: float) -> list[Popped]:
        """The messages that come within so many seconds."""
        event = Signal()
        poll = self.poll(asked, seconds, event.set)
        try:
            while True:
                event.clear()
                found = poll.look()
                if found or poll.left() <= 0:
                    return found
                if not poll.due_in:
                    let_others()
                while (nap := poll.nap(until_due=True)) > 0 and not self._context.clock.wait(
                    event, nap
                ):
                    poll.rested()
        finally:
            poll.end()

    def poll(self, asked: Claimant | Several, wait: float, wake: Callable[[], None]) -> Poll:
        """A poll, which waits from its first look on; `wake` is called from any thread when there
        may be messages.
        """
        return Poll(self._context, asked, lambda: self.look(asked), wait, wake)

    def look(self, asked: Claimant | Several) -> list[Popped] | None:
        """As `claim`, of one topic or several, which may have been deleted meanwhile."""
        if isinstance(asked, Several):
            return asked.claim()
        return self.claim(self._still_there(asked))

    # --- one look ---

    def claim(self, asked: Claimant) -> list[Popped] | None:
        """Hands out the messages there are now; None if it found none, but there is more to look at
        than one call may. One claim may pass messages over, or send some to the dead letters, and
        so uncover messages for the next claim; between two of them others have their turn.
        """
        out = self._take(asked)
        if out:
            return out
        wanted, looked, reads, last = asked.wanted, 0, AtHand(), Claimed(out)
        while True:
            try:
                with self.counted(asked.group), self._context.reader.at_hand(reads):
                    claimed = self._claim(asked, wanted, reads, last)
            except ArchiveUnavailable:
                if not reads.misses:
                    raise
                reads.fetch()
                continue
            last, reads = claimed, AtHand()
            out += claimed.popped
            if not claimed.left:
                return out
            whole = wanted.max_bytes != UNLIMITED or wanted.attempt_id
            if not claimed.more_may_come or (out and whole):
                if claimed.unavailable is not None and not out:
                    raise claimed.unavailable
                return out
            looked += claimed.looked
            if looked >= _LOOKED_MAX:
                return out or None
            wanted = wanted._replace(limit=claimed.left)
            let_others()

    def pop_now(
        self, group: GroupInfo, topic: str | Sequence[str], asked: tuple[Any, ...]
    ) -> list[Popped] | None:
        """As `claim` of what `asking` gives, if nothing has to be waited for: no other thread, no
        first look at a group's rows. None if something may have to be, or if there is nothing: then
        nothing was handed out.
        """
        if not isinstance(topic, str) or is_pattern(topic):
            return None
        known = self._context.topics.get(topic)
        if self._context.tables.known_table(group.id, known.id) is None:
            return None
        return self._take(self.claimant(group, known, asked), waits=False) or None

    def counted(self, group: GroupInfo) -> AbstractContextManager[object]:
        """Around an operation that makes locks live: where a group's locked messages are capped,
        those in its other topics count as well. Taken before any table's lock.
        """
        return _free if group.max_in_flight is None else self._counted(group.id)

    @contextmanager
    def _counted(self, group: int) -> Iterator[None]:
        with self._counting:
            self._context.tables.count(group)
            yield

    def _take(self, asked: Claimant, *, waits: bool = True) -> list[Popped]:
        """The usual claim, which the core makes; nothing if there is anything else to look at, or
        another thread is at it and this one does not wait.
        """
        table = asked.table
        try:
            if not table.lock.acquire(False):
                if not waits:
                    return []
                acquire(table.lock)
            change = asked.take()
            if change is None:
                return []
            self._write(table, change)
        finally:
            try:  # noqa: SIM105  # see kvstore.process.locks
                table.lock.release()
            except RuntimeError:
                pass  # it was not taken
        # The rest concerns nobody else, so nobody has to wait for it.
        if table.waiters:
            # A waiter may have to look again earlier than it thought.
            self._context.waiting.freed(table, 1)
        return change.popped()

    def _claim(self, asked: Claimant, wanted: Wanted, reads: AtHand, last: Claimed) -> Claimed:
        """Claims once, after a claim whose stuck rows are passed over. `ArchiveUnavailable`, with
        nothing changed, if that takes a read.
        """
        context, group, topic = self._context, asked.group, asked.topic
        with context.tables.locked(group.id, topic.id) as table:
            if table.dead:
                self._still_there(asked)
                return Claimed([])  # being deleted
            if wanted.attempt_id:
                again = self._again(table, topic, group.name, wanted.attempt_id)
                if again:
                    return Claimed(again)
            claimed = self._look(Look(table, topic, group, wanted, reads, last.stuck))
            if claimed.popped and table.waiters:
                # A waiter may have to look again earlier than it thought.
                context.waiting.freed(table, 1)
            return claimed

    def _look(self, look: Look) -> Claimed:
        claimed = self._claim_of(look).run()
        if claimed is None:
            claimed = self._claim_of(look._replace(keeps_expired=True)).run()
            assert claimed is not None, "there was nothing to be put"
        return claimed

    def _claim_of(self, look: Look) -> Claim:
        kind = OrderedClaim if look.group.ordered else Claim
        return kind(self._context, self._dead_letters, look)

    # --- dead letters ---

    def bury(self, table: InflightTable, group: GroupInfo, key: LockKey) -> None:
        """Sends a due row whose last attempt has failed to the dead letters. If that can't be done
        now, it stays due, and a later pop does it. The table's lock is held.
        """
        topic, lock = self._topic_of(key.topic), table.get(key)
        if topic is None or lock is None:
            return
        reads = AtHand()
        claim = self._claim_of(Look(table, topic, group, _NOTHING, reads, {}))
        try:
            with self._context.reader.at_hand(reads):
                claim.bury_row(key, lock)
        except UNAVAILABLE_ERRORS:
            pass  # an archive must not be read under the lock
        except StoreError as e:
            _log.error("kvmq will copy a dead letter of group %r later: %s", group.name, str(e))

    def bury_due(self, group: GroupInfo) -> None:
        """Sends all due rows of a group whose last attempt has failed to the dead letters, as pops
        would that came to them.
        """
        context = self._context
        now = context.clock.now_ms()
        for topic in context.offsets.topics(group.id):
            with context.tables.locked(group.id, topic) as table:
                if table.dead:
                    continue
                due = [k for k, lock in table.due(now) if lock.attempts >= group.max_attempts]
                for key in due:
                    self.bury(table, group, key)

    # --- what is still there ---

    def _still_there(self, asked: Claimant) -> Claimant:
        """A claimant with its group and topic as they are now; `GroupNotFound`, `TopicNotFound` if
        they were deleted.
        """
        group, topic = asked.group, asked.topic
        known, used = self._context.groups.get(group.name), self._context.topics.get(topic.name)
        if known.id != group.id:
            raise GroupNotFound(f"group {group.name!r} was deleted meanwhile, and made anew")
        if used.id != topic.id:
            raise TopicNotFound(f"topic {topic.name!r} was deleted meanwhile, and made anew")
        if known is group and used is topic and not asked.table.gone:
            return asked
        return Claimant(self._context, known, used, asked.wanted)

    def _topic_of(self, number: int) -> Topic | None:
        """The topic with an id; None if it was deleted."""
        name = self._context.topics.name_of(number)
        with suppress(TopicNotFound):
            return None if name is None else self._context.topics.get(name)
        return None

    def _again(
        self, table: InflightTable, topic: Topic, group: str, attempt_id: bytes
    ) -> list[Popped]:
        """The messages that an earlier pop with this attempt id took and still locks."""
        now, out = self._context.clock.now_ms(), list[Popped]()
        unavailable: ArchiveUnavailable | ArchiveMissing | None = None
        for key in table.rows_of(attempt_id):
            lock = table.get(key)
            if lock is None or lock.attempt_id != attempt_id or key.due <= now:
                continue
            offsets = offsets_of(key.first, lock.locked)
            made = Delivery(self._context.receipts, *key, lock.nonce).receipts(lock.locked)
            receipts = dict(zip(offsets, made, strict=True))
            found = ReadResult.at_offsets(self._context.reader, topic, key.queue, offsets, group)
            for message in found:
                out.append(Popped(message, receipts[message.offset], lock.attempts, key.due))
            unavailable = found.unavailable or unavailable
        if unavailable is not None and not out:
            raise unavailable
        return out
