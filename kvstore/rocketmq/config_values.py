"""Config values: RocketMQ's topics and groups as typed values, and as kvmq's, setting by setting.

The idea: the tables come as plain JSON values, with whatever fields the version that wrote them
knew. The fields that kvmq can use are taken into Structs; missing fields get RocketMQ's defaults
(TopicConfig, SubscriptionGroupConfig). A setting with a counterpart in kvmq is taken over. A
setting without one (`perm`, `order`, broadcasting) is kept as an attribute, from which `export`
writes it again.

Invariants: a value of the wrong type is a FormatError that says where it stands; it never gets into
a Struct. `export` writes a topic or group that came from here with the same settings.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec

from kvstore.core.names import SCHEDULE_TOPIC
from kvstore.errors import FormatError
from kvstore.meta.groups import BACKOFF_MAX, BACKOFF_STEPS, DEFAULT_BACKOFF, GroupConfig
from kvstore.meta.topics import Kind, TopicConfig

ConfigKind = Literal["json", "rocksdb", "rocksdb-v2", "none"]

MESSAGE_TYPE: Final = "message.type"
"""The attribute of a topic that says which messages it is for."""
MIXED: Final = "MIXED"
"""The type of a topic that takes messages of every type but priorities."""
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


class _GroupRow(msgspec.Struct, rename="camel"):
    retry_max_times: int = 16
    consume_message_orderly: bool = False
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    group_retry_policy: dict[str, Any] | None = None
    attributes: dict[str, str] | None = None


Offset = tuple[str, str, int, int]
"""Group, topic, queue, and the offset to consume next."""


class Configuration(msgspec.Struct, frozen=True):
    """The configuration in a folder, and the form that it was read from. `delay_offsets` are by
    delay level. `notes` lists the parts that could not be taken, and those that were taken from a
    backup.
    """

    kind: ConfigKind
    topics: list[SourceTopic]
    groups: list[SourceGroup]
    offsets: list[Offset]
    delay_offsets: dict[int, int]
    notes: list[str]

    def all_offsets(self) -> list[Offset]:
        """The offsets, with those of delay levels as offsets of `DELAY_GROUP`."""
        delays = [
            (DELAY_GROUP, SCHEDULE_TOPIC, level - 1, offset)
            for level, offset in sorted(self.delay_offsets.items())
            if level > 0 and offset >= 0
        ]
        return [*self.offsets, *delays]

    def topic_configs(self) -> list[TopicConfig]:
        """The configured topics, and those that only offsets speak of, with all their queues."""
        configs = {topic.name: topic_config(topic) for topic in self.topics}
        for _, name, queue, _ in self.all_offsets():
            config = configs.get(name, TopicConfig(name=name, queues=queue + 1))
            if queue >= (config.read_queues or config.queues):
                config = msgspec.structs.replace(config, read_queues=queue + 1)
            configs[name] = config
        return list(configs.values())

    def group_configs(self) -> list[GroupConfig]:
        """The configured groups, and those that only offsets speak of."""
        configs = {group.name: group_config(group) for group in self.groups}
        for name, *_ in self.all_offsets():
            configs.setdefault(name, GroupConfig(name=name))
        return list(configs.values())


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
    group = convert(value, _GroupRow, f"{where}, group {name}")
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


TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets say how far RocketMQ has checked prepared messages."""
DELAY_GROUP: Final = "CID_RMQ_SYS_SCHEDULE"
"""The group under which the delay levels' progress is kept: queue level - 1 of SCHEDULE_TOPIC_XXXX.
"""
CLEANUP: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
KIND_OF_TYPE: Final[dict[str | None, Kind]] = {
    "FIFO": "fifo",
    "DELAY": "delay",
    "TRANSACTION": "transaction",
    "PRIORITY": "priority",
}
PERM: Final = "perm"
ORDER: Final = "order"
BROADCAST: Final = "broadcast"
CONSUME_ENABLE: Final = "consume_enable"

CUSTOMIZED: Final = "CUSTOMIZED"
EXPONENTIAL: Final = "EXPONENTIAL"
UNUSED_STEPS: Final = (1000, 5000)
"""Milliseconds: a table's first two steps, which RocketMQ never comes to."""


class _Customized(msgspec.Struct):
    next: list[int] = []


class _Exponential(msgspec.Struct):
    initial: int = 5_000
    max: int = 2 * 3600_000
    multiplier: int = 2


class _Policy(msgspec.Struct, rename="camel"):
    type: str = CUSTOMIZED
    customized_retry_policy: _Customized | None = None
    exponential_retry_policy: _Exponential | None = None


def topic_config(topic: SourceTopic) -> TopicConfig:
    """A topic of RocketMQ's as one to be made here. It may have queues that RocketMQ writes to and
    doesn't read.
    """
    return TopicConfig(
        name=topic.name,
        queues=max(1, topic.write_queues),
        read_queues=max(1, topic.read_queues),
        kind=kind_of(topic),
        attributes=topic_attributes(topic),
    )


def group_config(group: SourceGroup) -> GroupConfig:
    """The settings of a kvmq group that stands for RocketMQ's."""
    return GroupConfig(
        name=group.name,
        max_attempts=max(1, group.max_attempts),
        ordered=group.ordered,
        backoff=backoff_of(group.retry_policy),
        attributes=group_attributes(group),
    )


def kind_of(topic: SourceTopic) -> Kind:
    """The kind in a topic's attributes."""
    if topic.attributes.get(CLEANUP) == COMPACTION:
        return "compacted"
    return KIND_OF_TYPE.get(topic.message_type, "normal")


def topic_attributes(topic: SourceTopic) -> dict[str, str]:
    """A topic's attributes, with its settings that have no counterpart."""
    return {**topic.attributes, PERM: str(topic.perm), ORDER: str(topic.order).lower()}


def group_attributes(group: SourceGroup) -> dict[str, str]:
    """A group's attributes, with its settings that have no counterpart."""
    return {
        **group.attributes,
        BROADCAST: str(group.broadcast).lower(),
        CONSUME_ENABLE: str(group.consume_enable).lower(),
    }


def backoff_of(policy: dict[str, Any]) -> tuple[float, ...]:
    """The seconds between deliveries by a retry policy; the default if the policy can't be read."""
    try:
        found = msgspec.convert(policy, _Policy, strict=False)
    except msgspec.ValidationError:
        return DEFAULT_BACKOFF
    exponential = found.exponential_retry_policy
    if found.type == EXPONENTIAL:
        return _steps(_doubling(exponential or _Exponential()))
    table = found.customized_retry_policy
    if table is None or not table.next:
        return DEFAULT_BACKOFF
    return _steps(table.next[len(UNUSED_STEPS) :] or table.next[-1:])


def _doubling(policy: _Exponential) -> list[int]:
    steps: list[int] = []
    step = policy.initial
    # RocketMQ raises to the 32nd power at most.
    while len(steps) <= 32 and step < policy.max and policy.multiplier > 1:
        steps.append(step)
        step *= policy.multiplier
    return [*steps, min(step, policy.max)]


def _steps(milliseconds: list[int]) -> tuple[float, ...]:
    seconds = [min(max(step / 1000, 0.0), BACKOFF_MAX) for step in milliseconds[:BACKOFF_STEPS]]
    return DEFAULT_BACKOFF if tuple(seconds) == DEFAULT_BACKOFF else tuple(seconds)
