"""Calls about namespaces as a whole; calls inside one are `kvstore.api.namespace_view`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from kvstore.api.parts import listed
from kvstore.api.topic_calls import TopicCalls
from kvstore.errors import (
    CallerError,
    NamespaceExists,
    NamespaceNotFound,
    shown,
)
from kvstore.message import StoredMessage
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.namespaces import check_namespace, namespace_of, ranges, wrap
from kvstore.meta.topic import check_offered
from kvstore.meta.topics import TopicConfig, TopicInfo

C = TypeVar("C", TopicConfig, GroupConfig)


class NamespaceCalls(TopicCalls):
    """Calls that list, make and delete namespaces."""

    def namespaces(self) -> list[str]:
        """The names of all namespaces, including those that occur only in names of topics and
        groups (as in a store that RocketMQ wrote).
        """
        self._check_open()
        return self._namespaces.all()

    def create_namespace(
        self,
        name: str,
        topics: Iterable[TopicConfig] = (),
        groups: Iterable[GroupConfig] = (),
        *,
        exist_ok: bool = False,
    ) -> None:
        """Make a namespace with topics and groups, all or nothing, in one batch. Their names are
        given as they are called in it. `NamespaceExists`; `store.namespace(name)` is the way in.
        With `exist_ok` all that is there stays as it is, and what is not is made.

        >>> orders = TopicConfig(name="orders")
        >>> store.create_namespace("tenant-a", topics=[orders])  # doctest: +SKIP
        """
        self._log.check_writable()
        check_namespace(name)
        own_topics = [
            in_namespace(name, config, TopicConfig) for config in listed("topics", topics)
        ]
        own_groups = [
            in_namespace(name, config, GroupConfig) for config in listed("groups", groups)
        ]
        check_offered(own_topics)
        with self._topics.lock, self._groups.lock:
            is_made = self._namespaces.is_made(name)
            if not exist_ok and (is_made or any(self._of_namespace(name))):
                raise NamespaceExists(
                    f"namespace {shown(name)} exists already; use store.namespace({shown(name)}), "
                    "or exist_ok=True to make what it has not"
                )
            batch = self._index.families.batch()
            made = self._topics.stage(batch, own_topics, exist_ok=exist_ok)
            new = self._groups.stage(batch, own_groups, exist_ok=exist_ok)
            if not is_made:
                self._namespaces.stage(batch, name, self.config.clock.now_ms())
            self._index.families.write(batch, sync=True)
            self._topics.written(made)
            self._groups.written(new)

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace with all its topics and groups, in one batch; `NamespaceNotFound`."""
        self._log.check_writable()
        check_namespace(name)
        topics, groups = self._of_namespace(name)
        if not (topics or groups or self._namespaces.is_made(name)):
            raise NamespaceNotFound(f"there is no namespace {shown(name)}; `namespaces` lists them")
        self._delete(
            [info.name for info in topics],
            [info.name for info in groups],
            lambda batch: self._namespaces.stage_delete(batch, name),
        )

    def _of_namespace(self, name: str) -> tuple[list[TopicInfo], list[GroupInfo]]:
        """All topics and groups of a namespace, with the names they have in the store."""
        topics = [info for first, end in ranges(name) for info in self._topics.all(first, end)]
        groups = [info for first, end in ranges(name) for info in self._groups.all(first, end)]
        return topics, groups

    def topics_of(self, namespace: str) -> list[TopicInfo]:
        """A namespace's topics, with the names they have in the store."""
        self._check_open()
        return self._of_namespace(check_namespace(namespace))[0]

    def groups_of(self, namespace: str) -> list[GroupInfo]:
        """A namespace's groups, with the names they have in the store."""
        self._check_open()
        return self._of_namespace(check_namespace(namespace))[1]

    def find_in(self, namespace: str, message_id: str) -> StoredMessage:
        """As `find`, in the topics of a namespace."""
        check_namespace(namespace)
        return self._finder.find(message_id, lambda topic: namespace_of(topic) == namespace)


def in_namespace(namespace: str, config: C, wanted: type[C]) -> C:
    """A configuration with the names that it has in the store; `CallerError` if it is none."""
    if type(config) is not wanted:
        raise CallerError(f"{shown(config)} is no {wanted.__name__}; give a list of them")
    changes = {"name": wrap(namespace, config.name)}
    if isinstance(config, GroupConfig) and config.dead_letter_topic is not None:
        changes["dead_letter_topic"] = wrap(namespace, config.dead_letter_topic)
    return msgspec.structs.replace(config, **changes)
