"""Adopts a RocketMQ store: its log as it is, its configuration as rows, in one step.

The idea: the source's configuration (topics, groups, consumer and delay offsets, the end of its
log) goes into the index in the same batch that founds the store, with a checkpoint at the log's
beginning; opening then indexes the log, as after any crash.

Invariants: a store is founded with everything the source said, or not at all; ids given here are
never given again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvstore.config import Retention, StoreConfig
from kvstore.files import Files
from kvstore.index.families import Batch
from kvstore.index.handover import mark_unlocated
from kvstore.index.index import Index
from kvstore.index.keys import (
    ADOPTED,
    CHECKPOINT,
    FOREIGN_DELAYS,
    FOREIGN_TRANSACTIONS,
    GROUPS,
    LOG_START,
    META,
    NEXT_GROUP_ID,
    NEXT_TOPIC_ID,
    OFFSETS,
    TOPICS,
    U32,
    U64,
    Checkpoint,
    checkpoint_value,
    offset_key,
)
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topic import waiting_key_index
from kvstore.meta.topics import TopicInfo
from kvstore.record.walk import Extent
from kvstore.rocketmq.adopt import Progress, find_end
from kvstore.rocketmq.source import RocketMQSource, read_source


class Adoption(msgspec.Struct, frozen=True):
    """A source, and where its log ends; damage before the end is passed over. `has_archives`: the
    folder may have archives, whose messages get their places when the store is opened.
    """

    source: RocketMQSource
    end: int
    damage: list[Extent]
    has_archives: bool = False

    def sized(self, config: StoreConfig) -> StoreConfig:
        """The settings with the segment size of the source."""
        return msgspec.structs.replace(config, segment_size=self.source.segment_size)

    def put_rows(self, index: Index, batch: Batch, config: StoreConfig) -> None:
        """Puts the whole configuration into a batch, and the checkpoint from which recovery
        begins.
        """
        source, found = self.source, self.source.configuration
        topics = {
            wanted.name: TopicInfo(
                name=wanted.name,
                id=number,
                read_queues=wanted.read_queues or wanted.queues,
                write_queues=wanted.queues,
                kind=wanted.kind,
                key_index=waiting_key_index(wanted.name, config.key_index),
                retention=Retention(),
                since=0,
                attributes=wanted.attributes,
            )
            for number, wanted in enumerate(found.topic_configs(), 1)
        }
        groups = {
            wanted.name: GroupInfo(
                name=wanted.name,
                id=number,
                max_attempts=wanted.max_attempts,
                ordered=wanted.ordered,
                backoff=wanted.backoff,
                attributes=wanted.attributes,
            )
            for number, wanted in enumerate(found.group_configs(), 1)
        }
        for topic in topics.values():
            batch.put(TOPICS, topic.name.encode(), msgspec.msgpack.encode(topic))
        for group in groups.values():
            batch.put(GROUPS, group.name.encode(), msgspec.msgpack.encode(group))
        for name, topic_name, queue, offset in found.all_offsets():
            key = offset_key(groups[name].id, topics[topic_name].id, queue)
            batch.put(OFFSETS, key, U64.pack(offset))
        batch.put(META, NEXT_TOPIC_ID, U32.pack(len(topics) + 1))
        batch.put(META, NEXT_GROUP_ID, U32.pack(len(groups) + 1))
        first = source.segments[0][0] if source.segments else 0
        batch.put(META, LOG_START, U64.pack(first))
        batch.put(
            META, CHECKPOINT, checkpoint_value(Checkpoint(first, self.end, 0, 0, clean=False))
        )
        batch.put(META, ADOPTED, msgspec.json.encode(summary(self, len(topics), len(groups))))
        batch.put(META, FOREIGN_DELAYS, b"")
        batch.put(META, FOREIGN_TRANSACTIONS, b"")
        if self.has_archives:
            mark_unlocated(batch)


class Adopted(msgspec.Struct, frozen=True):
    """The counts of what a store took over, kept in it."""

    source: str
    config_kind: str
    topics: int
    groups: int
    offsets: int
    delay_offsets: int
    log_end: int
    notes: list[str]


def in_place(path: Path, files: Files, progress: Progress | None) -> Adoption:
    """The adoption of a folder that becomes the store itself."""
    source = read_source(path, files)
    end = find_end(source, files, progress)
    return Adoption(source, end.end, end.damage)


def summary(adoption: Adoption, topics: int, groups: int) -> Adopted:
    """The adoption in numbers."""
    source, found = adoption.source, adoption.source.configuration
    return Adopted(
        source=str(source.path),
        config_kind=found.kind,
        topics=topics,
        groups=groups,
        offsets=len(found.offsets),
        delay_offsets=len(found.delay_offsets),
        log_end=adoption.end,
        notes=found.notes,
    )
