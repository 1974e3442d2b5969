"""A dedup id is known in whichever tier its message is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import ArchiveDamaged, Message, PutResult, Store
from tests.support.clock import VirtualClock
from tests.support.contents import read_all
from tests.tiering.stores import config
from tiering import Policy, Worker, attach, restore

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
    restore(str(tmp_path / "warm"), tmp_path / "restored")
    with kvstore.open(tmp_path / "restored", config(clock)) as store:
        assert store.topic("t").dedup_window == WINDOW


def _emptied(store: Store, clock: VirtualClock, warm: str) -> None:
    """All messages are in archives then, and the log has no record."""
    store.seal()
    clock.advance(2 * 86_400)
    with Worker(store, Policy(hot_for=86_400.0, warm=warm, clock_doubt=0.0)) as worker:
        assert worker.run_once().failed == {}
    assert store.segments() == []
    store.close()


@pytest.mark.parametrize("index", ["emptied", "copied", "lost"])
def test_ids_and_the_logs_time_survive_a_rebuild_of_a_store_whose_log_has_no_record(
    deduped: tuple[Store, list[PutResult]],
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    index: str,
) -> None:
    store, firsts = deduped
    newest = max(m.stored_at for m in read_all(store)["t", 0])
    path = store.path
    _emptied(store, clock, "archive")
    if index == "lost":
        shutil.rmtree(path / "index")
    elif index == "copied":
        monkeypatch.setattr("kvstore.opening.rebuild.drop_derived", lambda *_: False)
    report = kvstore.rebuild(path, config(clock))
    assert report.recovery.records == 0
    assert (report.set_aside is not None) is (index == "copied")
    # The clock was set back meanwhile.
    behind = VirtualClock(newest - 60_000)
    with kvstore.open(path, config(behind)) as store:
        _assert_firsts(store, firsts)
        put = store.put("t", b"", dedup_id="new")
        assert not put.duplicate
        assert store.get("t", put.queue, put.offset).stored_at >= newest
        assert store.verify(archives=True).problems == []
    kvstore.rebuild(path, config(clock))
    with kvstore.open(path, config(clock)) as store:
        _assert_firsts(store, firsts)
        clock.advance(5 * 86_400 + 1)
        assert not any(r.duplicate for r in _again(store))


@pytest.mark.parametrize("opened_again", [False, True])
def test_the_ids_of_attached_messages_are_known(
    deduped: tuple[Store, list[PutResult]],
    clock: VirtualClock,
    tmp_path: Path,
    opened_again: bool,
) -> None:
    source, firsts = deduped
    _emptied(source, clock, "archive")
    target = tmp_path / "target"
    store = kvstore.open(target, config(clock))
    store.create_topic("u", queues=1, dedup_window=WINDOW)
    store.put("u", b"", dedup_id="of its own")
    attach(store, source.path / "archive")
    if opened_again:
        store.close()
        store = kvstore.open(target, config(clock))
    with store:
        assert store.put("u", b"", dedup_id="of its own").duplicate
        before = sum(map(len, read_all(store).values()))
        for first, again in zip(firsts, _again(store), strict=True):
            assert again.duplicate
            assert (again.topic, again.queue, again.offset) == (
                first.topic,
                first.queue,
                first.offset,
            )
        assert sum(map(len, read_all(store).values())) == before
        assert not store.put("t", b"", dedup_id="new").duplicate
