"""RocksDB's families: calls beside a reopening after a full disk."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kvstore.errors import DiskFull, StoreClosed
from kvstore.index.families import Families
from kvstore.index.keys import META, RUNS
from tests.support import inside


@pytest.fixture(autouse=True)
def _two_rows(families: Families) -> None:
    families.write_rows((META, [(b"a", b"1")]), (RUNS, [(b"b", b"2")]))


def write_a_batch(families: Families) -> None:
    batch = families.batch()
    batch.put(META, b"c", b"3")
    batch.put_many(RUNS, [b"d"], [b"4"])
    batch.delete(META, b"e")
    batch.delete_range(RUNS, b"x", b"y")
    families.write(batch)


CALLS: dict[str, Callable[[Families], object]] = {
    "a batch": write_a_batch,
    "two rows": lambda families: families.write_rows(
        (META, [(b"c", b"3")]), (RUNS, [(b"d", b"4")])
    ),
    "a deletion": lambda families: families.write_rows((META, [(b"e", None)])),
    "a sync": lambda families: families.sync(),
    "a value": lambda families: families.get(META, b"a"),
    "rows": lambda families: list(families.rows(META, b"")),
}


@pytest.mark.parametrize("call", [*CALLS.values(), lambda families: families.file_bytes()[META]])
def test_a_call_beside_a_reopening_waits_for_its_end(
    families: Families, call: Callable[[Families], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, goes_on = threading.Event(), threading.Event()
    step = inside.database_opening(families)
    open_ = step.now

    def open_late(*, create: bool) -> None:
        reached.set()
        assert goes_on.wait(60)
        open_(create=create)

    step.replace(open_late, monkeypatch)
    inside.find_disk_full(families)
    reopening = threading.Thread(target=families.sync)
    reopening.start()
    assert reached.wait(60)
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            call(families)
        except Exception as e:
            errors.append(e)

    calling = threading.Thread(target=attempt)
    calling.start()
    calling.join(0.05)
    assert calling.is_alive()
    goes_on.set()
    reopening.join(60)
    calling.join(60)
    assert errors == []
    assert families.get(META, b"a") == b"1"


@pytest.mark.parametrize("name", CALLS)
def test_a_call_behind_a_reopening_that_failed_finds_the_disk_full(
    families: Families, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*, create: bool) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        inside.database_opening(families).replace(no_room, patch)
        inside.find_disk_full(families)
        with pytest.raises(DiskFull):
            families.sync()
        with pytest.raises(DiskFull):
            CALLS[name](families)
    CALLS[name](families)
    assert families.get(META, b"a") == b"1"


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_a_closed_index_says_so(families: Families, name: str) -> None:
    families.close()
    with pytest.raises(StoreClosed):
        CALLS[name](families)
