"""A folder is recognised as a RocketMQ store, or refused with what is wrong with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.errors import SegmentDamaged, StoreNotFound
from kvstore.files import LocalFiles
from kvstore.rocketmq.source import read_source
from tests.fixtures import NAMES, Fixture
from tests.rocketmq.conftest import fingerprint
from tests.rocketmq.logs import SEGMENT, make_store, segment

FULL = [segment(number * SEGMENT, [b"x"], full=True) for number in range(3)]


@pytest.mark.parametrize("name", NAMES)
def test_a_store_says_what_it_consists_of(
    name: str, stores: Callable[[str], Fixture], files: LocalFiles
) -> None:
    fixture = stores(name)
    before = fingerprint(fixture.store)
    source = read_source(fixture.store, files)
    assert source.path == fixture.store
    assert source.segments == [(int(p.name), p) for p in fixture.segment_paths]
    assert source.segment_size == fixture.manifest["config"]["mappedFileSizeCommitLog"]
    assert source.closed_cleanly == (name in ("classic", "rocksdb"))
    assert source.configuration.kind == ("rocksdb" if name == "rocksdb" else "json")
    assert source.configuration.notes == []
    used = {(m["topic"]) for m in fixture.messages}
    assert {topic.name for topic in source.configuration.topics} & used
    assert fingerprint(fixture.store) == before


def test_a_log_whose_first_files_were_deleted_is_a_store(tmp_path: Path, files: LocalFiles) -> None:
    data = [segment((5 + number) * SEGMENT, [b"x"]) for number in range(2)]
    store = make_store(tmp_path, data, first=5 * SEGMENT)
    (store / "commitlog" / "notes.txt").write_text("not a log file")
    source = read_source(store, files)
    assert [start for start, _ in source.segments] == [5 * SEGMENT, 6 * SEGMENT]
    assert source.configuration.kind == "none"


def test_an_empty_last_file_is_left_out_as_rocketmq_does(tmp_path: Path, files: LocalFiles) -> None:
    store = make_store(tmp_path, FULL[:1])
    (store / "commitlog" / f"{SEGMENT:020}").write_bytes(b"")
    assert len(read_source(store, files).segments) == 1


@pytest.mark.parametrize("made", [[], ["commitlog"], ["commitlog/readme"]])
def test_a_folder_without_log_files_is_no_store(
    made: list[str], tmp_path: Path, files: LocalFiles
) -> None:
    for name in made:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(StoreNotFound, match="20 digits"):
        read_source(tmp_path, files)


def test_a_store_of_kvmq_is_not_rocketmqs(tmp_path: Path, files: LocalFiles) -> None:
    store = make_store(tmp_path, FULL)
    (store / "index").mkdir()
    (store / "index" / "CURRENT").write_bytes(b"MANIFEST-000001\n")
    with pytest.raises(StoreNotFound, match="kvmq already"):
        read_source(store, files)


def test_a_file_where_the_log_should_be_is_no_store(tmp_path: Path, files: LocalFiles) -> None:
    (tmp_path / "commitlog").write_bytes(b"")
    with pytest.raises(StoreNotFound, match="20 digits"):
        read_source(tmp_path, files)


def test_a_hole_between_two_files_is_named(tmp_path: Path, files: LocalFiles) -> None:
    store = make_store(tmp_path, FULL)
    missing = store / "commitlog" / f"{SEGMENT:020}"
    missing.unlink()
    with pytest.raises(SegmentDamaged, match="is missing") as e:
        read_source(store, files)
    assert e.value.path == str(missing)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_file_of_another_size_is_named(number: int, tmp_path: Path, files: LocalFiles) -> None:
    store = make_store(tmp_path, FULL)
    path = store / "commitlog" / f"{number * SEGMENT:020}"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SegmentDamaged, match="1000 bytes, others have 4096") as e:
        read_source(store, files)
    assert e.value.path == str(path)


def test_a_file_that_begins_where_none_can_is_refused(tmp_path: Path, files: LocalFiles) -> None:
    store = make_store(tmp_path, FULL[:1], first=100)
    with pytest.raises(SegmentDamaged, match="not a multiple"):
        read_source(store, files)


def test_bytes_that_are_no_log_are_refused(tmp_path: Path, files: LocalFiles) -> None:
    with pytest.raises(SegmentDamaged, match="not a commit log"):
        read_source(make_store(tmp_path, [b"\x01" * SEGMENT]), files)


def test_a_log_with_a_damaged_first_record_or_none_yet_is_still_a_log(
    tmp_path: Path, files: LocalFiles
) -> None:
    data = segment(0, [b"a", b"b"])
    damaged = make_store(tmp_path / "damaged", [b"\xff" * 8 + data[8:]])
    assert read_source(damaged, files).segment_size == SEGMENT
    new = make_store(tmp_path / "new", [bytes(SEGMENT)])
    assert read_source(new, files).segment_size == SEGMENT


def test_a_copy_of_a_store_reads_like_the_store(
    stores: Callable[[str], Fixture], tmp_path: Path, files: LocalFiles
) -> None:
    original = stores("classic").store
    shutil.copytree(original, tmp_path / "copy")
    assert (
        read_source(tmp_path / "copy", files).configuration.offsets
        == read_source(original, files).configuration.offsets
    )
