"""What `lag` and `group_stats` say of a group, also when retention took messages away."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore import Message, Retention, Store, StoreConfig
from tests.support.clock import VirtualClock

DAY = 24 * 3600


def small(clock: VirtualClock) -> StoreConfig:
    return StoreConfig(segment_size=1 << 16, retention=Retention(hot_for=DAY), clock=clock)


def lags(store: Store) -> tuple[int, int]:
    """As the two calls say."""
    (stats,) = store.group_stats("g", "t")
    assert stats.lag == stats.unread + stats.in_flight
    assert stats.taken + stats.unread <= stats.end or stats.taken == stats.end
    return sum(one.lag for one in store.lag("g", "t")), stats.lag


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("count", [1, 200])
def test_what_retention_took_away_is_in_nobodys_lag(
    tmp_path: Path, ordered: bool, count: int
) -> None:
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", small(clock)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", ordered=ordered)
        messages = [Message("t", b"x" * 100, message_group="one") for _ in range(300)]
        store.put_batch(messages)
        store.pop("g", "t", limit=count, invisible_for=30 * DAY)
        assert lags(store) == (300, 300)
        store.seal()
        store.put("t", b"x")
        clock.advance(2 * DAY)
        clock.set_hour(4)
        store.apply_retention()
        assert store.bounds("t", 0) == (300, 301)
        assert lags(store) == (1, 1)
        (stats,) = store.group_stats("g", "t")
        assert (stats.unread, stats.in_flight, stats.redelivered, stats.oldest_due) == (
            1,
            0,
            0,
            None,
        )


def test_a_group_that_starts_at_the_end_lags_by_what_came_since(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", small(VirtualClock())) as store:
        store.create_topic("t", queues=1)
        store.put_batch([Message("t", b"old") for _ in range(5)])
        store.create_group("g", start="end")
        assert lags(store) == (0, 0)
        store.put_batch([Message("t", b"new") for _ in range(3)])
        assert lags(store) == (3, 3)
