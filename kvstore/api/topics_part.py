"""The part of a store that a caller may see: its calls, as if other topics and groups were not.

The idea: calls that name a message by its id, and calls that list, find in the whole store. Here
they are given a function that says of a name whether it belongs to the part; the rest is not found
and not listed. The names of the calls are those of `Store`, whose docstrings hold.

Invariant: a message is looked for and changed in the part by one look-up, so an id that occurs
twice is never that of another topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from kvstore.api.store import Store
from kvstore.message import PutResult, StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.namespaces import belongs_to, check_namespace
from kvstore.meta.topics import TopicInfo
from kvstore.timing.delayed_message import DelayedMessage, DelayedPage
from kvstore.timing.pending_messages import Owns
from kvstore.timing.prepared_list import Handle, result_of
from kvstore.timing.prepared_message import PreparedMessage, PreparedPage
from kvstore.timing.schedule_rows import ScheduleInfo

Place = tuple[int, int] | None
P = ParamSpec("P")
R = TypeVar("R")


def _in_namespace(
    call: Callable[Concatenate[TopicsPart, P], R],
) -> Callable[Concatenate[TopicsPart, str, P], R]:
    """As `call`, of the topics of a namespace alone, which is named first."""

    def narrowed(part: TopicsPart, namespace: str, *args: P.args, **more: P.kwargs) -> R:
        check_namespace(namespace)
        is_in, owns = belongs_to(namespace), part._owns
        within = TopicsPart(part._store, lambda name: is_in(name) and owns(name))
        return call(within, *args, **more)

    return narrowed  # type: ignore[return-value]  # the namespace may be given by its name, too


class TopicsPart:
    """See the module. `owns` may be called in any thread."""

    def __init__(self, store: Store, owns: Owns) -> None:
        self._store = store
        self._engine = store._engine
        self._owns = owns

    # --- lists ---

    def topics(self) -> list[TopicInfo]:
        """See `Store.topics`."""
        return [info for info in self._store.topics() if self._owns(info.name)]

    def topics_of(self, namespace: str) -> list[TopicInfo]:
        """See `Store.topics_of`."""
        return [info for info in self._store.topics_of(namespace) if self._owns(info.name)]

    def groups(self) -> list[GroupInfo]:
        """See `Store.groups`."""
        return [info for info in self._store.groups() if self._owns(info.name)]

    def groups_of(self, namespace: str) -> list[GroupInfo]:
        """See `Store.groups_of`."""
        return [info for info in self._store.groups_of(namespace) if self._owns(info.name)]

    def schedules(self, topic: str | None = None) -> list[ScheduleInfo]:
        """See `Store.schedules`."""
        return [info for info in self._store.schedules(topic) if self._owns(info.topic)]

    def schedules_in(self, namespace: str, topic: str | None = None) -> list[ScheduleInfo]:
        """See `Store.schedules_in`."""
        found = self._store.schedules_in(namespace, topic)
        return [info for info in found if self._owns(info.topic)]

    def timers(
        self, topic: str | None = None, *, limit: int = 64, after: Place = None
    ) -> DelayedPage:
        """See `Store.timers`."""
        return self._store._page(topic, limit, after, self._owns)

    def transactions(
        self, group: str | None = None, *, limit: int = 64, after: Place = None
    ) -> PreparedPage:
        """See `Store.transactions`."""
        self._engine.reader.check_open()
        return self._engine.prepared_list.page(group, limit, after, self._owns)

    # --- messages by their ids ---

    def find(self, message_id: str) -> StoredMessage:
        """See `Store.find`."""
        return self._store._find(message_id, None, self._owns)

    def find_in(self, namespace: str, message_id: str) -> StoredMessage:
        """See `Store.find_in`."""
        check_namespace(namespace)
        return self._store._find(message_id, belongs_to(namespace), self._owns)

    def timer(self, message_id: str) -> DelayedMessage:
        """See `Store.timer`."""
        return self._engine.waiting_list.find(message_id, self._owns)

    def cancel(self, message_id: str) -> bool:
        """See `Store.cancel`."""
        return self._store._cancel(message_id, self._owns)

    def change_delay(
        self, message_id: str, *, deliver_at: int | None = None, delay: float | None = None
    ) -> int:
        """See `Store.change_delay`."""
        return self._store._change(message_id, deliver_at, delay, self._owns)

    def prepared(self, message_id: str) -> PreparedMessage:
        """See `Store.prepared`."""
        return self._store._prepared(message_id, self._owns)

    # --- the ends of transactions ---

    def commit(self, prepared: Handle) -> PutResult:
        """See `Store.commit`."""
        return result_of(prepared, self.commit_batch([prepared]))

    def commit_batch(self, prepared: Sequence[Handle]) -> list[PutResult]:
        """See `Store.commit_batch`."""
        return self._store._end(prepared, "commit", self._owns)

    def rollback(self, prepared: Handle) -> None:
        """See `Store.rollback`."""
        self.rollback_batch([prepared])

    def rollback_batch(self, prepared: Sequence[Handle]) -> None:
        """See `Store.rollback_batch`."""
        self._store._end(prepared, "rollback", self._owns)

    # --- in a namespace ---

    timers_in = _in_namespace(timers)
    transactions_in = _in_namespace(transactions)
    timer_in = _in_namespace(timer)
    cancel_in = _in_namespace(cancel)
    change_delay_in = _in_namespace(change_delay)
    prepared_in = _in_namespace(prepared)
    commit_in = _in_namespace(commit_batch)
    rollback_in = _in_namespace(rollback_batch)
