"""An index that is missing, damaged, foreign or too new: typed errors, and `rebuild` mends."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import kvstore
from kvstore import (
    DiskFull,
    FormatTooNew,
    FormatTooOld,
    IndexDamaged,
    Store,
    StoreConfig,
    StoreError,
)
from kvstore.engine.upkeep import UpkeepJob
from kvstore.index import families
from kvstore.index.families import Batch, Families
from kvstore.index.index import Index
from kvstore.index.keys import (
    FORMAT,
    FORMAT_VERSION,
    META,
    PLACES,
    U32,
    read_location,
    read_run_key,
)
from kvstore.index.runs import unpack
from kvstore.opening.rebuild import prepare_rebuild
from kvstore.opening.store_folder import is_marked
from tests.support import inside
from tests.support.children import Child, Teller
from tests.support.clock import VirtualClock
from tests.support.contents import assert_found_by_key, assert_whole, bodies, read_all
from tests.support.files import copy_folder
from tests.support.stores import SEGMENT, SMALL, body, killed, message, opened, put, settings

COUNT = 600
FEW = 150


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with two topics, 600 messages in one queue and some in others."""
    with opened(tmp_path / "a", settings(checkpoint_bytes=30_000)) as store:
        store.create_topic("u", queues=8)
        fill(store)
        store.commit_offset("g", "t", 0, 77)
    return tmp_path / "a"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A store like `full`, with as few messages as make two segments and some checkpoints; each few
    messages have a store time of their own.
    """
    clock = VirtualClock()
    with opened(tmp_path / "a", settings(checkpoint_bytes=30_000, clock=clock)) as store:
        store.create_topic("u", queues=8)
        fill(store, 0)
        for first in range(0, FEW, 10):
            put(store, first, min(10, FEW - first))
            clock.advance(1)
        store.commit_offset("g", "t", 0, 77)
    return tmp_path / "a"


def fill(store: Store, count: int = COUNT) -> None:
    put(store, 0, count)
    for n in range(100):
        store.put_batch([message(n, 50 + n, topic="u", queue=n % 8)])


def assert_mended(
    path: Path, *, offsets: bool = True, config: StoreConfig = SMALL, count: int = COUNT
) -> None:
    with opened(path, config) as store:
        found = assert_whole(store)
        assert [m.body for m in found[("t", 0)]] == [body(n) for n in range(count)]
        assert sum(len(found[("u", q)]) for q in range(8)) == 100
        assert_found_by_key(store, found[("t", 0)][::60] + found[("u", 3)])
        assert put(store, count, 1)[0].offset == count
        if offsets:
            assert store.committed_offset("g", "t", 0) == 77


def no_index(index: Path) -> None:
    shutil.rmtree(index)


def no_current(index: Path) -> None:
    (index / "CURRENT").unlink()


def empty_current(index: Path) -> None:
    (index / "CURRENT").write_bytes(b"")


def garbage_current(index: Path) -> None:
    (index / "CURRENT").write_bytes(b"\xff\x00garbage")


def garbage_manifest(index: Path) -> None:
    next(index.glob("MANIFEST-*")).write_bytes(b"garbage" * 1000)


def cut_manifest(index: Path) -> None:
    os.truncate(next(index.glob("MANIFEST-*")), 100)


def no_table(index: Path) -> None:
    max(index.glob("*.sst"), key=lambda p: p.stat().st_size).unlink()


def cut_table(index: Path) -> None:
    os.truncate(max(index.glob("*.sst"), key=lambda p: p.stat().st_size), 100)


HARMS: list[Callable[[Path], None]] = [
    no_index, no_current, empty_current, garbage_current, garbage_manifest, cut_manifest,
    no_table, cut_table,
]  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_an_index_that_cannot_be_opened_is_a_typed_error_and_rebuild_mends_it(
    path: Path, harm: Callable[[Path], None]
) -> None:
    harm(path / "index")
    for _ in range(2):
        with pytest.raises(IndexDamaged, match="rebuild"):
            kvstore.open(path).close()
    with pytest.raises(StoreError):
        kvstore.open(path, read_only=True).close()
    kvstore.rebuild(path)
    assert_mended(path, offsets=False)


@pytest.mark.parametrize("harm", [no_index, no_current, garbage_manifest])
def test_an_index_with_an_unwritten_tail_that_cannot_be_opened_is_mended_as_well(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """RocksDB's own log holds rows of the old index; they must not come back into the new one."""
    with opened(tmp_path / "a", settings(checkpoint_bytes=30_000)) as store:
        store.create_topic("u", queues=8)
        fill(store)
        path = killed(store, tmp_path / "b")
    harm(path / "index")
    with pytest.raises(IndexDamaged):
        kvstore.open(path).close()
    kvstore.rebuild(path)
    assert_mended(path, offsets=False)


