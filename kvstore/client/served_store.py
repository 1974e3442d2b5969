"""A served store: the calls of `kvstore.Store`, made by the server that has it open.

The idea: a table, as in `api.namespace_view`. Each call goes to the server under its name, with its
arguments as they are, and its result comes back as the value that the store returned. The calls
here that are more than a line make several of one, or run a caller's function.

Invariant: results and errors are those of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, Self, TypeVar, cast

import msgspec

from kvstore.api.calls import Calls
from kvstore.api.namespace_view import Namespace
from kvstore.api.store import Store
from kvstore.client.exchange import Sent
from kvstore.client.served_calls import Requests, message_of, result_of_call, signed_as
from kvstore.client.served_checker import RegisteredChecker, ServedChecker
from kvstore.consume.consumer import ConsumesInThreads
from kvstore.errors import CallerError
from kvstore.message import PutResult
from kvstore.pop.nack import Nack
from kvstore.record.validate import check_group
from kvstore.timing.checks import Ask
from kvstore.timing.transaction import Transaction
from kvstore.wire.call_table import TIER

P = ParamSpec("P")
R = TypeVar("R")


def _sent(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[ServedCalls, P], R]:
    """A call of the store, which the server makes."""
    name = method.__name__

    def sent(self: ServedCalls, /, *args: P.args, **more: P.kwargs) -> R:
        result: R = self._call(name, args, more)
        return result

    update_wrapper(sent, method)
    return sent


def _shared(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[ServedCalls, P], R]:
    """A call of the store that is made of its other calls, and so is the same here."""
    return method


class ServedCalls(ConsumesInThreads):
    """The calls; `_call` sends one, and waits for its reply."""

    def _call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        raise CallerError(
            "a connection can't be pickled or copied; connect in the process that uses it"
        )

    # --- putting ---

    @signed_as(Store.put)
    def put(self, topic: str, body: Any, **fields: Any) -> PutResult:
        """See `kvstore.Store.put`."""
        return self.put_batch([message_of(topic, body, fields)])[0]

    prepare = _shared(Store.prepare)

    def ack(self, receipt: str) -> None:
        """See `kvstore.Store.ack`."""
        (result,) = self.ack_batch([receipt])
        if result is not True:
            raise result

    def nack(self, receipt: str, delay: float | None = None, reason: str = "") -> None:
        """See `kvstore.Store.nack`."""
        (result,) = self.nack_batch([Nack(receipt, delay, reason)])
        if result is not True:
            raise result

    def transaction(self, *, group: str) -> Transaction:
        """See `kvstore.Store.transaction`."""
        check_group(group)
        return Transaction(self, group)

    put_batch = _sent(Store.put_batch)
    put_columns = _sent(Store.put_columns)
    get = _sent(Store.get)
    pull = _sent(Store.pull)
    pull_columns = _sent(Store.pull_columns)
    query = _sent(Store.query)
    read_at = _sent(Store.read_at)
    find = _sent(Store.find)
    find_in = _sent(Store.find_in)
    offset_at = _sent(Store.offset_at)
    bounds = _sent(Store.bounds)
    pop = _sent(Store.pop)
    ack_batch = _sent(Store.ack_batch)
    change_invisible = _sent(Store.change_invisible)
    renew_batch = _sent(Store.renew_batch)
    give_up = _sent(Store.give_up)
    change_invisible_batch = _sent(Store.change_invisible_batch)
    nack_batch = _sent(Store.nack_batch)
    undo_pop = _sent(Store.undo_pop)
    redrive = _sent(Store.redrive)
    group_stats = _sent(Store.group_stats)
    in_flight = _sent(Store.in_flight)
    group_topics = _sent(Store.group_topics)
    create_topic = _sent(Store.create_topic)
    create_topics = _sent(Store.create_topics)
    topics = _sent(Store.topics)
    topics_of = _sent(Store.topics_of)
    topic = _sent(Store.topic)
    alter_topic = _sent(Store.alter_topic)
    delete_topic = _sent(Store.delete_topic)
    delete_topics = _sent(Store.delete_topics)
    create_group = _sent(Store.create_group)
    create_groups = _sent(Store.create_groups)
    groups = _sent(Store.groups)
    groups_of = _sent(Store.groups_of)
    group = _sent(Store.group)
    alter_group = _sent(Store.alter_group)
    delete_group = _sent(Store.delete_group)
    delete_groups = _sent(Store.delete_groups)
    commit_offset = _sent(Store.commit_offset)
    commit_offsets = _sent(Store.commit_offsets)
    committed_offset = _sent(Store.committed_offset)
    offset_history = _sent(Store.offset_history)
    reset_offset = _sent(Store.reset_offset)
    lag = _sent(Store.lag)
    prepare_batch = _sent(Store.prepare_batch)
    commit = _sent(Store.commit)
    commit_batch = _sent(Store.commit_batch)
    commit_in = _sent(Store.commit_in)
    rollback = _sent(Store.rollback)
    rollback_batch = _sent(Store.rollback_batch)
    rollback_in = _sent(Store.rollback_in)
    transactions = _sent(Store.transactions)
    transactions_in = _sent(Store.transactions_in)
    prepared = _sent(Store.prepared)
    prepared_in = _sent(Store.prepared_in)
    cancel = _sent(Store.cancel)
    cancel_in = _sent(Store.cancel_in)
    change_delay = _sent(Store.change_delay)
    change_delay_in = _sent(Store.change_delay_in)
    timer = _sent(Store.timer)
    timer_in = _sent(Store.timer_in)
    timers = _sent(Store.timers)
    timers_in = _sent(Store.timers_in)
    schedule = _sent(Store.schedule)
    schedules = _sent(Store.schedules)
    schedules_in = _sent(Store.schedules_in)
    schedule_info = _sent(Store.schedule_info)
    next_firings = _sent(Store.next_firings)
    pause_schedule = _sent(Store.pause_schedule)
    resume_schedule = _sent(Store.resume_schedule)
    delete_schedule = _sent(Store.delete_schedule)
    namespaces = _sent(Store.namespaces)
    create_namespace = _sent(Store.create_namespace)
    delete_namespace = _sent(Store.delete_namespace)
    export_rocketmq = _sent(Store.export_rocketmq)
    export_rocketmq_store = _sent(Store.export_rocketmq_store)
    import_rocketmq_config = _sent(Store.import_rocketmq_config)
    flush = _sent(Store.flush)
    checkpoint = _sent(Store.checkpoint)
    seal = _sent(Store.seal)
    apply_retention = _sent(Store.apply_retention)
    stats = _sent(Store.stats)
    segments = _sent(Store.segments)
    catalog = _sent(Store.catalog)
    verify = _sent(Store.verify)


class Link(Protocol):
    """A connection that threads share."""

    @property
    def folder(self) -> str:
        """The served store's folder."""

    def begin(self, sent: Sent) -> None:
        """Sends a request, soon."""

    def wait(self, sent: Sent) -> None:
        """Returns when a request is done, or has an event."""

    def cancel(self, sent: Sent) -> None:
        """Takes a request back whose caller has gone."""

    def close(self) -> None:
        """Ends the session."""


