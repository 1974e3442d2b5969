"""Messages put into an archive come out again: by offset, by position, by key, as a whole."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore.core.records import facts, find_property, keys_of
from kvstore.errors import CallerError
from kvstore.record.hashes import key_hash, key_hash_range
from tests.rocketmq.logs import record
from tests.tiering.archive.making import (
    ORIGIN,
    SMALL_BLOCKS,
    Made,
    MemorySource,
    Queue,
    drawn_queues,
    find,
    keyed,
    make,
    plain_queues,
)
from tiering.archive import archive_reader, block_writer, indexes, tail
from tiering.archive.archive_check import archive_problems
from tiering.archive.archive_reader import Archive, open_lazily
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import ArchivedTopic, decode_manifest, encode_manifest
from tiering.archive.writer import ArchiveSettings, ArchiveWriter

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
LZ4 = ArchiveSettings(codec="lz4", block_bytes=2048)


def position_of(raw: bytes) -> int:
    return int.from_bytes(raw[28:36], "big")


def read(archive: Archive, queue: Queue, offset: int) -> bytes | None:
    """The record with the first held offset from `offset` on."""
    number = archive.block_at(queue.topic.id, queue.queue, offset)
    if number is None:
        return None
    block = archive.read_block(number)
    return block.record(int(np.searchsorted(block.offsets, offset)))


def check_all_is_found(made: Made) -> None:
    archive, _ = made.open()
    for queue in made.queues:
        topic = queue.topic.name.encode()
        for offset, raw in queue.records.items():
            assert read(archive, queue, offset) == raw
            position = position_of(raw)
            place = archive.locate(position)
            assert place is not None
            assert archive.read_block(place[0]).record(place[1]) == raw
            properties = facts(raw, 0, len(raw))[5]
            unique, keys = find_property(properties, b"UNIQ_KEY"), keys_of(properties)
            for key in filter(None, (unique, *keys)):
                one = key_hash(topic, key)
                assert position in find(archive, one, one)
                assert (position, *place) in set(archive.find(*key_hash_range(key)))
    assert list(archive_problems(archive)) == []


@SLOW
@given(drawn_queues(), st.sampled_from([SMALL_BLOCKS, LZ4, ArchiveSettings()]))
def test_any_messages_come_out_as_they_went_in(
    queues: list[Queue], settings: ArchiveSettings
) -> None:
    check_all_is_found(make(queues, settings))


@SLOW
@given(drawn_queues(), st.integers(1, 5))
def test_the_same_records_give_the_same_bytes_however_they_are_given(
    queues: list[Queue], at_once: int
) -> None:
    assert make(queues, at_once=at_once).data == make(queues).data


@SLOW
@given(drawn_queues())
def test_a_queue_is_read_from_any_offset_over_its_gaps(queues: list[Queue]) -> None:
    made = make(queues)
    archive, _ = made.open()
    for queue in made.queues:
        held = sorted(queue.records)
        assert read(archive, queue, held[0] - 1) == queue.records[held[0]]
        for before, offset in pairwise(held):
            assert read(archive, queue, before + 1) == queue.records[offset]
        assert read(archive, queue, held[-1] + 1) is None
        blocks = archive.blocks(queue.topic.id, queue.queue)
        found = [raw for block in map(archive.read_block, blocks) for raw in block.records()]
        assert found == list(queue.records.values())


def test_messages_that_fill_many_batches_and_chunks_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexes, "CHUNK", 256)
    monkeypatch.setattr(block_writer, "BATCH_BYTES", 512 << 10)
    queues = plain_queues(topics=2, queues=2, messages=312, body=1000)
    made = make(queues, ArchiveSettings())
    archive, _ = made.open()
    assert made.manifest.messages == 1248
    for queue in made.queues:
        for offset in range(0, 312, 43):
            raw = queue.records[offset]
            assert read(archive, queue, offset) == raw
            assert find(archive, *[key_hash(queue.topic.name.encode(), b"all")] * 2) == sorted(
                position_of(raw) for q in queues if q.topic == queue.topic
                for raw in q.records.values()
            )  # fmt: skip
    assert list(archive_problems(archive)) == []


def test_one_huge_message_among_small_ones_has_a_block_to_itself() -> None:
    queue = plain_queues(1, 1, 3)[0]
    huge = record(
        position_of(queue.records[2]), bytes(range(256)) * (16 << 10),
        topic=queue.topic.name, offset=2,
    )  # fmt: skip
    made = make([queue._replace(records={**queue.records, 2: huge})], ArchiveSettings())
    archive, _ = made.open()
    assert len(archive.blocks(queue.topic.id, 0)) == 2
    check_all_is_found(made)


def test_forty_thousand_queues_fit_in_one_archive() -> None:
    position, queues = 0, []
    for number in range(5000):
        topic = ArchivedTopic(name=f"topic{number:04}", id=number + 1, queues=8)
        for queue in range(8):
            raw = record(position, b"one", topic=topic.name, queue=queue, offset=7)
            position += len(raw)
            queues.append(Queue(topic, queue, {7: raw}))
    made = make(queues)
    archive, _ = made.open()
    for some in made.queues[::1777]:
        assert read(archive, some, 0) == some.records[7]
    assert archive.directory.memory_bytes / 40_000 < 16


def test_an_archive_of_nothing_opens_and_holds_nothing() -> None:
    archive, _ = make([]).open()
    assert archive.manifest.messages == 0
    assert archive.block_at(1, 0, 0) is None
    assert archive.locate(0) is None
    assert find(archive, 0, (1 << 40) - 1) == []
    assert list(archive_problems(archive)) == []


# -- reads


def test_opening_takes_at_most_two_reads_and_a_message_one_more() -> None:
    for messages in (10, 9000):
        made = make(plain_queues(2, 2, messages, 300), ArchiveSettings())
        archive, source = made.open()
        assert len(source.reads) <= 2
        source.reads.clear()
        assert read(archive, made.queues[1], messages // 2) is not None
        assert len(source.reads) == 1


def test_a_message_by_position_takes_one_read_more_and_by_key_another() -> None:
    made = make(plain_queues(2, 2, 9000, 300), ArchiveSettings())
    archive, source = made.open()
    queue = made.queues[2]
    raw = queue.records[4321]
    source.reads.clear()
    assert archive.locate(position_of(raw)) is not None
    assert len(source.reads) == 1
    source.reads.clear()
    key = key_hash(queue.topic.name.encode(), f"{queue.topic.name}-{queue.queue}-4321".encode())
    assert find(archive, key, key) == [position_of(raw)]
    assert len(source.reads) == 2


def test_a_key_that_is_nowhere_takes_no_read_in_most_archives() -> None:
    archive, source = make(plain_queues(2, 2, 500)).open()
    source.reads.clear()
    for number in range(200):
        key = key_hash(b"topic0", f"nowhere{number}".encode())
        assert find(archive, key, key) == []
    assert len(source.reads) < 2 * 80


def test_directory_filter_and_fences_take_less_than_two_bytes_a_message() -> None:
    made = make(plain_queues(4, 2, 2500, 1000), ArchiveSettings())
    archive, _ = made.open()
    one = key_hash(b"topic0", b"all")
    assert find(archive, one, one)
    archive.read_block(0).records()
    parts = (archive.directory, archive.filter, archive.key_fences, archive.position_fences)
    assert sum(part.memory_bytes for part in parts if part is not None) / 20_000 < 2


def test_an_archive_that_is_opened_lazily_is_read_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its large sections are read when they are needed."""
    monkeypatch.setattr(tail, "OPENING_READ", 200)
    made = make(plain_queues())
    source = MemorySource(made.data)
    archive = open_lazily(source)
    assert len(source.reads) == 1
    assert archive.memory_bytes < 200
    queue = made.queues[3]
    assert read(archive, queue, 7) == queue.records[7]
    assert archive.manifest == made.manifest
    assert list(archive_problems(archive)) == []


