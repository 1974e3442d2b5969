"""Broker channel: the queues of kombu as topics of the store, popped by one group.

The idea: a queue is a topic of kind `priority`, and all workers pop it by the group `celery`. A
message that a worker has not acked stays under its lock (`held_tasks`).

Invariants: a message that was put is in the store before `_put` returns; one that a worker took is
acked, given back, or comes again when its lock runs out.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty
from typing import Any, Final

from kombu.transport import virtual

from kombu_kvmq.held_tasks import HeldTasks
from kombu_kvmq.task_message import PRIORITIES, Payload, message_of, payload_of, tag_of, topic_of
from kvstore import Popped, TopicNotFound

GROUP: Final = "celery"
LOCK_SECONDS: Final = 30.0
"""How long a task is locked without being renewed, unless `transport_options` say `lock`."""
_AT_ONCE: Final = 32
_WAIT: Final = 1.0
"""How long a pop waits at most, in seconds: a worker that is told to stop waits for it."""


class HeldQoS(virtual.QoS):
    """Acks and gives back by receipts."""

    channel: BrokerChannel

    def ack(self, delivery_tag: str) -> None:
        """The task is done."""
        self.channel.held.ack(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """The task is dropped, or goes to another worker."""
        if requeue:
            self.channel.held.give_back(delivery_tag)
            super().ack(delivery_tag)
        else:
            self.ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """All tasks that were not acked go to other workers."""
        self._flush()
        while self._delivered:
            tag, _ = self._delivered.popitem()
            self.channel.held.give_back(tag)
        return []


class BrokerChannel(virtual.Channel):
    """See the module."""

    QoS = HeldQoS

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        options = connection.client.transport_options
        self.store = connection.store
        self.held = HeldTasks(self.store, float(options.get("lock", LOCK_SECONDS)))
        self._known: set[str] = set()

    # --- queues ---

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if queue not in self._known:
            self.store.create_group(GROUP, exist_ok=True)
            topic = topic_of(queue)
            self.store.create_topic(topic, queues=PRIORITIES, kind="priority", exist_ok=True)
            self._known.add(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        try:
            self.store.topic(topic_of(queue))
        except TopicNotFound:
            return False
        return True

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self._known.discard(queue)
        if self._has_queue(queue):
            self.store.delete_topic(topic_of(queue))

    def _size(self, queue: str) -> int:
        (stats,) = self.store.group_stats(GROUP, topic_of(queue))
        return int(stats.unread + stats.due)

    def _purge(self, queue: str) -> int:
        count = self._size(queue)
        self.store.reset_offset(GROUP, topic_of(queue), to="end")
        return count

    # --- messages ---

    def _put(self, queue: str, message: Payload, **kwargs: Any) -> None:
        self._new_queue(queue)
        priority = self._get_message_priority(message)
        self.store.put_batch([message_of(topic_of(queue), message, priority)])

    def _get(self, queue: str, timeout: float | None = None) -> Payload:
        for popped in self._pop([queue], 1, timeout or 0.0):
            return self._hold(popped)
        raise Empty

    def _get_many(self, queues: Sequence[str], timeout: float | None = None) -> None:
        room = self.qos.can_consume_max_estimate() or _AT_ONCE
        wait = _WAIT if timeout is None else min(timeout, _WAIT)
        found = self._pop(queues, min(room, _AT_ONCE), wait)
        if not found:
            raise Empty
        names = {topic_of(queue): queue for queue in queues}
        for popped in found:
            self.connection._deliver(self._hold(popped), names[popped.message.topic])

    def _pop(self, queues: Sequence[str], limit: int, wait: float) -> list[Popped]:
        topics = [topic_of(queue) for queue in queues]
        lock = self.held.lock_seconds
        found: list[Popped] = self.store.pop(GROUP, topics, limit, invisible_for=lock, wait=wait)
        return found

    def _hold(self, popped: Popped) -> Payload:
        payload = payload_of(popped)
        self.held.add(tag_of(payload), popped.receipt)
        return payload

    def close(self) -> None:
        """Gives back all tasks that were not acked."""
        if not self.closed:
            super().close()
            self.held.end()
