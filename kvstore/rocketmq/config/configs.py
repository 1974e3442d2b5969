"""Configs: RocketMQ's topics and groups as kvmq's, setting by setting.

The idea: a setting with a counterpart is taken over. A setting without one (`perm`, `order`,
broadcasting) is kept as an attribute, from which `export` writes it again.

Invariant: `export` writes a topic or group that came from here with the same settings.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvstore.meta.groups import BACKOFF_MAX, BACKOFF_STEPS, DEFAULT_BACKOFF, GroupConfig
from kvstore.meta.topics import Kind, TopicConfig
from kvstore.rocketmq.config.config_values import SourceGroup, SourceTopic

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
    """A topic of RocketMQ's as one to be made here. Queues that RocketMQ writes but doesn't read
    are read.
    """
    write = max(1, topic.write_queues)
    return TopicConfig(
        name=topic.name,
        queues=write,
        read_queues=max(write, topic.read_queues),
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