def tables(index: Path) -> list[Path]:
    return sorted(index.glob("*.sst"))


def test_a_damaged_block_of_the_index_is_never_taken_for_an_empty_queue(
    tmp_path: Path, path: Path
) -> None:
    """The rows of a damaged table may be unreadable; reads say nothing else that is wrong."""
    for number in range(len(tables(path / "index"))):
        copy = copy_folder(path, tmp_path / f"copy{number}")
        table = tables(copy / "index")[number]
        data = bytearray(table.read_bytes())
        data[20] ^= 0x10  # in the first data block
        table.write_bytes(data)
        try:
            with opened(copy) as store:
                assert store.bounds("t", 0) == (0, COUNT)
                assert store.get("t", 0, 0).body == body(0)
                assert [m.body for m in store.query("t", "k-5")] == [body(5)]
                assert store.committed_offset("g", "t", 0) == 77
                assert put(store, COUNT, 1)[0].offset == COUNT
        except IndexDamaged:
            pass
        kvstore.rebuild(copy)
        with opened(copy) as store:
            assert bodies(store)[("t", 0)][:COUNT] == [body(n) for n in range(COUNT)]


def test_a_damaged_index_is_rebuilt_while_the_error_that_tells_of_it_is_handled(
    tmp_path: Path, path: Path
) -> None:
    """The error's frames may have iterators, which hold RocksDB's lock."""
    rebuilt = 0
    for number in range(len(tables(path / "index"))):
        copy = copy_folder(path, tmp_path / f"copy{number}")
        table = tables(copy / "index")[number]
        data = bytearray(table.read_bytes())
        data[20] ^= 0x10
        table.write_bytes(data)
        try:
            with opened(copy) as store:
                read_all(store)
                store.query("t", "k-5")
        except IndexDamaged:
            try:
                int("an error of the caller's own")
            except ValueError:
                kvstore.rebuild(copy)
            rebuilt += 1
            assert_mended(copy, offsets=False)
    assert rebuilt > 1


def set_format(path: Path, version: int) -> None:
    families = Families(path / "index", read_only=False, create=False)
    batch = families.batch()
    batch.put(META, FORMAT, U32.pack(version))
    families.write(batch, sync=True)
    families.close()


def get_format(path: Path) -> int:
    families = Families(path / "index", read_only=True, create=False)
    found = families.get(META, FORMAT)
    families.close()
    assert found is not None
    return int(U32.unpack(found)[0])


def test_a_store_of_an_older_format_is_refused_until_it_was_rebuilt(path: Path) -> None:
    """Refusing changes nothing, and the rebuild keeps what only the index has."""
    with opened(path) as store:
        store_id = store.catalog().store_id
    for version in (1, FORMAT_VERSION - 1):
        set_format(path, version)
        for read_only in (False, True):
            with pytest.raises(FormatTooOld, match="kvmq rebuild") as raised:
                kvstore.open(path, read_only=read_only)
            assert (raised.value.found, raised.value.supported) == (version, FORMAT_VERSION)
            assert get_format(path) == version
        assert kvstore.rebuild(path).set_aside is None
        assert get_format(path) == FORMAT_VERSION
        with opened(path) as store:
            assert bodies(store)[("t", 0)][:COUNT] == [body(n) for n in range(COUNT)]
            assert store.committed_offset("g", "t", 0) == 77
            assert store.catalog().store_id == store_id
            assert store.verify().problems == []


def test_a_store_of_a_newer_format_is_refused_and_not_touched(path: Path) -> None:
    set_format(path, 99)
    names = sorted(p.name for p in path.iterdir())
    for work in (
        lambda: kvstore.open(path),
        lambda: kvstore.open(path, read_only=True),
        lambda: kvstore.rebuild(path),
    ):
        with pytest.raises(FormatTooNew) as raised:
            work()
        assert (raised.value.found, raised.value.supported) == (99, FORMAT_VERSION)
    assert sorted(p.name for p in path.iterdir()) == names
    set_format(path, FORMAT_VERSION)
    assert_mended(path)


