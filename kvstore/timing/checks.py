"""Checks: asks producers about transactions that nobody ended.

The idea: a program registers checkers for a producer group; each has a thread of its own, so one
that hangs holds up nobody else. The housekeeper looks for messages whose time to be asked about has
come, and puts their positions into the line of their group, from which its checkers take the next.
An answer ends the transaction, or lets it wait for the next check, and so does no answer within
`transaction_check_interval` of the question. While a group has no checker nobody is asked, and
nothing is counted. A message whose question was passed over, or waits in a line, is given up when
it is too old; it is not looked at before that (`_AgeEnds`).

Invariants:

- An exception of a checker, or an answer that is none, counts as "unknown" and is logged; an answer
  about a transaction that has ended meanwhile changes nothing.
- A check is counted only if a checker was asked: time in the line counts for nothing.
- A checker is asked about messages to the topics that it may see, and holds up no others.
- Lines have positions, no messages, and a bounded number of them.
- A message is given up at its time, whether or not its group has a checker.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, nsmallest
from typing import Final, Literal, NamedTuple

from kvstore.clock import Clock
from kvstore.config import StoreConfig
from kvstore.errors import CallerError, StoreError, shown
from kvstore.message import StoredMessage
from kvstore.process.background import Background, traced
from kvstore.record.validate import check_group
from kvstore.timing.pending_messages import Owns
from kvstore.timing.prepared_message import PreparedMessage
from kvstore.timing.transactions import Question, Transactions

Answer = Literal["commit", "rollback", "unknown"]
Ask = Callable[[StoredMessage], Answer]
_INTERVAL: Final = 0.5
"""Seconds after which a checker's thread looks for questions by itself."""
LINE_MAX: Final = 65_536
"""Messages in the line of one group."""
AGE_ENDS_MAX: Final = 65_536
"""Messages whose ages' ends are kept; beyond that the later half is found by another look."""
_log = logging.getLogger("kvmq")


class Checker:
    """A registered checker, see `Store.on_check`; `close` ends it, after the question it is at."""

    def __init__(
        self,
        group: str,
        ask: Ask,
        take: Callable[[Checker], PreparedMessage | None],
        answered: Callable[[int, str], None],
        failed: Callable[[Checker], None],
        clock: Clock,
        owns: Owns | None,
    ) -> None:
        """`take` gives the next question; `answered` is told the position and the answer, and
        `failed` that the question of a turn has no answer. `owns` says which topics it may see.
        """
        self.group = group
        self._owns = owns
        self._ask = ask
        self._take = take
        self._answered = answered
        self.thread = Background(
            f"kvmq-checker {group}", self._turn, clock, _INTERVAL, failed=lambda why: failed(self)
        )
        self.thread.start()

    def close(self) -> None:
        """Ends the checker; the others of its group go on."""
        self.thread.end()

    def sees(self, topic: str) -> bool:
        """Whether it may be asked about messages to a topic."""
        return self._owns is None or self._owns(topic)

    @property
    def is_open(self) -> bool:
        """Whether it takes questions."""
        return self.thread.is_alive and not self.thread.is_stopping

    def _turn(self) -> None:
        while not self.thread.is_stopping:
            question = self._take(self)
            if question is None:
                return
            self._answered(question.message.position, self._answer(question))
            self.thread.did("asking about a transaction")

    def _answer(self, question: PreparedMessage) -> str:
        message = question.message
        shown_message = message.__replace__()
        shown_message.see_as(question.topic, None)
        return answer_of(self._ask, shown_message, self.group)


def answer_of(ask: Callable[[StoredMessage], object], message: StoredMessage, group: str) -> str:
    """The answer of a checker of a group; "unknown", and a line in the log, if it has none."""
    try:
        answer = ask(message)
    except (Exception, SystemExit) as e:
        _log.error("a checker of the group %s failed: %s", group, traced(e))
        return "unknown"
    if answer not in ("commit", "rollback", "unknown"):
        _log.error(
            "a checker of the group %s answered %s; it must be 'commit', 'rollback' or "
            "'unknown'",
            group, shown(answer),
        )  # fmt: skip
        return "unknown"
    return str(answer)


class _Asked(NamedTuple):
    """Who is asked about a message, and until when an answer counts."""

    checker: Checker
    until: float


