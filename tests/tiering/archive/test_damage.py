"""Damaged, foreign and newer archives: a typed error that names them, or no consequence."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import google_crc32c
import pytest

from kvstore.errors import (
    ArchiveDamaged,
    FormatTooNew,
    FormatTooOld,
    KeyDestroyed,
    KeyMissing,
    StoreError,
)
from kvstore.record.hashes import key_hash_range
from tests.tiering.archive.making import Made, MemorySource, find, make, plain_queues
from tiering.archive.archive_check import archive_problems
from tiering.archive.archive_reader import Archive
from tiering.archive.layout import (
    FORMAT_VERSION,
    HEADER_SIZE,
    TRAILER,
    TRAILER_COVERED,
    TRAILER_SIZE,
)
from tiering.archive.writer import ArchiveSettings
from tiering.keys.crypto import TopicKey

SMALL = ArchiveSettings(block_bytes=700)


@pytest.fixture(scope="module")
def made() -> Made:
    return make(plain_queues(topics=2, queues=1, messages=6), SMALL)


def all_of(made: Made, data: bytes, seen: Callable[[StoreError], None]) -> None:
    """Read everything in every way; whatever comes must be as it was written."""
    right = {
        (queue.topic.id, queue.queue, offset): raw
        for queue in made.queues
        for offset, raw in queue.records.items()
    }
    by_position = {int.from_bytes(raw[28:36], "big"): raw for raw in right.values()}
    try:
        archive = Archive.open(MemorySource(data))
    except StoreError as error:
        seen(error)
        return
    blocks = {}
    for (topic_id, queue, offset), raw in right.items():
        try:
            number = archive.block_at(topic_id, queue, offset)
            assert number is not None
            if number not in blocks:
                block = archive.read_block(number)
                blocks[number] = block.records(), block.messages(0, block.count)
            row = offset - archive.directory.first_offset(number)
            assert blocks[number][0][row] == raw
            assert blocks[number][1][row].body in raw
        except StoreError as error:
            seen(error)
    for position, raw in list(by_position.items())[::3]:
        try:
            place = archive.locate(position)
            assert place is not None
            assert place[0] not in blocks or blocks[place[0]][0][place[1]] == raw
        except StoreError as error:
            seen(error)
    try:
        assert find(archive, *key_hash_range(b"all")) == sorted(by_position)
        assert archive.manifest == made.manifest
    except StoreError as error:
        seen(error)


def test_any_byte_that_changes_is_found_or_of_no_consequence(made: Made) -> None:
    for at in range(len(made.data)):
        flip = (0x01, 0x80, 0xFF)[at % 3]
        data = made.data[:at] + bytes([made.data[at] ^ flip]) + made.data[at + 1 :]
        errors: list[StoreError] = []
        all_of(made, data, errors.append)
        assert errors or at < HEADER_SIZE, f"byte {at}"
        for error in errors:
            assert isinstance(error, ArchiveDamaged), f"byte {at}"
            assert error.archive == "test.kvma"
            assert "test.kvma" in str(error)


def test_verify_finds_any_byte_that_changes(made: Made) -> None:
    for at in range(0, len(made.data), 7):
        data = made.data[:at] + bytes([made.data[at] ^ 4]) + made.data[at + 1 :]
        try:
            archive = Archive.open(MemorySource(data))
        except ArchiveDamaged:
            continue
        assert list(archive_problems(archive)), f"byte {at}"


def test_a_damaged_group_costs_its_own_messages_only(made: Made) -> None:
    archive, _ = made.open()
    at, sizes, members = archive.directory.group(1)
    theirs = range(members.first, members.first + len(members.counts))
    assert 1 in theirs
    assert set(map(archive.directory.queue_of, theirs)) == {archive.directory.queue_of(1)}
    assert len(theirs) < archive.directory.blocks
    data = bytearray(made.data)
    data[at + sum(sizes) // 2] ^= 1
    damaged = Archive.open(MemorySource(bytes(data)))
    for number in range(damaged.directory.blocks):
        if number in theirs:
            with pytest.raises(ArchiveDamaged) as caught:
                damaged.read_block(number).records()
            assert caught.value.archive == "test.kvma"
            # They are of one queue.
            last = damaged.directory.last_offset(theirs[-1])
            assert caught.value.next_offset == last + 1
        else:
            assert damaged.read_block(number).records() == archive.read_block(number).records()
    assert {problem.block for problem in archive_problems(damaged)} <= set(theirs)
    assert list(archive_problems(damaged))


def test_a_damaged_index_costs_no_message(made: Made) -> None:
    archive, _ = made.open()
    at, sizes = archive.directory.extent(archive.directory.blocks - 1)
    data = bytearray(made.data)
    data[at + sum(sizes) + 5] ^= 1
    damaged = Archive.open(MemorySource(bytes(data)))
    for number in range(archive.directory.blocks):
        assert damaged.read_block(number).records() == archive.read_block(number).records()
    with pytest.raises(ArchiveDamaged, match=r"test\.kvma"):
        find(damaged, *key_hash_range(b"all"))


def test_an_archive_cut_anywhere_is_damaged(made: Made) -> None:
    for size in range(0, len(made.data), 3):
        with pytest.raises(ArchiveDamaged, match=r"test\.kvma"):
            Archive.open(MemorySource(made.data[:size]))


@pytest.mark.parametrize("data", [b"", b"no archive", bytes(5000), b"\xff" * 70_000, b"PK" * 999])
def test_what_is_no_archive_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ArchiveDamaged, match=r"test\.kvma.*no archive"):
        Archive.open(MemorySource(data))


def with_trailer(data: bytes, **changes: int) -> bytes:
    footer, size, version, zero, _, magic = TRAILER.unpack(data[-TRAILER_SIZE:])
    fields = {"footer": footer, "size": size, "version": version} | changes
    end = TRAILER.pack(fields["footer"], fields["size"], fields["version"], zero, 0, magic)
    crc = google_crc32c.value(end[:TRAILER_COVERED])
    return b"".join(
        (data[:-TRAILER_SIZE], end[:TRAILER_COVERED], struct.pack(">I", crc), bytes(magic))
    )


def test_an_archive_of_a_newer_version_is_said_to_be_one(made: Made) -> None:
    with pytest.raises(FormatTooNew, match=r"test\.kvma") as caught:
        Archive.open(MemorySource(with_trailer(made.data, version=FORMAT_VERSION + 1)))
    assert (caught.value.found, caught.value.supported) == (FORMAT_VERSION + 1, FORMAT_VERSION)


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION))
def test_an_archive_from_before_1_0_is_said_to_be_one(made: Made, version: int) -> None:
    with pytest.raises(FormatTooOld, match=rf"test\.kvma.*format {version}, from") as caught:
        Archive.open(MemorySource(with_trailer(made.data, version=version)))
    assert (caught.value.found, caught.value.supported) == (version, FORMAT_VERSION)
    assert caught.value.archive == "test.kvma"


@pytest.mark.parametrize("size", [0, 30, 1 << 20, (1 << 64) - 1])
def test_sizes_that_can_not_be_allocate_nothing(made: Made, size: int) -> None:
    tracemalloc.start()
    try:
        for data in (with_trailer(made.data, size=size), with_trailer(made.data, footer=1 << 31)):
            with pytest.raises(ArchiveDamaged, match=r"test\.kvma"):
                Archive.open(MemorySource(data))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_source_that_gives_too_little_is_a_damaged_archive(made: Made) -> None:
    class Short(MemorySource):
        def read(self, offset: int, size: int) -> bytes:
            return super().read(offset, size)[:-1]

    with pytest.raises(ArchiveDamaged, match="ends within"):
        Archive.open(Short(made.data))


# -- keys of topics


class Keys:
    """Keys of some topics, some of them gone."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.gone: set[str] = set()

    def key_for_writing(self, topic: str) -> TopicKey | None:
        return self.key_for_reading(topic, f"key-{topic}") if topic in self.topics else None

    def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
        assert key_id == f"key-{topic}"
        if topic in self.gone:
            raise KeyDestroyed(f"the key of {topic!r} is gone", topic)
        return TopicKey(key_id, topic.encode().ljust(32, b"."))