def test_a_newer_format_with_families_of_its_own_is_too_new_and_not_damaged(path: Path) -> None:
    from rocksdict import Options, Rdict

    set_format(path, 99)
    names = Rdict.list_cf(str(path / "index"), Options(raw_mode=True))
    families = {n: Options(raw_mode=True) for n in names}
    db = Rdict(str(path / "index"), Options(raw_mode=True), families)
    db.create_column_family("of_the_future", Options(raw_mode=True))
    db.close()
    for work in (lambda: kvstore.open(path), lambda: kvstore.rebuild(path)):
        with pytest.raises(FormatTooNew):
            work()
    assert not list(path.glob("index.damaged*"))


def test_the_index_of_another_store_gives_no_wrong_message_and_rebuild_mends_it(
    tmp_path: Path, path: Path
) -> None:
    with opened(tmp_path / "other") as store:
        for n in range(300):
            store.put_batch([message(10_000 + n, 333, queue=n % 2)])
        store.create_topic("u", queues=8)
        put(store, 0, 10, topic="u")
    shutil.rmtree(path / "index")
    shutil.copytree(tmp_path / "other" / "index", path / "index")
    try:
        with opened(path) as store:
            for offset in range(0, 150, 7):
                try:
                    m = store.get("t", 0, offset)
                    assert (m.topic, m.queue, m.offset) == ("t", 0, offset)
                    assert m.body == body(offset)
                except StoreError:
                    pass
            assert store.verify().problems
    except StoreError:
        pass
    kvstore.rebuild(path)
    assert_mended(path, offsets=False)


Row = tuple[int, ...]


