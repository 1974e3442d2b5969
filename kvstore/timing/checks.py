"""Checks: asks producers about transactions that nobody ended.

The idea: a program registers checkers for a producer group; each has a thread of its own, so one
that hangs holds up nobody else. The housekeeper looks for messages whose time to be asked about has
come, and hands each to a checker of its group, the one with the fewest questions. An answer ends
the transaction, or lets it wait for the next check, and so does no answer within
`transaction_check_interval`. While a group has no checker nobody is asked, and nothing is counted.

Invariants: an exception of a checker, or an answer that is none, counts as "unknown" and is logged;
an answer about a transaction that has ended meanwhile changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from kvstore.clock import Clock
from kvstore.config import StoreConfig
from kvstore.errors import CallerError, StoreError, shown
from kvstore.message import StoredMessage
from kvstore.process.background import Background, traced
from kvstore.record.validate import check_group
from kvstore.timing.prepared_message import PreparedMessage
from kvstore.timing.transactions import Transactions

Answer = Literal["commit", "rollback", "unknown"]
Ask = Callable[[StoredMessage], Answer]
_INTERVAL: Final = 0.5
"""Seconds after which a checker's thread looks for questions by itself."""
_LOOK_AGAIN: Final = 600.0
"""Seconds between two looks at messages whose groups have no checker: they grow too old."""
_log = logging.getLogger("kvmq")


class Checker:
    """A registered checker, see `Store.on_check`; `close` ends it, after the question it is at."""

    def __init__(
        self, group: str, ask: Ask, answered: Callable[[int, str], None], clock: Clock
    ) -> None:
        self.group = group
        self._ask = ask
        self._answered = answered
        self.questions: deque[PreparedMessage] = deque()
        self.thread = Background(f"kvmq-checker {group}", self._turn, clock, _INTERVAL)
        self.thread.start()

    def close(self) -> None:
        """Ends the checker; its questions go to the others of its group."""
        self.thread.end()

    @property
    def is_open(self) -> bool:
        """Whether it takes questions."""
        return self.thread.is_alive and not self.thread.is_stopping

    def give(self, question: PreparedMessage) -> None:
        """Lets it answer one more question."""
        self.questions.append(question)
        self.thread.wake.set()

    def _turn(self) -> None:
        while self.questions and not self.thread.is_stopping:
            # It stays in line until it is answered: a turn that fails goes on with it.
            question = self.questions[0]
            self._answered(question.message.position, self._answer(question))
            self.questions.popleft()
            self.thread.did("asking about a transaction")

    def _answer(self, question: PreparedMessage) -> str:
        message = question.message
        shown_message = message.__replace__()
        shown_message.see_as(question.topic, None)
        try:
            answer: object = self._ask(shown_message)
        except Exception as e:
            _log.error("a checker of the group %s failed: %s", self.group, traced(e))
            return "unknown"
        if answer not in ("commit", "rollback", "unknown"):
            _log.error(
                "a checker of the group %s answered %s; it must be 'commit', 'rollback' or "
                "'unknown'",
                self.group, shown(answer),
            )  # fmt: skip
            return "unknown"
        return str(answer)


class Checks:
    """Asks about transactions; see the module. `due` and `run` are a job of the housekeeper."""

    def __init__(self, transactions: Transactions, config: StoreConfig) -> None:
        self._transactions = transactions
        self._clock = config.clock
        self._interval = config.transaction_check_interval
        self._lock = threading.Lock()
        self._checkers: list[Checker] = []
        self._asked: dict[int, float] = {}
        """The positions of the messages that are asked about, and until when an answer counts."""
        self._again_at = self._clock.monotonic() + _LOOK_AGAIN

    def on_check(self, group: str, ask: Ask) -> Checker:
        """See `Store.on_check`."""
        check_group(group)
        if not callable(ask):
            raise CallerError(f"the checker is {shown(ask)}; it must be a function")
        checker = Checker(group, ask, self._answered, self._clock)
        with self._lock:
            self._checkers = [one for one in self._checkers if one.is_open] + [checker]
        self._transactions.look_again()
        return checker

    def stop(self) -> None:
        """Ends all checkers, each after the question it is at; one that hangs is not waited for."""
        with self._lock:
            for one in self._checkers:
                one.close()

    def threads(self) -> list[Background]:
        """The threads of the checkers that go on."""
        return [one.thread for one in self._checkers if one.is_open]

    # --- the job ---

    def due(self) -> bool:
        """Whether a message is to be asked about, or an answer has not come in time."""
        now = self._clock.monotonic()
        if now >= self._again_at or any(until <= now for until in tuple(self._asked.values())):
            return True
        return self._transactions.is_due()

    def run(self) -> None:
        """Hands questions to checkers, gives up what is over, and notes what was not answered."""
        now = self._clock.monotonic()
        if now >= self._again_at:
            self._again_at = now + _LOOK_AGAIN
            self._transactions.look_again()
        for position, until in list(self._asked.items()):
            if until <= now:
                self._answered(position, "unknown")
        for found in self._transactions.take_questions():
            checker = self._checker_of(found.group)
            if checker is not None and found.message.position not in self._asked:
                self._asked[found.message.position] = now + self._interval
                checker.give(found)

    def _checker_of(self, group: str) -> Checker | None:
        with self._lock:
            found = [one for one in self._checkers if one.group == group and one.is_open]
        return min(found, key=lambda one: len(one.questions), default=None)

    def _answered(self, position: int, answer: str) -> None:
        """Ends a transaction as a checker said, or lets it wait for the next check."""
        try:
            end = answer if answer in ("commit", "rollback") else None
            self._transactions.answered(position, end)  # type: ignore[arg-type]  # one of these
        except StoreError as e:
            # The disk is full, or the store is being closed: it is asked about again.
            _log.error("the answer %r about a transaction could not be kept: %s", answer, str(e))
            self._transactions.look_again()
        self._asked.pop(position, None)
