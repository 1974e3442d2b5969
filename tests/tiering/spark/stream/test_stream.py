"""Where batches begin and end, what they cost, and what can't be read any more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.datasource import InputPartition

import kvstore
import tiering
from kvstore import ConfigError, Message, Retention, Store, StoredMessage
from kvstore.errors import ArchiveMissing
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import DAY, POLICY
from tests.tiering.spark.sink.jobs import write
from tests.tiering.spark.stream.streaming import (
    COLUMNS,
    Row,
    drain,
    everything,
    positions,
    read,
    reader,
    through_json,
    trigger,
)
from tiering import Worker
from tiering.errors import MessagesLost
from tiering.spark.arrow import columns_of
from tiering.spark.listing import Opener
from tiering.spark.options import read_options
from tiering.spark.source.query_reader import KvmqReader
from tiering.spark.stream.reader import KvmqStreamReader
from tiering.spark.stream.stream_view import DirectoryTables, PlaceLooker, StoreLooker


@pytest.fixture
def store(empty: Store) -> Store:
    """A store with two topics; nothing is in them."""
    empty.create_topic("orders", queues=2)
    empty.create_topic("events")
    return empty


def put(store: Store, topic: str, count: int, *, size: int = 500, queues: int = 1) -> None:
    """Messages that streams can see."""
    for n in range(count):
        store.put_batch([Message(topic, b"x" * size, queue=n % queues, keys=[f"k{n}"])])
    store.checkpoint()


class Tiering:
    """A store's worker, and the time that passes before it works."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store, self.clock = store, clock
        self.worker = Worker(store, POLICY)

    def __call__(self, *, merge: bool = False) -> None:
        self.store.seal()
        self.clock.advance(2 * DAY)
        assert self.worker.run_once().failed == {}
        if merge:
            self.worker.merge()


@pytest.fixture
def tier(store: Store, clock: VirtualClock) -> Iterator[Tiering]:
    tiering = Tiering(store, clock)
    yield tiering
    tiering.worker.stop()


def opener_read(stream: KvmqStreamReader) -> int:
    """Bytes of archives that the driver has read for a stream."""
    return stream.opener.read


def test_an_offset_is_json_that_people_can_read(store: Store) -> None:
    put(store, "orders", 3, queues=2)
    put(store, "events", 1)
    stream = reader(store.path)
    offset, _ = drain(stream)
    assert offset == {
        "version": 1,
        "store": store.catalog().store_id.hex(),
        "of": None,
        "position": store.stats().durable_position,
        "archives": 0,
        "topics": {
            "events": {"id": store.topic("events").id, "queues": {"0": 1}},
            "orders": {"id": store.topic("orders").id, "queues": {"0": 2, "1": 1}},
        },
    }


def test_batches_have_the_messages_that_were_asked_for_at_most(
    folder: Path, held: dict[int, StoredMessage]
) -> None:
    _, batches = drain(reader(folder, max_messages_per_trigger="40"))
    assert max(map(len, batches)) <= 40
    assert len(batches) < 3 * len(held) / 40
    assert positions([row for batch in batches for row in batch]) == set(held)


def test_batches_have_the_bytes_that_were_asked_for_and_one_large_message_goes(
    store: Store, tier: Tiering
) -> None:
    for tiered in (True, False):
        put(store, "orders", 5, size=100)
        put(store, "orders", 1, size=20_000)
        put(store, "orders", 5, size=100)
        if tiered:
            tier()
    _, batches = drain(reader(store.path, max_bytes_per_trigger="1000"))
    assert sum(map(len, batches)) == 22
    assert 6 <= len(batches) <= 16
    assert max(map(len, batches)) <= 5


def test_all_that_is_available_is_all_whatever_the_options_say(
    folder: Path, held: dict[int, StoredMessage]
) -> None:
    stream = reader(folder, max_messages_per_trigger="1")
    start = stream.initialOffset()
    end, rows = everything(stream, start)
    assert positions(rows) == set(held)
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end


