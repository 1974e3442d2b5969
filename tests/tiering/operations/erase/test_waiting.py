"""Messages that wait are erased as others are: they are not delivered, and no file has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import kvstore
from kvstore import DelayEnded, Message, MessageNotFound, PutResult, Store, TransactionEnded
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import read_all
from tests.tiering.stores import config
from tiering import Policy, Worker

TOPICS: Final = ("orders", "events")
POLICY = Policy(hot_for=60.0, warm="archive", clock_doubt=0.0)
ERASED: Final = (b"plain secret", b"delayed secret", b"prepared secret", b"secret of a set")
KEPT: Final = {b"plain of another", b"delayed of another", b"prepared of another"}
ASKED: Final[dict[str, dict[str, Any]]] = {
    "topic": {"topic": "orders"},
    "key": {"key": "u1"},
    "key of a topic": {"key": "u1", "topic": "orders"},
    "time": {},
}


class Waiting(NamedTuple):
    """The results of messages that wait: a delayed one, a prepared one, and one of a set."""

    delayed: PutResult
    prepared: PutResult
    of_set: PutResult


@pytest.fixture
def store(empty: Store) -> Store:
    for topic in TOPICS:
        empty.create_topic(topic, queues=1)
    return empty


def put_waiting(store: Store) -> Waiting:
    u1: dict[str, Any] = {"keys": ["u1"]}
    store.put("orders", b"plain secret", **u1)
    delayed = store.put("orders", b"delayed secret", delay=5000, **u1)
    prepared = store.prepare("orders", b"prepared secret", group="g", immunity=5000.0, **u1)
    block = store.transaction(group="g")
    block.put("events", b"first of the set")
    block.put("orders", b"secret of a set", **u1)
    return Waiting(delayed, prepared, block.prepare()[0])


def put_others(store: Store) -> list[PutResult]:
    store.put("events", b"plain of another", keys=["u2"])
    store.put("events", b"delayed of another", delay=5000, keys=["u2"])
    return [store.prepare("events", b"prepared of another", group="g", immunity=5000.0)]


def archive(store: Store, clock: VirtualClock, worker: Worker) -> None:
    """Hands all segments over: messages that wait are put to the log's end."""
    store.seal()
    clock.advance(120)
    assert worker.run_once().failed == {}


def files_with(path: Path, what: bytes) -> list[Path]:
    return [p for p in path.rglob("*") if p.is_file() and what in p.read_bytes()]


def assert_ended(store: Store, waiting: Waiting) -> None:
    assert store.timers("orders").count == 0
    with pytest.raises(DelayEnded, match="it was erased"):
        store.timer(waiting.delayed.message_id)
    assert store.cancel(waiting.delayed.message_id)
    for result in (waiting.prepared, waiting.of_set):
        with pytest.raises(TransactionEnded, match="rolled back"):
            store.commit(result)
        store.rollback(result)


def bodies(store: Store) -> set[bytes]:
    return {m.body for (topic, _), some in read_all(store).items() if topic in TOPICS for m in some}


@pytest.mark.parametrize("moves", [0, 1, 2])
@pytest.mark.parametrize("name", ASKED)
def test_messages_that_wait_are_erased_and_never_delivered(
    store: Store, clock: VirtualClock, name: str, moves: int
) -> None:
    path = store.path
    with Worker(store, POLICY) as worker:
        waiting = put_waiting(store)
        clock.advance(1)
        asked = ASKED[name] or {"before": clock.now_ms()}
        others = put_others(store)
        for _ in range(moves):
            archive(store, clock, worker)
        report = worker.erase(**asked)
        assert report.is_proven, report.failed
        # The delayed one, the prepared one, and both of the set.
        assert report.ended == 4
        assert report.schedules == []
        assert worker.erasure_plan(key="u1").messages == 0, "nor in archives"
    assert_ended(store, waiting)
    assert (store.timers().count, store.transactions().count) == (1, 1)
    assert [str(p) for what in ERASED for p in files_with(path, what)] == []
    assert store.verify(archives=True).problems == []
    for again in range(2):
        store.close()
        if again:
            kvstore.rebuild(path, config(clock))
        store = kvstore.open(path, config(clock))
        assert_ended(store, waiting)
        assert (store.timers().count, store.transactions().count) == (1, 1)
    with store:
        store.commit_batch(others)
        clock.advance(6000)
        inside.deliver_due(store)
        assert bodies(store) - {b"first of the set"} == KEPT
    assert [str(p) for what in ERASED for p in files_with(path, what)] == []


def test_many_messages_that_wait_are_erased_and_all_others_go_on_waiting(
    store: Store, clock: VirtualClock
) -> None:
    count = 5000
    store.put_batch(
        [
            Message("orders" if n % 3 else "events", b"%d " % n * 20, delay=3600.0 + n % 50)
            for n in range(count)
        ]
    )
    store.checkpoint()
    store.prepare_batch([Message("orders", b"x")] * 3000, group="g")
    with Worker(store, POLICY) as worker:
        report = worker.erase(topic="orders")
        assert report.is_proven
    kept = -(-count // 3)
    assert report.ended == count - kept + 3000
    assert (store.timers().count, store.timers("events").count) == (kept, kept)
    assert store.transactions().count == 0
    clock.advance(4000)
    inside.deliver_due(store)
    found = read_all(store)
    assert [len(found.get((topic, 0), ())) for topic in TOPICS] == [0, kept]


def test_a_schedule_goes_on_and_the_report_names_it(store: Store, clock: VirtualClock) -> None:
    store.schedule("nightly", "orders", b"of the schedule", every=3600, keys=["u1"])
    store.put("orders", b"delayed secret", delay=5000, keys=["u1"])
    with Worker(store, POLICY) as worker:
        report = worker.erase(key="u1")
        assert report.is_proven
        assert (report.ended, report.schedules) == (1, ["nightly"])
    assert [m.message.body for m in store.timers().messages] == [b"of the schedule"]
    clock.advance(3600)
    inside.deliver_due(store)
    assert [m.body for m in read_all(store)["orders", 0]] == [b"of the schedule"]
    assert store.timers("orders").count == 1


def test_the_note_of_an_erased_message_goes_with_an_erasure_of_its_id(store: Store) -> None:
    put = store.put("orders", b"delayed secret", delay=5000, message_id="an-id-of-its-own")
    with Worker(store, POLICY) as worker:
        assert worker.erase(topic="orders").ended == 1
        with pytest.raises(DelayEnded, match="it was erased"):
            store.timer(put.message_id)
        report = worker.erase(key=put.message_id)
        assert report.is_proven
        assert (report.messages, report.ended) == (1, 0)
    with pytest.raises(MessageNotFound):
        store.timer(put.message_id)
