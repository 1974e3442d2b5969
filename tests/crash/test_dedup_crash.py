"""After any crash an id is known if its message is there, and only then: so a program that repeats
each put until it has an answer has each message once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import pytest

import kvstore
from kvstore import FlushFailed, Message, Store, StoreConfig
from tests.support.children import Child, Teller
from tests.support.contents import assert_whole, read_all
from tests.support.files import Choose, WatchedFiles, every, none
from tests.support.stores import SEGMENT, SMALL, killed, overwrite, settings

SEED: Final = int(os.environ.get("KVMQ_SEED", "0")) or Random().getrandbits(32)
KILLS: Final = 12


def busy(flush: str, write_mode: str) -> StoreConfig:
    """Checkpoints and syncs come often."""
    return settings(
        flush=flush,
        write_mode=write_mode,
        checkpoint_bytes=50_000,
        stage_interval=0.02,
        flush_interval=0.03,
        busy_timeout=20.0,
    )


def ids(store: Store) -> list[str]:
    """The dedup ids of all messages, in the order of the log."""
    found = [m for messages in read_all(store).values() for m in messages]
    return [m.properties["__DEDUP"] for m in sorted(found, key=lambda m: m.position)]


def numbered(first: int, count: int) -> list[Message]:
    return [Message("t", b"%d" % n * 40, dedup_id=f"id-{n}") for n in range(first, first + count)]


def write(tell: Teller, path: Path, flush: str, write_mode: str, first: int) -> None:
    """Put messages, batch by batch, from number `first` on, without end."""
    random = Random(SEED + first)
    store = kvstore.open(path, busy(flush, write_mode))
    store.create_topic("t", queues=2, exist_ok=True, dedup_window=86_400.0, key_index="off")
    while True:
        count = random.choice((1, 1, 5, 32))
        results = store.put_batch(numbered(first, count))
        repeated = "".join("01"[r.duplicate] for r in results)
        first += count
        tell(f"put {first} {repeated}")


@pytest.mark.parametrize(
    ("flush", "write_mode"),
    [("sync", "mapped"), ("async", "mapped"), ("sync", "staged"), ("async", "staged")],
)
def test_what_is_put_again_after_a_kill_is_there_once(
    tmp_path: Path, flush: str, write_mode: str
) -> None:
    """The next writer begins with the last batches of the one before."""
    print(f"KVMQ_SEED={SEED}")
    random = Random(SEED)
    first = end = 0
    for _ in range(KILLS):
        with Child(write, tmp_path / "store", flush, write_mode, first) as child:
            lines = [child.wait_for("put") for _ in range(random.randint(1, 30))] + child.kill()
        end = max(int(line.split()[1]) for line in lines if line.count(" ") == 2)
        first = max(0, end - random.choice((0, 1, 40, 400)))
    with kvstore.open(tmp_path / "store", busy(flush, write_mode)) as store:
        results = store.put_batch(numbered(0, end + 40))
        assert all(r.duplicate for r in results[:first]) or write_mode == "staged"
        found = ids(store)
        assert len(set(found)) == len(found), "an id is there twice"
        assert {f"id-{n}" for n in range(end + 40)} <= set(found)
        for n in Random(SEED).sample(range(end), 20):
            at = results[n].position
            assert store.read_at(at).properties["__DEDUP"] == f"id-{n}"
        assert_whole(store)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_an_id_whose_record_was_torn_off_is_not_known(
    tmp_path: Path, is_checkpointed: bool
) -> None:
    with kvstore.open(tmp_path / "a", SMALL) as store:
        store.create_topic("t", queues=1, dedup_window=3600)
        kept = store.put_batch(numbered(0, 3))
        if is_checkpointed:
            store.checkpoint()
        torn = store.put_batch(numbered(3, 3))
        killed(store, tmp_path / "b")
    overwrite(tmp_path / "b", torn[1].position, bytes(SEGMENT - torn[1].position))
    with kvstore.open(tmp_path / "b", SMALL) as store:
        results = store.put_batch(numbered(0, 6))
        assert [r.duplicate for r in results] == [True] * 4 + [False] * 2
        assert [r.position for r in results[:4]] == [r.position for r in [*kept, torn[0]]]
        assert ids(store) == [f"id-{n}" for n in range(6)]
        assert_whole(store)


@pytest.mark.parametrize("kept", [none, every])
def test_a_power_cut_takes_the_ids_of_the_messages_that_it_takes(
    tmp_path: Path, kept: Choose
) -> None:
    files = WatchedFiles()
    with kvstore.open(tmp_path / "a", settings(files=files, flush_interval=1e9)) as store:
        store.create_topic("t", queues=1, dedup_window=3600)
        store.put_batch(numbered(0, 3))
        store.flush()
        store.put_batch(numbered(3, 3))
        files.power_cut(store.path, tmp_path / "b", kept)
    with kvstore.open(tmp_path / "b", SMALL) as store:
        there = ids(store)
        results = store.put_batch(numbered(0, 6))
        assert [r.duplicate for r in results] == [f"id-{n}" in there for n in range(6)]
        assert len(there) == (3 if kept is none else 6)
        assert sorted(ids(store)) == sorted(f"id-{n}" for n in range(6))


def test_after_a_failed_sync_a_repeat_is_put_once_all_the_same(tmp_path: Path) -> None:
    files = WatchedFiles()
    store = kvstore.open(tmp_path / "a", settings(files=files, flush="sync"))
    store.create_topic("t", queues=1, dedup_window=3600)
    first = store.put("t", b"", dedup_id="a")
    files.fail("sync", times=1 << 30)
    for _ in range(2):
        with pytest.raises(FlushFailed):
            store.put("t", b"", dedup_id="b")
    with suppress(FlushFailed):
        store.close()
    with kvstore.open(tmp_path / "a", SMALL) as store:
        assert store.put("t", b"", dedup_id="a").position == first.position
        store.put("t", b"", dedup_id="b")
        assert ids(store) == ["a", "b"]


@pytest.mark.parametrize("nth", range(1, 4))
@pytest.mark.parametrize("half", [False, True])
def test_an_append_that_fails_at_any_write_leaves_no_id(
    tmp_path: Path, nth: int, half: bool
) -> None:
    """The batch goes over three segments."""
    files = WatchedFiles()
    batch = [Message("t", bytes(20_000), dedup_id=f"id-{n}", queue=0) for n in range(8)]
    with kvstore.open(tmp_path / "a", settings(files=files)) as store:
        store.create_topic("t", queues=1, dedup_window=3600)
        kept = store.put("t", b"", dedup_id="kept")
        files.fail("write", nth=nth, half=half)
        with pytest.raises(kvstore.StoreError):
            store.put_batch([Message("t", b"", dedup_id="kept"), *batch])
        files.mend()
        assert store.put("t", b"", dedup_id="kept").position == kept.position
        assert not any(r.duplicate for r in store.put_batch(batch))
        assert all(r.duplicate for r in store.put_batch(batch))
        assert_whole(store)
