"""Prepared messages in the views and in the report: waiting, overdue, committed, rolled back, given
up.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import kvstore
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import settings
from tiering import Policy, Worker
from tiering.spark.report import create_views
from tiering.spark.report.figures import TransactionCounts
from tiering.spark.report.gather import gather

DAY: Final = 86_400


def archive_all(store: kvstore.Store, clock: VirtualClock) -> None:
    """Makes the one segment, which holds all messages, archives."""
    store.seal()
    clock.advance(5)
    with Worker(store, Policy(hot_for=1.0, warm="archive", clock_doubt=0.0)) as worker:
        assert worker.run_once().segments == [0]


class Prepared:
    """A store with transactions of two groups, over two days. With archives, all that ended is in
    them.
    """

    def __init__(self, folder: Path, *, with_archives: bool) -> None:
        clock = VirtualClock()
        self.folder = folder
        self.begin = clock.now_ms()
        config = settings(clock=clock, transaction_checks=2, transaction_age=10.0 * DAY)
        with kvstore.open(folder, config) as store:
            store.create_topic("t", queues=1)
            store.create_topic("u", queues=1)
            one, two, three = (store.prepare("t", b"x", group="pay") for _ in range(3))
            clock.advance(2)
            store.commit(one)
            clock.advance(2)
            store.commit(two)
            store.rollback(three)
            with store.transaction(group="pay") as t:
                t.put("t", b"y")
                t.put("u", b"y")
            store.prepare("u", b"z", group="ship", immunity=1)
            store.on_check("ship", lambda message: "unknown")
            for _ in range(3):
                clock.advance(60)
                inside.ask_about_transactions(store)
            store.put("t", b"plain")
            if with_archives:
                archive_all(store, clock)
            clock.advance(DAY)
            store.prepare("t", b"w", group="pay", immunity=5)
            store.prepare("t", b"w", group="pay", immunity=3 * DAY)
            self.end = clock.now_ms()

    def day(self, ms: int) -> date:
        return datetime.fromtimestamp(ms / 1000, UTC).date()


@pytest.fixture(scope="module", params=[False, True], ids=["log", "archives"])
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared") / "store"
    return Prepared(folder, with_archives=request.param)


def test_each_prepared_message_counts_once_as_its_transaction_ended(
    spark: SparkSession, prepared: Prepared
) -> None:
    found = gather(spark, str(prepared.folder), now_ms=prepared.end + DAY * 1000).transactions
    by_group = {(one.topic, one.group): one for one in found}
    assert len(found) == len(by_group) == 3
    of_t, given_up = by_group["t", "pay"], by_group["u", "ship"]
    counts = (of_t.waiting, of_t.overdue, of_t.committed, of_t.rolled_back, of_t.given_up)
    assert counts == (1, 1, 3, 1, 0)
    assert (of_t.checks, of_t.max) == (0, 4000)
    assert by_group["u", "pay"] == TransactionCounts("u", "pay", 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    assert (given_up.given_up, given_up.checks, given_up.max) == (1, 2, 180_000)


@pytest.mark.parametrize("with_archives", [False, True], ids=["log", "archives"])
def test_transactions_with_one_id_are_counted_each_as_it_ended(
    spark: SparkSession, tmp_path: Path, *, with_archives: bool
) -> None:
    clock = VirtualClock()
    config = settings(clock=clock, transaction_checks=9)
    with kvstore.open(tmp_path / "s", config) as store:
        store.create_topic("t", queues=1)
        # Of each two messages with one id the first is asked about, and so moved.
        ends = ("waits", "waits"), ("commit", "commit"), ("rollback", "commit"), ("commit", "waits")
        put = [
            [store.prepare("t", b"x", group="pay", immunity=i, message_id=f"{n}") for i in (1, DAY)]
            for n in range(len(ends))
        ]
        store.on_check("pay", lambda message: "unknown")
        for _ in range(3):
            clock.advance(60)
            inside.ask_about_transactions(store)
        for results, how in zip(put, ends, strict=True):
            for result, end in zip(results, how, strict=True):
                if end != "waits":
                    getattr(store, end)(result)
        if with_archives:
            archive_all(store, clock)
        waiting = store.transactions().count
    (found,) = gather(spark, str(tmp_path / "s"), now_ms=clock.now_ms()).transactions
    counts = (found.waiting, found.overdue, found.committed, found.rolled_back, found.given_up)
    assert counts == (waiting, 0, 4, 1, 0)
    assert (waiting, found.checks) == (3, 3 * len(ends))


def test_the_view_counts_them_by_the_day_on_which_they_were_prepared(
    spark: SparkSession, prepared: Prepared
) -> None:
    create_views(spark, str(prepared.folder), now_ms=prepared.end, only=["transactions"])
    by_day = {(row.topic, row.group, row.day): row for row in spark.table("transactions").collect()}
    first, last = prepared.day(prepared.begin), prepared.day(prepared.end)
    assert by_day["t", "pay", last].waiting == 2
    assert by_day["t", "pay", first].rolled_back == 1
    assert by_day["u", "ship", first].given_up == 1
    assert sum(row.committed for row in by_day.values()) == 4
