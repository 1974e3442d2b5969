"""Whatever strikes a thread that reads commits or directories for Spark, its caller gets the right
answer or the error, and the right answer when it asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.throwing import Thrower, some
from tests.tiering.spark.sink.jobs import Job, Watched
from tests.tiering.spark.sink.test_commit_log import STORE, written
from tiering.places.commits import CommitLog
from tiering.places.objects import checkpoint_key
from tiering.spark.listing import Opener, listing
from tiering.spark.options import read_options
from tiering.spark.stream.stream_view import DirectoryTables

STEPS: Final = 10
Ask = Callable[[], Any]
_PATIENCE: Final = 20
"""Seconds after which somebody hangs."""


def commits(path: Path) -> Callable[[], Ask]:
    place = Watched(path)
    written(place, 40)
    place.delete(checkpoint_key(STORE))  # so that the commits themselves are looked for, too

    def made() -> Ask:
        log = CommitLog(place, STORE)
        return lambda: [log.look().number, log.since(0)]

    return made


def directories(path: Path) -> Callable[[], Ask]:
    job = Job(path, archive_bytes="65536")
    for number in range(4):
        job.task(number, [{"topic": "a", "queue": number, "offset": 0, "body": b"x"}])
    assert job.commit()
    options = read_options({"path": str(path)})
    held = list(listing(options).archives)
    assert len(held) == 4

    def look(tables: DirectoryTables) -> list[Any]:
        found = []
        for _, table in tables.each(held):
            if isinstance(table, Exception):
                raise table
            found.append([column.tolist() for column in table])
        return found

    def made() -> Ask:
        tables = DirectoryTables(Opener(options))
        return lambda: look(tables)

    return made


def answered(ask: Callable[[], Any], thrower: Thrower) -> Any:
    """The answer, or the error that was raised; nobody waits for ever."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(ask())
        except BaseException as e:
            found.append(e)

    with thrower.watching():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(_PATIENCE)
    assert found, "it hangs"
    return found[0]


@pytest.mark.parametrize(
    ("name", "make"),
    [("kvmq-commits", commits), ("kvmq-ahead", directories)],
    ids=["commits", "directories"],
)
def test_whatever_strikes_a_thread_that_reads_for_spark_its_caller_is_answered(
    tmp_path: Path, name: str, make: Callable[[Path], Callable[[], Ask]]
) -> None:
    made = make(tmp_path / "out")
    watched = Thrower(name)
    ask = made()
    due = answered(ask, watched)
    assert not isinstance(due, BaseException)
    assert watched.steps
    cases = some(watched.steps, STEPS)
    thrown = 0
    for step, error in cases:
        thrower = Thrower(name, step, error)
        ask = made()
        found = answered(ask, thrower)
        assert found == due or isinstance(found, BaseException), f"{step}: {error}"
        assert ask() == due, f"{step}: {error}"
        thrown += thrower.has_thrown.is_set()
    assert thrown >= len(cases) // 2
