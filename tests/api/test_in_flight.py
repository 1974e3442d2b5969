"""Messages in flight: what a group was handed and is not done with, a page at a time."""

from __future__ import annotations

from typing import Any

import pytest

import kvstore
from kvstore import (
    CallerError,
    GroupNotFound,
    Message,
    Retention,
    Store,
    StoreConfig,
    TopicNotFound,
)
from tests.support.clock import VirtualClock
from tests.support.stores import SMALL, Opens

SECONDS = 1000


@pytest.fixture
def store(opens: Opens, clock: VirtualClock) -> Store:
    store = opens(StoreConfig(segment_size=SMALL.segment_size, clock=clock))
    for name in ("orders", "mails"):
        store.create_topic(name, queues=2)
    store.create_group("billing", backoff=[0.0])
    return store


def all_pages(store: Any, limit: int, **given: Any) -> list[Any]:
    found, after = [], None
    while True:
        page = store.in_flight("billing", limit=limit, after=after, **given)
        assert len(page.messages) <= limit
        found += page.messages
        if page.next is None:
            return found
        after = page.next


def places(messages: list[Any]) -> list[tuple[str, int, int]]:
    return [(m.topic, m.queue, m.offset) for m in messages]


def test_each_message_has_its_place_its_attempt_and_when_it_is_due(
    store: Store, clock: VirtualClock
) -> None:
    put = store.put("orders", b"shoes", queue=1, keys=["o-1"])
    (first,) = store.pop("billing", "orders")
    store.nack(first.receipt, delay=0.0, reason="the bank is closed")
    clock.advance(1)
    (second,) = store.pop("billing", "orders", invisible_for=30)

    page = store.in_flight("billing")
    (found,) = page.messages
    assert (found.group, found.topic, found.queue, found.offset) == ("billing", "orders", 1, 0)
    assert (found.attempt, found.due_at) == (second.attempt, second.due_at) == (2, found.due_at)
    assert found.reason == "the bank is closed"
    assert found.message_id == put.message_id
    assert found.message is not None
    assert (found.message.body, found.message.keys) == (b"shoes", ["o-1"])
    assert (page.count, page.next) == (1, None)


def test_the_next_due_comes_first_and_what_is_done_is_gone(
    store: Store, clock: VirtualClock
) -> None:
    store.put_batch([Message("orders", b"%d" % n, queue=0) for n in range(4)])
    for seconds in (40, 20, 30, 10):
        store.pop("billing", "orders", invisible_for=seconds)
    assert [m.offset for m in store.in_flight("billing").messages] == [3, 1, 2, 0]
    clock.advance(15)
    late = store.in_flight("billing").messages[0]
    assert (late.offset, late.due_at < clock.now_ms()) == (3, True)
    (again,) = store.pop("billing", "orders", invisible_for=100)
    store.ack(again.receipt)
    assert [m.offset for m in store.in_flight("billing").messages] == [1, 2, 0]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_have_each_message_once(store: Store, limit: int) -> None:
    store.put_batch([Message("orders", b"", queue=n % 2) for n in range(12)])
    store.put_batch([Message("mails", b"", queue=0) for n in range(5)])
    popped = store.pop("billing", "orders", limit=8, invisible_for=50)
    store.ack_batch([p.receipt for p in popped[1:6:2]])
    store.pop("billing", "orders", limit=4, invisible_for=20)
    store.pop("billing", "mails", limit=5)

    whole = store.in_flight("billing", limit=10_000)
    assert whole.count == len(whole.messages) == 14
    assert places(all_pages(store, limit)) == places(whole.messages)
    assert len(set(places(whole.messages))) == 14
    orders = all_pages(store, limit, topic="orders")
    assert [m.topic for m in orders] == ["orders"] * 9
    assert store.in_flight("billing", "mails").count == 5


def test_a_page_goes_on_where_the_last_one_ended_though_messages_were_acked(store: Store) -> None:
    store.put_batch([Message("orders", b"", queue=0) for n in range(6)])
    popped = store.pop("billing", "orders", limit=6)
    first = store.in_flight("billing", limit=2)
    store.ack_batch([p.receipt for p in popped[:4]])
    rest = store.in_flight("billing", limit=2, after=first.next)
    assert [m.offset for m in rest.messages] == [4, 5]
    store.ack_batch([p.receipt for p in popped])
    assert store.in_flight("billing", after=first.next).messages == []


def test_another_groups_messages_are_not_in_the_list(store: Store) -> None:
    store.create_group("audit")
    store.put("orders", b"")
    store.pop("audit", "orders")
    assert store.in_flight("billing").count == 0
    assert store.in_flight("billing", "orders").messages == []


def test_a_store_that_is_open_read_only_has_the_same_list(
    store: Store, opens: Opens, clock: VirtualClock
) -> None:
    store.put_batch([Message("orders", b"%d" % n) for n in range(5)])
    store.pop("billing", "orders", limit=3)
    before = places(store.in_flight("billing").messages)
    store.close()
    looking = opens(StoreConfig(segment_size=SMALL.segment_size, clock=clock), read_only=True)
    assert places(all_pages(looking, 2)) == before


def test_messages_that_retention_deleted_are_not_in_the_list(
    opens: Opens, clock: VirtualClock
) -> None:
    config = StoreConfig(
        segment_size=SMALL.segment_size, clock=clock, retention=Retention(hot_for=60.0)
    )
    store = opens(config, name="short")
    store.create_topic("orders", queues=1)
    store.create_group("billing")
    for _ in range(100):
        store.put("orders", bytes(2000))
        clock.advance(1)
    store.pop("billing", "orders", limit=100, invisible_for=3600)
    store.seal()
    store.apply_retention()
    low = store.bounds("orders", 0).min_offset
    page = store.in_flight("billing", limit=1000)
    assert 0 < low < 100
    assert [m.offset for m in page.messages] == list(range(low, 100))
    assert page.count == store.group_stats("billing", "orders")[0].in_flight == 100 - low


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0}, {"limit": 10_001}, {"limit": "x"}, {"limit": True}, {"after": 7},
        {"after": ()}, {"after": (1, 2, 3, 4)}, {"after": (1, 2, 3, 4, "x")},
        {"after": (-1, 0, 0, 0, 0)},
        {"after": (1 << 32, 0, 0, 0, 0)}, {"after": (0, (1 << 64) - 1, 0, 0, 0)},
        {"after": (0, 0, 0, 1 << 64, 0)}, {"after": (0, 0, 0, 0, True)},
    ],
)  # fmt: skip
def test_a_wrong_page_is_refused(store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        store.in_flight("billing", **wrong)


def test_an_unknown_group_or_topic_is_refused(store: Store) -> None:
    with pytest.raises(GroupNotFound):
        store.in_flight("nobody")
    with pytest.raises(TopicNotFound):
        store.in_flight("billing", "nowhere")


def test_a_namespace_lists_its_own(store: Store) -> None:
    store.create_namespace("tenant", [kvstore.TopicConfig(name="orders")])
    view = store.namespace("tenant")
    view.create_group("billing")
    view.put("orders", b"")
    view.pop("billing", "orders")
    store.put("orders", b"")
    store.pop("tenant%billing", "orders")
    (found,) = view.in_flight("billing").messages
    assert (found.group, found.topic) == ("billing", "orders")
    assert found.message is not None
    assert found.message.topic == "orders"
    assert store.in_flight("tenant%billing").count == 2
