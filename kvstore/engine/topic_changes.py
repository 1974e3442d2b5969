"""Changes to topics, groups and namespaces that concern several parts of the engine.

Invariant: a deleted topic or group goes in one batch with all rows keyed by it: index, offsets,
their history, and all that `Topics.removing` and `Groups.removing` add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, TypeVar

import msgspec

from kvstore.core.names import TRANSACTION_DISCARD_TOPIC
from kvstore.engine.engine import Engine
from kvstore.errors import (
    CallerError,
    NamespaceExists,
    NamespaceNotFound,
    QueueNotEmpty,
    TopicNotFound,
    shown,
)
from kvstore.index.families import Batch
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.namespaces import check_namespace, ranges, wrap
from kvstore.meta.topics import TopicConfig, TopicInfo
from kvstore.record.validate import listed

C = TypeVar("C", TopicConfig, GroupConfig)


def check_empty(engine: Engine, old: TopicInfo, new: TopicInfo) -> None:
    """Raises `QueueNotEmpty` if a queue that readers are to lose holds messages."""
    for queue in range(new.read_queues, old.read_queues):
        low, high = engine.reader.bounds((old.id << 32) + queue)
        if low < high:
            raise QueueNotEmpty(
                f"{old.name!r} is to have {new.read_queues} read queues, but queue {queue} "
                f"holds offsets {low} to {high - 1}; nobody could read them any more: wait "
                "till retention lets them go, or keep the queue",
                queue,
            )


def alter_group(engine: Engine, name: str, changes: dict[str, Any]) -> GroupInfo:
    """See `Store.alter_group`."""
    old = engine.groups.get(name)
    spent = engine.group_progress.spent_letters(old) if "dead_letter_topic" in changes else ()
    new = engine.groups.alter(name, changes, spent)
    if new.dead_letters != old.dead_letters:
        # Pops that copy messages to the former topic right now hold the locks of their tables.
        for table in engine.popping.tables.busy_tables(new.id):
            with table.lock:
                pass
        new = engine.groups.end_former(name)
    # Waiting pops may find room now.
    engine.popping.waiting.made_room(new.id)
    return new


def delete(
    engine: Engine,
    topics: list[str],
    groups: list[str],
    also: Callable[[Batch], None] = lambda batch: None,
) -> int:
    """Deletes topics and groups in one batch, to which `also` adds more. Returns how many
    delayed and prepared messages went with the topics, those of other topics among them that were
    prepared together with some of these.
    """
    if TRANSACTION_DISCARD_TOPIC in topics:
        raise CallerError(
            f"the topic {TRANSACTION_DISCARD_TOPIC!r} has the messages of transactions that were "
            "given up, and tells that they were: it stays; its messages go when they are too old"
        )
    names = {engine.topics.of_callers(name).id: name for name in topics}
    group_ids = {engine.groups.get(name).id for name in groups}
    if topics:
        # Most of the tail now, before other threads have to wait.
        engine.upkeep.checkpoint()
    # Most of them without locks.
    count = _end_waits(engine, names)
    return count + _delete(engine, topics, groups, names, group_ids, also)


def _ending_waits(engine: Engine) -> ExitStack:
    """Keeps others from ending waits. Taken before all other locks: who ends a wait takes these
    within it.
    """
    held = ExitStack()
    held.enter_context(engine.timers.pending.lock)
    held.enter_context(engine.transactions.pending.lock)
    return held


def _end_waits(engine: Engine, names: dict[int, str]) -> int:
    """Ends the waits of messages to topics; how many these were."""
    return engine.timers.go_with_topics(names) + engine.transactions.go_with_topics(names)


def _delete(
    engine: Engine,
    topics: list[str],
    groups: list[str],
    names: dict[int, str],
    group_ids: set[int],
    also: Callable[[Batch], None],
) -> int:
    """See `delete`."""
    topic_ids = set(names)
    with (
        _ending_waits(engine) as ending,
        # Behind that, and for those ids: a pop holds a table's lock when it asks for a topic.
        engine.popping.tables.deleting(group_ids, topic_ids),
        engine.topics.lock,
        engine.groups.lock,
        ExitStack() as undo,
    ):
        batch = engine.index.families.batch()
        gone = engine.topics.close(topics)
        undo.callback(engine.topics.kept, gone)
        # Those that were put meanwhile; nobody puts any now.
        waiting = _end_waits(engine, names)
        ending.close()
        if topics:
            engine.upkeep.checkpoint()
        engine.topics.put_removal(batch, gone)
        leaving = engine.groups.put_removal(batch, groups)
        ids = [info.id for info in gone]
        if set(ids) != topic_ids or {info.id for info in leaving} != group_ids:
            raise TopicNotFound(
                "topics or groups were deleted and made again by somebody else at the same "
                "time; nothing was deleted, try again"
            )
        engine.offsets.put_removal(batch, ids)
        also(batch)
        waiting += sum(map(engine.timer_rows.count, ids))
        waiting += sum(map(engine.prepared_rows.count, ids))
        engine.index.retire_topics(batch, ids)
        undo.pop_all()
        engine.topics.deleted(gone)
        engine.groups.deleted(leaving)
    return waiting


def create_namespace(
    engine: Engine,
    name: str,
    topics: Iterable[TopicConfig],
    groups: Iterable[GroupConfig],
    *,
    exist_ok: bool,
) -> None:
    """See `Store.create_namespace`."""
    engine.log.check_writable()
    check_namespace(name)
    own_topics = [in_namespace(name, config, TopicConfig) for config in listed("topics", topics)]
    own_groups = [in_namespace(name, config, GroupConfig) for config in listed("groups", groups)]
    with engine.topics.lock, engine.groups.lock:
        is_made = engine.namespaces.is_made(name)
        if not exist_ok and (is_made or any(of_namespace(engine, name))):
            raise NamespaceExists(
                f"namespace {shown(name)} exists already; use store.namespace({shown(name)}), "
                "or exist_ok=True to make what it has not"
            )
        batch = engine.index.families.batch()
        made = engine.topics.put_new(batch, own_topics, exist_ok=exist_ok)
        new = engine.groups.put_new(batch, own_groups, exist_ok=exist_ok)
        if not is_made:
            engine.namespaces.put_new(batch, name, engine.config.clock.now_ms())
        engine.index.families.write(batch, sync=True)
        engine.topics.written(made)
        engine.groups.written(new)


def delete_namespace(engine: Engine, name: str) -> int:
    """See `Store.delete_namespace`."""
    engine.log.check_writable()
    check_namespace(name)
    topics, groups = of_namespace(engine, name)
    if not (topics or groups or engine.namespaces.is_made(name)):
        raise NamespaceNotFound(f"there is no namespace {shown(name)}; `namespaces` lists them")
    return delete(
        engine,
        [info.name for info in topics],
        [info.name for info in groups],
        lambda batch: engine.namespaces.put_removal(batch, name),
    )


def of_namespace(engine: Engine, name: str) -> tuple[list[TopicInfo], list[GroupInfo]]:
    """All topics and groups of a namespace, with the names they have in the store."""
    topics = [info for first, end in ranges(name) for info in engine.topics.all(first, end)]
    groups = [info for first, end in ranges(name) for info in engine.groups.all(first, end)]
    return topics, groups


def in_namespace(namespace: str, config: C, wanted: type[C]) -> C:
    """A configuration with the names that it has in the store; `CallerError` if it is none."""
    if type(config) is not wanted:
        raise CallerError(f"{shown(config)} is no {wanted.__name__}; give a list of them")
    changes = {"name": wrap(namespace, config.name)}
    if isinstance(config, GroupConfig) and config.dead_letter_topic is not None:
        changes["dead_letter_topic"] = wrap(namespace, config.dead_letter_topic)
    return msgspec.structs.replace(config, **changes)
