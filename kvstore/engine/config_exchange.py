"""Exchanges topics, groups and offsets with RocketMQ, as its JSON files.

Invariants: existing topics, groups, offsets and files stay as they are unless the caller asks
otherwise; all changes of an import are one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kvstore.engine.engine import Engine
from kvstore.errors import CallerError, MessageIllegal, StoreNotFound
from kvstore.files import local_path
from kvstore.index.families import Batch
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.offsets import Commit
from kvstore.meta.topics import TopicConfig, TopicInfo
from kvstore.record.validate import check_group, check_topic
from kvstore.rocketmq.config_values import Configuration, Offset
from kvstore.rocketmq.configuration import read_configuration
from kvstore.rocketmq.export import FILES, ExportReport, write_configuration
from kvstore.rocketmq.file_layouts import CONFIG


class ConfigImport(msgspec.Struct, frozen=True):
    """The result of importing a configuration: topics, groups and offsets that are new; how many
    were there already and stayed (`kept`); those that could not be taken, and why (`notes`).
    """

    topics: int
    groups: int
    offsets: int
    kept: int
    notes: list[str]


def export_configuration(engine: Engine, folder: str | Path, *, overwrite: bool) -> ExportReport:
    """See `Store.export_rocketmq`."""
    files, target = engine.config.files, local_path(folder, "an export")
    there = [n for n in FILES if files.size(target / CONFIG / n) is not None]
    if there and not overwrite:
        raise CallerError(
            f"{target / CONFIG} has {', '.join(there)} already; name another folder, or say "
            "overwrite=True"
        )
    return write_configuration(
        target,
        files,
        topics=engine.topics.all(),
        groups=engine.groups.all(),
        offsets=list(all_offsets(engine)),
        now_ms=engine.config.clock.now_ms(),
    )


def all_offsets(engine: Engine) -> Iterator[Offset]:
    """The offset at which each group goes on in each queue."""
    for group in engine.groups.all():
        for topic, queue in engine.offsets.queues(group.id):
            name = engine.topics.name_of(topic)
            if name is None:
                continue  # its topic was deleted by a version that left offsets
            # Messages popped and not done would be lost to a group that goes on from there.
            offset = engine.group_progress.committed(group, engine.topics.get(name), queue)
            if offset is not None:
                yield group.name, name, queue, offset


def import_configuration(engine: Engine, folder: str | Path) -> ConfigImport:
    """See `Store.import_rocketmq_config`."""
    found = _configuration(engine, local_path(folder, "a configuration"))
    while True:
        known = _known_offsets(engine, found)
        # In the order in which commits take the locks.
        with engine.popping.setting(known), engine.topics.lock, engine.groups.lock:
            if _known_offsets(engine, found) == known:
                return _import_all(engine, found)


def _known_offsets(engine: Engine, found: Configuration) -> list[Commit]:
    """The offsets whose topics and groups the store has: pops may be at work there."""
    known = []
    for name, topic, queue, offset in found.all_offsets():
        group, used = engine.groups.find(name), engine.topics.find(topic)
        if group is not None and used is not None:
            known.append(Commit(group.id, used.id, queue, offset))
    return known


def _import_all(engine: Engine, found: Configuration) -> ConfigImport:
    notes = list(found.notes)
    topics, kept_topics = _new_topics(engine, found, notes)
    groups, kept_groups = _new_groups(engine, found, notes)
    batch = engine.index.families.batch()
    made = engine.topics.put_new(batch, topics)
    new = engine.groups.put_new(batch, groups)
    offsets, kept = _stage_offsets(engine, batch, found, made, new, notes)
    engine.index.families.write(batch, sync=True)
    engine.topics.written(made)
    engine.groups.written(new)
    engine.offsets.written()
    return ConfigImport(
        topics=len(made),
        groups=len(new),
        offsets=offsets,
        kept=kept_topics + kept_groups + kept,
        notes=notes,
    )


def _configuration(engine: Engine, folder: Path) -> Configuration:
    for place in (folder / CONFIG, folder):
        found = read_configuration(place, engine.config.files)
        if found.kind != "none" or found.delay_offsets:
            return found
    raise StoreNotFound(f"neither {folder} nor {folder / CONFIG} has a configuration of RocketMQ's")


def _new_topics(
    engine: Engine, found: Configuration, notes: list[str]
) -> tuple[list[TopicConfig], int]:
    legal = [c for c in found.topic_configs() if _is_legal(check_topic, c.name, notes)]
    # A queue that RocketMQ writes to and doesn't read is read here: nothing is lost in it.
    new = [
        msgspec.structs.replace(c, read_queues=max(c.queues, c.read_queues or 0))
        for c in legal
        if engine.topics.find(c.name) is None
    ]
    return new, len(legal) - len(new)


def _new_groups(
    engine: Engine, found: Configuration, notes: list[str]
) -> tuple[list[GroupConfig], int]:
    legal = [c for c in found.group_configs() if _is_legal(check_group, c.name, notes)]
    new = [config for config in legal if engine.groups.find(config.name) is None]
    return new, len(legal) - len(new)


def _stage_offsets(
    engine: Engine,
    batch: Batch,
    found: Configuration,
    topics: list[TopicInfo],
    groups: list[GroupInfo],
    notes: list[str],
) -> tuple[int, int]:
    """Puts offsets that are not there into a batch; returns how many it put, and how many were
    there.
    """
    topic_ids = {info.name: info.id for info in topics}
    group_ids = {info.name: info.id for info in groups}
    taken = kept = 0
    for group, topic, queue, offset in found.all_offsets():
        known, used = engine.groups.find(group), engine.topics.find(topic)
        group_id = group_ids.get(group) if known is None else known.id
        topic_id = topic_ids.get(topic) if used is None else used.id
        if group_id is None or topic_id is None:
            continue  # the note says why
        if used is not None and queue >= used.read_queues:
            notes.append(f"offset {offset} of {group}: {topic} has no queue {queue}")
            continue
        bounds = engine.reader.bounds(topic_id << 32 | queue)
        if engine.offsets.get(group_id, topic_id, queue, bounds) is not None:
            kept += 1
            continue
        if offset > bounds.next_offset:
            end = bounds.next_offset
            notes.append(
                f"offset {offset} of {group} in queue {queue} of {topic} became {end}, the "
                "queue's end"
            )
        clamped = min(offset, bounds.next_offset)
        engine.offsets.put_offset(batch, group_id, topic_id, queue, clamped)
        taken += 1
    return taken, kept


def _is_legal(check: Callable[[str], bytes], name: str, notes: list[str]) -> bool:
    try:
        check(name)
    except MessageIllegal as e:
        notes.append(f"passed over: {e}")
        return False
    return True
