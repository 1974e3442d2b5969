"""A disk that fills up: a real, small file system, not a pretended one."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest

import kvstore
from kvstore import DiskFull, Message, PutResult, Store, StoreConfig, StoreLocked
from tests.support import inside

SEGMENT = 1 << 20
CONFIG = StoreConfig(
    segment_size=SEGMENT,
    checkpoint_bytes=SEGMENT,
    watermarks=(1.0, 1.0, 1.0),
    retention_interval=1000.0,
)


def until_full(store: Store, body: bytes) -> Iterator[PutResult]:
    """Put until the disk takes no more."""
    for _ in range(10_000):
        try:
            yield store.put("t", body, queue=0)
        except DiskFull:
            return
    pytest.fail("the disk took everything")


def test_a_full_disk_refuses_puts_and_loses_nothing(small_disk: Path) -> None:
    """And goes on, without being opened again, once there is room."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 << 20))
    body = os.urandom(4000)
    with kvstore.open(small_disk / "store", CONFIG) as store:
        store.create_topic("t", queues=1)
        placed = list(until_full(store, body))
        assert store.bounds("t", 0) == (0, len(placed))
        assert all(store.get("t", 0, r.offset).body == body for r in placed[::50])
        with pytest.raises(DiskFull):
            store.put("t", body, queue=0)
        ballast.unlink()
        more = [store.put("t", body, queue=0) for _ in range(300)]
        assert [r.offset for r in more] == list(range(len(placed), len(placed) + 300))
    with kvstore.open(small_disk / "store", CONFIG) as store:
        assert store.bounds("t", 0) == (0, len(placed) + 300)
        assert store.verify().problems == []


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_a_segment_larger_than_the_disk_is_filled_to_the_disks_last_blocks(
    small_disk: Path, mode: Literal["mapped", "staged"]
) -> None:
    """Where there is no room for blocks far ahead of the end, the needed ones are asked for."""
    body = os.urandom(20_000)
    config = msgspec.structs.replace(
        CONFIG, segment_size=64 << 20, checkpoint_bytes=64 << 20, write_mode=mode
    )
    with kvstore.open(small_disk / "store", config) as store:
        store.create_topic("t", queues=1)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(14 << 20))
        placed = list(until_full(store, body))
        left = os.statvfs(small_disk)
        assert left.f_bavail * left.f_frsize < 64 << 10
        store.flush()
        assert all(store.get("t", 0, r.offset).body == body for r in placed[::20])
        ballast.unlink()
        assert store.put("t", body, queue=0).offset == len(placed)
    with kvstore.open(small_disk / "store", config) as store:
        assert store.bounds("t", 0) == (0, len(placed) + 1)
        assert store.verify().problems == []


def test_an_index_that_finds_the_disk_full_goes_on_once_there_is_room(small_disk: Path) -> None:
    """RocksDB takes nothing more after that until it is opened anew, which nobody has to know."""
    ballast = small_disk / "ballast"
    config = msgspec.structs.replace(CONFIG, checkpoint_bytes=64 << 20)
    with kvstore.open(small_disk / "store", config) as store:
        store.create_topic("t", queues=1)
        store.put_batch([Message("t", b"%d" % n, queue=0, keys=[f"k{n}"]) for n in range(5000)])
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        for _ in range(2):
            with pytest.raises(DiskFull):
                store.checkpoint()
        with pytest.raises(DiskFull):
            store.create_topic("other")
        assert [t.name for t in store.topics()] == ["t"]
        assert store.get("t", 0, 4999).body == b"4999"
        assert store.put("t", b"5000", queue=0).offset == 5000
        ballast.unlink()
        store.checkpoint()
        # Opened again, it is not opened once more: that would need all readers to be gone.
        reading = inside.index(store).families.rows("topics", b"")
        next(reading)
        store.create_topic("other")
        del reading
        assert [m.body for m in store.query("t", "k77")] == [b"77"]
        assert store.get("t", 0, 5000).body == b"5000"
    with kvstore.open(small_disk / "store", config) as store:
        assert store.bounds("t", 0) == (0, 5001)
        assert [t.name for t in store.topics()] == ["other", "t"]
        assert store.verify().problems == []


def test_an_iterator_that_is_garbage_does_not_keep_the_index_from_going_on(
    small_disk: Path,
) -> None:
    """Errors and the frames of their calls are such garbage, and a server's collector is slow."""
    config = msgspec.structs.replace(CONFIG, checkpoint_bytes=64 << 20)
    with kvstore.open(small_disk / "store", config) as store:
        store.create_topic("t", queues=1)
        store.put_batch([Message("t", b"%d" % n, queue=0, keys=[f"k{n}"]) for n in range(5000)])
        ballast = fill_up(small_disk, 0)
        with pytest.raises(DiskFull):
            store.checkpoint()
        gc.disable()
        try:
            cycle: list[object] = [inside.index(store).families.iter("topics")]
            cycle.append(cycle)
            del cycle
            ballast.unlink()
            store.create_topic("other")
        finally:
            gc.enable()
        assert [t.name for t in store.topics()] == ["other", "t"]


