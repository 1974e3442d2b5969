"""Questions about transactions that a client answers.

The idea: a checker's thread of the store asks, and waits for the answer that a later request
brings. A client that does not answer in time is as good as one that says "unknown".

Invariant: a question has one answer; a late one changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

from kvstore.message import StoredMessage
from kvstore.process.locks import Signal

Answer = Literal["commit", "rollback", "unknown"]


class Questions:
    """The questions of one checker; see the module. Each waits for `within` seconds."""

    def __init__(self, within: float) -> None:
        self._within = within
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Signal, list[Answer]]] = {}
        self._is_closed = False

    def ask(self, send: Callable[[Any], None], message: StoredMessage) -> Answer:
        """Called by the store, in the checker's thread."""
        number, signal, answers = next(self._numbers), Signal(), list[Answer]()
        self._waiting[number] = signal, answers
        try:
            if self._is_closed:
                return "unknown"
            send((number, message))
            signal.wait(self._within)
            return answers[0] if answers else "unknown"
        finally:
            del self._waiting[number]

    def answer(self, number: int, answer: Any) -> None:
        """Called in the loop."""
        found = self._waiting.get(number)
        if found is not None:
            signal, answers = found
            answers.append(answer)
            signal.set()

    def close(self) -> None:
        """Ends the question that waits."""
        self._is_closed = True
        for signal, _ in list(self._waiting.values()):
            signal.set()
