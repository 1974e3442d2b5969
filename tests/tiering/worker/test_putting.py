"""Archives are put where nobody else has put one, and nobody else's is ever taken away."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, Store
from kvstore.files import LocalFiles
from tests.support.clock import VirtualClock
from tests.tiering.stores import config, fill, held
from tiering import Policy, Worker
from tiering.catalog.catalog import ArchiveRow, decode_rows
from tiering.executor.pool import Inline
from tiering.places.objects import SUFFIX
from tiering.places.publish import Intent, Intents

DAY = 86_400.0


pytestmark = pytest.mark.filled(days=0)


def shared(path: Path) -> Policy:
    return Policy(hot_for=DAY, warm=str(path), clock_doubt=0.0)


def test_of_two_copies_of_a_store_the_later_leaves_the_archives_of_the_first(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    store.close()
    copy = tmp_path / "copy"
    shutil.copytree(store.path, copy)
    policy = shared(tmp_path / "nas")
    with kvstore.open(store.path, config(clock)) as first:
        clock.advance(2 * DAY)
        with Worker(first, policy) as worker:
            assert worker.run_once().failed == {}
        before = held(first)
        with kvstore.open(copy, config(clock)) as second:
            # Its archives differ, and their numbers are those of the first one's archives.
            second.delete_topic("events")
            mine = second.pull("orders", 0, 0, limit=5).messages
            with Worker(second, policy) as worker:
                failed = worker.run_once().failed
                assert failed
                assert all("somebody else" in why for why in failed.values())
            assert second.pull("orders", 0, 0, limit=5).messages == mine
        assert held(first) == before


def test_an_object_that_was_announced_goes_only_if_it_is_what_was_announced(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    policy, nas = shared(tmp_path / "nas"), tmp_path / "nas"
    with Worker(store, policy) as worker:
        worker.run_once()
        intents = Intents(store.path / "tiering" / "intents", store.config.files)
        for number, (size, crc) in enumerate([(5, 0x9A71BB4C), (5, 1), (6, 0x9A71BB4C)]):
            key = f"{'0' * 32}/{0:020d}-{900 + number:08d}-warmever{SUFFIX}"
            (nas / key).parent.mkdir(exist_ok=True)
            (nas / key).write_bytes(b"hello")
            intents.note(Intent(900 + number, str(nas), key, size, crc))
        removed = worker.run_once().removed
        assert [name.rsplit("-", 2)[1] for name in removed] == ["00000900"]
        assert len(list((nas / ("0" * 32)).iterdir())) == 2
        assert worker.run_once().removed == []


def test_what_the_catalog_names_stays_though_a_note_of_its_copying_was_left(
    store: Store, clock: VirtualClock
) -> None:
    policy = Policy(
        hot_for=60.0, warm_for=DAY, warm="archive", cold="cold", grace=60.0, clock_doubt=0.0
    )
    before = held(store)
    with Worker(store, policy) as worker:
        clock.advance(100.0)
        worker.run_once()
        clock.advance(2 * DAY)
        assert worker.run_once().relocated
        live: dict[int, ArchiveRow] = {}
        left: dict[int, ArchiveRow] = {}
        for row in decode_rows(store.catalog().rows):
            (live if row.state == "live" else left)[row.first_position] = row
        # Killed before it forgot; and the next run could not tidy up, as the place was away.
        notes = Intents(store.path / "tiering" / "intents", store.config.files)
        clock.advance(100.0)
        assert len(worker.run_once().removed) == len(left)
        for position, row in live.items():
            number = left[position].number
            notes.note(Intent(number, row.place, row.key, row.size, row.crc))
        assert worker.run_once().removed == []
        assert worker.verify().ok
        assert not list((store.path / "tiering" / "intents").iterdir())
    assert held(store) == before


def test_a_note_that_is_no_text_is_passed_over(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    folder = store.path / "tiering" / "intents"
    folder.mkdir(parents=True)
    (folder / "0000000009.intent").write_bytes(b'{"number":9,"place":"\xff\xfe","key":"k"}')
    (store.path / "tiering" / "history.jsonl").write_bytes(b'{"at":1,"what":"\xff"}\n')
    before = held(store)
    clock.advance(2 * DAY)
    with Worker(store, shared(tmp_path / "nas")) as worker:
        assert worker.run_once().failed == {}
        assert [done.what for done in worker.history.last(1)] == ["archived"]
    fill(store, 10)
    assert before.keys() == held(store).keys()


def test_no_archive_has_the_number_of_another_whatever_became_of_that(
    tmp_path: Path, clock: VirtualClock
) -> None:
    policy = Policy(
        hot_for=60.0, warm_for=DAY, cold_for=9 * DAY, warm="archive", cold="cold", clock_doubt=0.0
    )
    path = tmp_path / "numbered"
    for n in range(4):
        with kvstore.open(path, config(clock)) as store:
            if not n:
                store.create_topic("a", queues=1)
            store.put_batch([Message("a", b"%d" % m, queue=0) for m in range(5)])
            store.seal()
            clock.advance(100.0 if n < 2 else 2 * DAY)
            with Worker(store, policy) as worker:
                assert worker.run_once().failed == {}
                if n == 1:
                    assert worker.merge().failed == {}
            rows = decode_rows(store.catalog().rows)
            assert len({row.number for row in rows}) == len(rows)
            assert [m.offset for m in store.pull("a", 0, 0).messages] == list(range(5 * n + 5))


class Written(LocalFiles):
    """Which files were written, but for notes."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def write_new(self, path: Path, chunks: Iterable[bytes], *, replace: bool = False) -> None:
        self.paths.append(path)
        super().write_new(path, chunks, replace=replace)


def test_an_archive_that_goes_cold_is_read_where_it_is_and_written_there_alone(
    tmp_path: Path, clock: VirtualClock
) -> None:
    policy = Policy(hot_for=60.0, warm_for=DAY, warm="archive", cold="cold", clock_doubt=0.0)
    files = Written()
    with kvstore.open(tmp_path / "store", config(clock, files=files)) as store:
        store.create_topic("a", queues=1)
        store.put_batch([Message("a", b"%d" % n, queue=0) for n in range(50)])
        store.seal()
        clock.advance(100.0)
        with Worker(store, policy, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
            clock.advance(2 * DAY)
            files.paths.clear()
            assert len(worker.run_once().relocated) == 1
        (written,) = files.paths
        assert written.is_relative_to(tmp_path / "store" / "cold")
        assert len(store.pull("a", 0, 0, limit=99).messages) == 50