def test_available_now_ends_with_what_was_there_when_it_began(store: Store, tier: Tiering) -> None:
    put(store, "orders", 60)
    tier()
    put(store, "orders", 30)
    stream = reader(store.path, max_messages_per_trigger="25")
    stream.prepareForTriggerAvailableNow()
    put(store, "orders", 40)
    store.create_topic("later")
    put(store, "later", 5)
    tier(merge=True)
    end, batches = drain(stream)
    assert sum(map(len, batches)) == 90
    assert max(map(len, batches)) <= 25
    assert sum(map(len, drain(reader(store.path), end)[1])) == 45


def test_a_stream_begins_where_it_is_told(store: Store, tier: Tiering) -> None:
    put(store, "orders", 10, queues=2)
    tier()
    put(store, "orders", 10, queues=2)

    def begun(text: str) -> list[tuple[int, int]]:
        stream = reader(store.path, starting_offsets=text)
        offset = through_json(stream.initialOffset())
        rows = everything(stream, offset)[1]
        return sorted((row["queue"], row["offset"]) for row in rows)

    assert len(begun("earliest")) == 20
    assert begun("latest") == []
    assert begun('{"orders": {"0": 7, "1": -1}}') == [(0, 7), (0, 8), (0, 9)]
    assert len(begun('{"orders": {"0": -2, "1": 9}}')) == 11
    stream = reader(store.path, starting_offsets="latest")
    offset = through_json(stream.initialOffset())
    put(store, "orders", 3)
    tier()
    assert len(everything(stream, offset)[1]) == 3


@pytest.mark.parametrize(
    "text",
    ["never", "[]", '{"orders": 3}', '{"orders": {"0": -3}}', '{"orders": {"x": 1}}',
     '{"nothing": {"0": 1}}'],
    ids=["word", "list", "number", "negative", "queue", "topic"],
)  # fmt: skip
def test_beginnings_that_are_none_are_refused(store: Store, text: str) -> None:
    with pytest.raises(ConfigError, match="starting_offsets"):
        reader(store.path, starting_offsets=text).initialOffset()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "newer kvmq"),
        ({"store": "0" * 32}, "another checkpoint"),
        ({"topics": {"orders": 3}}, "none of a kvmq stream"),
        ({"topics": {"orders": {"id": 1, "queues": {"first": 1}}}}, "none of a kvmq stream"),
        ({"position": 1 << 40}, "older copy"),
        ({"topics": {"orders": {"id": 1, "queues": {"0": 99}}}}, "older copy"),
    ],
    ids=["version", "store", "topics", "queue", "position", "offset"],
)  # fmt: skip
def test_a_checkpoint_that_is_not_of_this_store_is_refused(
    store: Store, change: dict[str, object], told: str
) -> None:
    put(store, "orders", 3)
    stream = reader(store.path)
    offset, _ = drain(stream)
    with pytest.raises(ConfigError, match=told):
        drain(reader(store.path), {**offset, **change})


def test_topics_that_come_later_are_read_from_their_beginning(store: Store) -> None:
    put(store, "orders", 3)
    stream = reader(store.path)
    offset, _ = drain(stream)
    store.create_topic("new")
    put(store, "new", 4)
    offset, batches = drain(stream, offset)
    assert [len(rows) for rows in batches] == [4]


def test_a_topic_that_is_made_again_is_another(store: Store) -> None:
    put(store, "orders", 5)
    stream = reader(store.path)
    offset, _ = drain(stream)
    store.delete_topic("orders")
    store.create_topic("orders")
    put(store, "orders", 3)
    _, batches = drain(stream, offset)
    assert [[row["offset"] for row in rows] for rows in batches] == [[0, 1, 2]]


def test_a_topic_without_news_may_go_while_a_batch_is_planned(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, "orders", 3)
    put(store, "events", 2)
    stream = reader(store.path)
    offset, _ = drain(stream)
    put(store, "orders", 1)
    end = through_json(stream.latestOffset(offset, stream.getDefaultReadLimit()))
    store.delete_topic("events")
    assert [row["offset"] for row in read(stream, offset, end)] == [3]
    assert "was deleted" not in caplog.text


