"""Delayed messages in the views and in the report: waiting, overdue, delivered, late, cancelled."""

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
from tiering.spark.report.figures import TimerCounts
from tiering.spark.report.gather import gather

HOUR: Final = 3_600_000


class Delayed:
    """A store that was closed when messages were due: its folder, and how late the two deliveries
    of topic "t" were. With archives, the messages that are delivered are in them, and all records
    of waits as well.
    """

    def __init__(self, folder: Path, *, with_archives: bool) -> None:
        clock = VirtualClock()
        self.folder = folder
        self.begin = begin = clock.now_ms()
        with kvstore.open(folder, settings(clock=clock)) as store:
            store.create_topic("t", queues=1)
            store.create_topic("u", queues=1)
            for ahead in (1, 2, 30):
                store.put("t", b"x", deliver_at=begin + ahead * HOUR)
            moved = store.put("t", b"y", deliver_at=begin + 5 * HOUR)
            store.change_delay(moved.message_id, deliver_at=begin + 40 * HOUR)
            store.cancel(store.put("t", b"z", deliver_at=begin + 6 * HOUR).message_id)
            store.put("u", b"u", deliver_at=begin + 50 * HOUR)
            store.put("u", b"at once")
            clock.advance(3 * 3600)
            inside.deliver_due(store)
            if with_archives:
                store.seal()
                clock.advance(5)
                policy = Policy(hot_for=1.0, warm="archive", clock_doubt=0.0)
                with Worker(store, policy) as worker:
                    report = worker.run_once()
                assert (report.segments, report.messages) == ([0], 11)
        self.late = sorted(begin + 3 * HOUR - due for due in (begin + HOUR, begin + 2 * HOUR))

    def day(self, hours: int) -> date:
        return datetime.fromtimestamp((self.begin + hours * HOUR) / 1000, UTC).date()


@pytest.fixture(scope="module", params=[False, True], ids=["log", "archives"])
def delayed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Delayed:
    folder = tmp_path_factory.mktemp("delayed") / "store"
    return Delayed(folder, with_archives=request.param)


def test_each_delayed_message_counts_once_as_it_ended(
    spark: SparkSession, delayed: Delayed
) -> None:
    now = delayed.begin + 35 * HOUR
    least, most = delayed.late
    assert gather(spark, str(delayed.folder), now_ms=now).timers == [
        TimerCounts("t", 1, 1, 2, 1, least, most, most, most),
        TimerCounts("u", 1, 0, 0, 0, None, None, None, None),
    ]


def test_the_view_counts_them_by_the_day_on_which_they_are_due(
    spark: SparkSession, delayed: Delayed
) -> None:
    create_views(spark, str(delayed.folder), now_ms=delayed.begin + 35 * HOUR, only=["timers"])
    found = spark.sql("SELECT * FROM timers").collect()
    by_day = {(row.topic, row.day): row for row in found}
    assert by_day["t", delayed.day(40)].waiting == 1
    assert by_day["t", delayed.day(30)].overdue == 1
    assert by_day["t", delayed.day(2)].delivered in (1, 2)
    assert by_day["t", delayed.day(6)].cancelled == 1
    assert by_day["u", delayed.day(50)].waiting == 1
    assert sum(row.delivered for row in found) == 2
    assert max(row.max for row in found if row.max is not None) == delayed.late[-1]
