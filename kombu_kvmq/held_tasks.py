"""Held tasks: the receipts of messages that a worker has not acked, and their renewal.

The idea: a message is under a lock of some seconds, which is renewed while the worker lives. So a
task may run for hours, and the tasks of a worker that died come to others within seconds.

Invariants: a receipt is used by one thread at a time; a message is acked or given back once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kvstore import ReceiptExpired, ServedStore

_log = logging.getLogger("kombu_kvmq")


class HeldTasks:
    """The messages that one channel holds. `lock` is how long one is locked, in seconds."""

    def __init__(self, store: ServedStore, lock: float) -> None:
        self._store = store
        self.lock_seconds = lock
        self._receipts: dict[str, str] = {}
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="kvmq-renew", daemon=True)
        self._thread.start()

    def add(self, tag: str, receipt: str) -> None:
        """Holds a message from now on."""
        with self._mutex:
            self._receipts[tag] = receipt

    def ack(self, tag: str) -> None:
        """The message is done. If its lock was lost, somebody else has it by now."""
        self._end(tag, self._store.ack)

    def give_back(self, tag: str) -> None:
        """The message goes to the next worker that asks."""
        self._end(tag, lambda receipt: self._store.change_invisible(receipt, 0))

    def _end(self, tag: str, call: Callable[[str], object]) -> None:
        with self._mutex:
            receipt = self._receipts.pop(tag, None)
            if receipt is None:
                return
            try:
                call(receipt)
            except ReceiptExpired as e:
                _log.warning("a task ended behind its lock, and others may run it: %s", e)

    def end(self) -> None:
        """Ends the renewals."""
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(self.lock_seconds / 3):
            with self._mutex:
                held = dict(self._receipts)
                try:
                    results = self._store.change_invisible_batch(
                        list(held.values()), self.lock_seconds
                    )
                except Exception as e:
                    # The locks hold for two more turns, and all later tasks need this thread.
                    _log.warning("the locks of tasks could not be renewed: %s", e)
                    continue
                for tag, renewed in zip(held, results, strict=True):
                    if isinstance(renewed, str):
                        self._receipts[tag] = renewed
                    else:
                        _log.warning("a task's lock was lost: %s", renewed)
                        del self._receipts[tag]