def test_topics_that_the_options_add_are_read_from_their_beginning(
    store: Store, tier: Tiering
) -> None:
    put(store, "orders", 5)
    put(store, "events", 4)
    tier()
    put(store, "events", 3)
    offset, batches = drain(reader(store.path, topics="orders"))
    assert sum(map(len, batches)) == 5
    put(store, "orders", 1)
    offset, batches = drain(reader(store.path, topics="orders,events"), offset)
    found = [row["topic"] for rows in batches for row in rows]
    assert (found.count("events"), found.count("orders")) == (7, 1)


def test_keys_of_the_options_are_applied_exactly(store: Store, tier: Tiering) -> None:
    put(store, "orders", 50)
    tier()
    put(store, "orders", 50)
    _, batches = drain(reader(store.path, keys="k7", max_messages_per_trigger="30"))
    assert [row["offset"] for rows in batches for row in rows] == [7, 57]


def test_a_stream_of_archives_alone_can_take_the_log_in_later(store: Store, tier: Tiering) -> None:
    put(store, "orders", 40)
    tier()
    put(store, "orders", 40)
    offset, batches = drain(reader(store.path, hot="false"))
    assert [len(rows) for rows in batches] == [40]
    put(store, "orders", 1)
    offset, batches = drain(reader(store.path), offset)
    assert [row["offset"] for rows in batches for row in rows] == list(range(40, 81))


def test_a_stream_with_nothing_to_do_reads_nothing(store: Store, tier: Tiering) -> None:
    put(store, "orders", 100)
    tier()
    put(store, "orders", 5)
    stream = reader(store.path)
    offset, _ = drain(stream)
    view, before = stream.looker.look(), opener_read(stream)
    assert before
    for _ in range(3):
        assert stream.latestOffset(offset, stream.getDefaultReadLimit()) is offset
    assert stream.looker.look() is view
    put(store, "orders", 1)
    assert len(trigger(stream, offset)[1]) == 1
    assert opener_read(stream) == before


def test_a_stream_that_goes_on_opens_no_archive_that_it_is_done_with(
    store: Store, tier: Tiering
) -> None:
    put(store, "orders", 100)
    tier()
    offset, _ = drain(reader(store.path))
    put(store, "orders", 3)
    again = reader(store.path)
    assert len(trigger(again, offset)[1]) == 3
    assert opener_read(again) == 0


def test_a_batch_reads_the_blocks_that_it_needs(store: Store, tier: Tiering) -> None:
    put(store, "orders", 400)
    tier()
    stream = reader(store.path, max_messages_per_trigger="20", split_bytes="20000")
    end, rows = trigger(stream, stream.initialOffset())
    assert 1 <= len(rows) <= 20
    parts = stream.partitions(stream.initialOffset(), end)
    blocks = [block for part in parts for piece in part.pieces for block in piece.blocks]
    assert sum(stop - first for first, stop in blocks) <= 2


def test_a_batch_is_the_same_after_its_segments_were_archived_and_merged(
    store: Store, tier: Tiering
) -> None:
    put(store, "orders", 120, queues=2)
    tier()
    put(store, "orders", 120, queues=2)
    stream = reader(store.path)
    start = stream.initialOffset()
    half, first = trigger(reader(store.path, max_messages_per_trigger="150"), start)
    end, second = everything(stream, half)
    put(store, "orders", 50)
    tier()
    tier(merge=True)
    for batch in ((start, half, first), (half, end, second)):
        assert positions(read(reader(store.path), *batch[:2])) == positions(batch[2])
    assert len(first) + len(second) == 240


def test_archives_alone_are_followed_as_they_come(store: Store, tier: Tiering) -> None:
    folder = store.path / "archive"
    folder.mkdir(exist_ok=True)
    stream = reader(folder)
    offset, batches = drain(stream)
    assert batches == []
    found: set[int] = set()
    for merge in (False, False, True, False):
        put(store, "orders", 100, queues=2)
        tier(merge=merge)
        offset, batches = drain(stream, offset)
        new = positions([row for rows in batches for row in rows])
        assert not found & new
        found |= new
    assert len(found) == 400
    assert drain(reader(folder), offset)[1] == []


