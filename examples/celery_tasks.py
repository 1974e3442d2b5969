"""Tasks of Celery over a served store.

kvmq serve data --create
celery -A examples.celery_tasks -b kvmq+unix:///PATH/data/kvmq.sock worker
"""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep

from celery import Celery

import kombu_kvmq  # noqa: F401  # registers the broker's transport

app = Celery("orders", broker=os.environ.get("BROKER", "kvmq://127.0.0.1:7411"))
app.conf.update(
    task_acks_late=True,  # a task counts as done when it has ended, not when it has begun
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"lock": float(os.environ.get("LOCK", "30"))},
)


@app.task  # type: ignore[untyped-decorator]  # celery has no types
def ship(order: str, seconds: float = 0.0) -> None:
    """Ships an order, which takes a while; the notes say when."""
    note(f"begin {order}")
    sleep(seconds)
    note(f"end {order}")


def note(line: str) -> None:
    """Writes a line to the file of notes."""
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{line}\n")
