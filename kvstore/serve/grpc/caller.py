"""Callers: who makes a call, and which of the store's names its topics and groups are.

The idea: each call has metadata; they become one `Caller`, which the services ask for everything
that depends on who calls. A topic or group of the protocol is a `Resource`, a name in a namespace;
here it becomes a name of the store (`meta.namespaces`), and the caller's rights are checked.

Invariants: a name that reaches the store is one that a topic or group may have; a caller without a
right on a name is refused before anything is looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from kvstore.api.store import Store
from kvstore.core.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS
from kvstore.errors import CallerError, MessageIllegal, NotAuthenticated
from kvstore.meta.namespaces import check_namespace, wrap
from kvstore.record.validate import check_group, check_topic
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import LOCAL
from kvstore.serve.access.rights import Action
from kvstore.serve.grpc.clients import ClientKey
from kvstore.serve.grpc.protocol.answers import Refusal
from kvstore.serve.grpc.protocol.wire import Wire

CLIENT_ID_MAX: Final = 512


class Caller:
    """Who makes a call; see the module."""

    __slots__ = ("_access", "_namespace", "client", "key")

    def __init__(self, metadata: Mapping[str, str], access: AccessControl) -> None:
        """Raises `NotAuthenticated` if the metadata are not signed as they must be."""
        client_id = metadata.get("x-mq-client-id", "").strip()
        if not client_id or len(client_id) > CLIENT_ID_MAX:
            raise Refusal(
                "CLIENT_ID_REQUIRED",
                f"the call needs the metadata x-mq-client-id, of 1 to {CLIENT_ID_MAX} characters",
            )
        self._access = access
        self.client = access.of_signature(
            metadata.get("authorization", ""), metadata.get("x-mq-date-time", "")
        )
        """The client of the file of credentials."""
        self.key = ClientKey(self.client.name, client_id)
        """The program, of those that have these credentials."""
        self._namespace = metadata.get("x-mq-namespace", "")

    def topic(self, resource: Wire, action: Action | None, group: str = "") -> str:
        """The store's name of a topic, on which the caller may do that, for a group if it consumes;
        None is to ask where its queues are, which takes any right on it. `Refusal` ILLEGAL_TOPIC,
        `NotAllowed`.
        """
        namespace = resource.resource_namespace or self._namespace
        found = _topic_name(resource.name, namespace, action == "produce")
        if action is not None or not self._access.allows(self.client, "produce", found):
            self._access.require(self.client, action or "consume", found, group)
        return found

    def group(self, resource: Wire) -> str:
        """The store's name of a group for which the caller may consume; `Refusal`
        ILLEGAL_CONSUMER_GROUP, `NotAllowed`.
        """
        found = _group_name(resource.name, resource.resource_namespace or self._namespace)
        self._access.require(self.client, "consume", group=found)
        return found

    def check_receipts(self, store: Store, receipts: Iterable[str]) -> None:
        """Raises `NotAllowed` unless the caller may consume the messages that receipts are of,
        whichever names the request has beside them. A receipt that is none is the store's to
        refuse.
        """
        if self.client is not LOCAL:
            for group, topic in store._named_in(list(receipts)):
                self._access.require(self.client, "consume", topic, group)

    def may_produce(self, topic: str) -> bool:
        """Whether the caller may send to a topic of the store, with its credentials as they are
        now.
        """
        try:
            return self._access.allows(self.client, "produce", topic)
        except NotAuthenticated:
            return False

    def check_current(self) -> None:
        """Raises `NotAuthenticated` if the caller's credentials expired or changed since its call
        began.
        """
        self._access.check_current(self.client)

    def check_admin(self) -> None:
        """Raises `NotAllowed` unless the caller may change the server's settings."""
        self._access.require(self.client, "admin")


# Only good names get into the caches: a call that raises leaves nothing behind.
@lru_cache(maxsize=8192)
def _topic_name(name: str, namespace: str, is_sent_to: bool) -> str:
    if name in SYSTEM_TOPICS or name.startswith(RETRY_PREFIX):
        raise Refusal("ILLEGAL_TOPIC", f"{name!r} is a topic of the store itself")
    if is_sent_to and name.startswith(DLQ_PREFIX):
        raise Refusal("ILLEGAL_TOPIC", f"{name!r} takes dead letters; it can't be sent to")
    try:
        found = _name_of(name, namespace)
        check_topic(found)
    except CallerError as e:
        raise Refusal("ILLEGAL_TOPIC", str(e)) from None
    return found


@lru_cache(maxsize=8192)
def _group_name(name: str, namespace: str) -> str:
    try:
        found = _name_of(name, namespace)
        check_group(found)
    except CallerError as e:
        raise Refusal("ILLEGAL_CONSUMER_GROUP", str(e)) from None
    return found


def _name_of(name: str, namespace: str) -> str:
    if not name.strip():
        raise MessageIllegal("the name is empty")
    return wrap(check_namespace(namespace), name) if namespace else name
