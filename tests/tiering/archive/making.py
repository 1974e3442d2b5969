"""Archives in memory, of messages made up or drawn, and what counts their reads."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Final, NamedTuple

from hypothesis import strategies as st

from kvstore.core.messages import StoredMessage
from kvstore.record.properties import encode_properties
from tests.record.strategies import stored_messages
from tests.reference.encode import encode_record
from tests.rocketmq.logs import NOW, record
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.archive.writer import ArchiveOrigin, ArchiveSettings, ArchiveWriter
from tiering.keys.crypto import KeyProvider

SMALL_BLOCKS: Final = ArchiveSettings(block_bytes=2048)
ORIGIN: Final = ArchiveOrigin(
    store_id="0123456789abcdef" * 2, segments=((0, 1 << 20),), retention_class="week"
)
STEP: Final = 1 << 16
"""Positions between drawn records, so that none overlap."""


class MemorySource:
    """An archive's bytes; notes what was read of them."""

    def __init__(self, data: bytes, name: str = "test.kvma") -> None:
        self.data = data
        self.name = name
        self.size = len(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, size: int) -> bytes:
        assert 0 <= offset <= offset + size <= self.size, "a read beyond the archive's end"
        self.reads.append((offset, size))
        return self.data[offset : offset + size]


class Queue(NamedTuple):
    """A queue's records, by offset."""

    topic: ArchivedTopic
    queue: int
    records: dict[int, bytes]


class Made(NamedTuple):
    """An archive, and what was put into it."""

    data: bytes
    manifest: Manifest
    queues: list[Queue]

    def open(self, keys: KeyProvider | None = None) -> tuple[Archive, MemorySource]:
        source = MemorySource(self.data)
        archive = Archive.open(source, keys=keys)
        return archive, source


def make(
    queues: Iterable[Queue], settings: ArchiveSettings = SMALL_BLOCKS, at_once: int = 1 << 30
) -> Made:
    """The archive of some queues, given to the writer `at_once` records at a time."""
    queues = list(queues)
    sink = BytesIO()
    writer = ArchiveWriter(sink, settings, ORIGIN)
    for queue in queues:
        records = list(queue.records.values())
        for at in range(0, len(records), at_once):
            some = records[at : at + at_once]
            writer.add(queue.topic, queue.queue, RecordBatch.of_records(some))
    manifest = writer.finish()
    return Made(sink.getvalue(), manifest, queues)


def find(archive: Archive, low: int, high: int) -> list[int]:
    """The positions, rising, of the messages that may have a key of such a hash."""
    return [found.position for found in archive.find(low, high)][::-1]


def keyed(unique: str, *keys: str) -> bytes:
    """A properties field with a unique id and keys."""
    return encode_properties({"UNIQ_KEY": unique, "KEYS": " ".join(keys)} if keys else
                             {"UNIQ_KEY": unique})  # fmt: skip


def plain_queues(
    topics: int = 3, queues: int = 2, messages: int = 40, body: int = 60
) -> list[Queue]:
    """Queues of messages that came in turn, each with a unique id, an own key and a common one."""
    names = sorted(f"topic{number}" for number in range(topics))
    made = [
        Queue(ArchivedTopic(name=name, id=100 + number, queues=queues), queue, {})
        for number, name in enumerate(names)
        for queue in range(queues)
    ]
    position = 1000
    for offset in range(messages):
        for queue in made:
            name = f"{queue.topic.name}-{queue.queue}-{offset}"
            text = f"{{'order': '{name}', 'state': 'paid'}}".encode()
            raw = record(
                position, text.ljust(body, b"."), topic=queue.topic.name, queue=queue.queue,
                offset=offset, stored_at=NOW + position, properties=keyed(f"ID{name}", name, "all"),
            )  # fmt: skip
            queue.records[offset] = raw
            position += len(raw)
    return made


@st.composite
def drawn_queues(draw: st.DrawFn) -> list[Queue]:
    """Any messages of any topics, with gaps in their offsets, every field at random."""
    names = sorted(draw(st.sets(st.text(max_size=20), max_size=3)))
    ids = draw(st.lists(st.integers(1, (1 << 32) - 1), min_size=4, max_size=4, unique=True))
    shapes = [
        (name, queue, draw(st.integers(1, 6)))
        for name in names
        for queue in sorted(draw(st.sets(st.integers(0, 1 << 31), min_size=1, max_size=2)))
    ]
    total = sum(count for _, _, count in shapes)
    positions = iter(draw(st.permutations([number * STEP for number in range(total)])))
    rises = draw(st.booleans())
    made = []
    for name, queue, count in shapes:
        offset = draw(st.integers(0, 1 << 40))
        mine = [next(positions) for _ in range(count)]
        topic = ArchivedTopic(name=name, id=ids[names.index(name)])
        found = Queue(topic, queue, {})
        for position in sorted(mine) if rises else mine:
            message = draw(stored_messages())
            version = 2 if len(name.encode()) > 127 else message.version
            filler = bytes(draw(st.sampled_from([0, 0, 0, 3000])))
            message = message.__replace__(
                topic=name, queue=queue, offset=offset, position=position,
                version=version, raw_properties=draw(PROPERTIES),
            )  # fmt: skip
            found.records[offset] = _with_body(message, message.body + filler)
            offset += draw(st.sampled_from([1, 1, 1, 2, 1000]))
        made.append(found)
    return made


PROPERTIES: Final = st.one_of(
    st.binary(max_size=60),
    st.builds(
        keyed, st.text("0123456789ABCDEF", min_size=32, max_size=32),
        st.sampled_from(["a", "b"]), st.text("xyz", min_size=1, max_size=3),
    ),
)  # fmt: skip


def _with_body(message: StoredMessage, body: bytes) -> bytes:
    from zlib_ng.zlib_ng import crc32

    message = message.__replace__(body=body, body_crc=crc32(body) & 0x7FFF_FFFF)
    return encode_record(message)
