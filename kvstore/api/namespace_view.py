"""A namespace's view of a store: the same calls, on its own topics and groups alone.

The idea: a table. For each call it says which arguments are names, or have names in them; these go
to the store with the namespace in front (`meta.namespaces`). A second table says, by type, how a
result is shown: without the namespace. Everything else is the store's. A call is added by a line:

    peek = _passed_on(Calls.peek, group=wrap, topic=wrap)

Receipts are passed on as they are: they name one delivery, and can't be made up.

Invariants: a view reads and changes nothing that is not its namespace's: every name that goes in
becomes one of its own, whatever it looks like; a message that is asked for without a name (by
position or id) is compared with the namespace. Errors name topics and groups as the namespace does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from kvstore.api.calls import Calls
from kvstore.consume.consumer import ConsumesInThreads
from kvstore.core.names import (
    DLQ_ORIGIN_GROUP,
    DLQ_ORIGIN_TOPIC,
    PRODUCER_GROUP,
    REAL_TOPIC,
    TIMER_DELETE_ID,
)
from kvstore.core.popping.receipts import Popped
from kvstore.engine.group_offsets import is_commit
from kvstore.engine.topic_changes import in_namespace
from kvstore.errors import MessageNotFound, StoreError
from kvstore.message import ColumnsPut, Message, PullResult, PutResult, StoredMessage
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.namespaces import check_namespace, speak_own_names, unwrap, wrap
from kvstore.meta.offsets import Lag
from kvstore.meta.topics import TopicConfig, TopicInfo
from kvstore.pop.inflight.listing import InFlightPage
from kvstore.pop.progress import GroupStats
from kvstore.record.put.explain import as_batch
from kvstore.record.validate import listed
from kvstore.timing.checks import Answer, Ask, Checker
from kvstore.timing.delayed_message import DelayedMessage, DelayedPage
from kvstore.timing.pending_messages import GOING_ON, topic_of
from kvstore.timing.prepared_list import Handle, result_of
from kvstore.timing.prepared_message import PreparedMessage, PreparedPage
from kvstore.timing.schedule_rows import ScheduleInfo
from kvstore.timing.transaction import Transaction

P = ParamSpec("P")
R = TypeVar("R")
Into = Callable[[str, Any], Any]
"""Makes an argument of a namespace the store's."""
_ORIGINS: Final = (DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_GROUP)
_ORIGIN: Final = DLQ_ORIGIN_TOPIC.encode()
_OF_WAITING: Final = (REAL_TOPIC, PRODUCER_GROUP, TIMER_DELETE_ID)
"""The properties of a message that waits that begin with names."""


# --- arguments ---


def _unless_none(namespace: str, name: str | None) -> str | None:
    return None if name is None else wrap(namespace, name)


def _if_text(namespace: str, name: Any) -> Any:
    """The store refuses a value that is no text by itself."""
    return wrap(namespace, name) if isinstance(name, str) else name


def topics_in(namespace: str, topics: Any) -> Any:
    """The topics of a pop: a name, a pattern, or a list of them."""
    is_one = isinstance(topics, str) or not isinstance(topics, Sequence)
    return wrap(namespace, topics) if is_one else [wrap(namespace, topic) for topic in topics]


def _each(namespace: str, names: Any) -> list[str]:
    return [wrap(namespace, name) for name in listed("names", names)]


def _messages(namespace: str, messages: Any) -> list[Message]:
    # The store refuses values that are no messages, by their place in the batch.
    return [
        m.__replace__(topic=wrap(namespace, m.topic)) if isinstance(m, Message) else m
        for m in as_batch(messages)
    ]


def _topic_configs(namespace: str, configs: Any) -> list[TopicConfig]:
    return [in_namespace(namespace, c, TopicConfig) for c in listed("configs", configs)]


def _group_configs(namespace: str, configs: Any) -> list[GroupConfig]:
    return [in_namespace(namespace, c, GroupConfig) for c in listed("configs", configs)]


def _commits(namespace: str, commits: Any) -> list[Any]:
    return [
        (wrap(namespace, c[0]), wrap(namespace, c[1]), *c[2:]) if is_commit(c) else c
        for c in listed("commits", commits)
    ]


# --- results ---


def _bare(namespace: str, name: str) -> str:
    found = unwrap(namespace, name)
    assert found is not None, "the store answered for another namespace"
    return found


