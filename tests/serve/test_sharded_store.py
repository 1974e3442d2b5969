"""A store on several shards: the calls of one store, each made where it belongs."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
import kvstore.aio
from kvstore import (
    AcrossShards,
    CallerError,
    ConfigError,
    ConnectionLost,
    Message,
    MessageNotFound,
    Nack,
    PartlyDone,
    Popped,
    ReceiptExpired,
    ReceiptIllegal,
    ScheduleExists,
    ShardedStore,
    StoreClosed,
    TopicConfig,
    TopicExists,
    TopicNotFound,
    TransactionEnded,
)
from kvstore.sharding import batch_check
from kvstore.wire.call_table import REACHES, REPEATS
from kvstore.wire.cluster_file import Cluster, ShardEntry, read_cluster
from tests.support import inside
from tests.support.certificates import make_certificate
from tests.support.sharding import ServedShards, served_shards
from tests.support.waiting import until

QUEUES = 6


@pytest.fixture(params=[2, 3])
def shards(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServedShards]:
    with served_shards(tmp_path, request.param) as shards:
        yield shards


@pytest.fixture
def store(shards: ServedShards) -> Iterator[ShardedStore]:
    """The whole, with the topic `t` of six queues and the group `g`."""
    with kvstore.connect(shards.urls, reconnect_for=0.5) as store:
        store.create_topic("t", queues=QUEUES)
        store.create_group("g")
        yield store


def receipts_of(popped: list[Popped]) -> list[str]:
    return [one.receipt for one in popped]


# --- topics and groups ---


def test_the_table_says_of_each_call_which_shards_it_reaches() -> None:
    assert REACHES.keys() == REPEATS.keys()


def test_changes_of_topics_and_groups_reach_all_shards_and_queues_are_counted_together(
    store: ShardedStore, shards: ServedShards
) -> None:
    count = len(shards.stores)
    assert store.topic("t").write_queues == store.topic("t").read_queues == QUEUES
    assert [one.topic("t").write_queues for one in shards.stores] == [QUEUES // count] * count
    assert store.create_topic("odd", queues=1).write_queues == count
    assert store.create_topics([TopicConfig(name="many", queues=7)])[0].read_queues == (
        8 if count == 2 else 9
    )
    assert store.alter_topic("t", queues=2 * QUEUES).write_queues == 2 * QUEUES
    assert store.create_topic("t", queues=1, exist_ok=True).write_queues == 2 * QUEUES
    with pytest.raises(TopicExists):
        store.create_topic("t")
    assert store.alter_group("g", max_attempts=2).max_attempts == 2
    assert [one.group("g").max_attempts for one in shards.stores] == [2] * count
    assert [info.name for info in store.topics()] == ["many", "odd", "t"]
    store.delete_topics(["many", "odd"])
    store.delete_group("g")
    assert store.groups() == []
    assert [[info.name for info in one.topics()] for one in shards.stores] == [["t"]] * count
    with pytest.raises(TopicNotFound):
        store.topic("odd")
    with pytest.raises(TopicNotFound):
        store.delete_topic("odd")


def test_a_namespace_is_one_on_all_shards(store: ShardedStore, shards: ServedShards) -> None:
    store.create_namespace("n", topics=[TopicConfig(name="o", queues=QUEUES)])
    view = store.namespace("n")
    put = view.put("o", b"x", queue=5)
    assert (put.topic, put.queue, view.get("o", 5, 0).body) == ("o", 5, b"x")
    assert [info.name for info in view.topics()] == ["o"]
    assert all(one.namespaces() == ["n"] for one in shards.stores)
    assert store.delete_namespace("n") == 0
    assert store.namespaces() == []


def test_a_topic_call_that_a_shard_misses_names_the_shards_that_have_it(
    store: ShardedStore, shards: ServedShards
) -> None:
    last = len(shards.stores) - 1
    shards.stop(last)

    with pytest.raises(PartlyDone, match=f"create_topic was done on .*not on {last}") as caught:
        store.create_topic("new", queues=QUEUES)

    assert caught.value.done == tuple(map(str, range(last)))
    assert [(n, type(e)) for n, e in caught.value.errors.items()] == [(str(last), ConnectionLost)]
    assert pickle.loads(pickle.dumps(caught.value)).done == caught.value.done
    assert store.topic("new").write_queues == QUEUES
    shards.start(last)
    store.create_topic("new", queues=QUEUES, exist_ok=True)
    assert shards.stores[last].topic("new").write_queues == QUEUES // (last + 1)


# --- messages ---


def test_a_queue_is_on_one_shard_and_keeps_its_order(
    store: ShardedStore, shards: ServedShards
) -> None:
    count = len(shards.stores)
    for n in range(3):
        for queue in range(QUEUES):
            put = store.put("t", f"{queue}.{n}".encode(), queue=queue, keys=["k"])
            assert (put.queue, put.offset) == (queue, n)
            own = shards.stores[queue % count].get("t", queue // count, n)
            assert own.body == f"{queue}.{n}".encode()
    for queue in range(QUEUES):
        found = store.pull("t", queue, 0).messages
        assert [(m.queue, m.body) for m in found] == [
            (queue, f"{queue}.{n}".encode()) for n in range(3)
        ]
        assert store.get("t", queue, 2).queue == queue
        assert store.bounds("t", queue) == (0, 3)
        assert store.offset_at("t", queue, 0) == 0
    assert store.pull_columns("t", 4, 0).columns is not None
    assert Counter(m.queue for m in store.query("t", "k", limit=64)) == dict.fromkeys(
        range(QUEUES), 3
    )
    assert len(store.query("t", "k", limit=4)) == 4
    with pytest.raises(CallerError):
        store.get("t", -1, 0)
    with pytest.raises(kvstore.QueueNotFound):
        store.get("t", QUEUES, 0)


def test_messages_without_a_queue_spread_over_shards_and_those_of_a_group_do_not(
    store: ShardedStore, shards: ServedShards
) -> None:
    for n in range(12):
        store.put("t", b"%d" % n)
    assert shards.ends("t") == [12 // len(shards.stores)] * len(shards.stores)
    places = {store.put("t", b"x", message_group="customer").queue for _ in range(8)}
    assert len(places) == 1
    store.create_topic("d", queues=QUEUES, dedup_window=60)
    first = store.put("d", b"x", dedup_id="once")
    for _ in range(4):
        again = store.put("d", b"x", dedup_id="once")
        assert (again.queue, again.offset, again.duplicate) == (first.queue, first.offset, True)


def test_the_results_of_a_batch_over_shards_are_in_its_order(
    store: ShardedStore, shards: ServedShards
) -> None:
    results = store.put_batch(
        [Message("t", b"%d" % n, queue=n % QUEUES) for n in range(3 * QUEUES)]
    )
    assert [(r.queue, r.offset) for r in results] == [
        (n % QUEUES, n // QUEUES) for n in range(3 * QUEUES)
    ]
    assert store.put_batch([]) == []
    before = shards.ends("t")
    store.put_batch([Message("t", b"x")] * 20)
    after = shards.ends("t")
    assert sorted(b - a for a, b in zip(before, after, strict=True))[:-1] == [0] * (len(after) - 1)


def test_a_batch_that_one_shard_refuses_says_what_became_of_each_message(
    store: ShardedStore, shards: ServedShards
) -> None:
    bad = [Message("t", b"x", queue=0), Message("t", bytes((4 << 20) + 1), queue=1)]
    with pytest.raises(PartlyDone, match="message 1 of 2: the body has") as caught:
        store.put_batch(bad)
    good, refused = caught.value.results
    assert isinstance(good, kvstore.PutResult)
    assert isinstance(refused, kvstore.MessageIllegal)
    assert store.get("t", 0, good.offset).body == b"x"
    with pytest.raises(kvstore.MessageIllegal):
        store.put_batch(["no message"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("bad", "kind"),
    [(Message("t", b"x", queue=1, delay=-1), kvstore.MessageIllegal),
     (Message("t", b"x", queue=1, tag=""), kvstore.MessageIllegal),
     (Message("t", "text", queue=1), kvstore.MessageIllegal),  # type: ignore[arg-type]  # see the test
     (Message("t", b"x", queue=QUEUES + 1), kvstore.MessageIllegal),
     (Message("t", b"x", queue=1, dedup_id="d"), kvstore.MessageIllegal),
     (Message("f", b"x", queue=1, delay=5), kvstore.MessageIllegal),
     (Message("none", b"x", queue=1), TopicNotFound)],
)  # fmt: skip
def test_no_part_of_a_batch_with_a_message_at_fault_is_put(
    store: ShardedStore, shards: ServedShards, bad: Message, kind: type[CallerError]
) -> None:
    store.create_topic("f", queues=QUEUES, kind="fifo")
    good = [Message("t", b"x", queue=queue) for queue in range(QUEUES)]
    for _ in range(2):
        with pytest.raises(kind, match=f"message {QUEUES} of {QUEUES + 1}: ") as caught:
            store.put_batch([*good, bad])
        assert type(caught.value) is kind
    assert sum(shards.ends("t")) == 0
    with pytest.raises(CallerError):
        store.prepare_batch([*good, bad], group="p")
    assert store.transactions().count == 0
    store.put_batch(good)
    assert sum(shards.ends("t")) == QUEUES


def test_topics_that_changed_are_checked_as_they_are(
    store: ShardedStore, shards: ServedShards
) -> None:
    batch = [Message("t", b"x", queue=queue) for queue in range(2 * QUEUES)]
    with pytest.raises(CallerError, match=f"it has 0 to {QUEUES - 1}$"):
        store.put_batch(batch)
    for one in shards.stores:
        one.alter_topic("t", queues=2 * QUEUES // len(shards.stores))
    assert [put.queue for put in store.put_batch(batch)] == list(range(2 * QUEUES))


def test_a_check_that_remembers_one_topic_refuses_no_good_batch(
    store: ShardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_check, "KNOWN_MAX", 1)
    store.create_topic("u", queues=QUEUES)
    batch = [Message(topic, b"x", queue=queue) for queue in range(QUEUES) for topic in ("t", "u")]
    for n in range(3):
        assert {put.offset for put in store.put_batch(batch)} == {n}
    with pytest.raises(kvstore.MessageIllegal, match="delay is -1"):
        store.put_batch([*batch, Message("u", b"x", queue=0, delay=-1)])
    assert store.bounds("t", 0) == (0, 3)


def test_a_batch_to_a_topic_that_shards_make_by_themselves_is_put(tmp_path: Path) -> None:
    with (
        served_shards(tmp_path, 2, kvstore.StoreConfig(auto_create_topics=True)) as shards,
        kvstore.connect(shards.urls) as store,
    ):
        batch = [Message("new", b"x", queue=queue) for queue in range(4)]
        assert [put.offset for put in store.put_batch(batch)] == [0] * 4


def test_errors_name_the_queues_of_the_whole(store: ShardedStore, shards: ServedShards) -> None:
    with pytest.raises(CallerError, match=r"topic 't' has no queue 99 to put to; it has 0 to 5$"):
        store.put("t", b"x", queue=99)
    store.put("t", b"x", queue=3)
    with pytest.raises(
        kvstore.OffsetNotFound, match=r"queue 3 of 't' has no offset 99; .* 0 to 0$"
    ):
        store.get("t", 3, 99)
    with pytest.raises(kvstore.QueueNotFound, match=r"'t' has no queue 6; it has 0 to 5$"):
        store.bounds("t", QUEUES)
    with pytest.raises(kvstore.QueueNotFound, match=r"'t' has no queue -1; it has 0 to 5$"):
        store.bounds("t", -1)
    with pytest.raises(CallerError, match=r"^message 2 of 3: .* no queue 7 to .* it has 0 to 5$"):
        store.put_batch([Message("t", b"x", queue=n) for n in (7 - len(shards.stores),) * 2 + (7,)])
    with pytest.raises(CallerError, match=f"queues is {12 * 10**6}; a topic has 1 to"):
        store.create_topic("many", queues=12 * 10**6)
    with pytest.raises(CallerError, match="read_queues is 6 and queues 12"):
        store.create_topic("odd", queues=12, read_queues=6)
    store.put_batch([Message("t", b"x", queue=queue) for queue in (0, 1, 2, 4, 5)])
    with pytest.raises(kvstore.QueueNotEmpty, match=r"have [23] read queues, but") as caught:
        store.alter_topic("t", queues=1, read_queues=1)
    assert f"queue {caught.value.queue} holds offsets 0 to 0" in str(caught.value)
    assert caught.value.queue >= len(shards.stores)


def test_a_message_at_fault_is_named_by_its_place_in_the_whole_batch(store: ShardedStore) -> None:
    bad = [Message("t", b"x", queue=n, delay=-1 if n == 5 else None) for n in range(QUEUES)]
    with pytest.raises((PartlyDone, CallerError), match="message 5 of 6: delay is -1"):
        store.put_batch(bad)
    with pytest.raises((PartlyDone, CallerError), match="message 5 of 6: delay is -1"):
        store.put_batch([*bad[3:4] * 5, bad[5]])


def test_columns_are_put_and_pulled_with_the_queues_of_the_whole(store: ShardedStore) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=5, keys=["k"]) for n in range(40)])
    pulled = store.pull_columns("t", 5, 0, columns=["queue", "body", "keys"])
    assert (len(pulled.columns), pulled.next_offset) == (40, 40)
    put = store.put_columns("t", pulled.columns)
    assert [(r.queue, r.offset) for r in put.results()] == [(5, 40 + n) for n in range(40)]
    assert (put.count, put.columns.names[0]) == (40, "queue")
    assert store.pull("t", 5, 40, 1).messages[0].body == b"0"
    free = store.pull_columns("t", 5, 0, columns=["body"]).columns
    count = len(store.names)
    assert len({result.queue % count for result in store.put_columns("t", free).results()}) == 1
    with pytest.raises(kvstore.MessageIllegal):
        store.put_columns("t", 5)
    with pytest.raises(AcrossShards):
        store.tier("plan", None, {})


def test_a_message_is_found_by_its_id_whichever_shard_has_it(store: ShardedStore) -> None:
    for queue in range(QUEUES):
        put = store.put("t", b"x", queue=queue)
        assert store.find(put.message_id).queue == queue
    with pytest.raises(MessageNotFound):
        store.find("0" * 32)


# --- pops ---


def test_a_pop_takes_from_all_shards_and_an_ack_goes_to_the_one_that_gave_the_receipt(
    store: ShardedStore,
) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=n % QUEUES) for n in range(4 * QUEUES)])
    first, rest = store.pop("g", "t", limit=5), store.pop("g", ["t"], limit=100)
    assert (len(first), len(rest)) == (5, 4 * QUEUES - 5)
    popped = first + rest
    assert Counter(one.message.queue for one in popped) == dict.fromkeys(range(QUEUES), 4)
    held = store.change_invisible(popped[0].receipt, 60)
    assert store.nack_batch([Nack(popped[1].receipt, 0)]) == [True]
    assert store.undo_pop([popped[2].receipt]) == [True]
    changed = store.change_invisible_batch(receipts_of(popped[3:]), 60)
    again = store.pop("g", "t", limit=8)
    assert {one.message.body for one in again} == {one.message.body for one in popped[1:3]}
    results = store.ack_batch([held, *receipts_of(again), "no receipt", popped[1].receipt])
    assert results[:3] == [True] * 3
    assert [type(one) for one in results[3:]] == [ReceiptIllegal, ReceiptExpired]
    gone = changed.pop()
    assert isinstance(gone, str)
    store.give_up(gone)
    assert store.ack_batch([str(one) for one in changed]) == [True] * 20
    with pytest.raises(ReceiptIllegal):
        store.ack(popped[4].receipt.partition("~")[2])
    with pytest.raises(ReceiptIllegal):
        store.give_up("")


def test_a_pop_of_one_queue_takes_from_it_alone(store: ShardedStore) -> None:
    store.put_batch([Message("t", b"x", queue=n % QUEUES) for n in range(2 * QUEUES)])
    assert {one.message.queue for one in store.pop("g", "t", limit=64, queue=4)} == {4}


def test_a_pop_that_waits_gets_the_next_message_of_any_shard(store: ShardedStore) -> None:
    for queue in range(QUEUES):
        found = list[Popped]()
        thread = threading.Thread(
            target=lambda found=found: found.extend(store.pop("g", "t", limit=2, wait=30))
        )
        thread.start()
        store.put("t", b"x", queue=queue)
        thread.join(20)
        assert [one.message.queue for one in found] == [queue]
        store.ack(found[0].receipt)
    assert store.pop("g", "t", wait=0.05) == []


def test_messages_that_waiting_pops_bring_beyond_the_limit_come_again_unseen(
    store: ShardedStore, shards: ServedShards
) -> None:
    def bring() -> None:
        for own in shards.stores:
            own.put("t", b"x")
        for own in shards.stores:
            until(lambda own=own: own.group_stats("g", "t")[0].in_flight == 1)

    async def work() -> list[Popped]:
        async with kvstore.aio.connect(shards.urls) as client:
            waiting = asyncio.create_task(client.pop("g", "t", wait=60, invisible_for=600))
            while not all(inside.waiting(own).topics for own in shards.stores):
                await asyncio.sleep(0.01)
            bring()  # nothing is read meanwhile: the answers of all pops are there
            found = await waiting
            assert len(found) == 1
            while len(found) < len(shards.stores):
                found += await client.pop("g", "t", limit=64, wait=5)
            return found

    found = asyncio.run(work())
    assert {one.attempt for one in found} == {1}
    assert store.ack_batch(receipts_of(found)) == [True] * len(shards.stores)


def test_messages_in_flight_are_listed_page_by_page(store: ShardedStore) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=n % QUEUES) for n in range(4 * QUEUES)])
    assert store.in_flight("g").messages == []
    popped = store.pop("g", "t", limit=100)
    listed, after = [], None
    while True:
        page = store.in_flight("g", "t", limit=5, after=after)
        assert page.count == len(popped)
        listed += page.messages
        after = page.next
        if after is None:
            break
    assert Counter(one.queue for one in listed) == dict.fromkeys(range(QUEUES), 4)
    bodies = sorted(one.message.body for one in listed if one.message is not None)
    assert bodies == sorted(one.message.body for one in popped)
    assert {one.message.queue for one in listed if one.message} == set(range(QUEUES))
    for wrong in ({"limit": 0}, {"after": 5}, {"after": (1,)}):
        with pytest.raises(CallerError):
            store.in_flight("g", **wrong)
    with pytest.raises(kvstore.GroupNotFound):
        store.in_flight("none")


def test_a_repeated_pop_gets_the_same_messages(store: ShardedStore) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=n % QUEUES) for n in range(4 * QUEUES)])
    first = store.pop("g", "t", limit=4, attempt_id="a")
    again = store.pop("g", "t", limit=4, attempt_id="a")
    assert receipts_of(first) == receipts_of(again)


def test_what_is_wrong_with_a_pop_is_said(store: ShardedStore) -> None:
    with pytest.raises(kvstore.GroupNotFound):
        store.pop("none", "t", wait=5)
    with pytest.raises(TopicNotFound):
        store.pop("g", "none", wait=5)
    for wrong in ({"limit": 0}, {"limit": "x"}, {"wait": -1.0}, {"wait": "x"}, {"queue": "x"}):
        with pytest.raises(CallerError):
            store.pop("g", "t", **wrong)


def test_dead_letters_are_popped_and_redriven_wherever_they_fell(
    store: ShardedStore, shards: ServedShards
) -> None:
    store.create_group("once", max_attempts=1)
    store.put("t", b"dead", queue=1)
    (popped,) = store.pop("once", "t", limit=8)
    store.give_up(popped.receipt)
    assert store.group_stats("once", "t")[0].dead_letters == 1
    (dead,) = store.pop("g", "%DLQ%once", limit=8, wait=1)
    assert dead.message.body == b"dead"
    store.ack(dead.receipt)
    queues = range(store.topic("%DLQ%once").read_queues)
    assert sum(len(store.pull("%DLQ%once", queue, 0).messages) for queue in queues) == 1
    assert store.redrive("once") == 1
    assert store.redrive("once", limit=5) == 0
    assert [one.message.body for one in store.pop("once", "t", limit=8)] == [b"dead"]


def test_consumers_handle_the_messages_of_all_shards(store: ShardedStore) -> None:
    handled: Counter[bytes] = Counter()
    for n in range(30):
        store.put("t", b"%d" % n, queue=n % QUEUES)
    with store.consume(
        "g", "t*", lambda popped: handled.update([popped.message.body]), until_empty=True
    ) as consumer:
        assert consumer.wait(30)
    assert handled == {b"%d" % n: 1 for n in range(30)}
    assert {one.lag for one in store.lag("g", "t")} == {0}


# --- times, transactions, offsets, figures ---


def test_delayed_messages_are_listed_page_by_page_and_changed_by_their_ids(
    store: ShardedStore,
) -> None:
    puts = [store.put("t", b"x", queue=n % QUEUES, delay=1000 + n) for n in range(2 * QUEUES)]
    listed, after = [], None
    while True:
        page = store.timers("t", limit=5, after=after)
        assert page.count == 2 * QUEUES
        listed += [(one.message_id, one.queue) for one in page.messages]
        after = page.next
        if after is None:
            break
    assert listed == [(put.message_id, put.queue) for put in puts]
    assert store.cancel(puts[3].message_id)
    with pytest.raises(kvstore.DelayEnded):
        store.timer(puts[3].message_id)
    assert store.timer(puts[4].message_id).queue == puts[4].queue
    assert store.change_delay(puts[4].message_id, delay=0) > 0
    assert store.stats().delays.waiting <= 2 * QUEUES - 1
    with pytest.raises(MessageNotFound):
        store.cancel("0" * 32)


def test_pages_that_have_less_than_was_asked_for_lose_nothing(
    store: ShardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard may have looked further than another."""
    monkeypatch.setattr("kvstore.timing.timer_rows.LOOKED_MAX", 7)
    store.create_topic("u", queues=QUEUES)
    puts = []
    for n in range(60):
        queue = n % QUEUES if n % 3 else 0
        store.put("u", b"x", queue=queue, delay=1000 + n)
        if n % 4 == 0:
            puts.append(store.put("t", b"x", queue=n % QUEUES, delay=1000 + n))
    listed, after = [], None
    while True:
        page = store.timers("t", limit=5, after=after)
        assert len(page.messages) <= 5
        listed += [one.message_id for one in page.messages]
        after = page.next
        if after is None:
            break
    assert listed == [put.message_id for put in puts]