class _AgeEnds:
    """When messages that were looked at are too old, ms: of the nearest of them, a bounded number.
    The others are looked at again when the first of them is too old. One caller at a time adds and
    takes.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """Ends and positions."""
        self._kept: set[int] = set()
        """The positions that have not been dropped: the heap may have more."""
        self.others: int | None = None
        """The first end of those that are not kept; None: all are."""

    @property
    def first(self) -> int | None:
        """The first end of all."""
        return self._heap[0][0] if self._heap else self.others

    def add(self, end: int, position: int) -> None:
        """Keeps when a message is too old, or notes that others are not kept."""
        if position in self._kept:
            return
        if self.others is not None and end >= self.others:
            return
        self._kept.add(position)
        heappush(self._heap, (end, position))
        if len(self._heap) > AGE_ENDS_MAX:
            nearest = nsmallest(AGE_ENDS_MAX // 2 + 1, self._heap)
            # A sorted list is a heap.
            self.others, _ = nearest.pop()
            self._heap = nearest
            self._kept.intersection_update(at for _, at in nearest)

    def drop(self, position: int) -> None:
        """Forgets a message that waits no more at its position."""
        self._kept.discard(position)

    def take(self, now: int) -> Iterator[int]:
        """The positions of messages that are too old, each once."""
        while self._heap and self._heap[0][0] <= now:
            _, position = heappop(self._heap)
            if position in self._kept:
                self._kept.discard(position)
                yield position


class Checks:
    """Asks about transactions; see the module. `due` and `run` are a job of the housekeeper."""

    def __init__(self, transactions: Transactions, config: StoreConfig) -> None:
        self._transactions = transactions
        self._clock = config.clock
        self._interval = config.transaction_check_interval
        self._turn = threading.Lock()
        """One caller at a time runs the job."""
        self._lock = threading.Lock()
        self._checkers: list[Checker] = []
        self._lines: dict[str, OrderedDict[int, str]] = {}
        """The positions of messages that a checker of their group is to be asked about, in order,
        with their topics.
        """
        self._full: set[str] = set()
        """Groups whose lines were full: more of their messages are due."""
        self._asked: dict[int, _Asked] = {}
        """The messages that are asked about, by their positions."""
        self._age_ends = _AgeEnds()

    def on_check(self, group: str, ask: Ask, owns: Owns | None) -> Checker:
        """See `Store.on_check`, of messages to the topics that a caller may see."""
        check_group(group)
        if not callable(ask):
            raise CallerError(f"the checker is {shown(ask)}; it must be a function")
        if inspect.iscoroutinefunction(ask):
            raise CallerError(
                f"the checker is the coroutine function {shown(ask)}, and is called in a thread of "
                "its own: give a plain function, or use kvstore.aio"
            )
        tells = self._next_of, self._answered, self._failed
        checker = Checker(group, ask, *tells, self._clock, owns)
        with self._lock:
            self._checkers = [one for one in self._checkers if one.is_open] + [checker]
        self._transactions.look_again()
        return checker

    def stop(self) -> None:
        """Ends all checkers, each after the question it is at; one that hangs is not waited for."""
        with self._lock:
            for one in self._checkers:
                one.close()

    # --- the job ---

    def due(self) -> bool:
        """Whether a message is to be asked about or too old, or an answer has not come in time."""
        now = self._clock.monotonic()
        if any(one.until <= now for one in tuple(self._asked.values())):
            return True
        age_end = self._age_ends.first
        if age_end is not None and age_end <= self._clock.now_ms():
            return True
        return self._transactions.is_due()

    def run(self) -> None:
        """Lines up questions for checkers, gives up what is over, and notes what was not answered
        in time.
        """
        with self._turn:
            now = self._clock.monotonic()
            for position, asked in list(self._asked.items()):
                if asked.until <= now:
                    self._answered(position, "unknown")
            try:
                self._transactions.bring_checks_forward()
                self._give_up_old()
                for found in self._transactions.questions():
                    self._age_ends.add(found.age_end, found.position)
                    self._line_up(found)
            except BaseException:
                self._transactions.look_again()
                raise

    def _give_up_old(self) -> None:
        """Gives up the messages that have grown too old since they were looked at."""
        now = self._clock.now_ms()
        for position in self._age_ends.take(now):
            self._transactions.give_up_old(position, now)
        others = self._age_ends.others
        if others is not None and others <= now:
            self._age_ends = _AgeEnds()
            self._transactions.look_again()

    def _line_up(self, found: Question) -> None:
        """Puts a message into its group's line, if the group has a checker."""
        group, position = found.group, found.position
        if group is None:
            return
        with self._lock:
            line = self._lines.get(group, OrderedDict())
            if position in line or position in self._asked:
                return
            checkers = [one for one in self._checkers if one.is_open and one.group == group]
            checkers = [one for one in checkers if one.sees(found.topic)]
            if not checkers:
                return
            if len(line) >= LINE_MAX:
                self._full.add(group)
                return
            self._lines.setdefault(group, line)[position] = found.topic
            for one in checkers:
                one.thread.wake.set()

    def _next_of(self, checker: Checker) -> PreparedMessage | None:
        """The next question for a checker; None if there is none now."""
        group = checker.group
        while line := self._lines.get(group):
            with self._lock:
                position = next((at for at, topic in line.items() if checker.sees(topic)), None)
                if position is None:
                    break
                # In this order nothing is lost by an exception: at worst it is asked about twice.
                self._asked[position] = _Asked(checker, self._clock.monotonic() + self._interval)
                del line[position]
            found = self._transactions.question(position)
            if found is not None:
                return found
            # It has ended since it was put into the line.
            self._asked.pop(position, None)
        if group in self._full and not self._lines.get(group):
            self._full.discard(group)
            self._transactions.look_again()
        return None

    def _failed(self, checker: Checker) -> None:
        """Has the question of a turn that failed asked again."""
        for position, asked in list(self._asked.items()):
            if asked.checker is checker:
                self._asked.pop(position, None)
        self._transactions.look_again()

    def _answered(self, position: int, answer: str) -> None:
        """Ends a transaction as a checker said, or lets it wait for the next check."""
        is_kept = is_over = False
        try:
            end = answer if answer in ("commit", "rollback") else None
            is_over = self._transactions.answered(position, end)  # type: ignore[arg-type]  # one of these
            is_kept = True
        except StoreError as e:
            # The disk is full, or the store is being closed: it is asked about again.
            _log.error("the answer %r about a transaction could not be kept: %s", answer, str(e))
        self._asked.pop(position, None)
        if is_over:
            self._age_ends.drop(position)
        if is_kept:
            return
        # Not before: a look passes over a message that is still asked about.
        self._transactions.look_again()
