"""The calls of a store for those who hold popped messages for long, or for others.

The idea: as in `calls`, of which this is a part: a call hands the work to `pop`. A lock is renewed
under its receipt, so the one who renews and the one who acks need not be the same.

Invariant: a receipt that is not current changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.engine.engine import Engine
from kvstore.pop.ack import AckResult
from kvstore.pop.nack import giving_up
from kvstore.pop.popped import check_seconds
from kvstore.record.validate import listed


class RenewalCalls:
    """The calls, see the module. `engine` has the parts of the open store."""

    _engine: Engine

    def renew_batch(self, receipts: Sequence[str], invisible_for: float) -> list[AckResult]:
        """Lets the locks of messages end `invisible_for` seconds from now, and leaves their
        receipts as they are, so their holders go on with those. Messages that one pop took from one
        queue together are renewed together, by any of their receipts. For each receipt, in order,
        True or the error that `ack` would have raised.

        A receipt of a pop with an `attempt_id` stays good also when the store is opened again after
        the renewal; one without has to be renewed before that by `change_invisible`.

        >>> store.renew_batch([p.receipt for p in popped], 60.0)  # doctest: +SKIP
        [True, True]
        """
        self._engine.log.check_writable()
        asked = receipts if type(receipts) is list else listed("receipts", receipts)
        wanted = check_seconds("invisible_for", invisible_for)
        return self._engine.popping.renewed_rows.renew(asked, wanted)

    def give_up(self, receipt: str) -> None:
        """Makes a message a dead letter of its group at once, however many attempts are left; it
        counts as if this was the last one. `ReceiptExpired`, `ReceiptIllegal`.

        >>> store.give_up(popped.receipt)  # doctest: +SKIP
        """
        self._engine.log.check_writable()
        (result,) = self._engine.popping.acks.change([giving_up(receipt)])
        if not isinstance(result, str):
            raise result
