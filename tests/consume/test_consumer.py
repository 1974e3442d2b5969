"""Consumers in threads: every message is handled, acked or given back, whatever goes wrong."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

import kvstore
from kvstore import (
    CallerError,
    Consumer,
    GroupNotFound,
    Message,
    Popped,
    Store,
    StoreBusy,
    StoreClosed,
    TopicNotFound,
)
from kvstore.consume.consuming import Consuming
from kvstore.consume.hand import Hand
from kvstore.tracing import traced
from tests.consume.calls_only import CallsOnly
from tests.support.clock import VirtualClock
from tests.support.stores import settings
from tests.support.throwing import Thrower, some
from tests.support.waiting import PATIENCE, until

SHORT: Final = 1.5
"""Seconds of a lock that is renewed soon."""
STEPS: Final = 12
PLAIN: Final[dict[str, Any]] = {
    "concurrency": 4, "prefetch": 0, "invisible_for": 30.0, "retry_in": None, "time_limit": None,
    "filter": None, "queue": None, "count": None, "until_empty": False,
}  # fmt: skip

pytestmark = [pytest.mark.topic(queues=4), pytest.mark.group(max_attempts=3, backoff=[])]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Handlers wait for it; it is open in the end."""
    opened = threading.Event()
    yield opened
    opened.set()


def put(store: Store, count: int, topic: str = "t", **fields: Any) -> None:
    store.put_batch([Message(topic, b"%d" % n, **fields) for n in range(count)])


def ended(consumer: Consumer) -> None:
    """Waits for its end."""
    assert consumer.wait(PATIENCE), "it goes on"


def lag(store: Store, topic: str = "t") -> int:
    return sum(each.lag for each in store.lag("g", topic))


def letters(store: Store) -> list[tuple[bytes, str | None]]:
    found = store.pull("%DLQ%g", 0, 0, 32).messages
    return [(m.body, m.properties.get("DLQ_NACK_REASON")) for m in found]


def test_every_message_is_handled_once_and_acked_in_batches(store: Store) -> None:
    put(store, 500)
    seen: list[bytes] = []
    calls = CallsOnly(store)
    plan = Consuming(group="g", topics="t", **PLAIN | {"concurrency": 16, "until_empty": True})
    ended(Consumer(calls, plan, lambda popped: seen.append(popped.message.body)))
    assert sorted(seen) == sorted(b"%d" % n for n in range(500))
    assert lag(store) == 0
    assert calls.count["ack_batch"] < 250
    assert not calls.count["nack_batch"] + calls.count["undo_pop"]


def test_a_handler_that_raises_gives_its_message_back_with_the_reason(store: Store) -> None:
    put(store, 3)
    attempts = defaultdict[bytes, list[int]](list)

    def handle(popped: Popped) -> None:
        body = popped.message.body
        attempts[body].append(popped.attempt)
        if body == b"0" or (body == b"1" and popped.attempt < 3):
            raise ValueError(f"no {body.decode()} at attempt {popped.attempt}")

    with store.consume("g", "t", handle, until_empty=True) as consumer:
        ended(consumer)
    assert attempts == {b"0": [1, 2, 3], b"1": [1, 2, 3], b"2": [1]}
    assert letters(store) == [(b"0", "ValueError: no 0 at attempt 3")]
    stats = consumer.stats()
    assert (stats.taken, stats.handled, stats.failed, stats.lost) == (7, 2, 5, 0)


def test_a_failed_message_waits_for_the_backoff_or_as_it_is_asked(store: Store) -> None:
    store.alter_group("g", backoff=[3600.0])
    put(store, 1)

    def fail(popped: Popped) -> None:
        raise RuntimeError

    with store.consume("g", "t", fail, until_empty=True) as consumer:
        ended(consumer)
    assert (consumer.stats().failed, store.pop("g", "t")) == (1, [])
    store.reset_offset("g", "t", to="begin")
    with store.consume("g", "t", fail, retry_in=0.01, count=3) as consumer:
        ended(consumer)
    assert letters(store) == [(b"0", "RuntimeError")]


class Strange(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (MemoryError("x" * 10_000_000), "MemoryError: " + "x" * 499),
        (Strange(), "Strange: an exception without a text"),
    ],
)
def test_no_exception_of_a_handler_ends_its_thread(
    store: Store, error: BaseException, reason: str
) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 3)

    def fail(popped: Popped) -> None:
        raise error

    with store.consume("g", "t", fail, concurrency=1, until_empty=True) as consumer:
        ended(consumer)
    assert [why for _, why in letters(store)] == [reason] * 3


