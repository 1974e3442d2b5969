"""Loads that benchmarks put, beside those of `kvmq bench`: a whole store, and one by one."""

from __future__ import annotations

from pathlib import Path

import kvstore
from bench.figure import Options
from kvstore import Message, Store
from kvstore.cli.trial.measure import Load, Timed, create_topics, put_batches, put_timed


def load_of(options: Options, own: Load) -> Load:
    """A scenario's own load, as far as the options don't change it."""
    return Load(
        messages=options.messages or own.messages,
        body=own.body if options.size is None else options.size,
        topics=options.topics or own.topics,
        queues=options.queues or own.queues,
        tags=options.tags,
    )


def load_store(folder: Path, load: Load) -> Timed:
    """Make a store that holds a load, and close it."""
    with kvstore.open(folder) as store:
        create_topics(store, load)
        return put_batches(store, load)


def put_singly(store: Store, load: Load) -> Timed:
    """Put everything one by one, and checkpoint."""

    def put(chunk: list[Message]) -> None:
        for m in chunk:
            store.put(
                m.topic, m.body, queue=m.queue, tag=m.tag, keys=m.keys, properties=m.properties
            )

    return put_timed(store, load, put)
