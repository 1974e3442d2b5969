"""Batches of 32 by one thread: written, flushed, indexed and checkpointed within the time."""

from __future__ import annotations

from pathlib import Path

from bench.figure import Figure, Options
from bench.loads import load_store
from kvstore.cli.trial.measure import Load

_TARGETS = {128: 300_000, 1024: 250_000}


def run(folder: Path, options: Options) -> list[Figure]:
    """Put a load into a new store."""
    size = 128 if options.size is None else options.size
    load = Load(
        messages=options.messages or (1_000_000 if size < 512 else 500_000),
        body=size,
        topics=options.topics or 8,
        queues=options.queues or 8,
    )
    timed = load_store(folder / "store", load)
    return [Figure(f"put_batch(32), {size} B", timed.rate, "msg/s", _TARGETS.get(size))]
