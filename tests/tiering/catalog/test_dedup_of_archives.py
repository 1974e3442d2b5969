"""A dedup id is known in whichever tier its message is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import ArchiveDamaged, Message, PutResult, Store
from tests.support.clock import VirtualClock
from tests.support.contents import read_all
from tests.tiering.stores import config
from tiering import Policy, Worker

WINDOW = 7 * 86_400.0


def _archived(store: Store, clock: VirtualClock, tmp_path: Path, **changed: Any) -> None:
    """All messages are in archives then."""
    store.seal()
    clock.advance(2 * 86_400)
    store.put("u", b"")  # so that the segment before is as old as it looks
    store.checkpoint()
    policy = Policy(hot_for=86_400.0, warm_for=30 * 86_400.0, warm=str(tmp_path / "warm"))
    with Worker(store, policy) as worker:
        worker.run_once()
        assert worker.archives()


@pytest.fixture(params=["all", "unique", "off"])
def deduped(empty: Store, request: pytest.FixtureRequest) -> tuple[Store, list[PutResult]]:
    """A store with 50 messages with ids."""
    empty.create_topic("t", queues=2, dedup_window=WINDOW, key_index=request.param)
    empty.create_topic("u", queues=1)
    messages = [
        Message("t", b"%d" % n, dedup_id=f"id-{n}", properties={"n": str(n)} if n % 7 else {})
        for n in range(50)
    ]
    return empty, empty.put_batch(messages)


def _again(store: Store) -> list[PutResult]:
    return store.put_batch([Message("t", b"", dedup_id=f"id-{n}") for n in range(50)])


def _assert_firsts(store: Store, firsts: list[PutResult]) -> None:
    before = sum(map(len, read_all(store).values()))
    for first, again in zip(firsts, _again(store), strict=True):
        assert again.duplicate
        assert again.__match_args__ == first.__match_args__
        for name in first.__match_args__[:-1]:
            assert getattr(again, name) == getattr(first, name)
    assert sum(map(len, read_all(store).values())) == before


def test_an_archived_message_is_the_first_of_its_repeats(
    deduped: tuple[Store, list[PutResult]], clock: VirtualClock, tmp_path: Path
) -> None:
    store, firsts = deduped
    _archived(store, clock, tmp_path)
    _assert_firsts(store, firsts)
    path = store.path
    store.close()
    with kvstore.open(path, config(clock)) as store:
        _assert_firsts(store, firsts)
        assert not store.put("t", b"", dedup_id="new").duplicate
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        _assert_firsts(store, firsts)
        assert store.verify(archives=True).problems == []
        clock.advance(5 * 86_400 + 1)
        assert not any(r.duplicate for r in _again(store))


def test_an_archive_that_cannot_be_read_fails_a_put_that_may_repeat_an_id_of_it(
    deduped: tuple[Store, list[PutResult]], clock: VirtualClock, tmp_path: Path
) -> None:
    store, firsts = deduped
    _archived(store, clock, tmp_path)
    path = store.path
    store.close()
    [archive] = [p for p in (tmp_path / "warm").rglob("*") if p.is_file()]
    aside = archive.rename(tmp_path / "aside")
    with kvstore.open(path, config(clock)) as store:
        end = store.stats().end_position
        with pytest.raises(ArchiveDamaged, match="dedup id 'id-3' was put before can't be told"):
            store.put("t", b"", dedup_id="id-3")
        assert store.stats().end_position == end
        assert not store.put("t", b"").duplicate
        aside.rename(archive)
        _assert_firsts(store, firsts)


def test_a_restored_topic_has_its_window(
    deduped: tuple[Store, list[PutResult]], clock: VirtualClock, tmp_path: Path
) -> None:
    store, _ = deduped
    _archived(store, clock, tmp_path)
    store.close()
    from tiering import restore  # the only test that needs it

    restore(str(tmp_path / "warm"), tmp_path / "restored")
    with kvstore.open(tmp_path / "restored", config(clock)) as store:
        assert store.topic("t").dedup_window == WINDOW
