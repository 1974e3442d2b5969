"""Puts a source into a store, in batches, and remembers what the checks need.

The idea: what is remembered is small and fixed in size: counts, and a fair sample of messages
together with what the store said about each when it took it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from kvstore import Message, PutResult, Store, TopicConfig
from kvstore.cli.demo.sources import QUEUES, Source
from kvstore.cli.draws import Sample
from kvstore.cli.output import Report
from kvstore.cli.places import index_of, say_place
from kvstore.clock import SystemClock
from kvstore.errors import CallerError

BATCH: Final = 64
"""Messages of one put_batch."""

_SAMPLE: Final = 10_000


class Loaded(msgspec.Struct):
    """What was put. `seconds` is the time spent in the store, not in reading the source."""

    messages: int = 0
    keys: int = 0
    body_bytes: int = 0
    log_bytes: int = 0
    seconds: float = 0.0
    queues: Counter[tuple[str, int]] = msgspec.field(default_factory=Counter)
    """Messages of each queue that has any."""
    topics: set[str] = msgspec.field(default_factory=set)
    sample: list[tuple[Message, PutResult]] = msgspec.field(default_factory=list)


def load(store: Store, source: Source, report: Report) -> Loaded:
    """Put all of a source, creating topics as they come up."""
    clock = SystemClock()
    loaded = Loaded()
    sample: Sample[tuple[Message, PutResult]] = Sample(_SAMPLE)
    for batch in _batches(source.messages()):
        begin = clock.monotonic()
        _create_topics(store, loaded, batch)
        results = _put(store, source, loaded.messages, batch)
        loaded.seconds += clock.monotonic() - begin
        _remember(loaded, sample, batch, results)
        report("putting", loaded.messages, 0)
    begin = clock.monotonic()
    store.checkpoint()
    loaded.seconds += clock.monotonic() - begin
    loaded.sample = sample.items
    return loaded


def _put(store: Store, source: Source, done: int, batch: list[Message]) -> list[PutResult]:
    """Put a batch; an error about one of its messages says where in the source that stands."""
    try:
        return store.put_batch(batch)
    except CallerError as e:
        at = index_of(e, len(batch))
        if at is not None:
            say_place(e, source.place(done + at))
        raise


def _batches(messages: Iterator[Message]) -> Iterator[list[Message]]:
    while batch := list(islice(messages, BATCH)):
        yield batch


def _create_topics(store: Store, loaded: Loaded, batch: list[Message]) -> None:
    new = {message.topic for message in batch} - loaded.topics
    if new:
        store.create_topics([TopicConfig(name=name, queues=QUEUES) for name in sorted(new)])
        loaded.topics |= new


def _remember(
    loaded: Loaded,
    sample: Sample[tuple[Message, PutResult]],
    batch: list[Message],
    results: list[PutResult],
) -> None:
    for message, result in zip(batch, results, strict=True):
        loaded.keys += len(message.keys) + 1  # the unique id is indexed as well
        loaded.body_bytes += len(message.body)
        loaded.log_bytes += result.size
        loaded.queues[result.topic, result.queue] += 1
        slot = sample.slot()
        if slot is not None:
            sample.put(slot, (message, result))
    loaded.messages += len(batch)
