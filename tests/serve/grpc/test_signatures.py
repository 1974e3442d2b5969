"""Calls are signed with an access key where the server has credentials, and do what the key may."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvstore import Store
from kvstore.clock import SystemClock
from kvstore.errors import ExposureRefused
from kvstore.files import LocalFiles
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.exposure import tls_context
from kvstore.serve.access.limits import AccessLimits, ClientLimits
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.caller import Caller
from kvstore.serve.grpc.rocketmq_door import RocketmqDoor
from tests.support import inside
from tests.support.certificates import make_certificate
from tests.support.clock import VirtualClock
from tests.support.grpc_doors import OpenDoor
from tests.support.private_files import private_file
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import answer, code_of, request_of, signed
from tests.support.waiting import until

pytestmark = [pytest.mark.topic(queues=1), pytest.mark.group]
SECRET = "a secret of the shop"
CREDENTIALS = f"""
[[clients]]
name = "shop"
access_key = "shop-1"
secret = "{SECRET}"
produce = ["t"]

[[clients]]
name = "billing"
access_key = "billing-1"
secret = "{SECRET} too"
consume = ["t"]
groups = ["g"]

[[clients]]
name = "owner"
access_key = "owner-1"
secret = "{SECRET} as well"
admin = ["*"]
"""


@pytest.fixture
def door(store: Store, tmp_path: Path) -> Iterator[OpenDoor]:
    path = private_file(tmp_path / "credentials.toml", CREDENTIALS)
    with OpenDoor(store, credentials=path) as door:
        yield door


def test_the_client_signs_and_does_what_its_key_may(
    store: Store, door: OpenDoor, tmp_path: Path
) -> None:
    with RocketmqClient(door.endpoint, tmp_path, access="shop-1", secret=SECRET) as shop:
        shop.do("producer", topics=["t"])
        shop.do("send", topic="t", body="b")
        shop.do("simple", group="g", topics={"t": ["tag", "*"]})
        with pytest.raises(RuntimeError, match="no right to consume"):
            shop.do("receive")

    assert store.bounds("t", 0).next_offset == 1


WRONG = {
    "nothing": {"x-mq-client-id": "by-hand"},
    "no such key": signed("nobody", SECRET),
    "a wrong secret": signed("shop-1", "wrong"),
    "an old date": signed("shop-1", SECRET, datetime(2020, 1, 1, tzinfo=UTC)),
    "another date": {**signed("shop-1", SECRET), "x-mq-date-time": "20270131T235959Z"},
    "no signature": {**signed("shop-1", SECRET), "authorization": "Basic c2hvcA=="},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_call_that_is_not_signed_rightly_is_unauthorized(
    door: OpenDoor, tmp_path: Path, what: str
) -> None:
    with RocketmqClient(door.endpoint, tmp_path) as client:
        for call in ("SendMessage", "QueryRoute", "ReceiveMessage", "Telemetry"):
            request = request_of(call)
            assert code_of(client, call, request, metadata=WRONG[what]) == "UNAUTHORIZED"


def test_a_key_does_nothing_that_it_has_no_right_to(
    store: Store, door: OpenDoor, tmp_path: Path
) -> None:
    shop, billing = signed("shop-1", SECRET), signed("billing-1", f"{SECRET} too")
    owner = signed("owner-1", f"{SECRET} as well", region="/eu/RocketMQ")
    with RocketmqClient(door.endpoint, tmp_path) as client:

        def code(call: str, metadata: dict[str, str], **named: str) -> str:
            return code_of(client, call, request_of(call, **named), metadata=metadata)

        assert code("SendMessage", shop) == "OK"
        assert code("SendMessage", billing) == "FORBIDDEN"
        assert code("ReceiveMessage", shop) == "FORBIDDEN"
        assert code("ReceiveMessage", billing) == "OK"
        assert code("ReceiveMessage", billing, group="other") == "FORBIDDEN"
        assert code("UpdateOffset", shop) == "FORBIDDEN"
        assert code("Heartbeat", shop) == "FORBIDDEN"
        assert code("SendMessage", owner) == "OK"
        level = request_of("ChangeLogLevel")
        level.level = 2
        assert "no right" in answer(client, "ChangeLogLevel", level, metadata=shop).remark
        assert "INFO" in answer(client, "ChangeLogLevel", level, metadata=owner).remark

    assert store.bounds("t", 0).next_offset == 2


def test_a_caller_that_lost_its_right_is_asked_about_no_transaction(tmp_path: Path) -> None:
    path = tmp_path / "credentials.toml"
    path.write_text(CREDENTIALS)
    path.chmod(0o600)
    access = AccessControl(path, LocalFiles(), SystemClock())
    caller = Caller(signed("shop-1", SECRET), access)
    assert [caller.may_produce(topic) for topic in ("t", "other")] == [True, False]
    path.write_text("clients = []")
    access.reload()

    assert not caller.may_produce("t")


def test_a_receipt_is_acked_by_those_that_may_consume_for_its_group(
    store: Store, door: OpenDoor, tmp_path: Path
) -> None:
    store.create_group("other")
    store.put("t", b"b")
    (popped,) = store.pop("other", "t", invisible_for=600)
    billing, owner = signed("billing-1", f"{SECRET} too"), signed("owner-1", f"{SECRET} as well")
    with RocketmqClient(door.endpoint, tmp_path) as client:
        ack = request_of("AckMessage")
        ack.entries.add(message_id="id-1", receipt_handle=popped.receipt)
        change = request_of("ChangeInvisibleDuration")
        change.receipt_handle = popped.receipt

        assert code_of(client, "AckMessage", ack, metadata=billing) == "FORBIDDEN"
        assert code_of(client, "ChangeInvisibleDuration", change, metadata=billing) == "FORBIDDEN"
        assert store.group_stats("other", "t")[0].in_flight == 1
        assert code_of(client, "AckMessage", ack, metadata=owner) == "OK"

    assert store.group_stats("other", "t")[0].in_flight == 0


def test_a_receive_that_waits_brings_nothing_to_a_client_that_was_taken_out(
    store: Store, tmp_path: Path
) -> None:
    path = private_file(tmp_path / "credentials.toml", CREDENTIALS)
    receive = request_of("ReceiveMessage")
    receive.long_polling_timeout.seconds = 15
    billing = signed("billing-1", f"{SECRET} too")
    found = list[str]()
    with (
        OpenDoor(store, credentials=path) as door,
        RocketmqClient(door.endpoint, tmp_path) as client,
    ):

        def wait() -> None:
            found.append(code_of(client, "ReceiveMessage", receive, metadata=billing))

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: inside.waiting_polls(door.gatherer))
        path.write_text(CREDENTIALS.replace('name = "billing"', 'name = "b2"'))
        door.call(door.access.reload)
        store.put("t", b"b")
        thread.join(20)

    assert found == ["UNAUTHORIZED"]
    (popped,) = store.pop("g", "t", wait=10)
    assert popped.attempt == 1


def test_a_client_above_its_limits_is_told_so_and_others_are_not(
    store: Store, tmp_path: Path
) -> None:
    limits = "[limits]\nclient_requests = 3\nrequest_bytes = 2000\n"
    path = private_file(tmp_path / "credentials.toml", CREDENTIALS + limits)
    shop, owner = signed("shop-1", SECRET), signed("owner-1", f"{SECRET} as well")
    with (
        OpenDoor(store, credentials=path, clock=VirtualClock()) as door,
        RocketmqClient(door.endpoint, tmp_path) as client,
    ):

        def code(call: str, metadata: dict[str, str]) -> str:
            return code_of(client, call, request_of(call), metadata=metadata)

        large = request_of("SendMessage")
        large.messages[0].body = bytes(3000)
        assert code_of(client, "SendMessage", large, metadata=shop) == "MESSAGE_BODY_TOO_LARGE"
        assert [code("SendMessage", shop) for _ in range(3)] == ["OK"] * 3
        for call in ("SendMessage", "QueryRoute", "ReceiveMessage", "Telemetry"):
            assert code(call, shop) == "TOO_MANY_REQUESTS"
        assert code("SendMessage", owner) == "OK"

    assert store.bounds("t", 0).next_offset == 4


def test_a_client_has_so_many_connections_and_the_door_counts_all(
    store: Store, tmp_path: Path
) -> None:
    path = private_file(
        tmp_path / "credentials.toml", f"{CREDENTIALS}[limits]\nclient_connections = 1\n"
    )
    shop, owner = signed("shop-1", SECRET), signed("owner-1", f"{SECRET} as well")
    route = request_of("QueryRoute")
    with (
        OpenDoor(store, credentials=path) as door,
        RocketmqClient(door.endpoint, tmp_path) as by_hand,
    ):
        assert door.door.connections == 0
        with RocketmqClient(door.endpoint, tmp_path, access="shop-1", secret=SECRET) as official:
            official.do("producer", topics=["t"])
            assert door.door.connections == 1
            assert code_of(by_hand, "QueryRoute", route, metadata=shop) == "TOO_MANY_REQUESTS"
            assert code_of(by_hand, "QueryRoute", route, metadata=owner) == "OK"
        until(lambda: door.door.connections == 0)
        assert code_of(by_hand, "QueryRoute", route, metadata=shop) == "OK"


def test_tls_and_plaintext_come_through_one_port(store: Store, tmp_path: Path) -> None:
    chain, key = map(Path, make_certificate(tmp_path))
    tls = tls_context(LocalFiles(), chain, key)
    with OpenDoor(store, tls=tls) as door, RocketmqClient(door.endpoint, tmp_path) as client:
        request = request_of("QueryRoute")

        assert code_of(client, "QueryRoute", request) == "OK"
        assert code_of(client, "QueryRoute", request, roots=chain.read_text()) == "OK"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_no_door_opens_beyond_loopback_without_credentials_and_tls(store: Store, host: str) -> None:
    async def opened() -> None:
        gatherer = Gatherer(store)
        access = AccessControl(None, LocalFiles(), store.config.clock)
        limits = ClientLimits(AccessLimits(), store.config.clock)
        door = RocketmqDoor(host, 0, asyncio.get_running_loop(), store, gatherer, access, limits)
        try:
            await door.start()
        finally:
            await gatherer.close()

    with pytest.raises(ExposureRefused, match="--credentials FILE"):
        asyncio.run(opened())
