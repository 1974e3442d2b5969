"""Incoming messages: of the protocol's `Message` a message to put.

The idea: the core reads the messages of a request (`core.transport.send_calls`). Everything that
RocketMQ refuses with a code of its own is checked here, message by message; the rest is the store's
check, as for a put of any other caller. A message's type follows from what it carries, and must be
one that its topic's kind takes.

Invariants: a body that a client packed is unpacked, so that every reader gets what the producer
had, and never to more than the limit; a digest that comes along is checked; the id that a client
made is the message's id.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

import msgspec
from zlib_ng import zlib_ng

from kvstore.core.names import RESERVED, TRANSIENT_PREFIX
from kvstore.core.transport.send_calls import (
    CARRIES_DELIVERY,
    CARRIES_GROUP,
    CARRIES_LITE_TOPIC,
    CARRIES_PRIORITY,
    SentMessage,
    read_send_request,
)
from kvstore.errors import MessageIllegal
from kvstore.message import Message
from kvstore.meta.topics import TopicInfo
from kvstore.record.put.explain import check_delay
from kvstore.serve.grpc.protocol.answers import Refusal
from kvstore.serve.grpc.protocol.wire import NUMBERS, unreadable

TRACE_CONTEXT: Final = "TRACE_CONTEXT"
"""The property in which RocketMQ keeps a message's trace context."""
TYPES: Final = NUMBERS["MessageType"]
_NAMES: Final = {number: name for name, number in TYPES.items()}
_ENCODINGS: Final = NUMBERS["Encoding"]
_GZIP: Final = _ENCODINGS["GZIP"]
_DIGESTS: Final = NUMBERS["DigestType"]
_TAKES: Final[dict[str, frozenset[str]]] = {
    "normal": frozenset({"NORMAL", "FIFO", "DELAY", "TRANSACTION"}),
    "compacted": frozenset({"NORMAL", "FIFO", "DELAY", "TRANSACTION"}),
    "fifo": frozenset({"FIFO"}),
    "delay": frozenset({"DELAY"}),
    "transaction": frozenset({"TRANSACTION"}),
    "priority": frozenset({"NORMAL", "PRIORITY", "DELAY", "TRANSACTION"}),
}
_CARRIED: Final = {
    "FIFO": ("message_group", CARRIES_GROUP),
    "DELAY": ("delivery_timestamp", CARRIES_DELIVERY),
    "PRIORITY": ("priority", CARRIES_PRIORITY),
    "LITE": ("lite_topic", CARRIES_LITE_TOPIC),
}
"""Type -> the field that messages of that type have, and no others, and its bit in `carried`."""
_WANTED: Final = {name: [name] if name in _CARRIED else [] for name in TYPES}
_ID_MAX: Final = 255
Buffer = bytes | bytearray | memoryview


class DoorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the door: RocketMQ's. Sizes in bytes, times in seconds."""

    body: int = 4 << 20
    properties: int = 16 << 10
    property_count: int = 128
    message_group: int = 64
    invisible_min: float = 10.0
    invisible_max: float = 12 * 3600.0
    poll: float = 20.0
    batch: int = 256
    any_time: bool = False
    """Whether messages may have a time of any year, see `StoreConfig`."""


def types_of(info: TopicInfo) -> tuple[str, ...]:
    """The types of messages that a topic takes, in the order of their numbers."""
    return _types_of(info.kind, info.takes_delays)


@cache
def _types_of(kind: str, takes_delays: bool) -> tuple[str, ...]:
    taken = _TAKES[kind] if takes_delays else _TAKES[kind] - {"DELAY"}
    return tuple(sorted(taken, key=TYPES.__getitem__))


def read_send(raw: Buffer) -> list[SentMessage]:
    """The messages of a SendMessageRequest; `CallerError` if the bytes are none."""
    try:
        return read_send_request(raw)
    except ValueError as e:
        raise unreadable(raw, "SendMessageRequest", e) from None


# Only good types get into the cache.
@lru_cache(maxsize=256)
def type_of(message_type: int, carries: int) -> str:
    """The type of a message, by what it says and what it carries; `Refusal` if these differ."""
    said = _NAMES.get(message_type)
    if said is None:
        raise Refusal(
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
            f"the message type is {message_type}; the protocol has {', '.join(TYPES)}",
        )
    carried = [name for name, (_, bit) in _CARRIED.items() if carries & bit]
    if said == "MESSAGE_TYPE_UNSPECIFIED":
        said = carried[0] if carried else "NORMAL"
    if carried != _WANTED[said]:
        raise Refusal(
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
            f"a message of type {said} has {_listed(_WANTED[said])}, but this one "
            f"{_listed(carried)}",
        )
    if said == "LITE":
        raise Refusal("UNSUPPORTED", "the store has no lite topics; make a topic for each")
    return said


def _listed(types: list[str]) -> str:
    return " and ".join(_CARRIED[one][0] for one in types) or "none of message_group and its like"


def check_type(kind: str, info: TopicInfo) -> None:
    """`Refusal` if a topic does not take messages of a type."""
    if kind not in types_of(info):
        raise Refusal(
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
            f"the topic {info.name!r} is of kind {info.kind!r}, which takes messages of type "
            f"{', '.join(types_of(info))}, not {kind}",
        )


