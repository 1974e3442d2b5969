"""Figures of a store's own work: what came, and how long syncs and checkpoints took."""

from __future__ import annotations

from kvstore import Message, Store, StoreConfig
from kvstore.process.durations import LIMITS, Durations
from tests.support.clock import VirtualClock
from tests.support.stores import SMALL, Opens


def test_what_came_is_counted_across_checkpoints(store: Store) -> None:
    for n in (1, 2, 4):
        store.put_batch([Message("t", b"x")] * n)
        store.checkpoint()
    store.put("t", b"x")
    assert store.stats().appended == 8
    store.put("t", b"x", delay=60)
    assert store.stats().appended == 9


def test_what_recovery_found_is_counted_with_what_came(opens: Opens, store: Store) -> None:
    store.put_batch([Message("t", b"x")] * 3)
    store.close()
    again = opens()
    assert again.stats().appended == 0
    again.put("t", b"x")
    assert again.stats().appended == 1


def test_syncs_and_checkpoints_are_counted_only_if_there_was_something_to_do(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SMALL.segment_size, clock=VirtualClock()))
    store.create_topic("t")
    store.checkpoint()
    before = store.stats()
    store.put("t", b"x")
    store.flush()
    store.checkpoint()
    store.checkpoint()
    after = store.stats()
    for now, then in (
        (after.sync_durations, before.sync_durations),
        (after.checkpoint_durations, before.checkpoint_durations),
    ):
        assert sum(now.counts) == sum(then.counts) + 1
        assert now.seconds == 0.0


def test_a_duration_is_counted_where_it_is_at_most_the_limit() -> None:
    durations = Durations()
    for seconds in (0.0, LIMITS[0], LIMITS[1], 99.0):
        durations.add(seconds)
    counts = durations.stats().counts
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 1, 1, 4)
    assert durations.stats().seconds == LIMITS[0] + LIMITS[1] + 99
