"""Nothing goes because of a wrong archive: places lie, and so may the process that makes archives.
The next run that meets the truth does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest

from kvstore import Store
from kvstore.errors import ArchiveDamaged
from kvstore.files import LocalFiles
from tests.support.clock import VirtualClock
from tests.tiering.places.lying import Lie, LyingFiles, LyingPlace
from tests.tiering.stores import held
from tiering import Policy, Worker
from tiering.errors import ObjectExists, ObjectNotFound, PlaceError, PlaceUnavailable
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.executor.pool import Inline
from tiering.executor.segment_encoder import segment_task
from tiering.places.place import Given, ObjectInfo, Pace, Place, open_place
from tiering.places.publish import CopyJob, Intent, Intents, Pacing, copy_remotely, publish

DAY = 86_400.0
WARM = Policy(hot_for=DAY, warm_for=10 * DAY, warm="archive", cold="cold", clock_doubt=0.0)


pytestmark = pytest.mark.filled(count=200, days=0)


@pytest.fixture
def files() -> LyingFiles:
    return LyingFiles()


def moved(worker: Worker) -> dict[str, str]:
    return worker.run_once().failed


def merged(worker: Worker) -> dict[str, str]:
    return worker.merge().failed


def erased(worker: Worker) -> dict[str, str]:
    return worker.erase(key="k1").failed


@pytest.mark.parametrize("lie", ["other", "less"])
@pytest.mark.parametrize("work", [moved, merged, erased, "cold"])
def test_a_place_that_keeps_other_bytes_costs_nothing(
    store: Store, clock: VirtualClock, files: LyingFiles, work: Any, lie: Lie
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM, executor=Inline()) as worker:
        if work is not moved:
            assert moved(worker) == {}
        if work == "cold":
            clock.advance(20 * DAY)
        act: Callable[[Worker], dict[str, str]] = moved if work == "cold" else work
        before, rows = held(store), worker.archives()
        files.lie = lie
        assert act(worker)
        files.lie = None
        assert (held(store), worker.archives()) == (before, rows)
        assert act(worker) == {}
        assert worker.verify().ok
        after = held(store)
    if work is erased:
        before = {q: [m for m in some if "k1" not in m.keys] for q, some in before.items()}
    assert after == before


@pytest.mark.parametrize("lie", ["other", "less", "nothing"])
def test_what_was_put_is_read_back_and_taken_away_if_it_is_something_else(
    tmp_path: Path, lie: Lie
) -> None:
    honest, intents, intent, path = announced(tmp_path)
    with pytest.raises((ArchiveDamaged, PlaceError)):
        publish(intents, intent, LyingPlace(honest, lie), path, Pacing())
    assert list(honest.list()) == []
    assert list(intents.unfinished(())) == []


class Deaf(LyingPlace):
    """A place whose answer to a put never comes, though it keeps the object."""

    def put(
        self, key: str, given: Given, *, if_absent: bool = True, pace: Pace | None = None
    ) -> ObjectInfo:
        self._honest.put(key, given, if_absent=if_absent, pace=pace)
        raise PlaceUnavailable("no answer")


def test_an_object_that_was_put_without_an_answer_is_taken_away(tmp_path: Path) -> None:
    honest, intents, intent, path = announced(tmp_path)
    with pytest.raises(PlaceUnavailable):
        publish(intents, intent, Deaf(honest, "nothing"), path, Pacing())
    assert list(honest.list()) == []
    assert list(intents.unfinished(())) == []


def test_a_name_that_somebody_else_was_first_to_take_stays_his(tmp_path: Path) -> None:
    honest, intents, intent, path = announced(tmp_path)
    honest.put(intent.key, b"somebody else's")
    with pytest.raises(ObjectExists):
        publish(intents, intent, honest, path, Pacing())
    assert honest.read(intent.key, 0, 15) == b"somebody else's"
    assert list(intents.unfinished(())) == []


def announced(tmp_path: Path) -> tuple[Place, Intents, Intent, Path]:
    """A place, and what is to be put there: a file, of which an intent says what it is."""
    data = b"an archive" * 1000
    path = tmp_path / "made"
    path.write_bytes(data)
    honest = open_place(tmp_path / "place")
    honest.check(create=True)
    intents = Intents(tmp_path / "intents", LocalFiles())
    crc = google_crc32c.value(data)
    return honest, intents, Intent(7, honest.name, "a/archive.kvarc", len(data), crc), path


@pytest.mark.parametrize("lie", ["other", "less", "nothing"])
def test_a_copy_by_a_task_is_read_back_too(
    tmp_path: Path, lie: Lie, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, _, intent, path = announced(tmp_path)
    honest.put("a/source.kvarc", path)
    job = CopyJob(source=honest.name, key="a/source.kvarc", target="the other", intent=intent)

    def opened(name: str, **_: object) -> Any:
        return LyingPlace(honest, lie) if name == "the other" else open_place(name)

    monkeypatch.setattr("tiering.places.publish.open_place", opened)
    with pytest.raises((ArchiveDamaged, ObjectNotFound, PlaceError)):
        copy_remotely(job)
    assert [info.key for info in honest.list()] == ["a/source.kvarc"]


class Careless(Inline):
    """Leaves messages out of archives, and says that these are all there is."""

    def run(self, check: Callable[[], None], work: Callable[..., Any], *args: Any) -> Any:
        if work is not segment_task:
            return super().run(check, work, *args)
        job = msgspec.structs.replace(args[0], without=ErasurePredicate(key="k3"))
        return msgspec.structs.replace(work(job), whole=None)


def test_archives_that_lack_what_the_index_has_take_no_segments_place(
    store: Store, clock: VirtualClock
) -> None:
    clock.advance(2 * DAY)
    before = held(store)
    with Worker(store, WARM, executor=Careless()) as worker:
        failed = worker.run_once().failed
        assert failed
        assert all("disagree" in why for why in failed.values())
        assert worker.archives() == []
    assert held(store) == before
    with Worker(store, WARM, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
    assert held(store) == before


def test_the_file_of_a_segment_is_overwritten_where_something_of_it_is_erased(
    store: Store, clock: VirtualClock
) -> None:
    """A file that is held open shows what its blocks hold when it has no name any more."""
    with Worker(store, WARM, executor=Inline()) as worker:
        paths = sorted((store.path / "commitlog").iterdir())[: len(store.segments())]
        with paths[0].open("rb") as kept:
            assert any(kept.read(4096))
            assert worker.erase(key="k1").is_proven
            assert not paths[0].exists()
            kept.seek(0)
            assert not any(kept.read())


def test_the_file_of_an_archive_is_overwritten_where_something_of_it_is_erased(
    store: Store, clock: VirtualClock
) -> None:
    clock.advance(2 * DAY)
    with Worker(store, WARM, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
        path = min((store.path / "archive").rglob("*.kvarc"))
        with path.open("rb") as kept:
            assert any(kept.read(4096))
            assert worker.erase(key="k1").is_proven
            assert not path.exists()
            kept.seek(0)
            assert not any(kept.read())


def test_a_damaged_segment_may_hold_anything_so_nothing_is_proven(
    store: Store, clock: VirtualClock
) -> None:
    first = store.segments()[0].number
    path = min((store.path / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[data.index(b"message 0") + 8] ^= 1
    path.write_bytes(data)
    with Worker(store, WARM, executor=Inline()) as worker:
        assert worker.erasure_plan(key="nobody-has-it").segments == [first]
        report = worker.erase(key="nobody-has-it")
        assert (report.is_proven, report.found) == (False, 0)
        assert list(report.failed) == [f"segment {first}"]
        assert path.exists()
