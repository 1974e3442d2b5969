"""The calls of a store that is measured. Needs Python alone: a peer has its own environment."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as counting
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.memory import anonymous_bytes

TAGS = ("created", "paid", "packed", "shipped", "delivered", "returned", "closed", "lost")


class Item(NamedTuple):
    """A message. Stores that make unique ids themselves don't take `unique`."""

    topic: int
    queue: int
    body: bytes
    tag: str
    key: str
    region: str
    unique: str


def items(count: int | None, size: int, topics: int, queues: int, begin: int = 0) -> Iterator[Item]:
    """Messages over queues drawn at random, the same ones for every store; None is without end."""
    rng = Random(begin)
    body = rng.randbytes(size)
    for n in islice(counting(begin), count):
        topic, queue = divmod(int(rng.random() * topics * queues), queues)
        yield Item(topic, queue, body, TAGS[n % 8], f"order-{n}", "eu", f"{n:032X}")


class Peer:
    """A store in `folder`. A call that it has not raises NotImplementedError."""

    queues_of_own = True
    """Whether a topic has queues that are read one by one."""

    def __init__(self, folder: Path, sync: bool) -> None:
        self.folder, self.sync = folder, sync

    def create(self, topics: int, queues: int) -> None:
        """Make topics, where they must be made."""

    def put_batch(self, batch: list[Item]) -> list[Any]:
        """Put messages; where each of them is."""
        raise NotImplementedError

    def put(self, item: Item) -> Any:
        """Put one."""
        return self.put_batch([item])[0]

    def columns_of(self, rows: list[Item]) -> Any:
        """Messages of topic 0 as columns, which are made off the clock."""
        raise NotImplementedError

    def put_columns(self, columns: Any) -> int:
        """Put them; how many they are."""
        raise NotImplementedError

    def pull(self, topic: int, queue: int, after: Any) -> tuple[list[tuple[Any, ...]], Any]:
        """Up to 32 messages behind a cursor (None: from the first), every field of them, and the
        next cursor.
        """
        raise NotImplementedError

    def get(self, place: Any) -> bytes:
        """The body of one message."""
        raise NotImplementedError

    def query(self, topic: int, key: str) -> int:
        """How many messages have a key; their bodies are read."""
        raise NotImplementedError

    def pop(self, limit: int) -> list[Any]:
        """Messages of topic 0 under locks, their bodies read; what acks them."""
        raise NotImplementedError

    def ack(self, handles: list[Any]) -> None:
        """Done with them."""
        raise NotImplementedError

    def put_delayed(self, item: Item, due: int) -> Any:
        """Put one that is delivered at a time in ms; what cancels it."""
        raise NotImplementedError

    def delivered(self) -> int:
        """How many messages of topic 0 were delivered."""
        raise NotImplementedError

    def cancel(self, handle: Any) -> None:
        """See to it that a message which waits is not delivered."""
        raise NotImplementedError

    def transact(self, item: Item) -> None:
        """Prepare a message by one call, and commit it by another."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until what was put can be found."""

    def another(self) -> Peer:
        """A client of this store for another thread."""
        return self

    def pids(self) -> list[int]:
        """Processes beside this one whose memory counts."""
        return []

    def close(self) -> None:
        """End it; may be called twice."""


def resident(pids: list[int]) -> int:
    """Bytes of memory of processes, without pages of files that they map."""
    return sum(map(anonymous_bytes, pids)) if pids else anonymous_bytes()


def on_disk(folder: Path) -> int:
    """Bytes that files take."""
    return sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())