def _own_message(namespace: str, message: StoredMessage) -> StoredMessage:
    """A message, fresh from the store, as the namespace sees it."""
    if message.topic in GOING_ON:
        message.see_as(message.topic, _own_properties(namespace, message, _OF_WAITING))
        return message
    properties = None
    if _ORIGIN in message.raw_properties:
        # A dead letter says its origin.
        properties = _own_properties(namespace, message, _ORIGINS)
    message.see_as(_bare(namespace, message.topic), properties)
    return message


def _own_properties(
    namespace: str, message: StoredMessage, with_names: Sequence[str]
) -> dict[str, str]:
    properties = dict(message.properties)
    for name in with_names:
        if name in properties:
            properties[name] = unwrap(namespace, properties[name]) or properties[name]
    return properties


def _own_popped(namespace: str, popped: Popped) -> Popped:
    _own_message(namespace, popped.message)
    return popped


def _own_pulled(namespace: str, result: PullResult) -> PullResult:
    for message in result.messages:
        _own_message(namespace, message)
    return result


def _own_put(namespace: str, result: PutResult) -> PutResult:
    result.topic = _bare(namespace, result.topic)
    return result


def _own_delayed(namespace: str, delayed: DelayedMessage) -> DelayedMessage:
    message = _own_message(namespace, delayed.message)
    return msgspec.structs.replace(delayed, topic=_bare(namespace, delayed.topic), message=message)


def _own_prepared(namespace: str, prepared: PreparedMessage) -> PreparedMessage:
    return msgspec.structs.replace(
        prepared,
        topic=_bare(namespace, prepared.topic),
        group=unwrap(namespace, prepared.group) or prepared.group,
        message=_own_message(namespace, prepared.message),
    )


def _own_page(namespace: str, page: DelayedPage | PreparedPage) -> DelayedPage | PreparedPage:
    return msgspec.structs.replace(page, messages=own_form(namespace, page.messages))


def _own_topic(namespace: str, info: TopicInfo) -> TopicInfo:
    return msgspec.structs.replace(info, name=_bare(namespace, info.name))


def _own_group(namespace: str, info: GroupInfo) -> GroupInfo:
    dead = info.dead_letter_topic
    if dead is not None:
        # A topic set from outside may be another namespace's; then it is shown as it is.
        dead = unwrap(namespace, dead) or dead
    former = {unwrap(namespace, k) or k: until for k, until in info.former_dead_letters.items()}
    return msgspec.structs.replace(
        info,
        name=_bare(namespace, info.name),
        dead_letter_topic=dead,
        former_dead_letters=former,
    )


def _own_schedule(namespace: str, info: ScheduleInfo) -> ScheduleInfo:
    name, topic = _bare(namespace, info.name), _bare(namespace, info.topic)
    return msgspec.structs.replace(info, name=name, topic=topic)


def _own_figures(namespace: str, figures: Lag | GroupStats) -> Lag | GroupStats | None:
    topic = unwrap(namespace, figures.topic)
    if topic is None:
        return None
    return msgspec.structs.replace(figures, group=_bare(namespace, figures.group), topic=topic)


def _own_in_flight(namespace: str, page: InFlightPage) -> InFlightPage:
    return msgspec.structs.replace(
        page,
        messages=[
            msgspec.structs.replace(
                one,
                group=_bare(namespace, one.group),
                topic=topic,
                message=None if one.message is None else _own_message(namespace, one.message),
            )
            for one in page.messages
            if (topic := unwrap(namespace, one.topic)) is not None
        ],
    )


_OWN: Final[Mapping[type, Callable[[str, Any], Any]]] = {
    StoredMessage: _own_message,
    Popped: _own_popped,
    PullResult: _own_pulled,
    PutResult: _own_put,
    DelayedMessage: _own_delayed,
    DelayedPage: _own_page,
    PreparedMessage: _own_prepared,
    PreparedPage: _own_page,
    TopicInfo: _own_topic,
    GroupInfo: _own_group,
    ScheduleInfo: _own_schedule,
    Lag: _own_figures,
    GroupStats: _own_figures,
    InFlightPage: _own_in_flight,
}


def own_form(namespace: str, result: Any) -> Any:
    """A call's result as the namespace sees it; a list has no figures of topics of others."""
    if type(result) is not list:
        show = _OWN.get(type(result))
        return result if show is None else show(namespace, result)
    show = _OWN.get(type(result[0])) if result else None
    if show is None:
        return result
    return [own for one in result if (own := show(namespace, one)) is not None]


