"""Calls that make, change, list and delete topics and groups.

Invariant: a deleted topic or group goes in one batch with all rows keyed by it: index, offsets,
their history, and all that `Topics.removing` and `Groups.removing` add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from kvstore.api.parts import Parts, listed
from kvstore.config import QUEUES_DEFAULT, Codec, KeyIndex, Retention
from kvstore.errors import CallerError, QueueNotEmpty, TopicNotFound
from kvstore.index.families import Batch
from kvstore.meta.attributes import attributes_of
from kvstore.meta.groups import DEFAULT_BACKOFF, GroupConfig, GroupInfo, Start
from kvstore.meta.topic import check_offered
from kvstore.meta.topics import Kind, TopicConfig, TopicInfo


class TopicCalls(Parts):
    """Calls about topics and groups."""

    def create_topic(
        self,
        name: str,
        queues: int = QUEUES_DEFAULT,
        *,
        exist_ok: bool = False,
        read_queues: int | None = None,
        kind: Kind = "normal",
        key_index: KeyIndex | None = None,
        retention: Retention | None = None,
        compress_above: int | None = None,
        compression: Codec | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Make a topic; `TopicExists`, or `MessageIllegal` for a name that can't be one.
        `TopicConfig` says what each setting means, and what None stands for.

        With `exist_ok` a topic that is there stays as it is, whatever its settings, and is the
        answer: so a program can make its topics whenever it begins. The kinds "delay" and
        "transaction" are a `CallerError`, since this version delays nothing and has no
        transactions.
        """
        config = TopicConfig(
            name=name,
            queues=queues,
            read_queues=read_queues,
            kind=kind,
            key_index=key_index,
            retention=Retention() if retention is None else retention,
            compress_above=compress_above,
            compression=compression,
            attributes=attributes_of({} if attributes is None else attributes),
        )
        return self.create_topics([config], exist_ok=exist_ok)[0]

    def create_topics(
        self, configs: Iterable[TopicConfig], *, exist_ok: bool = False
    ) -> list[TopicInfo]:
        """Make topics, all or none, in one batch. With `exist_ok` those that are there stay as they
        are; the answer has all, in the order of `configs`.
        """
        self._log.check_writable()
        wanted = listed("configs", configs)
        check_offered(wanted)
        return self._topics.create(wanted, exist_ok=exist_ok)

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
        write_queues: int | None = None,
        read_queues: int | None = None,
        key_index: KeyIndex | None = None,
        retention: Retention | None = None,
        compress_above: int | UnsetType | None = UNSET,
        compression: Codec | UnsetType | None = UNSET,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicInfo:
        """Change a topic; what is not given stays. `compress_above` and `compression` None are the
        store's again.

        `queues` (or `write_queues`) is how many take messages. Fewer than before: those taken away
        stay readable, until `read_queues` takes them from readers too, which is refused
        (`QueueNotEmpty`) while one of them holds a message. Queues that come back go on where they
        were."""
        self._log.check_writable()
        if queues is not None and write_queues is not None:
            raise CallerError("queues and write_queues are the same setting; give one of them")
        changes: dict[str, Any] = {
            "key_index": UNSET if key_index is None else key_index,
            "retention": UNSET if retention is None else retention,
            "compress_above": compress_above,
            "compression": compression,
            "attributes": UNSET if attributes is None else attributes_of(attributes),
        }
        return self._topics.alter(
            name,
            {k: v for k, v in changes.items() if v is not UNSET},
            queues=write_queues if queues is None else queues,
            read_queues=read_queues,
            may_shrink=self._check_empty,
        )

    def _check_empty(self, old: TopicInfo, new: TopicInfo) -> None:
        """Raise `QueueNotEmpty` if a queue that readers are to lose holds messages."""
        for queue in range(new.read_queues, old.read_queues):
            low, high = self._reader.bounds((old.id << 32) + queue)
            if low < high:
                raise QueueNotEmpty(
                    f"{old.name!r} is to have {new.read_queues} read queues, but queue {queue} "
                    f"holds offsets {low} to {high - 1}; nobody could read them any more: wait "
                    "till retention lets them go, or keep the queue",
                    queue,
                )

    def delete_topic(self, name: str) -> None:
        """Delete a topic: its index and all that groups keep of it goes at once, its records with
        their segments. `TopicNotFound`.
        """
        self.delete_topics([name])

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, all or none, in one batch."""
        self._log.check_writable()
        self._delete(listed("names", names), [])

    def _delete(
        self,
        topics: list[str],
        groups: list[str],
        also: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        """Delete topics and groups, and what `also` adds, in one batch."""
        topic_ids = {self._topics.get(name).id for name in topics}
        group_ids = {self._groups.get(name).id for name in groups}
        if topics:
            # Most of the tail now, before other threads have to wait.
            self._upkeep.checkpoint()
        with (
            # First, and for those ids: a pop holds a table's lock when it asks for a topic.
            self._popping.flights.deleting(group_ids, topic_ids),
            self._topics.lock,
            self._groups.lock,
        ):
            batch = self._index.families.batch()
            gone = self._topics.stage_delete(batch, topics)
            leaving = self._groups.stage_delete(batch, groups)
            ids = [info.id for info in gone]
            if set(ids) != topic_ids or {info.id for info in leaving} != group_ids:
                raise TopicNotFound(
                    "topics or groups were deleted and made again by somebody else at the same "
                    "time; nothing was deleted, try again"
                )
            self._offsets.stage_forget(batch, ids)
            also(batch)
            if topics:
                self._upkeep.checkpoint()
            self._index.retire_topics(batch, ids)
            self._topics.deleted(gone)
            self._groups.deleted(leaving)
        self._take_late(gone)

    def _take_late(self, gone: list[TopicInfo]) -> None:
        """Removes rows of deleted topics that puts wrote which had begun before the deletion."""
        with self._log.lock:
            pass  # every put that waited for the lock has written now
        late = [info for info in gone if self._index.in_tails(info.id, info.read_queues)]
        if late:
            self._upkeep.checkpoint()
            with self._topics.lock:
                batch = self._index.families.batch()
                self._topics.extend_dropped(batch, late)
                self._index.retire_topics(batch, [info.id for info in late])

    def create_group(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        max_attempts: int = 16,
        ordered: bool = False,
        backoff: Sequence[float] | None = None,
        dead_letter_topic: str | None = None,
        start: Start = "begin",
        max_in_flight: int | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> GroupInfo:
        """Make a consumer group; `GroupExists`. `GroupConfig` says what each setting means, and
        what None stands for. With `exist_ok` a group that is there stays as it is, whatever its
        settings, and is the answer.

        >>> store.create_group("billing", backoff=[1, 10, 60], start="end")  # doctest: +SKIP
        """
        config = GroupConfig(
            name=name,
            max_attempts=max_attempts,
            ordered=ordered,
            backoff=DEFAULT_BACKOFF if backoff is None else _steps(backoff),
            dead_letter_topic=dead_letter_topic,
            start=start,
            max_in_flight=max_in_flight,
            attributes=attributes_of({} if attributes is None else attributes),
        )
        return self.create_groups([config], exist_ok=exist_ok)[0]

    def create_groups(
        self, configs: Iterable[GroupConfig], *, exist_ok: bool = False
    ) -> list[GroupInfo]:
        """Make groups, all or none, in one batch. With `exist_ok` those that are there stay as they
        are; the answer has all, in the order of `configs`.
        """
        self._log.check_writable()
        return self._groups.create(listed("configs", configs), exist_ok=exist_ok)

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
        backoff: Sequence[float] | UnsetType | None = UNSET,
        dead_letter_topic: str | UnsetType | None = UNSET,
        start: Start | None = None,
        max_in_flight: int | UnsetType | None = UNSET,
        attributes: Mapping[str, str] | None = None,
    ) -> GroupInfo:
        """Change a group; what is not given stays. `GroupNotFound`.

        Where None is a value of its own it is set: `backoff=None` is the default table again,
        `dead_letter_topic=None` `%DLQ%` and the name, `max_in_flight=None` no limit."""
        self._log.check_writable()
        changes: dict[str, Any] = {
            "max_attempts": UNSET if max_attempts is None else max_attempts,
            "ordered": UNSET if ordered is None else ordered,
            "backoff": DEFAULT_BACKOFF if backoff is None else _steps(backoff),
            "dead_letter_topic": dead_letter_topic,
            "start": UNSET if start is None else start,
            "max_in_flight": max_in_flight,
            "attributes": UNSET if attributes is None else attributes_of(attributes),
        }
        changed = self._groups.alter(name, {k: v for k, v in changes.items() if v is not UNSET})
        # Waiting pops may find room now.
        self._popping.waiting.made_room(changed.id)
        return changed

    def delete_group(self, name: str) -> None:
        """Delete a group, its committed offsets and their history; `GroupNotFound`."""
        self.delete_groups([name])

    def delete_groups(self, names: Iterable[str]) -> None:
        """Delete groups, all or none, in one batch."""
        self._log.check_writable()
        self._delete([], listed("names", names))


def _steps(backoff: Any) -> Any:
    """The backoff as a tuple, if it is a sequence; any other value is left to the check."""
    return tuple(backoff) if isinstance(backoff, list | tuple) else backoff
