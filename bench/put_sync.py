"""Sixteen threads that each wait for the disk: how many messages share one fdatasync."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kvstore
from bench.figure import Figure, Options
from kvstore import Store, StoreConfig
from kvstore.cli.trial import measure

_THREADS = 16


def run(folder: Path, options: Options) -> list[Figure]:
    """Put from all threads at once, one message a call."""
    size = 128 if options.size is None else options.size
    each = max(1, (options.messages or 32_000) // _THREADS)
    load = measure.Load(messages=each * _THREADS, body=size)
    with kvstore.open(folder / "store", config=StoreConfig(flush="sync")) as store:
        measure.create_topics(store, load)
        before = _syncs(store)
        begin = time.perf_counter()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda thread: _put(store, size, thread, each), range(_THREADS)))
        seconds = time.perf_counter() - begin
        syncs = _syncs(store) - before
    return [
        Figure("16 threads, sync: messages per fdatasync", load.messages / syncs, "msg", 8),
        Figure("16 threads, sync: put", load.messages / seconds, "msg/s"),
    ]


def _put(store: Store, size: int, thread: int, count: int) -> None:
    body = bytes(size)
    topic = measure.topic_of(thread % 8)
    for number in range(count):
        store.put(topic, body, queue=number % 8, tag="paid", keys=(f"{thread}-{number}",))


def _syncs(store: Store) -> int:
    return store.stats().syncs
