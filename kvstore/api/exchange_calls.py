"""Calls that exchange topics, groups and offsets with RocketMQ, as its JSON files.

Invariants: existing topics, groups, offsets and files stay as they are unless the caller asks
otherwise; all changes of an import are one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kvstore.api.parts import Parts
from kvstore.errors import CallerError, MessageIllegal, StoreNotFound
from kvstore.files import local_path
from kvstore.index.families import Batch
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.topics import TopicConfig, TopicInfo
from kvstore.pop.group_stats import committed_of
from kvstore.record.names import SCHEDULE_TOPIC
from kvstore.record.validate import check_group, check_topic
from kvstore.rocketmq.config.configs import DELAY_GROUP, group_config, topic_config
from kvstore.rocketmq.config.configuration import Configuration, read_configuration
from kvstore.rocketmq.config.export import FILES, ExportReport, Offset, write_configuration
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


class ExchangeCalls(Parts):
    """Calls that exchange configuration with RocketMQ."""

    def export_rocketmq(self, folder: str | Path, *, overwrite: bool = False) -> ExportReport:
        """Write topics, groups and offsets as RocketMQ's JSON into `folder/config`, for a broker
        or for `import_rocketmq_config`. Files that are there are `CallerError` unless they are to
        be overwritten.

        >>> store.export_rocketmq("/tmp/exported").topics  # doctest: +SKIP
        12
        """
        self._check_open()
        files, target = self.config.files, local_path(folder, "an export")
        there = [n for n in FILES if files.size(target / CONFIG / n) is not None]
        if there and not overwrite:
            raise CallerError(
                f"{target / CONFIG} has {', '.join(there)} already; name another folder, or say "
                "overwrite=True"
            )
        return write_configuration(
            target,
            files,
            topics=self._topics.all(),
            groups=self._groups.all(),
            offsets=list(self._all_offsets()),
            now_ms=self.config.clock.now_ms(),
        )

    def _all_offsets(self) -> Iterator[Offset]:
        for group in self._groups.all():
            for topic, queue in self._offsets.queues(group.id):
                name = self._topics.name_of(topic)
                if name is None:
                    continue  # its topic was deleted by a version that left offsets
                # Messages popped and not done would be lost to a group that goes on from there.
                used, flying = self._topics.get(name), self._flying(group.id, topic)
                offset = committed_of(self._reader, self._offsets, group, used, queue, flying)
                if offset is not None:
                    yield group.name, name, queue, offset

    def import_rocketmq_config(self, folder: str | Path) -> ConfigImport:
        """Make the topics, groups and offsets that RocketMQ's configuration in `folder` or
        `folder/config` speaks of (JSON or RocksDB), in one batch. What this store has already stays
        as it is; an offset beyond its queue's end becomes that end. `StoreNotFound` if nothing is
        there, `FormatError` if it is broken.
        """
        self._log.check_writable()
        found = self._configuration(local_path(folder, "a configuration"))
        notes = list(found.notes)
        with self._topics.lock, self._groups.lock:
            topics, kept_topics = self._new_topics(found, notes)
            groups, kept_groups = self._new_groups(found, notes)
            batch = self._index.families.batch()
            made = self._topics.stage(batch, topics)
            new = self._groups.stage(batch, groups)
            offsets, kept = self._stage_offsets(batch, found, made, new, notes)
            self._index.families.write(batch, sync=True)
            self._topics.written(made)
            self._groups.written(new)
            self._offsets.written()
        return ConfigImport(
            topics=len(made),
            groups=len(new),
            offsets=offsets,
            kept=kept_topics + kept_groups + kept,
            notes=notes,
        )

    def _configuration(self, folder: Path) -> Configuration:
        for place in (folder / CONFIG, folder):
            found = read_configuration(place, self.config.files)
            if found.kind != "none" or found.delay_offsets:
                return found
        raise StoreNotFound(
            f"neither {folder} nor {folder / CONFIG} has a configuration of RocketMQ's"
        )

    def _new_topics(self, found: Configuration, notes: list[str]) -> tuple[list[TopicConfig], int]:
        configs = {topic.name: topic_config(topic) for topic in found.topics}
        for _, name, queue, _ in _offsets(found):
            config = configs.get(name, TopicConfig(name=name, queues=queue + 1))
            if queue >= (config.read_queues or config.queues):
                config = msgspec.structs.replace(config, read_queues=queue + 1)
            configs[name] = config
        new: list[TopicConfig] = []
        kept = 0
        for config in configs.values():
            if _is_legal(check_topic, config.name, notes):
                if self._topics.find(config.name) is not None:
                    kept += 1
                else:
                    new.append(config)
        return new, kept

    def _new_groups(self, found: Configuration, notes: list[str]) -> tuple[list[GroupConfig], int]:
        configs = {group.name: group_config(group) for group in found.groups}
        for name, *_ in _offsets(found):
            configs.setdefault(name, GroupConfig(name=name))
        legal = [c for c in configs.values() if _is_legal(check_group, c.name, notes)]
        new = [config for config in legal if self._groups.find(config.name) is None]
        return new, len(legal) - len(new)

    def _stage_offsets(
        self,
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
        for group, topic, queue, offset in _offsets(found):
            known, used = self._groups.find(group), self._topics.find(topic)
            group_id = group_ids.get(group) if known is None else known.id
            topic_id = topic_ids.get(topic) if used is None else used.id
            if group_id is None or topic_id is None:
                continue  # the note says why
            if used is not None and queue >= used.read_queues:
                notes.append(f"offset {offset} of {group}: {topic} has no queue {queue}")
                continue
            bounds = self._reader.bounds(topic_id << 32 | queue)
            if self._offsets.get(group_id, topic_id, queue, bounds) is not None:
                kept += 1
                continue
            if offset > bounds.next_offset:
                end = bounds.next_offset
                notes.append(
                    f"offset {offset} of {group} in queue {queue} of {topic} became {end}, the "
                    "queue's end"
                )
            clamped = min(offset, bounds.next_offset)
            self._offsets.stage(batch, group_id, topic_id, queue, clamped)
            taken += 1
        return taken, kept


def _offsets(found: Configuration) -> list[Offset]:
    delays = [
        (DELAY_GROUP, SCHEDULE_TOPIC, level - 1, offset)
        for level, offset in sorted(found.delay_offsets.items())
        if level > 0 and offset >= 0
    ]
    return [*found.offsets, *delays]


def _is_legal(check: Callable[[str], bytes], name: str, notes: list[str]) -> bool:
    try:
        check(name)
    except MessageIllegal as e:
        notes.append(f"passed over: {e}")
        return False
    return True
