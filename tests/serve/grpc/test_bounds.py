"""The state that the server keeps of clients is bounded; a broken file of locks is harmless."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Store, StoreConfig
from kvstore.serve.grpc.clients import ClientKey, Clients
from kvstore.serve.grpc.held_file import NAME, HeldFile, HeldLocks
from kvstore.serve.grpc.protocol.answers import Refusal
from tests.support.clock import VirtualClock
from tests.support.grpc_doors import OpenDoor
from tests.support.raising import raising
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import KINDS, answer, code_of, request_of
from tests.support.waiting import until

pytestmark = [pytest.mark.topic(queues=1), pytest.mark.group]


def test_a_client_too_many_is_refused_until_others_were_silent_for_long(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.serve.grpc.clients.CLIENTS_MAX", 2)
    clients = Clients(clock)
    a, b, c = (ClientKey("shop", name) for name in "abc")
    for one in (a, b, a):
        clients.seen(one)
    with pytest.raises(Refusal, match="2 clients already"):
        clients.seen(c)

    clock.advance(121)
    clients.seen(c)

    assert len(clients) == 1
    assert clients.is_alive(c)
    assert not clients.is_alive(a)


def test_credentials_with_many_clients_keep_no_others_out(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.serve.grpc.clients.CLIENTS_MAX", 4)
    clients = Clients(clock)
    many = [ClientKey("greedy", str(n)) for n in range(4)]
    few = [ClientKey("shop", "a"), ClientKey("shop", "b")]
    for one in (*many, many[0], *few):
        clients.seen(one)

    assert len(clients) == 4
    assert [clients.is_alive(one) for one in many] == [True, False, False, True]
    assert [clients.is_alive(one) for one in few] == [True, True]
    for name in ("greedy", "shop"):
        with pytest.raises(Refusal, match="4 clients already"):
            clients.seen(ClientKey(name, "one more"))


def test_a_body_above_the_usual_limit_of_requests_is_put_if_the_store_takes_it(
    tmp_path: Path, clock: VirtualClock
) -> None:
    body, config = bytes(12 << 20), StoreConfig(max_body=12 << 20, clock=clock)
    with (
        kvstore.open(tmp_path / "large", config) as store,
        OpenDoor(store) as door,
        RocketmqClient(door.endpoint, tmp_path) as client,
    ):
        store.create_topic("t", queues=1)
        request = request_of("SendMessage")
        request.messages[0].body = body

        assert code_of(client, "SendMessage", request) == "OK"
        assert store.get("t", queue=0, offset=0).body == body


def test_the_topics_whose_producers_are_asked_are_bounded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.serve.grpc.orphan_checks.CHECKERS_MAX", 2)
    names = [f"topic-{n}" for n in range(5)]
    for name in names:
        store.create_topic(name, queues=1)
    with OpenDoor(store) as door, RocketmqClient(door.endpoint, tmp_path) as client:
        for n, name in enumerate(names):
            request = request_of("SendMessage", name)
            system = request.messages[0].system_properties
            system.message_type, system.message_id = 4, f"id-{n}"
            assert answer(client, "SendMessage", request).entries[0].transaction_id
        until(lambda: checkers() <= 2)

    until(lambda: checkers() == 0)


def test_producers_that_come_are_asked_about_the_topics_with_prepared_messages(
    store: Store, tmp_path: Path
) -> None:
    for name in ("topic-1", "topic-2"):
        store.create_topic(name, queues=1)
    store.prepare("topic-1", b"b", group="topic-1")
    request = request_of("Telemetry")
    request.settings.client_type = KINDS["PRODUCER"]
    for name in ("topic-1", "topic-2", "topic-3"):
        request.settings.publishing.topics.add(name=name)
    with OpenDoor(store) as door, RocketmqClient(door.endpoint, tmp_path) as client:
        assert code_of(client, "Telemetry", request) == "OK"
        assert checkers() == 1


def test_sends_are_refused_for_now_while_too_many_messages_wait(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of("SendMessage")
    with OpenDoor(store) as door, RocketmqClient(door.endpoint, tmp_path) as client:
        monkeypatch.setattr("kvstore.serve.gatherer.QUEUED_MAX", 0)
        assert code_of(client, "SendMessage", request) == "INTERNAL_SERVER_ERROR"
        monkeypatch.undo()
        assert code_of(client, "SendMessage", request) == "OK"

    assert store.bounds("t", 0).next_offset == 1


def test_a_message_that_can_not_be_prepared_for_any_reason_is_answered(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of("SendMessage")
    system = request.messages[0].system_properties
    system.message_type, system.message_id = 4, "id"
    with OpenDoor(store) as door, RocketmqClient(door.endpoint, tmp_path) as client:
        monkeypatch.setattr(
            "kvstore.serve.gatherer.Gatherer.call",
            raising(RuntimeError("of no kind that the store has")),
        )
        assert code_of(client, "SendMessage", request) == "INTERNAL_SERVER_ERROR"
        monkeypatch.undo()


def test_a_question_goes_only_to_a_stream_that_named_the_topic_itself(clock: VirtualClock) -> None:
    clients = Clients(clock)
    producer: Any = object()
    other: Any = object()
    key = ClientKey("shop", "a")
    clients.seen(key).streams[producer] = lambda topic: topic == "t"
    clients.seen(key).streams[other] = lambda topic: False

    assert {clients.producer_stream("t") for _ in range(4)} == {producer}
    assert clients.producer_stream("another") is None


def test_work_that_failed_begins_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns: list[int] = []

    def write(file: HeldFile, held: list[HeldLocks]) -> None:
        turns.append(len(held))
        if len(turns) == 1:
            raise RuntimeError("the first turn")

    monkeypatch.setattr(HeldFile, "write", write)
    monkeypatch.setattr("kvstore.serve.grpc.service_table._SWEEP", 0.01)
    monkeypatch.setattr("kvstore.serve.grpc.service_table._PAUSE", 0.01)
    with OpenDoor(store):
        until(lambda: len(turns) > 1)

    assert "begins anew after" in caplog.text


def checkers() -> int:
    return sum(t.name.startswith("kvmq-checker topic-") for t in threading.enumerate())


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x92\x63\x90", bytes(100)])
def test_a_held_file_that_can_not_be_read_is_passed_over(store: Store, data: bytes) -> None:
    (store.path / NAME).write_bytes(data)

    with OpenDoor(store) as door:
        assert door.call(lambda: len(door.services.renewals)) == 0
    assert not (store.path / NAME).exists()


def test_a_store_that_was_served_opens_as_before(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "served") as store, OpenDoor(store):
        store.create_topic("t", queues=1)
    (tmp_path / "served" / NAME).write_bytes(b"rest")

    with kvstore.open(tmp_path / "served") as store:
        assert store.verify().problems == []
