"""Small stores to break: settings, messages, stores left as a crash leaves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, ParamSpec

import msgspec
import pytest

import kvstore
from kvstore import Message, PutResult, Store, StoreConfig
from tests.support.files import copy_folder

P = ParamSpec("P")
Opens = Callable[..., Store]
"""The fixture `opens`: opens a store under the test's folder, and closes it at the end."""
SEGMENT: Final = 64 << 10
SMALL: Final = StoreConfig(segment_size=SEGMENT)
"""Nothing happens by itself within a test: no checkpoint, no retention."""


def settings(**changed: Any) -> StoreConfig:
    """`SMALL` with changes."""
    return msgspec.structs.replace(SMALL, **changed)


def body(number: int, size: int = 200) -> bytes:
    """A body of `size` bytes that says its number, all over."""
    head = b"message %d " % number
    return (head * (size // len(head) + 1))[:size]


def message(number: int, size: int = 200, *, topic: str = "t", queue: int = 0) -> Message:
    """Message `number`, to be found by key "k-`number`" and, with others, by "all"."""
    return Message(
        topic,
        body(number, size),
        queue=queue,
        tag=f"tag{number % 3}",
        keys=(f"k-{number}", "all"),
        properties={"n": str(number)},
    )


def put(
    store: Store, first: int, count: int, size: int = 200, *, topic: str = "t", queue: int = 0
) -> list[PutResult]:
    """Put messages `first` to `first + count - 1`, one by one."""
    return [
        store.put_batch([message(n, size, topic=topic, queue=queue)])[0]
        for n in range(first, first + count)
    ]


@contextlib.contextmanager
def opened(path: Path, config: StoreConfig = SMALL) -> Iterator[Store]:
    """A store with topic "t" of 2 queues."""
    with kvstore.open(path, config=config) as store:
        if not any(t.name == "t" for t in store.topics()):
            store.create_topic("t", queues=2)
        yield store


def furnish(store: Store, test: pytest.FixtureRequest, queues: int) -> Store:
    """With the topics and groups that the test's marks `topic` and `group` name, which are "t" and
    "g" unless they say otherwise; without the mark, with topic "t" of so many queues.
    """
    topics = list(test.node.iter_markers("topic")) or [pytest.mark.topic(queues=queues).mark]
    for mark in reversed(topics):
        store.create_topic(*(mark.args or ("t",)), **mark.kwargs)
    for mark in test.node.iter_markers("group"):
        store.create_group(*(mark.args or ("g",)), **mark.kwargs)
    return store


@contextlib.contextmanager
def openings(
    make: Callable[P, Store], *, one_at_a_time: bool = False
) -> Iterator[Callable[P, Store]]:
    """Opens stores by `make`, and closes all in the end; with `one_at_a_time` an opening closes the
    stores opened before.
    """
    opened: list[Store] = []

    def open_store(*args: P.args, **kwargs: P.kwargs) -> Store:
        for store in opened if one_at_a_time else ():
            store.close()
        opened.append(make(*args, **kwargs))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def killed(store: Store, target: Path) -> Path:
    """The folder as it would be had the process been killed now."""
    copy_folder(store.path / "index", target / "index")
    copy_folder(store.path / "commitlog", target / "commitlog")
    (target / "lock").write_bytes((store.path / "lock").read_bytes())
    return target


def cut_to(path: Path, durable: int) -> None:
    """Leaves of the log of the store at `path` what is before a position, as a power cut may."""
    for file in (path / "commitlog").iterdir():
        data = bytearray(file.read_bytes())
        at = min(max(0, durable - int(file.name)), len(data))
        data[at:] = bytes(len(data) - at)
        file.write_bytes(bytes(data))


def segment(path: Path, number: int) -> Path:
    """The file of a segment."""
    return path / "commitlog" / f"{number * SEGMENT:020d}"


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Change bytes of the log of the store at `path`."""
    number, at = divmod(position, SEGMENT)
    with segment(path, number).open("rb+") as f:
        f.seek(at)
        f.write(data)


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Flip a bit of the log of the store at `path`."""
    number, at = divmod(position, SEGMENT)
    with segment(path, number).open("rb+") as f:
        f.seek(at)
        old = f.read(1)[0]
        f.seek(at)
        f.write(bytes([old ^ 1 << bit]))
