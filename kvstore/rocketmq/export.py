"""Export: a store's topics, groups and offsets as RocketMQ's JSON files.

The idea: `config/topics.json`, `subscriptionGroup.json`, `consumerOffset.json` and, where delay
levels have progress, `delayOffset.json`, as a broker writes them. With them beside the log a broker
finds the files that it would have written itself. Settings that only kvmq knows (key index,
retention, compression, start, dead-letter topic) have no place in them.

Invariant: `configuration` reads from these files the settings that were written. Each file is
whole, or as it was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kvstore.clock import whole_ms
from kvstore.core.names import SCHEDULE_TOPIC, SYSTEM_TOPICS
from kvstore.files import Files
from kvstore.meta.groups import DEFAULT_BACKOFF, GroupInfo
from kvstore.meta.topics import TopicInfo
from kvstore.rocketmq.config_values import (
    BROADCAST,
    CLEANUP,
    COMPACTION,
    CONSUME_ENABLE,
    CUSTOMIZED,
    DELAY_GROUP,
    KIND_OF_TYPE,
    MESSAGE_TYPE,
    MIXED,
    ORDER,
    PERM,
    UNUSED_STEPS,
    Offset,
)
from kvstore.rocketmq.file_layouts import CONFIG, TOPIC_GROUP_JOINER

TOPICS_FILE: Final = "topics.json"
GROUPS_FILE: Final = "subscriptionGroup.json"
OFFSETS_FILE: Final = "consumerOffset.json"
DELAYS_FILE: Final = "delayOffset.json"
FILES: Final = (TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE, DELAYS_FILE)
_TYPE_OF_KIND: Final = {kind: name for name, kind in KIND_OF_TYPE.items()}
_OURS: Final = frozenset({PERM, ORDER})
_OURS_OF_GROUPS: Final = frozenset({BROADCAST, CONSUME_ENABLE})
_READ_AND_WRITE: Final = "6"


class ExportReport(msgspec.Struct, frozen=True):
    """The outcome of an export: how many topics, groups and offsets were written, and to which
    files.
    """

    topics: int
    groups: int
    offsets: int
    delay_offsets: int
    files: list[str]


def write_configuration(
    folder: Path,
    files: Files,
    *,
    topics: list[TopicInfo],
    groups: list[GroupInfo],
    offsets: list[Offset],
    now_ms: int,
) -> ExportReport:
    """Writes the files into `folder/config`."""
    version = {"counter": 1, "stateVersion": 0, "timestamp": now_ms}
    consumed = [o for o in offsets if o[0] != DELAY_GROUP]
    delays = {
        queue + 1: offset
        for group, topic, queue, offset in offsets
        if group == DELAY_GROUP and topic == SCHEDULE_TOPIC
    }
    known = [group for group in groups if group.name != DELAY_GROUP]
    texts = {
        TOPICS_FILE: _json(
            dataVersion=version,
            topicConfigTable={topic.name: topic_row(topic) for topic in topics},
        ),
        GROUPS_FILE: _json(
            dataVersion=version,
            forbiddenTable={},
            subscriptionGroupTable={group.name: group_row(group) for group in known},
        ),
        OFFSETS_FILE: _offsets_text(version, consumed),
    }
    if delays:
        texts[DELAYS_FILE] = _text(
            {"dataVersion": _plain(version), "offsetTable": _numbers(delays)}
        )
    there = folder / CONFIG
    files.make_dir(there)
    for name, text in texts.items():
        files.write_whole(there / name, text.encode())
    return ExportReport(
        topics=len(topics),
        groups=len(known),
        offsets=len(consumed),
        delay_offsets=len(delays),
        files=[str(there / name) for name in texts],
    )


def topic_row(topic: TopicInfo) -> dict[str, Any]:
    """A topic as RocketMQ's TopicConfig."""
    attributes = {k: v for k, v in topic.attributes.items() if k not in _OURS}
    if topic.kind in _TYPE_OF_KIND:
        attributes.setdefault(MESSAGE_TYPE, str(_TYPE_OF_KIND[topic.kind]))
    elif topic.kind == "compacted":
        attributes.setdefault(CLEANUP, COMPACTION)
    elif _takes_all(topic):
        attributes.setdefault(MESSAGE_TYPE, MIXED)
    ordered = topic.attributes.get(ORDER, str(topic.kind == "fifo").lower())
    perm = topic.attributes.get(PERM, _READ_AND_WRITE)
    return {
        "attributes": attributes,
        "order": ordered == "true",
        "perm": int(perm if perm.isdecimal() else _READ_AND_WRITE),
        "readQueueNums": topic.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": 0,
        "writeQueueNums": topic.write_queues,
    }


def _takes_all(topic: TopicInfo) -> bool:
    """Whether a topic takes messages of all types, where RocketMQ's default is normal ones alone;
    one that came from RocketMQ stays as it was there.
    """
    is_callers = topic.name not in SYSTEM_TOPICS and PERM not in topic.attributes
    return is_callers and topic.kind == "normal" and topic.takes_delays


def group_row(group: GroupInfo) -> dict[str, Any]:
    """A group as RocketMQ's SubscriptionGroupConfig."""
    policy: dict[str, Any] = {"type": CUSTOMIZED}
    if group.backoff != DEFAULT_BACKOFF:
        steps = [*UNUSED_STEPS, *(whole_ms(step) for step in group.backoff)]
        policy = {"customizedRetryPolicy": {"next": steps}, **policy}
    return {
        "attributes": {k: v for k, v in group.attributes.items() if k not in _OURS_OF_GROUPS},
        "brokerId": 0,
        "consumeBroadcastEnable": group.attributes.get(BROADCAST, "true") == "true",
        "consumeEnable": group.attributes.get(CONSUME_ENABLE, "true") == "true",
        "consumeFromMinEnable": group.start != "end",
        "consumeMessageOrderly": group.ordered,
        "consumeTimeoutMinute": 15,
        "groupName": group.name,
        "groupRetryPolicy": policy,
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": group.max_attempts,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _offsets_text(version: Mapping[str, int], offsets: Iterable[Offset]) -> str:
    table: dict[str, dict[int, int]] = {}
    topics: dict[str, list[str]] = {}
    for group, topic, queue, offset in offsets:
        name = f"{topic}{TOPIC_GROUP_JOINER}{group}"
        if name not in table:
            table[name] = {}
            topics.setdefault(group, []).append(topic)
        table[name][queue] = offset
    return _text(
        {
            "dataVersion": _plain(version),
            "groupTopicMap": _plain(topics),
            "offsetTable": _text({name: _numbers(queues) for name, queues in table.items()}),
        }
    )


def _json(**fields: object) -> str:
    return _plain(fields)


def _plain(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()


def _numbers(table: Mapping[int, int]) -> str:
    """A map with integer keys, which fastjson leaves without quotes."""
    return "{" + ",".join(f"{key}:{value}" for key, value in table.items()) + "}"


def _text(fields: Mapping[str, str]) -> str:
    """A JSON object of values that are JSON text already."""
    return "{" + ",\n".join(f"{_plain(name)}:{text}" for name, text in fields.items()) + "}"
