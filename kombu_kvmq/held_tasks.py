"""Held tasks: the receipts of messages that a worker has not acked, and their renewal.

The idea: a message is under a lock of some seconds, which is renewed while the worker lives. So a
task may run for hours, and the tasks of a worker that died come to others within seconds.

Invariants: a receipt is used by one thread at a time; a message is acked or given back once.
"""

from __future__ import annotations

import logging
import threading

from kvstore import ReceiptExpired, ServedStore, StoreError

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
        with self._mutex:
            receipt = self._receipts.pop(tag, None)
            if receipt is None:
                return
            try:
                self._store.ack(receipt)
            except ReceiptExpired as e:
                _log.warning("a task ended behind its lock, and runs again: %s", e)

    def give_back(self, tag: str) -> None:
        """The message goes to the next worker that asks."""
        with self._mutex:
            receipt = self._receipts.pop(tag, None)
            if receipt is None:
                return
            try:
                self._store.change_invisible(receipt, 0)
            except ReceiptExpired as e:
                _log.warning("a task was given back behind its lock: %s", e)

    def end(self) -> None:
        """Ends the renewals."""
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(self.lock_seconds / 3):
            with self._mutex:
                for tag, receipt in list(self._receipts.items()):
                    try:
                        renewed = self._store.change_invisible(receipt, self.lock_seconds)
                    except ReceiptExpired as e:
                        _log.warning("a task's lock was lost: %s", e)
                        del self._receipts[tag]
                    except StoreError as e:
                        # The lock holds for two more turns.
                        _log.warning("a task's lock could not be renewed: %s", e)
                        break
                    else:
                        self._receipts[tag] = renewed
