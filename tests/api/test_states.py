"""The same answers in every state: two differently configured stores and a model agree."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import kvstore
from kvstore import (
    Message,
    MessageNotFound,
    OffsetNotFound,
    Store,
    StoreConfig,
    TopicExists,
    TopicNotFound,
)
from tests.support.clock import VirtualClock
from tests.support.stores import SEGMENT

TOPICS = ["a", "b"]
QUEUES = 3
KEYS = ["k0", "k1", "k2"]
TAGS: list[str | None] = [None, "x", "y"]
CONFIGS: list[dict[str, Any]] = [
    {"checkpoint_bytes": 1 << 30},
    {
        "write_mode": "staged",
        "stage_bytes": 3000,
        "checkpoint_bytes": 6000,
        "compress_above": 50,
        "compression": "lz4",
    },
]

DRAFTS = st.lists(
    st.tuples(
        st.integers(0, QUEUES - 1),
        st.sampled_from([0, 1, 40, 300, 9000]),
        st.sampled_from(TAGS),
        st.lists(st.sampled_from(KEYS), max_size=2),
    ),
    min_size=1,
    max_size=12,
)


class Stores(RuleBasedStateMachine):
    """The model: for each topic and queue the messages put, as (body, tag, keys, id, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = VirtualClock()
        self.configs = [
            StoreConfig(segment_size=SEGMENT, clock=self.clock, busy_timeout=60.0, **c)
            for c in CONFIGS
        ]
        self.stores: list[Store] = []
        self.open()
        self.topics: dict[str, list[list[Any]]] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.deleted: list[str] = []
        self.made = 0
        self.create("a")

    def open(self) -> None:
        self.stores = [
            kvstore.open(self.folder / str(i), config=c) for i, c in enumerate(self.configs)
        ]

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)

    @rule(topic=st.sampled_from(TOPICS))
    def create(self, topic: str) -> None:
        for store in self.stores:
            if topic in self.topics:
                with pytest.raises(TopicExists):
                    store.create_topic(topic, queues=QUEUES)
            else:
                store.create_topic(topic, queues=QUEUES)
        self.topics.setdefault(topic, [[] for _ in range(QUEUES)])

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        for store in self.stores:
            if topic in self.topics:
                store.delete_topic(topic)
            else:
                with pytest.raises(TopicNotFound):
                    store.delete_topic(topic)
        self.deleted += [m[3] for queue in self.topics.pop(topic, []) for m in queue]
        self.offsets = {k: v for k, v in self.offsets.items() if k[0] != topic}

    @rule(topic=st.sampled_from(TOPICS), drafts=DRAFTS)
    def put(self, topic: str, drafts: list[tuple[int, int, str | None, list[str]]]) -> None:
        messages, expected = [], []
        for queue, size, tag, keys in drafts:
            self.made += 1
            name = f"id-{self.made}"
            body = name.encode() * (1 + size // len(name))
            messages.append(Message(topic, body, queue=queue, tag=tag, keys=keys, message_id=name))
            expected.append((queue, [body, tag, keys, name, self.clock.now_ms()]))
        if topic not in self.topics:
            for store in self.stores:
                with pytest.raises(TopicNotFound):
                    store.put_batch(messages)
            return
        offsets = []
        for queue, message in expected:
            offsets.append(len(self.topics[topic][queue]))
            self.topics[topic][queue].append(message)
        for store in self.stores:
            assert [r.offset for r in store.put_batch(messages)] == offsets

    @rule()
    def checkpoint(self) -> None:
        self.stores[0].checkpoint()

    @rule()
    def seal(self) -> None:
        self.stores[0].seal()

    @rule(which=st.sampled_from([0, 1]))
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = kvstore.open(self.folder / str(which), config=self.configs[which])
        assert self.stores[which].recovery.damage == []

    @rule()
    def rebuild(self) -> None:
        self.stores[1].close()
        kvstore.rebuild(self.folder / "1", self.configs[1])
        self.stores[1] = kvstore.open(self.folder / "1", config=self.configs[1])

    @rule(seconds=st.integers(1, 100))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.topics)
    @rule(queue=st.integers(0, QUEUES - 1), data=st.data())
    def commit(self, queue: int, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.topics)))
        offset = data.draw(st.integers(0, len(self.topics[topic][queue])))
        for store in self.stores:
            store.commit_offset("g", topic, queue, offset)
        self.offsets[topic, queue] = offset

    @precondition(lambda self: self.topics)
    @rule(queue=st.integers(0, QUEUES - 1), data=st.data(), tag=st.sampled_from(TAGS))
    def pull(self, queue: int, data: st.DataObject, tag: str | None) -> None:
        topic = data.draw(st.sampled_from(sorted(self.topics)))
        messages = self.topics[topic][queue]
        offset = data.draw(st.integers(0, len(messages)))
        limit = data.draw(st.sampled_from([1, 3, 32]))
        wanted = [m[3] for m in messages[offset:] if tag is None or m[1] == tag][:limit]
        for store in self.stores:
            pulled = store.pull(topic, queue, offset, limit, filter=tag)
            assert [m.message_id for m in pulled.messages] == wanted
            if wanted:
                assert pulled.next_offset == pulled.messages[-1].offset + 1 or tag is not None

    @precondition(lambda self: self.topics)
    @rule(key=st.sampled_from(KEYS), data=st.data(), ago=st.integers(0, 200))
    def query(self, key: str, data: st.DataObject, ago: int) -> None:
        topic = data.draw(st.sampled_from(sorted(self.topics)))
        begin = self.clock.now_ms() - ago * 1000
        for first, last in ((None, None), (begin, None), (None, begin), (begin, begin)):
            wanted = {
                m[3]
                for queue in self.topics[topic]
                for m in queue
                if key in m[2]
                and (first is None or m[4] >= first)
                and (last is None or m[4] <= last)
            }
            for store in self.stores:
                found = store.query(topic, key, first, last, limit=10_000)
                assert {m.message_id for m in found} == wanted
                assert len(found) == len(wanted)
                positions = [m.position for m in found]
                assert positions == sorted(positions, reverse=True)

    @precondition(lambda self: self.topics)
    @rule(queue=st.integers(0, QUEUES - 1), data=st.data(), ago=st.integers(-1, 300))
    def offset_at(self, queue: int, data: st.DataObject, ago: int) -> None:
        topic = data.draw(st.sampled_from(sorted(self.topics)))
        times = [m[4] for m in self.topics[topic][queue]]
        time = self.clock.now_ms() - ago * 1000
        lower = next((i for i, t in enumerate(times) if t >= time), len(times))
        upper = max((i for i, t in enumerate(times) if t <= time), default=0)
        for store in self.stores:
            assert store.offset_at(topic, queue, time) == lower
            assert store.offset_at(topic, queue, time, upper=True) == upper

    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        there = [m for queues in self.topics.values() for queue in queues for m in queue]
        if there:
            message = data.draw(st.sampled_from(there))
            for store in self.stores:
                found = store.find(message[3])
                assert (found.body, found.tag, found.keys) == tuple(message[:3])
                assert store.find(found.position_id) == store.read_at(found.position) == found
        if self.deleted:
            gone = data.draw(st.sampled_from(self.deleted))
            for store in self.stores:
                with pytest.raises(MessageNotFound):
                    store.find(gone)

    @rule()
    def verify(self) -> None:
        for store in self.stores:
            assert store.verify().problems == []

    @invariant()
    def queues_hold_what_was_put(self) -> None:
        for store in self.stores:
            assert [t.name for t in store.topics()] == sorted(self.topics)
            for topic, queues in self.topics.items():
                for queue, messages in enumerate(queues):
                    assert store.bounds(topic, queue) == (0, len(messages))
                    assert store.committed_offset("g", topic, queue) == self.offsets.get(
                        (topic, queue)
                    )
                    for offset in {0, len(messages) // 2, len(messages) - 1}:
                        if 0 <= offset < len(messages):
                            found = store.get(topic, queue, offset)
                            assert found.message_id == messages[offset][3]
                            assert found.stored_at == messages[offset][4]
                    with pytest.raises(OffsetNotFound):
                        store.get(topic, queue, len(messages))


Stores.TestCase.settings = settings(
    Stores.TestCase.settings, max_examples=25, stateful_step_count=30
)
TestStoresAgree = Stores.TestCase
