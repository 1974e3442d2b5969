"""Torn writes: a crash left the beginning of what was being written, or parts of it.

Recovery ends at the last whole record, raises nothing, and what stands behind the end never comes
back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Message, PutResult, Store, StoreConfig, StoredMessage
from tests.support.contents import assert_found_by_key, assert_whole, read_queue
from tests.support.files import copy_folder
from tests.support.stores import (
    SEGMENT,
    SMALL,
    body,
    killed,
    message,
    opened,
    overwrite,
    put,
    segment,
    settings,
)

BEFORE: Final = 9
"""Messages in front of what is torn."""
SIZE: Final = 140
"""Of bodies whose records have about 300 bytes."""
COVERED: Final = settings(property_crc=True, check_property_crc=True)
"""A CRC covers the whole record."""


def left(path: Path, target: Path, config: StoreConfig, *batches: list[Message]) -> list[PutResult]:
    """Leave a store at `target` as a kill leaves it behind these batches; where they went."""
    with opened(path, config) as store:
        placed = [r for batch in batches for r in store.put_batch(batch)]
        killed(store, target)
    return placed


def batch(first: int, count: int, size: int = SIZE) -> list[Message]:
    return [message(n, size) for n in range(first, first + count)]


def read_back(store: Store) -> list[StoredMessage]:
    """The queue's messages, which must be the first ones put, each as it was put."""
    found = read_queue(store, "t", 0)
    for n, m in enumerate(found):
        assert (m.offset, m.body, list(m.keys)) == (n, body(n, SIZE), [f"k-{n}", "all"])
        assert (m.tag, m.properties["n"]) == (f"tag{n % 3}", str(n))
    return found


def zero_from(path: Path, position: int) -> None:
    """As if nothing from here on had been written."""
    number = position // SEGMENT
    overwrite(path, position, bytes((number + 1) * SEGMENT - position))
    for later in (path / "commitlog").iterdir():
        if int(later.name) > position:
            later.write_bytes(bytes(SEGMENT))


def whole(data: bytes, placed: list[PutResult], cut: int) -> int:
    """How many records a cut leaves whole; a byte that was 0 anyway is no loss."""
    return sum(not any(data[max(cut, r.position) : r.position + r.size]) for r in placed)


def held(path: Path) -> bytes:
    """The first segment."""
    return segment(path, 0).read_bytes()


def found_after(path: Path, cuts: Iterable[int], config: StoreConfig) -> dict[int, int]:
    """For each cut of the first segment how many messages a reader finds."""
    data = held(path)
    found = {}
    for cut in cuts:
        segment(path, 0).write_bytes(data[:cut] + bytes(SEGMENT - cut))
        with kvstore.open(path, config=config, read_only=True) as store:
            found[cut] = len(read_back(store))
    segment(path, 0).write_bytes(data)
    return found


@pytest.mark.parametrize("config", [SMALL, COVERED], ids=["body CRC", "property CRC"])
def test_a_record_that_was_cut_short_at_any_byte_is_not_there(
    tmp_path: Path, config: StoreConfig
) -> None:
    base = tmp_path / "base"
    placed = left(tmp_path / "a", base, config, batch(0, BEFORE), batch(BEFORE, 1))
    last = placed[-1]
    assert 280 < last.size < 360
    cuts = range(last.position, last.position + last.size + 1)
    found = found_after(base, cuts, config)
    wanted = {cut: whole(held(base), placed, cut) for cut in cuts}
    assert set(wanted.values()) == {BEFORE, BEFORE + 1}
    assert {cut: n for cut, n in found.items() if n != wanted[cut]} == {}


def test_a_batch_that_was_cut_short_leaves_its_leading_messages(tmp_path: Path) -> None:
    base = tmp_path / "base"
    placed = left(tmp_path / "a", base, SMALL, batch(0, BEFORE), batch(BEFORE, 32))
    first, end = placed[BEFORE].position, placed[-1].position + placed[-1].size
    cuts = [*range(first, end, 512), end]
    found = found_after(base, cuts, SMALL)
    assert found == {cut: whole(held(base), placed, cut) for cut in cuts}
    assert len(set(found.values())) > 18


@pytest.mark.parametrize("write_mode", ["mapped", "staged"])
def test_a_store_goes_on_behind_the_last_whole_record(tmp_path: Path, write_mode: str) -> None:
    """A batch was cut short every 512 bytes."""
    base = tmp_path / "base"
    placed = left(tmp_path / "a", base, SMALL, batch(0, BEFORE), batch(BEFORE, 32))
    first, end = placed[BEFORE].position, placed[-1].position + placed[-1].size
    for number, cut in enumerate([*range(first, end, 512), end]):
        path = copy_folder(base, tmp_path / f"cut{number}")
        zero_from(path, cut)
        count = whole(held(base), placed, cut)
        with opened(path, settings(write_mode=write_mode)) as store:
            if count < len(placed):
                assert store.recovery.end == placed[count].position
                assert (store.recovery.cut_bytes > 0) == (cut > placed[count].position)
            assert len(read_back(store)) == count
            more = store.put_batch(batch(count, 3))
            assert [r.offset for r in more] == [count, count + 1, count + 2]
            again = killed(store, tmp_path / f"again{number}")
        for folder in (path, again) if write_mode == "mapped" else (path,):
            with opened(folder) as store:
                assert len(read_back(store)) == count + 3
                found = assert_whole(store)[("t", 0)]
                assert_found_by_key(store, found[-4:])
        shutil.rmtree(path)
        shutil.rmtree(again)


