"""RocketMQ's own Python client works with the store as it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import Store, StoreConfig
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.waiting import until

ALL = {"t": ["tag", "*"]}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Store]:
    """A store with the topic `t`, whose orphaned transactions are asked about at once."""
    config = StoreConfig(transaction_immunity=0.5, transaction_check_interval=1.0)
    with kvstore.open(tmp_path / "served", config) as store:
        store.create_topic("t", queues=4)
        yield store


def test_a_message_that_the_client_sent_is_in_the_store_with_all_it_carried(
    served: Store, client: RocketmqClient
) -> None:
    client.do("producer", topics=["t"])
    sent = client.do("send", topic="t", body="b", tag="x", keys="k", properties={"region": "eu"})

    (found,) = served.query("t", "k")

    assert (found.body, found.tag, found.keys) == (b"b", "x", ["k"])
    assert found.user_properties == {"region": "eu"}
    assert found.message_id == sent["id"]
    assert served.find(sent["id"]).offset == sent["offset"]


def test_a_simple_consumer_gets_what_the_store_was_given_and_acks_it(
    served: Store, client: RocketmqClient
) -> None:
    put = served.put("t", b"b", tag="x", keys=["k"], properties={"region": "eu"})
    client.do("simple", group="g", topics=ALL)

    (found,) = client.do("receive")
    client.do("ack", at=found["at"])

    assert found["body"] == "b"
    assert (found["tag"], found["keys"]) == ("x", ["k"])
    assert found["properties"] == {"region": "eu"}
    assert (found["id"], found["attempt"]) == (put.message_id, 1)
    assert served.lag("g", "t")[put.queue].lag == 0


def test_a_message_that_is_not_acked_comes_again_to_the_client_when_it_says_so(
    served: Store, client: RocketmqClient
) -> None:
    served.put("t", b"b")
    client.do("simple", group="g", topics=ALL)
    (first,) = client.do("receive", invisible=60)
    client.do("change", at=first["at"], seconds=1)

    (second,) = client.do("receive")

    assert (second["body"], second["attempt"]) == ("b", 2)


def test_a_push_consumer_gets_what_is_sent_and_a_failed_message_again(
    served: Store, client: RocketmqClient
) -> None:
    served.create_group("g", backoff=[0.1])
    client.do("push", group="g", topics=ALL, fails=1)
    client.do("producer", topics=["t"])
    for i in range(5):
        client.do("send", topic="t", body=str(i))

    found = client.do("pushed", count=10)

    assert sorted(m["body"] for m in found) == sorted("0011223344")
    assert sorted(m["attempt"] for m in found) == [1] * 5 + [2] * 5
    until(lambda: all(one.lag == 0 for one in served.lag("g", "t")))


def test_a_message_that_fails_too_often_is_a_dead_letter_that_a_consumer_reads(
    served: Store, client: RocketmqClient
) -> None:
    served.create_group("g", backoff=[0.1], max_attempts=2)
    served.put("t", b"poison")
    client.do("push", group="g", topics=ALL, fails=99)
    client.do("pushed", count=2)
    until(lambda: served.group_stats("g", "t")[0].dead_letters == 1)

    client.do("simple", group="undertaker", topics={"%DLQ%g": ["tag", "*"]})

    assert [m["body"] for m in client.do("receive")] == ["poison"]


@pytest.mark.parametrize("fails", [0, 1])
def test_an_ordered_group_gets_each_message_group_in_order(
    served: Store, client: RocketmqClient, fails: int
) -> None:
    served.create_topic("ordered", kind="fifo", queues=2)
    served.create_group("g", ordered=True, backoff=[0.1])
    client.do("producer", topics=["ordered"])
    for i in range(12):
        client.do("send", topic="ordered", body=str(i), message_group=f"user-{i % 3}")

    client.do("push", group="g", topics={"ordered": ["tag", "*"]}, fails=fails)
    found = client.do("pushed", count=12 * (fails + 1))

    for user in range(3):
        of_user = [int(m["body"]) for m in found if m["group"] == f"user-{user}"]
        assert of_user == sorted(of_user)
        assert set(of_user) == {user, user + 3, user + 6, user + 9}


def test_a_delayed_message_comes_when_it_is_due_unless_it_is_recalled(
    client: RocketmqClient,
) -> None:
    client.do("producer", topics=["t"])
    client.do("simple", group="g", topics=ALL, wait=10)
    at = int(time.time()) + 3
    client.do("send", topic="t", body="late", delivery_timestamp=at)
    recalled = client.do("send", topic="t", body="never", delivery_timestamp=at)

    assert client.do("recall", topic="t", handle=recalled["handle"]) == recalled["id"]
    (found,) = client.do("receive")

    assert found["body"] == "late"
    assert time.time() >= at


def test_a_transaction_is_seen_when_it_is_committed_and_never_when_it_is_rolled_back(
    served: Store, client: RocketmqClient
) -> None:
    client.do("producer", topics=["t"], answers="TRANSACTION_RESOLUTION_UNSPECIFIED")
    client.do("simple", group="g", topics=ALL, wait=1)
    client.do("send", topic="t", body="committed", transaction=True)
    assert client.do("receive") == []
    client.do("end", how="commit")
    client.do("send", topic="t", body="rolled back", transaction=True)
    client.do("end", how="rollback")

    assert [m["body"] for m in client.do("receive")] == ["committed"]
    assert served.transactions().messages == []


@pytest.mark.parametrize(("answer", "seen"), [("COMMIT", ["orphan"]), ("ROLLBACK", [])])
def test_a_producer_is_asked_about_a_transaction_that_nobody_ended(
    served: Store, client: RocketmqClient, answer: str, seen: list[str]
) -> None:
    served.create_group("g")
    client.do("producer", topics=["t"], answers=answer)
    client.do("send", topic="t", body="orphan", transaction=True)

    assert client.do("asked", count=1)[0] == "orphan"
    until(lambda: served.transactions().messages == [])

    assert [p.message.body.decode() for p in served.pop("g", "t", limit=9)] == seen


@pytest.mark.parametrize(
    ("kind", "text"), [("tag", "paid || sent"), ("sql", "amount > 5 AND region = 'eu'")]
)
def test_a_filter_lets_a_consumer_get_some_messages_only(
    served: Store, client: RocketmqClient, kind: str, text: str
) -> None:
    served.put("t", b"no", tag="new", properties={"amount": "3", "region": "eu"})
    served.put("t", b"yes", tag="paid", properties={"amount": "7", "region": "eu"})
    client.do("simple", group="g", topics={"t": [kind, text]})

    assert [m["body"] for m in client.do("receive")] == ["yes"]


def test_a_client_sees_the_topics_of_its_namespace_alone(
    served: Store, door: OpenDoor, tmp_path: Path
) -> None:
    served.create_topic("tenant%t", queues=1)
    with RocketmqClient(door.endpoint, tmp_path, namespace="tenant") as client:
        client.do("producer", topics=["t"])
        client.do("send", topic="t", body="mine")
        client.do("simple", group="g", topics=ALL)

        assert [m["body"] for m in client.do("receive")] == ["mine"]

    assert served.group("tenant%g").name == "tenant%g"
    assert served.bounds("tenant%t", 0).next_offset == 1


def test_a_client_goes_on_when_the_server_was_restarted_and_its_handles_are_good(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "served"
    with kvstore.open(folder) as store:
        store.create_topic("t", queues=1)
        with OpenDoor(store) as door:
            port = door.port
            client = RocketmqClient(door.endpoint, tmp_path)
            client.do("producer", topics=["t"])
            client.do("send", topic="t", body="before")
            client.do("simple", group="g", topics=ALL)
            (before,) = client.do("receive", invisible=60)
    with client, kvstore.open(folder) as store, OpenDoor(store, port):
        client.do("ack", at=before["at"])
        client.do("send", topic="t", body="after")

        assert [m["body"] for m in client.do("receive")] == ["after"]
        assert store.lag("g", "t")[0].lag == 1