def test_locks_are_renewed_while_handlers_run_and_messages_wait(
    store: Store, gate: threading.Event
) -> None:
    put(store, 4)
    consumer = store.consume(
        "g", "t", lambda _: gate.wait(), concurrency=1, prefetch=3, invisible_for=SHORT
    )
    until(lambda: consumer.stats().renewed >= 12)
    assert store.pop("g", "t", 9) == []
    gate.set()
    until(lambda: consumer.stats().handled == 4)
    assert consumer.stop()
    assert consumer.stats().lost == 0


def test_the_result_of_a_handler_whose_lock_was_lost_changes_nothing(
    store: Store, gate: threading.Event
) -> None:
    lost: list[bool] = []

    def handle(popped: Popped) -> None:
        if popped.attempt == 1 and not lost:
            lost.append(consumer.has_lost(popped))
            gate.wait()
            until(lambda: consumer.has_lost(popped))
            lost.append(True)

    consumer = store.consume("g", "t", handle, concurrency=1, invisible_for=SHORT)
    put(store, 1)  # the handler asks the consumer
    until(lambda: lost)
    store.reset_offset("g", "t", to="begin")
    gate.set()
    until(lambda: consumer.stats().handled == 1)
    assert consumer.stop()
    assert lost == [False, True]
    assert consumer.stats().lost == consumer.stats().taken - 1


def test_a_stop_lets_handlers_end_and_gives_back_the_messages_that_wait(
    store: Store, gate: threading.Event
) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 6)
    consumer = store.consume("g", "t", lambda _: gate.wait(), concurrency=2, prefetch=4)
    until(lambda: consumer.stats().running == 2 and consumer.stats().waiting == 4)
    stopping = threading.Thread(target=consumer.stop)
    stopping.start()
    until(lambda: consumer.stats().undone == 4)
    assert consumer.stats().running == 2
    found = store.pop("g", "t", 9)
    assert [p.attempt for p in found] == [1] * 4, "the attempts did not count"
    gate.set()
    stopping.join(PATIENCE)
    assert consumer.is_over
    assert consumer.stats().handled == 2
    assert consumer.stop(), "once more does nothing"


def test_a_handler_that_hangs_holds_up_no_stop_and_its_message_comes_back(
    store: Store, gate: threading.Event
) -> None:
    put(store, 1)
    consumer = store.consume("g", "t", lambda _: gate.wait(), invisible_for=SHORT)
    until(lambda: consumer.stats().running)
    assert not consumer.stop(within=0.1)
    until(lambda: consumer.is_over)
    assert [p.attempt for p in store.pop("g", "t", wait=PATIENCE)] == [2]
    gate.set()


def test_a_handler_that_runs_too_long_is_given_up_and_another_takes_its_place(
    store: Store, gate: threading.Event
) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 8)
    seen: list[bytes] = []

    def handle(popped: Popped) -> None:
        if popped.message.body == b"3":
            gate.wait()
        seen.append(popped.message.body)

    with store.consume(
        "g", "t", handle, concurrency=1, time_limit=0.2, until_empty=True
    ) as consumer:
        ended(consumer)
    assert len(seen) == 7
    assert letters(store) == [(b"3", "the handler ran for more than 0.2 s")]
    stats = consumer.stats()
    assert (stats.handled, stats.failed, stats.timed_out) == (7, 1, 1)
    gate.set()
    until(lambda: len(seen) == 8)
    assert consumer.stats() == stats


def test_a_handler_that_begins_behind_the_last_look_is_given_up_in_time_as_well(
    store: Store,
) -> None:
    put(store, 1)
    clock = VirtualClock()
    hand = Hand(Consuming(group="g", topics="t", **PLAIN | {"time_limit": 1.0}), clock)
    popped = store.pop("g", "t", 1, 30.0)
    hand.take(popped)
    (held,) = hand.unqueued()
    looked_again_in = hand.next_in()
    assert looked_again_in == 1.0
    clock.advance(0.25)
    assert hand.begin(held)
    clock.advance(looked_again_in - 0.25)
    assert hand.overdue() == []
    looked_again_in = hand.next_in()
    assert looked_again_in == 0.25
    clock.advance(looked_again_in)
    assert hand.overdue() == [held]


