"""The calls of a store on messages, topics, groups and offsets: `Store` and `Namespace` have them.

The idea: a call checks that the store is open, finds its topic and group by name, and hands the
work to one part of the engine or one function of a room. So the way from a call to its work is one
step. Calls that only a whole store has, for instance closing, are in `api.store`.

Invariants: a call that raised changed nothing, except with `FlushFailed` (what was put may be there
when the store is opened again) and by `redrive`, which says what it did; every call may be made
from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NoReturn

from msgspec import UNSET, UnsetType

from kvstore.api.column_calls import ColumnCalls
from kvstore.api.pop_calls import PopCalls
from kvstore.api.renewal_calls import RenewalCalls
from kvstore.api.schedule_calls import ScheduleCalls
from kvstore.api.timing_calls import TimingCalls
from kvstore.api.transaction_calls import TransactionCalls
from kvstore.config import QUEUES_DEFAULT, Codec, KeyIndex, Retention
from kvstore.engine import group_offsets, topic_changes
from kvstore.errors import CallerError
from kvstore.message import Bounds, Message, PullResult, PutResult, StoredMessage
from kvstore.meta.groups import DEFAULT_BACKOFF, GroupConfig, GroupInfo, Start
from kvstore.meta.history import OffsetCommit
from kvstore.meta.namespaces import belongs_to, check_namespace
from kvstore.meta.offsets import Lag
from kvstore.meta.topics import Kind, TopicConfig, TopicInfo
from kvstore.pop.inflight.listing import InFlightPage
from kvstore.pop.progress import GroupStats
from kvstore.read.filters import compile_filter
from kvstore.read.pull import pull
from kvstore.read.sql import SqlFilter
from kvstore.record.validate import attributes_of, listed
from kvstore.timing.pending_messages import GOING_ON, Owns, newest_of


class Calls(ColumnCalls, PopCalls, RenewalCalls, TimingCalls, TransactionCalls, ScheduleCalls):
    """The calls, see the module. `engine` has the parts of the open store."""

    def __reduce__(self) -> NoReturn:
        # Pickling's own error would not help a program that gave a store to another process.
        raise CallerError(
            f"the store in {self.path} can't be pickled or copied, nor given to another process: "
            "only the process that opened it uses it. Give the process the messages; have it "
            "answer, and ack here"
        )

    # --- putting ---

    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        queue: int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        flags: int = 0,
        message_id: str | None = None,
        born_at: int | None = None,
        deliver_at: int | None = None,
        delay: float | None = None,
        delay_level: int | None = None,
        expires_at: int | None = None,
        dedup_id: str | None = None,
    ) -> PutResult:
        """Puts one message; see `put_batch`, of which this is a batch of one, and `Message` for the
        fields.

        >>> store.put("orders", b"...", tag="paid", keys=["o-17"]).offset  # doctest: +SKIP
        0
        >>> reminder = store.put("orders", b"...", delay=3 * 86400)  # doctest: +SKIP
        >>> store.cancel(reminder.message_id)  # doctest: +SKIP
        True
        """
        message = Message(
            topic, body, queue, tag, keys, {} if properties is None else properties, message_group,
            flags, message_id, born_at, deliver_at, delay, delay_level, expires_at, dedup_id,
        )  # fmt: skip
        return self._engine.writer.put_batch((message,))[0]

    def put_batch(self, messages: Sequence[Message]) -> list[PutResult]:
        """Puts messages, in order; an error writes none of them (a crash may leave a leading part;
        after `FlushFailed` they may be there when the store is opened again).

        Returns when they are written, or with `flush="sync"` when they are on the disk. A message
        that repeats a dedup id within its topic's `dedup_window` is not put again: its result is
        the first one's. Raises `TopicNotFound`, `MessageIllegal` and its kinds, `StoreBusy`,
        `DiskFull`, `FlushFailed`, `StoreReadOnly`, `StoreClosed`, and errors of archives."""
        return self._engine.writer.put_batch(messages)

    # --- reading ---

    def get(self, topic: str, queue: int, offset: int) -> StoredMessage:
        """The message at an offset of a queue; `OffsetNotFound` (with the bounds) if it holds none
        there. `get`, `pull`, `pull_columns` and `query` refuse the topics in which delayed and
        prepared messages wait (`CallerError`); `timers` and `transactions` list these.
        """
        engine = self._engine
        if engine.is_closed:
            self._check_open()
        return engine.reader.get(engine.topics.of_callers(topic), queue, offset)

    def pull(
        self,
        topic: str,
        queue: int,
        offset: int,
        limit: int = 32,
        *,
        max_bytes: int | None = None,
        filter: str | SqlFilter | None = None,
    ) -> PullResult:
        """Up to `limit` messages (and `max_bytes` of records, but one at least) from an offset on.

        `filter` is a tag expression, like `"paid || shipped"`, or `kvstore.sql("amount > 5")`;
        `FilterIllegal` says where one is wrong. `next_offset` is where to go on, also when nothing
        was found: below the queue's bounds its first offset, behind them its next one. Messages
        that have expired are passed over and counted; a pull ends behind hundreds of these."""
        self._check_open()
        return pull(
            self._engine.reader,
            self._engine.topics.of_callers(topic),
            queue,
            offset,
            limit,
            max_bytes,
            compile_filter(filter),
        )

    def query(
        self,
        topic: str,
        key: str,
        begin: int | None = None,
        end: int | None = None,
        limit: int = 64,
        *,
        max_bytes: int | None = None,
    ) -> list[StoredMessage]:
        """Messages of a topic with a key (or unique id), the highest position in the log first;
        `begin` and `end` bound the store time, ms, both included. `MessageTooLarge` if there are
        more behind `max_bytes` of records (a server's limit is 256 MiB): ask for fewer.
        """
        self._check_open()
        asked = self._engine.topics.of_callers(topic)
        return self._engine.finder.query(asked, key, begin, end, limit, max_bytes)

    def read_at(self, position: int) -> StoredMessage:
        """The message whose record begins at a position of the log; `MessageNotFound`,
        `RecordDamaged`.
        """
        return self._engine.reader.read_at(position)

    def find(self, message_id: str) -> StoredMessage:
        """The message with a unique id or a position id; `MessageNotFound`, and `ArchiveDamaged`
        where it may be in an archive that is damaged or missing.
        """
        return self._engine.finder.find(message_id)

    def find_in(self, namespace: str, message_id: str) -> StoredMessage:
        """As `find`, of the messages of a namespace's topics, and of those to them that wait."""
        check_namespace(namespace)
        return self._find(message_id, belongs_to(namespace))

    def _find(
        self, message_id: str, owns: Owns | None, sees: Owns = lambda topic: True
    ) -> StoredMessage:
        """Of the messages that go to topics that `owns` says yes to, in topics that a client
        `sees`.
        """
        find = self._engine.finder.find
        return newest_of(find, GOING_ON, message_id, owns, lambda message: sees(message.topic))

    def offset_at(self, topic: str, queue: int, time: int, *, upper: bool = False) -> int:
        """The first offset stored at or after a time (ms since the epoch); the next offset if there
        is none.

        With `upper` the last offset stored at or before it; 0 if there is none.
        """
        self._check_open()
        return self._engine.reader.offset_at(
            self._engine.topics.get(topic), queue, time, upper=upper
        )

    def bounds(self, topic: str, queue: int) -> Bounds:
        """A queue's first held offset and its next offset."""
        self._check_open()
        self._engine.reader.look_again()
        return self._engine.reader.bounds(self._engine.topics.get(topic).key(queue))

    # --- figures of groups ---

    def group_stats(self, group: str, topic: str | None = None) -> list[GroupStats]:
        """Figures about a group in a topic; without one, in all topics it ever popped or committed
        in, but for its own dead-letter topics (`GroupStats.dead_letters` counts those).
        `GroupNotFound`, `TopicNotFound`. Also of a store that is open read-only.

        >>> store.group_stats("billing", "orders")[0].in_flight  # doctest: +SKIP
        32
        """
        self._check_open()
        return group_offsets.group_stats(self._engine, group, topic)

    def in_flight(
        self,
        group: str,
        topic: str | None = None,
        *,
        limit: int = 64,
        after: Sequence[int] | None = None,
    ) -> InFlightPage:
        """Messages that a group was handed and is not done with, in a topic or in all; by topic the
        next due first. `after` is the `next` of the page before. Also of a store that is open
        read-only. `GroupNotFound`, `TopicNotFound`.

        >>> for m in store.in_flight("billing").messages:  # doctest: +SKIP
        ...     print(m.topic, m.queue, m.offset, m.message_id, m.attempt, m.due_at)
        """
        self._check_open()
        return group_offsets.in_flight(self._engine, group, topic, limit, after)

    # --- topics ---

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
        takes_delays: bool = True,
        dedup_window: float | None = None,
    ) -> TopicInfo:
        """Makes a topic; `TopicExists`, or `MessageIllegal` for a name that can't be one.
        `TopicConfig` says what each setting means, and what None stands for.

        With `exist_ok` a topic that is there stays as it is, whatever its settings, and is the
        answer: so a program can make its topics whenever it begins."""
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
            takes_delays=takes_delays,
            dedup_window=dedup_window,
        )
        return self.create_topics([config], exist_ok=exist_ok)[0]

    def create_topics(
        self, configs: Iterable[TopicConfig], *, exist_ok: bool = False
    ) -> list[TopicInfo]:
        """Makes topics, all or none, in one batch. With `exist_ok` those that are there stay as
        they are; the answer has all, in the order of `configs`.
        """
        self._engine.log.check_writable()
        wanted = listed("configs", configs)
        return self._engine.topics.create(wanted, exist_ok=exist_ok)

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        self._check_open()
        return self._engine.topics.all()

    def topics_of(self, namespace: str) -> list[TopicInfo]:
        """A namespace's topics, with the names they have in the store."""
        self._check_open()
        return topic_changes.of_namespace(self._engine, check_namespace(namespace))[0]

    def topic(self, name: str) -> TopicInfo:
        """One topic; `TopicNotFound`."""
        self._check_open()
        return self._engine.topics.get(name).info

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
        takes_delays: bool | None = None,
        dedup_window: float | UnsetType | None = UNSET,
    ) -> TopicInfo:
        """Changes a topic; settings that are not given stay. `compress_above` and `compression`
        None are the store's again, `dedup_window` None lets the topic take no dedup ids.

        `queues` (or `write_queues`) is how many take messages. Fewer than before: those taken away
        stay readable, until `read_queues` takes them from readers too, which is refused
        (`QueueNotEmpty`) while one of them holds a message. Queues that come back go on where they
        were. A topic in which the store keeps delayed or prepared messages stays as it is
        (`CallerError`)."""
        self._engine.log.check_writable()
        if queues is not None and write_queues is not None:
            raise CallerError("queues and write_queues are the same setting; give one of them")
        changes = _given(
            key_index=UNSET if key_index is None else key_index,
            retention=UNSET if retention is None else retention,
            compress_above=compress_above,
            compression=compression,
            attributes=UNSET if attributes is None else attributes_of(attributes),
            takes_delays=UNSET if takes_delays is None else takes_delays,
            dedup_window=dedup_window,
        )
        return self._engine.topics.alter(
            name,
            changes,
            queues=write_queues if queues is None else queues,
            read_queues=read_queues,
            may_shrink=partial(topic_changes.check_empty, self._engine),
        )

    def delete_topic(self, name: str) -> int:
        """Deletes a topic: its index and the rows that groups have of the topic go at once, its
        records with their segments. Its schedules end, and its delayed and prepared messages are
        not delivered; returns how many these were, with the next one of each schedule.
        `TopicNotFound`, and `CallerError` for a topic in which the store keeps them.
        """
        return self.delete_topics([name])

    def delete_topics(self, names: Iterable[str]) -> int:
        """Deletes topics, all or none, in one batch; see `delete_topic`."""
        self._engine.log.check_writable()
        return topic_changes.delete(self._engine, listed("names", names), [])

    # --- groups ---

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
        dead_letter_expired: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> GroupInfo:
        """Makes a consumer group; `GroupExists`. `GroupConfig` says what each setting means, and
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
            dead_letter_expired=dead_letter_expired,
            attributes=attributes_of({} if attributes is None else attributes),
        )
        return self.create_groups([config], exist_ok=exist_ok)[0]

    def create_groups(
        self, configs: Iterable[GroupConfig], *, exist_ok: bool = False
    ) -> list[GroupInfo]:
        """Makes groups, all or none, in one batch. With `exist_ok` those that are there stay as
        they are; the answer has all, in the order of `configs`.
        """
        self._engine.log.check_writable()
        return self._engine.groups.create(listed("configs", configs), exist_ok=exist_ok)

    def groups(self) -> list[GroupInfo]:
        """All groups, by name."""
        self._check_open()
        return self._engine.groups.all()

    def groups_of(self, namespace: str) -> list[GroupInfo]:
        """A namespace's groups, with the names they have in the store."""
        self._check_open()
        return topic_changes.of_namespace(self._engine, check_namespace(namespace))[1]

    def group(self, name: str) -> GroupInfo:
        """One group; `GroupNotFound`."""
        self._check_open()
        return self._engine.groups.get(name)

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
        dead_letter_expired: bool | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> GroupInfo:
        """Changes a group; settings that are not given stay. `GroupNotFound`.

        Where None is a value of its own it is set: `backoff=None` is the default table again,
        `dead_letter_topic=None` `%DLQ%` and the name, `max_in_flight=None` no limit. Dead letters
        stay in the former topic; `redrive` and `group_stats` go on with them there. A group has
        up to 16 such topics (`CallerError`)."""
        self._engine.log.check_writable()
        changes = _given(
            max_attempts=UNSET if max_attempts is None else max_attempts,
            ordered=UNSET if ordered is None else ordered,
            backoff=DEFAULT_BACKOFF if backoff is None else _steps(backoff),
            dead_letter_topic=dead_letter_topic,
            start=UNSET if start is None else start,
            max_in_flight=max_in_flight,
            dead_letter_expired=UNSET if dead_letter_expired is None else dead_letter_expired,
            attributes=UNSET if attributes is None else attributes_of(attributes),
        )
        return topic_changes.alter_group(self._engine, name, changes)

    def delete_group(self, name: str) -> None:
        """Deletes a group, its committed offsets and their history; `GroupNotFound`."""
        self.delete_groups([name])

    def delete_groups(self, names: Iterable[str]) -> None:
        """Deletes groups, all or none, in one batch."""
        self._engine.log.check_writable()
        topic_changes.delete(self._engine, [], listed("names", names))

    # --- offsets ---

    def commit_offset(
        self, group: str, topic: str, queue: int, offset: int, *, sync: bool = False
    ) -> None:
        """Says that a group wants `offset` of a queue next. A group that is new is made. `InFlight`
        if the group has popped messages of that queue and not acked them.

        Returns when the commit outlives a crash of the process, with `sync` when it is on the disk;
        without, that is so after `StoreConfig.offset_sync_interval`."""
        self.commit_offsets([(group, topic, queue, offset)], sync=sync)

    def commit_offsets(
        self, commits: Iterable[tuple[str, str, int, int]], *, sync: bool = False
    ) -> None:
        """Commits (group, topic, queue, offset) of each, all or none, in one batch; of two for a
        queue the later one counts. See `commit_offset`.

        >>> store.commit_offsets([("billing", "orders", 3, 120)], sync=True)  # doctest: +SKIP
        """
        self._engine.log.check_writable()
        group_offsets.commit_offsets(self._engine, commits, sync=sync)

    def committed_offset(self, group: str, topic: str, queue: int) -> int | None:
        """The offset a group wants next, all below being done; None if it never committed one."""
        self._check_open()
        return group_offsets.committed_offset(self._engine, group, topic, queue)

    def offset_history(self, group: str, topic: str, queue: int) -> list[OffsetCommit]:
        """The committed offsets of a queue, each with the time from which it held, oldest first.
        The last one is `committed_offset` now, unless that has held for longer than
        `StoreConfig.offset_history_for`.

        The last offset of each `StoreConfig.offset_history_interval` is kept. The progress of a
        group that pops is sampled at that interval, and when it is asked for here; a store that is
        open read-only shows what was sampled.
        """
        self._check_open()
        used = self._engine.topics.get(topic)
        bounds = self._engine.reader.bounds(used.key(queue))
        known = self._engine.groups.get(group)
        if self._engine.log.writable:
            self._engine.progress.sample_queue(known.id, used.id, queue)
        return self._engine.offsets.history(known.id, used.id, queue, bounds)

    def reset_offset(
        self,
        group: str,
        topic: str,
        *,
        offset: int | None = None,
        time: int | None = None,
        to: Literal["begin", "end"] | None = None,
        queue: int | None = None,
    ) -> dict[int, int]:
        """Sets where a group goes on in a topic, durably: at an offset, at the first message stored
        at or after a time (ms since the epoch), or at the beginning or the end. Of all queues, or
        of one; an offset is of one queue, so with it `queue` has to be given if there are more.

        Messages the group has under lock there are given up. Returns the new offsets by queue;
        `GroupNotFound`, `TopicNotFound`, `QueueNotFound`.

        >>> store.reset_offset("billing", "orders", to="begin")  # doctest: +SKIP
        {0: 0, 1: 0, 2: 17, 3: 0}
        """
        self._engine.log.check_writable()
        return group_offsets.reset_offset(
            self._engine, group, topic, offset=offset, time=time, to=to, queue=queue
        )

    def lag(self, group: str, topic: str | None = None) -> list[Lag]:
        """How much a group has still to do in every queue of a topic, and how far it is; without a
        topic, of all in which it ever popped or committed an offset, but for its own dead-letter
        topic: it gave up on those messages. By topic and queue; `GroupNotFound`, `TopicNotFound`.
        """
        self._check_open()
        return group_offsets.lag(self._engine, group, topic)


def _given(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not UNSET}


def _steps(backoff: Any) -> Any:
    """The backoff as a tuple, if it is a sequence; any other value is left to the check."""
    return tuple(backoff) if isinstance(backoff, list | tuple) else backoff
