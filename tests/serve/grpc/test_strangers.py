"""A client without a right learns nothing of a topic or group, and touches nothing that another
client has, whatever names, ids and handles it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Store
from kvstore.serve.grpc.renewals import LOCK
from kvstore.serve.grpc.sending import recall_handle
from tests.support.clock import VirtualClock
from tests.support.grpc_doors import OpenDoor
from tests.support.private_files import private_file
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import (
    CODES,
    KINDS,
    add_message,
    answer,
    answers,
    code_of,
    request_of,
    signed,
)
from tests.support.stores import settings

CREDENTIALS = "".join(
    f"""
[[clients]]
name = "{name}"
access_key = "{name}"
secret = "a secret of {name}"
produce = ["{topic}"]
consume = ["{topic}"]
groups = ["{group}"]
"""
    for name, topic, group in (
        ("owner", "t", "g"),
        ("peer", "t", "g"),
        ("stranger", "mine", "mine"),
    )
)


@pytest.fixture
def served(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with kvstore.open(tmp_path / "served", settings(clock=clock)) as store:
        for name in ("t", "mine"):
            store.create_topic(name, queues=1)
        for name in ("g", "mine"):
            store.create_group(name)
        yield store


@pytest.fixture
def door(served: Store, tmp_path: Path) -> Iterator[OpenDoor]:
    path = private_file(tmp_path / "credentials.toml", CREDENTIALS)
    with OpenDoor(served, credentials=path) as door:
        yield door


Signed = Callable[..., dict[str, str]]


@pytest.fixture
def of(clock: VirtualClock) -> Signed:
    """The metadata of a call by some credentials, under one client id unless another is said."""

    def metadata(name: str, client_id: str = "victim") -> dict[str, str]:
        when = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        return signed(name, f"a secret of {name}", when) | {"x-mq-client-id": client_id}

    return metadata


# --- names on which there is no right ---


def told(client: RocketmqClient, call: str, request: Any, metadata: dict[str, str]) -> str:
    """All that a call says, with the name that is not there written as the one that is."""
    found = "".join(map(str, answers(client, call, request, metadata=metadata)))
    return found.replace("absent-topic", "t").replace("absent-group", "g")


FORBIDDEN: Final = frozenset(
    {"QueryRoute", "QueryAssignment", "Heartbeat", "SendMessage", "ReceiveMessage", "AckMessage",
     "ForwardMessageToDeadLetterQueue", "PullMessage", "UpdateOffset", "GetOffset", "QueryOffset",
     "EndTransaction", "Telemetry", "ChangeInvisibleDuration", "RecallMessage",
     "SyncLiteSubscription"}
)  # fmt: skip
"""The calls that name a topic or a group and need a right on it."""
OPEN: Final = frozenset({"NotifyClientTermination", "ChangeLogLevel"})
"""Those that do nothing with a name."""


def test_each_call_of_the_protocol_is_among_those_that_are_tried(door: OpenDoor) -> None:
    calls = {path.rpartition("/")[2] for path in door.services.methods()}

    assert calls == FORBIDDEN | OPEN


@pytest.mark.parametrize("is_known", [True, False])
def test_a_name_without_a_right_is_refused_alike_whether_it_is_there_or_not(
    served: Store, client: RocketmqClient, of: Signed, is_known: bool
) -> None:
    served.put("t", b"a body", keys=["key"])
    group = "mine" if is_known else "g"
    for call in sorted(FORBIDDEN):
        there = request_of(call, "t", group)
        absent = request_of(call, "absent-topic", group if is_known else "absent-group")
        if is_known and call in ("Heartbeat", "Telemetry"):
            continue  # the group is all that they name
        found = told(client, call, there, of("stranger"))
        assert found == told(client, call, absent, of("stranger")), call
        assert "has no right to" in found, call
        assert "FORBIDDEN" in found, call
        assert "a body" not in found
    producer = request_of("Telemetry")
    producer.settings.client_type = KINDS["PRODUCER"]
    producer.settings.publishing.topics.add(name="t")
    assert code_of(client, "Telemetry", producer, metadata=of("stranger")) == "FORBIDDEN"
    assert served.group_stats("g", "t")[0].in_flight == 0


def test_a_route_takes_any_right_on_the_topic(client: RocketmqClient, of: Signed) -> None:
    def code(topic: str) -> str:
        return code_of(client, "QueryRoute", request_of("QueryRoute", topic), metadata=of("owner"))

    assert [code(topic) for topic in ("t", "mine", "absent")] == ["OK", "FORBIDDEN", "FORBIDDEN"]


# --- what others hold under an id ---


def pushed(client: RocketmqClient, metadata: dict[str, str], attempt_id: str = "a") -> list[str]:
    """The handles of a push consumer's receive."""
    request = request_of("ReceiveMessage")
    request.auto_renew, request.attempt_id = True, attempt_id
    found = answers(client, "ReceiveMessage", request, metadata=metadata)
    return [a.message.system_properties.receipt_handle for a in found if a.HasField("message")]


def heartbeat(client: RocketmqClient, metadata: dict[str, str], group: str = "g") -> None:
    request = request_of("Heartbeat", group=group)
    request.client_type = KINDS["PUSH_CONSUMER"]
    assert code_of(client, "Heartbeat", request, metadata=metadata) == "OK"


