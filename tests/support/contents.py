"""A store's contents, read in every way there is, and whether all of them agree."""

from __future__ import annotations

from collections.abc import Iterator

from kvstore import (
    Damaged,
    PullResult,
    PullStatus,
    RecordDamaged,
    ServedStore,
    Store,
    StoredMessage,
)
from kvstore.core.names import PENDING_TOPICS
from kvstore.errors import ArchiveDamaged
from tests.support import inside

Queue = tuple[str, int]


def pull_any(store: Store | ServedStore, topic: str, queue: int, offset: int) -> PullResult:
    """As `Store.pull`, also of the topics in which messages wait, which callers don't read."""
    if topic in PENDING_TOPICS and isinstance(store, Store):
        return inside.pull_waiting(store, topic, queue, offset, 100)
    return store.pull(topic, queue, offset, limit=100)


def query_any(store: Store, topic: str, key: str, limit: int = 64) -> list[StoredMessage]:
    """As `Store.query`, also of the topics in which messages wait, which callers don't read."""
    if topic in PENDING_TOPICS:
        return inside.query_waiting(store, topic, key, limit)
    return store.query(topic, key, limit=limit)


def read_queue(store: Store | ServedStore, topic: str, queue: int) -> list[StoredMessage]:
    """All messages of a queue, by pulling on."""
    found: list[StoredMessage] = []
    offset = store.bounds(topic, queue).min_offset
    while True:
        pulled = pull_any(store, topic, queue, offset)
        if pulled.status is not PullStatus.FOUND:
            return found
        found += pulled.messages
        offset = pulled.next_offset


def read_around(store: Store, topic: str, queue: int) -> tuple[list[StoredMessage], list[Damaged]]:
    """All messages of a queue that can be read, going on behind damage as its errors say; these."""
    found: list[StoredMessage] = []
    errors: list[Damaged] = []
    offset = store.bounds(topic, queue).min_offset
    while True:
        try:
            pulled = pull_any(store, topic, queue, offset)
        except (RecordDamaged, ArchiveDamaged) as e:
            errors.append(e)
            following = e.next_offset
        else:
            if pulled.status is not PullStatus.FOUND:
                return found, errors
            found += pulled.messages
            following = pulled.next_offset
        if following is None:
            return found, errors
        assert following > offset
        offset = following


def queues(store: Store) -> Iterator[Queue]:
    """Every queue of every topic."""
    for topic in store.topics():
        for queue in range(topic.read_queues):
            yield topic.name, queue


def read_all(store: Store) -> dict[Queue, list[StoredMessage]]:
    """All messages by queue, of the queues that hold any."""
    found = {q: read_queue(store, *q) for q in queues(store)}
    return {q: messages for q, messages in found.items() if messages}


def bodies(store: Store) -> dict[Queue, list[bytes]]:
    """All bodies by queue."""
    return {q: [m.body for m in messages] for q, messages in read_all(store).items()}


def assert_whole(store: Store) -> dict[Queue, list[StoredMessage]]:
    """Offsets are dense, in log and time order, and nothing is wrong; returns all messages."""
    found = read_all(store)
    for (topic, queue), messages in found.items():
        low, high = store.bounds(topic, queue)
        assert [m.offset for m in messages] == list(range(low, high))
        positions = [m.position for m in messages]
        assert positions == sorted(set(positions))
        assert [m.stored_at for m in messages] == sorted(m.stored_at for m in messages)
    report = store.verify()
    assert report.problems == []
    return found


def assert_found_by_key(store: Store, messages: list[StoredMessage]) -> None:
    """Each message is what its keys, its ids and its position lead to."""
    for m in messages:
        assert store.read_at(m.position) == m
        assert store.find(m.message_id) == m
        for key in m.keys:
            assert m in query_any(store, m.topic, key, limit=1000)
