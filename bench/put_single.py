"""One message a call, by one thread; indexed and checkpointed within the time."""

from __future__ import annotations

from pathlib import Path

import kvstore
from bench.figure import Figure, Options
from bench.loads import put_singly
from kvstore.cli.trial import measure


def run(folder: Path, options: Options) -> list[Figure]:
    """Put a load into a new store, message by message."""
    size = 128 if options.size is None else options.size
    load = measure.Load(messages=options.messages or 300_000, body=size)
    with kvstore.open(folder / "store") as store:
        measure.create_topics(store, load)
        timed = put_singly(store, load)
    target = 150_000 if size == 128 else None
    return [Figure(f"put, {size} B", timed.rate, "msg/s", target)]