def test_a_result_ends_its_own_transaction_where_two_shards_have_one_id(
    store: ShardedStore,
) -> None:
    dropped, kept, other = (
        store.prepare("t", b"%d" % n, group="pay", queue=queue, message_id="same")
        for n, queue in enumerate((0, 1, 0))
    )
    store.rollback(dropped)
    with pytest.raises(TransactionEnded):
        store.commit(dropped)
    assert store.transactions().count == 2
    assert store.commit(kept).queue == store.commit(kept).queue == 1
    with pytest.raises(TransactionEnded):
        store.rollback(kept)
    store.rollback(other)
    assert store.transactions().count == 0


def test_a_transaction_is_on_one_shard(store: ShardedStore, shards: ServedShards) -> None:
    with store.transaction(group="pay") as transaction:
        transaction.put("t", b"a")
        transaction.put("t", b"b")
        transaction.put("t", b"c", queue=1)
    results = transaction.results
    assert {result.queue % len(shards.stores) for result in results} == {1}
    assert [store.get("t", r.queue, r.offset).body for r in results] == [b"a", b"b", b"c"]

    refused = store.transaction(group="pay")
    refused.put_batch([Message("t", b"a", queue=0), Message("t", b"b", queue=1)])
    with pytest.raises(AcrossShards, match="2 shards"):
        refused.commit()
    assert store.transactions().count == 0

    one, two = store.prepare_batch(
        [Message("t", b"x", queue=0), Message("t", b"y", queue=1)], group="pay"
    )
    with pytest.raises(AcrossShards):
        store.commit_batch([one, two])
    assert {p.queue for p in store.transactions("pay").messages} == {0, 1}
    assert store.prepared(two.message_id).queue == 1
    assert store.commit(one).queue == 0
    assert store.commit(two.message_id).queue == 1
    store.rollback(store.prepare("t", b"z", group="pay"))


