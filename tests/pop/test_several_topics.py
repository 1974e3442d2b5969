"""One pop of several topics: names and patterns, in turns, with one wait for all."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvstore
import kvstore.aio
from kvstore import CallerError, Message, Popped, QueueNotFound, Store, TopicNotFound
from kvstore.pop import several
from kvstore.pop.several import matcher
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import settings
from tests.support.waiting import until

TOPICS = ("a", "b", "c")
LONG = 20.0

pytestmark = [pytest.mark.group(backoff=[])]


@pytest.fixture
def abc(store: Store) -> Store:
    """A store with topics a, b and c, and the group g."""
    for name in TOPICS:
        store.create_topic(name, queues=2)
    return store


def fill(store: Store, **counts: int) -> None:
    for topic, count in counts.items():
        store.put_batch([Message(topic, b"%d" % n, n % 2) for n in range(count)])


def topics_of(popped: Sequence[Popped]) -> list[str]:
    return [p.message.topic for p in popped]


def waits(store: Store, topic: str) -> bool:
    """Whether a pop of the group waits at a topic."""
    table = inside.tables(store).find(store.group("g").id, store.topic(topic).id)
    return table is not None and bool(table.waiters)


def test_a_pop_takes_from_as_many_topics_as_it_needs(abc: Store) -> None:
    fill(abc, a=3, b=2, c=4)
    found = abc.pop("g", ["a", "b", "c"], 32)
    assert Counter(topics_of(found)) == {"a": 3, "b": 2, "c": 4}
    assert abc.ack_batch([p.receipt for p in found]) == [True] * 9
    assert abc.pop("g", ["a", "b", "c"], 32) == []
    assert [abc.lag("g", topic)[0].lag for topic in TOPICS] == [0, 0, 0]


def test_no_topic_starves_beside_others_that_always_have_enough(abc: Store) -> None:
    fill(abc, a=50, b=50, c=50)
    found = [topics_of(abc.pop("g", ["c", "a", "b"], 2))[0] for _ in range(9)]
    assert found == ["a", "b", "c"] * 3


def test_a_topic_without_messages_costs_no_turn(abc: Store) -> None:
    fill(abc, a=50, c=50)
    assert [topics_of(abc.pop("g", "[a-c]", 1))[0] for _ in range(6)] == ["a", "c"] * 3


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=60),
    st.lists(st.sampled_from([1, 2, 5, 32]), min_size=1, max_size=20),
    st.sampled_from([["a", "b", "c", "d"], ["[ab]", "c", "d"], "?", ["d", "*", "a"]]),
)
def test_every_message_comes_once_and_no_topic_waits_longer_than_the_others_have_turns(
    tmp_path_factory: pytest.TempPathFactory,
    puts: list[str],
    limits: list[int],
    asked: list[str] | str,
) -> None:
    with kvstore.open(tmp_path_factory.mktemp("s") / "store", settings()) as store:
        for name in "abcd":
            store.create_topic(name, queues=1)
        store.create_group("g")
        store.put_batch([Message(topic, b"%d" % n) for n, topic in enumerate(puts)])
        left, turns = Counter(puts), Counter[str]()
        found: list[Popped] = []
        while left.total():
            limit = limits[len(turns) % len(limits)]
            popped = store.pop("g", asked, limit)
            assert len(popped) == min(limit, left.total()), "room is filled from other topics"
            found += popped
            waiting = [topic for topic in left if left[topic]]
            left -= Counter(topics_of(popped))
            for topic in waiting:
                turns[topic] = 0 if topic in topics_of(popped) else turns[topic] + 1
            assert max(turns.values()) < 4, "a topic starved"
        assert sorted(p.message.body for p in found) == sorted(b"%d" % n for n in range(len(puts)))


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("orders-*", ["orders-", "orders-eu", "orders-a-b"], ["orders", "my-orders-x"]),
        ("*", ["a", "orders-eu"], ["%DLQ%g", "ns%orders", "%DLQ%ns%g", "ns%a"]),
        ("?", ["a"], ["ab", "%", "n%a"]),
        ("[!a]*", ["b", "bc"], ["a", "ab", "%a", "%DLQ%g"]),
        ("%DLQ%*", ["%DLQ%g"], ["g", "%DLQ%ns%g", "%RETRY%g"]),
        ("ns%*", ["ns%a", "ns%"], ["a", "other%a", "%DLQ%ns%a"]),
        ("n*%orders", ["ns%orders", "n%orders"], ["orders", "other%orders"]),
        ("a[", [], ["a"]),
    ],
)
def test_a_pattern_stands_for_names_of_its_own_namespace(
    pattern: str, names: list[str], others: list[str]
) -> None:
    matches = matcher(pattern)
    assert [name for name in names + others if matches(name)] == names


def test_a_pattern_takes_in_no_topic_of_the_store_itself(abc: Store, clock: VirtualClock) -> None:
    abc.create_group("dies", max_attempts=1)
    fill(abc, a=1)
    abc.put("b", b"later", delay=3600.0)
    (popped,) = abc.pop("dies", "*", 9)
    abc.nack(popped.receipt)
    assert {t.name for t in abc.topics()} > {"rmq_sys_wheel_timer", "%DLQ%dies"}
    assert topics_of(abc.pop("g", "*", 9)) == ["a"]
    assert topics_of(abc.pop("g", "%DLQ%*", 9)) == ["%DLQ%dies"]


def test_a_topic_that_is_made_or_deleted_while_a_pop_waits(abc: Store) -> None:
    found: list[Popped] = []
    waiter = threading.Thread(target=lambda: found.extend(abc.pop("g", ["n*", "a"], 9, wait=LONG)))
    waiter.start()
    until(lambda: waits(abc, "a"))
    abc.create_topic("new", queues=1)
    until(lambda: waits(abc, "new"))
    abc.delete_topic("new")
    abc.create_topic("next", queues=1)
    abc.put("next", b"x")
    waiter.join(LONG)
    assert topics_of(found) == ["next"]
    assert not waits(abc, "a")


@pytest.mark.parametrize("topic", TOPICS)
def test_a_message_of_any_topic_ends_the_wait(abc: Store, topic: str) -> None:
    found: list[Popped] = []
    waiter = threading.Thread(target=lambda: found.extend(abc.pop("g", TOPICS, 9, wait=LONG)))
    waiter.start()
    until(lambda: waits(abc, topic))
    abc.put(topic, b"x")
    waiter.join(LONG)
    assert topics_of(found) == [topic]
    assert not any(waits(abc, name) for name in TOPICS)


def test_a_lock_that_runs_out_in_any_topic_ends_the_wait(tmp_path: Path) -> None:
    async def wait() -> list[Popped]:
        async with kvstore.aio.open(tmp_path / "s", settings()) as store:
            for name in TOPICS:
                await store.create_topic(name, queues=1)
            await store.create_group("g", backoff=[])
            for name in ("b", "c"):
                await store.put(name, b"")
                await store.pop("g", name, 1, 0.3 if name == "b" else 3600.0)
            return await store.pop("g", "[a-c]", 9, wait=LONG)

    assert topics_of(asyncio.run(wait())) == ["b"]


def test_waiting_threads_share_the_messages_of_all_topics(abc: Store) -> None:
    got: list[Popped] = []

    def work() -> None:
        while popped := abc.pop("g", "*", 2, wait=LONG):
            got.extend(popped)
            abc.ack_batch([p.receipt for p in popped])
            if any(p.message.body == b"end" for p in popped):
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    fill(abc, a=40, b=40, c=40)
    until(lambda: len(got) == 120)
    for n in range(4):
        abc.put(TOPICS[n % 3], b"end")
        until(lambda count=121 + n: len(got) == count)
    for thread in threads:
        thread.join(LONG)
    assert len({(p.message.topic, p.message.queue, p.message.offset) for p in got}) == 124


def test_an_attempt_that_is_repeated_gets_the_same_messages_of_all_topics(abc: Store) -> None:
    fill(abc, a=2, b=2, c=9)
    first = abc.pop("g", "*", 6, attempt_id="i")
    again = abc.pop("g", "*", 6, attempt_id="i")
    assert sorted(p.receipt for p in again) == sorted(p.receipt for p in first)
    assert len(abc.pop("g", "*", 20)) == 7


def test_bytes_filters_and_caps_hold_over_all_topics(abc: Store) -> None:
    for topic in TOPICS:
        abc.put_batch([Message(topic, b"x" * 500, 0, tag) for tag in "yzz"])
    found = abc.pop("g", "*", 9, max_bytes=1400)
    assert sum(p.message.size for p in found) <= 1400
    assert len(found) == 2
    abc.create_group("h", max_in_flight=2)
    assert [p.message.tag for p in abc.pop("h", "*", 9, filter="y")] == ["y", "y"]
    assert abc.pop("h", "*", 9) == []


def test_one_topic_that_is_not_there_is_an_error_and_nothing_is_taken(abc: Store) -> None:
    fill(abc, a=1)
    with pytest.raises(TopicNotFound, match="nowhere"):
        abc.pop("g", ["a", "nowhere"])
    assert topics_of(abc.pop("g", ["a", "nowhere*"])) == ["a"]


def test_a_namespace_pops_its_own_topics(abc: Store) -> None:
    fill(abc, a=1)
    view = abc.namespace("ns")
    view.create_group("g")
    for name in ("a", "b"):
        view.create_topic(name)
        view.put(name, b"own")
    assert topics_of(view.pop("g", "*", 9)) == ["a", "b"]
    view.put("b", b"own")
    assert topics_of(view.pop("g", ["a", "b"], 9)) == ["b"]
    assert topics_of(abc.pop("g", "*", 9)) == ["a"]


@pytest.mark.parametrize(
    ("topic", "error"),
    [([], CallerError), ([1], CallerError), (None, CallerError), (7, CallerError),
     (["x"] * 1025, CallerError), (b"a*", CallerError)],
)  # fmt: skip
def test_topics_that_are_none_are_refused(
    abc: Store, topic: list[str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        abc.pop("g", topic)


def test_a_queue_is_of_one_topic(abc: Store) -> None:
    with pytest.raises(CallerError, match="queue"):
        abc.pop("g", ["a", "b"], queue=1)
    with pytest.raises(QueueNotFound):
        abc.pop("g", "a", queue=7)


def test_more_sets_of_topics_than_are_remembered(
    abc: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "_SETS_MAX", 1)
    fill(abc, a=3, b=3, c=3)
    asked: list[list[str] | str] = ["*", ["a", "b"], "c*", ["b", "c"], "?"]
    found = [p for topics in asked * 2 for p in abc.pop("g", topics, 1)]
    assert len({p.receipt for p in found}) == len(found) == 9
