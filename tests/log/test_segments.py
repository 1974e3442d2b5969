"""Segment files: what is mended, cleared away and overwritten, and when it is on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.files import LocalFiles
from kvstore.log.segments import Segments, segment_name
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole
from tests.support.files import Effect, WatchedFiles, none
from tests.support.stores import SEGMENT, body, opened, put, segment, settings


def test_a_short_segment_that_was_filled_up_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path,
) -> None:
    """It is not the last one, which is synced anyway."""
    with opened(tmp_path / "a") as store:
        count = len(put(store, 0, 3 * SEGMENT // 300))
    path = segment(tmp_path / "a", 0)
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")))
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())) as store:
        assert path.stat().st_size == SEGMENT
        cut = files.power_cut(store.path, tmp_path / "b", none)
    with opened(cut) as store:
        found = assert_whole(store)["t", 0]
        assert [m.body for m in found] == [body(n) for n in range(count)]


def left_half_erased(path: Path) -> Path:
    """A segment that was renamed to be overwritten, and the process ended then."""
    with opened(path) as store:
        put(store, 0, 10)
    gone = segment(path, 5).with_name(segment(path, 5).name + ".gone")
    gone.write_bytes(b"secret" * 1000)
    return gone


def test_an_erasure_that_a_crash_cut_short_is_finished_at_the_next_opening(tmp_path: Path) -> None:
    gone = left_half_erased(tmp_path / "a")
    files = WatchedFiles()
    with opened(tmp_path / "a", settings(files=files, clock=VirtualClock())):
        assert not gone.exists()
    mine = [e for e in files.effects if e.path == gone]
    assert mine == [Effect("erase", gone), Effect("remove", gone)]


def test_what_another_folder_has_too_is_not_overwritten(tmp_path: Path) -> None:
    gone = left_half_erased(tmp_path / "a")
    os.link(gone, tmp_path / "other")
    with opened(tmp_path / "a"):
        assert not gone.exists()
    assert (tmp_path / "other").read_bytes() == b"secret" * 1000


class _Compared(int):
    """A number that counts how often it is compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        _Compared.count += 1
        return int.__eq__(self, other) is True

    __hash__ = int.__hash__


@pytest.mark.parametrize("count", [1, 30, 900])
def test_whether_a_segment_is_there_costs_the_same_however_many_there_are(
    tmp_path: Path, count: int
) -> None:
    for number in range(count):
        with (tmp_path / segment_name(number * SEGMENT)).open("wb") as file:
            file.truncate(SEGMENT)
    segments = Segments(tmp_path, LocalFiles(), SEGMENT, writable=True)
    for asked in (0, count // 2, count - 1, count):
        _Compared.count = 0
        assert segments.has(_Compared(asked)) == (asked < count)
        assert segments.is_usable(_Compared(asked)) == (asked < count)
        assert _Compared.count <= 2 * 2
