"""A RocketMQ log is taken over as RocketMQ would recover it, and the source stays untouched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvstore.errors import CallerError, DiskFull
from kvstore.files import LocalFiles
from kvstore.record.walk import Kind, extents, walk
from kvstore.rocketmq.adopt import STAGING, Progress, TakenLog, stage_log
from kvstore.rocketmq.file_layouts import CHECKPOINT
from kvstore.rocketmq.folder_staging import STARTED, publish
from kvstore.rocketmq.source import RocketMQSource, read_source
from tests.fixtures import NAMES, Fixture, unpack_fixture
from tests.rocketmq.conftest import fingerprint
from tests.rocketmq.logs import NOW, SEGMENT, make_store, record, segment


def take_log(
    source: RocketMQSource, target: Path, files: LocalFiles, progress: Progress | None = None
) -> TakenLog:
    taken = stage_log(source, target, files, progress)
    publish(taken.path, target, files)
    return msgspec.structs.replace(taken, path=target)


@pytest.mark.parametrize("name", NAMES)
def test_a_log_is_taken_exactly_as_rocketmq_recovers_it(
    name: str, tmp_path: Path, files: LocalFiles
) -> None:
    fixture = unpack_fixture(name, tmp_path)
    before = fingerprint(fixture.store)
    target = tmp_path / "new" / "store"
    taken = take_log(read_source(fixture.store, files), target, files)

    assert fingerprint(fixture.store) == before
    assert taken.path == target
    assert taken.end == fixture.manifest["maxPhyOffset"]
    assert taken.first_position == fixture.manifest["minPhyOffset"]
    assert taken.records == len(fixture.messages)
    assert taken.damage == []
    assert bool(taken.cut_reason) == (name in ("flipped", "torn"))
    assert taken.lost_records == (1 if name == "torn" else 0)
    found = []
    for path in sorted((target / "commitlog").iterdir()):
        data = path.read_bytes()
        for one in extents(walk(data, int(path.name), 0, len(data))):
            if one.position >= taken.end:
                break
            if one.kind is Kind.RECORD:
                at = one.position - int(path.name)
                digest = hashlib.sha256(data[at : at + one.size]).hexdigest()
                found.append((one.position, one.size, digest))
    assert found == [
        (m["physicalOffset"], m["storeSize"], m["rawSha256"]) for m in fixture.messages
    ]


@pytest.mark.parametrize("name", NAMES)
def test_full_files_are_linked_and_the_one_with_the_end_is_copied(
    name: str, tmp_path: Path, files: LocalFiles
) -> None:
    fixture = unpack_fixture(name, tmp_path)
    taken = take_log(read_source(fixture.store, files), tmp_path / "new", files)
    for path in fixture.segment_paths:
        copy = tmp_path / "new" / "commitlog" / path.name
        if int(path.name) + taken.segment_size <= taken.end:
            assert copy.stat().st_ino == path.stat().st_ino
            assert path.name in taken.linked
        elif int(path.name) <= taken.end:
            assert copy.stat().st_ino != path.stat().st_ino
            assert copy.read_bytes() == path.read_bytes()
            assert taken.copied == [path.name]
        else:
            assert not copy.exists(), "RocketMQ deletes what is behind the end"
    assert sorted(p.name for p in (tmp_path / "new" / "commitlog").iterdir()) == sorted(
        taken.linked + taken.copied
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "new"])


def damaged_store(root: Path, *, closed: bool, checkpoint: int | None) -> Path:
    """Three files, a minute apart; the second record of the second file is damaged."""
    times = [NOW, NOW + 60_000, NOW + 120_000]
    files = [
        bytearray(segment(n * SEGMENT, [b"a", b"b", b"c"], full=n < 2, stored_at=time))
        for n, time in enumerate(times)
    ]
    files[1][len(record(0, b"a")) + 4] ^= 0xFF
    store = make_store(root, [bytes(data) for data in files])
    if not closed:
        (store / "abort").touch()
    if checkpoint is not None:
        page = CHECKPOINT.pack(checkpoint, checkpoint, 0, 0, 0)
        (store / "checkpoint").write_bytes(page.ljust(4096, b"\0"))
    return store


SECOND = SEGMENT + len(record(0, b"a"))
THIRD_END = 2 * SEGMENT + 3 * len(record(0, b"a"))


@pytest.mark.parametrize(
    ("closed", "checkpoint", "end"),
    [
        (True, None, THIRD_END),
        (False, NOW + 123_000, THIRD_END),
        (False, NOW + 122_999, SECOND),
        (False, NOW + 63_000, SECOND),
        (False, 0, SECOND),
        (False, None, SECOND),
    ],
)
def test_damage_ends_the_log_only_from_the_file_on_at_which_rocketmq_begins(
    closed: bool, checkpoint: int | None, end: int, tmp_path: Path, files: LocalFiles
) -> None:
    store = damaged_store(tmp_path / "source", closed=closed, checkpoint=checkpoint)
    taken = take_log(read_source(store, files), tmp_path / "new", files)
    assert taken.end == end
    if end == SECOND:
        assert taken.cut_reason
        assert (taken.records, taken.lost_records, taken.damage) == (4, 1 + 3, [])
        assert (taken.linked, taken.copied) == ([f"{0:020}"], [f"{SEGMENT:020}"])
    else:
        assert not taken.cut_reason
        assert (taken.records, taken.lost_records) == (8, 0)
        assert [damage.position for damage in taken.damage] == [SECOND]
        assert taken.copied == [f"{2 * SEGMENT:020}"]


def test_queues_in_rocksdb_have_no_time_in_the_checkpoint_and_need_none(
    tmp_path: Path, files: LocalFiles
) -> None:
    store = damaged_store(tmp_path / "source", closed=False, checkpoint=None)
    page = CHECKPOINT.pack(NOW + 123_000, 0, 0, 0, 0)
    (store / "checkpoint").write_bytes(page)
    (store / "consumequeue").mkdir()
    (store / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000001\n")
    assert take_log(read_source(store, files), tmp_path / "new", files).end == THIRD_END


def test_a_blank_record_at_the_end_of_the_last_file_is_where_the_log_ends(
    tmp_path: Path, files: LocalFiles
) -> None:
    full = [segment(n * SEGMENT, [b"a"], full=True) for n in range(2)]
    source = read_source(make_store(tmp_path / "source", full), files)
    taken = take_log(source, tmp_path / "new", files)
    assert taken.end == SEGMENT + len(record(0, b"a"))
    assert taken.copied == [f"{SEGMENT:020}"], "RocketMQ writes over that blank record"


def test_a_full_file_and_one_not_written_yet_end_the_log_where_that_one_begins(
    tmp_path: Path, files: LocalFiles
) -> None:
    data = [segment(0, [b"a"], full=True), bytes(SEGMENT), bytes(SEGMENT)]
    source = read_source(make_store(tmp_path / "source", data), files)
    taken = take_log(source, tmp_path / "new", files)
    assert (taken.end, taken.linked, taken.copied) == (SEGMENT, [f"{0:020}"], [f"{SEGMENT:020}"])


def test_a_record_up_to_the_last_byte_of_a_file_ends_the_log(
    tmp_path: Path, files: LocalFiles
) -> None:
    body = b"x" * (SEGMENT - len(record(0, b"")))
    data = [record(0, body), segment(SEGMENT, [b"a"])]
    (tmp_path / "source").mkdir()
    store = make_store(tmp_path / "source", data)
    (store / "abort").touch()
    taken = take_log(read_source(store, files), tmp_path / "new", files)
    assert (taken.end, taken.records, taken.lost_records) == (SEGMENT, 1, 1)


def test_an_empty_log_is_taken_as_one(tmp_path: Path, files: LocalFiles) -> None:
    source = read_source(make_store(tmp_path / "source", [bytes(SEGMENT)]), files)
    taken = take_log(source, tmp_path / "new", files)
    assert (taken.end, taken.records, taken.cut_reason) == (0, 0, "")


def test_progress_goes_from_nothing_to_all(
    stores: Callable[[str], Fixture], tmp_path: Path, files: LocalFiles
) -> None:
    told: list[tuple[int, int]] = []
    source = read_source(stores("classic").store, files)
    take_log(source, tmp_path / "new", files, lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {3 * source.segment_size}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]


# -- whole or not at all


class FailingFiles(LocalFiles):
    """A disk that is full when the last file is to be copied."""

    def copy(self, source: Path, target: Path) -> None:
        raise DiskFull(f"no room to copy {source} to {target}")


def test_an_import_that_failed_leaves_no_target_and_can_be_done_again(
    tmp_path: Path, files: LocalFiles
) -> None:
    fixture = unpack_fixture("classic", tmp_path)
    source = read_source(fixture.store, files)
    before = fingerprint(fixture.store)
    target = tmp_path / "new"
    with pytest.raises(DiskFull):
        take_log(source, target, FailingFiles())
    assert not target.exists()
    leftover = tmp_path / f"new{STAGING}" / "index" / "half"
    leftover.parent.mkdir()
    leftover.write_text("of a store that was being built")
    assert fingerprint(fixture.store) == before

    assert take_log(source, target, files).records == len(fixture.messages)
    assert not (target / "index" / "half").exists()
    assert fingerprint(fixture.store) == before
    assert not list(tmp_path.glob(f"new{STAGING}*"))


def test_a_log_can_be_staged_and_published_later(tmp_path: Path, files: LocalFiles) -> None:
    fixture = unpack_fixture("torn", tmp_path)
    target = tmp_path / "new"
    staged = stage_log(read_source(fixture.store, files), target, files)
    assert not target.exists()
    (staged.path / "more").write_text("of the store")
    publish(staged.path, target, files)
    assert (target / "more").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "torn"]


def test_an_empty_target_folder_is_used(tmp_path: Path, files: LocalFiles) -> None:
    source = read_source(make_store(tmp_path / "source", [segment(0, [b"a"])]), files)
    (tmp_path / "new").mkdir()
    assert take_log(source, tmp_path / "new", files).records == 1


@pytest.mark.parametrize("target", ["used", "file", "source", "source/inside"])
def test_a_target_that_is_used_or_in_the_source_is_refused(
    target: str, tmp_path: Path, files: LocalFiles
) -> None:
    source = read_source(make_store(tmp_path / "source", [segment(0, [b"a"])]), files)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "something").touch()
    (tmp_path / "file").touch()
    before = fingerprint(tmp_path)
    with pytest.raises(CallerError):
        take_log(source, tmp_path / target, files)
    assert fingerprint(tmp_path) == before


def test_a_foreign_folder_of_the_staging_folders_name_is_not_touched(
    tmp_path: Path, files: LocalFiles
) -> None:
    source = read_source(make_store(tmp_path / "source", [segment(0, [b"a"])]), files)
    foreign = tmp_path / f"new{STAGING}" / "mine"
    foreign.parent.mkdir()
    foreign.write_text("precious")
    with pytest.raises(CallerError, match="no import left it"):
        take_log(source, tmp_path / "new", files)
    assert foreign.read_text() == "precious"
    assert not (tmp_path / f"new{STAGING}{STARTED}").exists()


def test_files_that_cant_be_linked_are_copied(tmp_path: Path) -> None:
    class OtherDisk(LocalFiles):
        def link_or_copy(self, source: Path, target: Path) -> bool:
            self.copy(source, target)
            return False

    data = [segment(0, [b"a"], full=True), segment(SEGMENT, [b"b"])]
    source = read_source(make_store(tmp_path / "source", data), OtherDisk())
    taken = take_log(source, tmp_path / "new", OtherDisk())
    assert (taken.linked, len(taken.copied)) == ([], 2)