def test_handlers_that_all_hang_are_replaced_up_to_a_limit(
    store: Store, gate: threading.Event
) -> None:
    store.alter_group("g", max_attempts=1)
    put(store, 20)
    consumer = store.consume("g", "t", lambda _: gate.wait(), concurrency=2, time_limit=0.05)
    until(lambda: consumer.stats().timed_out == 4)
    hanging = [t for t in threading.enumerate() if t.name == "kvmq-handler"]
    assert len(hanging) >= 4
    gate.set()
    until(lambda: consumer.stats().handled == 16)
    assert consumer.stop()


@pytest.mark.parametrize("topics", ["*", ["t", "u"], ["t", "u*"]])
def test_one_consumer_has_several_topics(store: Store, topics: str | list[str]) -> None:
    store.create_topic("u", queues=1)
    put(store, 20)
    put(store, 20, "u")
    seen: list[str] = []
    with store.consume(
        "g", topics, lambda p: seen.append(p.message.topic), concurrency=2, until_empty=True
    ) as consumer:
        ended(consumer)
    assert (seen.count("t"), seen.count("u")) == (20, 20)
    assert max(seen.index("t"), seen.index("u")) < 10


def test_a_consumer_of_a_pattern_takes_in_a_topic_that_is_made_later(store: Store) -> None:
    seen: list[str] = []
    with store.consume("g", "n*", lambda p: seen.append(p.message.topic)):
        store.create_topic("new", queues=1)
        store.put("new", b"")
        until(lambda: seen)


@given(
    fails=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    concurrency=st.sampled_from([1, 2, 8]),
    prefetch=st.sampled_from([0, 5]),
    groups=st.integers(1, 4),
)
@hypothesis_settings(max_examples=15)
def test_an_ordered_group_keeps_its_order_though_handlers_fail(
    tmp_path_factory: pytest.TempPathFactory,
    fails: list[int],
    concurrency: int,
    prefetch: int,
    groups: int,
) -> None:
    """Each message fails so many times before it is handled."""
    seen = defaultdict[str, list[int]](list)
    running = defaultdict[str, int](int)

    def handle(popped: Popped) -> None:
        group, number = popped.message.message_group, int(popped.message.body)
        assert group is not None
        running[group] += 1
        try:
            assert running[group] == 1, "two of a message group at a time"
            if popped.attempt <= fails[number]:
                raise ValueError(number)
            seen[group].append(number)
        finally:
            running[group] -= 1

    with kvstore.open(tmp_path_factory.mktemp("s") / "store", settings()) as store:
        store.create_topic("t", queues=2)
        store.create_group("g", ordered=True, backoff=[])
        store.put_batch(
            [Message("t", b"%d" % n, message_group=f"m{n % groups}") for n in range(len(fails))]
        )
        with store.consume(
            "g", "t", handle, concurrency=concurrency, prefetch=prefetch, until_empty=True
        ) as consumer:
            ended(consumer)
        assert lag(store) == 0
    assert seen == {
        f"m{m}": list(range(m, len(fails), groups)) for m in range(min(groups, len(fails)))
    }
    assert consumer.stats().failed == sum(fails)


def test_a_consumer_ends_after_so_many_messages(store: Store) -> None:
    put(store, 20)
    with store.consume("g", "t", lambda _: None, concurrency=3, prefetch=5, count=7) as consumer:
        ended(consumer)
    assert consumer.stats().handled == 7
    assert lag(store) == 13


def test_a_store_that_is_closed_ends_its_consumers(tmp_path: Path, gate: threading.Event) -> None:
    store = kvstore.open(tmp_path / "s", settings())
    store.create_topic("t")
    store.create_group("g")
    put(store, 3)
    busy = store.consume("g", "t", lambda _: gate.wait(), concurrency=1, prefetch=1)
    idle = store.consume("g", "t", lambda _: gate.wait(), concurrency=1)
    until(lambda: busy.stats().running + idle.stats().running == 2)
    store.close()
    gate.set()
    for consumer in (busy, idle):
        with pytest.raises(StoreClosed):
            consumer.wait(PATIENCE)
        assert consumer.is_over
        assert consumer.stop()
    with kvstore.open(tmp_path / "s", settings()) as again:
        assert lag(again) == 3