def test_a_store_is_not_looked_at_all_the_time_because_consumers_note_their_offsets(
    store: Store,
) -> None:
    options = read_options({"path": str(store.path)})
    clock = VirtualClock()
    looker = StoreLooker(options, clock)
    put(store, "orders", 10)
    store.create_group("g")
    first = looker.look()
    store.pop("g", "orders")
    assert looker.look() is first
    put(store, "orders", 1)
    assert looker.look() is first
    assert looker.look(anew=True) is not first
    second = looker.look()
    store.pop("g", "orders")
    assert looker.look() is second
    put(store, "orders", 1)
    clock.advance(1.0)
    assert looker.look() is not second


def test_a_bucket_is_not_listed_more_often_than_it_is_worth(store: Store, tier: Tiering) -> None:
    options = read_options({"path": str(store.path / "archive")})
    clock = VirtualClock()
    looker = PlaceLooker(options, DirectoryTables(Opener(options)), clock, rest=5.0)
    put(store, "orders", 10)
    tier()
    assert len(looker.look().archives) == 1
    put(store, "orders", 10)
    tier()
    clock.advance(4.0)
    assert len(looker.look().archives) == 1
    clock.advance(1.0)
    assert len(looker.look().archives) == 2


def test_an_archive_that_comes_behind_later_ones_is_not_passed_over(
    store: Store, tier: Tiering, tmp_path: Path
) -> None:
    store.create_topic("long", retention=Retention(hot_for=DAY, warm_for=500 * DAY))
    put(store, "orders", 10)
    put(store, "long", 10)
    tier()
    place = tmp_path / "place"
    every = sorted((store.path / "archive").rglob("*.kvarc"))
    assert len(every) == 2
    offset = None
    found: set[int] = set()
    stream = reader(place)
    place.mkdir()
    for path in reversed(every):
        target = place / path.relative_to(store.path / "archive")
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
        offset, batches = drain(stream, offset)
        found |= positions([row for rows in batches for row in rows])
    assert len(found) == 20


def _expire(tier: Tiering) -> None:
    tier.worker.stop()
    policy = msgspec.structs.replace(POLICY, warm_for=2 * DAY)
    tier.clock.advance(30 * DAY)
    with Worker(tier.store, policy) as worker:
        worker.run_once()
    tier.worker = Worker(tier.store, POLICY)


def test_messages_that_went_before_they_were_read_fail_the_stream(
    store: Store, tier: Tiering
) -> None:
    put(store, "orders", 30)
    stream = reader(store.path, max_messages_per_trigger="10")
    offset, rows = trigger(stream, stream.initialOffset())
    assert len(rows) == 10
    planned = through_json(stream.latestOffset(offset, stream.getDefaultReadLimit()))
    tier()
    _expire(tier)
    put(store, "orders", 5)
    limited = reader(store.path, max_messages_per_trigger="10")
    for attempt in (
        lambda: limited.latestOffset(offset, limited.getDefaultReadLimit()),
        lambda: drain(reader(store.path), offset),
        lambda: reader(store.path).partitions(offset, planned),
    ):
        with pytest.raises(MessagesLost, match="from offset 10 to before 30") as caught:
            attempt()
        assert (caught.value.topic, caught.value.queue) == ("orders", 0)
    behind = reader(store.path, fail_on_data_loss="false")
    assert read(behind, offset, planned) == []
    _, batches = drain(behind, planned)
    assert [row["offset"] for rows in batches for row in rows] == [30, 31, 32, 33, 34]


def test_a_stream_over_archives_alone_notices_what_went(store: Store, tier: Tiering) -> None:
    folder = store.path / "archive"
    put(store, "orders", 30)
    tier()
    stream = reader(folder, max_messages_per_trigger="10")
    offset, _ = trigger(stream, stream.initialOffset())
    _expire(tier)
    put(store, "orders", 30)
    tier()
    with pytest.raises(MessagesLost, match="to before 30"):
        drain(reader(folder), offset)
    assert len(drain(reader(folder, fail_on_data_loss="false"), offset)[1]) == 1


