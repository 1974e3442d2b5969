"""A view of a store beside the process that writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import kvstore
from kvstore import Message, Store, StoreConfig
from kvstore.opening import viewing
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import DAY, POLICY, SEGMENT, TOPICS, message
from tiering import Worker

CONFIG = StoreConfig()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of which the first messages went, the next are in archives, the last in the log."""
    clock = VirtualClock()
    path = tmp_path_factory.mktemp("viewing") / "store"
    config = StoreConfig(segment_size=SEGMENT, clock=clock, checkpoint_interval=1e9)
    policy = msgspec.structs.replace(POLICY, warm_for=30 * DAY)
    with kvstore.open(path, config) as one, Worker(one, policy) as worker:
        for topic, queues in TOPICS.items():
            one.create_topic(topic, queues=queues)
        for part, days in enumerate((20, 20, 2)):
            one.put_batch([message(n) for n in range(part * 300, part * 300 + 300)])
            one.seal()
            clock.advance(days * DAY)
            assert worker.run_once().failed == {}
        one.put_batch([message(n) for n in range(900, 1000)])
        one.checkpoint()
        yield one


def test_a_view_is_what_the_store_says_up_to_its_last_checkpoint(store: Store) -> None:
    before = viewing.written(store.path, CONFIG)
    view = viewing.view_store(store.path, CONFIG)
    stats = store.stats()
    assert view.position == stats.durable_position
    assert view.catalog == store.catalog()
    assert [part.first_position for part in view.log] == list(
        range(stats.first_position, stats.durable_position, SEGMENT)
    )
    assert view.log[-1].end_position == stats.durable_position
    assert viewing.written(store.path, CONFIG) == before
    store.put_batch([Message("orders", b"not on the disk for sure")])
    assert viewing.view_store(store.path, CONFIG).position == view.position
    store.checkpoint()
    assert viewing.written(store.path, CONFIG) != before


def test_the_reach_of_queues_is_their_bounds(store: Store) -> None:
    store.checkpoint()
    ids = {store.topic(name).id: name for name in TOPICS}
    reach = viewing.reach(store.path, CONFIG, None)
    assert reach.position == store.stats().checkpointed_position
    assert {(ids[t], q): tuple(found) for (t, q), found in reach.queues.items()} == {
        (name, queue): tuple(store.bounds(name, queue))
        for name, queues in TOPICS.items()
        for queue in range(queues)
    }
    assert any(first for first, _ in reach.queues.values())
    some = next(iter(reach.queues))
    assert viewing.reach(store.path, CONFIG, [some, (99, 0)]).queues == {some: reach.queues[some]}


def test_the_homes_of_offsets_are_the_archives_that_have_them(store: Store) -> None:
    topic = store.topic("orders").id
    first, end = store.bounds("orders", 0)
    every = viewing.homes(store.path, CONFIG, [((topic, 0), 0, end)])
    assert len(every) >= 2
    alone = viewing.homes(store.path, CONFIG, [((topic, 0), first, first + 1)])
    assert len(alone) == 1
    assert alone < every
    assert viewing.homes(store.path, CONFIG, [((topic, 0), end - 1, end), ((99, 0), 0, 9)]) == set()


def test_a_segment_whose_file_is_lost_is_not_named(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    config = StoreConfig(segment_size=SEGMENT)
    with kvstore.open(folder, config) as one:
        one.create_topic("orders")
        one.put_batch([Message("orders", b"x" * 1000)] * 200)
        one.checkpoint()
        whole = viewing.view_store(folder, CONFIG).log
        whole[1].path.rename(tmp_path / "lost")
        assert viewing.view_store(folder, CONFIG).log == [whole[0], *whole[2:]]
        (tmp_path / "lost").rename(whole[1].path)
