"""Orphan checks: producers are asked about transactions that nobody ended.

The idea: the store asks the checkers of a producer group (`Store.on_check`), and here a topic is a
group. A checker passes the question to a producer of that topic, on its Telemetry stream, and
answers "unknown" at once: the producer's answer is an EndTransaction, which may come at any time. A
topic gets its checker when a producer to that topic connects while prepared messages wait for it,
or when a message is prepared here.

Invariants: a topic has one checker, whose thread ends with the door; a question for which no
producer is there is asked again at the store's next check.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from kvstore.api.store import Store
from kvstore.message import StoredMessage
from kvstore.meta.namespaces import namespace_of, unwrap
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.grpc.clients import Clients
from kvstore.serve.grpc.protocol.outgoing import fill
from kvstore.serve.grpc.protocol.wire import Wire, message_class
from kvstore.timing.checks import Answer, Checker
from kvstore.timing.prepared_message import first_position

TRANSACTION_ID_MARK: Final = "+"
"""Between the message's id and the position at which it was prepared, which make its
transaction's id: several messages may have one id.
"""
CHECKERS_MAX: Final = 1024
"""Topics that have a checker, each of which has a thread."""


class OrphanChecks:
    """The checkers of a server; see the module."""

    def __init__(
        self, store: Store, gatherer: Gatherer, clients: Clients, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._store = store
        self._gatherer = gatherer
        self._clients = clients
        self._loop = loop
        self._checkers: dict[str, Checker] = {}

    def watch(self, topic: str) -> None:
        """Lets the producers of a topic be asked."""
        if topic in self._checkers:
            return
        if len(self._checkers) >= CHECKERS_MAX:
            topics = list(self._checkers)
            for one in topics[: CHECKERS_MAX // 2]:
                self._checkers.pop(one).close()
        self._checkers[topic] = self._store.on_check(topic, self._ask)

    async def watch_waiting(self, topics: frozenset[str]) -> None:
        """Lets the producers of those topics be asked to which messages are prepared."""
        for topic in topics - self._checkers.keys():
            # A list of the topic's own group would read the prepared messages of all others.
            if await self._gatherer.run(partial(self._store._has_prepared, topic)):
                self.watch(topic)

    def _ask(self, message: StoredMessage) -> Answer:
        """In a checker's thread."""
        self._loop.call_soon_threadsafe(self._pass_on, message)
        return "unknown"

    def _pass_on(self, message: StoredMessage) -> None:
        stream = self._clients.producer_stream(message.topic)
        if stream is not None:
            stream.send(_question(message).SerializeToString())

    def close(self) -> None:
        """Ends the checkers."""
        for checker in self._checkers.values():
            checker.close()
        self._checkers.clear()


def transaction_id(message_id: str, position: int) -> str:
    """The id of the transaction of a message that was prepared at a position."""
    return f"{message_id}{TRANSACTION_ID_MARK}{position}"


def _question(message: StoredMessage) -> Wire:
    command = message_class("TelemetryCommand")()
    asked = command.recover_orphaned_transaction_command
    resource = message_class("Resource")()
    namespace = namespace_of(message.topic)
    resource.name = message.topic
    if namespace is not None:
        resource.resource_namespace = namespace
        resource.name = unwrap(namespace, message.topic) or message.topic
    fill(asked.message, message, resource)
    asked.transaction_id = transaction_id(message.message_id, first_position(message))
    return command