def test_a_checker_is_asked_by_all_shards(tmp_path: Path) -> None:
    config = kvstore.StoreConfig(transaction_immunity=0.2, transaction_check_interval=0.2)
    with (
        served_shards(tmp_path, 2, config) as shards,
        kvstore.connect(shards.urls) as store,
    ):
        store.create_topic("t", queues=2)
        checker = store.on_check("pay", lambda message: "commit")
        for queue in range(2):
            store.prepare("t", b"x", group="pay", queue=queue)
        until(lambda: shards.ends("t") == [1, 1])
        assert checker.is_open
        checker.close()
        assert not checker.is_open


def test_a_schedule_is_on_one_shard_and_found_by_its_name(
    store: ShardedStore, shards: ServedShards
) -> None:
    assert store.schedule("s", "t", b"", every=3600, queue=5).queue == 5
    store.schedule("r", "t", b"", every=3600, message_group="x")
    store.schedule("q", "t", b"", every=3600)
    assert sum(len(one.schedules()) for one in shards.stores) == 3
    with pytest.raises(ScheduleExists):
        store.schedule("s", "t", b"", every=60, queue=4)
    assert store.schedule("s", "t", b"", every=60, exist_ok=True).every == 3600
    assert store.pause_schedule("s").next_at is None
    assert len(store.next_firings("s", 3)) == 3
    assert [one.name for one in store.schedules("t")] == ["q", "r", "s"]
    store.delete_schedule("s")
    with pytest.raises(kvstore.ScheduleNotFound):
        store.schedule_info("s")


