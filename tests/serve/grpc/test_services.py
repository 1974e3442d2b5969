"""The answers to good requests of RocketMQ's protocol, beyond those that a client's test sees."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Message, Store
from kvstore.serve.grpc.protocol.wire import NUMBERS, ms_of, set_ms, set_seconds
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import (
    CODES,
    KINDS,
    add_message,
    answer,
    answers,
    code_of,
    request_of,
)

TYPES = NUMBERS["MessageType"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with kvstore.open(tmp_path_factory.mktemp("served")) as store:
        for kind in ("normal", "fifo", "delay", "transaction", "priority"):
            store.create_topic("t" if kind == "normal" else kind, queues=3, kind=kind)
        store.create_group("g", backoff=[1, 7], max_attempts=5)
        store.create_group("in-order", ordered=True)
        store.create_group("soon", backoff=[0, 0.5, 1.2])
        yield store


@pytest.fixture(scope="module")
def client(served: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqClient]:
    with (
        OpenDoor(served) as door,
        RocketmqClient(door.endpoint, tmp_path_factory.mktemp("client")) as client,
    ):
        yield client


@pytest.fixture
def topic(served: Store, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with one queue."""
    name = f"own-{abs(hash(request.node.nodeid))}"
    served.create_topic(name, queues=1)
    return name


def received(client: RocketmqClient, topic: str, **fields: Any) -> list[Any]:
    request = request_of("ReceiveMessage", topic)
    for name, value in fields.items():
        setattr(request, name, value)
    found = answers(client, "ReceiveMessage", request)
    if len(found) > 1:
        assert [a.WhichOneof("content") for a in (found[0], found[-1])] == [
            "status", "delivery_timestamp"
        ]  # fmt: skip
    return [a.message for a in found if a.HasField("message")]


# --- routes and settings ---


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("t", ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]),
        ("fifo", ["FIFO"]),
        ("delay", ["DELAY"]),
        ("transaction", ["TRANSACTION"]),
        ("priority", ["NORMAL", "DELAY", "TRANSACTION", "PRIORITY"]),
    ],
)
def test_a_route_has_every_queue_at_the_address_by_which_the_client_came(
    client: RocketmqClient, name: str, types: list[str]
) -> None:
    request = request_of("QueryRoute", name)
    request.endpoints.addresses[0].host = "proxy.example"

    found = answer(client, "QueryRoute", request).message_queues

    assert [queue.id for queue in found] == [0, 1, 2]
    for queue in found:
        assert queue.permission == NUMBERS["Permission"]["READ_WRITE"]
        assert queue.broker.endpoints == request.endpoints
        assert [TYPES[one] for one in types] == list(queue.accept_message_types)


def test_a_queue_that_is_only_read_is_shown_as_such(served: Store, client: RocketmqClient) -> None:
    served.create_topic("shrunk", queues=2)
    served.put("shrunk", b"b", queue=1)
    served.alter_topic("shrunk", queues=1)

    found = answer(client, "QueryRoute", request_of("QueryRoute", "shrunk")).message_queues

    permissions = NUMBERS["Permission"]
    assert [q.permission for q in found] == [permissions["READ_WRITE"], permissions["READ"]]


def test_a_push_consumer_is_assigned_queues(client: RocketmqClient) -> None:
    found = answer(client, "QueryAssignment", request_of("QueryAssignment")).assignments

    assert [one.message_queue.id for one in found] == [0, 1, 2]


def test_a_producer_is_told_its_limits(client: RocketmqClient) -> None:
    request = request_of("Telemetry")
    request.settings.client_type = KINDS["PRODUCER"]
    request.settings.publishing.topics.add(name="t")

    settings = answer(client, "Telemetry", request).settings

    assert settings.publishing.max_body_size == 4 << 20
    assert settings.publishing.validate_message_type
    assert settings.backoff_policy.max_attempts == 3
    assert settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"


