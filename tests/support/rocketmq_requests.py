"""Requests of RocketMQ's protocol, made by hand: good ones, which a test makes bad in one place."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kvstore.serve.grpc.protocol.protocol_tables import ADMIN, MESSAGING, PACKAGE
from kvstore.serve.grpc.protocol.wire import NUMBERS, message_class, set_ms, set_seconds
from tests.support.rocketmq_client import RocketmqClient

HEAD = {"x-mq-client-id": "by-hand", "x-mq-language": "COBOL"}
CODES = {number: name for name, number in NUMBERS["Code"].items()}
KINDS = NUMBERS["ClientType"]


def _named(resource: Any, name: str) -> None:
    resource.name = name


def _reached(endpoints: Any, _: str) -> None:
    endpoints.scheme = 1
    endpoints.addresses.add(host="127.0.0.1", port=1)


_GOOD: dict[str, Callable[[Any, str], object]] = {
    "topic": _named,
    "group": _named,
    "endpoints": _reached,
    "invisible_duration": lambda duration, _: set_seconds(duration, 10),
    "long_polling_timeout": lambda duration, _: set_seconds(duration, 0),
}
_NUMBERS = {"batch_size": 4, "client_type": KINDS["SIMPLE_CONSUMER"]}


def request_of(call: str, topic: str = "t", group: str = "g") -> Any:
    """A request that is good."""
    name = "TelemetryCommand" if call == "Telemetry" else f"{call}Request"
    made = message_class(name)()
    fields = made.DESCRIPTOR.fields_by_name
    for field, fill in _GOOD.items():
        if field in fields:
            fill(getattr(made, field), topic if field == "topic" else group)
    for field, number in _NUMBERS.items():
        if field in fields:
            setattr(made, field, number)
    if "message_queue" in fields:
        made.message_queue.topic.name = topic
    if call == "SendMessage":
        add_message(made, topic)
    if call == "Telemetry":
        made.settings.client_type = KINDS["SIMPLE_CONSUMER"]
        made.settings.subscription.group.name = group
    return made


def add_message(request: Any, topic: str = "t", message_id: str = "id-1") -> Any:
    """Adds a message that is good, and returns it."""
    message = request.messages.add()
    message.topic.name = topic
    message.body = b"b"
    message.system_properties.message_id = message_id
    message.system_properties.body_encoding = 1
    set_ms(message.system_properties.born_timestamp, 1_767_326_645_680)
    return message


def signed(key: str, secret: str, when: datetime | None = None, region: str = "") -> dict[str, str]:
    """The metadata of a call that is signed with an access key."""
    date = (when or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.digest(secret.encode(), date.encode(), "sha1").hex()
    return {
        "x-mq-client-id": HEAD["x-mq-client-id"],
        "x-mq-date-time": date,
        "authorization": f"MQv2-HMAC-SHA1 Credential={key}{region}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}",
    }


def answers(
    client: RocketmqClient,
    call: str,
    request: Any,
    metadata: dict[str, str] | None = None,
    timeout: float = 30.0,
    roots: str | None = None,
) -> list[Any]:
    """The messages that the server answers."""
    path = (ADMIN if call == "ChangeLogLevel" else MESSAGING) + call
    kind = message_class("TelemetryCommand" if call == "Telemetry" else f"{call}Response")
    raw = base64.b64encode(request.SerializeToString()).decode()
    sent = HEAD if metadata is None else metadata
    found = client.do("call", path=path, request=raw, metadata=sent, timeout=timeout, roots=roots)
    return [kind.FromString(base64.b64decode(one)) for one in found]


def answer(client: RocketmqClient, call: str, request: Any, **given: Any) -> Any:
    """The first of them."""
    return answers(client, call, request, **given)[0]


def code_of(client: RocketmqClient, call: str, request: Any, **given: Any) -> str:
    """The code at the top of the answer."""
    return CODES[answer(client, call, request, **given).status.code]


__all__ = [
    "CODES", "HEAD", "KINDS", "PACKAGE", "add_message", "answer", "answers", "code_of",
    "request_of", "signed",
]  # fmt: skip
