"""Dedup ids: the time that they add to puts, the bytes that they take, and the opening behind them.

The idea: stores with and without ids get the load in turn, several times, each in a process of its
own: memory that another store has left changes the costs of the next. The least processor time of
each is compared, of all threads: other programs only add to it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import kvstore
from bench.figure import Figure, Options
from bench.isolated import isolated
from bench.loads import load_of
from kvstore import Message, Store
from kvstore.cli.trial import measure
from kvstore.cli.trial.measure import Load

_ROUNDS = 5
_CHUNK = 4096
_WINDOW = 86_400.0
_SHARE = 0.8
_ID_BYTES = 40.0
Put = Callable[[Store, list[Message]], None]


def run(folder: Path, options: Options) -> list[Figure]:
    """Puts with dedup ids, all new, beside puts without: in batches of 32, and one by one."""
    return [
        *_compare(folder, load_of(options, Load(messages=400_000)), "batches of 32", _in_batches),
        *_compare(folder, load_of(options, Load(messages=150_000)), "one by one", _singly),
    ]


def run_window(folder: Path, options: Options) -> list[Figure]:
    """A window of a million ids: its bytes in log and index, and the opening of its store."""
    load = load_of(options, Load(messages=1_000_000))
    sizes, seconds = [], []
    for has_ids in (False, True):
        path = folder / f"ids-{has_ids}"
        _, log = _fill(path, load, _in_batches, has_ids=has_ids)
        sizes.append(log + measure.index_sizes(path).folder)
        begin = time.perf_counter()
        with kvstore.open(path) as store:
            seconds.append(time.perf_counter() - begin)
            again = store.put_batch([_with_id(m, n) for n, m in enumerate(_first(load))])
            assert all(result.duplicate for result in again) is has_ids
    count = f"{load.messages:,} ids"
    return [
        Figure(f"{count}: log and index", (sizes[1] - sizes[0]) / load.messages, "B/id",
               _ID_BYTES, "lower", "an id of 14 bytes"),
        Figure(f"{count}: opening", seconds[1] * 1000, "ms", None, "lower",
               f"{seconds[0] * 1000:.1f} ms without ids"),
    ]  # fmt: skip


def _compare(folder: Path, load: Load, name: str, put: Put) -> list[Figure]:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_ROUNDS):
        for has_ids, found in seconds.items():
            path = folder / "store"
            found.append(isolated(_fill, path, load, put, has_ids=has_ids)[0])
            shutil.rmtree(path)
    plain, with_ids = min(seconds[False]), min(seconds[True])
    return [
        Figure(f"put with dedup ids, {name}", 1e6 * with_ids / load.messages, "us/msg", None,
               "lower", f"processor time; {1e6 * plain / load.messages:.2f} us without ids"),
        Figure(f"its rate against puts without, {name}", plain / with_ids, "", _SHARE),
    ]  # fmt: skip


def _fill(path: Path, load: Load, put: Put, *, has_ids: bool) -> tuple[float, int]:
    """Makes a store of the load; the processor time of its puts and checkpoints, and the bytes of
    its log.
    """
    seconds, done = 0.0, 0
    with kvstore.open(path) as store:
        measure.create_topics(store, load)
        for number in range(load.topics):
            store.alter_topic(measure.topic_of(number), dedup_window=_WINDOW)
        coming = measure.messages(load)
        while chunk := list(islice(coming, _CHUNK)):
            if has_ids:
                chunk = [_with_id(m, n) for n, m in enumerate(chunk, done)]
            begin = time.process_time()
            put(store, chunk)
            seconds += time.process_time() - begin
            done += len(chunk)
        begin = time.process_time()
        store.checkpoint()
        return seconds + time.process_time() - begin, store.stats().end_position


def _first(load: Load) -> list[Message]:
    return list(islice(measure.messages(load), 1000))


def _with_id(message: Message, number: int) -> Message:
    message.dedup_id = f"req-{number:010d}"
    return message


def _in_batches(store: Store, chunk: list[Message]) -> None:
    for at in range(0, len(chunk), 32):
        store.put_batch(chunk[at : at + 32])


def _singly(store: Store, chunk: list[Message]) -> None:
    for m in chunk:
        store.put(
            m.topic, m.body, queue=m.queue, tag=m.tag, keys=m.keys, properties=m.properties,
            dedup_id=m.dedup_id,
        )  # fmt: skip
