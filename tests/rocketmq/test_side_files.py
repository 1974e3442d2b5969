"""Consume queues, index files and the checkpoint are read; what a file is, its place or its
content says.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import FormatError
from kvstore.files import LocalFiles
from kvstore.rocketmq.file_layouts import BATCH_UNIT, INDEX_HEADER, QUEUE_UNIT, SKIPPED_UNIT
from kvstore.rocketmq.kinds import FileKind, base_of, kind_of
from kvstore.rocketmq.side_files import (
    BatchEntry,
    CheckpointPage,
    QueueEntry,
    Unused,
    entry_at,
    first_offset,
    read_batch_queue,
    read_batch_units,
    read_checkpoint,
    read_header,
    read_items,
    read_units,
)
from tests.fixtures import NAMES, Fixture
from tests.rocketmq.conftest import rows

FIRST = "0" * 20


def entries_in(path: Path, files: LocalFiles) -> list[QueueEntry]:
    return [unit for unit in read_units(path, files) if isinstance(unit, QueueEntry)]


def test_every_queue_file_of_a_store_has_the_entries_rocketmq_finds_in_it(
    stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    classic = stores("classic")
    expected = rows(classic.manifest["consumeQueueFiles"])
    assert expected, "the manifest has none"
    found: dict[tuple[str, int], list[list[int]]] = {}
    for path in sorted((classic.store / "consumequeue").glob("*/*/*")):
        entries = found.setdefault((path.parent.parent.name, int(path.parent.name)), [])
        entries += ([e.offset, e.position, e.size, e.tags_code] for e in entries_in(path, files))
    assert found == expected


@pytest.mark.parametrize("name", ["flipped", "torn"])
def test_queues_of_a_crashed_store_lead_to_whole_records(
    name: str, stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    fixture = stores(name)
    known = {(m["physicalOffset"], m["storeSize"]) for m in fixture.manifest["messagesBefore"]}
    entries = [
        entry
        for path in (fixture.store / "consumequeue").glob("*/*/*")
        for entry in entries_in(path, files)
    ]
    assert entries
    assert {(e.position, e.size) for e in entries} <= known


def test_a_file_in_the_middle_of_a_queue_begins_where_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / f"{2000:020}"
    path.write_bytes(QUEUE_UNIT.pack(7, 91, -5) + bytes(40))
    assert first_offset(path) == 100
    assert list(read_units(path, LocalFiles())) == [
        QueueEntry(100, 7, 91, -5),
        Unused(20, 2, "unwritten"),
    ]
    assert entry_at(path, LocalFiles(), 100) == QueueEntry(100, 7, 91, -5)
    for outside in (99, 101, 103):
        assert entry_at(path, LocalFiles(), outside) is None


def test_padding_before_a_queues_first_offset_is_no_entry(tmp_path: Path) -> None:
    path = tmp_path / FIRST
    path.write_bytes(QUEUE_UNIT.pack(*SKIPPED_UNIT) * 3 + QUEUE_UNIT.pack(0, 91, 0))
    assert list(read_units(path, LocalFiles())) == [
        Unused(0, 3, "skipped"),
        QueueEntry(3, 0, 91, 0),
    ]


def test_what_is_no_entry_is_named_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / FIRST
    path.write_bytes(QUEUE_UNIT.pack(-1, 91, 0) + QUEUE_UNIT.pack(8, 91, 1) + b"part")
    assert list(read_units(path, LocalFiles())) == [
        Unused(0, 1, "invalid"),
        QueueEntry(1, 8, 91, 1),
        Unused(40, 4, "partial"),
    ]


def test_unwritten_units_are_one_stretch_whatever_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / FIRST
    path.write_bytes(QUEUE_UNIT.pack(0, 91, 0) + bytes(20 * 20_000))
    assert list(read_units(path, LocalFiles()))[1:] == [Unused(20, 20_000, "unwritten")]


def test_a_batch_queue_says_its_offsets_itself(tmp_path: Path) -> None:
    path = tmp_path / FIRST
    units = [(0, 300, 1, 1000, 0, 3, -1, 0), (300, 200, 2, 1001, 3, 2, -1, 0)]
    path.write_bytes(b"".join(BATCH_UNIT.pack(*unit) for unit in units) + bytes(92))
    entries = [
        BatchEntry(0, 3, 0, 300, 1, 1000, -1),
        BatchEntry(3, 2, 300, 200, 2, 1001, -1),
    ]
    assert list(read_batch_queue(path, LocalFiles())) == entries
    assert list(read_batch_units(path, LocalFiles())) == [*entries, Unused(92, 2, "unwritten")]


@pytest.mark.parametrize("name", ["queue", f"{10:020}", "1" * 19])
def test_a_name_that_says_no_offset_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(bytes(20))
    with pytest.raises(FormatError, match="20 digits"):
        read_units(tmp_path / name, LocalFiles())
    assert list(read_units(tmp_path / name, LocalFiles(), first=0))


@given(data=st.binary(max_size=2000))
def test_any_bytes_are_read_as_units_without_an_error(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-queue"
    path.write_bytes(data)
    for units, size in (
        (read_units(path, LocalFiles(), first=0), QUEUE_UNIT.size),
        (read_batch_units(path, LocalFiles()), BATCH_UNIT.size),
    ):
        covered = 0
        for unit in units:
            if not isinstance(unit, Unused):
                covered += size
            else:
                assert unit.at == covered
                covered += unit.units if unit.reason == "partial" else unit.units * size
        assert covered == len(data)


def test_index_files_have_the_items_rocketmq_finds_in_them(
    stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    classic = stores("classic")
    for expected in classic.manifest["indexFiles"]:
        path = classic.store / "index" / expected["file"]
        header = read_header(path, files)
        assert (
            header.begin_time, header.end_time, header.begin_position, header.end_position,
            header.slots_used, header.item_count,
        ) == tuple(
            expected[name]
            for name in (
                "beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset",
                "hashSlotCount", "indexCount",
            )
        )  # fmt: skip
        found = [
            [item.number, item.key_hash, item.position, item.seconds, item.previous]
            for item in read_items(path, files)
        ]
        assert found == expected["items"]


def test_an_index_file_whose_items_cant_be_found_is_refused(
    stores: Callable[[str], Fixture], tmp_path: Path, files: LocalFiles
) -> None:
    source = next((stores("classic").store / "index").iterdir())
    data = bytearray(source.read_bytes())
    data[16:24] = (2**40).to_bytes(8, "big")  # the first position, which no item has now
    path = tmp_path / source.name
    path.write_bytes(data)
    with pytest.raises(FormatError, match="slots"):
        list(read_items(path, files))
    path.write_bytes(data[:39])
    with pytest.raises(FormatError, match="39 bytes"):
        read_header(path, files)
    path.write_bytes(INDEX_HEADER.pack(0, 0, 0, 0, 1, 10**9))
    with pytest.raises(FormatError, match="items"):
        read_header(path, files)


@given(data=st.binary(max_size=400))
def test_any_bytes_are_an_index_file_or_refused(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "20261121054541290"
    path.write_bytes(data)
    with suppress(FormatError):
        list(read_items(path, LocalFiles()))
    kind_of(path, LocalFiles())


@pytest.mark.parametrize(
    ("name", "field"), [("classic", "checkpoint"), ("torn", "checkpointBefore")]
)
def test_the_checkpoint_page_is_read(
    name: str, field: str, stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    fixture = stores(name)
    expected = fixture.manifest[field]
    found = read_checkpoint(fixture.store / "checkpoint", files)
    assert found == CheckpointPage(
        expected["physicMsgTimestamp"], expected["logicsMsgTimestamp"],
        expected["indexMsgTimestamp"], expected["masterFlushedOffset"],
        expected["confirmPhyOffset"],
    )  # fmt: skip
    assert found.safe_time == min(found.log_time, found.queue_time) - 3000


def test_a_checkpoint_may_be_missing_but_not_short(tmp_path: Path, files: LocalFiles) -> None:
    path = tmp_path / "checkpoint"
    assert read_checkpoint(path, files) is None
    path.write_bytes(bytes(39))
    with pytest.raises(FormatError, match="39 bytes"):
        read_checkpoint(path, files)
    path.write_bytes(bytes(4096))
    empty = read_checkpoint(path, files)
    assert empty is not None
    assert empty.safe_time == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_a_store_is_told_by_its_place(
    name: str, stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    store = stores(name).store
    places = {
        "commitlog/*": FileKind.LOG,
        "index/*": FileKind.INDEX,
        "checkpoint": FileKind.CHECKPOINT,
    }
    if name != "rocksdb":
        places["consumequeue/*/*/*"] = FileKind.QUEUE
    for pattern, kind in places.items():
        paths = list(store.glob(pattern))
        assert paths
        assert {kind_of(path, files) for path in paths} == {kind}
    for path in (store / "lock", store / "config" / "delayOffset.json"):
        assert kind_of(path, files) is None


def test_a_file_that_was_moved_and_renamed_is_told_by_its_content(
    stores: Callable[[str], Fixture], tmp_path: Path, files: LocalFiles
) -> None:
    classic = stores("classic")
    log = classic.segment_paths[1]
    moved = tmp_path / "moved"
    shutil.copy(log, moved)
    assert kind_of(moved, files) is FileKind.LOG
    assert base_of(moved.read_bytes(), "moved") == int(log.name)
    assert base_of(moved.read_bytes(), "0" * 20) == int(log.name), "the records know better"
    damaged = bytes(400) + moved.read_bytes()[400:]
    moved.write_bytes(damaged)
    assert kind_of(moved, files) is FileKind.LOG
    assert base_of(damaged, "moved") == int(log.name)
    shutil.copy(classic.store / "consumequeue" / "TopicTest" / "0" / ("0" * 20), moved)
    assert kind_of(moved, files) is FileKind.QUEUE
    index = next((classic.store / "index").iterdir())
    shutil.copy(index, tmp_path)
    assert kind_of(tmp_path / index.name, files) is FileKind.INDEX


@pytest.mark.parametrize("data", [b"", b"hello", bytes(4096), b"\x01\xda\xa3\x20\xa7" * 100])
def test_a_file_of_something_else_is_nothing(
    data: bytes, tmp_path: Path, files: LocalFiles
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert kind_of(path, files) is None
    assert base_of(data, "file") is None


@given(data=st.binary(max_size=600))
def test_any_bytes_have_a_kind_or_none(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-file"
    path.write_bytes(data)
    kind_of(path, LocalFiles())
