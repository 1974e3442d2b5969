"""Rights: what a client may do, with which topics and groups.

The idea: a right is a list of patterns of names. A pattern is a whole name, the beginning of names
with `*` behind it, or `*` alone. There are three actions. To produce and to consume need a topic;
to consume for a group needs the group as well. To administer a name includes the other two; the
pattern `*` alone administers the store itself.

Invariants:

- A right that was not given is refused; a client without rights may do nothing.
- The topics that the store writes for itself need the right to administer them.
- A group's own dead-letter topic, `%DLQ%group`, is consumed by clients that may consume for the
  group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, Self

import msgspec

from kvstore.core.names import DLQ_PREFIX, SYSTEM_TOPICS
from kvstore.errors import ConfigError, shown

Action = Literal["produce", "consume", "admin"]
_ANY: Final = "*"


class Patterns(msgspec.Struct, frozen=True):
    """Names of topics or groups, and beginnings of such names."""

    names: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str], what: str) -> Self:
        """Reads the patterns of a list; `what` names the list in the `ConfigError` for an illegal
        one.
        """
        names, beginnings = set[str](), list[str]()
        for text in texts:
            name = text.removesuffix(_ANY)
            if not text or _ANY in name:
                raise ConfigError(
                    f"{what} has the pattern {shown(text)}; a pattern is a name, the beginning of "
                    "names with * behind it, or * alone"
                )
            if name == text:
                names.add(name)
            else:
                beginnings.append(name)
        return cls(frozenset(names), tuple(sorted(beginnings)))

    def match(self, name: str) -> bool:
        """Whether a name is among these."""
        return name in self.names or name.startswith(self.beginnings)

    def match_beginning(self, beginning: str) -> bool:
        """Whether every name that begins so is among these."""
        return beginning.startswith(self.beginnings)

    @property
    def match_all(self) -> bool:
        """Whether every name is among these."""
        return "" in self.beginnings


class Rights(msgspec.Struct, frozen=True):
    """The rights of a client. `produce` and `consume` are of topics, `groups` the groups for which
    it may consume, `admin` of topics and groups. `metrics` allows to read the store's metrics.
    """

    produce: Patterns = Patterns()
    consume: Patterns = Patterns()
    groups: Patterns = Patterns()
    admin: Patterns = Patterns()
    metrics: bool = False


_ALL: Final = Patterns(beginnings=("",))
EVERYTHING: Final = Rights(admin=_ALL, metrics=True)
"""The rights of the store's owner."""


def allows(rights: Rights, action: Action, topic: str = "", group: str = "") -> bool:
    """Whether `rights` allow an action on a topic, a group, or both; with neither, on the store as
    a whole, which only a client may administer that may administer everything.

    >>> orders = Rights(produce=Patterns.of(["orders*"], "produce"))
    >>> allows(orders, "produce", topic="orders-eu"), allows(orders, "consume", topic="orders-eu")
    (True, False)
    """
    if not topic and not group:
        return rights.admin.match_all
    return (not topic or _allows_topic(rights, action, topic, group)) and (
        not group or _allows_group(rights, action, group)
    )


def _allows_topic(rights: Rights, action: Action, topic: str, group: str) -> bool:
    if rights.admin.match(topic):
        return True
    if action == "admin" or topic in SYSTEM_TOPICS:
        return False
    if action == "produce":
        return rights.produce.match(topic)
    if rights.consume.match(topic):
        return True
    owner = topic.removeprefix(DLQ_PREFIX)
    return owner != topic and _allows_group(rights, action, owner)


def _allows_group(rights: Rights, action: Action, group: str) -> bool:
    if rights.admin.match(group):
        return True
    if action == "produce":
        # Any client that sends may name the producer group of its transactions.
        return any(one.names or one.beginnings for one in (rights.produce, rights.admin))
    return action == "consume" and rights.groups.match(group)


def allows_metrics(rights: Rights) -> bool:
    """Whether `rights` allow to read figures of the store as a whole."""
    return rights.metrics or rights.admin.match_all


def allows_beginning(rights: Rights, beginning: str, group: str) -> bool:
    """Whether `rights` allow to consume from all topics whose names begin so, for a group; the
    topics in which the store's messages wait are not among them.
    """
    is_allowed = any(one.match_beginning(beginning) for one in (rights.consume, rights.admin))
    return is_allowed and _allows_group(rights, "consume", group)