# -- keys


@pytest.mark.parametrize(("level", "by_id", "by_key"), [("off", 0, 0), ("unique", 1, 0),
                                                        ("all", 1, 1)])  # fmt: skip
def test_keys_are_found_as_the_topic_says(level: str, by_id: int, by_key: int) -> None:
    topic = ArchivedTopic(name="T", id=1, key_index=level)
    made = make([Queue(topic, 0, {0: record(0, properties=keyed("ID", "key"))})])
    archive, _ = made.open()
    assert len(find(archive, *key_hash_range(b"ID"))) == by_id
    assert len(find(archive, *key_hash_range(b"key"))) == by_key
    assert list(archive_problems(archive)) == []


def test_keys_are_found_as_the_topic_said_when_the_message_was_put() -> None:
    topic = ArchivedTopic(
        name="T", id=1, key_index="off", key_history=((0, "all"), (1000, "unique"), (2000, "off"))
    )
    records = {
        n: record(position, offset=n, properties=keyed(f"ID{n}", "key"))
        for n, position in enumerate((0, 1000, 2000))
    }
    archive, _ = make([Queue(topic, 0, records)]).open()
    assert [find(archive, *key_hash_range(f"ID{n}".encode())) for n in range(3)] == [
        [0],
        [1000],
        [],
    ]
    assert find(archive, *key_hash_range(b"key")) == [0]


# -- what it says of itself


def test_the_manifest_says_what_is_in_it() -> None:
    queues = plain_queues(2, 2, 30)
    made = make(queues)
    archive, _ = made.open()
    records = [raw for queue in queues for raw in queue.records.values()]
    manifest = archive.manifest
    assert manifest == made.manifest
    assert manifest.store_id == ORIGIN.store_id
    assert manifest.segments == ORIGIN.segments
    assert manifest.retention_class == "week"
    assert manifest.messages == 120
    assert manifest.raw_bytes == sum(map(len, records))
    assert manifest.first_position == 1000
    assert manifest.last_position == max(map(position_of, records))
    assert manifest.blocks == archive.directory.blocks
    assert [(t.name, t.id, t.messages) for t in manifest.topics] == [
        ("topic0", 100, 60), ("topic1", 101, 60),
    ]  # fmt: skip
    assert sum(topic.raw_bytes for topic in manifest.topics) == manifest.raw_bytes


