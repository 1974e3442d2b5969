"""The search by time in a queue that has offsets which nobody has, behind others in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore import Message, StoreConfig
from tests.support.clock import VirtualClock
from tiering import Policy, Worker

SEGMENT = 64 << 10


@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointed", "in memory"])
def test_times_before_and_behind_an_erased_stretch_lead_where_they_should(
    tmp_path: Path, checkpointed: bool
) -> None:
    clock = VirtualClock()
    stored: dict[int, int] = {}
    with kvstore.open(tmp_path, StoreConfig(segment_size=SEGMENT, clock=clock)) as store:
        for topic in ("orders", "others"):
            store.create_topic(topic, queues=1)

        def put(keys: list[str]) -> None:
            for _ in range(5):
                clock.advance(1.0)
                (found,) = store.put_batch([Message("orders", b"x", keys=keys)])
                stored[found.offset] = store.get("orders", 0, found.offset).stored_at
                store.put("others", b"y")
            store.seal()

        put([])
        put(["gone"])
        store.checkpoint()
        policy = Policy(hot_for=1e6, warm_for=1e7, warm="archive", clock_doubt=0.0)
        with Worker(store, policy) as worker:
            assert worker.erase(key="gone").is_proven
        put([])
        if checkpointed:
            store.checkpoint()
        left = {offset: at for offset, at in stored.items() if not 5 <= offset < 10}
        for at in range(min(stored.values()) - 1, max(stored.values()) + 2, 250):
            due = next((offset for offset, time in left.items() if time >= at), 15)
            found = store.offset_at("orders", 0, at)
            # One that nobody has is as good: reading goes on at the next.
            assert found == due or (5 <= found < 10 and due == 10), at