def test_a_consumer_is_told_the_settings_of_its_group(client: RocketmqClient) -> None:
    request = request_of("Telemetry")
    request.settings.client_type = KINDS["PUSH_CONSUMER"]

    settings = answer(client, "Telemetry", request).settings
    request.settings.subscription.group.name = "in-order"
    ordered = answer(client, "Telemetry", request).settings

    assert settings.backoff_policy.max_attempts == 5
    steps = settings.backoff_policy.customized_backoff.next
    assert [step.seconds for step in steps] == [1, 7]
    assert settings.subscription.receive_batch_size > 0
    assert settings.subscription.long_polling_timeout.seconds == 20
    assert (settings.subscription.fifo, ordered.subscription.fifo) == (False, True)
    assert len(ordered.backoff_policy.customized_backoff.next) == 18


def test_a_backoff_below_a_second_is_told_as_a_whole_one(client: RocketmqClient) -> None:
    """RocketMQ's Python client reads the seconds of a duration, and nothing below them."""
    request = request_of("Telemetry")
    request.settings.client_type = KINDS["PUSH_CONSUMER"]
    request.settings.subscription.group.name = "soon"

    settings = answer(client, "Telemetry", request).settings

    steps = settings.backoff_policy.customized_backoff.next
    assert [(step.seconds, step.nanos) for step in steps] == [(0, 0), (1, 0), (2, 0)]


# --- sending ---


def test_a_batch_of_32_has_an_entry_for_each_message_and_their_ids_are_kept(
    served: Store, client: RocketmqClient, topic: str
) -> None:
    request = request_of("SendMessage", topic)
    for n in range(2, 33):
        add_message(request, topic, f"id-{n}")

    found = answer(client, "SendMessage", request)

    assert [CODES[e.status.code] for e in found.entries] == ["OK"] * 32
    assert [e.offset for e in found.entries] == list(range(32))
    stored = served.pull(topic, 0, 0, 64).messages
    assert [m.message_id for m in stored] == [f"id-{n}" for n in range(1, 33)]
    assert [e.message_id for e in found.entries] == [m.message_id for m in stored]


@pytest.mark.parametrize(("kind", "make"), [(1, None), (2, hashlib.md5), (3, hashlib.sha1)])
def test_a_packed_body_with_a_digest_is_stored_as_the_producer_had_it(
    served: Store, client: RocketmqClient, topic: str, kind: int, make: Any
) -> None:
    import zlib

    body = b"of a producer " * 99
    request = request_of("SendMessage", topic)
    message = request.messages[0]
    message.body, message.system_properties.body_encoding = gzip.compress(body), 2
    digest = message.system_properties.body_digest
    digest.type = kind
    packed = message.body
    digest.checksum = make(packed).hexdigest().upper() if make else f"{zlib.crc32(packed):X}"

    assert code_of(client, "SendMessage", request) == "OK"
    assert served.pull(topic, 0, 0).messages[0].body == body
    (found,) = received(client, topic)
    assert found.body == body


def test_a_digest_is_one_that_clients_write_alike(
    served: Store, client: RocketmqClient, topic: str
) -> None:
    # The CRC of "next" begins with a zero, which Java's client leaves out.
    for body in (b"poison", b"next"):
        served.put(topic, body)

    found = [m.system_properties.body_digest for m in received(client, topic)]

    assert [(digest.type, digest.checksum) for digest in found] == [
        (1, "F9741949"), (2, hashlib.md5(b"next").hexdigest().upper())
    ]  # fmt: skip


def test_the_highest_priority_is_received_first(client: RocketmqClient) -> None:
    for priority in (0, 2, 9):
        request = request_of("SendMessage", "priority")
        request.messages[0].system_properties.priority = priority
        assert code_of(client, "SendMessage", request) == "OK"

    found = received(client, "priority")

    assert [m.system_properties.priority for m in found] == [2, 2, 0]
    assert {m.system_properties.message_type for m in found} == {TYPES["PRIORITY"]}


