"""What an open archive says of a key, a position and a time: all of it, and nothing else."""

from __future__ import annotations

import pytest

from kvstore.record.hashes import key_hash, key_hash_range
from tests.tiering.archive.making import Made, find, make, plain_queues
from tiering.archive import archive_reader, indexes
from tiering.archive.archive_reader import Archive


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
