"""Popping and acking: rates, how they hold over millions, and what a message under lock takes.

Every lock is persisted. The log is written before the clock starts; one process, 128 B bodies.
"""

from __future__ import annotations

import threading
from pathlib import Path
from statistics import median

import kvstore
from bench.figure import Figure, Options
from kvstore import Message, Store, TopicConfig
from kvstore.clock import SystemClock

_GROUP = "group"
_TOPIC = "topic"
_WINDOWS = 20
_HELD_FOR = 3600.0

_clock = SystemClock()


def run_batch(folder: Path, options: Options) -> list[Figure]:
    """pop(32) and ack_batch(32), one thread."""
    count = options.messages or 600_000
    with _loaded(folder, options, count) as store:
        rate = _rate(store, count, 32)
    return [Figure("pop(32) + ack_batch(32)", rate, "msg/s", 350_000)]


def run_one(folder: Path, options: Options) -> list[Figure]:
    """pop(1) and ack, one by one."""
    count = options.messages or 200_000
    with _loaded(folder, options, count) as store:
        begin = _clock.monotonic()
        for _ in range(count):
            (popped,) = store.pop(_GROUP, _TOPIC)
            store.ack(popped.receipt)
        rate = count / (_clock.monotonic() - begin)
    return [Figure("pop(1) + ack", rate, "msg/s", 60_000)]


