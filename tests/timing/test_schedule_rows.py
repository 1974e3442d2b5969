"""Rows of schedules that were damaged: verification names them, and one schedule's hold up neither
others nor delayed messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import IndexDamaged, ScheduleNotFound, Store
from kvstore.index.keys import META
from tests.support import inside
from tests.support.clock import START_MS, VirtualClock
from tests.support.stores import opened, settings

FIRST: Final = START_MS + 10_000


def due_key(time: int, name: bytes) -> bytes:
    return b"schedule_due/" + time.to_bytes(8, "big") + name


def change(store: Store, rows: Mapping[bytes, bytes | None]) -> None:
    """Changes rows behind the store's back; None removes one."""
    families = inside.families(store)
    batch = families.batch()
    for key, value in rows.items():
        if value is None:
            batch.delete(META, key)
        else:
            batch.put(META, key, value)
    families.write(batch, sync=True)


def made(path: Path, clock: VirtualClock, rows: Mapping[bytes, bytes | None]) -> None:
    """A store that was closed, with two schedules and a delayed message, whose rows are changed."""
    with opened(path, settings(clock=clock)) as store:
        for name in ("bad", "good"):
            store.schedule(name, "t", name.encode(), every=10, queue=0)
        store.put("t", b"late", delay=15, queue=0)
    with kvstore.open(path, settings(clock=clock)) as store:
        change(store, rows)


def came(store: Store, clock: VirtualClock) -> list[bytes]:
    """The bodies in queue 0, 20 s later."""
    for _ in range(2):
        clock.advance(10)
        inside.deliver_due(store)
    return sorted(m.body for m in store.pull("t", 0, 0).messages)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({b"schedule_times/bad": b""}, "'bad' has no first time, and a row of"),
        ({b"schedule_times/bad": b"12345"}, "the times of schedule 'bad' can't be read"),
        ({b"schedule_times/bad": (5).to_bytes(8, "big")}, "'bad' has 5 as its first time"),
        ({due_key(FIRST, b"bad"): None}, "and no row for that"),
        ({due_key(FIRST + 1, b"bad"): b""}, "is a second first time"),
        ({due_key(FIRST, b"lost"): b""}, "'lost' has no first time"),
        ({due_key(FIRST, b"\xff\xfe"): b""}, "has no schedule"),
        ({b"schedule_due/abc": b""}, "has no schedule"),
        ({b"schedule_times/lost": FIRST.to_bytes(8, "big")}, "a schedule that there is not"),
        ({b"schedule/bad": None}, "a schedule that there is not"),
        ({b"schedule/bad": b"\xc1"}, "the row of schedule 'bad' can't be read"),
    ],
)
def test_rows_that_contradict_each_other_are_found_and_hold_up_nothing_else(
    tmp_path: Path, clock: VirtualClock, rows: Mapping[bytes, bytes | None], says: str
) -> None:
    made(tmp_path / "s", clock, rows)
    with kvstore.open(tmp_path / "s", settings(clock=clock), read_only=True) as reader:
        problems = reader.verify().problems
        assert any(says in p.message for p in problems), problems
        assert {p.kind for p in problems} == {"index"}
    with kvstore.open(tmp_path / "s", settings(clock=clock)) as store:
        found = came(store, clock)
        assert found.count(b"good") == 2
        assert found.count(b"late") == 1
        assert found.count(b"bad") <= 2
        if "be read" not in says and b"schedule/bad" not in rows:
            store.pause_schedule("bad")
            store.resume_schedule("bad")
            assert came(store, clock).count(b"bad") == found.count(b"bad") + 2


def test_a_store_without_rows_of_first_times_lacks_none(
    tmp_path: Path, clock: VirtualClock
) -> None:
    rows = {due_key(FIRST, b"bad"): None, due_key(FIRST, b"good"): None, b"schedule_due": None}
    made(tmp_path / "s", clock, rows)
    with kvstore.open(tmp_path / "s", settings(clock=clock), read_only=True) as reader:
        assert reader.verify().problems == [], "a kvmq made it that had no such rows"
    with kvstore.open(tmp_path / "s", settings(clock=clock)) as store:
        assert came(store, clock) == [b"bad"] * 2 + [b"good"] * 2 + [b"late"]
        assert store.verify().problems == []


def test_damaged_times_hold_up_nothing_else_in_a_store_without_rows_of_first_times(
    tmp_path: Path, clock: VirtualClock
) -> None:
    gone = {due_key(FIRST, name): None for name in (b"bad", b"good")}
    made(tmp_path / "s", clock, {**gone, b"schedule_due": None, b"schedule_times/bad": b"12345"})
    with kvstore.open(tmp_path / "s", settings(clock=clock)) as store:
        assert came(store, clock) == [b"bad"] + [b"good"] * 2 + [b"late"]


def test_schedules_at_work_are_no_problem(store: Store, clock: VirtualClock) -> None:
    store.schedule("one", "t", b"", every=10)
    store.schedule("other", "t", b"", cron="0 0 29 2 *")
    for _ in range(4):
        clock.advance(10)
        inside.deliver_due(store)
        assert store.verify().problems == []
    store.pause_schedule("one")
    assert store.verify().problems == []
    store.resume_schedule("one")
    store.delete_schedule("other")
    assert store.verify().problems == []


def test_a_schedule_whose_row_is_garbage_can_be_deleted_and_its_topic_too(
    tmp_path: Path, clock: VirtualClock
) -> None:
    made(tmp_path / "s", clock, {b"schedule/bad": b"\xc1"})
    with kvstore.open(tmp_path / "s", settings(clock=clock)) as store:
        with pytest.raises(IndexDamaged, match="delete the schedule, and make it again"):
            store.schedule_info("bad")
        store.delete_schedule("bad")
        assert [one.name for one in store.schedules()] == ["good"]
        assert store.verify().problems == []
        store.schedule("bad", "t", b"bad", every=10, queue=0)
        change(store, {b"schedule/bad": b"\xc1"})
        clock.advance(10)
        inside.deliver_due(store)
        store.delete_topic("t")
        with pytest.raises(ScheduleNotFound):
            store.schedule_info("good")


def test_a_row_that_is_damaged_while_the_store_is_open_holds_up_its_own_schedule_alone(
    store: Store, clock: VirtualClock
) -> None:
    for name in ("bad", "good"):
        store.schedule(name, "t", name.encode(), every=10, queue=0)
    inside.deliver_due(store)
    change(store, {b"schedule/bad": b"\xc1"})
    assert came(store, clock) == [b"bad", b"good", b"good"]


@pytest.mark.parametrize(
    "rows", [{b"schedule/bad": b"\xc1"}, {b"schedule_times/bad": b"12345"}], ids=["row", "times"]
)
def test_a_list_leaves_out_a_schedule_that_is_damaged_and_says_so(
    tmp_path: Path,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    rows: Mapping[bytes, bytes | None],
) -> None:
    made(tmp_path / "s", clock, rows)
    with kvstore.open(tmp_path / "s", settings(clock=clock)) as store:
        for asked in (None, "t"):
            caplog.clear()
            assert [one.name for one in store.schedules(asked)] == ["good"]
            assert "schedule 'bad' can't be read" in caplog.text
            assert "`kvmq verify` lists damage" in caplog.text
        assert any("'bad' can't be read" in p.message for p in store.verify().problems)
