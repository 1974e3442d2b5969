"""The scan for the log's end: what the durable end decides, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore import PutResult
from kvstore.files import LocalFiles
from kvstore.log.recovery_scan import Damage, LogScan
from kvstore.log.segments import Segments
from tests.support.contents import assert_whole
from tests.support.stores import SEGMENT, body, flip, killed, opened, overwrite, put


def log_of(path: Path, count: int) -> list[PutResult]:
    with opened(path) as store:
        return put(store, 0, count)


def scanned(path: Path, durable: int) -> tuple[LogScan, list[int]]:
    """A scan of the whole log, and the positions of the records that it found good."""
    segments = Segments(path / "commitlog", LocalFiles(), SEGMENT, writable=False)
    scan = LogScan(segments, 0, durable)
    found = [p for chunk in scan.chunks() for p in chunk.found.positions.tolist()]
    segments.close()
    return scan, found


@pytest.mark.parametrize("before", [0, 1])
def test_a_record_with_zeros_in_its_properties_is_torn_from_the_durable_end_on(
    tmp_path: Path, before: int
) -> None:
    """A body's CRC says nothing about them; below the durable end the disk had them."""
    placed = log_of(tmp_path / "a", 10)
    last = placed[7]
    overwrite(tmp_path / "a", last.position + last.size - 20, bytes(20))
    scan, found = scanned(tmp_path / "a", last.position + before)
    if before:
        assert len(found) == 10
        assert scan.torn is None
    else:
        assert found == [r.position for r in placed[:7]]
        assert scan.torn is not None
        assert scan.end == scan.torn.position == last.position


def test_a_put_torn_exactly_at_the_checkpoint_is_not_there(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as store:
        put(store, 0, 5)
        store.checkpoint()
        last = put(store, 5, 1)[0]
        left = killed(store, tmp_path / "b")
    overwrite(left, last.position + last.size - 20, bytes(20))
    with opened(left) as store:
        assert store.recovery.torn is not None
        assert store.recovery.damage == []
        assert [m.body for m in assert_whole(store)["t", 0]] == [body(n) for n in range(5)]


def test_damage_on_both_sides_of_the_durable_end_is_corruption_below_it_and_a_torn_tail_above(
    tmp_path: Path,
) -> None:
    placed = log_of(tmp_path / "a", 12)
    durable = placed[8].position
    for r in placed[7:9]:
        flip(tmp_path / "a", r.position + 100)
    scan, found = scanned(tmp_path / "a", durable)
    assert [(d.position, d.end) for d in scan.damage] == [(placed[7].position, durable)]
    assert found == [r.position for r in placed[:7]]
    assert isinstance(scan.torn, Damage)
    assert scan.end == scan.torn.position == durable


def test_damage_below_the_durable_end_is_passed_over_to_the_next_record(tmp_path: Path) -> None:
    placed = log_of(tmp_path / "a", 12)
    flip(tmp_path / "a", placed[7].position + 100)
    scan, found = scanned(tmp_path / "a", placed[10].position)
    assert [(d.position, d.end) for d in scan.damage] == [(placed[7].position, placed[8].position)]
    assert found == [r.position for r in (*placed[:7], *placed[8:])]
    assert scan.torn is None
