"""Foreign delays: messages that RocketMQ delayed and had not delivered when its store was adopted.

The idea: RocketMQ has them in two topics, by delay level and by time. The log alone tells which
were delivered, cancelled, or put to wait here before (`foreign_messages`): a record behind it, with
the id, in the topic that it goes to or in the one in which delayed messages wait. (The progress of
a delay level is written seldom, so it tells only what was delivered for certain.)

Invariant: a message that was not delivered or cancelled waits here once.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.core.names import (
    DELAY_LEVELS_MS,
    SCHEDULE_TOPIC,
    TIMER_DELETE_ID,
    TIMER_OUT_MS,
    TIMER_TOPIC,
)
from kvstore.core.pending.pending_records import read_pending
from kvstore.index.keys import FOREIGN_DELAYS
from kvstore.opening.foreign_messages import (
    ByQueue,
    Foreign,
    ForeignMessages,
    Progress,
    Returned,
    drop,
    foreign_of,
    number_of,
)
from kvstore.timing.pending_messages import PendingMessages, TimingContext


class ForeignDelays:
    """Puts the messages; see the module."""

    def __init__(
        self, context: TimingContext, pending: PendingMessages, progress: Progress
    ) -> None:
        self._topics = context.topics
        self._foreign = ForeignMessages(context, pending, FOREIGN_DELAYS, TIMER_OUT_MS)
        self._progress = progress

    def put(self) -> int:
        """Puts those that were not delivered, so that they wait here, unless that was done. Returns
        how many.
        """
        return self._foreign.put(self._waiting, self._returned, "delayed")

    def _returned(self) -> Iterator[Returned]:
        """The records of this store that RocketMQ delivered, cancelled, or put to wait again."""
        by_queue: ByQueue = {}
        cancels: dict[str, int] = {}
        for message in self._foreign.of_topic(TIMER_TOPIC):
            one = self._foreign.own(message)
            if one is None:
                cancels[message.properties.get(TIMER_DELETE_ID, "")] = message.position
                continue
            of_queue = by_queue.setdefault((one.topic, one.queue), {})
            before = of_queue.get(one.message_id)
            if before is not None:
                yield Returned(before, "moved")
                one = one._replace(since=before.since)
            of_queue[one.message_id] = one
        for of_queue in by_queue.values():
            for one in [one for one in of_queue.values() if _is_cancelled(one, cancels)]:
                yield Returned(of_queue.pop(one.message_id), "dropped")
        waiting = [one for of_queue in by_queue.values() for one in of_queue.values()]
        self._foreign.drop_delivered(by_queue)
        for one in waiting:
            if one.message_id not in by_queue[one.topic, one.queue]:
                yield Returned(one, "moved")

    def _waiting(self) -> set[Foreign]:
        """The messages that RocketMQ still has to deliver."""
        by_queue: ByQueue = {}
        for one in (*self._levels(), *self._timers()):
            of_queue = by_queue.setdefault((one.topic, one.queue), {})
            # Of one that RocketMQ put to wait again, the last record counts.
            before = of_queue.get(one.message_id)
            if before is None or before.position < one.position:
                of_queue[one.message_id] = one
        self._drop_continued(by_queue)
        self._foreign.drop_delivered(by_queue)
        return {one for of_queue in by_queue.values() for one in of_queue.values()}

    def _levels(self) -> Iterator[Foreign]:
        """Messages that wait for a delay level, as far as the progress goes."""
        topic = self._topics.find(SCHEDULE_TOPIC)
        if topic is None:
            return
        for queue, delay in enumerate(DELAY_LEVELS_MS[: topic.read_queues]):
            for message in self._foreign.of_queue(topic, queue, self._progress(topic, queue)):
                found = foreign_of(message, message.stored_at + delay)
                if found is not None:
                    yield found

    def _timers(self) -> Iterator[Foreign]:
        """Messages that wait for a time, without those that were cancelled."""
        found: list[Foreign] = []
        first: dict[str, int] = {}
        cancels: dict[str, int] = {}
        for message in self._foreign.of_topic(TIMER_TOPIC):
            cancelled = message.properties.get(TIMER_DELETE_ID)
            if cancelled is not None:
                cancels[cancelled] = message.position
            elif read_pending(message.raw_properties) is None:
                one = foreign_of(message, number_of(message, TIMER_OUT_MS))
                if one is not None:
                    since = first.setdefault(one.message_id, one.position)
                    found.append(one._replace(since=since))
        yield from (one for one in found if not _is_cancelled(one, cancels))

    def _drop_continued(self, by_queue: ByQueue) -> None:
        """Drops messages that were put to wait here before."""
        if not by_queue:
            return
        for message in self._foreign.of_topic(TIMER_TOPIC):
            pending = read_pending(message.raw_properties)
            if pending is not None:
                drop(by_queue.get(pending[1:], {}), message)


def _is_cancelled(one: Foreign, cancels: dict[str, int]) -> bool:
    """Whether a record behind the first of a message cancels it, by the names of those that are
    cancelled. RocketMQ rolls a cancelled message, too, until it is due.
    """
    # A recall names the unique id alone, as older versions do.
    names = f"{one.topic}+{one.message_id}", one.message_id
    return any(cancels.get(name, -1) > one.since for name in names)