def test_a_batch_that_finds_no_room_writes_none_of_its_messages(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(19 << 20))
    with kvstore.open(small_disk / "store", CONFIG) as store:
        store.create_topic("t", queues=1)
        end = store.stats().end_position
        large = [kvstore.Message("t", bytes(1000), queue=0) for _ in range(8000)]
        with pytest.raises(DiskFull):
            store.put_batch(large)
        assert (store.stats().end_position, store.bounds("t", 0)) == (end, (0, 0))
        assert store.put("t", b"small", queue=0).offset == 0


def test_a_disk_that_has_no_room_for_a_store_says_so(small_disk: Path) -> None:
    left = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(left.f_bavail * left.f_frsize - (16 << 10)))
    with pytest.raises(kvstore.StoreError):
        kvstore.open(small_disk / "store", CONFIG)
    (small_disk / "ballast").unlink()
    with kvstore.open(small_disk / "store", CONFIG) as store:
        store.create_topic("t")
        assert store.put("t", b"x").offset == 0


def test_a_second_process_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    held = "import kvstore, sys; s = kvstore.open(sys.argv[1]); print('open'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", held, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=str(holder.pid)) as raised:
            kvstore.open(tmp_path / "store")
        assert raised.value.pid == holder.pid
        holder.kill()
        holder.wait()
        with kvstore.open(tmp_path / "store") as store:
            with pytest.raises(StoreLocked) as again:
                kvstore.open(tmp_path / "store")
            assert again.value.pid == os.getpid()
            assert store.topics() == []


def fill_up(disk: Path, free: int) -> Path:
    """Leave so many bytes of the disk free; returns the file that takes the rest."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    os.truncate(ballast, ballast.stat().st_size - free)
    return ballast


@pytest.mark.parametrize("free", [0, 16 << 10, 64 << 10, 140 << 10])
def test_a_full_disk_is_no_damage_of_the_index_and_rebuild_sets_nothing_aside(
    small_disk: Path, free: int
) -> None:
    path = small_disk / "store"
    with kvstore.open(path, CONFIG) as store:
        store.create_topic("t", queues=5)
        store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(40)])
        store.commit_offset("g", "t", 0, 33)
    ballast = fill_up(small_disk, free)
    for work in (kvstore.open, kvstore.rebuild, kvstore.open):
        with pytest.raises(DiskFull, match="free disk space") as raised:
            work(path, CONFIG)
        assert "rebuild" not in str(raised.value)
    with kvstore.open(path, CONFIG, read_only=True) as store:
        assert store.get("t", 0, 7).body == b"7"
    assert sorted(p.name for p in path.iterdir()) == ["commitlog", "index", "lock"]
    ballast.unlink()
    with kvstore.open(path, CONFIG) as store:
        assert (store.topic("t").read_queues, store.committed_offset("g", "t", 0)) == (5, 33)
        assert store.verify().problems == []


def test_a_damaged_index_stays_where_it_is_as_long_as_there_is_no_room_for_another(
    small_disk: Path,
) -> None:
    path = small_disk / "store"
    with kvstore.open(path, CONFIG) as store:
        store.create_topic("t", queues=5)
        store.put_batch([Message("t", b"%d" % n, queue=0) for n in range(40)])
    next((path / "index").glob("MANIFEST-*")).write_bytes(b"garbage")
    ballast = fill_up(small_disk, 0)
    with pytest.raises(DiskFull):
        kvstore.rebuild(path, CONFIG)
    assert sorted(p.name for p in path.iterdir()) == ["commitlog", "index", "lock"]
    ballast.unlink()
    assert str(kvstore.rebuild(path, CONFIG).set_aside).endswith("index.damaged-1")
    with kvstore.open(path, CONFIG) as store:
        assert store.bounds("t", 0) == (0, 40)


def test_a_disk_without_a_byte_for_a_new_store_says_so_and_the_folder_is_let_go_of(
    small_disk: Path,
) -> None:
    ballast = fill_up(small_disk, 0)
    for _ in range(2):
        with pytest.raises(DiskFull, match="free disk space"):
            kvstore.open(small_disk / "store", CONFIG)
    ballast.unlink()
    kvstore.open(small_disk / "store", CONFIG).close()


def test_a_full_disk_does_not_cost_the_mark_that_says_whose_folder_it_is(small_disk: Path) -> None:
    path = small_disk / "store"
    kvstore.open(path, CONFIG).close()
    ballast = fill_up(small_disk, 0)
    with pytest.raises(DiskFull):
        kvstore.open(path, CONFIG)
    assert (path / "lock").read_bytes().startswith(b"kvmq")
    ballast.unlink()
