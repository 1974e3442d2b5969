"""The rights that calls of the local protocol need: each call of the table has a line here.

The idea: most calls name their topics and groups, or receipts that do; the client must have the
right on each name, before anything is done. Calls that know a message by its id, and those that
list, are made on the part of the store that the client may see (`api.topics_part`); a topic that
such a call names needs the right as well. All others are for clients that may administer the store.

Invariants: a call without a line is not made; a name that is no text is refused here, so a name
that was checked is the name that the store takes; a call of several names needs all rights, and
does nothing if one is missing. A client without a right on a name is told the same whether the name
is there or not: rights are looked at before the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import signature
from typing import Any, Final, Literal

from kvstore.api.store import Store
from kvstore.api.topics_part import TopicsPart
from kvstore.errors import CallerError, NotAuthenticated, shown
from kvstore.message import Message
from kvstore.meta.groups import GroupConfig
from kvstore.meta.topics import TopicConfig
from kvstore.pop.nack import Nack
from kvstore.pop.several import fixed_part, is_pattern
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import Client
from kvstore.serve.access.limits import ClientLimits
from kvstore.serve.access.rights import Action
from kvstore.wire.call_table import REPEATS, TIER


class CheckedCall:
    """A call of a client: its arguments by their names, and the checks of its rights."""

    def __init__(
        self,
        access: AccessControl,
        client: Client,
        store: Store,
        method: str,
        given: Sequence[Any],
        named: dict[str, Any],
    ) -> None:
        self.store = store
        self._access = access
        self._client = client
        self._values = {**dict(zip(_parameters(method), given, strict=False)), **named}

    def value(self, name: str) -> Any:
        """An argument; None if it was not given: the store has its default, or refuses the call."""
        return self._values.get(name)

    def listed(self, name: str) -> Sequence[Any]:
        """An argument that has several values."""
        found = self.value(name)
        if isinstance(found, list | tuple):
            return found
        raise CallerError(f"{name} is {shown(found)}; it must be a list")

    def require(self, action: Action, topic: Any = "", group: Any = "") -> None:
        """`NotAllowed` unless the client may."""
        for kind, name in (("topic", topic), ("group", group)):
            if not isinstance(name, str):
                raise CallerError(f"the {kind} is {shown(name)}; it must be a name")
        if not topic and not group:
            raise CallerError("the name is empty")
        self._access.require(self._client, action, topic, group)

    def require_all(self) -> None:
        """`NotAllowed` unless the client may administer the store."""
        self._access.require(self._client, "admin")

    def require_metrics(self) -> None:
        """`NotAllowed` unless the client may read figures of the store."""
        self._access.require_metrics(self._client)

    def require_topics(self, topic: Any, group: Any) -> None:
        """`NotAllowed` unless the client may consume from a topic, a pattern's topics, or each of a
        list of both, for a group.
        """
        for one in topic if isinstance(topic, list | tuple) else (topic,):
            if is_pattern(one) and isinstance(group, str):
                self._access.require_beginning(self._client, fixed_part(one), one, group)
            else:
                self.require("consume", one, group)

    def require_receipts(self, receipts: Iterable[Any]) -> None:
        """`NotAllowed` unless the client may consume what the receipts are of. One that is none is
        the store's to refuse.
        """
        texts = [one for one in receipts if isinstance(one, str)]
        for group, topic in self.store._named_in(texts):
            self.require("consume", topic, group)

    def sees(self, kind: Kind, name: str) -> bool:
        """Whether a topic or group belongs to the part of the store that the client may see."""
        allows = partial(self._access.allows, self._client)
        if kind == "group":
            return allows("consume", group=name)
        if kind == "topic":
            return allows("produce", name) or allows("consume", name)
        return allows(kind, name)


Kind = Literal["produce", "consume", "topic", "group"]
"""A part of the store: the topics that a client may send to, those from which it may consume, those
on which it has any right, and the groups for which it may consume.
"""
Check = Callable[[CheckedCall], object]


# --- what calls name ---


def _topic(action: Action, name: str = "topic") -> Check:
    return lambda asked: asked.require(action, topic=asked.value(name))


def _group(action: Action, name: str = "group") -> Check:
    return lambda asked: asked.require(action, group=asked.value(name))


def _group_in_topic(action: Action) -> Check:
    return lambda asked: asked.require(action, asked.value("topic"), asked.value("group"))


def _group_in_topics(asked: CheckedCall) -> None:
    topic = asked.value("topic")
    asked.require("consume", "" if topic is None else topic, asked.value("group"))


def _in_flight(asked: CheckedCall) -> None:
    topic = asked.value("topic")
    if topic is None:
        # It shows messages of all topics.
        asked.require("admin", group=asked.value("group"))
    else:
        asked.require("consume", topic, asked.value("group"))


def _messages(asked: CheckedCall) -> None:
    for topic in {_topic_of(one) for one in asked.listed("messages")}:
        asked.require("produce", topic)


def _topic_of(message: Any) -> Any:
    """The topic of a message, which may be an array of its fields; None for what is no message."""
    if isinstance(message, Message):
        return message.topic
    return message[_TOPIC_AT] if isinstance(message, list) and len(message) > _TOPIC_AT else None


_TOPIC_AT: Final = Message.__match_args__.index("topic")


def _prepared_messages(asked: CheckedCall) -> None:
    _messages(asked)
    asked.require("produce", group=asked.value("group"))


def _commits(asked: CheckedCall) -> None:
    for one in asked.listed("commits"):
        if not isinstance(one, list | tuple) or len(one) < 2:
            raise CallerError(f"{shown(one)} is no group, topic, queue and offset")
        asked.require("consume", one[1], one[0])


def _receipts(asked: CheckedCall) -> None:
    asked.require_receipts(asked.listed("receipts"))


def _nacks(asked: CheckedCall) -> None:
    asked.require_receipts(one.receipt for one in asked.listed("nacks") if isinstance(one, Nack))


def _topics(name: str) -> Check:
    def check(asked: CheckedCall) -> None:
        for one in asked.listed(name):
            asked.require("admin", topic=one.name if isinstance(one, TopicConfig) else one)

    return check


def _new_group(asked: CheckedCall) -> None:
    _of_group(asked, asked.value("name"), asked.value("dead_letter_topic"))


def _of_group(asked: CheckedCall, name: Any, dead_letter_topic: Any) -> None:
    asked.require("admin", group=name)
    if isinstance(dead_letter_topic, str):
        # Its messages are written there.
        asked.require("produce", topic=dead_letter_topic)


def _new_groups(asked: CheckedCall) -> None:
    for one in asked.listed("configs"):
        if not isinstance(one, GroupConfig):
            raise CallerError(f"{shown(one)} is no GroupConfig")
        _of_group(asked, one.name, one.dead_letter_topic)


def _groups(asked: CheckedCall) -> None:
    for one in asked.listed("names"):
        asked.require("admin", group=one)


def _seen_topic(asked: CheckedCall) -> None:
    name = asked.value("name")
    if not isinstance(name, str) or not asked.sees("topic", name):
        asked.require("consume", topic=name)


_CHECKS: Final[dict[str, Check]] = {
    "put_batch": _messages,
    "prepare_batch": _prepared_messages,
    "put_columns": _topic("produce"),
    "on_check": _group("produce"),
    **dict.fromkeys(
        ("get", "pull", "pull_columns", "query", "offset_at", "bounds"), _topic("consume")
    ),
    "topic": _seen_topic,
    "pop": lambda asked: asked.require_topics(asked.value("topic"), asked.value("group")),
    **dict.fromkeys(("ack_batch", "undo_pop", "renew_batch", "change_invisible_batch"), _receipts),
    "nack_batch": _nacks,
    **dict.fromkeys(
        ("change_invisible", "give_up"),
        lambda asked: asked.require_receipts([asked.value("receipt")]),
    ),
    **dict.fromkeys(
        ("commit_offset", "committed_offset", "offset_history"), _group_in_topic("consume")
    ),
    "commit_offsets": _commits,
    **dict.fromkeys(("lag", "group_stats"), _group_in_topics),
    "in_flight": _in_flight,
    "group": _group("consume", "name"),
    "group_topics": _group("consume"),
    "reset_offset": _group_in_topic("admin"),
    "redrive": _group("admin"),
    **dict.fromkeys(("create_topic", "alter_topic", "delete_topic"), _topic("admin", "name")),
    "create_topics": _topics("configs"),
    "delete_topics": _topics("names"),
    **dict.fromkeys(("create_group", "alter_group"), _new_group),
    "create_groups": _new_groups,
    "delete_group": _group("admin", "name"),
    "delete_groups": _groups,
    "stats": CheckedCall.require_metrics,
    **dict.fromkeys(
        (TIER, "read_at", "schedule", "schedule_info", "next_firings", "pause_schedule",
         "resume_schedule", "delete_schedule", "namespaces", "create_namespace",
         "delete_namespace", "import_rocketmq_config", "export_rocketmq", "export_rocketmq_store",
         "flush", "checkpoint", "seal", "apply_retention", "segments", "catalog", "verify"),
        CheckedCall.require_all,
    ),
    "answer": lambda asked: None,  # to a question that the client was sent
}  # fmt: skip
"""The calls that are made on the whole store, and the check in front of each."""

_PARTS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("find", "find_in"), "consume"),
    **dict.fromkeys(
        ("timer", "timer_in", "timers", "timers_in", "cancel", "cancel_in", "change_delay",
         "change_delay_in", "prepared", "prepared_in", "transactions", "transactions_in",
         "commit", "commit_batch", "commit_in", "rollback", "rollback_batch", "rollback_in",
         "schedules", "schedules_in"),
        "produce",
    ),
    **dict.fromkeys(("topics", "topics_of"), "topic"),
    **dict.fromkeys(("groups", "groups_of"), "group"),
}  # fmt: skip
"""The calls that are made on a part of the store."""
_OF_A_TOPIC: Final = frozenset({"timers", "timers_in", "schedules", "schedules_in"})
"""Those that may name a topic, to which the client must be allowed to produce."""


_PARAMETERS: Final = {
    method: tuple(signature(getattr(Store, method)).parameters)[1:] for method in REPEATS
}


def _parameters(method: str) -> tuple[str, ...]:
    return _PARAMETERS.get(method, ())


class CallGuard:
    """The rights and limits of a client of the file of credentials. Used in the loop's thread, but
    for `check`, which any thread may call.
    """

    def __init__(self, access: AccessControl, limits: ClientLimits, client: Client) -> None:
        self._access = access
        self._limits = limits
        self._client = client

    def charge(self, size: int) -> None:
        """Counts a request of so many bytes; `LimitExceeded`."""
        self._limits.charge(self._client.name, size)

    def check(
        self, store: Store, method: str, given: Sequence[Any], named: dict[str, Any]
    ) -> TopicsPart | None:
        """Raises `NotAllowed`, `NotAuthenticated` or `CallerError` unless the client may make a
        call; returns the part of the store on which it is to be made, None for the whole.
        """
        asked = CheckedCall(self._access, self._client, store, method, given, named)
        kind = _PARTS.get(method)
        if kind is not None:
            if method in _OF_A_TOPIC and asked.value("topic") is not None:
                asked.require("produce", topic=asked.value("topic"))
            return TopicsPart(store, partial(asked.sees, kind))
        check = _CHECKS.get(method)
        if check is None:
            raise CallerError(f"a served store has no call {shown(method)}")
        check(asked)
        return None

    def may_produce(self, topic: str) -> bool:
        """Whether the client may send to a topic, with its credentials as they are now."""
        try:
            return self._access.allows(self._client, "produce", topic)
        except NotAuthenticated:
            return False
