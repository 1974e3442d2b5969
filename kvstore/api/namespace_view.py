"""A namespace's view of a store: the same calls, on its own topics and groups alone.

The idea: names go in with the namespace in front (`meta.namespaces`) and come out without it; all
else is the store's. A call is passed on like this:

    def peek(self, group: str, topic: str, **more: Any) -> list[StoredMessage]:
        found = self._store.peek(self._in(group), self._in(topic), **more)
        return [self._own(message) for message in found]

`_in` for each name that goes in, `_own` (a message), `_topic`, `_group` for what comes out,
`**more` for what is the store's business. Errors come out by themselves (`_speaking`). Receipts are
passed on as they are: they name one delivery, and can't be made up.

Invariants: a view reads and changes nothing that is not its namespace's: every name that goes in
becomes one of its own, whatever it looks like; what is asked for without a name (a position, an id)
is held against it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from kvstore.api.calls import Calls
from kvstore.api.namespace_calls import in_namespace
from kvstore.api.offset_calls import is_commit
from kvstore.api.parts import listed
from kvstore.config import QUEUES_DEFAULT
from kvstore.errors import MessageNotFound, StoreError
from kvstore.message import Bounds, Message, PullResult, PutResult, StoredMessage
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.history import OffsetCommit
from kvstore.meta.namespaces import check_namespace, speak_own_names, unwrap, wrap
from kvstore.meta.offsets import Lag
from kvstore.meta.topics import TopicConfig, TopicInfo
from kvstore.pop.ack import AckResult
from kvstore.pop.group_stats import GroupStats
from kvstore.pop.popped import Popped
from kvstore.record.names import DLQ_ORIGIN_GROUP, DLQ_ORIGIN_TOPIC
from kvstore.record.put.explain import as_batch

T = TypeVar("T")
_ORIGINS: Final = (DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_GROUP)
_ORIGIN: Final = DLQ_ORIGIN_TOPIC.encode()


def _speaking(view: type[T]) -> type[T]:
    """Makes the errors of all calls name topics and groups as the namespace does."""
    for name, call in list(vars(view).items()):
        if inspect.isfunction(call) and not name.startswith("_"):
            setattr(view, name, _spoken(call))
    return view


def _spoken(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def spoken(view: Namespace, *args: Any, **more: Any) -> Any:
        try:
            return call(view, *args, **more)
        except StoreError as e:
            speak_own_names(view.name, e)
            raise

    return spoken


@_speaking
class Namespace:
    """The calls of one namespace, see the module; `Store` says what each call does. `name` is the
    namespace's.
    """

    def __init__(self, store: Calls, name: str) -> None:
        self.name = check_namespace(name)
        self._store = store

    def __repr__(self) -> str:
        return f"<kvstore.Namespace {self.name} of {self._store.path}>"

    # --- names ---

    def _in(self, name: str) -> str:
        return wrap(self.name, name)

    def _out(self, name: str) -> str:
        found = unwrap(self.name, name)
        assert found is not None, "the store answered for another namespace"
        return found

    def _own(self, message: StoredMessage) -> StoredMessage:
        """A message, fresh from the store, as this namespace sees it."""
        message.topic = self._out(message.topic)
        if _ORIGIN in message.raw_properties:
            # A dead letter says its origin.
            said = dict(message.properties)
            for name in _ORIGINS:
                if name in said:
                    said[name] = unwrap(self.name, said[name]) or said[name]
            message._properties = said
        return message

    def _topic(self, info: TopicInfo) -> TopicInfo:
        return msgspec.structs.replace(info, name=self._out(info.name))

    def _group(self, info: GroupInfo) -> GroupInfo:
        dead = info.dead_letter_topic
        if dead is not None:
            # A topic set from outside may be another namespace's; then it is shown as it is.
            dead = unwrap(self.name, dead) or dead
        return msgspec.structs.replace(info, name=self._out(info.name), dead_letter_topic=dead)

    def _put(self, result: PutResult) -> PutResult:
        result.topic = self._out(result.topic)
        return result

    # --- putting ---

    def put(self, topic: str, body: bytes | bytearray | memoryview, **more: Any) -> PutResult:
        """See `Store.put`."""
        return self._put(self._store.put(self._in(topic), body, **more))

    def put_batch(self, messages: Sequence[Message]) -> list[PutResult]:
        """See `Store.put_batch`."""
        # The store refuses values that are no messages, by their place in the batch.
        own = [
            msgspec.structs.replace(m, topic=self._in(m.topic)) if isinstance(m, Message) else m
            for m in as_batch(messages)
        ]
        return [self._put(result) for result in self._store.put_batch(own)]

    # --- reading ---

    def get(self, topic: str, queue: int, offset: int) -> StoredMessage:
        """See `Store.get`."""
        return self._own(self._store.get(self._in(topic), queue, offset))

    def pull(self, topic: str, queue: int, offset: int, limit: int = 32, **more: Any) -> PullResult:
        """See `Store.pull`."""
        result = self._store.pull(self._in(topic), queue, offset, limit, **more)
        for message in result.messages:
            self._own(message)
        return result

    def query(self, topic: str, key: str, *args: Any, **more: Any) -> list[StoredMessage]:
        """See `Store.query`."""
        return [self._own(m) for m in self._store.query(self._in(topic), key, *args, **more)]

    def read_at(self, position: int) -> StoredMessage:
        """See `Store.read_at`; a message of another namespace is `MessageNotFound`."""
        message = self._store.read_at(position)
        if unwrap(self.name, message.topic) is None:
            raise MessageNotFound(f"no record of namespace {self.name!r} begins at {position}")
        return self._own(message)

    def find(self, message_id: str) -> StoredMessage:
        """See `Store.find`."""
        return self._own(self._store.find_in(self.name, message_id))

    def offset_at(self, topic: str, queue: int, time: int, *, upper: bool = False) -> int:
        """See `Store.offset_at`."""
        return self._store.offset_at(self._in(topic), queue, time, upper=upper)

    def bounds(self, topic: str, queue: int) -> Bounds:
        """See `Store.bounds`."""
        return self._store.bounds(self._in(topic), queue)

    # --- popping ---

    def pop(self, group: str, topic: str, *args: Any, **more: Any) -> list[Popped]:
        """See `Store.pop`."""
        found = self._store.pop(self._in(group), self._in(topic), *args, **more)
        for popped in found:
            self._own(popped.message)
        return found

    def ack(self, receipt: str) -> None:
        """See `Store.ack`."""
        self._store.ack(receipt)

    def ack_batch(self, receipts: Sequence[str]) -> list[AckResult]:
        """See `Store.ack_batch`."""
        return self._store.ack_batch(receipts)

    def change_invisible(
        self, receipt: str, invisible_for: float | None = None, *, gives_back: bool = False
    ) -> str:
        """See `Store.change_invisible`."""
        return self._store.change_invisible(receipt, invisible_for, gives_back=gives_back)

    def redrive(self, group: str, limit: int | None = None) -> int:
        """See `Store.redrive`."""
        return self._store.redrive(self._in(group), limit)

    def group_stats(self, group: str, topic: str | None = None) -> list[GroupStats]:
        """See `Store.group_stats`; of the namespace's topics."""
        wanted = None if topic is None else self._in(topic)
        found = self._store.group_stats(self._in(group), wanted)
        named = [(unwrap(self.name, stats.topic), stats) for stats in found]
        return [
            msgspec.structs.replace(stats, group=self._out(stats.group), topic=name)
            for name, stats in named
            if name is not None
        ]

    # --- topics ---

    def create_topic(self, name: str, queues: int = QUEUES_DEFAULT, **more: Any) -> TopicInfo:
        """See `Store.create_topic`."""
        return self._topic(self._store.create_topic(self._in(name), queues, **more))

    def create_topics(self, configs: Iterable[TopicConfig], **more: Any) -> list[TopicInfo]:
        """See `Store.create_topics`."""
        own = [in_namespace(self.name, c, TopicConfig) for c in listed("configs", configs)]
        return [self._topic(info) for info in self._store.create_topics(own, **more)]

    def topics(self) -> list[TopicInfo]:
        """The namespace's topics, by name."""
        found = [self._topic(info) for info in self._store.topics_of(self.name)]
        return sorted(found, key=lambda info: info.name)

    def topic(self, name: str) -> TopicInfo:
        """See `Store.topic`."""
        return self._topic(self._store.topic(self._in(name)))

    def alter_topic(self, name: str, **changes: Any) -> TopicInfo:
        """See `Store.alter_topic`."""
        return self._topic(self._store.alter_topic(self._in(name), **changes))

    def delete_topic(self, name: str) -> None:
        """See `Store.delete_topic`."""
        self._store.delete_topic(self._in(name))

    def delete_topics(self, names: Iterable[str]) -> None:
        """See `Store.delete_topics`."""
        self._store.delete_topics([self._in(name) for name in listed("names", names)])

    # --- groups ---

    def create_group(self, name: str, **more: Any) -> GroupInfo:
        """See `Store.create_group`."""
        return self._group(self._store.create_group(self._in(name), **self._dead_in(more)))

    def create_groups(self, configs: Iterable[GroupConfig], **more: Any) -> list[GroupInfo]:
        """See `Store.create_groups`."""
        own = [in_namespace(self.name, c, GroupConfig) for c in listed("configs", configs)]
        return [self._group(info) for info in self._store.create_groups(own, **more)]

    def groups(self) -> list[GroupInfo]:
        """The namespace's groups, by name."""
        found = [self._group(info) for info in self._store.groups_of(self.name)]
        return sorted(found, key=lambda info: info.name)

    def group(self, name: str) -> GroupInfo:
        """See `Store.group`."""
        return self._group(self._store.group(self._in(name)))

    def alter_group(self, name: str, **changes: Any) -> GroupInfo:
        """See `Store.alter_group`."""
        return self._group(self._store.alter_group(self._in(name), **self._dead_in(changes)))

    def delete_group(self, name: str) -> None:
        """See `Store.delete_group`."""
        self._store.delete_group(self._in(name))

    def delete_groups(self, names: Iterable[str]) -> None:
        """See `Store.delete_groups`."""
        self._store.delete_groups([self._in(name) for name in listed("names", names)])

    def _dead_in(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        dead = settings.get("dead_letter_topic")
        own = {"dead_letter_topic": self._in(dead)} if isinstance(dead, str) else {}
        return {**settings, **own}

    # --- offsets ---

    def commit_offset(
        self, group: str, topic: str, queue: int, offset: int, *, sync: bool = False
    ) -> None:
        """See `Store.commit_offset`."""
        self._store.commit_offset(self._in(group), self._in(topic), queue, offset, sync=sync)

    def commit_offsets(
        self, commits: Iterable[tuple[str, str, int, int]], *, sync: bool = False
    ) -> None:
        """See `Store.commit_offsets`."""
        own = [
            (self._in(c[0]), self._in(c[1]), *c[2:]) if is_commit(c) else c
            for c in listed("commits", commits)
        ]
        self._store.commit_offsets(own, sync=sync)

    def committed_offset(self, group: str, topic: str, queue: int) -> int | None:
        """See `Store.committed_offset`."""
        return self._store.committed_offset(self._in(group), self._in(topic), queue)

    def offset_history(self, group: str, topic: str, queue: int) -> list[OffsetCommit]:
        """See `Store.offset_history`."""
        return self._store.offset_history(self._in(group), self._in(topic), queue)

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
        """See `Store.reset_offset`."""
        return self._store.reset_offset(
            self._in(group), self._in(topic), offset=offset, time=time, to=to, queue=queue
        )

    def lag(self, group: str, topic: str | None = None) -> list[Lag]:
        """See `Store.lag`; of the namespace's topics."""
        wanted = None if topic is None else self._in(topic)
        found = [
            (unwrap(self.name, lag.topic), lag) for lag in self._store.lag(self._in(group), wanted)
        ]
        return [
            msgspec.structs.replace(lag, group=self._out(lag.group), topic=name)
            for name, lag in found
            if name is not None
        ]
