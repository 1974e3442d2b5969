"""Rows of the catalog: what they say comes back, and many of them open a store."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvstore
from kvstore import StoreError
from kvstore.errors import FormatError
from kvstore.files import LocalFiles
from kvstore.index.keys import ARCHIVES, PLACES, archive_key
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.archive.making import plain_queues
from tests.tiering.catalog.moving import answers, config, filled, hand_over, tiers
from tiering import ErasureReport, Policy, Worker
from tiering.archive.columns.records import RecordBatch
from tiering.archive.writer import ArchiveOrigin, ArchiveWriter
from tiering.catalog.bucket import find_again
from tiering.catalog.catalog import ArchiveRow, decode_row, decode_rows, encode_row
from tiering.places.objects import object_key
from tiering.places.place import open_place

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


class Unreadable(LocalFiles):
    """Files of which those with a name that ends like this can't be read."""

    ending = "none"

    def read(self, path: Path, offset: int = 0, size: int = -1) -> bytes:
        if path.name.endswith(self.ending):
            raise OSError(errno.EIO, "cannot be read", str(path))
        return super().read(path, offset, size)


def test_rows_are_found_again_of_the_archives_that_no_other_supersedes(tmp_path: Path) -> None:
    """A merge counts and not what it was made of; of two archives of one segment the later counts;
    one that can't be read, or is no archive, hides no other. The others are retired. One of a
    segment that the log has is left alone."""
    store = bytes(range(16))

    def put(number: int, *segments: tuple[int, int], generation: int = 0) -> str:
        sink = BytesIO()
        writer = ArchiveWriter(
            sink, None,
            ArchiveOrigin(store_id=store.hex(), segments=segments, generation=generation),
        )  # fmt: skip
        (queue,) = plain_queues(1, 1, 5)
        writer.add(queue.topic, 0, RecordBatch.of_records(list(queue.records.values())))
        writer.finish()
        key = object_key(store, segments[0][0], number, "week")
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(sink.getvalue())
        return key

    first, second, third, fourth = [(at, at + 10) for at in range(0, 40, 10)]
    old = [put(1, first), put(2, second)]
    merged = put(3, first, second, generation=1)
    old.append(put(4, third))
    again = put(5, third)
    in_log = put(6, fourth)
    (tmp_path / f"{in_log}.bad").write_bytes(bytes(1000))
    files = Unreadable()
    gone: list[str] = []

    def found(*there: int) -> list[str]:
        place = open_place(tmp_path, files=files)

        def in_log(position: int) -> bool:
            return position >= 30 or position in there

        rows = decode_rows(find_again(place, store.hex(), 70, in_log=in_log, delete_at=99))
        assert sorted(row.number for row in rows) == list(range(70, 70 + len(rows)))
        retired = [row for row in rows if row.state == "retired"]
        assert all(row.delete_at == 99 for row in retired)
        gone[:] = sorted(row.key for row in retired)
        return sorted(row.key for row in rows if row.state == "live")

    for there in ((), (0,), (10,)):
        # Archives were merged, so the log has given up their segments.
        assert found(*there) == sorted([merged, again])
        assert gone == sorted(old)
    files.ending = Path(merged).name
    assert found() == sorted([*old[:2], again])
    assert gone == old[2:]


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("read_of", [(ARCHIVES, 1), (PLACES, 1), (PLACES, 2), (PLACES, 3)])
def test_archives_that_are_merged_while_a_store_is_verified_are_no_problem(
    tmp_path: Path,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    read_of: tuple[str, int],
    is_behind: bool,
) -> None:
    policy = Policy(hot_for=1.0, warm="archive", watermarks=None, clock_doubt=0.0, grace=0.0)
    with filled(tmp_path / "a", clock) as store:
        store.seal()
        clock.advance(3600)
        with Worker(store, policy) as worker:
            worker.run_once()
            families, merged = inside.families(store), list[str]()
            read, reads = families.rows, Counter[str]()

            def rows(name: str, *asked: Any) -> Iterator[tuple[bytes, bytes]]:
                reads[name] += 1
                is_struck = read_of == (name, reads[name])
                if is_struck and not is_behind:
                    merged.extend(worker.merge().merged)
                yield from read(name, *asked)
                if is_struck and is_behind:
                    merged.extend(worker.merge().merged)

            monkeypatch.setattr(families, "rows", rows)
            assert store.verify(archives=True).problems == []
            assert merged


def test_a_segment_that_is_erased_while_others_before_it_stay_is_no_problem(
    tmp_path: Path, clock: VirtualClock
) -> None:
    policy = Policy(hot_for=1e9, warm="archive", watermarks=None, clock_doubt=0.0)
    with filled(tmp_path / "a", clock) as store:
        store.create_topic("late", queues=1)
        store.put("late", b"secret")
        store.seal()
        with Worker(store, policy) as worker:
            erased: list[ErasureReport] = []
            report = store.verify(lambda *_: erased.append(worker.erase(topic="late")))
        assert report.problems == []
        assert len(erased[0].segments) == 1
