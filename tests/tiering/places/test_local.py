"""A folder that is full, read-only, away, or can't do what it must."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import pytest

from tests.support.children import Child, Teller
from tests.support.clock import VirtualClock
from tests.support.files import WatchedFiles
from tests.support.raising import raising
from tiering.errors import (
    ObjectExists,
    ObjectNameIllegal,
    ObjectNotFound,
    PlaceDenied,
    PlaceFull,
    PlaceUnavailable,
    PlaceUnsuitable,
)
from tiering.places.place import Place, open_place

KEY: Final = "class/0-1.kvarc"
LARGE: Final = bytes(range(256)) * (80 << 10)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "archives"
    path.mkdir()
    return path


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def place(root: Path, files: WatchedFiles, clock: VirtualClock) -> Place:
    return open_place(root, files=files, clock=clock)


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("nth", [1, 3])
def test_a_full_disk_is_said_to_be_full_and_keeps_nothing(
    place: Place, root: Path, files: WatchedFiles, clock: VirtualClock, error: int, nth: int
) -> None:
    files.fail("write", nth=nth, error=error)
    with pytest.raises(PlaceFull, match="free"):
        place.put(KEY, LARGE)
    assert names(root) == []
    assert clock.slept == []
    place.put(KEY, LARGE)
    assert names(root) == [KEY]


def test_a_full_disk_keeps_what_was_to_be_replaced(
    place: Place, root: Path, files: WatchedFiles
) -> None:
    place.put(KEY, b"old")
    files.fail("write", nth=2, error=errno.ENOSPC)
    with pytest.raises(PlaceFull):
        place.put(KEY, LARGE, if_absent=False)
    assert place.read(KEY, 0, 3) == b"old"
    assert names(root) == [KEY]


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_folder_that_may_not_be_written_is_denied(
    place: Place, files: WatchedFiles, error: int
) -> None:
    files.fail("write_new", error=error)
    with pytest.raises(PlaceDenied, match="may not put"):
        place.put(KEY, b"x")


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_share_that_is_away_for_a_moment_is_asked_again(
    place: Place, root: Path, files: WatchedFiles, clock: VirtualClock, error: int
) -> None:
    files.fail("write", nth=2, error=error, times=2)
    place.put(KEY, LARGE)
    assert len(clock.slept) == 2
    assert names(root) == [KEY]
    assert place.read(KEY, 0, len(LARGE)) == LARGE


def test_a_share_that_stays_away_is_unavailable(
    place: Place, root: Path, files: WatchedFiles, clock: VirtualClock
) -> None:
    files.fail("write", error=errno.EIO, times=1000)
    with pytest.raises(PlaceUnavailable, match=r"Input/output error; tried \d+ times"):
        place.put(KEY, b"x")
    assert sum(clock.slept) <= 10
    assert names(root) == []


def test_a_folder_that_is_gone_is_unavailable_and_not_made_by_a_put(
    place: Place, root: Path, clock: VirtualClock
) -> None:
    place.put(KEY, b"x")
    root.rename(root.with_name("elsewhere"))
    for call in (
        lambda: place.put(KEY, b"x"),
        lambda: place.read(KEY, 0, 1),
        lambda: place.info(KEY),
        lambda: list(place.list()),
        lambda: list(place.leftovers()),
        lambda: place.delete(KEY),
        lambda: place.check(),
    ):
        with pytest.raises(PlaceUnavailable, match="mount it, or make it"):
            call()
    assert not root.exists()
    assert clock.slept == []


def test_a_check_makes_the_folder_if_asked_to(place: Place, root: Path) -> None:
    root.rmdir()
    place.check(create=True)
    assert root.is_dir()
    assert names(root) == []


def test_a_file_in_the_place_of_the_folder_is_no_place(place: Place, root: Path) -> None:
    root.rmdir()
    root.write_bytes(b"")
    with pytest.raises(PlaceUnavailable):
        place.check()
    with pytest.raises(PlaceUnavailable):
        place.read(KEY, 0, 1)


def test_a_file_system_without_hard_links_is_unsuitable(
    place: Place, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", raising(PermissionError(errno.EPERM, os.strerror(errno.EPERM))))
    with pytest.raises(PlaceUnsuitable, match="hard links"):
        place.check()
    assert names(root) == []


def test_a_folder_under_the_name_of_an_object_is_no_object(place: Place, root: Path) -> None:
    (root / "a").mkdir()
    with pytest.raises(ObjectNotFound):
        place.info("a")
    with pytest.raises(ObjectNotFound):
        place.read("a", 0, 1)
    with pytest.raises(ObjectNotFound):
        place.info("a/b")


def test_what_others_keep_in_the_folder_is_not_listed(place: Place, root: Path) -> None:
    (root / ".snapshot").mkdir()
    (root / ".snapshot" / "a").write_bytes(b"")
    (root / "not ours").write_bytes(b"")
    (root / ".DS_Store").write_bytes(b"")
    os.mkfifo(root / "pipe")
    place.put("ours", b"x")
    assert [found.key for found in place.list()] == ["ours"]
    assert list(place.leftovers()) == []


def put_slowly(tell: Teller, root: Path) -> None:
    def pace(_: int) -> None:
        tell("part")

    open_place(root).put(KEY, LARGE, pace=pace)
    tell("done")


@pytest.mark.parametrize("told", [1, 3, 4], ids=["at its start", "on its way", "at its end"])
def test_a_put_that_is_killed_leaves_a_whole_object_or_a_leftover(
    place: Place, root: Path, told: int
) -> None:
    with Child(put_slowly, root) as child:
        for _, _line in zip(range(told), child.lines(), strict=False):
            pass
        child.kill()
    listed = list(place.list())
    if listed:
        assert place.read(KEY, 0, len(LARGE)) == LARGE
    for left in list(place.leftovers()):
        place.remove_leftover(left.key)
    assert names(root) == [found.key for found in listed]
    place.put(KEY, LARGE)
    assert names(root) == [KEY]


def test_leftovers_are_listed_with_their_time_until_they_are_removed(
    place: Place, root: Path
) -> None:
    left = root / ".a.kvarc.0123456789abcdef.part"
    left.write_bytes(b"xy")
    os.utime(left, (1000, 1000))
    assert [(f.key, f.size, f.modified) for f in place.leftovers()] == [(left.name, 2, 1_000_000)]
    place.remove_leftover(left.name)
    assert names(root) == []


def test_a_put_is_synced_before_it_has_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_sync, real_link = os.fsync, os.link

    def sync(fd: int) -> None:
        real_sync(fd)
        done.append("file" if os.path.isfile(f"/proc/self/fd/{fd}") else "folder")

    def link(*args: Path) -> None:
        real_link(*args)
        done.append("link")

    place = open_place(root)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    place.put("a", b"x")
    assert done == ["file", "link", "folder"]
    done.clear()
    with pytest.raises(ObjectExists):
        place.put("a", b"y")
    assert done == ["file", "folder"]


def test_leftovers_are_found_by_the_names_of_what_was_put(place: Place, root: Path) -> None:
    assert list(place.leftovers("mine/")) == []
    place.put("mine/a.kvarc", b"x")
    mine = root / "mine" / ".b.kvarc.0123456789abcdef.part"
    other = root / ".a.kvarc.0123456789abcdef.part"
    for left in (mine, other):
        left.write_bytes(b"xy")
    assert [f.key for f in place.leftovers("mine/")] == [f"mine/{mine.name}"]
    assert [f.key for f in place.leftovers("mine/b")] == [f"mine/{mine.name}"]
    assert list(place.leftovers("mine/a")) == []
    assert len(list(place.leftovers())) == 2
    with pytest.raises(ObjectNameIllegal):
        place.remove_leftover("mine/a.kvarc")
    with pytest.raises(ObjectNameIllegal):
        place.remove_leftover(f"../{root.name}/{other.name}")
    place.remove_leftover(f"mine/{mine.name}")
    place.remove_leftover(f"mine/{mine.name}")
    assert names(root) == [other.name, "mine/a.kvarc"]