def message_to_put(
    sent: SentMessage, kind: str, info: TopicInfo, limits: DoorLimits, now_ms: int
) -> Message:
    """The message to put; `Refusal` if it is illegal."""
    message = sent.message
    message_id = message.message_id
    if not message_id or len(message_id) > _ID_MAX or not message_id.isprintable():
        raise Refusal("ILLEGAL_MESSAGE_ID", "the message has no id, which clients make")
    message.topic = info.name
    if message.message_group is not None:
        _check_group(message.message_group, limits)
    elif message.deliver_at is not None:
        _check_delivery(message.deliver_at, limits, now_ms)
    if info.kind == "compacted" and not message.keys:
        raise Refusal(
            "ILLEGAL_MESSAGE_KEY",
            f"the topic {info.name!r} is of kind 'compacted', which keeps the newest message of "
            "each key: give keys",
        )
    if info.kind == "priority":
        message.queue = _queue_of(sent.priority, info)
    message.body = _body_of(sent, limits)
    if message.tag is not None:
        _check_tag(message.tag)
    if message.keys:
        _check_keys(message.keys)
    if message.properties:
        _check_properties(message.properties, limits)
    if sent.trace_context:
        message.properties = {**message.properties, TRACE_CONTEXT: sent.trace_context}
    return message


def _queue_of(priority: int, info: TopicInfo) -> int:
    """The queue of a message to a topic of kind priority: a queue's number is its priority."""
    if priority < 0:
        raise Refusal("BAD_REQUEST", f"the priority is {priority}; it must be 0 or more")
    return min(priority, info.write_queues - 1)


def _body_of(sent: SentMessage, limits: DoorLimits) -> Buffer:
    body = sent.message.body
    if len(body) > limits.body:
        raise _too_large(len(body), limits)
    if sent.body_encoding not in _ENCODINGS.values():
        raise Refusal(
            "MESSAGE_CORRUPTED",
            f"the body's encoding is {sent.body_encoding}; IDENTITY and GZIP are taken",
        )
    if sent.digest is not None:
        _check_digest(body, *sent.digest)
    return _unzipped(body, limits) if sent.body_encoding == _GZIP else body


def _too_large(size: int, limits: DoorLimits) -> Refusal:
    return Refusal(
        "MESSAGE_BODY_TOO_LARGE",
        f"the body has {size} bytes or more, at most {limits.body} are taken",
    )


def _unzipped(body: Buffer, limits: DoorLimits) -> bytes:
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        found = reader.decompress(body, limits.body + 1)
    except zlib.error as e:
        raise Refusal("MESSAGE_CORRUPTED", f"the body is no gzip: {e}") from None
    if len(found) > limits.body:
        raise _too_large(len(found), limits)
    if not reader.eof:
        raise Refusal("MESSAGE_CORRUPTED", "the body ends in the middle of its gzip")
    return found


def crc_text(body: Buffer) -> str:
    """The CRC32 digest of a body, as clients check it."""
    return f"{zlib_ng.crc32(body):08X}"


def _check_digest(body: Buffer, kind: int, checksum: str) -> None:
    if kind == _DIGESTS["CRC32"]:
        expected = crc_text(body)
    elif kind == _DIGESTS["MD5"]:
        expected = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif kind == _DIGESTS["SHA1"]:
        expected = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    elif kind == _DIGESTS["DIGEST_TYPE_UNSPECIFIED"]:
        return
    else:
        raise Refusal(
            "MESSAGE_CORRUPTED", f"the type of the body's digest is {kind}, which is none"
        )
    if checksum.lower().zfill(len(expected)) != expected.lower():
        raise Refusal(
            "MESSAGE_CORRUPTED",
            f"the body has the digest {expected}, not {checksum[:64]!r}; send it again",
        )


def _has_control(text: str) -> bool:
    return not text.isprintable() and any(ord(c) < 32 or ord(c) == 127 for c in text)


def _check_tag(tag: str) -> None:
    if not tag.strip() or "|" in tag or _has_control(tag):
        raise Refusal(
            "ILLEGAL_MESSAGE_TAG", f"the tag {tag[:80]!r} is blank, or has a | or control character"
        )


def _check_keys(keys: Sequence[str]) -> None:
    for key in keys:
        if not key or any(c.isspace() for c in key) or _has_control(key):
            raise Refusal(
                "ILLEGAL_MESSAGE_KEY",
                f"the key {key[:80]!r} is empty, or has a blank or control character",
            )


def _check_group(group: str, limits: DoorLimits) -> None:
    if not group.strip() or len(group) > limits.message_group or _has_control(group):
        raise Refusal(
            "ILLEGAL_MESSAGE_GROUP",
            f"the message group {group[:80]!r} must have 1 to {limits.message_group} characters, "
            "none of them a control character",
        )


def _check_delivery(at: int, limits: DoorLimits, now_ms: int) -> None:
    try:
        check_delay(at, None, None, now_ms, any_time=limits.any_time)
    except MessageIllegal as e:
        raise Refusal("ILLEGAL_DELIVERY_TIME", str(e)) from None


def _check_properties(properties: Mapping[str, str], limits: DoorLimits) -> None:
    if len(properties) > limits.property_count:
        raise Refusal(
            "MESSAGE_PROPERTIES_TOO_LARGE",
            f"the message has {len(properties)} properties, at most {limits.property_count} fit",
        )
    size = 0
    for name, value in properties.items():
        reserved = name in RESERVED or name == TRACE_CONTEXT or name.startswith(TRANSIENT_PREFIX)
        if not name.strip() or reserved or _has_control(name):
            raise Refusal(
                "ILLEGAL_MESSAGE_PROPERTY_KEY",
                f"the property name {name[:80]!r} is blank, reserved, or has a control character",
            )
        if not value or "\x01" in value or "\x02" in value:
            raise Refusal(
                "ILLEGAL_MESSAGE_PROPERTY_KEY",
                f"the property {name[:80]!r} has a value that is empty or has a control character",
            )
        size += len(name.encode()) + len(value.encode())
    if size > limits.properties:
        raise Refusal(
            "MESSAGE_PROPERTIES_TOO_LARGE",
            f"the properties take {size} bytes, at most {limits.properties} fit",
        )
