"""Transactions: prepared and committed, one by one, in batches, and in blocks.

The idea: each message is prepared by one call and committed by another, as a program does that
changes a database in between. Rates are of the processor time of the thread that does it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

import kvstore
from bench.figure import Figure, Options
from kvstore import Message, Store
from kvstore.cli.trial.measure import Load, create_topics, messages

_CHUNK: Final = 2048
_BATCH: Final = 32
_GROUP: Final = "bench"


def run_transactions(folder: Path, options: Options) -> list[Figure]:
    """Messages prepared and committed: one by one, in batches of 32, in blocks of two."""
    load = Load(
        messages=options.messages or 200_000, body=128 if options.size is None else options.size
    )
    coming = messages(load)
    ways = {"one": _singly, "32": _in_batches, "block": _in_blocks}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with kvstore.open(folder / "store") as store:
        create_topics(store, load)
        while chunk := list(islice(coming, _CHUNK)):
            for name, end in ways.items():
                seconds[name].append(_seconds(store, end, chunk) / len(chunk))
    found = {name: 1 / median(some) for name, some in seconds.items()}
    unit = "msg/s of processor time"
    return [
        Figure("prepare and commit", found["one"], unit, 20_000),
        Figure("prepare_batch(32) and commit_batch", found["32"], unit, 80_000),
        Figure("transaction of two messages", found["block"], unit),
    ]


def _seconds(
    store: Store, end: Callable[[Store, list[Message]], None], some: list[Message]
) -> float:
    begin = time.thread_time()
    end(store, some)
    return time.thread_time() - begin


def _singly(store: Store, some: list[Message]) -> None:
    for m in some:
        store.commit(
            store.prepare(
                m.topic, m.body, group=_GROUP, queue=m.queue, tag=m.tag, keys=m.keys,
                properties=m.properties,
            )
        )  # fmt: skip


def _in_batches(store: Store, some: list[Message]) -> None:
    for at in range(0, len(some), _BATCH):
        store.commit_batch(store.prepare_batch(some[at : at + _BATCH], group=_GROUP))


def _in_blocks(store: Store, some: list[Message]) -> None:
    for at in range(0, len(some), 2):
        with store.transaction(group=_GROUP) as t:
            t.put_batch(some[at : at + 2])
