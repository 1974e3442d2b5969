"""The calls of a store by which groups take messages, and say what became of them.

The idea: as in `calls`, of which this is a part: a call checks its arguments, finds the group and
the topic, and hands the work to `pop`. The call for one message is the call for many with one.

Invariant: a receipt that is not current changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvstore.consume.consumer import ConsumesInThreads
from kvstore.core.popping.receipts import Popped
from kvstore.engine.engine import Engine
from kvstore.errors import ReceiptExpired, ReceiptIllegal
from kvstore.pop.ack import AckResult
from kvstore.pop.nack import LockChange, Nack, nack_change, renewal, undoing
from kvstore.pop.popped import INVISIBLE_DEFAULT, check_wait
from kvstore.pop.several import Several
from kvstore.read.sql import SqlFilter
from kvstore.record.validate import listed

_NO_WAIT: Final = 0.0


class PopCalls(ConsumesInThreads):
    """The calls, see the module. `engine` has the parts of the open store."""

    _engine: Engine

    def pop(
        self,
        group: str,
        topic: str | Sequence[str],
        limit: int = 1,
        invisible_for: float = INVISIBLE_DEFAULT,
        wait: float = _NO_WAIT,
        filter: str | SqlFilter | None = None,
        queue: int | None = None,
        *,
        max_bytes: int | None = None,
        attempt_id: str | None = None,
    ) -> list[Popped]:
        """Takes up to `limit` messages (and `max_bytes` of records, but one at least), each under a
        lock of its own that ends `invisible_for` seconds from now, and the group's backoff later.

        `topic` is a name, a pattern with `*`, `?` or `[...]` (none of which stands for a `%`), or a
        list of names and patterns: then each topic has its turn, and one that is made later belongs
        to its pattern from then on. Messages whose locks ran out come first, then unread messages,
        from all queues in turn or from one. Waits up to `wait` seconds if there is nothing.
        `filter` is a tag expression or a `kvstore.sql(...)`. A message that it refuses, or that has
        expired, is passed over and done for this group; behind thousands of these a pop that
        doesn't wait comes back with nothing, and the next one goes on. A pop whose reply may have
        been lost can be repeated with the same `attempt_id`: it gets the same messages under the
        same locks. `GroupNotFound`, `TopicNotFound`, `QueueNotFound`, `FilterIllegal`,
        `CallerError`; `ArchiveMissing`, `ArchiveUnavailable` if there is nothing but what waits for
        an archive.

        >>> for p in store.pop("billing", "orders", limit=32, wait=5.0):  # doctest: +SKIP
        ...     store.ack(p.receipt)
        """
        engine = self._engine
        engine.log.check_writable()
        known = engine.groups.get(group)
        seconds = 0.0 if wait is _NO_WAIT else check_wait(wait)
        pop = engine.popping.pop
        asked = limit, max_bytes, invisible_for, queue, filter, attempt_id
        asking = pop.asking(known, topic, asked)
        found = asking.claim() if isinstance(asking, Several) else pop.claim(asking)
        return found if found else pop.wait(asking, seconds) if seconds else []

    def ack(self, receipt: str) -> None:
        """Says that a message is done. `ReceiptExpired` if it was handed out again since,
        `ReceiptIllegal` if this is no receipt of this store. Acking twice is good.
        """
        self._engine.log.check_writable()
        (result,) = self._engine.popping.acks.ack([receipt])
        if result is not True:
            raise result

    def ack_batch(self, receipts: Sequence[str]) -> list[AckResult]:
        """Acks many; for each, in order, True or the error that `ack` would have raised."""
        self._engine.log.check_writable()
        asked = receipts if type(receipts) is list else listed("receipts", receipts)
        return self._engine.popping.acks.ack(asked)

    def change_invisible(
        self,
        receipt: str,
        invisible_for: float | None = None,
        *,
        gives_back: bool = False,
    ) -> str:
        """Lets a message's lock end `invisible_for` seconds from now, and the group's backoff come
        behind it, as behind the lock that `pop` made. 0 gives the message back at once, None after
        the backoff; with `gives_back` it comes again after `invisible_for` seconds without one.
        Returns the receipt that holds from now on. A message that is given back from its last
        attempt is a dead letter at once.

        `ReceiptExpired` if the message was acked or handed out again, `ReceiptIllegal`."""
        self._engine.log.check_writable()
        change = renewal(receipt, invisible_for, gives_back=gives_back)
        (result,) = self._engine.popping.acks.change([change])
        if not isinstance(result, str):
            raise result
        return result

    def change_invisible_batch(
        self,
        receipts: Sequence[str],
        invisible_for: float | None = None,
        *,
        gives_back: bool = False,
    ) -> list[str | ReceiptIllegal | ReceiptExpired]:
        """As `change_invisible` for many messages; for each, in order, the receipt that holds from
        now on, or the error that `change_invisible` would have raised.
        """
        self._engine.log.check_writable()
        changes = [
            renewal(receipt, invisible_for, gives_back=gives_back)
            for receipt in listed("receipts", receipts)
        ]
        return self._engine.popping.acks.change(changes)

    def nack(self, receipt: str, delay: float | None = None, reason: str = "") -> None:
        """Gives a message back, for another attempt after the group's backoff for this one, or
        after `delay` seconds; from its last attempt it is a dead letter at once. `reason` is kept
        with the attempt, over restarts, up to 512 bytes; a dead letter has the last reason as its
        property `DLQ_NACK_REASON`. `ReceiptExpired` if the message was acked or handed out again,
        `ReceiptIllegal`.

        >>> store.nack(popped.receipt, reason="the bank is closed")  # doctest: +SKIP
        """
        (result,) = self.nack_batch([Nack(receipt, delay, reason)])
        if result is not True:
            raise result

    def nack_batch(self, nacks: Sequence[Nack]) -> list[AckResult]:
        """Gives many messages back, see `nack`; for each, in order, True or the error that `nack`
        would have raised.
        """
        self._engine.log.check_writable()
        return self._given_back([nack_change(nack) for nack in listed("nacks", nacks)])

    def undo_pop(self, receipts: Sequence[str]) -> list[AckResult]:
        """Gives messages back on which no work was begun: they are due at once, and the attempt
        does not count. For each, in order, True, `ReceiptExpired` or `ReceiptIllegal`.
        """
        self._engine.log.check_writable()
        return self._given_back([undoing(receipt) for receipt in listed("receipts", receipts)])

    def _given_back(self, changes: list[LockChange]) -> list[AckResult]:
        found = self._engine.popping.acks.change(changes)
        return [True if isinstance(result, str) else result for result in found]

    def redrive(self, group: str, limit: int | None = None) -> int:
        """Puts dead letters of a group, up to `limit` of those that were not taken yet, back to it;
        returns how many. The messages become due at once, with 0 attempts, for this group alone.
        Where retention took the message meanwhile, its dead letter is put to the topic it came
        from. `GroupNotFound`; `TopicNotFound` if a message's topic was deleted: what came before it
        was put back.

        >>> store.redrive("billing", limit=100)  # doctest: +SKIP
        100
        """
        self._engine.log.check_writable()
        info = self._engine.groups.get(group)
        self._engine.popping.pop.bury_due(info)
        return self._engine.popping.redrive.redrive(info, limit)
