"""The plan of an erasure says of messages that wait what the erasure then does: how many waits end,
with those of sets, and which of their notes it is about as well.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from kvstore import Message, PutResult, Store
from tests.support.clock import VirtualClock
from tests.support.stores import flip
from tests.tiering.stores import SEGMENT
from tiering import ErasurePlan, ErasureReport, Policy, Worker

POLICY: Final = Policy(hot_for=60.0, warm="archive", clock_doubt=0.0)
MANY: Final = 2500
"""Messages that wait, more than are looked at at once."""


@pytest.fixture
def store(empty: Store) -> Store:
    for topic in ("orders", "events"):
        empty.create_topic(topic, queues=1)
    return empty


def plan_and_do(store: Store, **asked: Any) -> tuple[ErasurePlan, ErasureReport]:
    """The plan, and the report of the erasure; they say the same."""
    with Worker(store, POLICY) as worker:
        end = store.stats().end_position
        plan = worker.erasure_plan(**asked)
        assert worker.erasure_plan(**asked) == plan
        assert (store.stats().end_position, plan.failed) == (end, {})
        report = worker.erase(**asked)
        assert report.is_proven, report.failed
    assert (plan.messages, plan.ended) == (report.messages, report.ended)
    assert (plan.segments, plan.schedules) == (report.segments, report.schedules)
    assert plan.segment_bytes == SEGMENT * len(report.segments)
    assert plan.archives == report.rewritten
    return plan, report


def put_set(store: Store, topics: list[str], **fields: Any) -> list[PutResult]:
    block = store.transaction(group="g")
    for topic in topics:
        block.put(topic, b"of a set", **fields)
    return block.prepare()


def put_all(store: Store) -> dict[str, str]:
    """Messages in every state; the ids of some."""
    store.put("orders", b"plain", keys=["u1"])
    delayed = store.put("orders", b"delayed", delay=5000, keys=["u1"])
    prepared = store.prepare("orders", b"prepared", group="g", immunity=5000.0, keys=["u1"])
    store.put("events", b"of another", delay=5000)
    in_front = put_set(store, ["orders", "events", "events"])
    behind = put_set(store, ["events", "orders", "orders"], keys=["u1"])
    put_set(store, ["events", "events"])
    store.schedule("nightly", "orders", b"of the schedule", every=3600, keys=["u1"])
    return {
        "delayed": delayed.message_id,
        "prepared": prepared.message_id,
        "first of a set": in_front[0].message_id,
        "last of a set": behind[2].message_id,
    }


@pytest.mark.parametrize("moves", [0, 1])
@pytest.mark.parametrize(
    ("asked", "messages", "ended"),
    [
        # The plain one, the delayed, the prepared, the schedule's, three of sets; of waits those of
        # the sets' others too.
        ({"topic": "orders"}, 7, 8),
        ({"key": "u1"}, 7, 5),
        ({"key": "u1", "topic": "events"}, 1, 3),
        ({"before": 1 << 41}, 13, 11),
        ({"key": "delayed"}, 2, 1),
        ({"key": "prepared"}, 2, 1),
        ({"key": "prepared", "topic": "orders"}, 2, 1),
        ({"key": "prepared", "topic": "events"}, 0, 0),
        ({"key": "prepared", "before": 1 << 41}, 2, 1),
        ({"key": "prepared", "before": 1}, 0, 0),
        ({"key": "first of a set"}, 2, 3),
        ({"key": "last of a set"}, 2, 3),
        ({"key": "nobody"}, 0, 0),
    ],
    ids=str,
)
def test_a_plan_counts_waits_sets_and_notes_as_the_erasure_does(
    store: Store,
    clock: VirtualClock,
    asked: dict[str, Any],
    messages: int,
    ended: int,
    moves: int,
) -> None:
    ids = put_all(store)
    for _ in range(moves):
        store.seal()
        clock.advance(120)
        with Worker(store, POLICY) as worker:
            assert worker.run_once().failed == {}
    key = asked.get("key")
    if key in ids:
        asked = asked | {"key": ids[key]}
    plan, _ = plan_and_do(store, **asked)
    assert plan.ended == ended
    assert plan.messages == messages or moves, "a message that was moved is there twice"


@pytest.mark.parametrize("first", ["orders", "events"])
def test_a_set_is_counted_once_however_far_its_messages_are_apart(store: Store, first: str) -> None:
    """The first message of a set comes before all messages behind the first of others."""
    sets = [put_set(store, [first, "orders", "orders"]) for _ in range(2)]
    store.prepare_batch([Message("orders", b"x")] * MANY, group="g")
    sets += [put_set(store, [first, "orders", "events"]) for _ in range(MANY // 6)]
    store.put_batch([Message("orders", b"x", delay=3600)] * MANY)
    plan, _ = plan_and_do(store, topic="orders")
    assert plan.ended == 2 * MANY + 3 * len(sets)


@pytest.mark.parametrize("rest", [0, 100, 250, 300, 2000])
@pytest.mark.parametrize("is_delayed", [True, False], ids=["delayed", "prepared"])
def test_the_segment_that_a_note_will_stand_in_is_planned(
    store: Store, rest: int, *, is_delayed: bool
) -> None:
    """Also if it has nothing else that matches, or is not there yet."""
    if is_delayed:
        put = store.put("orders", b"delayed", delay=5000)
    else:
        put = store.prepare("orders", b"prepared", group="g")
    store.seal()
    store.put("events", b"x")
    while (left := SEGMENT - store.stats().end_position % SEGMENT) > rest + 300:
        store.put("events", b"x" * min(left - rest - 200, 10_000))
    number = store.stats().end_position // SEGMENT
    plan, _ = plan_and_do(store, key=put.message_id)
    assert (plan.messages, plan.ended) == (2, 1)
    assert plan.segments == [0, number + (rest < 250)]


def test_a_plan_after_an_erasure_misses_no_file(store: Store) -> None:
    """The last segment before the active one left the log, and an older one is there."""
    store.put("events", b"x")
    store.seal()
    store.put("orders", b"x")
    plan_and_do(store, topic="orders")
    plan, _ = plan_and_do(store, topic="events")
    assert plan.messages == 1


@pytest.mark.parametrize("at", [0, 1])
def test_a_set_with_a_damaged_message_is_counted_as_it_ends(store: Store, at: int) -> None:
    results = put_set(store, ["orders", "events", "orders"])
    store.checkpoint()
    flip(store.path, results[at].position + 88)
    with Worker(store, POLICY) as worker:
        plan = worker.erasure_plan(topic="orders")
        report = worker.erase(topic="orders")
    assert plan.ended == report.ended == 3
