"""A segment's file has its full size at once, and its blocks on the disk ahead of the log's end."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import kvstore
from kvstore import DiskFull, Message, StoreConfig
from kvstore.files import LocalFiles
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole
from tests.support.files import Effect, WatchedFiles
from tests.support.stores import SEGMENT, opened, put, segment, settings

GIB = 1 << 30
MIB = 1 << 20


def on_disk(path: Path) -> int:
    """Bytes of the disk's blocks that a file, or the files of a folder, take."""
    paths = [path] if path.is_file() else path.rglob("*")
    return sum(p.stat().st_blocks * 512 for p in paths)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on a disk: a file system of memory gives a file other blocks."""
    with tempfile.TemporaryDirectory(prefix="kvmq-sparse-", dir="/var/tmp") as folder:
        yield Path(folder)


def holed(source: Path, target: Path) -> None:
    """Copy a file as `cp --sparse=always` does: pages of zeros become holes."""
    data = source.read_bytes()
    with target.open("wb") as file:
        for at in range(0, len(data), 4096):
            if any(data[at : at + 4096]):
                file.seek(at)
                file.write(data[at : at + 4096])
        file.truncate(len(data))


def test_a_store_of_few_messages_takes_little_disk(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "a", StoreConfig(segment_size=GIB)) as store:
        store.create_topic("t", queues=1)
        put(store, 0, 40)
        log = tmp_path / "a" / "commitlog"
        assert (log / f"{0:020d}").stat().st_size == GIB
        assert on_disk(log) < 2 * MIB
        store.seal()
        put(store, 40, 1)
        assert on_disk(log) < 4 * MIB
    with kvstore.open(tmp_path / "a") as store:
        assert len(assert_whole(store)["t", 0]) == 41
    assert on_disk(log) < 4 * MIB


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_blocks_are_there_before_they_are_written_and_are_asked_for_seldom(
    tmp_path: Path, mode: Literal["mapped", "staged"]
) -> None:
    files = WatchedFiles()
    with kvstore.open(
        tmp_path / "a",
        StoreConfig(segment_size=64 * MIB, files=files, write_mode=mode, clock=VirtualClock()),
    ) as store:
        store.create_topic("t", queues=1)
        first = segment_file(tmp_path / "a")
        for n in range(24):
            store.put_batch([Message("t", os.urandom(MIB), queue=0)])
            end = store.stats().end_position
            assert end <= on_disk(first) <= 2 * end + 2 * MIB, n
            store.put("t", b"small")
        asked = [e for e in files.effects if e.kind == "reserve"]
        assert 4 <= len(asked) <= 8, asked


def segment_file(path: Path) -> Path:
    return path / "commitlog" / f"{0:020d}"


@pytest.mark.parametrize("kind", ["one", "batch", "border"])
@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_a_put_for_which_there_are_no_blocks_is_refused_and_done_once_there_are(
    tmp_path: Path, mode: str, kind: str
) -> None:
    files = WatchedFiles()
    count = {"one": 1, "batch": 4, "border": 100}[kind]
    batch = [Message("t", b"%d" % n * 10_000, queue=0) for n in range(1, count + 1)]
    config = settings(
        files=files,
        write_mode=mode,
        segment_size=2 * MIB,
        stage_bytes=4 * MIB,
        clock=VirtualClock(),
    )
    with opened(tmp_path / "a", config) as store:
        store.put("t", bytes(MIB - 4000), queue=0)
        files.fail("reserve", error=errno.ENOSPC, times=1 << 30)
        before = store.stats().end_position
        for _ in range(2):
            with pytest.raises(DiskFull, match="free disk space"):
                store.put_batch(batch)
        assert store.stats().end_position == before
        files.mend()
        assert [r.offset for r in store.put_batch(batch)] == list(range(1, count + 1))
        assert len(assert_whole(store)["t", 0]) == count + 1


def test_holes_below_the_end_of_an_active_segment_get_their_blocks_at_opening(
    tmp_path: Path,
) -> None:
    """A body of zeros is a hole in a sparse copy; the end may be cut back into it."""
    files = WatchedFiles()
    with opened(tmp_path / "a") as store:
        store.put_batch([Message("t", bytes(24 << 10), queue=0)])
    path = segment(tmp_path / "a", 0)
    copy = path.with_name("copy")
    holed(path, copy)
    copy.replace(path)
    assert on_disk(path) < 16 << 10
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        assert on_disk(path) >= 24 << 10
        assert Effect("reserve", path, store.stats().end_position) in files.effects
        put(store, 0, 40)
        assert len(assert_whole(store)["t", 0]) == 41


def test_a_full_disk_is_told_when_a_sparse_copy_is_opened(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as store:
        put(store, 0, 10)
    files = WatchedFiles()
    files.fail("reserve", error=errno.ENOSPC)
    with pytest.raises(DiskFull, match="free disk space"):
        kvstore.open(tmp_path / "a", settings(files=files, clock=VirtualClock()))
    with opened(tmp_path / "a") as store:
        assert len(assert_whole(store)["t", 0]) == 10


def test_a_copy_of_a_segment_and_an_erased_one_take_no_more_disk_than_before(
    tmp_path: Path,
) -> None:
    files = LocalFiles()
    source = tmp_path / "source"
    files.create(source, 64 * MIB)
    with source.open("rb+") as file:
        file.seek(8 * MIB)
        file.write(b"x" * 100_000)
    files.copy(source, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert on_disk(tmp_path / "target") <= 200_000
    files.erase(source)
    assert not any(source.read_bytes())
    assert source.stat().st_size == 64 * MIB
    assert on_disk(source) <= 200_000


def test_a_segment_that_another_folder_has_too_is_copied_before_it_is_written_to(
    tmp_path: Path,
) -> None:
    """As a snapshot by `cp -al` has it."""
    with opened(tmp_path / "a") as store:
        put(store, 0, 10)
    other = tmp_path / "other"
    os.link(segment(tmp_path / "a", 0), other)
    before = other.read_bytes()
    with opened(tmp_path / "a") as store:
        put(store, 10, 10)
    assert other.read_bytes() == before
    with opened(tmp_path / "a") as store:
        assert len(assert_whole(store)["t", 0]) == 20
    assert segment(tmp_path / "a", 0).stat().st_size == SEGMENT
