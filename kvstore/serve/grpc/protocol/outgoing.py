"""Outgoing messages: of a stored message the protocol's `Message`.

The idea: one function, for messages that are received, pulled, or asked about. It fills every field
at which RocketMQ's clients look; a message that kvmq's own API put looks like any other.

Invariants: the digest is of the body that is sent, so a client that checks it finds it right; a
message's id is the one that its put was given.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from kvstore.core.messages import unpack_host
from kvstore.core.names import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    KEYS,
    MESSAGE_GROUP,
    RESERVED,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRANSACTION_PREPARED,
    UNIQUE_ID,
)
from kvstore.core.popping.receipts import Popped
from kvstore.message import StoredMessage
from kvstore.serve.grpc.protocol.incoming import TRACE_CONTEXT, TYPES, crc_text
from kvstore.serve.grpc.protocol.wire import NUMBERS, Wire, message_class, set_ms, set_seconds

_IDENTITY: Final = NUMBERS["Encoding"]["IDENTITY"]
_CRC32: Final = NUMBERS["DigestType"]["CRC32"]
_MD5: Final = NUMBERS["DigestType"]["MD5"]
_NORMAL: Final = TYPES["NORMAL"]
_response: Final = message_class("ReceiveMessageResponse")


def _digest(body: bytes) -> tuple[int, str]:
    """The type and text of a body's digest."""
    text = crc_text(body)
    if text[0] == "0":
        # Python's client compares the text with these zeros, and Java's without: it takes a body
        # with others for damaged, and sends it to the dead letters. Both write MD5 alike.
        return _MD5, hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    return _CRC32, text


def fill(wire: Wire, message: StoredMessage, topic: Wire, *, is_priority: bool = False) -> None:
    """Fills a message; `topic` is the topic as the client calls it."""
    wire.topic.CopyFrom(topic)
    wire.body = body = message.body
    system = wire.system_properties
    # Read once: each field of the message that comes from it would read it again.
    properties = message.properties
    system.message_id = properties.get(UNIQUE_ID) or message.message_id
    digest = system.body_digest
    digest.type, digest.checksum = _digest(body)
    system.body_encoding = _IDENTITY
    set_ms(system.born_timestamp, message.born_at)
    system.born_host = _host(message.raw_born_host)
    set_ms(system.store_timestamp, message.stored_at)
    system.store_host = _host(message.raw_store_host)
    system.queue_id = message.queue
    system.queue_offset = message.offset
    if is_priority:
        system.priority = message.queue
    if len(properties) > 1 or UNIQUE_ID not in properties:
        _fill_properties(wire, message, properties)
    else:
        system.message_type = TYPES["PRIORITY"] if is_priority else _NORMAL


def _fill_properties(wire: Wire, message: StoredMessage, properties: dict[str, str]) -> None:
    system = wire.system_properties
    if message.tag is not None:
        system.tag = message.tag
    if KEYS in properties:
        system.keys.extend(message.keys)
    if MESSAGE_GROUP in properties:
        system.message_group = properties[MESSAGE_GROUP]
    for name, value in properties.items():
        if name not in RESERVED and name != TRACE_CONTEXT:
            wire.user_properties[name] = value
    _fill_rest(system, properties)
    system.message_type = _type_of(system, properties)


@lru_cache(maxsize=1024)
def _host(raw: bytes) -> str:
    address, port = unpack_host(raw)
    return f"{address}:{port}"


def _fill_rest(system: Wire, properties: dict[str, str]) -> None:
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    at = properties.get(TIMER_DELIVER_MS) or properties.get(TIMER_OUT_MS) or ""
    if at.isdecimal():
        set_ms(system.delivery_timestamp, int(at))
    if DLQ_ORIGIN_TOPIC in properties:
        system.dead_letter_queue.topic = properties[DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties.get(DLQ_ORIGIN_MESSAGE_ID, "")


def _type_of(system: Wire, properties: dict[str, str]) -> int:
    if TRANSACTION_PREPARED in properties:
        return TYPES["TRANSACTION"]
    if system.HasField("delivery_timestamp"):
        return TYPES["DELAY"]
    if system.HasField("message_group"):
        return TYPES["FIFO"]
    return TYPES["PRIORITY"] if system.HasField("priority") else _NORMAL


def received(popped: Popped, topic: Wire, invisible_for: float, *, is_priority: bool) -> Wire:
    """A `ReceiveMessageResponse` with a popped message."""
    answer = _response()
    fill(answer.message, popped.message, topic, is_priority=is_priority)
    system = answer.message.system_properties
    system.receipt_handle = popped.receipt
    system.delivery_attempt = popped.attempt
    set_seconds(system.invisible_duration, invisible_for)
    return answer