def test_offsets_and_lag_are_those_of_all_queues(store: ShardedStore) -> None:
    store.put_batch([Message("t", b"x", queue=n % QUEUES) for n in range(2 * QUEUES)])
    store.commit_offsets([("g", "t", queue, queue % 3) for queue in range(QUEUES)])
    store.commit_offset("g", "t", 5, 1)
    wanted = [0, 1, 2, 0, 1, 1]
    assert [store.committed_offset("g", "t", queue) for queue in range(QUEUES)] == wanted
    assert [(one.queue, one.lag) for one in store.lag("g")] == [
        (queue, 2 - done) for queue, done in enumerate(wanted)
    ]
    assert store.reset_offset("g", "t", to="begin") == dict.fromkeys(range(QUEUES), 0)
    assert store.reset_offset("g", "t", offset=1, queue=4) == {4: 1}
    with pytest.raises(CallerError, match="one queue"):
        store.reset_offset("g", "t", offset=1)
    (figures,) = store.group_stats("g", "t")
    assert (figures.end, figures.lag) == (2 * QUEUES, 2 * QUEUES - 1)
    assert store.group_topics("g") == ["t"]


def test_figures_are_sums_and_upkeep_reaches_all(store: ShardedStore) -> None:
    store.put_batch([Message("t", b"x", queue=n % QUEUES) for n in range(2 * QUEUES)])
    store.flush()
    store.checkpoint()
    stats = store.stats()
    assert (stats.appended, stats.topics, stats.tail_entries) == (2 * QUEUES, 1, 0)
    store.seal()
    assert store.apply_retention() == 0


