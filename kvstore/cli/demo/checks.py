"""Reads a loaded store back in every way there is, and compares the answers with the source.

The idea: `pull` is checked completely, against the source read a second time: each queue holds the
source's messages for it, in order, once, and nothing else. What the other ways of reading give is
then compared with that, for a fair sample.

Invariant: a check that finds something wrong notes it and goes on; only what the store raises ends
the demo.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from kvstore import Message, PutResult, Store, StoredMessage
from kvstore.cli.demo.load import Loaded
from kvstore.cli.demo.sources import Source
from kvstore.cli.demo.steps import Step
from kvstore.cli.output import Report
from kvstore.clock import SystemClock
from kvstore.errors import StoreError

_PULL: Final = 32
_KEYS: Final = 300
_TIMES: Final = 2_000

Positions = dict[tuple[str, str], list[int]]
"""Topic and key: the positions of the messages that carry it, oldest first."""


class _Cursor:
    """One queue, pulled from its beginning to its end."""

    def __init__(self, store: Store, topic: str, queue: int, step: Step) -> None:
        self.pulled = 0
        self._messages = self._all(store, topic, queue, step)

    def next(self) -> StoredMessage | None:
        """The queue's next message; None at its end."""
        message = next(self._messages, None)
        self.pulled += message is not None
        return message

    @staticmethod
    def _all(store: Store, topic: str, queue: int, step: Step) -> Iterator[StoredMessage]:
        # Not `Step.timed`: a context manager for every 32 messages would be part of the figure.
        clock = SystemClock()
        offset = 0
        while True:
            begin = clock.monotonic()
            found = store.pull(topic, queue=queue, offset=offset, limit=_PULL)
            step.seconds += clock.monotonic() - begin
            if not found.messages:
                return
            yield from found.messages
            offset = found.next_offset


def pull_everything(
    store: Store, source: Source, loaded: Loaded, report: Report
) -> tuple[Step, Positions]:
    """Compare every queue with the source; also returns where some drawn keys are."""
    step = Step("pull", f"every queue: {source.same_order}, in order, once")
    positions = _drawn_keys(loaded)
    cursors: dict[tuple[str, int], _Cursor] = {}
    for number, message in enumerate(source.messages()):
        assert message.queue is not None
        queue = (message.topic, message.queue)
        cursor = cursors.get(queue)
        if cursor is None:
            cursor = cursors[queue] = _Cursor(store, *queue, step)
        stored = cursor.next()
        _compare(step, message, stored, cursor.pulled - 1)
        if stored is not None:
            for key in stored.keys:
                if (stored.topic, key) in positions:
                    positions[stored.topic, key].append(stored.position)
        step.count += 1
        if number % 1024 == 0:
            report("pulling and comparing", number, loaded.messages)
    for (topic, number), cursor in cursors.items():
        step.expect(cursor.next() is None, f"{topic} queue {number} holds more than was put")
    _compare_bounds(store, step, Counter({queue: c.pulled for queue, c in cursors.items()}))
    return step, positions


def _drawn_keys(loaded: Loaded) -> Positions:
    positions: Positions = defaultdict(list)
    for message, _ in loaded.sample:
        if len(positions) == _KEYS:
            break
        positions[message.topic, message.keys[0]] = []
    return dict(positions)


def _compare(step: Step, put: Message, stored: StoredMessage | None, offset: int) -> None:
    # This runs for every message: what went wrong is put into words only if something did.
    if stored is None:
        step.fault(f"{put.topic} queue {put.queue} offset {offset} is missing")
        return
    same = (
        stored.body == put.body
        and stored.offset == offset
        and stored.tag == put.tag
        and stored.keys == list(put.keys)
        and stored.user_properties == put.properties
    )
    if not same:
        step.fault(f"{put.topic} queue {put.queue} offset {offset} holds {stored}, not {put}")


