"""Config values: RocketMQ's configuration as typed values.

The idea: the tables come as plain JSON values, with whatever fields the version that wrote them
knew. The fields that kvmq can use are taken into Structs; missing fields get RocketMQ's defaults
(TopicConfig, SubscriptionGroupConfig).

Invariant: a value of the wrong type is a FormatError that says where it stands; it never gets into
a Struct.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from kvstore.errors import FormatError

ConfigKind = Literal["json", "rocksdb", "rocksdb-v2", "none"]

MESSAGE_TYPE: Final = "message.type"
"""The attribute of a topic that says which messages it is for."""
T = TypeVar("T")


class SourceTopic(msgspec.Struct, frozen=True):
    """One topic. `perm` has bit 2 set if it may be read, bit 1 if written (6: both).

    `message_type` is NORMAL, FIFO, DELAY, TRANSACTION or MIXED; None where the topic doesn't say.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int
    order: bool
    message_type: str | None
    attributes: dict[str, str]


class SourceGroup(msgspec.Struct, frozen=True):
    """One consumer group. `max_attempts` is retryMaxTimes; `retry_policy` is unchanged from the
    source.
    """

    name: str
    max_attempts: int
    ordered: bool
    broadcast: bool
    consume_enable: bool
    retry_policy: dict[str, Any]
    attributes: dict[str, str]


class _Topic(msgspec.Struct, rename="camel"):
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    order: bool = False
    attributes: dict[str, str] | None = None


class _Group(msgspec.Struct, rename="camel"):
    retry_max_times: int = 16
    consume_message_orderly: bool = False
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    group_retry_policy: dict[str, Any] | None = None
    attributes: dict[str, str] | None = None


class RocketMQSource(msgspec.Struct, frozen=True):
    """A RocketMQ store: its log's files, and its configuration.

    `segments` are (first position, path), in order and without holes, of `segment_size` bytes each.
    `offsets` are (group, topic, queue, offset to consume next), `delay_offsets` by delay level.
    `notes` lists the parts that could not be taken, and those that were taken from a backup.
    """

    path: Path
    segment_size: int
    segments: list[tuple[int, Path]]
    topics: list[SourceTopic]
    groups: list[SourceGroup]
    offsets: list[tuple[str, str, int, int]]
    delay_offsets: dict[int, int]
    config_kind: ConfigKind
    closed_cleanly: bool
    notes: list[str]


def topic_of(name: str, value: Any, where: str) -> SourceTopic:
    """The topic of a row. Raises FormatError."""
    topic = convert(value, _Topic, f"{where}, topic {name}")
    attributes = topic.attributes or {}
    return SourceTopic(
        name,
        topic.read_queue_nums,
        topic.write_queue_nums,
        topic.perm,
        topic.order,
        attributes.get(MESSAGE_TYPE),
        attributes,
    )


def group_of(name: str, value: Any, where: str) -> SourceGroup:
    """The group of a row. Raises FormatError."""
    group = convert(value, _Group, f"{where}, group {name}")
    return SourceGroup(
        name,
        group.retry_max_times,
        group.consume_message_orderly,
        group.consume_broadcast_enable,
        group.consume_enable,
        group.group_retry_policy or {},
        group.attributes or {},
    )


def convert(value: Any, kind: type[T], where: str) -> T:
    """`value` as `kind`; numbers may stand in quotes, as for fastjson. Raises FormatError."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as e:
        raise FormatError(f"{where} is not as RocketMQ writes it: {e}") from e