def test_calls_about_one_log_are_for_a_shard(store: ShardedStore) -> None:
    for call in (store.verify, store.segments, store.catalog):
        with pytest.raises(AcrossShards, match=r"store\.shard\(name\)"):
            call()
    with pytest.raises(AcrossShards):
        store.read_at(0)
    assert store.shard("1").verify().problems == []
    with pytest.raises(CallerError, match="there are 0, 1"):
        store.shard("none")


def test_one_shard_is_a_whole_with_all_calls(tmp_path: Path) -> None:
    told = list[object]()
    with served_shards(tmp_path, 1) as shards, kvstore.connect(shards.urls) as store:
        assert store.create_topic("t", queues=3).read_queues == 3
        put = store.put("t", b"x", queue=2)
        assert store.read_at(put.position).body == b"x"
        assert store.verify(lambda *step: told.append(step)).problems == []
        with pytest.raises(CallerError):
            store.create_topic("u", queues=None)  # type: ignore[arg-type]
        with pytest.raises(CallerError, match="configs"):
            store.create_topics(5)  # type: ignore[arg-type]


# --- shards that go and come ---


def test_one_shard_down_the_others_go_on_and_it_is_used_again_when_it_is_back(
    store: ShardedStore, shards: ServedShards
) -> None:
    shards.stop(1)
    while shards.ends("t")[0] < 6:
        store.put("t", b"x")
    assert shards.ends("t")[1] == 0
    assert len(store.pop("g", "t", limit=100)) == sum(shards.ends("t"))
    assert store.pop("g", "t", wait=0.1) == []
    with pytest.raises(ConnectionLost):
        store.put("t", b"x", queue=1)
    with pytest.raises(ConnectionLost):
        store.lag("g", "t")
    assert store.topic("t").read_queues == QUEUES
    with pytest.raises(PartlyDone) as caught:
        store.put_batch([Message("t", b"x", queue=queue) for queue in range(2)])
    assert caught.value.done == ("0",)

    shards.start(1)
    until(lambda: _reaches(store, shards, 1))
    assert store.put("t", b"z", queue=1).queue == 1