# --- the calls ---


@contextmanager
def _speaking(namespace: str) -> Iterator[None]:
    """Makes errors name topics and groups as the namespace does."""
    try:
        yield
    except StoreError as e:
        speak_own_names(namespace, e)
        raise


def _passed_on(
    call: Callable[Concatenate[Any, P], R], **names: Into
) -> Callable[Concatenate[Namespace, P], R]:
    """A call of the store as one of a namespace. `names` has the arguments that are names."""
    return _call_of(call, names, inspect.signature(call), is_narrowed=False)


def _narrowed(
    call: Callable[Concatenate[Any, str, P], R], **names: Into
) -> Callable[Concatenate[Namespace, P], R]:
    """As `_passed_on`, of a call whose first argument is the namespace."""
    signature = inspect.signature(call)
    own, _, *others = signature.parameters.values()
    return _call_of(call, names, signature.replace(parameters=[own, *others]), is_narrowed=True)


def _call_of(
    call: Callable[..., R], names: Mapping[str, Into], signature: inspect.Signature,
    *, is_narrowed: bool,
) -> Callable[..., R]:  # fmt: skip
    order = list(signature.parameters)
    taken = [(order.index(name) - 1, name, into) for name, into in names.items()]
    called = call.__name__

    def passed(view: Namespace, /, *args: Any, **more: Any) -> R:
        given, namespace = list(args), view.name
        try:
            for at, name, into in taken:
                if at < len(given):
                    given[at] = into(namespace, given[at])
                elif name in more:
                    more[name] = into(namespace, more[name])
            if is_narrowed:
                given.insert(0, namespace)
            result = getattr(view._store, called)(*given, **more)
        except StoreError as e:
            speak_own_names(namespace, e)
            raise
        own: R = own_form(namespace, result)
        return own

    update_wrapper(passed, call)
    passed.__signature__ = signature  # type: ignore[attr-defined]  # `inspect` reads it
    return passed