def run_threads(folder: Path, options: Options) -> list[Figure]:
    """Four threads that pop(32) and ack_batch(32), against one."""
    count = max(1024, options.messages or 400_000)
    with _loaded(folder, options, count + 256) as store:
        half = count // 2
        alone = _rate(store, half, 32)
        threads = [threading.Thread(target=_rate, args=(store, half // 4, 32)) for _ in range(4)]
        begin = _clock.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        together = half / (_clock.monotonic() - begin)
    return [
        Figure("4 threads, pop(32) + ack_batch(32)", together, "msg/s"),
        Figure("4 threads against one", 100 * together / alone, "%", 100),
    ]


def run_curve(folder: Path, options: Options) -> list[Figure]:
    """The rate after millions of acks, and with a sixth of them under lock."""
    curve, size = measure_curve(folder, options)
    start = median(rate for _, rate, held in curve[:_ENDS] if not held)
    acked = median(rate for _, rate, held in curve[-2 * _ENDS : -_ENDS] if not held)
    flying = median(rate for _, rate, held in curve[-_ENDS:])
    total, held = curve[-1][0], curve[-1][2]
    return [
        Figure(f"rate after {total / 1e6:.1f} M acked", 100 * acked / start, "% of the start", 90),
        Figure(f"rate with {held / 1e6:.1f} M locked", 100 * flying / start, "% of the start", 90),
        Figure("a locked message on disk, batches of 32", size, "B", 8, better="lower"),
    ]


_ENDS = 5
"""Windows that a figure is the median of."""


def measure_curve(folder: Path, options: Options) -> tuple[list[tuple[int, float, int]], float]:
    """Windows of popping and acking: (messages acked before it, msg/s, messages under lock); at
    last bytes on disk of a message under lock.
    """
    count = options.messages or 5_000_000
    window, held = max(32, count // _WINDOWS), max(32, count // 5)
    curve: list[tuple[int, float, int]] = []
    with _loaded(folder, options, count + held + _ENDS * window) as store:
        acked = 0
        for _ in range(_WINDOWS):
            curve.append((acked, _rate(store, window, 32), 0))
            acked += window
        left = held
        while left > 0:
            left -= len(store.pop(_GROUP, _TOPIC, limit=32, invisible_for=_HELD_FOR))
        for _ in range(_ENDS):
            curve.append((acked, _rate(store, window, 32), held))
            acked += window
    # Closing has moved what was in memory into files.
    with kvstore.open(folder / "store") as store:
        return curve, store.stats().index_bytes["locks"] / held


def run_topics(folder: Path, options: Options) -> list[Figure]:
    """100,000 topics made in one call."""
    count = options.topics or 100_000
    configs = [TopicConfig(name=f"topic-{i}") for i in range(count)]
    with kvstore.open(folder / "store") as store:
        begin = _clock.monotonic()
        store.create_topics(configs)
        seconds = _clock.monotonic() - begin
    return [Figure(f"{count:,} topics made in one call", seconds, "s", 5, better="lower")]


def run_offsets(folder: Path, options: Options) -> list[Figure]:
    """A committed offset, changed alone: among a million of them against among a thousand."""
    queues = 1000
    topics = max(1, (options.messages or 1_000_000) // queues)
    with (
        _committed(folder / "few", 1, queues) as few,
        _committed(folder / "many", topics, queues) as many,
    ):
        # A step that is prime: no two in a row are neighbours.
        places = [divmod(i * 7919 % (topics * queues), queues) for i in range(20_000)]
        for topic, queue in places:
            # Who commits has read before, so the store knows where the queue ends.
            many.bounds(f"topic-{topic}", queue)
            few.bounds("topic-0", queue)
        seconds = [0.0, 0.0]
        # In turn, so that what else this machine does meets both alike.
        for first in range(0, len(places), _AT_A_TIME):
            some = places[first : first + _AT_A_TIME]
            offset = 1 - first // _AT_A_TIME % 2
            seconds[0] += _commit_each(few, [(0, queue, offset) for _, queue in some])
            seconds[1] += _commit_each(many, [(topic, queue, 1) for topic, queue in some])
    return [
        Figure(
            f"offsets committed alone, {topics * queues:,} there",
            len(places) / seconds[1],
            "commits/s",
        ),
        Figure("the same against 1,000 there", 100 * seconds[0] / seconds[1], "%", 90),
    ]


_AT_A_TIME = 1000


def _committed(folder: Path, topics: int, queues: int) -> Store:
    """A store with a message in each of so many queues, and a group's offset 0."""
    names = [f"topic-{i}" for i in range(topics)]
    store = kvstore.open(folder)
    store.create_topics([TopicConfig(name=name, queues=queues) for name in names])
    store.create_group(_GROUP)
    for name in names:
        store.put_batch([Message(name, b"", queue=queue) for queue in range(queues)])
    store.checkpoint()
    for name in names:
        store.commit_offsets((_GROUP, name, queue, 0) for queue in range(queues))
    return store


def _commit_each(store: Store, commits: list[tuple[int, int, int]]) -> float:
    """Commit topic, queue and offset of each; seconds."""
    named = [(f"topic-{topic}", queue, offset) for topic, queue, offset in commits]
    begin = _clock.monotonic()
    for topic, queue, offset in named:
        store.commit_offset(_GROUP, topic, queue, offset)
    return _clock.monotonic() - begin


def _rate(store: Store, count: int, limit: int) -> float:
    """Pop and ack `count` messages; messages a second."""
    begin = _clock.monotonic()
    left = count
    while left > 0:
        found = store.pop(_GROUP, _TOPIC, limit=limit)
        store.ack_batch([popped.receipt for popped in found])
        left -= len(found)
    return count / (_clock.monotonic() - begin)


def _loaded(folder: Path, options: Options, count: int) -> Store:
    """A store with at least so many messages that were not popped yet."""
    store = kvstore.open(folder / "store")
    store.create_topic(_TOPIC, queues=options.queues or 8)
    store.create_group(_GROUP)
    body = bytes(128 if options.size is None else options.size)
    # A pop of 32 may take more than what is left to count.
    for first in range(0, count + 1024, 1000):
        store.put_batch(
            [
                Message(_TOPIC, body, tag="paid", keys=[f"k{i}"], properties={"region": "eu"})
                for i in range(first, first + 1000)
            ]
        )
    store.checkpoint()
    return store
