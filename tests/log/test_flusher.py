"""The flusher wakes all callers whose records are on the disk, also if another thread synced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import Store, StoreConfig
from kvstore.clock import SystemClock
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.files import WatchedFiles
from tests.support.stores import opened, settings

NEVER = 1e9


class Interposed(SystemClock):
    """Runs `before_waking` between an event's being set and the waiter's going on."""

    before_waking: Callable[[], None] | None = None

    def wait(self, event: threading.Event, seconds: float) -> bool:
        woken = event.wait(min(seconds, 0.05))
        if woken and self.before_waking and threading.current_thread().name == "kvmq-flusher":
            self.before_waking()
        return woken


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_few_dirty_bytes_are_on_the_disk_after_the_thorough_interval(
    tmp_path: Path, mode: str
) -> None:
    """Too few for the flushes at each interval, and nobody waits for them."""
    clock = VirtualClock()
    config = settings(clock=clock, write_mode=mode, checkpoint_interval=NEVER)
    with opened(tmp_path / "s", config) as store:
        store.put("t", b"x")
        end = store.stats().end_position
        until = SystemClock().monotonic() + 60
        while store.stats().durable_position < end and SystemClock().monotonic() < until:
            clock.advance(config.flush_thorough_interval)
            SystemClock().sleep(0.01)
        assert store.stats().durable_position == end


def test_few_dirty_bytes_wait_for_the_thorough_interval(tmp_path: Path) -> None:
    clock = VirtualClock()
    files = WatchedFiles()
    config = settings(clock=clock, files=files, checkpoint_interval=NEVER)
    with opened(tmp_path / "s", config) as store:
        store.put("t", b"x")
        seen = len(files.effects)
        for _ in range(3):
            clock.advance(config.flush_interval)
            SystemClock().sleep(0.02)
        assert "sync" not in files.kinds()[seen:]


def sync_when_somebody_waits(store: Store) -> None:
    """Syncs as a checkpoint does first, in the housekeeper's thread or a caller's."""
    while not inside.threads_at_the_disk(store):
        SystemClock().sleep(0.001)
    inside.log(store).sync_to_end()


def test_a_flush_ends_when_a_checkpoint_syncs_before_the_flusher_does(tmp_path: Path) -> None:
    """The flusher then finds nothing dirty, and must still tell those who wait."""
    clock = Interposed()
    config = StoreConfig(
        segment_size=64 << 10,
        clock=clock,
        flush_interval=NEVER,
        flush_thorough_interval=NEVER,
        checkpoint_interval=NEVER,
    )
    with kvstore.open(tmp_path / "s", config) as store:
        store.create_topic("t")
        store.put("t", b"x")
        clock.before_waking = lambda: sync_when_somebody_waits(store)
        flush = threading.Thread(target=store.flush, daemon=True)
        flush.start()
        flush.join(3)
        hangs = flush.is_alive()
        clock.before_waking = None
        assert store.stats().durable_position == store.stats().end_position
        assert not hangs
