"""Fuzzers of RocketMQ's SendMessage in the core. Protobuf's own reader and writer judge."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from google.protobuf.message import DecodeError

from kvstore.core.put_values import PutResult, PutStatus
from kvstore.core.transport.send_calls import (
    CARRIES_DELIVERY,
    CARRIES_GROUP,
    CARRIES_LITE_TOPIC,
    CARRIES_PRIORITY,
    read_send_request,
)
from kvstore.serve.grpc.protocol.wire import message_class, ms_of
from tests.core.fuzzing import Arguments, Fuzzer

_BITS: Final = {
    "message_group": CARRIES_GROUP,
    "delivery_timestamp": CARRIES_DELIVERY,
    "priority": CARRIES_PRIORITY,
    "lite_topic": CARRIES_LITE_TOPIC,
}
_TEXTS: Final = ("", "t", "é€\U0001f600", "A" * 130, "a b\x01")
_NUMBERS: Final = (0, 1, 2, -1, 999_999_999, (1 << 31) - 1, -(1 << 31))
_STRAY: Final = (
    b"\x48\x96\x01",
    b"\x4d1234",
    b"\x4912345678",
    b"\x4a\x01x",
    b"\x4b\x53\x4a\x01x\x54\x4c",
    b"\x4b\x00\x05\x4c",
    b"\xf8\xff\xff\xff\x0f\x01",
    b"\x08\x05",
    b"\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
)
"""Fields that no message has, and some of another form than theirs."""


def sized(number: int, data: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


# --- requests ---


def read_fields(data: Any) -> list[tuple[Any, ...]]:
    """The messages of a request, as the core reads them."""
    return [
        (
            (one.resource.resource_namespace, one.resource.name),
            (one.message.body, one.message.tag, one.message.keys, dict(one.message.properties)),
            (one.message.message_group, one.message.message_id),
            (one.message.born_at, one.message.deliver_at, one.recovery_ms),
            (one.message_type, one.carried, one.body_encoding, one.digest),
            (one.trace_context, one.priority),
        )
        for one in read_send_request(data)
    ]


def fields_of(request: Any) -> list[tuple[Any, ...]]:
    """The messages of a request that protobuf has read."""
    return [_fields(one, one.system_properties) for one in request.messages]


def _fields(message: Any, system: Any) -> tuple[Any, ...]:
    def there(name: str, found: Callable[[Any], Any] = lambda value: value) -> Any:
        return found(getattr(system, name)) if system.HasField(name) else None

    return (
        (message.topic.resource_namespace, message.topic.name),
        (message.body, there("tag"), tuple(system.keys), dict(message.user_properties)),
        (there("message_group"), system.message_id),
        (
            max(ms_of(system.born_timestamp), 0) or None,
            there("delivery_timestamp", ms_of),
            there("orphaned_transaction_recovery_duration", ms_of),
        ),
        (
            system.message_type,
            sum(bit for name, bit in _BITS.items() if system.HasField(name)),
            system.body_encoding,
            there("body_digest", lambda digest: (digest.type, digest.checksum)),
        ),
        (system.trace_context, system.priority),
    )


def protobuf_fields(data: Any) -> Any:
    """The messages of a request, as protobuf reads them; ValueError if it refuses the bytes."""
    try:
        return fields_of(message_class("SendMessageRequest").FromString(bytes(data)))
    except DecodeError:
        return ValueError


def _value(rng: Random, field: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice(_TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 3, 200)))
    if field.type == field.TYPE_INT64:
        return rng.choice((*_NUMBERS, rng.getrandbits(63), -(1 << 63)))
    return rng.choice(_NUMBERS)


def fill(rng: Random, message: Any) -> Any:
    """Some of the fields of a message, at random; the message."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.5:
            continue
        found = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[rng.choice(_TEXTS)] = rng.choice(_TEXTS)
        elif field.message_type is not None:
            fill(rng, found).SetInParent()
        elif field.is_repeated:
            found.extend(_value(rng, field) for _ in range(rng.randint(0, 3)))
        else:
            setattr(message, field.name, _value(rng, field))
    return message


def _pieces(rng: Random, name: str) -> bytes:
    """A message that may come in two pieces, with stray fields around them."""
    made = [fill(rng, message_class(name)()).SerializeToString() for _ in range(rng.randint(1, 2))]
    strays = [rng.choice(_STRAY) for _ in range(rng.randint(0, 1))]
    pieces = made + strays
    rng.shuffle(pieces)
    return b"".join(pieces)


def a_request(rng: Random) -> bytes:
    """The bytes of a request, of which some are in forms that no client of RocketMQ writes."""
    out = b""
    for _ in range(rng.randint(0, 3)):
        message = _pieces(rng, "Message")
        if rng.random() < 0.5:
            message += sized(3, _pieces(rng, "SystemProperties"))
        if rng.random() < 0.3:
            entry = [sized(1, b"n"), sized(2, b"v"), sized(1, b"m"), rng.choice(_STRAY)]
            message += sized(2, b"".join(rng.sample(entry, rng.randint(0, 4))))
        out += sized(1, message)
    return out + rng.choice((b"", b"", *_STRAY))


# --- answers ---


def an_entry(rng: Random) -> Any:
    """An entry of an answer."""
    if rng.random() < 0.5:
        status = rng.choice(list(PutStatus))
        offset = rng.choice((-1, 0, 1, rng.getrandbits(40)))
        return PutResult(rng.choice(_TEXTS), "t", 1, offset, 5, 9, status)
    text, *texts = (rng.choice(_TEXTS) for _ in range(4))
    return (rng.choice((0, 20000, 40006)), text, *texts[:2], rng.getrandbits(30), texts[2])


def _an_answer(rng: Random) -> Arguments:
    entries = [an_entry(rng) for _ in range(rng.randint(0, 4))]
    return rng.choice((0, 20000, 30000)), rng.choice(_TEXTS), entries


def protobuf_answer(code: Any, text: Any, entries: Any) -> Any:
    """The bytes that protobuf makes of an answer."""
    answer = message_class("SendMessageResponse")()
    try:
        _set_status(answer.status, code, text)
        for one in entries:
            entry = answer.entries.add()
            if isinstance(one, PutResult):
                _set_status(entry.status, 20000, "OK")
                entry.message_id, entry.offset = one.message_id, max(one.offset, 0)
            else:
                _set_status(entry.status, *one[:2])
                _, _, entry.message_id, entry.transaction_id, entry.offset, entry.recall_handle = (
                    one
                )
    except (TypeError, ValueError, AttributeError):
        return NotImplemented  # values that no answer has
    return answer.SerializeToString()


def _set_status(status: Any, code: int, text: str) -> None:
    if code < 0:
        raise ValueError("no status has such a code")
    status.SetInParent()
    status.code, status.message = code, text


SEND_FUZZERS: Final = {
    "transport.send_calls.read_send_request": Fuzzer(
        lambda rng: (a_request(rng),), protobuf_fields, call=read_fields
    ),
    "transport.send_calls.pack_send_response": Fuzzer(_an_answer, protobuf_answer),
}
