"""Damage of the log below its durable end: reported with its place, passed over, never silent.

Nor is it ever fatal, unless that is asked for.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import (
    IndexDamaged,
    IndexUnavailable,
    LogDamaged,
    PutResult,
    RecordDamaged,
    SegmentDamaged,
    StoreNotFound,
)
from kvstore.files import LocalFiles
from kvstore.index.families import Families
from kvstore.index.keys import CHECKPOINT, META, checkpoint_value, read_checkpoint
from tests.support import inside
from tests.support.contents import bodies, read_around
from tests.support.files import Effect, WatchedFiles, copy_folder
from tests.support.raising import raising
from tests.support.stores import (
    SEGMENT,
    SMALL,
    body,
    flip,
    opened,
    overwrite,
    put,
    segment,
    settings,
)

COUNT = 600
"""Messages in the stores here: about three and a half segments."""
OTHERS = 20
"""Messages of queue 1, behind them in the last segment."""


@pytest.fixture
def placed(tmp_path: Path) -> list[PutResult]:
    """A cleanly closed store in `tmp_path/"a"`: where each message of queue 0 is."""
    with opened(tmp_path / "a") as store:
        found = put(store, 0, COUNT)
        put(store, 5000, OTHERS, queue=1)
        assert found[-1].position // SEGMENT == 3
    return found


def fingerprint(path: Path) -> dict[str, str]:
    """The files in the log's folder."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "folder"
        for p in (path / "commitlog").iterdir()
    }


