"""The cost of a look at the messages that wait: it does not grow with those that waited before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvstore import DelayedPage, Message, PreparedPage, Store, StoreConfig
from kvstore.timing.timer_rows import Looks, TimerRows
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.costs import Costs
from tests.support.stores import opened, settings


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    return settings(clock=clock, checkpoint_interval=1e9)


def pages_and_costs(
    table: str, page: Callable[..., DelayedPage | PreparedPage]
) -> tuple[list[Any], list[int]]:
    """All pages of two messages, and how many rows of a table each reads."""
    pages, costs, after = list[Any](), list[int](), None
    while True:
        with inside.rows_read(table) as rows:
            pages.append(page(limit=2, after=after))
        assert len(pages[-1].messages) <= 2
        costs.append(len(rows))
        after = pages[-1].next
        if after is None:
            return pages, costs


def bodies_of(pages: list[Any]) -> list[bytes]:
    return [one.message.body for page in pages for one in page.messages]


def test_rows_of_cancelled_messages_are_read_once_and_not_in_each_look(store: Store) -> None:
    put = store.put_batch([Message("t", b"x", delay=100 + n) for n in range(300)])
    store.checkpoint()
    for one in put[:-1]:
        store.cancel(one.message_id)
    inside.deliver_due(store)
    with inside.rows_read("timers") as rows:
        inside.deliver_due(store)
    assert len(rows) < 10


@pytest.mark.parametrize("of_topic", [False, True], ids=["namespace", "topic"])
@pytest.mark.parametrize("is_put_before", [True, False], ids=["checkpoint", "tail"])
def test_a_page_costs_the_same_however_many_messages_of_others_wait(
    tmp_path: Path,
    config: StoreConfig,
    monkeypatch: pytest.MonkeyPatch,
    *,
    of_topic: bool,
    is_put_before: bool,
) -> None:
    """The next page goes on where the call ended, so all are found in the end."""
    monkeypatch.setattr("kvstore.timing.timer_rows.LOOKED_MAX", 200)
    most: list[int] = []
    for others in (500, 2000, 8000):
        with opened(tmp_path / str(others), config) as store:
            view = store.namespace("own")
            view.create_topic("t", queues=1)
            store.put_batch([Message("t", b"x", delay=100 + n) for n in range(others)])
            for delay in (99, 100 + others // 2, 101 + others):
                view.put("t", b"%d" % delay, delay=delay)
            if is_put_before:
                store.checkpoint()
            topic = "t" if of_topic else None
            pages, costs = pages_and_costs("timers", partial(view.timers, topic))
            assert all(page.count == 3 for page in pages)
            found = bodies_of(pages)
            assert found == [b"99", b"%d" % (100 + others // 2), b"%d" % (101 + others)]
            assert len(costs) <= others / 200 + 4
            most.append(max(costs))
    # Rows are read in pieces, of which the last is not needed whole.
    assert max(most) < 5 * 200


@pytest.mark.parametrize("of", ["group", "namespace"])
@pytest.mark.parametrize("is_put_before", [True, False], ids=["checkpoint", "tail"])
def test_a_page_of_transactions_costs_the_same_however_many_of_others_wait(
    tmp_path: Path,
    config: StoreConfig,
    monkeypatch: pytest.MonkeyPatch,
    *,
    of: str,
    is_put_before: bool,
) -> None:
    """The next page goes on where the call ended, so all are found in the end."""
    monkeypatch.setattr("kvstore.timing.timer_rows.LOOKED_MAX", 200)
    most: list[int] = []
    for others in (500, 2000, 8000):
        with opened(tmp_path / str(others), config) as store:
            view = store.namespace("own")
            view.create_topic("t", queues=1)
            calls = view if of == "namespace" else store
            store.prepare_batch([Message("t", b"x")] * (others // 2), group="ship", immunity=100)
            calls.prepare("t", b"1", group="pay", immunity=99)
            store.prepare_batch([Message("t", b"x")] * (others // 2), group="ship", immunity=102)
            calls.prepare("t", b"2", group="pay", immunity=101)
            calls.prepare("t", b"3", group="pay", immunity=103)
            if is_put_before:
                store.checkpoint()
            pages, costs = pages_and_costs("transactions", partial(calls.transactions, "pay"))
            found = bodies_of(pages)
            assert found == [b"1", b"2", b"3"]
            assert len(costs) <= others / 200 + 4
            most.append(max(costs))
    # Rows are read in pieces, of which the last is not needed whole.
    assert max(most) < 5 * 200


def test_a_cancel_looks_for_one_key_whose_neighbours_are_known(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look for an id in all topics would go to RocksDB each time."""
    costs = Costs(monkeypatch)
    put = store.put_batch([Message("t", b"x", delay=100) for _ in range(300)])
    store.checkpoint()
    for one in put[:100]:
        store.cancel(one.message_id)
    with costs.counting() as counts:
        for one in put[100:]:
            store.cancel(one.message_id)
    assert counts["seek"] < 10
    assert counts["get"] == 200, "whether its row is there"


def test_a_message_due_before_cancelled_ones_that_were_passed_over_comes(
    store: Store, clock: VirtualClock
) -> None:
    put = store.put_batch([Message("t", b"late", queue=0, delay=100 + n) for n in range(20)])
    store.checkpoint()
    for one in put[:-1]:
        store.cancel(one.message_id)
    inside.deliver_due(store)
    store.put_batch([Message("t", b"%d" % n, queue=0, delay=50 + n) for n in range(3)])
    store.checkpoint()
    clock.advance(60)
    inside.deliver_due(store)
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"0", b"1", b"2"]


def test_a_message_put_and_checkpointed_while_others_are_delivered_comes(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is due before the last of those, so its row comes before the last that was delivered."""
    store.put_batch([Message("t", b"%d" % n, queue=0, delay=10 + n) for n in range(5)])
    store.checkpoint()
    clock.advance(20)
    plain, is_first = TimerRows.take_due, threading.Event()

    def take_due(self: TimerRows, until: int, limit: int, end: int) -> Looks:
        looks = plain(self, until, limit, end)
        if looks.rows and not is_first.is_set():
            is_first.set()
            clock.step(-20)
            store.put("t", b"between", queue=0, delay=12.5)
            store.checkpoint()
            clock.step(20)
        return looks

    monkeypatch.setattr(TimerRows, "take_due", take_due)
    inside.deliver_due(store)
    monkeypatch.undo()
    inside.deliver_due(store)
    found = [m.body for m in store.pull("t", 0, 0).messages]
    assert is_first.is_set()
    assert sorted(found) == [b"0", b"1", b"2", b"3", b"4", b"between"]
