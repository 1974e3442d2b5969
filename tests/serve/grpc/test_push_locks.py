"""Locks of push consumers are renewed while their clients live, and their handles stay good."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import Store
from kvstore.serve.grpc.clients import ClientKey
from kvstore.serve.grpc.renewals import FOR, LOCK, Renewals
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import KINDS, answer, answers, code_of, request_of
from tests.support.stores import settings

HEARTBEATS = 10.0


@pytest.fixture
def served(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with kvstore.open(tmp_path / "served", settings(clock=clock)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", max_attempts=3)
        yield store


def pushed(client: RocketmqClient, attempt_id: str = "a", topic: str = "t") -> list[str]:
    """The handles of a push consumer's receive."""
    request = request_of("ReceiveMessage", topic)
    request.auto_renew, request.attempt_id = True, attempt_id
    request.ClearField("invisible_duration")
    found = answers(client, "ReceiveMessage", request)
    return [a.message.system_properties.receipt_handle for a in found if a.HasField("message")]


def heartbeat(client: RocketmqClient) -> None:
    request = request_of("Heartbeat")
    request.client_type = KINDS["PUSH_CONSUMER"]
    assert code_of(client, "Heartbeat", request) == "OK"


def let_pass(
    seconds: float, door: OpenDoor, clock: VirtualClock, client: RocketmqClient | None
) -> None:
    """Lets time pass, with the turns of the renewals, and a client's heartbeats if there is one."""
    while seconds > 0:
        clock.advance(HEARTBEATS)
        seconds -= HEARTBEATS
        if client is not None:
            heartbeat(client)
        door.run(door.services.renewals.turn())


def acked(client: RocketmqClient, handle: str) -> str:
    request = request_of("AckMessage")
    request.entries.add(receipt_handle=handle)
    return code_of(client, "AckMessage", request)


def test_a_lock_lasts_as_long_as_heartbeats_come_and_its_first_handle_acks(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock
) -> None:
    served.put("t", b"b")
    (handle,) = pushed(client)
    let_pass(10 * LOCK, door, clock, client)

    assert served.pop("g", "t") == []
    assert acked(client, handle) == "OK"
    assert served.group_stats("g", "t")[0].in_flight == 0
    assert door.call(lambda: len(door.services.renewals)) == 0


def test_a_lock_ends_soon_after_the_last_heartbeat(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock
) -> None:
    served.put("t", b"b")
    (handle,) = pushed(client)
    let_pass(2 * LOCK, door, clock, client)
    let_pass(2 * LOCK, door, clock, None)

    assert [p.attempt for p in served.pop("g", "t")] == [2]
    assert acked(client, handle) == "INVALID_RECEIPT_HANDLE"


def test_a_lock_is_renewed_for_three_hours_at_most(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock
) -> None:
    served.put("t", b"b")
    pushed(client)
    let_pass(FOR - LOCK, door, clock, client)
    assert served.pop("g", "t") == []
    let_pass(3 * LOCK, door, clock, client)

    assert [p.attempt for p in served.pop("g", "t")] == [2]


def test_a_renewal_that_fails_for_any_reason_is_tried_again(clock: VirtualClock) -> None:
    asked: list[list[str]] = []

    async def renew(receipts: Sequence[str], seconds: float) -> list[bool]:
        asked.append(list(receipts))
        if len(asked) == 1:
            raise RuntimeError("of no kind that the store has")
        return [True] * len(receipts)

    renewals = Renewals(renew, lambda client: True, clock)
    renewals.hold(ClientKey("shop", "client"), ["receipt"])
    clock.advance(LOCK)
    with pytest.raises(RuntimeError):
        asyncio.run(renewals.turn())
    clock.advance(LOCK)
    asyncio.run(renewals.turn())

    assert asked == [["receipt"]] * 2


def test_a_client_that_ends_gives_its_messages_back(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock
) -> None:
    served.put("t", b"b")
    pushed(client)
    assert code_of(client, "NotifyClientTermination", request_of("NotifyClientTermination")) == "OK"
    clock.advance(1)

    assert [p.attempt for p in served.pop("g", "t")] == [2]


def test_a_failed_message_comes_again_after_the_time_that_the_client_says(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock
) -> None:
    served.put("t", b"b")
    heartbeat(client)
    (handle,) = pushed(client)
    let_pass(2 * LOCK, door, clock, client)
    request = request_of("ChangeInvisibleDuration")
    request.receipt_handle = handle
    changed = answer(client, "ChangeInvisibleDuration", request)

    assert changed.receipt_handle not in ("", handle)
    clock.advance(9)
    assert served.pop("g", "t") == []
    clock.advance(2)
    assert [p.attempt for p in served.pop("g", "t")] == [2]


def test_a_message_goes_to_the_dead_letters_by_its_first_handle(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock
) -> None:
    served.put("t", b"b")
    (handle,) = pushed(client)
    let_pass(2 * LOCK, door, clock, client)
    request = request_of("ForwardMessageToDeadLetterQueue")
    request.receipt_handle = handle

    assert code_of(client, "ForwardMessageToDeadLetterQueue", request) == "OK"
    assert [m.body for m in served.pull("%DLQ%g", 0, 0).messages] == [b"b"]


def test_a_repeated_receive_gets_the_same_messages_and_another_client_does_not(
    served: Store, client: RocketmqClient
) -> None:
    served.put("t", b"b")

    assert pushed(client) == pushed(client) != []
    request = request_of("ReceiveMessage")
    request.auto_renew, request.attempt_id = True, "a"
    other = {"x-mq-client-id": "another"}
    assert not answer(client, "ReceiveMessage", request, metadata=other).HasField("message")


def test_messages_that_were_received_again_are_renewed_once_and_forgotten_when_they_are_acked(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock
) -> None:
    served.put("t", b"b")
    (handle,) = pushed(client)
    pushed(client)
    let_pass(LOCK, door, clock, client)
    assert acked(client, handle) == "OK"
    let_pass(LOCK, door, clock, client)

    kept = door.services.renewals
    assert door.call(lambda: (len(kept), inside.planned_renewals(kept))) == (0, 0)


def test_a_handle_is_good_after_renewals_and_a_restart_of_the_server(
    tmp_path: Path, clock: VirtualClock
) -> None:
    folder, config = tmp_path / "served", settings(clock=clock)
    with kvstore.open(folder, config) as store:
        store.create_topic("t", queues=1)
        store.put_batch([kvstore.Message("t", b"0"), kvstore.Message("t", b"1")])
        with OpenDoor(store) as door:
            port = door.port
            client = RocketmqClient(door.endpoint, tmp_path)
            first, second = pushed(client)
            let_pass(3 * LOCK, door, clock, client)
    with client, kvstore.open(folder, config) as store, OpenDoor(store, port) as door:
        assert acked(client, first) == "OK"
        let_pass(3 * LOCK, door, clock, client)
        assert store.pop("g", "t") == []
        assert acked(client, second) == "OK"
        assert store.group_stats("g", "t")[0].in_flight == 0


def test_what_is_renewed_is_forgotten_with_the_last_message(
    served: Store, door: OpenDoor, client: RocketmqClient
) -> None:
    served.put_batch([kvstore.Message("t", b"0"), kvstore.Message("t", b"1")])
    kept: Any = door.services.renewals
    for handle in pushed(client):
        assert door.call(lambda: len(kept)) > 0
        acked(client, handle)

    assert door.call(lambda: len(kept)) == 0