def content(path: Path) -> dict[str, list[Row]]:
    """The answers of the index, whichever runs and parts they come from."""
    with opened(path) as store:
        index = inside.index(store)
        found: dict[str, list[Row]] = {"entries": [], "places": [], "keys": []}
        for key, value in index.families.rows("runs", b""):
            run = read_run_key(key)
            columns = zip(*(c.tolist() for c in unpack(value)), strict=True)
            found["entries"] += [
                (run.segment, run.topic, run.queue, offset, *entry)
                for offset, entry in enumerate(columns, run.first)
            ]
        for key, value in index.families.rows("places", b""):
            topic, queue, place = read_location(key, value)
            found["places"].append((topic, queue, *place))
        for number in range(store.stats().end_position // SEGMENT + 1):
            hashes, positions = index.keys.pairs(number)
            pairs = zip(hashes.tolist(), positions.tolist(), strict=True)
            found["keys"] += [(number, *pair) for pair in pairs]
        return found


def test_rebuild_makes_the_same_index_again(path: Path) -> None:
    with opened(path) as store:
        before = read_all(store)
    had = content(path)
    report = kvstore.rebuild(path)
    assert report.set_aside is None
    assert report.recovery.records == COUNT + 100
    with opened(path) as store:
        assert read_all(store) == before
    assert content(path) == had
    assert len(had["entries"]) == COUNT + 100
    assert_mended(path)


def test_rebuild_keeps_the_next_offset_of_a_queue_whose_messages_are_all_gone(
    tmp_path: Path,
) -> None:
    retention = kvstore.Retention(max_bytes=2 * SEGMENT)
    with opened(tmp_path / "a", settings(retention=retention)) as store:
        put(store, 0, 7, queue=1)
        put(store, 0, COUNT)
        store.checkpoint()
        assert store.apply_retention() >= 1
        assert store.bounds("t", 1) == (7, 7)
    kvstore.rebuild(tmp_path / "a")
    with opened(tmp_path / "a") as store:
        assert store.bounds("t", 1) == (7, 7)
        assert put(store, 7, 1, queue=1)[0].offset == 7
        low, high = store.bounds("t", 0)
        assert 0 < low < high == COUNT


def test_an_index_set_aside_loses_no_offset_of_a_queue_that_still_holds_messages(
    tmp_path: Path,
) -> None:
    retention = kvstore.Retention(max_bytes=2 * SEGMENT)
    with opened(tmp_path / "a", settings(retention=retention)) as store:
        put(store, 0, COUNT)
        store.checkpoint()
        assert store.apply_retention() >= 1
        bounds = store.bounds("t", 0)
    garbage_manifest(tmp_path / "a" / "index")
    report = kvstore.rebuild(tmp_path / "a")
    assert report.set_aside is not None
    with opened(tmp_path / "a") as store:
        assert store.bounds("t", 0) == bounds
        assert assert_whole(store)


class FailingRename(kvstore.files.LocalFiles):
    """Refuses to give the new index its name, once."""

    def __init__(self) -> None:
        self.left = 1

    def rename(self, source: Path, target: Path) -> None:
        if target.name == "index" and source.name == "index.new" and self.left:
            self.left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        super().rename(source, target)


def test_every_index_that_is_set_aside_has_a_name_of_its_own(small: Path) -> None:
    aside = []
    for _ in range(2):
        garbage_manifest(small / "index")
        aside.append(kvstore.rebuild(small).set_aside)
    assert aside == [str(small / f"index.damaged-{n}") for n in (1, 2)]
    assert all(Path(str(folder)).is_dir() for folder in aside)


def test_a_rebuild_that_fails_puts_the_old_index_back(path: Path) -> None:
    garbage_manifest(path / "index")
    had = (path / "index" / "CURRENT").read_bytes()
    files = FailingRename()
    with pytest.raises(OSError, match="Input/output"):
        kvstore.rebuild(path, settings(files=files))
    assert (path / "index" / "CURRENT").read_bytes() == had
    assert not list(path.glob("index.damaged-*"))
    kvstore.rebuild(path, settings(files=files))
    assert not (path / "index.new").exists()
    assert_mended(path, offsets=False)


def test_a_rebuild_cut_short_between_the_old_index_and_the_new_one_keeps_the_groups(
    tmp_path: Path, path: Path
) -> None:
    """A damaged block: what the log can't tell is in the new index, which has no name yet."""
    garbage_block(path / "index")
    for nth in range(1, 30):
        copy = copy_folder(path, tmp_path / f"killed{nth}")
        Child(rebuild_until, copy, nth).ended()
        if (copy / "index.new").exists() and not (copy / "index").exists():
            break
    else:
        pytest.fail("it was never cut short there")
    with pytest.raises(IndexDamaged, match="rebuild"):
        kvstore.open(copy)
    kvstore.rebuild(copy)
    assert_mended(copy)


def test_what_an_older_rebuild_left_is_removed_by_an_opening(path: Path) -> None:
    copy_folder(path / "index", path / "index.new")
    kvstore.open(path).close()
    assert not (path / "index.new").exists()


class CountingFiles(kvstore.files.LocalFiles):
    """Calls a function before each change of the disk."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before

    def create(self, path: Path, size: int) -> None:
        self._before()
        super().create(path, size)

    def rename(self, source: Path, target: Path) -> None:
        self._before()
        super().rename(source, target)

    def write_whole(self, path: Path, data: bytes) -> None:
        self._before()
        super().write_whole(path, data)

    def remove(self, path: Path) -> None:
        self._before()
        super().remove(path)

    def map(self, path: Path, *, writable: bool) -> kvstore.files.MappedFile:
        self._before()
        return super().map(path, writable=writable)

    def lock(self, path: Path) -> kvstore.files.FolderLock:
        self._before()
        return super().lock(path)

    def make_dir(self, path: Path) -> None:
        self._before()
        super().make_dir(path)


def rebuild(path: Path, before: Callable[[], object]) -> None:
    kvstore.rebuild(path, StoreConfig(checkpoint_bytes=10_000, files=CountingFiles(before)))


def rebuild_until(_: Teller, path: Path, nth: int) -> None:
    left = iter(range(nth - 1))

    def count() -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    rebuild(path, count)


def garbage_block(index: Path) -> None:
    """In a family that the log can tell; what it can't is copied."""
    table = max(tables(index), key=lambda p: p.stat().st_size)
    data = bytearray(table.read_bytes())
    data[20] ^= 0x10
    table.write_bytes(data)


def is_damaged(path: Path) -> bool:
    """Whether an opening says so, or a full read: an opening reads little of an index."""
    try:
        with kvstore.open(path) as store:
            store.verify()
    except IndexDamaged:
        return True
    return False


@pytest.mark.parametrize("harm", [None, garbage_block, garbage_manifest, no_index])
def test_a_rebuild_that_was_killed_at_any_step_is_gone_on_with(
    tmp_path: Path, small: Path, harm: Callable[[Path], None] | None
) -> None:
    """By opening with the default settings, or by another rebuild. A kill leaves the folder as it
    was at that moment; in the middle a process is killed.
    """
    if harm is not None:
        harm(small / "index")
    left = [copy_folder(small, tmp_path / "killed")]
    at_work = copy_folder(small, tmp_path / "at work")
    rebuild(at_work, lambda: left.append(copy_folder(at_work, tmp_path / f"left{len(left)}")))
    assert Child(rebuild_until, left[0], len(left) // 2).ended() == -signal.SIGKILL
    assert len(left) > 8
    for n, folder in enumerate([*left, at_work]):
        if n % 2 or is_damaged(folder):
            kvstore.rebuild(folder)
        with opened(folder) as store:
            assert store.stats().segment_size == SEGMENT, n
            assert store.verify().problems == [], n
        assert_mended(folder, offsets=harm in (None, garbage_block), count=FEW)


def test_a_store_opens_again_though_garbage_still_holds_an_iterator(tmp_path: Path) -> None:
    """As the frames of an exception do that is part of a cycle."""
    gc.disable()
    try:
        with opened(tmp_path / "a") as store:
            garbage: list[object] = [inside.families(store).iter("topics")]
            garbage.append(garbage)
        del garbage
        with opened(tmp_path / "a"):
            pass
    finally:
        gc.enable()


def test_a_store_opens_again_though_a_log_keeps_what_the_housekeeper_failed_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The message of an exception, that is: its frames have iterators of the index."""
    with opened(tmp_path / "a") as store:
        housekeeper = inside.housekeeper(store)
        assert housekeeper is not None

        def fail() -> None:
            it = inside.families(store).iter("topics")
            raise DiskFull(f"no room beside {it}")

        inside.do_job(housekeeper, UpkeepJob("failing", lambda: True, fail))
    assert any("no room" in r.getMessage() for r in caplog.records)
    with opened(tmp_path / "a"):
        pass


def test_a_rebuild_without_the_last_segments_says_so_and_gives_their_offsets_again(
    tmp_path: Path,
) -> None:
    """No group passes over the new messages: its offset is taken back to the queue's end."""
    path = tmp_path / "a"
    with opened(path) as store:
        put(store, 0, 1000)
        store.commit_offset("g", "t", 0, 990)
    last = sorted((path / "commitlog").iterdir())[-2:]
    for file in last:
        file.rename(tmp_path / file.name)
    report = kvstore.rebuild(path)
    assert "segments are missing" in str(report.recovery.damage)
    with opened(path) as store:
        following = store.bounds("t", 0).next_offset
        assert 0 < following < 990
        assert store.committed_offset("g", "t", 0) == following
        assert put(store, 2000, 1)[0].offset == following
        assert [p.message.offset for p in store.pop("g", "t", queue=0)] == [following]


def test_an_index_of_many_rows_is_copied_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["kvstore.opening.rebuild"]
    monkeypatch.setattr(families, "_ROWS_AT_ONCE", 50)
    monkeypatch.setattr(module, "drop_derived", lambda folder, config: False)
    sizes, formats, write = [], [], Families.write

    def counted(self: Families, batch: Batch, *, sync: bool = False) -> None:
        if self.path.name == "index.new":
            sizes.append(len(batch))
        write(self, batch, sync=sync)
        if self.path.name == "index.new":
            formats.append(self.get(META, FORMAT) is not None)

    with opened(tmp_path / "a") as store:
        store.create_topic("many", queues=600)
        put(store, 0, 30)
        store.commit_offsets(
            [(f"g{n}", "many", queue, 0) for n in range(2) for queue in range(300)]
        )
        store.commit_offset("g0", "t", 0, 7)
    monkeypatch.setattr(Families, "write", counted)
    report = kvstore.rebuild(tmp_path / "a")
    monkeypatch.undo()
    assert report.set_aside is not None
    assert report.recovery.start == 0
    assert len(sizes) > 10
    assert max(sizes) <= 55
    assert formats == [False] * (len(sizes) - 1) + [True], "it counts as whole before it is"
    with opened(tmp_path / "a") as store:
        assert store.committed_offset("g0", "t", 0) == 7
        assert store.committed_offset("g1", "many", 299) == 0
        assert len(assert_whole(store)[("t", 0)]) == 30


def test_an_empty_index_in_a_folder_of_ours_is_none_and_a_rebuild_mends_it(path: Path) -> None:
    """Opening would take it for a store that was never made, and adopt the log."""
    shutil.rmtree(path / "index")
    Index(path / "index", SEGMENT, read_only=False, create=True).close()
    with pytest.raises(IndexDamaged):
        kvstore.open(path, config=SMALL)
    kvstore.rebuild(path, SMALL)
    with opened(path) as store:
        assert_whole(store)
        assert len(bodies(store)[("t", 0)]) == COUNT


def test_a_rebuild_marks_a_copied_folder_before_it_sets_its_index_aside(path: Path) -> None:
    """Killed behind that, it would be a log that was never ours."""
    (path / "lock").write_bytes(b"")
    current = path / "index" / "CURRENT"
    current.write_bytes(b"no manifest\n")
    prepare_rebuild(path, SMALL, None)
    assert is_marked(path, SMALL)


def test_a_rebuild_that_copies_the_index_keeps_the_next_offset_of_an_empty_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has nothing of the queue any more, so only its place says how far it was."""
    with opened(tmp_path / "a", settings(retention=kvstore.Retention(max_bytes=SEGMENT))) as store:
        put(store, 0, 5, queue=1)
        put(store, 0, COUNT)
        store.checkpoint()
        assert store.apply_retention() >= 1
        assert store.bounds("t", 1) == (5, 5)
    monkeypatch.setattr("kvstore.opening.rebuild.drop_derived", lambda *_: False)
    assert kvstore.rebuild(tmp_path / "a").set_aside is not None
    with opened(tmp_path / "a") as store:
        assert store.bounds("t", 1) == (5, 5)
        assert put(store, 0, 1, queue=1)[0].offset == 5


@pytest.mark.parametrize("behind", [1, 3])
def test_a_rebuild_without_places_keeps_a_record_behind_messages_that_no_tier_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """The erased segment is gone without an archive: only its place told of the gap."""
    with opened(tmp_path / "a") as store:
        put(store, 0, 5, queue=1)
        store.seal()
        put(store, 5, 5, queue=1)
        store.seal()
        put(store, 10, behind, queue=1)
        topic = store.topic("t").id
        assert store.handover.hand_over([1], [], unkept={(topic, 1)}, erase=True) == 1
        bounds = store.bounds("t", 1)
    with closing(Index(tmp_path / "a" / "index", SEGMENT, read_only=False, create=False)) as index:
        batch = index.families.batch()
        batch.delete_range(PLACES, b"", b"\xff" * 32)
        index.families.write(batch)
    monkeypatch.setattr("kvstore.opening.rebuild.drop_derived", lambda *_: False)
    assert kvstore.rebuild(tmp_path / "a").set_aside is not None
    with opened(tmp_path / "a") as store:
        assert (store.recovery.refused, store.bounds("t", 1)) == (0, bounds)
        assert [store.get("t", 1, at).offset for at in (0, 4, 10)] == [0, 4, 10]
        assert put(store, 0, 1, queue=1)[0].offset == 10 + behind


def test_a_copied_index_whose_replay_was_cut_short_has_each_entry_at_its_own_time(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(small) as store:
        times = [m.stored_at for m in store.pull("t", 0, 0, FEW).messages]
        before = [store.offset_at("t", 0, time) for time in times]
    saves, step = [], inside.checkpoint_of_recovery()
    save = step.now

    def save_twice(self: object, position: int) -> None:
        saves.append(position)
        if len(saves) == 2:
            raise KeyboardInterrupt
        save(self, position)

    monkeypatch.setattr(sys.modules["kvstore.opening.rebuild"], "drop_derived", lambda *_: False)
    step.replace(save_twice, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        kvstore.rebuild(small, settings(checkpoint_bytes=10_000))
    monkeypatch.undo()
    with opened(small) as store:
        assert 0 < store.recovery.start < saves[-1], saves
        assert [store.offset_at("t", 0, time) for time in times] == before
        assert store.verify().problems == []
