"""Delayed messages that wait: putting them, the memory that they take, opening a store with them.

The idea: a ratio is of one run: plain and delayed puts of equal messages come in turn, by the
processor time of the thread that puts. Delays are of 30 days, so nothing is delivered meanwhile.
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
from bench.isolated import isolated
from bench.memory import anonymous_bytes
from kvstore import Message, Store, StoreConfig
from kvstore.cli.trial.measure import Load, create_topics, messages

_DAYS: Final = 30 * 86_400.0
_CHUNK: Final = 4096
_OPENINGS: Final = 3
_TOPIC: Final = "reminders"
_MB: Final = 1_000_000
_NO_CHECKPOINTS: Final = StoreConfig(checkpoint_bytes=1 << 40, checkpoint_interval=1e9)


def run_puts(folder: Path, options: Options) -> list[Figure]:
    """Puts of messages that wait against plain ones, in turn: one by one, and in batches of 32."""
    load = Load(
        messages=options.messages or 500_000, body=128 if options.size is None else options.size
    )
    coming = messages(load)
    seconds: dict[str, list[float]] = {"one": [], "one late": [], "32": [], "32 late": []}
    with kvstore.open(folder / "store") as store:
        create_topics(store, load)
        while chunk := list(islice(coming, _CHUNK)):
            late = [_delayed(message) for message in chunk]
            for name, some, put in (
                ("one", chunk, _put_singly),
                ("one late", late, _put_singly),
                ("32", chunk, _put_in_batches),
                ("32 late", late, _put_in_batches),
            ):
                seconds[name].append(_seconds(store, put, some) / len(some))
    found = {name: median(some) for name, some in seconds.items()}
    return [
        Figure("put of a message that waits", 1 / found["one late"], "msg/s of processor time"),
        Figure(
            "put of a message that waits, against a plain one",
            100 * found["one"] / found["one late"], "%", 80,
        ),
        Figure("put_batch(32) of them", 1 / found["32 late"], "msg/s of processor time"),
        Figure(
            "put_batch(32) of them, against plain ones",
            100 * found["32"] / found["32 late"], "%", 80,
        ),
    ]  # fmt: skip


def _delayed(message: Message) -> Message:
    return message.__replace__(delay=_DAYS)


def _seconds(
    store: Store, put: Callable[[Store, list[Message]], None], some: list[Message]
) -> float:
    begin = time.thread_time()
    put(store, some)
    return time.thread_time() - begin


def _put_singly(store: Store, some: list[Message]) -> None:
    for m in some:
        store.put(
            m.topic, m.body, queue=m.queue, tag=m.tag, keys=m.keys, properties=m.properties,
            delay=m.delay,
        )  # fmt: skip


def _put_in_batches(store: Store, some: list[Message]) -> None:
    for at in range(0, len(some), 32):
        store.put_batch(some[at : at + 32])


def put_waiting(store: Store, count: int, first_due: int, per_ms: int) -> None:
    """Puts so many messages of 16 bytes, each the number of the message, into one queue; `per_ms`
    of them are due in each millisecond from `first_due` on.
    """
    for first in range(0, count, _CHUNK):
        store.put_batch(
            [
                Message(_TOPIC, b"%016d" % n, queue=0, deliver_at=first_due + n // per_ms)
                for n in range(first, min(count, first + _CHUNK))
            ]
        )


def run_memory(folder: Path, options: Options) -> list[Figure]:
    """Memory beside the mapped log of a million messages that wait, before and after a checkpoint,
    and once the store is opened again.
    """
    count = options.messages or 1_000_000
    found = dict[str, tuple[int, int]]()
    for kind in ("plain", "waiting"):
        found[kind] = isolated(_memory, folder / kind, count, kind == "waiting")
    opened = isolated(_opened_memory, folder / "waiting")
    name = f"memory of {count:,} that wait"
    before, after = found["waiting"]
    return [
        Figure(f"{name}, no checkpoint yet", before / _MB, "MB", 100, "lower"),
        Figure("memory of as many plain ones, no checkpoint yet", found["plain"][0] / _MB, "MB",
               better="lower"),
        Figure(f"{name}, after a checkpoint", after / _MB, "MB", 100, "lower"),
        Figure(f"{name}, opened again", opened / _MB, "MB", 100, "lower"),
    ]  # fmt: skip


def _memory(folder: Path, count: int, are_delayed: bool) -> tuple[int, int]:
    """Bytes of memory before and after the checkpoint."""
    with kvstore.open(folder, _NO_CHECKPOINTS) as store:
        store.create_topic(_TOPIC, queues=1)
        due = time.time_ns() // _MB + int(_DAYS * 1000)
        put_waiting(store, 1, due, 1)
        begin = anonymous_bytes()
        put_waiting(store, count, due if are_delayed else due - int(_DAYS * 1000), 1000)
        before = anonymous_bytes() - begin
        store.checkpoint()
        return max(before, 1), max(anonymous_bytes() - begin, 1)


def _opened_memory(folder: Path) -> int:
    """Bytes of memory that a store with messages that wait takes, above an empty one."""
    with kvstore.open(folder.with_name("empty")):
        begin = anonymous_bytes()
    with kvstore.open(folder) as store:
        assert store.timers(_TOPIC).count
        return max(anonymous_bytes() - begin, 1)


def run_opening(folder: Path, options: Options) -> list[Figure]:
    """Opening a store in which ten million messages wait, against one with a tenth of them."""
    count = options.messages or 10_000_000
    few = max(1, count // 10)
    for number in (few, count):
        isolated(_build, folder / str(number), number)
    opened = {number: isolated(_open, folder / str(number)) for number in (few, count)}
    return [
        Figure(f"open, {count:,} wait", opened[count], "s", 2.0, "lower"),
        Figure(f"open, {few:,} wait", opened[few], "s", better="lower"),
    ]


def _build(folder: Path, count: int) -> None:
    config = StoreConfig(segment_size=1 << 26, key_index="off")
    with kvstore.open(folder, config) as store:
        store.create_topic(_TOPIC, queues=1)
        put_waiting(store, count, time.time_ns() // _MB + int(_DAYS * 1000), 100)


def _open(folder: Path) -> float:
    """Seconds until a store is open and says how many messages wait."""
    found = list[float]()
    for _ in range(_OPENINGS):
        begin = time.perf_counter()
        with kvstore.open(folder) as store:
            assert store.timers(_TOPIC, limit=1).messages
            found.append(time.perf_counter() - begin)
    return median(found)