def test_fields_of_a_later_manifest_are_passed_over() -> None:
    manifest = make(plain_queues(1, 1, 3)).open()[0].manifest
    later = encode_manifest(manifest)[:-1] + b',"a_later_field":{"x":[1]}}'
    assert decode_manifest(later) == decode_manifest(encode_manifest(manifest))


def test_a_topic_is_kept_with_all_that_makes_it_again() -> None:
    topic = ArchivedTopic(
        name="T", id=9, kind="fifo", queues=3, read_queues=5, since=77, key_index="unique",
        key_history=((5, "off"), (9, "unique")), retention={"hot_for": 3600.0},
        attributes={"owner": "billing"}, compress_above=4096, compression="zstd",
        takes_delays=False,
    )  # fmt: skip
    archive, _ = make([Queue(topic, 0, {0: record(0)})]).open()
    (kept,) = archive.manifest.topics
    figures = {"messages": 0, "raw_bytes": 0, "first_stored_at": 0, "last_stored_at": 0}
    assert msgspec.structs.replace(kept, **figures) == topic


# -- what the writer refuses


def writer() -> ArchiveWriter:
    return ArchiveWriter(BytesIO(), SMALL_BLOCKS)


def one(position: int, offset: int) -> RecordBatch:
    return RecordBatch.of_records([record(position, offset=offset)])


def test_topics_and_queues_that_come_out_of_order_are_refused() -> None:
    topic, later = ArchivedTopic(name="a", id=1), ArchivedTopic(name="b", id=2)
    made = writer()
    made.add(later, 1, one(0, 0))
    with pytest.raises(CallerError, match="comes after"):
        made.add(topic, 0, one(100, 0))
    with pytest.raises(CallerError, match="comes after"):
        made.add(later, 0, one(100, 0))


def test_offsets_that_do_not_rise_are_refused() -> None:
    made = writer()
    made.add(ArchivedTopic(name="T", id=1), 0, one(0, 5))
    made.add(ArchivedTopic(name="T", id=1), 0, one(100, 5))
    with pytest.raises(CallerError, match="do not rise"):
        made.finish()


def test_two_records_of_one_position_are_refused() -> None:
    made = writer()
    made.add(ArchivedTopic(name="T", id=1), 0, one(0, 5))
    made.add(ArchivedTopic(name="T", id=1), 1, one(0, 5))
    with pytest.raises(CallerError, match="same position"):
        made.finish()


@pytest.mark.parametrize("compresses", [True, False])
def test_small_blocks_share_what_is_still_read_as_one_block(compresses: bool) -> None:
    rng = np.random.default_rng(3)
    queues = plain_queues(60, 2, 2)
    position = 0
    for offset in range(2):
        for queue in queues:
            body = b"." * 200 if compresses else rng.bytes(200)
            raw = record(position, body, topic=queue.topic.name, queue=queue.queue, offset=offset)
            queue.records[offset] = raw
            position += len(raw)
    made = make(queues, ArchiveSettings(block_bytes=8192))
    archive, _ = made.open()
    raw_bytes = [sum(map(len, group.records())) for group in archive.groups()]
    assert (max(raw_bytes) > 8192) == compresses
    for number in range(archive.directory.blocks):
        assert sum(archive.directory.extent(number)[1]) <= 8192 + 200
    for queue in queues:
        blocks = map(archive.read_block, archive.blocks(queue.topic.id, queue.queue))
        assert [raw for block in blocks for raw in block.records()] == list(queue.records.values())
    assert list(archive_problems(archive)) == []


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """An archive of small chunks, of which two are read together."""
    monkeypatch.setattr(indexes, "CHUNK", 8)
    monkeypatch.setattr(archive_reader, "_RUN_MAX", 2)
    return make(plain_queues(topics=3, queues=1, messages=30))


@pytest.fixture
def archive(made: Made) -> Archive:
    return made.open()[0]


def positions_of(made: Made, topic: str) -> list[int]:
    archive = made.open()[0]
    return sorted(
        position
        for group in archive.groups()
        for index in range(group.blocks)
        if (block := group.block(index)).topic == topic
        for position in block.positions.tolist()
    )


def test_a_key_over_many_chunks_gives_all_its_messages_of_its_topic_alone(
    made: Made, archive: Archive
) -> None:
    every = []
    for topic in ("topic0", "topic1", "topic2"):
        key = key_hash(topic.encode(), b"all")
        found = find(archive, key, key)
        assert found == positions_of(made, topic)
        assert len(found) == 30
        every += found
    assert find(archive, *key_hash_range(b"all")) == sorted(every)


def test_a_position_is_a_message_or_none(made: Made, archive: Archive) -> None:
    for position in positions_of(made, "topic1"):
        assert archive.locate(position) is not None
        assert archive.locate(position + 1) is None
        assert archive.locate(position - 1) is None
    assert archive.locate(1 << 40) is None
