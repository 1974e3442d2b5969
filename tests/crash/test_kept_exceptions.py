"""A kept exception doesn't keep RocksDB's lock, wherever in a store it was raised."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from rocksdict import Options, Rdict

import kvstore
from kvstore import Store
from kvstore.index.families import Families
from tests.support.segment_files import batch, bodies
from tests.support.stores import SMALL, put
from tests.support.throwing import ERRORS, Step, Thrower

STEPS: Final = 24
"""Steps at which a call is struck, about."""
_OWN_CLOSE: Final = Families.close.__code__.co_firstlineno
"""Behind this line is RocksDB's own close: where that fails, nothing can be promised."""


def used(folder: Path) -> Store:
    """A store with rows of every kind that a close reads or writes."""
    store = kvstore.open(folder, SMALL)
    store.create_topic("t", queues=2)
    put(store, 0, 5)
    store.checkpoint()
    store.commit_offset("h", "t", 0, 2)
    store.create_group("g")
    store.ack(store.pop("g", "t", queue=0)[0].receipt)
    store.put_batch(batch("t", 3, queue=1))
    return store


def reads_and_writes(store: Store) -> None:
    store.offset_history("h", "t", 0)
    store.lag("h")
    store.namespaces()
    store.query("t", "all")
    store.bounds("t", 0)
    store.pull("t", 0, 0)
    store.checkpoint()
    store.pop("g", "t")
    store.seal()
    store.delete_topics(["t"])


def is_locked(folder: Path) -> bool:
    """Whether something in this process holds RocksDB's lock."""
    path = str(folder / "index")
    options = {name: Options(raw_mode=True) for name in Rdict.list_cf(path)}
    try:
        Rdict(path, Options(raw_mode=True), options).close()
    except Exception as e:
        return "lock hold by current process" in str(e)
    return False


def struck(work: Callable[[], object], thrower: Thrower) -> BaseException | None:
    """Does some work in a thread that is struck; returns the exception, with its traceback."""
    kept: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as e:
            kept.append(e)

    with thrower.watching():
        thread = threading.Thread(target=attempt, name="struck")
        thread.start()
        thread.join(60)
    assert not thread.is_alive()
    return kept[0] if kept else None


def steps_of(folder: Path, work: Callable[[Store], object]) -> list[Step]:
    """Some steps of rooms whose frames may have an iterator."""
    thrower, store = Thrower("struck"), used(folder)
    struck(lambda: work(store), thrower)
    store.close()
    rooms = ("kvstore/index", "kvstore/meta", "kvstore/pop")
    steps = [step for step in thrower.steps if step.file.startswith(rooms)]
    steps = [s for s in steps if not s.file.endswith("families.py") or s.line < _OWN_CLOSE]
    return steps[:: max(1, len(steps) // STEPS)]


def test_a_close_that_raised_lets_the_lock_go_though_its_exception_is_kept(tmp_path: Path) -> None:
    kept = []
    steps = steps_of(tmp_path / "watched", lambda store: store.close())
    for number, step in enumerate(steps):
        folder = tmp_path / f"{number}"
        store = used(folder)
        error = struck(store.close, Thrower("struck", step, ERRORS[number % 2]))
        kept.append(error)
        assert not is_locked(folder), (step, error)
        with kvstore.open(folder, SMALL) as again:
            assert len(bodies(again, "t", 1)) == 3
            assert again.committed_offset("h", "t", 0) == 2
    assert sum(error is not None for error in kept) > 10


def test_a_store_opens_again_though_exceptions_of_its_calls_are_kept(tmp_path: Path) -> None:
    steps, kept = steps_of(tmp_path / "watched", reads_and_writes), []
    for number, step in enumerate(steps):
        folder = tmp_path / f"{number}"
        store = used(folder)
        thrower = Thrower("struck", step, ERRORS[number % 2])
        kept.append(struck(partial(reads_and_writes, store), thrower))
        store.close()
        kvstore.open(folder, SMALL).close()
    assert sum(error is not None for error in kept) > 10
