"""kill -9 of a process that consumes: every message is handled, and ordered ones in their order.

A child consumes with failing handlers and tells of each message that a handler has done; its parent
kills it at any time, and the next child goes on. KVMQ_CONSUME_KILLS=number makes it longer.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Final

import kvstore
from kvstore import Message, Popped
from tests.support.children import Child, Teller
from tests.support.stores import settings

KILLS: Final = int(os.environ.get("KVMQ_CONSUME_KILLS", "8"))
MESSAGES: Final = 600
GROUPS: Final = 7
TRIES: Final = 20
DIES: Final = 11
"""Every so manieth message fails for good."""


def consume(tell: Teller, path: Path) -> None:
    """Consumes until there is nothing."""

    def handle(popped: Popped) -> None:
        message = popped.message
        number = int(message.body)
        if number % DIES == 0 or (popped.attempt + number) % 5 == 0:
            raise ValueError(f"{number} fails")
        tell(f"{message.topic} {message.message_group} {number}")

    with kvstore.open(path, settings()) as store:
        tell("opened")
        consumer = store.consume(
            "g", ["a", "b"], handle, concurrency=4, prefetch=8, invisible_for=0.3, until_empty=True
        )
        consumer.wait()


def lags(path: Path) -> list[int]:
    with kvstore.open(path, settings()) as store:
        return [lag.lag for topic in "ab" for lag in store.lag("g", topic)]


def dead_letters(store: kvstore.Store) -> dict[str, set[int]]:
    """The numbers of each topic's dead letters, which name their errors."""
    dead = defaultdict[str, set[int]](set)
    offset = 0
    while found := store.pull("%DLQ%g", 0, offset, 256).messages:
        offset = found[-1].offset + 1
        for m in found:
            assert m.properties["DLQ_NACK_REASON"] == f"ValueError: {int(m.body)} fails"
            dead[m.properties["DLQ_ORIGIN_TOPIC"]].add(int(m.body))
    return dead


def test_every_message_is_handled_or_a_dead_letter_and_order_is_kept(tmp_path: Path) -> None:
    path, random = tmp_path / "s", Random()
    with kvstore.open(path, settings()) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, queues=3)
            store.put_batch(
                [Message(topic, b"%d" % n, message_group=f"m{n % GROUPS}") for n in range(MESSAGES)]
            )
        store.create_group("g", ordered=True, max_attempts=100, backoff=[])
    done = defaultdict[str, list[int]](list)

    def note(lines: Iterable[str]) -> None:
        for line in lines:
            if line != "opened":
                topic, group, number = line.split()
                done[f"{topic} {group}"].append(int(number))

    for _ in range(KILLS):
        with Child(consume, path) as child:
            child.wait_for("opened")
            note(child.lines(random.uniform(0.05, 0.4)))
            note(child.kill())
    with kvstore.open(path, settings()) as store:
        store.alter_group("g", max_attempts=3)
    # Locks of the killed consumer may outlast one that finds nothing more.
    for _ in range(TRIES):
        with Child(consume, path) as child:
            note(child.join())
        if not any(lags(path)):
            break
    for numbers in done.values():
        assert numbers == sorted(numbers), "a message came before one that was not done"
    with kvstore.open(path, settings()) as store:
        dead = dead_letters(store)
    assert lags(path) == [0] * 6
    for topic in ("a", "b"):
        handled = {n for key, numbers in done.items() if key.startswith(topic) for n in numbers}
        assert handled | dead[topic] == set(range(MESSAGES))
        assert {n for n in range(MESSAGES) if n % DIES == 0} <= dead[topic]
