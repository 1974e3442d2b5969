"""A store as a small shop would have it, for the browser and for the pictures of the admin page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import kvstore
from kvstore import Message, Store, StoreConfig, TopicConfig
from kvstore.clock import SystemClock
from tiering.operations.worker import Worker
from tiering.policy.policy import Policy

HOSTILE: Final = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


def shop_store(folder: Path) -> Store:
    """Makes the store: orders and their billing, dead letters, and something of all that waits."""
    config = StoreConfig(segment_size=1 << 20)
    store = kvstore.open(folder, config)
    store.create_topics([
        TopicConfig(name="orders", queues=4), TopicConfig(name="refunds", queues=2),
        TopicConfig(name="mails", queues=2), TopicConfig(name="payments", kind="transaction"),
        *[TopicConfig(name=f"sensor-{n:02}", queues=1) for n in range(12)],
    ])  # fmt: skip
    for name, attempts in (("billing", 1), ("mailer", 16), ("warehouse", 16)):
        store.create_group(name, max_attempts=attempts, backoff=[0.0])
    for _ in range(3):
        store.put_batch([_order(n) for n in range(1200)])
    store.put_batch([Message(f"sensor-{n:02}", b"21.5") for n in range(12)])
    store.put("refunds", HOSTILE.encode(), tag="odd", keys=["r-1"], properties={"note": HOSTILE})
    store.put("refunds", bytes(range(256)), tag="scan", keys=["r-2"])
    for n in range(40):
        store.put(
            "mails", f"Dear customer {n}, your order is on its way.".encode(), keys=[f"m-{n}"]
        )
    _work(store)
    now = SystemClock().now_ms()
    for n in range(5):
        store.put("mails", f"reminder {n}".encode(), deliver_at=now + 3_600_000 * (n + 1))
    for n in range(2):
        store.prepare("payments", f"payment {n}".encode(), group="checkout")
    store.schedule("nightly-report", "mails", b"report", cron="30 4 * * *")
    store.schedule("stock", "orders", b"count the stock", every=900.0)
    return store


def _order(number: int) -> Message:
    body = {"order": number, "customer": f"c-{number % 97}", "total": number % 300 + 0.9,
            "items": [{"sku": f"s-{number % 31}", "count": number % 4 + 1}]}  # fmt: skip
    return Message(
        "orders", json.dumps(body).encode(), tag="paid" if number % 3 else "sent",
        keys=[f"o-{number}"], properties={"region": "eu" if number % 2 else "us"},
    )  # fmt: skip


def _work(store: Store) -> None:
    """Takes some messages; seven of them become dead letters."""
    store.ack_batch([p.receipt for p in store.pop("warehouse", "orders", limit=900)])
    store.pop("warehouse", "orders", limit=64, invisible_for=3600)
    store.ack_batch([p.receipt for p in store.pop("mailer", "mails", limit=31)])
    store.ack_batch([p.receipt for p in store.pop("billing", "orders", limit=500)])
    for popped in store.pop("billing", "orders", limit=7):
        store.change_invisible(popped.receipt, 0)
    store.alter_group("billing", max_attempts=3)
    for popped in store.pop("billing", "orders", limit=2):
        store.nack(popped.receipt, delay=0.0, reason="HTTPError: 503 from https://bank.example/")
    store.pop("billing", "orders", limit=12, invisible_for=3600)


def archive(store: Store, folder: Path) -> None:
    """Moves sealed segments into an archive beside the store."""
    store.seal()
    with Worker(store, Policy(hot_for=0.0, warm=str(folder / "warm"))) as worker:
        worker.run_once()