def test_a_topic_that_is_deleted_ends_its_consumer_when_handlers_have_ended(
    store: Store, gate: threading.Event
) -> None:
    store.create_topic("u", queues=1)
    put(store, 1)
    consumer = store.consume("g", ["t", "u"], lambda _: gate.wait())
    until(lambda: consumer.stats().running == 1)
    store.delete_topic("u")
    until(lambda: consumer.error is not None)
    assert not consumer.is_over
    gate.set()
    with pytest.raises(TopicNotFound):
        consumer.wait(PATIENCE)
    assert consumer.stats().handled == 1
    assert lag(store) == 0


def test_a_call_that_fails_is_made_again(store: Store) -> None:
    put(store, 20)

    def busy() -> list[BaseException]:
        return [StoreBusy("later"), MemoryError()]

    fails = {call: busy() for call in ("pop", "ack_batch", "nack_batch", "group_stats")}
    calls = CallsOnly(store, fails)
    plan = Consuming(group="g", topics="t", **PLAIN | {"until_empty": True})

    def handle(popped: Popped) -> None:
        if popped.message.body == b"3" and popped.attempt == 1:
            raise ValueError

    consumer = Consumer(calls, plan, handle)
    ended(consumer)
    assert not any(fails.values())
    assert (consumer.stats().handled, consumer.stats().failed) == (20, 1)
    assert {thread.name: thread.failures for thread in consumer.threads()} == {
        "kvmq-fetcher": 4, "kvmq-settler": 4,
    }  # fmt: skip


def _consume(folder: Path, thrower: Thrower) -> None:
    handled = defaultdict[bytes, int](int)
    config = settings()
    with kvstore.open(folder, config) as store:
        store.create_topic("t", queues=2)
        store.create_group("g", backoff=[])
        put(store, 40)

        def handle(popped: Popped) -> None:
            handled[popped.message.body] += 1
            if popped.attempt == 1 and popped.message.body.endswith(b"7"):
                raise ValueError

        with thrower.watching():
            consumer = store.consume(
                "g", "t", handle, concurrency=2, prefetch=2, invisible_for=SHORT
            )
        until(lambda: lag(store) == 0)
        assert consumer.stop(within=PATIENCE)
    assert set(handled) == {b"%d" % n for n in range(40)}


@pytest.mark.parametrize("thread", ["kvmq-fetcher", "kvmq-settler", "kvmq-handler"])
def test_whatever_strikes_a_thread_of_a_consumer_every_message_is_handled_and_it_stops(
    tmp_path: Path, thread: str
) -> None:
    watched = Thrower(thread)
    _consume(tmp_path / "watched", watched)
    thrown = 0
    for number, (step, error) in enumerate(some(watched.steps, STEPS)):
        thrower = Thrower(thread, step, error)
        _consume(tmp_path / str(number), thrower)
        thrown += thrower.has_thrown.is_set()
    assert thrown >= STEPS // 2


def test_no_more_is_popped_while_many_outcomes_are_not_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.consume.hand._UNSETTLED_MAX", 1)
    put(store, 50)
    with store.consume("g", "t", lambda _: None, until_empty=True) as consumer:
        ended(consumer)
    assert consumer.stats().handled == 50


def test_a_namespace_consumes_its_own_topics(store: Store) -> None:
    view = store.namespace("ns")
    view.create_topic("t")
    view.create_group("g", max_attempts=1)
    put(store, 2)
    view.put_batch([Message("t", b"own")] * 3)
    seen: list[tuple[str, bytes]] = []

    def handle(popped: Popped) -> None:
        seen.append((popped.message.topic, popped.message.body))
        raise ValueError("no")

    with view.consume("g", "*", handle, until_empty=True) as consumer:
        ended(consumer)
    assert seen == [("t", b"own")] * 3
    found = view.pull("%DLQ%g", 0, 0, 9).messages
    assert [m.properties["DLQ_NACK_REASON"] for m in found] == ["ValueError: no"] * 3