def test_what_compaction_drops_and_what_is_erased_in_between_is_no_loss(
    store: Store, tier: Tiering
) -> None:
    store.create_topic("state", kind="compacted")
    put(store, "orders", 20)
    put(store, "state", 20)
    stream = reader(store.path, max_messages_per_trigger="15")
    offset, _ = trigger(stream, stream.initialOffset())
    offset, _ = trigger(stream, offset)
    assert offset["topics"]["state"]["queues"] == {"0": 10}
    tier()
    put(store, "state", 20)
    tier(merge=True)
    tier.worker.erase(topic="orders", key="k3")
    rest = [row["offset"] for rows in drain(reader(store.path), offset)[1] for row in rows]
    assert sorted(rest) == list(range(20, 40))
    first = drain(reader(store.path, topics="orders"))[1]
    assert len([row for rows in first for row in rows]) == 19


def test_an_archive_that_went_after_the_plan_is_missing_and_the_batch_comes_again(
    store: Store, tier: Tiering
) -> None:
    put(store, "orders", 150)
    tier()
    put(store, "orders", 150)
    stream = reader(store.path)
    start = stream.initialOffset()
    end = through_json(stream.latestOffset(start, stream.getDefaultReadLimit()))
    parts = stream.partitions(start, end)
    tier()
    tier(merge=True)
    tier()
    with pytest.raises(ArchiveMissing, match="run"):
        [batch for part in parts for batch in stream.read(part)]
    assert len(positions(read(stream, start, end))) == 300


def test_what_was_archived_after_the_plan_is_read_from_there(store: Store, tier: Tiering) -> None:
    put(store, "orders", 200, queues=2)
    put(store, "events", 20)
    stream = reader(store.path, max_messages_per_trigger="130", split_bytes="30000")
    first = through_json(stream.initialOffset())
    half = through_json(stream.latestOffset(first, stream.getDefaultReadLimit()))
    end = through_json(stream.latestOffset(half, stream.getDefaultReadLimit()))
    plans = [stream.partitions(first, half), stream.partitions(half, end)]
    before = [positions(read(stream, first, half)), positions(read(stream, half, end))]
    options = read_options({"path": str(store.path), "split_bytes": "30000"})
    table = KvmqReader(options, columns_of(COLUMNS))
    parts = table.partitions()
    tier(merge=True)
    tier()

    def rows(of: KvmqReader | KvmqStreamReader, plan: Sequence[InputPartition]) -> list[Row]:
        return [row for part in plan for batch in of.read(part) for row in batch.to_pylist()]

    assert not list((store.path / "commitlog").glob("0000000000000000000?"))
    assert [positions(rows(stream, plan)) for plan in plans] == before
    assert len(positions(rows(table, parts))) == 220


def test_a_part_is_sent_with_what_it_needs(folder: Path) -> None:
    import pickle  # as Spark sends it

    stream = reader(folder, split_bytes="4000")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    parts = stream.partitions(start, end)
    assert len(parts) > 5
    assert max(len(pickle.dumps(part)) for part in parts) < 3000
    assert json.loads(json.dumps(end)) == end


def test_what_is_attached_comes_though_newer_archives_came_before_it(
    tmp_path: Path, clock: VirtualClock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    rows = [{"topic": "orders", "body": b"%d" % n, "stored_at": now} for n in range(3)]
    write(tmp_path / "out", rows)
    put(store, "events", 5)
    offset, _ = drain(reader(store.path))
    take_in = store.handover.take_in

    def late(*args: Any) -> None:
        nonlocal offset
        store.seal()
        clock.advance(10 * DAY)
        with Worker(store, POLICY) as worker:
            worker.run_once()
        put(store, "events", 2)
        offset, batches = drain(reader(store.path), offset)
        assert len([row for rows in batches for row in rows]) == 2
        take_in(*args)

    with monkeypatch.context() as patched:
        patched.setattr(store.handover, "take_in", late)
        tiering.attach(store, tmp_path / "out")
    offset, batches = drain(reader(store.path), offset)
    assert [row["offset"] for rows in batches for row in rows] == [0, 1, 2]
    assert offset["archives"] > 1


def test_an_attach_that_was_killed_is_not_waited_for(store: Store) -> None:
    put(store, "events", 5)
    store.handover.reserve(1, 0)
    for _ in range(3):
        store.handover.take_number()
    store.handover.set_rows(())
    assert drain(reader(store.path))[0]["archives"] == 0
    store.close()
    with kvstore.open(store.path, store.config):
        assert drain(reader(store.path))[0]["archives"] == 3
