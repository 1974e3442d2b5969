"""Sets of which some messages ended and others wait, as an earlier version left them: the others
end as these did, and in no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Message, RecordDamaged, Retention, Store, StoreConfig, TransactionEnded
from kvstore.core.names import TRANSACTION_DISCARD_TOPIC
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import SEGMENT, settings

IDS: Final = [f"m{n}" for n in range(5)]
BODIES: Final = [name.encode() for name in IDS]
AGE: Final = 3600.0


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    kept = Retention(max_bytes=8 * SEGMENT)
    return settings(clock=clock, transaction_age=AGE, retention=kept, delete_interval=0.0)


@pytest.fixture
def store(tmp_path: Path, config: StoreConfig) -> Iterator[Store]:
    with kvstore.open(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        for topic in "tu":
            store.create_topic(topic, queues=1)
        messages = [Message("t", name.encode(), message_id=name) for name in IDS]
        store.prepare_batch(messages, group="pay", set_id=IDS[0])
        yield store


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [m.body for m in store.pull(topic, 0, 0, limit=1000).messages]


def grows_old(store: Store, clock: VirtualClock) -> None:
    clock.advance(AGE + 1)
    inside.ask_about_transactions(store)


def leaves(store: Store, clock: VirtualClock) -> None:
    while inside.log(store).end < 20 * SEGMENT:
        store.put_batch([Message("u", bytes(2000))] * 20)
    store.apply_retention()
    assert inside.log(store).first > 0


Finishes = Callable[[Store, VirtualClock], object]
COMMITS: Final[dict[str, Finishes]] = {
    "the first again": lambda store, clock: store.commit(IDS[0]),
    "the last": lambda store, clock: store.commit(IDS[-1]),
    "its age": grows_old,
}
ROLLBACKS: Final[dict[str, Finishes]] = {
    "the first again": lambda store, clock: store.rollback(IDS[0]),
    "the last": lambda store, clock: store.rollback(IDS[-1]),
    "its age": grows_old,
    "its segment leaves": leaves,
}


@pytest.mark.parametrize("finishes", COMMITS.values(), ids=COMMITS)
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_set_that_was_committed_by_half_is_committed(
    store: Store,
    config: StoreConfig,
    clock: VirtualClock,
    count: int,
    finishes: Finishes,
    is_reopened: bool,
) -> None:
    inside.end_part_of_set(store, IDS[0], count, "commit")
    if is_reopened:
        store.close()
        store = kvstore.open(store.path, config)
        inside.stop_housekeepers(store)
    with store:
        for name in (IDS[0], IDS[-1]):
            with pytest.raises(TransactionEnded) as e:
                store.rollback(name)
            assert e.value.is_committed
        (problem,) = store.verify().problems
        assert f"{5 - count} of its messages wait, the others were committed" in problem.message
        finishes(store, clock)
        assert bodies(store) == BODIES
        assert store.transactions().count == 0
        assert store.commit(IDS[-1]).offset == 4
        assert bodies(store) == BODIES
        assert store.verify().problems == []


def test_a_set_that_was_committed_by_half_is_committed_before_its_segment_leaves(
    store: Store, clock: VirtualClock
) -> None:
    inside.end_part_of_set(store, IDS[0], 2, "commit")
    leaves(store, clock)
    low, _ = store.bounds("t", 0)
    assert [m.body for m in store.pull("t", 0, low).messages] == BODIES[2:]
    assert (low, store.transactions().count) == (2, 0)


@pytest.mark.parametrize("finishes", ROLLBACKS.values(), ids=ROLLBACKS)
@pytest.mark.parametrize("how", ["rollback", "give up"])
def test_a_set_that_was_dropped_by_half_is_dropped(
    store: Store, clock: VirtualClock, how: str, finishes: Finishes
) -> None:
    inside.end_part_of_set(store, IDS[0], 2, how)
    for name in (IDS[0], IDS[-1]):
        with pytest.raises(TransactionEnded) as e:
            store.commit(name)
        assert not e.value.is_committed
    (problem,) = store.verify().problems
    assert "3 of its messages wait, the others were rolled back" in problem.message
    finishes(store, clock)
    assert (bodies(store), store.transactions().count) == ([], 0)
    if how == "give up" and finishes is grows_old:
        assert bodies(store, TRANSACTION_DISCARD_TOPIC) == BODIES
    assert store.verify().problems == []


@pytest.mark.parametrize("name", [IDS[0], IDS[-1]])
def test_a_set_that_waits_in_two_parts_is_not_committed_by_half(
    store: Store, clock: VirtualClock, name: str
) -> None:
    inside.end_part_of_set(store, IDS[0], 2, "ask")
    with pytest.raises(RecordDamaged):
        store.commit(name)
    assert (bodies(store), store.transactions().count) == ([], 5)
    store.rollback(name)
    grows_old(store, clock)
    assert (bodies(store), store.transactions().count) == ([], 0)


def test_a_deleted_topic_ends_the_half_sets_that_have_a_message_of_it(store: Store) -> None:
    inside.end_part_of_set(store, IDS[0], 2, "commit")
    store.delete_topic("t")
    assert store.transactions().count == 0
    assert store.verify().problems == []
