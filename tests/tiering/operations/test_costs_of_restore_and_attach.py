"""The work of a restore and an attach at 1, 8 and 48 archives grows no faster than the archives.

RocksDB's operations are counted, and those of the file seam, by which archives are read.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
import tiering
from kvstore import Message, Store
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.costs import Costs
from tests.support.everyfile import EveryFile
from tests.support.files import copy_folder
from tests.tiering.catalog.moving import config, filled, put_segments
from tiering import Policy, Worker
from tiering.catalog.bucket import AT_ONCE
from tiering.executor.pool import Inline

SIZES: Final = (1, 8, 48)
EACH: Final = 4
"""Messages in a segment, which becomes an archive."""
POLICY: Final = Policy(
    hot_for=60.0, warm="archive", watermarks=None, merge_bytes=None, clock_doubt=0.0
)


class Call:
    """A call that is counted, by the operations of RocksDB and of the file seam."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.files = EveryFile()
        self.found: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        begin = len(self.files.effects)
        with self._costs.counting() as counts:
            yield
        self.found = Counter(self.files.kinds()[begin:])
        self.found.update({kind: counts[kind] for kind in ("get", "seek", "next")})


def restore(call: Call, source: Path, to: Path, clock: VirtualClock, **options: Any) -> None:
    with call.counting():
        report = tiering.restore(
            source / "archive", to, config=config(clock, files=call.files), **options
        )
    assert report.problems == []


def attach(call: Call, source: Path, to: Path, clock: VirtualClock, **options: Any) -> None:
    with kvstore.open(to, config(clock, files=call.files)) as store:
        inside.housekeeper(store).stop()
        with call.counting():
            tiering.attach(store, source / "archive", **options)


WORK: Final[dict[str, tuple[Callable[..., None], dict[str, Any]]]] = {
    "restore": (restore, {}),
    "restore, copied": (restore, {"copy": True}),
    "restore of a topic": (restore, {"topics": ["visits"]}),
    "attach": (attach, {}),
    "attach of a topic": (attach, {"topics": ["visits"]}),
}


def archive_all(store: Store, clock: VirtualClock) -> None:
    clock.advance(3600.0)
    with Worker(store, POLICY, executor=Inline()) as worker:
        assert worker.run_once().failed == {}
    assert store.segments() == []


def grown(path: Path, clock: VirtualClock, count: int) -> Path:
    """A store of which all is in `count` archives; it is closed, and goes on if it is there."""
    if not path.exists():
        filled(path, clock, 0).close()
    with kvstore.open(path, config(clock)) as store:
        put_segments(store, clock, count - len(store.catalog().rows), EACH)
        archive_all(store, clock)
        assert len(store.catalog().rows) == count
    return path


def counted(
    tmp_path: Path, costs: Costs, names: Collection[str], sizes: Sequence[int]
) -> Iterator[tuple[str, list[Counter[str]]]]:
    """The counts of each of some calls, at each size."""
    clock = VirtualClock()
    found: dict[str, list[Counter[str]]] = {name: [] for name in names}
    for size in sizes:
        source = grown(tmp_path / "source", clock, size)
        for name in names:
            work, options = WORK[name]
            call = Call(costs)
            work(call, source, tmp_path / f"{name} {size}", clock, **options)
            found[name].append(call.found)
    yield from found.items()


def test_each_archive_of_a_restore_and_of_an_attach_costs_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (one, some, many) in counted(tmp_path, Costs(monkeypatch), WORK, SIZES):
        assert some["read"] > one["read"]
        for kind in many:
            steps = some[kind] - one[kind], many[kind] - some[kind]
            least = (SIZES[1] - SIZES[0]) * steps[1]
            assert least <= (SIZES[2] - SIZES[1]) * steps[0], f"{name}, {kind}: {one, some, many}"


def test_each_archive_costs_about_the_same_where_none_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads open them, so it is chance which ones are opened again."""
    for module in ("source_place", "attach", "attach_conflicts"):
        # By its module, for the package has a function of the same name.
        monkeypatch.setattr(sys.modules[f"tiering.operations.{module}"], "OPEN_BYTES", 1)
    times = SIZES[2] // SIZES[1]
    costs = Costs(monkeypatch)
    for name, (some, many) in counted(tmp_path, costs, ("restore", "attach"), SIZES[1:]):
        for kind in many:
            most = times * some[kind] + 2 * AT_ONCE
            assert many[kind] <= most, f"{name}, {kind}: {some, many}"


def test_an_attach_costs_no_more_beside_many_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the rows of the catalog, twice."""
    costs = Costs(monkeypatch)
    clock = VirtualClock()
    with kvstore.open(tmp_path / "more", config(clock)) as store:
        store.create_topic("more", queues=2)
        store.put_batch([Message("more", b"%d" % n, queue=n % 2) for n in range(EACH)])
        store.seal()
        archive_all(store, clock)
    found = []
    for size in SIZES:
        source = grown(tmp_path / "source", clock, size)
        call = Call(costs)
        attach(call, tmp_path / "more", copy_folder(source, tmp_path / str(size)), clock)
        found.append(call.found)
    rows = [one.pop("next") for one in found]
    assert rows[2] <= rows[0] + 2 * (SIZES[2] - SIZES[0])
    assert found[0] == found[1] == found[2]
