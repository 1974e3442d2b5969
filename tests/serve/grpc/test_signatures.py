"""Calls are signed with an access key where the server has credentials, and do what the key may."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvstore import Store
from kvstore.errors import ExposureRefused
from kvstore.files import LocalFiles
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.exposure import tls_context
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.rocketmq_door import RocketmqDoor
from tests.support.certificates import make_certificate
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import answer, code_of, request_of

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
    path = tmp_path / "credentials.toml"
    path.write_text(CREDENTIALS)
    path.chmod(0o600)
    with OpenDoor(store, credentials=path) as door:
        yield door


def signed(key: str, secret: str, when: datetime | None = None, region: str = "") -> dict[str, str]:
    date = (when or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.digest(secret.encode(), date.encode(), "sha1").hex()
    return {
        "x-mq-client-id": "by-hand",
        "x-mq-date-time": date,
        "authorization": f"MQv2-HMAC-SHA1 Credential={key}{region}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}",
    }


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


def test_tls_and_plaintext_come_through_one_port(store: Store, tmp_path: Path) -> None:
    chain, key = map(Path, make_certificate(tmp_path))
    key.chmod(0o600)
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
        door = RocketmqDoor(host, 0, asyncio.get_running_loop(), store, gatherer, access)
        try:
            await door.start()
        finally:
            await gatherer.close()

    with pytest.raises(ExposureRefused, match="--credentials FILE"):
        asyncio.run(opened())
