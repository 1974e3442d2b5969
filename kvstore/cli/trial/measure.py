"""Measure: the timed runs of benchmarks: put, pull, get, query.

The idea: one `Load` says how many messages of what size go to how many queues; every function takes
it and returns how much was done in how many seconds. Messages are made outside the measured time,
because a program has its messages already; everything the store does with them is inside, down to
the checkpoint that puts the last of them into the index.

Invariant: the same load gives the same messages in the same queues every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore import Message, Store, StoreConfig, TopicConfig
from kvstore.cli.terminal.output import Report
from kvstore.clock import SystemClock

_CHUNK: Final = 4096
"""Messages made at once, before the clock starts."""
_CREATED_AT_ONCE: Final = 10_000
_TAGS: Final = ("created", "paid", "packed", "shipped", "delivered", "returned", "closed", "lost")


class Load(msgspec.Struct, frozen=True):
    """The messages to put: `messages` bodies of `body` bytes, over topics x queues drawn at
    random.
    """

    messages: int
    body: int = 128
    topics: int = 8
    queues: int = 8
    batch: int = 32
    seed: int = 1
    tags: int = 8
    """How many different tags, 1 to 8, the messages have in turn."""


class Timed(msgspec.Struct, frozen=True):
    """The amount of work, and its time."""

    count: int
    seconds: float

    @property
    def rate(self) -> float:
        """The amount a second."""
        return self.count / self.seconds if self.seconds else 0.0


def topic_of(number: int) -> str:
    """The name of a load's topic."""
    return f"bench-{number}"


def key_of(number: int) -> str:
    """The key of a load's message."""
    return f"order-{number}"


def create_topics(store: Store, load: Load) -> None:
    """Make the load's topics, in large atomic batches."""
    numbers = iter(range(load.topics))
    while names := [topic_of(number) for number in islice(numbers, _CREATED_AT_ONCE)]:
        store.create_topics([TopicConfig(name=name, queues=load.queues) for name in names])


def drawn_queues(load: Load) -> NDArray[np.int32]:
    """The queue of each message, counted over all topics."""
    rng = np.random.default_rng(load.seed)
    return rng.integers(0, load.topics * load.queues, load.messages, dtype=np.int32)


def messages(load: Load) -> Iterator[Message]:
    """The load's messages: one tag, one key and one property each; the store adds the unique id."""
    names = [topic_of(number) for number in range(load.topics)]
    body = np.random.default_rng(load.seed).bytes(load.body)
    # Not `tolist()` of all numbers: that would be 60 MB of the memory that is being measured.
    for number, place in enumerate(map(int, drawn_queues(load))):
        yield Message(
            topic=names[place // load.queues],
            body=body,
            queue=place % load.queues,
            tag=_TAGS[number % load.tags],
            keys=(key_of(number),),
            properties={"region": "eu"},
        )


def put_batches(store: Store, load: Load, report: Report | None = None) -> Timed:
    """Put everything in batches, and checkpoint: written, flushed and indexed inside the time."""
    clock = SystemClock()
    seconds = 0.0
    done = 0
    coming = messages(load)
    size = load.batch
    while chunk := list(islice(coming, max(_CHUNK // size, 1) * size)):
        begin = clock.monotonic()
        for at in range(0, len(chunk), size):
            store.put_batch(chunk[at : at + size])
        seconds += clock.monotonic() - begin
        done += len(chunk)
        if report:
            report("putting", done, load.messages)
    begin = clock.monotonic()
    store.checkpoint()
    return Timed(done, seconds + clock.monotonic() - begin)


def put_singly(store: Store, load: Load) -> Timed:
    """Put everything one by one, and checkpoint."""
    clock = SystemClock()
    seconds = 0.0
    coming = messages(load)
    while chunk := list(islice(coming, _CHUNK)):
        begin = clock.monotonic()
        for m in chunk:
            store.put(
                m.topic, m.body, queue=m.queue, tag=m.tag, keys=m.keys, properties=m.properties
            )
        seconds += clock.monotonic() - begin
    begin = clock.monotonic()
    store.checkpoint()
    return Timed(load.messages, seconds + clock.monotonic() - begin)


def pull_everything(store: Store, load: Load, limit: int = 32) -> Timed:
    """Pull every queue to its end, bodies checked against their CRC."""
    clock = SystemClock()
    count = 0
    begin = clock.monotonic()
    for topic in map(topic_of, range(load.topics)):
        for queue in range(load.queues):
            offset = 0
            while (found := store.pull(topic, queue=queue, offset=offset, limit=limit)).messages:
                count += len(found.messages)
                offset = found.next_offset
    return _complete(Timed(count, clock.monotonic() - begin), load.messages)


def get_at_random(store: Store, load: Load, count: int) -> Timed:
    """Get single messages by queue and offset, drawn at random."""
    clock = SystemClock()
    held = np.bincount(drawn_queues(load), minlength=load.topics * load.queues)
    rng = np.random.default_rng(load.seed + 1)
    places = rng.choice(np.flatnonzero(held), count)
    offsets = rng.integers(0, held[places])
    wanted = [
        (topic_of(place // load.queues), place % load.queues, offset)
        for place, offset in zip(places.tolist(), offsets.tolist(), strict=True)
    ]
    right = 0
    begin = clock.monotonic()
    for topic, queue, offset in wanted:
        right += store.get(topic, queue=queue, offset=offset).offset == offset
    return _complete(Timed(right, clock.monotonic() - begin), count)


def query_at_random(store: Store, load: Load, count: int) -> Timed:
    """Query keys drawn at random; each is carried by exactly one message."""
    clock = SystemClock()
    places = drawn_queues(load)
    rng = np.random.default_rng(load.seed + 2)
    wanted = [
        (topic_of(int(places[number]) // load.queues), key_of(number))
        for number in rng.integers(0, load.messages, count).tolist()
    ]
    found = 0
    begin = clock.monotonic()
    for topic, key in wanted:
        found += len(store.query(topic, key=key, limit=8))
    return _complete(Timed(found, clock.monotonic() - begin), count)


def _complete(timed: Timed, expected: int) -> Timed:
    """Raise for wrong answers: a benchmark that got some has no figure."""
    if timed.count != expected:
        raise AssertionError(f"{timed.count:,} messages were found, not {expected:,}")
    return timed


def load_store(folder: Path, load: Load, config: StoreConfig | None = None) -> Timed:
    """Make a store that holds a load, and close it."""
    import kvstore

    with kvstore.open(folder, config=config or StoreConfig()) as store:
        create_topics(store, load)
        return put_batches(store, load)
