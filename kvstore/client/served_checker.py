"""A checker of transactions in a client: it answers what the server asks (`Store.on_check`).

Invariant: as `timing.checks.Checker`: an exception, or an answer that is none, counts as "unknown"
and is logged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kvstore.client.exchange import Sent
from kvstore.errors import CallerError, StoreClosed, StoreError, shown
from kvstore.timing.checks import Ask, answer_of
from kvstore.wire.values import read_question

_log = logging.getLogger("kvmq")


class RegisteredChecker(Protocol):
    """The result of `on_check`, as `timing.checks.Checker`."""

    group: str

    @property
    def is_open(self) -> bool:
        """Whether it takes questions."""

    def close(self) -> None:
        """Ends it, after the question it is at."""


class ServedChecker:
    """A registered checker; `close` ends it, after the question it is at."""

    def __init__(
        self, link: Any, group: str, ask: Ask, sent: Sent, answer: Callable[..., Any]
    ) -> None:
        if not callable(ask):
            raise CallerError(f"the checker is {shown(ask)}; it must be a function")
        self.group = group
        self._link = link
        self._ask = ask
        self._sent = sent
        self._answer = answer
        self._is_closing = False
        link.begin(sent)
        link.wait(sent)  # for the first event: it is registered
        if sent.is_done:
            assert sent.error is not None, "a checker has no result before it is closed"
            raise sent.error
        sent.events.popleft()
        self._thread = threading.Thread(target=self._run, name=f"kvmq-checker {group}", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it takes questions."""
        return not self._is_closing and not self._sent.is_done

    def close(self) -> None:
        """Ends the checker; its questions go to the others of its group."""
        if not self._is_closing:
            self._is_closing = True
            self._link.cancel(self._sent)

    def _run(self) -> None:
        while True:
            try:
                self._link.wait(self._sent)
                if self._sent.is_done:
                    break
                event = read_question(self._sent.events.popleft())
                if event is not None:  # one says that it is registered, with a new server
                    number, message = event
                    self._answer(
                        self._sent.number, number, answer_of(self._ask, message, self.group)
                    )
            except StoreClosed:
                break
            except StoreError as e:
                _log.error("the answer about a transaction could not be sent: %s", str(e))
        if self._sent.error is not None and not self._is_closing:
            why = str(self._sent.error)
            _log.error("the checker of the group %s has ended: %s", self.group, why)
