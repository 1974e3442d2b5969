"""Transactions against a plain dictionary: each ends once, as a whole, and stays so.

The model knows of each transaction its messages, and how it ended. The store is closed, killed,
rebuilt and checkpointed in between; time passes, and a checker answers as the model says.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvstore
from kvstore import Message, StoredMessage, TransactionEnded
from kvstore.timing.checks import Answer
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import killed, settings

TOPICS: Final = ("a", "b")


class TransactionMachine(RuleBasedStateMachine):
    """The store and the dictionary."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvmq-transactions-"))
        self.clock = VirtualClock()
        self.config = settings(clock=self.clock, transaction_checks=2)
        self.path = self.folder / "store"
        self.number = self.kills = 0
        self.open: dict[str, list[tuple[str, int]]] = {}
        """The messages of each transaction that goes on: topics and numbers."""
        self.checks: dict[str, int] = {}
        self.ended: dict[str, bool] = {}
        self.came: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.answers: dict[str, Answer] = {}
        self.store = kvstore.open(self.path, self.config)
        for topic in TOPICS:
            self.store.create_topic(topic, queues=1)
        self._register()

    def _register(self) -> None:
        self.store.on_check("pay", self._answer)

    def _answer(self, message: StoredMessage) -> Answer:
        answer = self.answers.get(message.message_id, "unknown")
        if answer == "unknown":
            self.checks[message.message_id] += 1
        else:
            self._end(message.message_id, is_commit=answer == "commit")
        return answer

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def _end(self, name: str, *, is_commit: bool) -> None:
        for topic, number in self.open.pop(name):
            if is_commit:
                self.came[topic].append(number)
        self.ended[name] = is_commit

    @rule(topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4))
    def prepare(self, topics: list[str]) -> None:
        t = self.store.transaction(group="pay")
        messages = []
        for topic in topics:
            messages.append((topic, self.number))
            # Ids in order: Hypothesis draws the same ones when it repeats a run.
            name = f"{self.number:08}"
            t.put_batch([Message(topic, b"%d" % self.number, message_id=name)])
            self.number += 1
        name = t.prepare()[0].message_id
        self.open[name], self.checks[name] = messages, 0

    @rule(data=st.data(), is_commit=st.booleans())
    @precondition(lambda self: self.open or self.ended)
    def end(self, data: Any, is_commit: bool) -> None:
        name = data.draw(st.sampled_from(sorted([*self.open, *self.ended])))
        call = self.store.commit if is_commit else self.store.rollback
        if name in self.ended and self.ended[name] is not is_commit:
            with pytest.raises(TransactionEnded):
                call(name)
            return
        call(name)
        if name in self.open:
            self._end(name, is_commit=is_commit)

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        went = [name for name, all_of in self.open.items() if topic in dict(all_of)]
        count = sum(len(self.open[name]) for name in went)
        assert self.store.delete_topic(topic) == count
        for name in went:
            self._end(name, is_commit=False)
        self.came[topic] = []
        self.store.create_topic(topic, queues=1)

    @rule(data=st.data(), answer=st.sampled_from(["commit", "rollback"]))
    @precondition(lambda self: self.open)
    def will_answer(self, data: Any, answer: Answer) -> None:
        self.answers[data.draw(st.sampled_from(sorted(self.open)))] = answer

    @rule(seconds=st.sampled_from([1, 7, 31]))
    def advance(self, seconds: int) -> None:
        before = dict(self.checks)
        self.clock.advance(seconds)
        inside.ask_about_transactions(self.store)
        for name in list(self.open):
            # Asked twice without an answer before: at the next time it was given up.
            if before[name] == self.checks[name] == 2 and not self._waits(name):
                self._end(name, is_commit=False)

    def _waits(self, name: str) -> bool:
        return any(name in (m.message_id, m.set_id) for m in self._listed())

    def _listed(self) -> list[Any]:
        return self.store.transactions(limit=1000).messages

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule(how=st.sampled_from(["close", "kill", "rebuild"]))
    def reopen(self, how: str) -> None:
        path = self.path
        if how == "kill":
            self.kills += 1
            path = killed(self.store, self.folder / f"killed-{self.kills}")
        self.store.close()
        if how == "kill" and self.path != self.folder / "store":
            shutil.rmtree(self.path)
        self.path = path
        if how == "rebuild":
            kvstore.rebuild(path, config=self.config)
        self.store = kvstore.open(path, self.config)
        self._register()

    @invariant()
    def committed_messages_are_there_and_open_ones_wait(self) -> None:
        if not hasattr(self, "store"):
            return
        for topic in TOPICS:
            found = self.store.pull(topic, 0, 0, limit=1000).messages
            assert [int(m.body) for m in found] == self.came[topic]
        waiting = {int(one.message.body) for one in self._listed()}
        assert waiting == {number for one in self.open.values() for _, number in one}
        assert self.store.transactions().count == len(waiting)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = hypothesis_settings(
    hypothesis_settings.default, max_examples=30, stateful_step_count=25
)