def test_a_topic_whose_key_is_gone_is_gone_and_all_else_stays_readable() -> None:
    keys = Keys("topic1")
    made = make(plain_queues(3, 1, 9), ArchiveSettings(block_bytes=700, keys=keys))
    assert b"topic1-0-5" not in made.data
    assert [topic.key_id for topic in made.manifest.topics] == [None, "key-topic1", None]
    archive, _ = made.open(keys)
    assert list(archive_problems(archive)) == []
    for queue in made.queues:
        blocks = archive.blocks(queue.topic.id, 0)
        found = [raw for block in map(archive.read_block, blocks) for raw in block.records()]
        assert found == list(queue.records.values())
    keys.gone.add("topic1")
    for opened in (made.open(keys)[0], made.open()[0]):
        for queue in made.queues:
            number = opened.blocks(queue.topic.id, 0)[0]
            if queue.topic.name == "topic1":
                with pytest.raises((KeyMissing, KeyDestroyed)) as caught:
                    opened.read_block(number)
                assert getattr(caught.value, "topic", "") == "topic1"
            else:
                assert opened.read_block(number).record(0) == queue.records[0]
        assert len(find(opened, *key_hash_range(b"all"))) == 27
        assert list(archive_problems(opened)) == []


def test_the_wrong_key_is_damage_and_no_message() -> None:
    made = make(plain_queues(1, 1, 3), ArchiveSettings(keys=Keys("topic0")))

    class Wrong(Keys):
        def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
            return TopicKey(key_id, b"x" * 32)

    archive, _ = made.open(Wrong("topic0"))
    with pytest.raises(ArchiveDamaged):
        archive.read_block(0).records()
