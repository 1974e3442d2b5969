"""kill -9 of a writer that delays, cancels and changes messages: each comes once, or not at all.

A writer is a child process that puts messages due within a third of a second, cancels some and
changes others, while the store delivers. The parent kills it at any time, and has the next one go
on in the same folder; the first one lives until each kind of answer has come. At last everything
has come that was not cancelled, and nothing twice; also in the index that a rebuild makes of the
log. KVMQ_SEED=number repeats the draws of a run, though not its timing; KVMQ_KILLS=number makes it
longer.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import kvstore
from kvstore import DelayEnded, Message, Store, StoreConfig
from tests.support.children import Child, Teller
from tests.support.contents import assert_whole
from tests.support.stores import settings

SEED: Final = int(os.environ.get("KVMQ_SEED", "0")) or Random().getrandbits(32)
KILLS: Final = int(os.environ.get("KVMQ_KILLS", "6"))
_LATEST: Final = 0.3
"""Seconds of the longest delay."""


def config() -> StoreConfig:
    """Everything happens often: segments of 64 KiB, a checkpoint every 50 KB."""
    return settings(checkpoint_bytes=50_000, busy_timeout=20.0)


class Told:
    """The answers that writers got for their messages, by name."""

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.asked: set[str] = set()
        """Those that a call was cancelling, answered or not."""
        self.cancelled: set[str] = set()
        self.delivered: set[str] = set()
        """Those that could not be cancelled, since they were delivered."""

    def note(self, lines: Iterable[str]) -> None:
        by_verb = {
            "put": self.put, "cancelling": self.asked, "True": self.cancelled,
            "False": self.delivered,
        }  # fmt: skip
        for line in lines:
            verb, *names = line.split(" ")
            if verb in by_verb:
                by_verb[verb].update(names)

    def every_kind(self) -> bool:
        """Whether each kind of answer has come."""
        return min(len(self.put), len(self.cancelled), len(self.delivered)) > 0


def write(tell: Teller, path: Path, writer: int) -> None:
    """Opens the store, and puts, cancels and changes without end."""
    random = Random(SEED * 1000 + writer)
    store = kvstore.open(path, config())
    store.create_topic("t", queues=1, exist_ok=True)
    tell("opened")
    number = 0
    older: list[tuple[str, str]] = []
    while True:
        names = [f"{writer}.{n}" for n in range(number, number + random.choice((1, 1, 8, 40)))]
        number += len(names)
        put = store.put_batch(
            [Message("t", n.encode(), delay=random.uniform(0.001, _LATEST)) for n in names]
        )
        tell("put " + " ".join(names))
        for name, one in zip(names, put, strict=True):
            chance = random.random()
            if chance < 0.2:
                cancel(store, tell, name, one.message_id)
            elif chance < 0.4:
                with suppress(DelayEnded):
                    store.change_delay(one.message_id, delay=random.uniform(0.0, _LATEST))
            elif chance < 0.5:
                older.append((name, one.message_id))
        if older:
            cancel(store, tell, *older.pop(random.randrange(len(older))))


def cancel(store: Store, tell: Teller, name: str, message_id: str) -> None:
    """Cancels a message that was not cancelled before, and tells the answer."""
    tell(f"cancelling {name}")
    tell(f"{store.cancel(message_id)} {name}")


def names_in(store: Store) -> Counter[str]:
    """How often each message came, once none waits."""
    while store.timers().count:
        time.sleep(0.02)
    return Counter(m.body.decode() for m in assert_whole(store)[("t", 0)])


def check(found: Counter[str], told: Told) -> None:
    """All that was put is there once, but for what was cancelled."""
    assert [name for name, times in found.items() if times > 1] == []
    assert told.cancelled.isdisjoint(found)
    assert told.delivered <= set(found)
    assert told.put - told.asked <= set(found)


def test_whatever_is_killed_what_is_due_comes_once_and_what_was_cancelled_never(
    tmp_path: Path,
) -> None:
    random, told, path = Random(SEED), Told(), tmp_path / "s"
    for writer in range(KILLS):
        child = Child(write, path, writer)
        told.note([child.wait_for("opened"), child.wait_for("put")])
        lines = child.lines()
        while not told.every_kind():
            told.note([next(lines)])
        told.note(child.lines(random.uniform(0.05, 0.5)))
        told.note(child.kill())
    with kvstore.open(path, config()) as store:
        found = names_in(store)
        check(found, told)
    kvstore.rebuild(path, config())
    with kvstore.open(path, config()) as store:
        assert names_in(store) == found
