"""Deliveries that take several turns, or meet another step amid one, and delays whose begin lies
between two milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Retention, Store
from kvstore.timing import pending_messages
from tests.support import inside
from tests.support.clock import FineClock, VirtualClock
from tests.support.raising import raising
from tests.support.stores import cut_to, killed, opened, settings
from tests.support.waiting import until


def test_a_message_that_is_cancelled_between_two_turns_is_not_delivered(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_messages, "AT_ONCE", 3)
    inside.engine(store).delivery.stop()
    ids = {}
    for first in (0, 1):  # even ones have rows, odd ones are in the tail
        for n in range(first, 12, 2):
            put = store.put("t", b"%d" % n, queue=0, deliver_at=clock.now_ms() + 1000 + n)
            ids[n] = put.message_id
        if not first:
            store.checkpoint()
    clock.step(2)
    timers = inside.engine(store).timers
    timers.deliver()
    delivered = [int(m.body) for m in store.pull("t", 0, 0).messages]
    assert 0 < len(delivered) < 12, "it is amid several turns"
    cancelled = {n for n in range(len(delivered), 12, 2) if store.cancel(ids[n])}
    assert cancelled
    while timers.deliver() == 0:
        pass
    found = [int(m.body) for m in store.pull("t", 0, 0).messages]
    assert found == [n for n in range(12) if n not in cancelled]
    assert store.timers().count == 0
    assert store.verify().problems == []


def test_a_message_whose_topic_is_deleted_amid_a_turn_goes_nowhere(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.engine(store).delivery.stop()
    store.create_topic("u", queues=1)
    for topic in ("u", "t"):
        store.put(topic, topic.encode(), queue=0, delay=1)
    schedules = inside.engine(store).schedules
    fire = schedules.fire

    def delete_and_fire(*args: Any) -> set[int]:
        monkeypatch.undo()
        store.delete_topic("u")
        return fire(*args)

    monkeypatch.setattr(schedules, "fire", delete_and_fire)
    clock.step(1)
    inside.deliver_due(store)
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"t"]
    delays = store.stats().delays
    assert (delays.waiting, delays.delivered) == (0, 1)
    assert store.verify().problems == []


def test_a_list_has_no_message_that_was_cancelled_amid_a_checkpoint(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = [store.put("t", b"", delay=n) for n in (5, 6)]
    with monkeypatch.context() as patch:
        patch.setattr(
            inside.index(store), "write_checkpoint", raising(OSError("the disk has gone"))
        )
        with pytest.raises(OSError, match="has gone"):
            store.checkpoint()
    assert store.cancel(put[0].message_id)
    for topic in ("t", None):
        page = store.timers(topic)
        assert [m.message_id for m in page.messages] == [put[1].message_id]
        assert page.count == 1
    store.checkpoint()
    assert [m.message_id for m in store.timers().messages] == [put[1].message_id]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_delay_does_not_end_early_by_a_part_of_a_millisecond(
    tmp_path: Path, is_changed: bool
) -> None:
    clock = FineClock()
    with kvstore.open(tmp_path / "s", settings(clock=clock)) as store:
        store.create_topic("t", queues=1)
        clock.pass_us(900)
        put = store.put("t", b"", delay=60 if is_changed else 0.05)
        if is_changed:
            store.change_delay(put.message_id, delay=0.05)
        clock.pass_us(49_999)
        inside.deliver_due(store)
        assert store.timers().count == 1
        clock.pass_us(1_001)
        inside.deliver_due(store)
        assert store.timers().count == 0


@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_disk_has_the_copy_of_a_message_before_its_segment_leaves(
    tmp_path: Path, clock: VirtualClock, is_prepared: bool
) -> None:
    config = settings(clock=clock, retention=Retention(hot_for=100.0))
    with opened(tmp_path / "s", config) as store:
        if is_prepared:
            store.prepare("t", b"kept", group="g", immunity=10_000)
        else:
            store.put("t", b"kept", delay=10_000)
        store.seal()
        store.checkpoint()
        clock.advance(200)
        until(lambda: store.stats().first_position > 0)
        path, durable = killed(store, tmp_path / "killed"), inside.log(store).durable
    cut_to(path, durable)
    with kvstore.open(path, config) as store:
        assert (store.transactions() if is_prepared else store.timers()).count == 1
        clock.advance(20_000)
        if is_prepared:
            store.commit(store.transactions().messages[0].message_id)
        inside.deliver_due(store)
        found = [m.body for queue in (0, 1) for m in store.pull("t", queue, 0).messages]
        assert found == [b"kept"]


@pytest.mark.parametrize(
    ("wait", "end", "count"),
    [
        (
            lambda store: store.put("t", b"x", delay=60).message_id,
            lambda store, message_id: store.cancel(message_id),
            lambda store: store.timers().count,
        ),
        (
            lambda store: store.prepare("t", b"x", group="p").message_id,
            lambda store, message_id: store.rollback(message_id),
            lambda store: store.transactions().count,
        ),
    ],
    ids=["delayed", "prepared"],
)
def test_a_count_of_messages_that_wait_is_right_amid_a_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wait: Callable[[Store], str],
    end: Callable[[Store, str], object],
    count: Callable[[Store], int],
) -> None:
    """The checkpoint has written that waits ended, and the tail that says so is still there."""
    with opened(tmp_path / "s", settings(checkpoint_interval=3600.0)) as store:
        ids = [wait(store) for _ in range(10)]
        store.checkpoint()
        for message_id in ids[:8]:
            end(store, message_id)
        counted: list[int] = []
        counter = threading.Thread(target=lambda: counted.append(count(store)))
        changed = inside.changes_of_locations(store)
        note = changed.now

        def count_first(*args: Any) -> None:
            if counter.ident is None:
                counter.start()
                counter.join(0.2)  # it waits for the checkpoint, or counts too few
            note(*args)

        changed.replace(count_first, monkeypatch)
        store.checkpoint()
        counter.join()
        assert counted == [2]
        assert count(store) == 2
