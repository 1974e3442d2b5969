"""Locks are renewed, and messages given up, over the local protocol as in the process itself."""

from __future__ import annotations

import pytest

from kvstore import ReceiptExpired, ServedStore, Store

pytestmark = [pytest.mark.topic(queues=1), pytest.mark.group]


def test_a_client_renews_locks_and_gives_a_message_up(store: Store, client: ServedStore) -> None:
    store.put("t", b"0")
    store.put("t", b"1")
    first, second = client.pop("g", "t", 2, 10.0)

    client.give_up(first.receipt)
    gone, renewed = client.renew_batch([first.receipt, second.receipt], 60.0)

    assert isinstance(gone, ReceiptExpired)
    assert renewed is True
    client.ack(second.receipt)
    assert store.pull("%DLQ%g", 0, 0).messages[0].body == b"0"
    with pytest.raises(ReceiptExpired):
        client.give_up(first.receipt)
