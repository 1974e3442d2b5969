"""Streams against a plain model: whatever the store does between two triggers, and between planning
a batch and reading it, each message comes once, and those of a queue in order.

KVMQ_STREAM_RUNS=number makes it longer.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

import kvstore
from kvstore import Message, Retention, StoreConfig
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import DAY, SEGMENT
from tests.tiering.spark.stream.streaming import COLUMNS, through_json
from tests.tiering.spark.test_reading import read as read_all
from tiering import NothingToRestore, Policy, Worker
from tiering.spark.arrow import columns_of
from tiering.spark.options import read_options
from tiering.spark.stream import stream_view
from tiering.spark.stream.reader import KvmqStreamReader

RUNS: Final = int(os.environ.get("KVMQ_STREAM_RUNS", "10"))
POLICY: Final = Policy(hot_for=DAY, warm="archive", clock_doubt=0.0, block_bytes=4096, grace=0.0)
TOPICS: Final[dict[str, dict[str, Any]]] = {
    "kept": {"queues": 3},
    "short": {"queues": 2, "retention": Retention(hot_for=DAY, warm_for=4 * DAY)},
    "compacted": {"queues": 1, "kind": "compacted"},
}
Row = tuple[str, int, int, int]
"""Topic, queue, offset, position."""


LIMITS: Final[list[dict[str, str]]] = [
    {},
    {"max_messages_per_trigger": "7"},
    {"max_messages_per_trigger": "90"},
    {"max_bytes_per_trigger": "900"},
    {"max_bytes_per_trigger": "30000", "max_messages_per_trigger": "50"},
]


class Streams:
    """A store, a stream, and what the stream gave so far."""

    def __init__(self, folder: Path, *, archives: bool, limits: dict[str, str], split: str) -> None:
        self.clock = VirtualClock()
        self.made: dict[int, tuple[str, int]] = {}
        """By position the topic and which one of that name a message is of."""
        self.count = dict.fromkeys(TOPICS, 0)
        self.last: dict[tuple[str, int, int], int] = {}
        self.given: set[int] = set()
        self.batch: list[Row] | None = None
        """The batch that is under way, once it was read."""
        # Nothing happens by itself, so that the same steps give the same.
        config = StoreConfig(
            segment_size=SEGMENT,
            clock=self.clock,
            checkpoint_interval=1e9,
            retention_interval=1e9,
        )
        self.store = kvstore.open(folder / "store", config)
        self.worker = Worker(self.store, POLICY)
        for name in TOPICS:
            self._create(name)
        (folder / "store/archive").mkdir(exist_ok=True)
        self.path = folder / ("store/archive" if archives else "store")
        given = {"path": str(self.path), "split_bytes": split, "fail_on_data_loss": "false"}
        self.options = read_options({**given, **limits})
        self.reader = self._reader()
        self.start = self.reader.initialOffset()
        self.end = self.start

    def _reader(self) -> KvmqStreamReader:
        return KvmqStreamReader(self.options, columns_of(COLUMNS))

    def _create(self, name: str) -> None:
        self.store.create_topic(name, **TOPICS[name])

    def put(self, topic: str, count: int, size: int) -> None:
        queues = TOPICS[topic]["queues"]
        messages = [
            Message(topic, b"%d" % n * size, queue=n % queues, keys=[f"k{n % 5}"])
            for n in range(count)
        ]
        for result in self.store.put_batch(messages):
            self.made[result.position] = topic, self.count[topic]
        self.clock.advance(60.0)

    def checkpoint(self) -> None:
        self.store.checkpoint()

    def tier(self, days: float, *, merges: bool) -> None:
        self.store.seal()
        self.clock.advance(days * DAY)
        self.worker.run_once()
        if merges:
            self.worker.merge()

    def delete_topic(self, topic: str) -> None:
        self.store.delete_topic(topic)
        self.count[topic] += 1
        self._create(topic)

    # --- the stream ---

    def trigger(self, *, everything: bool) -> None:
        if self.start != self.end:
            return
        limit: ReadLimit = ReadAllAvailable() if everything else self.reader.getDefaultReadLimit()
        self.everything = isinstance(limit, ReadAllAvailable)
        self.end = through_json(self.reader.latestOffset(self.start, limit))
        self.batch = None

    def read(self) -> None:
        if self.start == self.end:
            return
        rows = self._read()
        if self.batch is not None:
            # The same again: what went meanwhile is all that may be missing.
            held = self._held()
            assert rows == [row for row in self.batch if row[3] in held]
        else:
            self.batch = rows
            self._note(rows)

    def commit(self) -> None:
        if self.start == self.end or self.batch is None:
            return
        self.reader.commit(self.end)
        self.start = self.end

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self._reader()

    def _read(self) -> list[Row]:
        found = [
            (row["topic"], row["queue"], row["offset"], row["position"])
            for part in self.reader.partitions(self.start, self.end)
            for batch in self._reader().read(part)
            for row in batch.to_pylist()
        ]
        return sorted(found)

    def _note(self, rows: list[Row]) -> None:
        most = self.options.max_messages_per_trigger
        assert self.everything or most is None or len(rows) <= most
        assert len(set(rows)) == len(rows)
        for topic, queue, offset, position in rows:
            assert position not in self.given
            name, which = self.made[position]
            assert name == topic
            assert offset > self.last.get((topic, which, queue), -1)
            self.last[topic, which, queue] = offset
            self.given.add(position)

    def _held(self) -> set[int]:
        """The positions of all messages that are there."""
        try:
            rows: list[dict[str, Any]] = read_all(self.path, names=COLUMNS)[0]
        except NothingToRestore:
            return set()
        return {row["position"] for row in rows}

    def finish(self) -> None:
        """Whatever is there was given, or will be."""
        self.store.checkpoint()
        if self.start != self.end and self.batch is None:
            self._note(self._read())
        self.start = self.end
        while True:
            self.trigger(everything=False)
            if self.start == self.end:
                break
            self._note(self._read())
            self.start = self.end
        assert self._held() <= self.given

    def close(self) -> None:
        self.worker.stop()
        self.store.close()


STEP: Final[st.SearchStrategy[tuple[str, dict[str, Any]]]] = st.one_of(
    st.tuples(
        st.just("put"),
        st.fixed_dictionaries(
            {
                "topic": st.sampled_from(sorted(TOPICS)),
                "count": st.integers(1, 20),
                "size": st.sampled_from([10, 300, 3000]),
            }
        ),
    ),
    st.tuples(
        st.just("tier"),
        st.fixed_dictionaries({"days": st.sampled_from([0.1, 2.0, 3.0]), "merges": st.booleans()}),
    ),
    st.tuples(st.just("trigger"), st.fixed_dictionaries({"everything": st.booleans()})),
    st.sampled_from(
        [(name, {}) for name in ("read", "read", "commit", "commit", "checkpoint", "restart")]
    ),
    st.tuples(
        st.just("delete_topic"), st.fixed_dictionaries({"topic": st.sampled_from(sorted(TOPICS))})
    ),
)


@settings(
    max_examples=RUNS,
    deadline=None,
    derandomize="KVMQ_STREAM_RUNS" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(
    archives=st.booleans(),
    limits=st.sampled_from(LIMITS),
    split=st.sampled_from(["5000", "1000000"]),
    kept=st.sampled_from([stream_view.BLOCKS_MAX, 1]),
    steps=st.lists(STEP, min_size=8, max_size=20),
)
def test_every_message_comes_once_and_those_of_a_queue_in_order(
    archives: bool,
    limits: dict[str, str],
    split: str,
    kept: int,
    steps: list[tuple[str, dict[str, Any]]],
) -> None:
    """Also where the tables of archives are hardly kept."""
    with (
        tempfile.TemporaryDirectory(prefix="kvmq-stream-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(stream_view, "BLOCKS_MAX", kept)
        streams = Streams(Path(folder), archives=archives, limits=limits, split=split)
        try:
            # There is always something in archives and in the log.
            for topic in TOPICS:
                streams.put(topic, 12, 300)
            streams.tier(2.0, merges=False)
            streams.put("kept", 12, 300)
            for name, given_ in steps:
                getattr(streams, name)(**given_)
            streams.finish()
        finally:
            streams.close()
