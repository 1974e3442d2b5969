"""A worker of the web application in `flask_orders`: it ships orders, one at a time each.

STORE=kvmq+unix:///PATH/data/kvmq.sock python -m examples.flask_worker
"""

from __future__ import annotations

import os
import signal

import kvstore


def main() -> None:
    """Works until SIGTERM, and ends the order at hand before it stops."""
    with kvstore.connect(os.environ["STORE"]) as store:
        store.create_topic("orders", queues=4, dedup_window=3600, exist_ok=True)
        store.create_topic("shipped", queues=4, dedup_window=3600, exist_ok=True)
        store.create_group("shipping", max_attempts=5, backoff=[1, 10, 60], exist_ok=True)

        def ship(popped: kvstore.Popped) -> None:
            (order,) = popped.message.keys
            # A worker may die behind this put: the same order again is no second message.
            worker = f"worker {os.getpid()}".encode()
            store.put("shipped", worker, keys=[order], dedup_id=order)

        consumer = store.consume("shipping", "orders", ship, concurrency=1)
        signal.signal(signal.SIGTERM, lambda number, frame: consumer.stop())
        with consumer:
            consumer.wait()


if __name__ == "__main__":
    main()
