"""Transactions: prepared messages that become visible together, or not at all.

The idea: a prepared message is a pending message (`pending_messages`) in a topic of its own. A
commit is its copy in its topic, a rollback is a note. Several messages that end together are a set:
they stand behind one another in the log, each says which it is, and one put ends the waits of all.
Readers see that put whole. A crash may leave a leading part of the last put of the log; the next
opening finishes it (`finish_cut`) before anybody reads, so a set is never half there.

A message that nobody ended is asked about (`checks`); one that was asked about often enough, or is
too old, is given up: its copy goes to RocketMQ's topic for such messages.

Invariants:

- A transaction ends once: committed, rolled back or given up. To end it again in the same way
  changes nothing; in the other way it is refused.
- The messages of a set end together.
- No prepared message is in a queue of its topic before its commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kvstore.clock import cut_ms, whole_ms
from kvstore.config import StoreConfig
from kvstore.core.names import (
    TRANSACTION_BEFORE_MS,
    TRANSACTION_DISCARD_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_ROLLBACK,
)
from kvstore.errors import CallerError, MessageIllegal, TopicNotFound, shown
from kvstore.index.archived import Meant
from kvstore.index.keys import META, TRANSACTION_AGE, U64
from kvstore.message import Message, PutResult, StoredMessage
from kvstore.record.validate import check_group
from kvstore.timing.pending_messages import (
    AT_ONCE,
    Owns,
    PendingMessages,
    PlannedNotes,
    TimingContext,
)
from kvstore.timing.prepared_list import (
    Ended,
    Handle,
    PreparedList,
    Together,
    Unreadable,
    position_of,
)
from kvstore.timing.prepared_message import (
    SET_MAX,
    WITH_THE_FIRST,
    Member,
    PreparedMessage,
    committed_result,
    due_of,
    lost_properties,
    member_of,
    prepared_of,
    prepared_properties,
    rollback_properties,
    topic_property,
    waiting_properties,
)
from kvstore.timing.timer_rows import START, Place, TimerRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore.core.encoding import PreparedBatch
    from kvstore.core.pending.pending_records import Held
    from kvstore.core.tail import Waiting

_log = logging.getLogger("kvmq")
End = Literal["commit", "rollback"]
IMMUNITY_MAX: Final = 30 * 86400.0
_NO_TOPICS: Final[Mapping[str, int]] = MappingProxyType({})


class Question(NamedTuple):
    """A message to ask about: its position, when it is too old, in ms, its topic, and the producer
    group; None if its record is damaged, and nobody is asked.
    """

    position: int
    age_end: int
    topic: str
    group: str | None


class Transactions:
    """Prepares messages and ends their transactions; see the module."""

    def __init__(
        self,
        context: TimingContext,
        rows: TimerRows,
        prepared: PreparedList,
        pending: PendingMessages,
        encode: Callable[..., PreparedBatch],
        config: StoreConfig,
    ) -> None:
        """`encode` makes the records of messages, or raises the error of the first at fault."""
        self._context = context
        self._log = context.log
        self._topics = context.topics
        self._clock = context.clock
        self._rows = rows
        self._list = prepared
        self._encode = encode
        self._config = config
        self._age = whole_ms(config.transaction_age)
        self._families = context.index.families
        self.pending = pending
        self._early = self._early_from()
        """Behind which place to look for messages whose checks are to be brought forward; None: all
        were looked at.
        """
        self._next_ends = 0
        """When the next set may be too old, ms."""

    # --- preparing ---

    def prepare(
        self,
        messages: Sequence[Message],
        group: str,
        immunity: float | None,
        *,
        set_id: str | None = None,
    ) -> list[PutResult]:
        """See `Store.prepare_batch`. With `set_id`, the id of the first, they are a set."""
        check_group(group)
        if set_id is not None and len(messages) > SET_MAX:
            raise CallerError(
                f"a transaction has up to {SET_MAX} messages; these are {len(messages)}"
            )
        for number, message in enumerate(messages):
            delays = [
                getattr(message, name, None) for name in ("deliver_at", "delay", "delay_level")
            ]
            if any(delay is not None for delay in delays):
                where = f"message {number} of {len(messages)}: " if len(messages) > 1 else ""
                raise MessageIllegal(f"{where}a prepared message can't be delayed as well")
        now = self.pending.begin()
        seconds = self._config.transaction_immunity if immunity is None else immunity
        if type(seconds) not in (int, float) or not 0 <= seconds <= IMMUNITY_MAX:
            raise CallerError(
                f"immunity is {shown(immunity)}; it must be 0 to {IMMUNITY_MAX:.0f} seconds"
            )
        wait = min(whole_ms(seconds), self._age)
        due = now + max(1, cut_ms(self._clock) + wait)
        if set_id is None:
            held = [(prepared_properties(group, None), due)] * len(messages)
        else:
            count = len(messages)
            held = [
                (
                    prepared_properties(group, Member(set_id, number, count)),
                    WITH_THE_FIRST if number else due,
                )
                for number in range(count)
            ]
        while True:
            batch = self._encode(messages, now, held)
            # A topic that was deleted since is missing in the next turn, or is made anew.
            with suppress(TopicNotFound):
                results = self.pending.put(batch, now)
                self._rows.added(due)
                return results

    # --- ending ---

    def end(self, asked: Sequence[Handle], how: End, owns: Owns | None) -> list[PutResult]:
        """Commits or rolls back transactions, all or none; see `Store.commit_batch`. Returns where
        the messages went, those of sets all.
        """
        with self.pending.lock:
            waiting: dict[int, PreparedMessage] = {}
            lost: dict[int, str] = {}
            done: list[StoredMessage] = []
            for one in asked:
                for found in self._list.states(one, owns):
                    if isinstance(found, Ended):
                        found.check(is_commit=how == "commit")
                        done.append(found.message)
                        waiting |= {p.message.position: p for p in self._list.rest(found)}
                    elif position_of(found) not in waiting:
                        whole = self._list.together(found, owns)
                        if whole.end is not None:
                            whole.end.check(is_commit=how == "commit")
                        if how == "commit" and whole.damage is not None:
                            raise whole.damage
                        waiting |= {p.message.position: p for p in whole.messages}
                        lost |= dict.fromkeys(whole.lost, whole.id_by(found))
            if how == "rollback":
                self._roll_back(list(waiting.values()), "rollback", lost)
                return []
            return [*self._commit(list(waiting.values())), *map(committed_result, done)]

    def _commit(self, found: list[PreparedMessage], *, is_needed: bool = False) -> list[PutResult]:
        if not found:
            return []
        held = [self._held(one) for one in found]
        copies = self.pending.copies(held, [0] * len(held), [b""] * len(held))
        return self.pending.put(copies, self._clock.now_ms() if is_needed else None)

    def _finish(self, whole: Together, end: Ended, *, is_needed: bool = False) -> None:
        """Ends the messages of a half set that wait as the others ended."""
        _log.warning(
            "%s: of the transaction of %s some messages had ended; the other %d end likewise",
            self._log.folder.parent, end.message.message_id, len(whole.messages),
        )  # fmt: skip
        if end.is_committed:
            self._commit(whole.messages, is_needed=is_needed)
        elif end.message.topic == TRANSACTION_DISCARD_TOPIC:
            self._put_to_discarded(whole.messages, is_needed=is_needed)
        else:
            why = end.message.properties.get(TRANSACTION_ROLLBACK, "rollback")
            self._roll_back(whole.messages, why, is_needed=is_needed)

    def _roll_back(
        self,
        found: list[PreparedMessage],
        why: str,
        lost: Mapping[int, str] = MappingProxyType({}),
        *,
        deleted: Mapping[str, int] = _NO_TOPICS,
        is_needed: bool = False,
        planned: PlannedNotes | None = None,
    ) -> int:
        """Puts notes for messages, and for those of `lost` that wait: positions of records that
        can't be read, and ids for their notes. These come last: a crash that cuts the put leaves
        records of a set whose rest can be told. `deleted` are topics that are to be deleted, and
        `planned` is as with `PendingMessages.note`. Returns how many notes these are.
        """
        rows = self._list.unreadable(lost)
        held = [self._held(one, None, deleted) for one in found]
        names = {one.row[2]: self._topics.name_of(one.row[2]) or "" for one in rows}
        held += [(b"", 0, 0, at, due, names[topic], topic) for (due, at, topic, _), _ in rows]
        added = [rollback_properties(one.message, why) for one in found]
        added += [lost_properties(why)] * len(rows)
        ids: list[str | None] = [None] * len(found)
        ids += [self._list.id_of(row) or lost[row[1]] for row, _ in rows]
        if held:
            self.pending.note(held, added, ids=ids, is_needed=is_needed, planned=planned)
        return len(held)

    def _held(
        self,
        found: PreparedMessage,
        goes_to: str | None = None,
        deleted: Mapping[str, int] = _NO_TOPICS,
    ) -> Held:
        """A message for `copies` and `note`; it goes to its own topic unless another is given.
        `deleted` has the ids of topics that may be closed.
        """
        topic = deleted.get(found.topic) or self._topics.get(found.topic).id
        position = found.message.position
        return *self._log.span(position), position, due_of(found), goes_to or found.topic, topic

    # --- topics that are deleted ---

    def go_with_topics(self, names: dict[int, str]) -> int:
        """Rolls back the messages to topics that are to be deleted, given their names by their ids,
        and their sets: these can't become visible together any more. Returns how many these were.
        """
        topics = {name: number for number, name in names.items()}
        end = partial(self._roll_back_whole, why="topic deleted", deleted=topics)
        return self.pending.end_all_to(names, end)

    def erase(self, meant: Meant, planned: PlannedNotes | None) -> int:
        """As `go_with_topics`, of the messages that an erasure is about, or `planned` to be."""
        end = partial(self._roll_back_whole, why="erased", planned=planned)
        return self.pending.end_meant(meant, end, is_planned=planned is not None)

    def _roll_back_whole(
        self,
        rows: list[Waiting],
        why: str,
        deleted: Mapping[str, int] = _NO_TOPICS,
        planned: PlannedNotes | None = None,
    ) -> int:
        """Rolls back messages that wait, with their sets, or plans that: so many notes."""
        count, found, lost = 0, dict[int, PreparedMessage](), dict[int, str]()
        for last, row in enumerate(rows, 1 - len(rows)):
            due, position = row[:2]
            is_known = position in found or position in lost
            for one in [] if is_known else self._list.waits_at(position, due):
                whole = self._list.together(one, None)
                places = [(due_of(p), p.message.position) for p in whole.messages]
                if planned is not None and planned.has_set(row, places, self.pending):
                    continue
                found |= {p.message.position: p for p in whole.messages}
                lost |= dict.fromkeys(whole.lost, whole.id_by(one))
            if (found or lost) and (last == 0 or len(found) + len(lost) >= AT_ONCE):
                some = [*found.values()]
                count += self._roll_back(
                    some, why, lost, deleted=deleted, is_needed=True, planned=planned
                )
                found, lost = {}, {}
        return count

    def _members(self, found: PreparedMessage) -> list[PreparedMessage]:
        """The messages that end with one that waits."""
        return self._list.together(found, None).messages

    # --- leaving ---

    def leave(self, segments: Sequence[int]) -> None:
        """See `PendingMessages.leave`; the messages of a set are moved together."""
        self.pending.leave(segments, self._with_sets, self._kept_properties)

    def _kept_properties(self, position: int) -> bytes:
        """The properties by which the copy of a message that is moved keeps its checks and age."""
        found = self._list.at(position)
        # A message whose record is damaged is not moved.
        return b"" if found is None else waiting_properties(found, found.checks)

    def _with_sets(self, positions: list[int]) -> list[int]:
        """Positions of prepared messages, with those of the sets that any of them are in: each set
        from its first message on. Transactions of which a message can't be read are given up.
        """
        found: dict[int, None] = {}
        damaged: list[int] = []
        for position in positions:
            record = None if position in found else self._list.record(position)
            if record is None and position not in found:
                damaged.append(position)
            one = None if record is None else self._list.waiting(record)
            whole = None if one is None else self._list.together(one, None)
            if one is not None and whole is not None and (whole.is_lost or whole.end is not None):
                self._give_up(whole, one, is_needed=True)
            elif whole is not None:
                found.update((p.message.position, None) for p in whole.messages)
        for lost in self._list.unreadable(damaged):
            self._give_up(self._list.together(lost, None), lost, is_needed=True)
        return list(found)

    # --- a shorter age ---

    def _early_from(self) -> Place | None:
        """Where to begin to look for messages that are too old before their next check; None if
        `transaction_age` was never longer than now.
        """
        row = self._families.get(META, TRANSACTION_AGE)
        longest = None if row is None else U64.unpack(row)[0]
        if longest is not None and longest < self._age:
            self._note_age()
        return START if longest is None or longest > self._age else None

    def _note_age(self) -> None:
        """Notes that no message waits for a check behind the end of its age."""
        batch = self._families.batch()
        batch.put(META, TRANSACTION_AGE, U64.pack(self._age))
        self._families.write(batch)

    def bring_checks_forward(self) -> None:
        """Lets messages that are too old before their next check wait until they are: as many as
        one look has, until all were looked at. `transaction_age` was longer when they were put.
        """
        if self._early is None:
            return
        with self.pending.lock:
            # Those that are due are given up by their checks.
            now = self._clock.now_ms()
            after = max(self._early, (now + 1, -1))
            rows = self._rows.page(after, self._log.end, AT_ONCE, None)
            for due, position, _, _ in rows:
                found = None if due == WITH_THE_FIRST else self._list.at(position)
                if found is not None and self.age_end(found) < due:
                    self._bring_forward(found, max(now + 1, self.age_end(found)))
            if len(rows) == AT_ONCE:
                self._early = rows[-1][:2]
                return
            self.pending.checkpoint()  # the disk has the copies
            self._note_age()
            self._early = None

    def _bring_forward(self, found: PreparedMessage, due: int) -> None:
        whole = self._list.together(found, None)
        if whole.damage is None:
            times = [due] + [WITH_THE_FIRST] * (len(whole.messages) - 1)
            self._wait_again(whole.messages, times, [one.checks for one in whole.messages])

    # --- a put that a crash cut short ---

    def finish_cut(self, last: StoredMessage | None) -> None:
        """Finishes the last put of the log, if it was of a set and a crash cut it; `last` is the
        log's last record. Called before anybody else puts or reads.
        """
        member = None if last is None else member_of(last)
        if last is None or member is None or member.number == member.total - 1:
            return
        is_new = last.topic == TRANSACTION_HALF_TOPIC and prepared_of(last) is not None
        if is_new and TRANSACTION_BEFORE_MS not in last.properties:
            # Its put never returned.
            self._tell_cut(member)
            found = self._list.at(last.position)
            self._roll_back([] if found is None else self._members(found), "crash")
            return
        rest = self._list.behind(last.prepared_position - 1, member)
        if not rest:
            return
        self._tell_cut(member)
        if is_new:
            cut = prepared_of(last)
            checks = 0 if cut is None else cut.checks
            self._wait_again(rest, [WITH_THE_FIRST] * len(rest), [checks] * len(rest))
        elif last.topic == TRANSACTION_HALF_TOPIC:
            why = last.properties.get(TRANSACTION_ROLLBACK)
            if why is not None:  # else it is no record of ours
                self._roll_back(rest, why)
        elif last.topic == TRANSACTION_DISCARD_TOPIC:
            self._put_to_discarded(rest)
        else:
            self._commit(rest)

    def _tell_cut(self, member: Member) -> None:
        _log.warning(
            "%s: the last put was of %d messages of a transaction, of which a crash left %d; it is "
            "finished", self._log.folder.parent, member.total, member.number + 1,
        )  # fmt: skip

    # --- checks ---

    def is_due(self) -> bool:
        """Whether a message is to be asked about, or checks are to be brought forward."""
        if self._topics.find(TRANSACTION_HALF_TOPIC) is None:
            return False
        first = self._rows.first_due()
        is_first_due = first is not None and first <= self._clock.now_ms()
        is_other_due = self._early is not None or self._next_ends <= self._clock.now_ms()
        return self.pending.is_unsure or is_first_due or is_other_due

    def look_again(self) -> None:
        """Lets messages be asked about again whose questions nobody took."""
        with self.pending.lock:
            self.pending.look_again()

    def questions(self) -> Iterator[Question]:
        """The messages that are to be asked about, in the order of their times; those that were
        asked about often enough, or are too old, are given up. None of them is given again before
        `look_again`, or before it has waited for another check.
        """
        now = self._clock.now_ms()
        if self._next_ends <= now:
            self._give_up_sets(now)
        while True:
            with self.pending.lock:
                due = self.pending.due(now)
                found = [self._question_at(row, now) for row in due]
                self.pending.settled(due)
            if not due:
                return
            yield from (one for one in found if one is not None)

    def _question_at(self, row: Waiting, now: int) -> Question | None:
        """The message that is due, unless it is given up, or waits no more."""
        position = row[1]
        found = self._list.at(position)
        if found is None:
            return self._question_of_damaged(row, now)
        end = self.age_end(found)
        if end <= now or found.checks >= self._config.transaction_checks:
            self._give_up(self._list.together(found, None), found)
            return None
        return Question(position, end, found.topic, found.group)

    def _question_of_damaged(self, row: Waiting, now: int) -> Question | None:
        """Nobody is asked about a message that can't be read; it grows too old as others do."""
        due, position = row[:2]
        for lost in self._list.unreadable([position], due):
            whole = self._list.together(lost, None)
            end = self._end_of(whole, lost)
            if end > now:
                return Question(position, end, "", None)
            self._give_up(whole, lost)
        return None

    def age_end(self, found: PreparedMessage) -> int:
        """When a message is too old, ms."""
        return found.since + cut_ms(self._clock) + self._age

    def _end_of(self, whole: Together, found: PreparedMessage | Unreadable) -> int:
        """When the messages of a transaction are too old, ms. If none can be read, they are as old
        as if they had been prepared when they were to be asked about.
        """
        if isinstance(found, PreparedMessage):
            return self.age_end(found)
        return self.age_end(whole.messages[0]) if whole.messages else found.row[0] + self._age

    def give_up_old(self, position: int, now: int) -> None:
        """Gives up the message at a position, if it still waits there and is too old."""
        with self.pending.lock:
            for found in self._list.waits_at(position):
                whole = self._list.together(found, None)
                if self._end_of(whole, found) <= now:
                    self._give_up(whole, found)

    def _give_up_sets(self, now: int) -> None:
        """Gives up the sets that are too old, also where damage has left none of a set's first
        message, which would be asked about. The messages behind the first wait in the order in
        which they were put, so this ends at one that is not too old.
        """
        self._next_ends, place = now + self._age, (WITH_THE_FIRST, -1)
        with self.pending.lock:
            while rows := self._rows.page(place, self._log.end, AT_ONCE, None):
                for row in rows:
                    place = row[:2]
                    found = self._list.at(row[1])
                    if found is None:  # with its set, or with a first one that can't be read
                        continue
                    end = self.age_end(found)
                    if end > now:
                        self._next_ends = min(end, self._next_ends)
                        return
                    self._give_up(self._list.together(found, None), found)

    def question(self, position: int) -> PreparedMessage | None:
        """The message at a position, if it still waits to be asked about."""
        return self._list.at(position)

    def _give_up(
        self, whole: Together, found: PreparedMessage | Unreadable, *, is_needed: bool = False
    ) -> None:
        """Gives up a transaction, given one of its messages; one of which others have ended ends as
        these did.
        """
        if whole.end is not None:
            self._finish(whole, whole.end, is_needed=is_needed)
            return
        self._put_to_discarded(whole.messages, is_needed=is_needed)
        lost = dict.fromkeys(whole.lost, whole.id_by(found))
        self._roll_back([], "damaged", lost, is_needed=is_needed)
        where = self._log.folder.parent
        if whole.messages:
            first = whole.messages[0]
            _log.warning(
                "%s: the transaction of %s, group %s, was given up after %d checks: its messages "
                "are in %s", where, first.message_id, first.group, first.checks,
                TRANSACTION_DISCARD_TOPIC,
            )  # fmt: skip
        if whole.lost:
            _log.error(
                "%s: the prepared messages at %s were given up: their records are damaged",
                where, ", ".join(map(str, whole.lost)),
            )  # fmt: skip

    def _put_to_discarded(self, found: list[PreparedMessage], *, is_needed: bool = False) -> None:
        if not found:
            return
        if self._topics.find(TRANSACTION_DISCARD_TOPIC) is None:
            self._topics.make_pending_topic(TRANSACTION_DISCARD_TOPIC)
        held = [self._held(one, TRANSACTION_DISCARD_TOPIC) for one in found]
        copies = self.pending.copies(
            held, [0] * len(held), [topic_property(one.topic) for one in found]
        )
        self.pending.put(copies, self._clock.now_ms() if is_needed else None)

    def answered(self, position: int, answer: End | None) -> bool:
        """Ends a transaction whose first message still waits at a position as a checker says, or
        (None) lets it wait for the next check. False if it waits on as it is, since it can't be
        committed, or be copied: a record is damaged.
        """
        with self.pending.lock:
            found = self._list.at(position)
            if found is None:
                return True
            whole = self._list.together(found, None)
            members = whole.messages
            if answer == "rollback":
                self._roll_back(members, answer, dict.fromkeys(whole.lost, whole.id_by(found)))
                return True
            if whole.is_lost or (answer is not None and whole.damage is not None):
                _log.error("%s: %s", self._log.folder.parent, str(whole.damage))
                return False
            if answer is not None:
                self._commit(members)
                return True
            interval = whole_ms(self._config.transaction_check_interval)
            now = self._clock.now_ms()
            next_check = now + cut_ms(self._clock) + interval
            due = max(now + 1, min(next_check, self.age_end(found)))
            times = [due] + [WITH_THE_FIRST] * (len(members) - 1)
            self._wait_again(members, times, [one.checks + 1 for one in members])
            return True

    def _wait_again(self, found: list[PreparedMessage], due: list[int], checks: list[int]) -> None:
        held = [self._held(one) for one in found]
        added = [waiting_properties(*one) for one in zip(found, checks, strict=True)]
        self.pending.put(self.pending.copies(held, due, added))
        self._rows.added(min(due))