def _compare_bounds(store: Store, step: Step, pulled: Counter[tuple[str, int]]) -> None:
    for topic in store.topics():
        for queue in range(topic.read_queues):
            bounds = tuple(store.bounds(topic.name, queue=queue))
            expected = (0, pulled[topic.name, queue])
            step.expect(bounds == expected, f"{topic.name} queue {queue}: {bounds}, not {expected}")


def get_sample(store: Store, loaded: Loaded) -> Step:
    """Get sampled messages by queue and offset."""
    step = Step("get", "by queue and offset, drawn at random")
    for message, result in loaded.sample:
        with step.timed():
            found = store.get(result.topic, queue=result.queue, offset=result.offset)
        _same(step, message, result, found)
    return step


def read_sample(store: Store, loaded: Loaded) -> Step:
    """Read sampled messages by position."""
    step = Step("read_at", "by position in the log")
    for message, result in loaded.sample:
        with step.timed():
            found = store.read_at(result.position)
        _same(step, message, result, found)
    return step


def find_sample(store: Store, loaded: Loaded) -> Step:
    """Find sampled messages by unique id and by the id made of host and position."""
    step = Step("find", "by unique id, then by position id")
    for message, result in loaded.sample[:_TIMES]:
        with step.timed():
            found = store.find(result.message_id)
            again = store.find(found.position_id)
        _same(step, message, result, found)
        _same(step, message, result, again)
    return step


def _same(step: Step, put: Message, result: PutResult, found: StoredMessage) -> None:
    same = (
        found.body == put.body
        and (found.topic, found.queue, found.offset) == (result.topic, result.queue, result.offset)
        and (found.position, found.message_id) == (result.position, result.message_id)
    )
    step.expect(same, f"{result} was found as {found}")
    step.count += 1


def query_keys(store: Store, positions: Positions) -> Step:
    """Query the drawn keys: all messages that carry one, newest first."""
    step = Step("query", f"{len(positions):,} keys: all messages with it, newest first")
    for (topic, key), expected in positions.items():
        with step.timed():
            found = store.query(topic, key=key, limit=len(expected) + 1)
        step.count += len(found)
        newest_first = [message.position for message in found]
        step.expect(
            newest_first == expected[::-1],
            f"{topic} key {key}: {len(found):,} messages, not the {len(expected):,} that carry it",
        )
    return step


def offsets_by_time(store: Store, loaded: Loaded) -> Step:
    """Ask for offsets by the times at which sampled messages were stored."""
    step = Step("offset_at", "first offset stored at or after a time", unit="calls")
    for _, result in loaded.sample[:_TIMES]:
        topic, queue = result.topic, result.queue
        time = store.get(topic, queue=queue, offset=result.offset).stored_at
        with step.timed():
            offset = store.offset_at(topic, queue=queue, time=time)
        step.count += 1
        where = f"{topic} queue {queue} at {time}: offset {offset}"
        if not step.expect(offset <= result.offset, f"{where} is after {result.offset}"):
            continue
        step.expect(
            store.get(topic, queue=queue, offset=offset).stored_at >= time, f"{where} is too old"
        )
        if offset:
            before = store.get(topic, queue=queue, offset=offset - 1).stored_at
            step.expect(before < time, f"{where}, but the one before it is not older")
    return step


def verify(store: Store, expected: int, report: Report) -> Step:
    """Have the store check itself."""
    step = Step("verify", "every record's checksum; log and index agree", unit="records")
    with step.timed():
        found = store.verify(progress=report)
    step.count = found.records
    for problem in found.problems:
        step.fault(f"{problem.kind} at {problem.position}: {problem.message}")
    step.expect(found.records == expected, f"{found.records:,} records, not {expected:,}")
    return step


def guarded(name: str, error: StoreError) -> Step:
    """A step that the store ended with an error."""
    step = Step(name)
    step.fault(f"{type(error).__name__}: {error}")
    return step