class ServedStore(ServedCalls):
    """A store that another process has open; see `kvstore.connect`. Every call may be made from
    several threads.
    """

    def __init__(self, link: Link, requests: Requests, url: str) -> None:
        self.url = url
        self._link = link
        self._requests = requests

    @property
    def path(self) -> Path:
        """The store's folder, as the server names it."""
        return Path(self._link.folder)

    def namespace(self, name: str) -> Namespace:
        """See `kvstore.Store.namespace`."""
        return Namespace(cast(Calls, self), name)

    def on_check(self, group: str, checker: Ask) -> RegisteredChecker:
        """See `kvstore.Store.on_check`; the function is called in this process."""
        sent = self._requests.make("on_check", (group,), {})
        return ServedChecker(self._link, group, checker, sent, self._answer)

    def tier(
        self,
        operation: str,
        policy: Mapping[str, Any] | None,
        arguments: Mapping[str, Any],
        *,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Any:
        """Has the server's worker make one of its calls, by a policy's fields; see
        `tiering.ServedWorker`, which has these calls. The report comes as plain values.
        """
        return self._call(TIER, (operation, policy, arguments), {"progress": progress})

    def _answer(self, number: int, question: int, answer: str) -> None:
        self._call("answer", (number, question, answer), {})

    def _call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        sent = self._requests.make(method, args, named)
        link = self._link
        try:
            link.begin(sent)
            link.wait(sent)
            if sent.has_events:
                self._tell(sent, args, named)
        except BaseException:
            link.cancel(sent)
            raise
        return result_of_call(sent)

    def _tell(self, sent: Sent, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Passes the events of a call on to the caller's `progress`."""
        progress = named["progress"] if "progress" in named else args[0]
        while not sent.is_done or sent.events:
            while sent.events:
                progress(*msgspec.msgpack.decode(sent.events.popleft()))
            self._link.wait(sent)

    def close(self) -> None:
        """Ends the connection; calls that are under way raise `StoreClosed`. The store stays open
        in the server. Closing twice does nothing.
        """
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvstore.ServedStore {self.url}>"