def test_a_segment_whose_closing_was_cut_short_is_gone_on_with(tmp_path: Path) -> None:
    """At each byte around the blank record that ends it, with and without the next segment."""
    base = tmp_path / "base"
    count = 3 * SEGMENT // 2 // 300
    placed = left(tmp_path / "a", base, SMALL, *(batch(n, 1) for n in range(count)))
    held = [r for r in placed if r.position < SEGMENT]
    blank = held[-1].position + held[-1].size
    assert 8 <= SEGMENT - blank < held[-1].size + 8
    case = 0
    for cut in range(blank - 4, min(blank + 9, SEGMENT + 1)):
        for with_next in (False, True):
            path = copy_folder(base, tmp_path / f"cut{case}")
            case += 1
            overwrite(path, cut, bytes(SEGMENT - cut))
            if not with_next:
                segment(path, 1).write_bytes(bytes(SEGMENT))
            closed = cut >= blank + 8
            kept = len(held) - (cut < blank) if not (closed and with_next) else len(placed)
            with opened(path) as store:
                assert len(read_back(store)) == kept, f"cut at {cut - blank} of the blank"
                store.put_batch(batch(kept, 2))
                again = killed(store, tmp_path / f"again{case}")
            with opened(again) as store:
                assert len(read_back(store)) == kept + 2
                assert store.verify().problems == []
            shutil.rmtree(path)
            shutil.rmtree(again)


STALE: Final = 20
"""Records behind the torn one that the disk has whole."""


@pytest.mark.parametrize("close", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("less", [-1, 0, 1, 50])
@pytest.mark.parametrize("at", [0, 4, 100, 250])
def test_whole_records_behind_a_torn_one_never_come_back(
    tmp_path: Path, at: int, less: int, close: bool
) -> None:
    """The next record ends exactly where they begin (`less` 0), or close to there."""
    base = tmp_path / "base"
    batches = [batch(n, 1) for n in range(BEFORE + 1 + STALE)]
    placed = left(tmp_path / "a", base, COVERED, *batches)
    torn = placed[BEFORE]
    overwrite(base, torn.position + at, bytes(40))
    with opened(base, COVERED) as store:
        assert len(read_back(store)) == BEFORE
        assert store.recovery.end == torn.position
        if not close:
            put(store, 1000, 1, SIZE - less)
            base = killed(store, tmp_path / "again")
    if close:
        with opened(base, COVERED) as store:
            put(store, 1000, 1, SIZE - less)
            base = killed(store, tmp_path / "again")
    for _ in range(2):
        with opened(base, COVERED) as store:
            found = assert_whole(store)[("t", 0)]
            assert [m.body for m in found[BEFORE:]] == [body(1000, SIZE - less)]


@pytest.mark.parametrize("rolls", [False, True])
def test_later_segments_never_come_back(tmp_path: Path, rolls: bool) -> None:
    """The first of three segments is torn; less is put, or just as much as to begin the second."""
    base = tmp_path / "base"
    count = 5 * SEGMENT // 2 // 300
    placed = left(tmp_path / "a", base, SMALL, *(batch(n, 1) for n in range(count)))
    overwrite(base, placed[BEFORE].position, bytes(40))
    fills = sum(r.position < SEGMENT for r in placed)
    until = fills + 1 if rolls else fills - 10
    with opened(base) as store:
        assert len(read_back(store)) == BEFORE
        for n in range(BEFORE, until):
            store.put_batch(batch(n, 1))
        assert store.stats().end_position // SEGMENT == int(rolls)
        again = killed(store, tmp_path / "again")
    for path in (base, again):
        with opened(path) as store:
            assert len(read_back(store)) == until
            assert store.verify().problems == []


def test_whatever_stands_behind_the_end_recovery_ends_there(tmp_path: Path) -> None:
    """Bytes of every kind behind the last record: none is taken for one, none raises."""
    base = tmp_path / "base"
    placed = left(tmp_path / "a", base, SMALL, batch(0, BEFORE))
    end = placed[-1].position + placed[-1].size
    record = segment(base, 0).read_bytes()[placed[0].position :][: placed[0].size]
    kinds: dict[str, bytes] = {
        "ones": b"\xff" * 1000,
        "the first record again": record,
        "its first half": record[:100],
        "a size and nothing": record[:4],
        "a size beyond all": b"\x7f\xff\xff\xff" + record[4:],
        "a negative size": b"\x80\x00\x00\x00" + record[4:],
        "a size of 0": bytes(4) + record[4:],
        "a blank of 0 bytes": bytes(4) + b"\xcb\xd4\x31\x94",
        "a blank beyond the segment": b"\x00\x10\x00\x00\xcb\xd4\x31\x94",
        "up to the segment's end": b"\x01" * (SEGMENT - end),
    }
    for name, data in kinds.items():
        path = copy_folder(base, tmp_path / name)
        overwrite(path, end, data)
        with opened(path) as store:
            assert len(read_back(store)) == BEFORE, name
            assert store.recovery.end == end, name
            assert store.recovery.torn is not None, name
            assert store.recovery.damage == [], name
            store.put_batch(batch(BEFORE, 1))
            again = killed(store, tmp_path / f"{name} again")
        with opened(again) as store:
            assert len(read_back(store)) == BEFORE + 1, name
            assert store.verify().problems == [], name