def _reaches(store: kvstore.ServedStore, shards: ServedShards, number: int) -> bool:
    """Puts a message, which may go to any shard, and looks whether that one has any."""
    store.put("t", b"x")
    return shards.ends("t")[number] > 0


def test_a_shard_may_be_down_when_a_client_connects_but_not_all(
    shards: ServedShards, store: ShardedStore
) -> None:
    shards.stop(0)
    with kvstore.connect(shards.urls, reconnect_for=0.2) as client:
        client.put("t", b"x")
        shards.start(0)
        until(lambda: _reaches(client, shards, 0))
    for number in range(len(shards.stores)):
        shards.stop(number)
    with pytest.raises(ConnectionLost):
        kvstore.connect(shards.urls)


def test_a_closed_store_refuses_calls_and_ends_those_under_way(
    shards: ServedShards, store: ShardedStore
) -> None:
    errors = list[BaseException]()

    def pop() -> None:
        try:
            store.pop("g", "t", wait=60)
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=pop)
    thread.start()
    store.put("t", b"other")
    store.close()
    store.close()
    thread.join(20)
    assert [type(e) for e in errors] in ([], [StoreClosed])
    with pytest.raises(StoreClosed):
        store.topics()
    with pytest.raises(CallerError, match="pickled"):
        pickle.dumps(store)


