"""Every file operation fails once while messages with dedup ids are put, and the power is cut
before each: an id is known if its message is there, and only then; so all that is put again is
there once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from kvstore import Message, Store
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole
from tests.support.stores import killed, opened, settings
from tests.support.striking import Work, cut_at_each_effect, strike_each_operation

SIZE: Final = 5000
"""Bytes of a body: a batch needs two more segments."""
OLD: Final = [f"old-{n}" for n in range(10)]
NEW: Final = [f"new-{n}" for n in range(20)]
MIXED: Final = [one for pair in zip(OLD, NEW[:10], strict=True) for one in pair] + NEW


def put(store: Store, ids: list[str]) -> list[bool]:
    """Puts messages with these ids; which of them were repeats."""
    batch = [Message("d", one.encode().ljust(SIZE), queue=0, dedup_id=one) for one in ids]
    return [result.duplicate for result in store.put_batch(batch)]


def rows(store: Store, clock: VirtualClock) -> None:
    bodies = [one.encode().ljust(SIZE) for one in MIXED]
    columns = {"body": bodies, "queue": [0] * len(MIXED), "dedup_id": MIXED}
    assert store.put_columns("d", pa.record_batch(columns)).duplicates == 20


def checkpoint(store: Store, clock: VirtualClock) -> None:
    put(store, NEW)
    store.checkpoint()


PATHS: Final[dict[str, tuple[Work, list[str]]]] = {
    "a message": (lambda store, clock: put(store, NEW[:1]), NEW[:1]),
    "a repeat": (lambda store, clock: put(store, [OLD[0], NEW[0]]), NEW[:1]),
    "a batch": (lambda store, clock: put(store, MIXED), NEW),
    "rows": (rows, NEW),
    "checkpoint": (checkpoint, NEW),
}
"""The work, and the ids that are new in it."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a kill leaves it: the index has some ids, and the log alone has others."""
    path = tmp_path_factory.mktemp("before")
    with opened(path / "a", settings(clock=VirtualClock())) as store:
        store.create_topic("d", queues=1, dedup_window=86_400.0, key_index="off")
        put(store, OLD[:5])
        store.checkpoint()
        put(store, OLD[5:])
        return killed(store, path / "b")


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("strike", [strike_each_operation, cut_at_each_effect])
def test_whatever_operation_fails_an_id_is_known_if_its_message_is_there(
    tmp_path: Path, before: Path, name: str, strike: Callable[..., None]
) -> None:
    work, new = PATHS[name]
    strike(before, tmp_path, work, partial(check, new))


def held(store: Store) -> list[str]:
    """The dedup ids of all messages, in order."""
    return [m.properties["__DEDUP"] for m in assert_whole(store)[("d", 0)]]


def check(
    new: list[str], store: Store, clock: VirtualClock, *, was_done: bool | None, is_last: bool
) -> None:
    """The ids that are known are those of messages; with the others put again, all are there."""
    there = held(store)
    assert there == [*OLD, *NEW][: len(there)], "what a crash leaves is a leading part"
    if was_done or (is_last and was_done is False):
        assert len(there) >= len(OLD) + len(new)
    elif was_done is False:
        assert there == OLD
    assert put(store, [*OLD, *new]) == [one in there for one in [*OLD, *new]]
    assert held(store) == [*OLD, *new]