def test_a_message_carries_all_that_its_client_sent(client: RocketmqClient, topic: str) -> None:
    request = request_of("SendMessage", topic)
    sent = request.messages[0]
    sent.user_properties["region"] = "eu"
    sent.system_properties.keys.extend(["a", "b"])
    sent.system_properties.tag = "paid"
    sent.system_properties.message_group = "user-7"
    sent.system_properties.trace_context = "00-trace"
    answer(client, "SendMessage", request)

    (found,) = received(client, topic)

    system = found.system_properties
    assert dict(found.user_properties) == {"region": "eu"}
    assert (list(system.keys), system.tag) == (["a", "b"], "paid")
    assert (system.message_group, system.trace_context) == ("user-7", "00-trace")
    assert ms_of(system.born_timestamp) == ms_of(sent.system_properties.born_timestamp)
    assert system.message_type == TYPES["FIFO"]
    assert (system.delivery_attempt, system.invisible_duration.seconds) == (1, 10)


# --- receiving ---


def test_a_poll_as_long_as_its_deadline_is_answered_before(
    client: RocketmqClient, topic: str
) -> None:
    request = request_of("ReceiveMessage", topic)
    set_seconds(request.long_polling_timeout, 1)

    assert code_of(client, "ReceiveMessage", request, timeout=1.0) == "MESSAGE_NOT_FOUND"


def test_a_receive_takes_from_all_queues_whichever_it_names(
    served: Store, client: RocketmqClient
) -> None:
    served.create_topic("wide", queues=3)
    served.put_batch([Message("wide", b"%d" % n, queue=n) for n in range(3)])

    assert sorted(m.body for m in received(client, "wide")) == [b"0", b"1", b"2"]


def test_a_group_that_is_new_is_made_by_its_first_receive(
    served: Store, client: RocketmqClient, topic: str
) -> None:
    request = request_of("ReceiveMessage", topic, group=f"new-{topic}")

    assert code_of(client, "ReceiveMessage", request) == "MESSAGE_NOT_FOUND"
    assert served.group(f"new-{topic}").max_attempts == 16


def test_a_dead_letter_says_where_it_came_from(
    served: Store, client: RocketmqClient, topic: str
) -> None:
    put = served.put(topic, b"b")
    (popped,) = served.pop("g", topic)
    served.give_up(popped.receipt)

    (found,) = received(client, "%DLQ%g")

    origin = found.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == (topic, put.message_id)


# --- pulling ---


def test_a_pull_gives_messages_and_where_to_go_on(
    served: Store, client: RocketmqClient, topic: str
) -> None:
    served.put_batch([Message(topic, b"%d" % n, tag="ab"[n % 2]) for n in range(6)])
    request = request_of("PullMessage", topic)
    request.filter_expression.type, request.filter_expression.expression = 1, "b"

    status, *found, last = answers(client, "PullMessage", request)

    assert CODES[status.status.code] == "OK"
    assert [a.message.body for a in found] == [b"1", b"3", b"5"]
    assert last.next_offset == 6
    request.offset = 6
    status, last = answers(client, "PullMessage", request)
    assert (CODES[status.status.code], last.next_offset) == ("MESSAGE_NOT_FOUND", 6)


def test_offsets_are_set_had_and_asked_for(
    served: Store, client: RocketmqClient, topic: str
) -> None:
    served.put_batch([Message(topic, b"") for _ in range(3)])
    update = request_of("UpdateOffset", topic)
    update.offset = 2
    asked = request_of("QueryOffset", topic)

    assert code_of(client, "UpdateOffset", update) == "OK"
    assert answer(client, "GetOffset", request_of("GetOffset", topic)).offset == 2
    assert served.committed_offset("g", topic, 0) == 2
    assert answer(client, "QueryOffset", asked).offset == 0
    asked.query_offset_policy = 1
    assert answer(client, "QueryOffset", asked).offset == 3
    asked.query_offset_policy = 2
    set_ms(asked.timestamp, 1)
    assert answer(client, "QueryOffset", asked).offset == 0


# --- the command ---


def test_the_command_serves_clients_and_drains(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "kvstore", "serve", str(tmp_path / "s"), "--create"]
    with subprocess.Popen(
        [*command, "--grpc", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        endpoint = lines[1].split()[-1]
        with RocketmqClient(endpoint, tmp_path) as client:
            assert code_of(client, "Telemetry", request_of("Telemetry")) == "OK"
            client.do("simple", group="g", topics={})
        process.terminate()
        assert process.wait(20) == 0
