"""Calls that make, change, list and delete topics and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvstore.calls.parts import Parts
from kvstore.config import KeyIndex, Retention
from kvstore.meta.attributes import attributes_of
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.topics import Kind, TopicConfig, TopicInfo


class Managing(Parts):
    """See the module."""

    def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        kind: Kind = "normal",
        key_index: KeyIndex | None = None,
        retention: Retention | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Make a topic; `TopicExists`, or `MessageIllegal` for a name that can't be one."""
        config = TopicConfig(
            name=name,
            queues=queues,
            kind=kind,
            key_index=key_index,
            retention=Retention() if retention is None else retention,
            attributes=attributes_of({} if attributes is None else attributes),
        )
        return self.create_topics([config])[0]

    def create_topics(self, configs: Iterable[TopicConfig]) -> list[TopicInfo]:
        """Make topics, all or none, in one batch."""
        self._log.check_writable()
        return self._topics.create(configs)

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        self._check_open()
        return self._topics.all()

    def topic(self, name: str) -> TopicInfo:
        """One topic; `TopicNotFound`."""
        self._check_open()
        return self._topics.get(name).info

    def alter_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        key_index: KeyIndex | None = None,
        retention: Retention | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Change a topic; what is not given stays. Queues that are taken away stay readable."""
        self._log.check_writable()
        return self._topics.alter(
            name,
            queues=queues,
            key_index=key_index,
            retention=retention,
            attributes=attributes,
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic: its index goes at once, its records with their segments."""
        self._log.check_writable()
        self._topics.get(name)
        self._upkeep.checkpoint()
        info = self._topics.delete(name)
        self._index.retire_topic(info.id, self._log.segments.numbers)

    def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 16,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> GroupInfo:
        """Make a consumer group; `GroupExists`."""
        self._log.check_writable()
        config = GroupConfig(
            name=name,
            max_attempts=max_attempts,
            ordered=ordered,
            attributes=attributes_of({} if attributes is None else attributes),
        )
        return self._groups.create([config])[0]

    def groups(self) -> list[GroupInfo]:
        """All groups, by name."""
        self._check_open()
        return self._groups.all()

    def group(self, name: str) -> GroupInfo:
        """One group; `GroupNotFound`."""
        self._check_open()
        return self._groups.get(name)

    def alter_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> GroupInfo:
        """Change a group; what is not given stays. `GroupNotFound`."""
        self._log.check_writable()
        return self._groups.alter(
            name, max_attempts=max_attempts, ordered=ordered, attributes=attributes
        )

    def delete_group(self, name: str) -> None:
        """Delete a group and its committed offsets; `GroupNotFound`."""
        self._log.check_writable()
        self._offsets.forget(self._groups.delete(name).id)