def acked(client: RocketmqClient, handle: str, metadata: dict[str, str]) -> str:
    request = request_of("AckMessage")
    request.entries.add(receipt_handle=handle)
    return code_of(client, "AckMessage", request, metadata=metadata)


@pytest.mark.parametrize("who", ["stranger", "peer"])
def test_a_client_ends_none_of_other_credentials_by_its_id(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock, of: Signed, who: str
) -> None:
    served.put("t", b"b")
    (handle,) = pushed(client, of("owner"))
    end = request_of("NotifyClientTermination", group="g" if who == "peer" else "mine")
    for _ in range(12):
        assert code_of(client, "NotifyClientTermination", end, metadata=of(who)) == "OK"
        clock.advance(LOCK / 6)
        heartbeat(client, of("owner"))
        door.run(door.services.renewals.turn())

    assert pushed(client, of("peer", "second")) == []
    assert acked(client, handle, of("owner")) == "OK"


def test_heartbeats_of_other_credentials_keep_no_lock(
    served: Store, door: OpenDoor, client: RocketmqClient, clock: VirtualClock, of: Signed
) -> None:
    served.put("t", b"b")
    pushed(client, of("owner"))
    for _ in range(12):
        clock.advance(LOCK / 6)
        heartbeat(client, of("stranger"), "mine")
        heartbeat(client, of("peer"))
        door.run(door.services.renewals.turn())

    assert [p.attempt for p in served.pop("g", "t")] == [2]


def test_an_attempt_id_is_one_of_its_client_and_its_credentials(
    served: Store, client: RocketmqClient, of: Signed
) -> None:
    served.put("t", b"b")

    assert pushed(client, of("owner")) == pushed(client, of("owner")) != []
    assert pushed(client, of("peer")) == []


def test_a_lock_is_renewed_for_its_client_alone_after_a_restart_of_the_server(
    served: Store, tmp_path: Path, clock: VirtualClock, of: Signed
) -> None:
    path = private_file(tmp_path / "credentials.toml", CREDENTIALS)
    served.put("t", b"b")
    with OpenDoor(served, credentials=path) as door:
        port = door.port
        client = RocketmqClient(door.endpoint, tmp_path)
        (handle,) = pushed(client, of("owner"))
    end = request_of("NotifyClientTermination")
    with client, OpenDoor(served, port, credentials=path) as door:
        assert code_of(client, "NotifyClientTermination", end, metadata=of("stranger")) == "OK"
        for _ in range(12):
            heartbeat(client, of("owner"))
            clock.advance(LOCK / 6)
            door.run(door.services.renewals.turn())
        assert served.pop("g", "t") == []
        assert acked(client, handle, of("owner")) == "OK"


# --- ids and handles of messages to other topics ---


def test_a_handle_that_was_written_by_a_stranger_recalls_nothing(
    served: Store, client: RocketmqClient, of: Signed
) -> None:
    waits = served.put("t", b"b", delay=600).message_id
    ended = served.put("t", b"b", delay=600).message_id
    served.cancel(ended)
    codes, texts = set[str](), set[str]()
    for message_id in (waits, ended, "0" * len(waits)):
        request = request_of("RecallMessage", "mine")
        request.recall_handle = recall_handle(
            kvstore.Message("mine", b"", deliver_at=1 << 41), message_id
        )
        found = answer(client, "RecallMessage", request, metadata=of("stranger")).status
        codes.add(CODES[found.code])
        texts.add(found.message.replace(message_id, "ID"))

    assert codes == {"MESSAGE_NOT_FOUND"}
    assert len(texts) == 1
    assert served.timers("t").count == 1


def test_an_id_that_was_written_by_a_stranger_ends_no_transaction(
    served: Store, client: RocketmqClient, of: Signed
) -> None:
    waits, ended = (served.prepare("t", b"b", group="t") for _ in range(2))
    served.commit(ended)
    codes, texts = set[str](), set[str]()
    for message_id in (waits.message_id, ended.message_id, "0" * len(waits.message_id)):
        for resolution in (1, 2):
            for position in ("", f"+{waits.position}", f"+{ended.position}"):
                request = request_of("EndTransaction", "mine")
                request.transaction_id = f"{message_id}{position}"
                request.resolution = resolution
                found = answer(client, "EndTransaction", request, metadata=of("stranger")).status
                codes.add(CODES[found.code])
                if not position:
                    texts.add(found.message.replace(message_id, "ID"))

    assert codes == {"INVALID_TRANSACTION_ID"}
    assert len(texts) == 1
    assert served.transactions().count == 1


def test_a_send_to_a_topic_without_a_right_says_nothing_of_it(
    served: Store, client: RocketmqClient, of: Signed
) -> None:
    served.create_topic("fifo", queues=1, kind="fifo")
    request = request_of("SendMessage", "mine")
    for topic in ("fifo", "t", "absent-topic"):
        add_message(request, topic)
    found = answer(client, "SendMessage", request, metadata=of("stranger"))

    codes = [CODES[entry.status.code] for entry in found.entries]
    assert codes == ["OK", "FORBIDDEN", "FORBIDDEN", "FORBIDDEN"]
