"""A store is rebuilt of which segments became archives out of turn, as an erasure has it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import kvstore
from kvstore import Message, Store
from kvstore.errors import IndexDamaged, RecordDamaged
from kvstore.opening.rebuild import drop_derived
from tests.support.clock import VirtualClock
from tests.support.raising import raising
from tests.tiering.stores import config
from tiering import Policy, Worker

POLICY = Policy(hot_for=1e6, warm="archive", clock_doubt=0.0)


def offsets(store: Store) -> list[int]:
    """The offsets that can be read; erased messages may count as damage after a rebuild."""
    found, (low, high) = [], store.bounds("a", 0)
    while low < high:
        try:
            page = store.pull("a", 0, low)
        except RecordDamaged as e:
            low = e.next_offset or high
            continue
        found += [m.offset for m in page.messages]
        low = page.next_offset
    return found


@pytest.mark.parametrize(
    ("segments", "left"),
    [
        (["k", "xk", "k"], [0, 2, 3]),
        (["kk", "xx", "k"], [0, 1, 4]),
        (["k", "xk"], [0, 2]),
        (["kx", "k", "xk", "k", "kx", "k"], [0, 2, 4, 5, 6, 8]),
    ],
)
@pytest.mark.parametrize("how", ["rebuilt", "cut off", "copied"])
def test_what_the_log_has_before_and_between_archives_is_there_and_no_offset_is_given_again(
    tmp_path: Path,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    segments: list[str],
    left: list[int],
    how: str,
) -> None:
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        store.create_topic("b", queues=1)
        for kinds in segments:
            store.put_batch([Message("b", b"beside", queue=0)])
            store.put_batch([Message("a", b"m", queue=0, keys=(kind,)) for kind in kinds])
            store.seal()
        with Worker(store, POLICY) as worker:
            assert worker.erase(key="x").is_proven
        assert offsets(store) == left
        end = store.bounds("a", 0).next_offset
    if how == "copied":  # what the log can tell is damaged, and the rest is copied
        monkeypatch.setattr("kvstore.opening.rebuild.drop_derived", lambda *_: False)
    if how == "cut off":
        assert drop_derived(path, config(clock))  # killed before the store was opened
    else:
        kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        assert offsets(store) == left
        assert store.verify(archives=True).problems == []
        assert store.put("a", b"new", queue=0).offset == end
    with kvstore.open(path, config(clock)) as store:
        assert offsets(store) == [*left, end]


def test_an_index_that_is_copied_without_its_places_gets_those_of_archives_from_them(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        for _ in range(2):
            store.put_batch([Message("a", b"m", queue=0)] * 2)
            store.seal()
        clock.advance(100)
        with Worker(store, msgspec.structs.replace(POLICY, hot_for=60.0)) as worker:
            assert worker.run_once().failed == {}
        assert store.segments() == []
        store.put("a", b"in the log", queue=0)
    monkeypatch.setattr("kvstore.opening.rebuild.drop_derived", lambda *_: False)
    monkeypatch.setattr(
        "kvstore.opening.rebuild.kept_locations", raising(IndexDamaged("a block of the places"))
    )
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        assert offsets(store) == [0, 1, 2, 3, 4]
        assert store.verify(archives=True).problems == []
