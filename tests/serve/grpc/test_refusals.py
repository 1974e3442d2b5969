"""Every wrong request of a RocketMQ client is answered with RocketMQ's code, at the top and in each
entry, and changes nothing.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kvstore
from kvstore import Store
from kvstore.serve.grpc.protocol.wire import set_ms, set_seconds
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import (
    CODES,
    HEAD,
    add_message,
    answer,
    answers,
    code_of,
    request_of,
)

Spoil = Callable[[Any], object]
UNARY = (
    "QueryRoute", "QueryAssignment", "Heartbeat", "SendMessage", "EndTransaction", "RecallMessage",
    "AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue", "UpdateOffset",
    "GetOffset", "QueryOffset", "NotifyClientTermination", "SyncLiteSubscription",
)  # fmt: skip
ALL = (*UNARY, "ReceiveMessage", "PullMessage", "Telemetry")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with kvstore.open(tmp_path_factory.mktemp("served")) as store:
        for kind in ("normal", "fifo", "delay", "transaction", "priority", "compacted"):
            store.create_topic("t" if kind == "normal" else kind, queues=2, kind=kind)
        store.create_topic("undelayed", queues=1, takes_delays=False)
        store.create_group("g")
        yield store


@pytest.fixture(scope="module")
def client(served: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqClient]:
    with (
        OpenDoor(served) as door,
        RocketmqClient(door.endpoint, tmp_path_factory.mktemp("client")) as client,
    ):
        yield client


def puts(store: Store) -> int:
    return sum(
        store.bounds(t.name, q).next_offset for t in store.topics() for q in range(t.read_queues)
    )


# --- who calls, and what is named ---


@pytest.mark.parametrize("call", ALL)
def test_a_call_without_a_client_id_is_refused(client: RocketmqClient, call: str) -> None:
    assert code_of(client, call, request_of(call), metadata={}) == "CLIENT_ID_REQUIRED"


@pytest.mark.parametrize(
    "topic", ["", " ", "no/slash", "t" * 200, "rmq_sys_wheel_timer", "%RETRY%g"]
)
@pytest.mark.parametrize(
    "call",
    ["QueryRoute", "QueryAssignment", "SendMessage", "ReceiveMessage", "PullMessage", "GetOffset",
     "UpdateOffset", "QueryOffset", "EndTransaction", "RecallMessage", "SyncLiteSubscription"],
)  # fmt: skip
def test_an_illegal_topic_is_refused(client: RocketmqClient, call: str, topic: str) -> None:
    assert code_of(client, call, request_of(call, topic)) == "ILLEGAL_TOPIC"


@pytest.mark.parametrize(
    "call", ["QueryRoute", "QueryAssignment", "SendMessage", "ReceiveMessage", "PullMessage"]
)
def test_an_unknown_topic_is_not_found(client: RocketmqClient, call: str) -> None:
    assert code_of(client, call, request_of(call, "nowhere")) == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize("group", ["", "no/slash", "g" * 130])
@pytest.mark.parametrize(
    "call",
    ["QueryAssignment", "Heartbeat", "ReceiveMessage", "AckMessage", "ChangeInvisibleDuration",
     "ForwardMessageToDeadLetterQueue", "PullMessage", "UpdateOffset", "GetOffset", "Telemetry"],
)  # fmt: skip
def test_an_illegal_group_is_refused(client: RocketmqClient, call: str, group: str) -> None:
    assert code_of(client, call, request_of(call, group=group)) == "ILLEGAL_CONSUMER_GROUP"


def test_nothing_is_sent_to_a_topic_of_dead_letters(client: RocketmqClient) -> None:
    assert code_of(client, "SendMessage", request_of("SendMessage", "%DLQ%g")) == "ILLEGAL_TOPIC"


@pytest.mark.parametrize("call", ["QueryRoute", "QueryAssignment"])
def test_a_route_for_no_address_is_refused(client: RocketmqClient, call: str) -> None:
    request = request_of(call)
    request.endpoints.ClearField("addresses")

    assert code_of(client, call, request) == "ILLEGAL_ACCESS_POINT"


@pytest.mark.parametrize("call", ["Heartbeat", "Telemetry"])
def test_an_unknown_kind_of_client_is_refused(client: RocketmqClient, call: str) -> None:
    request = request_of(call)
    (request.settings if call == "Telemetry" else request).client_type = 0

    assert code_of(client, call, request) == "UNRECOGNIZED_CLIENT_TYPE"


# --- sending ---


def zipped_badly(message: Any) -> None:
    message.body, message.system_properties.body_encoding = b"no gzip", 2


def zipped_short(message: Any) -> None:
    message.body, message.system_properties.body_encoding = gzip.compress(b"b" * 99)[:-12], 2


def zipped_large(message: Any) -> None:
    message.body, message.system_properties.body_encoding = gzip.compress(bytes(5 << 20)), 2


def digested_wrongly(message: Any) -> None:
    digest = message.system_properties.body_digest
    digest.type, digest.checksum = 1, "00000000"


def with_type(name: int) -> Spoil:
    return lambda m: setattr(m.system_properties, "message_type", name)


def system(name: str, value: object) -> Spoil:
    return lambda m: setattr(m.system_properties, name, value)


def user(name: str, value: str = "v") -> Spoil:
    return lambda m: m.user_properties.update({name: value})


def due(at: int) -> Spoil:
    return lambda m: set_ms(m.system_properties.delivery_timestamp, at)


def both(*spoils: Spoil) -> Spoil:
    return lambda m: [spoil(m) for spoil in spoils]


ILLEGAL: dict[str, tuple[Spoil, str]] = {
    "no id": (system("message_id", ""), "ILLEGAL_MESSAGE_ID"),
    "blank tag": (system("tag", " "), "ILLEGAL_MESSAGE_TAG"),
    "tag of two": (system("tag", "a||b"), "ILLEGAL_MESSAGE_TAG"),
    "tag with a control": (system("tag", "a\x01"), "ILLEGAL_MESSAGE_TAG"),
    "empty key": (lambda m: m.system_properties.keys.append(""), "ILLEGAL_MESSAGE_KEY"),
    "key of two": (lambda m: m.system_properties.keys.append("a b"), "ILLEGAL_MESSAGE_KEY"),
    "empty group": (system("message_group", ""), "ILLEGAL_MESSAGE_GROUP"),
    "long group": (system("message_group", "g" * 65), "ILLEGAL_MESSAGE_GROUP"),
    "reserved name": (user("UNIQ_KEY"), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    "transient name": (user("__RMQ.TRANSIENT.a"), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    "empty name": (user(""), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    "name with a control": (user("a\x01"), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    "value with a control": (user("a", "b\x02"), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    "many properties": (
        lambda m: m.user_properties.update({str(i): "v" for i in range(129)}),
        "MESSAGE_PROPERTIES_TOO_LARGE",
    ),
    "large properties": (user("a", "v" * 16_400), "MESSAGE_PROPERTIES_TOO_LARGE"),
    "large body": (
        lambda m: setattr(m, "body", bytes((4 << 20) + 1)), "MESSAGE_BODY_TOO_LARGE",
    ),
    "large body, zipped": (zipped_large, "MESSAGE_BODY_TOO_LARGE"),
    "no gzip": (zipped_badly, "MESSAGE_CORRUPTED"),
    "short gzip": (zipped_short, "MESSAGE_CORRUPTED"),
    "wrong digest": (digested_wrongly, "MESSAGE_CORRUPTED"),
    "unknown digest": (
        lambda m: setattr(m.system_properties.body_digest, "type", 9), "MESSAGE_CORRUPTED",
    ),
    "unknown encoding": (system("body_encoding", 7), "MESSAGE_CORRUPTED"),
    "negative encoding": (system("body_encoding", -1), "MESSAGE_CORRUPTED"),
    "unknown type": (with_type(77), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    "negative type": (with_type(-1), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    "negative recovery": (
        both(
            with_type(4),
            lambda m: set_seconds(m.system_properties.orphaned_transaction_recovery_duration, -1),
        ),
        "BAD_REQUEST",
    ),
    "negative time": (due(-5), "ILLEGAL_DELIVERY_TIME"),
    "time of 1970": (due(5000), "ILLEGAL_DELIVERY_TIME"),
    "far time": (due(1 << 48), "ILLEGAL_DELIVERY_TIME"),
    "normal with a group": (
        both(with_type(1), system("message_group", "g")), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    ),
    "fifo without a group": (with_type(2), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    "delay without a time": (with_type(3), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    "transaction with a time": (
        both(with_type(4), due(1 << 40)), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    ),
    "group and time": (
        both(system("message_group", "g"), due(1 << 40)), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    ),
    "priority on no topic of it": (system("priority", 1), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    "lite": (both(with_type(5), system("lite_topic", "l")), "UNSUPPORTED"),
}  # fmt: skip


@pytest.mark.parametrize("what", ILLEGAL)
def test_an_illegal_message_fails_alone_with_its_code(
    served: Store, client: RocketmqClient, what: str
) -> None:
    spoil, expected = ILLEGAL[what]
    request = request_of("SendMessage")
    spoil(add_message(request, message_id="id-2"))
    add_message(request, message_id="id-3")
    before = puts(served)

    found = answer(client, "SendMessage", request)

    assert [CODES[entry.status.code] for entry in found.entries] == ["OK", expected, "OK"]
    assert CODES[found.status.code] == "MULTIPLE_RESULTS"
    assert puts(served) == before + 2


@pytest.mark.parametrize("what", ILLEGAL)
def test_an_illegal_message_by_itself_has_its_code_at_the_top(
    served: Store, client: RocketmqClient, what: str
) -> None:
    spoil, expected = ILLEGAL[what]
    request = request_of("SendMessage")
    spoil(request.messages[0])
    before = puts(served)

    assert code_of(client, "SendMessage", request) == expected
    assert puts(served) == before


@pytest.mark.parametrize("topic", ["fifo", "delay", "transaction"])
def test_a_message_of_another_type_than_its_topics_is_refused(
    client: RocketmqClient, topic: str
) -> None:
    request = request_of("SendMessage", topic)

    assert code_of(client, "SendMessage", request) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


def test_a_priority_is_0_or_more(client: RocketmqClient) -> None:
    request = request_of("SendMessage", "priority")
    request.messages[0].system_properties.priority = -1
    assert code_of(client, "SendMessage", request) == "BAD_REQUEST"

    for priority in (0, 1, (1 << 31) - 1):
        request.messages[0].system_properties.priority = priority
        assert code_of(client, "SendMessage", request) == "OK"


def test_a_level_of_the_log_that_there_is_not_is_refused(client: RocketmqClient) -> None:
    request = request_of("ChangeLogLevel")
    request.level = 77

    assert "77, which is none" in answer(client, "ChangeLogLevel", request).remark


def test_a_message_without_keys_is_refused_by_a_compacted_topic(client: RocketmqClient) -> None:
    request = request_of("SendMessage", "compacted")
    assert code_of(client, "SendMessage", request) == "ILLEGAL_MESSAGE_KEY"

    request.messages[0].system_properties.keys.append("k")
    assert code_of(client, "SendMessage", request) == "OK"


def test_a_topic_that_takes_no_delays_refuses_a_delayed_message(client: RocketmqClient) -> None:
    request = request_of("SendMessage", "undelayed")
    due(1 << 41)(request.messages[0])

    assert code_of(client, "SendMessage", request) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


def test_a_request_without_a_message_is_refused(client: RocketmqClient) -> None:
    request = request_of("SendMessage")
    request.ClearField("messages")

    assert code_of(client, "SendMessage", request) == "MESSAGE_CORRUPTED"


@pytest.mark.parametrize("resolution", [1, 2])
def test_an_unknown_transaction_can_not_be_ended(client: RocketmqClient, resolution: int) -> None:
    request = request_of("EndTransaction")
    request.transaction_id, request.resolution = "0" * 32, resolution

    assert code_of(client, "EndTransaction", request) == "INVALID_TRANSACTION_ID"


def test_a_transaction_is_not_ended_by_another_topic_nor_without_a_resolution(
    client: RocketmqClient,
) -> None:
    sent = request_of("SendMessage")
    sent.messages[0].system_properties.message_type = 4
    sent.messages[0].system_properties.message_id = "0102FC00000001651E0B18C2DF00000001"
    handle = answer(client, "SendMessage", sent).entries[0].transaction_id

    other, open_ended = request_of("EndTransaction", "fifo"), request_of("EndTransaction")
    other.transaction_id = open_ended.transaction_id = handle
    other.resolution = 1

    assert code_of(client, "EndTransaction", other) == "INVALID_TRANSACTION_ID"
    assert code_of(client, "EndTransaction", open_ended) == "BAD_REQUEST"
    open_ended.resolution = 2
    assert code_of(client, "EndTransaction", open_ended) == "OK"
    assert code_of(client, "EndTransaction", open_ended) == "OK"
    open_ended.resolution = 1
    assert code_of(client, "EndTransaction", open_ended) == "INVALID_TRANSACTION_ID"


def test_a_transaction_id_ends_its_own_transaction_where_two_have_one_message_id(
    client: RocketmqClient,
) -> None:
    sent = request_of("SendMessage")
    sent.messages[0].system_properties.message_type = 4
    sent.messages[0].system_properties.message_id = "0102FC00000001651E0B18C2DF00000002"
    handles = [answer(client, "SendMessage", sent).entries[0].transaction_id for _ in range(3)]
    assert len({*handles}) == 3

    def ended(named: str, resolution: int, *, by_id: bool = False) -> str:
        request = request_of("EndTransaction")
        request.resolution = resolution
        if by_id:
            request.message_id = named
        else:
            request.transaction_id = named
        return code_of(client, "EndTransaction", request)

    assert ended(handles[0], 2) == "OK"
    assert ended(handles[0], 1) == "INVALID_TRANSACTION_ID"
    assert ended(handles[0], 2) == "OK"
    assert ended(handles[1], 1) == ended(handles[1], 1) == "OK"
    assert ended(handles[1], 2) == "INVALID_TRANSACTION_ID"
    message_id, _, position = handles[2].rpartition("+")
    for wrong in (
        f"{message_id}+{int(position) + 1}",
        f"x+{position}",
        "+1",
        "1+",
        "1+" + "9" * 30,
    ):
        assert ended(wrong, 2) == "INVALID_TRANSACTION_ID"
    assert ended(message_id, 1, by_id=True) == "OK"
    assert ended(handles[2], 2) == "INVALID_TRANSACTION_ID"
    assert ended(handles[2], 1) == "OK"


@pytest.mark.parametrize("handle", ["", "?", "djE=", "é", "A" * 10_000])
def test_a_text_that_is_no_recall_handle_is_refused(client: RocketmqClient, handle: str) -> None:
    request = request_of("RecallMessage")
    request.recall_handle = handle

    assert code_of(client, "RecallMessage", request) == "INVALID_RECEIPT_HANDLE"


def test_a_recall_names_the_topic_of_its_message_and_comes_in_time(
    served: Store, client: RocketmqClient
) -> None:
    sent = request_of("SendMessage")
    due(served.config.clock.now_ms() + 60_000)(sent.messages[0])
    handle = answer(client, "SendMessage", sent).entries[0].recall_handle
    other, request = request_of("RecallMessage", "fifo"), request_of("RecallMessage")
    other.recall_handle = request.recall_handle = handle

    assert code_of(client, "RecallMessage", other) == "ILLEGAL_TOPIC"
    assert code_of(client, "RecallMessage", request) == "OK"
    assert served.timers("t").count == 0


# --- receiving ---


def seventh_resolution(request: Any) -> None:
    request.transaction_id, request.resolution = "0" * 32, 7


def seconds(name: str, value: float) -> Spoil:
    return lambda r: set_seconds(getattr(r, name), value)


@pytest.mark.parametrize(
    ("call", "spoil", "expected"),
    [
        ("ReceiveMessage", seconds("invisible_duration", 9), "ILLEGAL_INVISIBLE_TIME"),
        ("ReceiveMessage", seconds("invisible_duration", 43_201), "ILLEGAL_INVISIBLE_TIME"),
        ("ReceiveMessage", seconds("long_polling_timeout", -1), "ILLEGAL_POLLING_TIME"),
        ("ReceiveMessage", lambda r: setattr(r, "batch_size", 0), "BAD_REQUEST"),
        ("ReceiveMessage", lambda r: setattr(r, "batch_size", -1), "BAD_REQUEST"),
        (
            "ReceiveMessage",
            lambda r: setattr(r.filter_expression, "type", 77),
            "ILLEGAL_FILTER_EXPRESSION",
        ),
        ("PullMessage", seconds("long_polling_timeout", -1), "ILLEGAL_POLLING_TIME"),
        ("UpdateOffset", lambda r: setattr(r, "offset", -1), "ILLEGAL_OFFSET"),
        ("QueryOffset", lambda r: setattr(r, "query_offset_policy", 77), "BAD_REQUEST"),
        ("QueryOffset", lambda r: setattr(r, "query_offset_policy", -1), "BAD_REQUEST"),
        (
            "QueryRoute",
            lambda r: setattr(r.endpoints.addresses[0], "port", 65_536),
            "ILLEGAL_ACCESS_POINT",
        ),
        ("Heartbeat", lambda r: setattr(r, "client_type", 77), "UNRECOGNIZED_CLIENT_TYPE"),
        ("EndTransaction", seventh_resolution, "BAD_REQUEST"),
        ("PullMessage", lambda r: setattr(r, "batch_size", 0), "BAD_REQUEST"),
        ("PullMessage", lambda r: setattr(r, "offset", -1), "ILLEGAL_OFFSET"),
        ("PullMessage", lambda r: setattr(r, "offset", 1 << 40), "ILLEGAL_OFFSET"),
        ("PullMessage", lambda r: setattr(r.message_queue, "id", 9), "BAD_REQUEST"),
        ("UpdateOffset", lambda r: setattr(r, "offset", 1 << 40), "ILLEGAL_OFFSET"),
        ("UpdateOffset", lambda r: setattr(r.message_queue, "id", -1), "BAD_REQUEST"),
        ("GetOffset", lambda r: setattr(r.message_queue, "id", 1), "OFFSET_NOT_FOUND"),
        ("QueryOffset", lambda r: setattr(r, "query_offset_policy", 2), "BAD_REQUEST"),
        ("AckMessage", lambda r: None, "BAD_REQUEST"),
        ("ChangeInvisibleDuration", lambda r: None, "INVALID_RECEIPT_HANDLE"),
        (
            "ChangeInvisibleDuration",
            seconds("invisible_duration", 43_201),
            "INVALID_RECEIPT_HANDLE",
        ),
        ("ForwardMessageToDeadLetterQueue", lambda r: None, "INVALID_RECEIPT_HANDLE"),
        ("SyncLiteSubscription", lambda r: None, "UNSUPPORTED"),
    ],
)
def test_a_wrong_field_of_a_consumers_request_has_its_code(
    client: RocketmqClient, call: str, spoil: Spoil, expected: str
) -> None:
    request = request_of(call)
    spoil(request)

    assert code_of(client, call, request) == expected


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("call", ["ReceiveMessage", "PullMessage"])
def test_a_filter_that_can_not_be_read_is_refused(
    client: RocketmqClient, call: str, kind: int
) -> None:
    request = request_of(call)
    request.filter_expression.type, request.filter_expression.expression = kind, "a > || ("

    assert code_of(client, call, request) == "ILLEGAL_FILTER_EXPRESSION"


def test_each_handle_of_an_ack_has_its_own_code(served: Store, client: RocketmqClient) -> None:
    served.create_topic("acked", queues=1, exist_ok=True)
    served.put("acked", b"b")
    found = answers(client, "ReceiveMessage", request_of("ReceiveMessage", "acked"))
    handle = found[1].message.system_properties.receipt_handle
    request = request_of("AckMessage", "acked")
    for one in (handle, "", handle[:-1] + ("0" if handle[-1] != "0" else "1")):
        request.entries.add(receipt_handle=one, message_id="m")

    acked = answer(client, "AckMessage", request)

    assert [CODES[e.status.code] for e in acked.entries] == [
        "OK", "INVALID_RECEIPT_HANDLE", "INVALID_RECEIPT_HANDLE"
    ]  # fmt: skip
    assert CODES[acked.status.code] == "MULTIPLE_RESULTS"
    assert [e.message_id for e in acked.entries] == ["m", "m", "m"]


def test_an_invisible_time_beyond_the_limit_is_refused_for_a_good_handle(
    served: Store, client: RocketmqClient
) -> None:
    served.create_topic("changed", queues=1)
    served.put("changed", b"b")
    found = answers(client, "ReceiveMessage", request_of("ReceiveMessage", "changed"))
    request = request_of("ChangeInvisibleDuration", "changed")
    request.receipt_handle = found[1].message.system_properties.receipt_handle
    set_seconds(request.invisible_duration, 43_201)

    assert code_of(client, "ChangeInvisibleDuration", request) == "ILLEGAL_INVISIBLE_TIME"
    set_seconds(request.invisible_duration, 0)
    assert code_of(client, "ChangeInvisibleDuration", request) == "OK"


def test_wrong_settings_are_answered_and_the_next_ones_are_good(client: RocketmqClient) -> None:
    wrong = request_of("Telemetry")
    wrong.settings.publishing.topics.add(name="t")

    assert code_of(client, "Telemetry", wrong) == "BAD_REQUEST"
    assert code_of(client, "Telemetry", request_of("Telemetry")) == "OK"


@pytest.mark.parametrize("call", ALL)
def test_bytes_that_are_no_request_are_refused(client: RocketmqClient, call: str) -> None:
    class Broken:
        def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's name
            return b"\x0a\xff\xff\xff\xff\x0f"

    assert code_of(client, call, Broken()) == "BAD_REQUEST"


def test_a_client_of_an_unknown_language_is_served(client: RocketmqClient) -> None:
    metadata = {**HEAD, "x-mq-language": "FORTRAN"}

    for call in ("Telemetry", "Heartbeat", "QueryRoute"):
        assert code_of(client, call, request_of(call), metadata=metadata) == "OK"