def in_segment(placed: list[PutResult], number: int) -> list[int]:
    """The offsets whose records are in a segment."""
    return [r.offset for r in placed if r.position // SEGMENT == number]


def assert_passed_over(
    path: Path, placed: list[PutResult], lost: set[int], *, others: int = OTHERS
) -> None:
    """The store opens, says what is damaged, gives all but the lost messages, takes more.

    `others` of queue 1's messages are left; they stand behind all of queue 0's.
    """
    with opened(path) as store:
        told = store.verify().problems
        assert told or not lost
        assert all(p.position >= 0 for p in told)
        found, errors = read_around(store, "t", 0)
        assert {m.offset for m in found} == set(range(COUNT)) - lost
        assert all(m.body == body(m.offset) for m in found)
        assert bool(errors) == bool(lost)
        for offset in sorted(lost)[:3]:
            with pytest.raises(RecordDamaged) as raised:
                store.get("t", 0, offset)
            assert raised.value.position == placed[offset].position
        assert len(read_around(store, "t", 1)[0]) == others
        assert put(store, COUNT, 3)[0].offset == COUNT
    with opened(path) as store:
        assert {m.offset for m in read_around(store, "t", 0)[0]} == set(range(COUNT + 3)) - lost


def damage_body(path: Path, placed: list[PutResult], offset: int) -> None:
    flip(path, placed[offset].position + 100)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_flipped_bit_costs_the_one_message(
    tmp_path: Path, placed: list[PutResult], number: int
) -> None:
    offset = in_segment(placed, number)[10]
    damage_body(tmp_path / "a", placed, offset)
    assert_passed_over(tmp_path / "a", placed, {offset})


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_zeroed_page_costs_the_messages_in_it(
    tmp_path: Path, placed: list[PutResult], number: int
) -> None:
    at = number * SEGMENT + 8192
    overwrite(tmp_path / "a", at, bytes(4096))
    lost = {r.offset for r in placed if r.position < at + 4096 and r.position + r.size > at}
    assert_passed_over(tmp_path / "a", placed, lost)


@pytest.mark.parametrize("size", [0, 1, 5000, SEGMENT - 4096])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_truncated_segment_costs_the_messages_that_were_cut_off(
    tmp_path: Path, placed: list[PutResult], number: int, size: int
) -> None:
    os.truncate(segment(tmp_path / "a", number), size)
    stop = number * SEGMENT + size
    # Where only properties were cut off, no sum says so: the body's CRC is all a record has.
    lost = {
        r.offset for r in placed if r.position // SEGMENT == number and r.position + 91 + 200 > stop
    }
    gone = number == 3 and stop <= placed[-1].position
    assert_passed_over(tmp_path / "a", placed, lost, others=0 if gone else OTHERS)


def missing(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_bytes(b"x")


def too_long(path: Path) -> None:
    os.truncate(path, SEGMENT + 4096)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("harm", [missing, folder, too_long, pipe])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_segment_that_cannot_be_used_costs_its_messages(
    tmp_path: Path, placed: list[PutResult], number: int, harm: Callable[[Path], None]
) -> None:
    harm(segment(tmp_path / "a", number))
    lost = set(in_segment(placed, number))
    if number == 0 and harm is missing:
        # The log begins later, as after retention, but nobody let go of the segment: that is told.
        with opened(tmp_path / "a") as store:
            assert [d.position for d in store.recovery.damage] == [0]
    else:
        others = 0 if number == 3 else OTHERS
        assert_passed_over(tmp_path / "a", placed, lost, others=others)


def test_what_a_missing_segment_held_is_named_with_its_place(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    segment(tmp_path / "a", 1).unlink()
    with opened(tmp_path / "a") as store:
        assert [(d.position, d.end) for d in store.recovery.damage] == [(SEGMENT, 2 * SEGMENT)]
        assert [p.position for p in store.verify().problems] == [SEGMENT]
        with pytest.raises(SegmentDamaged):
            store.read_at(placed[in_segment(placed, 1)[3]].position)


@pytest.mark.parametrize("harm", [folder, too_long, pipe])
def test_something_else_in_the_place_of_the_next_segment_is_reported_and_got_around(
    tmp_path: Path, placed: list[PutResult], harm: Callable[[Path], None]
) -> None:
    shutil.copy(segment(tmp_path / "a", 0), segment(tmp_path / "a", 4))
    harm(segment(tmp_path / "a", 4))
    with opened(tmp_path / "a") as store:
        put(store, COUNT, 300)
        assert len(bodies(store)[("t", 0)]) == COUNT + 300
    with opened(tmp_path / "a") as store:
        assert len(bodies(store)[("t", 0)]) == COUNT + 300


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "0000000000000006553",
        "000000000000000065537",
        "00000000000000000001",
        "-0000000000000065536",
        "0" * 19 + "\u00b2",
        "\u0663" * 20,
        f"{SEGMENT << 40:020d}",
        ".hidden",
    ],
)
def test_a_foreign_file_is_reported_and_left_alone(
    tmp_path: Path, placed: list[PutResult], name: str
) -> None:
    stranger = tmp_path / "a" / "commitlog" / name
    stranger.write_bytes(b"not yours")
    with opened(tmp_path / "a") as store:
        assert any(name in p for p in store.recovery.problems)
        assert len(bodies(store)[("t", 0)]) == COUNT
        put(store, COUNT, 300)
    assert stranger.read_bytes() == b"not yours"


class VanishingFiles(LocalFiles):
    """A reader's files: what the writer has in the making is done between listing and looking."""

    def list_dir(self, path: Path) -> list[str]:
        names = super().list_dir(path)
        return [*names, *(f"{SEGMENT * 9:020d}{end}" for end in (".new", ".whole", ".gone"))]


def test_a_reader_takes_what_the_writer_has_in_the_making_for_nothing_foreign(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    folder = tmp_path / "a" / "commitlog"
    (folder / f"{SEGMENT * 8:020d}.new").write_bytes(b"half made")
    config = settings(files=VanishingFiles())
    with kvstore.open(tmp_path / "a", config=config, read_only=True) as reader:
        assert not [p for p in reader.recovery.problems if "segment" in p]
        assert len(bodies(reader)[("t", 0)]) == COUNT


def crashed(path: Path, target: Path) -> Path:
    """The store with an index that knows the durable end, but has to be made anew from the log."""
    from kvstore.opening import store_folder

    shutil.copytree(path, target)
    index, _ = store_folder.open_index(
        target, SMALL, store_folder.look(target, SMALL), read_only=False
    )
    index.load()
    index.drop_derived()
    index.close()
    return target


FIELDS = {
    "size": 0, "magic": 4, "body CRC": 8, "queue id": 12, "flag": 16, "queue offset": 20,
    "position": 28, "system flags": 36, "born time": 40, "store time": 56, "prepared": 76,
    "body length": 84, "body": 88, "topic length": 288, "topic": 289, "properties length": 290,
}  # fmt: skip


HARMS: list[tuple[str, Callable[[Path, list[PutResult]], None]]] = [
    ("bit", lambda p, placed: damage_body(p, placed, 50)),
    ("page", lambda p, _: overwrite(p, SEGMENT + 8192, bytes(4096))),
    ("truncated", lambda p, _: os.truncate(segment(p, 1), 5000)),
    ("missing", lambda p, _: segment(p, 1).unlink()),
]


FOUND_LATE: list[tuple[str, Callable[[Path, list[PutResult]], None]]] = [
    ("offset", lambda p, placed: flip(p, placed[50].position + FIELDS["queue offset"], bit=6)),
    ("last", lambda p, _: segment(p, 3).unlink()),
]
"""Damage that is found only when all is read."""


@pytest.mark.parametrize(
    "harm",
    [h for _, h in HARMS + FOUND_LATE],
    ids=[name for name, _ in HARMS + FOUND_LATE],
)
def test_damage_fails_the_opening_if_asked_to_and_leaves_everything_as_it_was(
    tmp_path: Path, placed: list[PutResult], harm: Callable[[Path, list[PutResult]], None]
) -> None:
    path = crashed(tmp_path / "a", tmp_path / "b")
    harm(path, placed)
    before = fingerprint(path)
    strict = settings(on_corruption="fail")
    often = settings(on_corruption="fail", checkpoint_bytes=20_000)
    for config in (strict, often, often, strict):
        with pytest.raises(LogDamaged):
            kvstore.open(path, config=config).close()
        assert fingerprint(path) == before
    with opened(path) as store:
        assert store.recovery.damage
        assert len(read_around(store, "t", 0)[0]) > COUNT // 2


@pytest.mark.parametrize("harm", [h for _, h in HARMS], ids=[name for name, _ in HARMS])
def test_damage_met_in_recovery_is_reported_with_its_place_and_logged(
    tmp_path: Path,
    placed: list[PutResult],
    harm: Callable[[Path, list[PutResult]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = crashed(tmp_path / "a", tmp_path / "b")
    harm(path, placed)
    with caplog.at_level(logging.WARNING, logger="kvmq"), opened(path) as store:
        assert len(store.recovery.damage) == 1
        d = store.recovery.damage[0]
        lost = {r.offset for r in placed if r.position < d.end and r.position + r.size > d.position}
        assert str(d.position) in caplog.text
        found, _ = read_around(store, "t", 0)
        assert {m.offset for m in found} == set(range(COUNT)) - lost
        assert store.bounds("t", 0) == (0, COUNT)
        assert put(store, COUNT, 1)[0].offset == COUNT
        assert store.query("t", f"k-{COUNT - 1}")[0].body == body(COUNT - 1)


@pytest.mark.parametrize("field", FIELDS)
def test_a_record_with_a_flipped_field_costs_no_other_message_when_the_index_is_made_anew(
    tmp_path: Path, placed: list[PutResult], field: str
) -> None:
    """The body's CRC covers none of these fields: they must not be believed against the rest."""
    path = crashed(tmp_path / "a", tmp_path / "b")
    victim = 50
    flip(path, placed[victim].position + FIELDS[field], bit=6)
    with opened(path) as store:
        found, _ = read_around(store, "t", 0)
        assert {m.offset for m in found} >= set(range(COUNT)) - {victim}
        assert [m.body for m in found if m.offset != victim] == [
            body(n) for n in range(COUNT) if n != victim
        ]
        assert put(store, COUNT, 1)[0].offset == COUNT
        if field == "queue offset":
            told = [d for d in store.recovery.damage if d.position == placed[victim].position]
            assert "50 was due" in told[0].reason
            assert store.recovery.refused == 1
        assert len(store.topics()) == 1, "a topic was made of a flipped bit"
        assert store.topic("t").read_queues <= 1 << 16


def test_a_record_with_an_impossible_queue_makes_none_when_the_index_is_lost(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    path = tmp_path / "a"
    flip(path, placed[50].position + FIELDS["queue id"], bit=6)
    shutil.rmtree(path / "index")
    report = kvstore.rebuild(path).recovery
    assert placed[50].position in [d.position for d in report.damage]
    with opened(path) as store:
        assert store.topic("t").read_queues == 2
        found, _ = read_around(store, "t", 0)
        assert {m.offset for m in found} == set(range(COUNT)) - {50}


UNKNOWN: list[tuple[str, Callable[[Path, list[PutResult]], None]]] = [
    *HARMS[:3],
    ("half", lambda p, _: os.truncate(segment(p, 1), SEGMENT // 2)),
]


@pytest.mark.parametrize("harm", [h for _, h in UNKNOWN], ids=[name for name, _ in UNKNOWN])
def test_a_log_of_which_nothing_is_known_ends_behind_its_last_good_record(
    tmp_path: Path, placed: list[PutResult], harm: Callable[[Path, list[PutResult]], None]
) -> None:
    """Nobody knows the durable end, and still what stands behind damage is not cut off."""
    path = tmp_path / "a"
    harm(path, placed)
    shutil.rmtree(path / "index")
    report = kvstore.rebuild(path).recovery
    assert report.damage
    assert report.torn is None
    with opened(path) as store:
        assert store.stats().segment_size == SEGMENT, "it is that of most files"
        found, _ = read_around(store, "t", 0)
        assert {m.offset for m in found} >= set(range(COUNT)) - set(in_segment(placed, 1)) - {50}
        assert len(read_around(store, "t", 1)[0]) == OTHERS


def test_a_reader_leaves_a_log_with_gaps_to_a_writer_first(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    path = crashed(tmp_path / "a", tmp_path / "b")
    damage_body(path, placed, 50)
    for _ in range(2):
        with pytest.raises(IndexDamaged, match="opened for writing once"):
            kvstore.open(path, read_only=True)
    kvstore.open(path).close()
    with kvstore.open(path, read_only=True) as store:
        assert {m.offset for m in read_around(store, "t", 0)[0]} == set(range(COUNT)) - {50}


@pytest.mark.parametrize("field", FIELDS)
def test_an_indexed_record_with_a_flipped_field_is_never_given_out_as_another(
    tmp_path: Path, placed: list[PutResult], field: str
) -> None:
    victim = 50
    flip(tmp_path / "a", placed[victim].position + FIELDS[field], bit=6)
    with opened(tmp_path / "a") as store:
        try:
            m = store.get("t", 0, victim)
            assert (m.offset, m.queue, m.topic, m.body) == (victim, 0, "t", body(victim))
        except RecordDamaged as e:
            told = e.position
        except IndexDamaged as e:
            pytest.fail(f"the record is damaged, not the index: {e}")
        else:
            told = placed[victim].position
        assert told == placed[victim].position
        found, _ = read_around(store, "t", 0)
        assert {m.offset for m in found} >= set(range(COUNT)) - {victim}


def test_a_reader_beside_damage_sees_the_same(tmp_path: Path, placed: list[PutResult]) -> None:
    os.truncate(segment(tmp_path / "a", 1), 5000)
    before = fingerprint(tmp_path / "a")
    with kvstore.open(tmp_path / "a", config=SMALL, read_only=True) as store:
        found, errors = read_around(store, "t", 0)
        lost = {r.offset for r in placed if r.position // SEGMENT == 1}
        assert errors
        assert {m.offset for m in found} >= set(range(COUNT)) - lost
        assert store.verify().problems
    assert fingerprint(tmp_path / "a") == before


class Unreadable(WatchedFiles):
    """Lets nobody open one segment."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.before = lambda effect: self._refuse(effect, path)

    @staticmethod
    def _refuse(effect: Effect, path: Path) -> None:
        if effect.kind == "map" and effect.path == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_rebuild_refuses_to_do_without_a_segment_that_may_not_be_read(
    tmp_path: Path, placed: list[PutResult], number: int
) -> None:
    path = tmp_path / "a"
    config = settings(files=Unreadable(segment(path, number)))
    with pytest.raises(SegmentDamaged, match="make the file readable"):
        kvstore.rebuild(path, config)
    assert_passed_over(path, placed, set())


def test_a_segment_below_the_checkpoint_that_may_not_be_read_does_not_stop_an_opening(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    path = tmp_path / "a"
    with opened(path, settings(files=Unreadable(segment(path, 1)))) as store:
        found, errors = read_around(store, "t", 0)
        assert {m.offset for m in found} == set(range(COUNT)) - set(in_segment(placed, 1))
        assert len(errors) == 1
        assert put(store, COUNT, 1)[0].offset == COUNT
    with opened(path) as store:
        assert len(read_around(store, "t", 0)[0]) == COUNT + 1


def test_a_last_segment_that_may_not_be_read_stops_the_opening_and_nothing_is_changed(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    path = tmp_path / "a"
    before = fingerprint(path)
    with pytest.raises(SegmentDamaged, match="make it readable") as raised:
        kvstore.open(path, settings(files=Unreadable(segment(path, 3))))
    assert raised.value.path == str(segment(path, 3))
    assert fingerprint(path) == before
    assert_passed_over(path, placed, set())


def test_a_rebuild_without_the_last_segments_gives_no_position_twice(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    path = tmp_path / "a"
    segment(path, 3).unlink()
    report = kvstore.rebuild(path, SMALL)
    assert [(d.position, d.end) for d in report.recovery.damage] == [(3 * SEGMENT, 4 * SEGMENT)]
    with opened(path) as store:
        assert [(d.position, d.end) for d in store.recovery.damage] == [(3 * SEGMENT, 4 * SEGMENT)]
        assert put(store, COUNT, 1)[0].position == 4 * SEGMENT > placed[-1].position


def test_a_crash_before_the_last_segments_went_gives_no_position_twice(tmp_path: Path) -> None:
    """The checkpoint is older than the durable end, and the end of the log is between the two."""
    with opened(tmp_path / "a") as store:
        put(store, 0, 10)
        store.checkpoint()
        put(store, 10, COUNT)
        store.flush()
        index = copy_folder(tmp_path / "a" / "index", tmp_path / "index")
        store.checkpoint()
    shutil.rmtree(tmp_path / "a" / "index")
    shutil.copytree(index, tmp_path / "a" / "index")
    families = Families(tmp_path / "a" / "index", read_only=False, create=False)
    batch = families.batch()
    found = families.get(META, CHECKPOINT)
    assert found is not None
    durable = read_checkpoint(found)._replace(durable=3 * SEGMENT + 5000)
    batch.put(META, CHECKPOINT, checkpoint_value(durable))
    families.write(batch, sync=True)
    families.close()
    for number in (2, 3):
        segment(tmp_path / "a", number).unlink()
    with opened(tmp_path / "a") as store:
        assert [(d.position, d.end) for d in store.recovery.damage] == [(2 * SEGMENT, 4 * SEGMENT)]
        assert put(store, COUNT, 1)[0].position == 4 * SEGMENT


# --- what stands in the folder is something else ---


@pytest.mark.parametrize("work", [kvstore.open, kvstore.rebuild])
def test_a_file_in_the_place_of_the_logs_folder_is_a_typed_error(
    tmp_path: Path, placed: list[PutResult], work: Callable[[Path], object]
) -> None:
    path = tmp_path / "a"
    (path / "commitlog").rename(tmp_path / "away")
    (path / "commitlog").write_bytes(b"x")
    with pytest.raises(SegmentDamaged, match="not a folder"):
        work(path)
    (path / "commitlog").unlink()
    with pytest.raises(SegmentDamaged, match="put the folder back"):
        work(path)
    (tmp_path / "away").rename(path / "commitlog")
    assert_passed_over(path, placed, set())


def test_an_empty_folder_in_the_place_of_the_logs_is_all_segments_missing(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    path = tmp_path / "a"
    shutil.rmtree(path / "commitlog")
    (path / "commitlog").mkdir()
    with opened(path) as store:
        assert [(d.position, d.end) for d in store.recovery.damage] == [(0, 4 * SEGMENT)]
        put_again = put(store, COUNT, 1)[0]
        assert (put_again.offset, put_again.position) == (COUNT, 4 * SEGMENT)


def test_a_file_in_the_place_of_the_index_is_an_index_that_is_missing(
    tmp_path: Path, placed: list[PutResult]
) -> None:
    path = tmp_path / "a"
    shutil.rmtree(path / "index")
    (path / "index").write_bytes(b"x")
    with pytest.raises(IndexDamaged, match="rebuild"):
        kvstore.open(path)
    assert kvstore.rebuild(path).set_aside == str(path / "index.damaged-1")
    assert_passed_over(path, placed, set())


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_segment_that_is_a_link_to_itself_is_no_file(
    tmp_path: Path, placed: list[PutResult], number: int
) -> None:
    path = tmp_path / "a"
    segment(path, number).unlink()
    segment(path, number).symlink_to(segment(path, number).name)
    lost = set(in_segment(placed, number))
    assert_passed_over(path, placed, lost, others=0 if number == 3 else OTHERS)
    kvstore.rebuild(path)
    with opened(path) as store:
        assert store.recovery.problems


def test_a_folder_that_can_hold_no_store_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "b" / "lock").mkdir(parents=True)
    for path in (tmp_path / "file" / "a", tmp_path / "b"):
        with pytest.raises(StoreNotFound):
            kvstore.open(path)


def test_an_index_that_may_not_be_read_is_not_set_aside(
    tmp_path: Path, placed: list[PutResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions, or too many open files: an index made anew would be without its groups."""
    with monkeypatch.context() as broken:
        inside.database_opening(Families).replace(
            raising(Exception("IO error: While opening a file: CURRENT: Permission denied")), broken
        )
        for work in (kvstore.open, kvstore.rebuild):
            with pytest.raises(IndexUnavailable):
                work(tmp_path / "a")
    assert not (tmp_path / "a" / "index.damaged-1").exists()
    assert_passed_over(tmp_path / "a", placed, set())
