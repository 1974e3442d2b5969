"""Rows of the catalog: what they say comes back, and many of them open a store."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import kvstore
from kvstore import StoreError
from kvstore.errors import FormatError
from kvstore.index.keys import archive_key
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import answers, config, filled, hand_over, tiers
from tiering.catalog.catalog import ArchiveRow, decode_row, decode_rows, encode_row

ROW = ArchiveRow(
    number=7,
    place="s3://bucket/prefix",
    key="week-7.kvma",
    tier="cold",
    size=1 << 40,
    crc=0xFFFFFFFF,
    first_position=1 << 45,
    last_position=(1 << 45) + 5,
    first_stored_at=1,
    last_stored_at=2,
    messages=3,
    raw_bytes=4,
    segments=[(0, 1 << 30), (3 << 30, 4 << 30)],
    state="retired",
    delete_at=5,
)


def test_a_row_comes_back_as_it_was() -> None:
    assert decode_row(ROW.catalog_key, encode_row(ROW)) == ROW
    assert ROW.name == "s3://bucket/prefix/week-7.kvma"


def test_fields_of_a_later_version_are_passed_over() -> None:
    known = msgspec.msgpack.decode(encode_row(ROW))
    later = msgspec.msgpack.encode({**known, "colour": "blue"})
    assert decode_row(ROW.catalog_key, later) == ROW


@pytest.mark.parametrize("value", [b"", b"\xc1", encode_row(ROW)[:-3], b"\x80"])
def test_what_is_no_row_is_an_error(value: bytes) -> None:
    with pytest.raises(FormatError, match="archive 7"):
        decode_row(ROW.catalog_key, value)


def test_a_row_under_the_key_of_another_is_an_error() -> None:
    with pytest.raises(FormatError, match="8"):
        decode_row(archive_key(0, 8), encode_row(ROW))


def test_a_store_with_ten_thousand_archives_opens_and_touches_none_of_them(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 2) as store:
        before = answers(store)
        hand_over(store, [0])
        more = [
            msgspec.structs.replace(ROW, number=n, first_position=n << 40, state="live")
            for n in range(100, 10_100)
        ]
        store.handover.set_rows((row.catalog_key, encode_row(row)) for row in more)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert len(decode_rows(store.handover.rows())) == 10_001
        assert [t.archives for t in store.stats().tiers] == [1, 10_000]
        assert store.get("orders", 0, 0) == before["orders", 0, 0]
        assert len(tiers(store).rows()) == 10_001
        store.handover.set_rows((row.catalog_key, None) for row in more)
        assert answers(store) == before


def test_numbers_are_never_given_twice(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        first = hand_over(store, [0]).rows[0].number
        with pytest.raises(StoreError):
            store.handover.hand_over([], [])
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        store.handover.swap([first], rows=[(row.catalog_key, None) for row in tiers(store).rows()])
        assert hand_over(store, [1]).rows[0].number > first