def test_a_consumer_says_what_it_is(store: Store) -> None:
    with store.consume("g", "t", lambda _: None) as consumer:
        assert repr(consumer) == "<kvstore.Consumer of 't' for 'g', running>"
        assert not consumer.wait(0.01)
    assert repr(consumer) == "<kvstore.Consumer of 't' for 'g', ended>"


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"group": "nobody"}, GroupNotFound),
        ({"topics": "nowhere"}, TopicNotFound),
        ({"topics": ["t", "nowhere"]}, TopicNotFound),
        ({"topics": 7}, CallerError),
        ({"topics": b"t"}, CallerError),
        ({"handler": None}, CallerError),
        ({"concurrency": 0}, CallerError),
        ({"concurrency": True}, CallerError),
        ({"concurrency": 10**6}, CallerError),
        ({"prefetch": -1}, CallerError),
        ({"count": 0}, CallerError),
        ({"invisible_for": 0.01}, CallerError),
        ({"invisible_for": float("nan")}, CallerError),
        ({"retry_in": -1}, CallerError),
        ({"time_limit": 0}, CallerError),
        ({"until_empty": 1}, CallerError),
    ],
)
def test_settings_that_can_not_be_are_refused_before_anything_is_popped(
    store: Store, asked: dict[str, Any], error: type[Exception]
) -> None:
    put(store, 1)
    wanted: dict[str, Any] = {"group": "g", "topics": "t", "handler": print} | asked
    with pytest.raises(error):
        store.consume(**wanted)
    assert store.group_stats("g", "t")[0].taken == 0


@pytest.mark.parametrize("within", [-1, float("nan"), "1"])
def test_a_time_to_stop_that_is_none_is_refused(store: Store, within: Any) -> None:
    with store.consume("g", "t", print) as consumer, pytest.raises(CallerError):
        consumer.stop(within)


@pytest.mark.parametrize(
    "asked", [{"filter": "a >"}, {"queue": 7}], ids=lambda asked: next(iter(asked))
)
def test_settings_that_a_pop_refuses_end_the_consumer(store: Store, asked: dict[str, Any]) -> None:
    consumer: Consumer = store.consume("g", "t", print, **asked)
    with pytest.raises(kvstore.StoreError):
        consumer.wait(PATIENCE)


def test_several_consumers_share_the_messages(store: Store) -> None:
    seen: list[bytes] = []
    many = [
        store.consume("g", "t", lambda p: seen.append(p.message.body), concurrency=2)
        for _ in range(4)
    ]
    put(store, 400)
    until(lambda: len(seen) >= 400)
    for consumer in many:
        assert consumer.stop()
    assert sorted(seen) == sorted(b"%d" % n for n in range(400))
    assert lag(store) == 0


async def _handled_async(popped: Popped) -> None:
    raise AssertionError("it was awaited")


class AsyncCallable:
    """A handler whose call is async."""

    async def __call__(self, popped: Popped) -> None:
        raise AssertionError("it was awaited")


@pytest.mark.parametrize(
    "handler",
    [_handled_async, partial(_handled_async), AsyncCallable()],
    ids=["function", "partial", "object"],
)
def test_an_async_handler_is_refused_before_anything_is_popped(store: Store, handler: Any) -> None:
    put(store, 1)
    with pytest.raises(CallerError, match="async"):
        store.consume("g", "t", handler)
    assert store.group_stats("g", "t")[0].taken == 0


@pytest.mark.parametrize("traces", [False, True])
def test_a_handler_that_turns_out_to_be_async_ends_the_consumer_and_no_message_is_acked(
    store: Store, *, traces: bool
) -> None:
    put(store, 3)
    view = traced(store, TracerProvider()) if traces else store
    consumer = view.consume("g", "t", lambda popped: _handled_async(popped), concurrency=1)
    with pytest.raises(CallerError, match="async"):
        consumer.wait(PATIENCE)
    assert consumer.stats().handled == 0
    assert lag(store) == 3
    assert sorted(p.message.body for p in store.pop("g", "t", 9)) == [b"0", b"1", b"2"]


def test_a_handler_stops_its_own_consumer_and_the_others_end(
    store: Store, gate: threading.Event
) -> None:
    put(store, 4)
    answers: list[bool] = []

    def handle(popped: Popped) -> None:
        if popped.message.body == b"0":
            until(lambda: made and made[0].stats().running == 2)
            answers.append(made[0].stop(within=None))
        gate.wait()

    made: list[Consumer] = []
    made.append(consumer := store.consume("g", "t", handle, concurrency=2))
    until(lambda: answers and consumer.stats().running == 2)
    assert answers == [False]
    assert not consumer.is_over
    gate.set()
    ended(consumer)
    assert (consumer.stats().handled, lag(store)) == (2, 2)
    assert consumer.stop()