# --- asyncio ---


def test_asyncio_has_the_same_store(shards: ServedShards, store: ShardedStore) -> None:
    async def work() -> None:
        async with kvstore.aio.connect(shards.urls) as client:
            waiting = asyncio.create_task(client.pop("g", "t", limit=2, wait=30))
            await asyncio.sleep(0)
            put = await client.put("t", b"x", queue=3)
            assert put.queue == 3
            (popped,) = await waiting
            await client.ack(popped.receipt)
            cancelled = asyncio.create_task(client.pop("g", "t", wait=30))
            await asyncio.sleep(0.05)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await client.put_batch([Message("t", b"y", queue=queue) for queue in range(QUEUES)])
            found = list[Popped]()
            while len(found) < QUEUES:
                found += await client.pop("g", "t", limit=64, wait=5)
            assert {one.attempt for one in found} == {1}
            async with client.transaction(group="pay") as transaction:
                transaction.put("t", b"z")
            checker = await client.on_check("pay", lambda message: "commit")
            checker.close()
            assert len(transaction.results) == 1

    asyncio.run(work())


# --- the list ---


def test_a_cluster_file_names_the_shards(tmp_path: Path, shards: ServedShards) -> None:
    cluster = Cluster([ShardEntry(f"s{n}", url) for n, url in enumerate(shards.urls)])
    file = tmp_path / "cluster.toml"
    file.write_text(cluster.text())
    assert read_cluster(file) == cluster
    for place in (file, str(file), tmp_path, f"kvmq+cluster://{file}"):
        with kvstore.connect(place) as store:
            assert isinstance(store, ShardedStore)
            assert store.names == [f"s{n}" for n in range(len(shards.stores))]
            assert repr(store) == f"<kvstore.ShardedStore kvmq+cluster://{file}>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shards = []", "0 shards"),
        ('[[shards]]\nname = "a"\n[[shards]]\nname = "a"', "one name"),
        ('[[shards]]\nname = "a b"', "letters"),
        ('[[shards]]\nname = "a"\ngrpc = "no port"', "HOST:PORT"),
        ('[[shards]]\nname = "a"\nport = 5', "port"),
        ("no toml", "cluster file"),
    ],
)
def test_a_cluster_file_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        kvstore.connect(file)


def test_a_list_without_urls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="empty"):
        kvstore.connect([])
    with pytest.raises(CallerError):
        kvstore.connect(["http://x"])
    with pytest.raises(ConfigError, match="can't be read"):
        kvstore.connect(tmp_path / "none.toml")
    (tmp_path / "c.toml").write_text('[[shards]]\nname = "a"\ngrpc = "h:1"')
    with pytest.raises(CallerError, match="no url"):
        kvstore.connect(tmp_path / "c.toml")


def test_tls_is_for_the_shards_that_have_it(shards: ServedShards, tmp_path: Path) -> None:
    chain = make_certificate(tmp_path)[0]
    lost = "kvmq+tls://127.0.0.1:1"
    with kvstore.connect([*shards.urls, lost], tls=chain, reconnect_for=0.1) as store:
        assert store.url.endswith(lost)
    with pytest.raises(CallerError, match="has no TLS"):
        kvstore.connect(shards.urls, tls=chain)