class Namespace(ConsumesInThreads):
    """The calls of one namespace, see the module; `Store` says what each call does. `name` is the
    namespace's.
    """

    def __init__(self, store: Calls, name: str) -> None:
        self.name = check_namespace(name)
        self._store = store

    def __repr__(self) -> str:
        return f"<kvstore.Namespace {self.name} of {self._store.path}>"

    put = _passed_on(Calls.put, topic=wrap)
    put_batch = _passed_on(Calls.put_batch, messages=_messages)

    get = _passed_on(Calls.get, topic=wrap)
    pull = _passed_on(Calls.pull, topic=wrap)
    pull_columns = _passed_on(Calls.pull_columns, topic=wrap)
    query = _passed_on(Calls.query, topic=wrap)
    offset_at = _passed_on(Calls.offset_at, topic=wrap)
    bounds = _passed_on(Calls.bounds, topic=wrap)

    pop = _passed_on(Calls.pop, group=wrap, topic=topics_in)
    ack = _passed_on(Calls.ack)
    ack_batch = _passed_on(Calls.ack_batch)
    change_invisible = _passed_on(Calls.change_invisible)
    change_invisible_batch = _passed_on(Calls.change_invisible_batch)
    nack = _passed_on(Calls.nack)
    nack_batch = _passed_on(Calls.nack_batch)
    undo_pop = _passed_on(Calls.undo_pop)
    renew_batch = _passed_on(Calls.renew_batch)
    give_up = _passed_on(Calls.give_up)
    redrive = _passed_on(Calls.redrive, group=wrap)
    group_stats = _passed_on(Calls.group_stats, group=wrap, topic=_unless_none)
    in_flight = _passed_on(Calls.in_flight, group=wrap, topic=_unless_none)

    create_topic = _passed_on(Calls.create_topic, name=wrap)
    create_topics = _passed_on(Calls.create_topics, configs=_topic_configs)
    topic = _passed_on(Calls.topic, name=wrap)
    alter_topic = _passed_on(Calls.alter_topic, name=wrap)
    delete_topic = _passed_on(Calls.delete_topic, name=wrap)
    delete_topics = _passed_on(Calls.delete_topics, names=_each)

    create_group = _passed_on(Calls.create_group, name=wrap, dead_letter_topic=_if_text)
    create_groups = _passed_on(Calls.create_groups, configs=_group_configs)
    group = _passed_on(Calls.group, name=wrap)
    alter_group = _passed_on(Calls.alter_group, name=wrap, dead_letter_topic=_if_text)
    delete_group = _passed_on(Calls.delete_group, name=wrap)
    delete_groups = _passed_on(Calls.delete_groups, names=_each)

    commit_offset = _passed_on(Calls.commit_offset, group=wrap, topic=wrap)
    commit_offsets = _passed_on(Calls.commit_offsets, commits=_commits)
    committed_offset = _passed_on(Calls.committed_offset, group=wrap, topic=wrap)
    offset_history = _passed_on(Calls.offset_history, group=wrap, topic=wrap)
    reset_offset = _passed_on(Calls.reset_offset, group=wrap, topic=wrap)
    lag = _passed_on(Calls.lag, group=wrap, topic=_unless_none)

    schedule = _passed_on(Calls.schedule, name=wrap, topic=wrap)
    schedule_info = _passed_on(Calls.schedule_info, name=wrap)
    next_firings = _passed_on(Calls.next_firings, name=wrap)
    pause_schedule = _passed_on(Calls.pause_schedule, name=wrap)
    resume_schedule = _passed_on(Calls.resume_schedule, name=wrap)
    delete_schedule = _passed_on(Calls.delete_schedule, name=wrap)

    prepare = _passed_on(Calls.prepare, topic=wrap, group=wrap)
    prepare_batch = _passed_on(Calls.prepare_batch, messages=_messages, group=wrap)

    def put_columns(self, topic: str, columns: object) -> ColumnsPut:
        """See `Store.put_columns`."""
        with _speaking(self.name):
            found = self._store.put_columns(_if_text(self.name, topic), columns)
            found.see_as(topic)
            return found

    # --- calls that look in the namespace alone ---

    find = _narrowed(Calls.find_in)
    cancel = _narrowed(Calls.cancel_in)
    change_delay = _narrowed(Calls.change_delay_in)
    commit_batch = _narrowed(Calls.commit_in)
    rollback_batch = _narrowed(Calls.rollback_in)
    transactions = _narrowed(Calls.transactions_in, group=_unless_none)
    prepared = _narrowed(Calls.prepared_in)
    timer = _narrowed(Calls.timer_in)
    timers = _narrowed(Calls.timers_in, topic=_unless_none)
    schedules = _narrowed(Calls.schedules_in, topic=_unless_none)

    # --- calls that are more ---

    def read_at(self, position: int) -> StoredMessage:
        """See `Store.read_at`; a message of, or to, a topic of another namespace is
        `MessageNotFound`.
        """
        with _speaking(self.name):
            message = self._store.read_at(position)
            if unwrap(self.name, topic_of(message)) is None:
                raise MessageNotFound(f"no record of namespace {self.name!r} begins at {position}")
            return _own_message(self.name, message)

    def commit(self, prepared: Handle) -> PutResult:
        """See `Store.commit`."""
        return result_of(prepared, self.commit_batch([prepared]))

    def rollback(self, prepared: Handle) -> None:
        """See `Store.rollback`."""
        self.rollback_batch([prepared])

    def transaction(self, *, group: str) -> Transaction:
        """See `Store.transaction`."""
        with _speaking(self.name):
            self._store.transaction(group=wrap(self.name, group))  # it says if there can be one
        return Transaction(self, group)

    def on_check(self, group: str, checker: Ask) -> Checker:
        """See `Store.on_check`."""

        def ask(message: StoredMessage) -> Answer:
            return checker(_own_message(self.name, message))

        # The store refuses one that can't be called, or is a coroutine function.
        is_ours = callable(checker) and not inspect.iscoroutinefunction(checker)
        with _speaking(self.name):
            return self._store.on_check(wrap(self.name, group), ask if is_ours else checker)

    def topics(self) -> list[TopicInfo]:
        """The namespace's topics, by name."""
        found = [_own_topic(self.name, info) for info in self._store.topics_of(self.name)]
        return sorted(found, key=lambda info: info.name)

    def groups(self) -> list[GroupInfo]:
        """The namespace's groups, by name."""
        found = [_own_group(self.name, info) for info in self._store.groups_of(self.name)]
        return sorted(found, key=lambda info: info.name)
