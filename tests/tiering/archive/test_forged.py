"""One forged archive for each rule of the checker, and odd records that break none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import google_crc32c
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.names import PREPARED
from kvstore.errors import ArchiveDamaged
from kvstore.record.key_filter import FilterBuilder
from tests.rocketmq.logs import NOW, record
from tests.support import inside_tiering
from tests.tiering.archive.making import MemorySource, Queue, keyed, make, plain_queues
from tests.tiering.keys.test_crypto import SECRET
from tiering.archive import directory, external_sort, indexes, manifest, writer
from tiering.archive.archive_check import archive_problems
from tiering.archive.archive_reader import Archive
from tiering.archive.external_sort import ExternalSort
from tiering.archive.layout import CRC, FOOTER_ROW, NO_QUEUE, PART_HEAD, Section
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.archive.tail_columns import ArchiveColumns
from tiering.archive.writer import ArchiveSettings, temporary
from tiering.keys.crypto import TopicKey

Patch = pytest.MonkeyPatch
GROUPED = ArchiveSettings(block_bytes=16 << 10)


class Secret:
    """A key for every topic."""

    def key_for_writing(self, topic: str) -> TopicKey:
        return TopicKey("a", SECRET)

    def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
        return TopicKey("a", SECRET)


class Rule(NamedTuple):
    """How an archive is forged, its error, and the messages in it."""

    name: str
    forge: Callable[[Patch], None]
    told: str
    queues: Callable[[], list[Queue]] = lambda: plain_queues(topics=2, queues=1, messages=30)
    settings: ArchiveSettings = GROUPED
    is_read: bool = True
    """Whether the check has the keys."""


def said(**changed: Callable[[Manifest], Any]) -> Callable[[Patch], None]:
    """The manifest says something else."""

    def forge(patch: Patch) -> None:
        def encoded(one: Manifest) -> bytes:
            facts = {name: change(one) for name, change in changed.items()}
            return manifest.encode_manifest(msgspec.structs.replace(one, **facts))

        patch.setattr(writer, "encode_manifest", encoded)

    return forge


def row_says(column: int, by: int = 1) -> Callable[[Patch], None]:
    """The directory says more, or less, of its last block."""

    def forge(patch: Patch) -> None:
        def encoded(ids: Sequence[int], rows: Sequence[Any], groups: Sequence[Any]) -> bytes:
            forged = [np.array(one) for one in rows]
            forged[column][-1] += by
            return directory.encode_directory(ids, forged, groups)

        patch.setattr(writer, "encode_directory", encoded)

    return forge


def group_says(column: int) -> Callable[[Patch], None]:
    """The directory says that a group's part takes more when decoded."""

    def forge(patch: Patch) -> None:
        def encoded(ids: Sequence[int], rows: Sequence[Any], groups: Sequence[Any]) -> bytes:
            forged = [np.array(one) for one in groups]
            forged[column][-1] += 1
            return directory.encode_directory(ids, rows, forged)

        patch.setattr(writer, "encode_directory", encoded)

    return forge


def placed(change: Callable[[Any, Any], None]) -> Callable[[Patch], None]:
    """The position index says something else; `change` is given positions and messages."""

    def forge(patch: Patch) -> None:
        def encoded(placed: Any, starts: Any) -> Iterator[tuple[int, bytes]]:
            rising, order = map(np.concatenate, zip(*placed, strict=True))
            change(rising, order)
            return encode([(rising, order)], starts)

        encode = indexes.encode_position_chunks
        patch.setattr(writer, "encode_position_chunks", encoded)

    return forge


def swapped(_: Any, order: Any) -> None:
    order[[3, 4]] = order[[4, 3]]


def twice(_: Any, order: Any) -> None:
    order[4] = order[3]


def standing_still(rising: Any, _: Any) -> None:
    rising[4] = rising[3]


def placed_without_the_last(patch: Patch) -> None:
    chunks, fences = indexes.encode_position_chunks, indexes.encode_position_fences

    def encoded(placed: Any, starts: Any) -> Iterator[tuple[int, bytes]]:
        rising, order = map(np.concatenate, zip(*placed, strict=True))
        return chunks([(rising[:-1], order[:-1])], starts)

    patch.setattr(writer, "encode_position_chunks", encoded)
    patch.setattr(writer, "encode_position_fences", lambda n, *more: fences(n - 1, *more))


def keyed_as(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """The key index has other pairs."""

    def forge(patch: Patch) -> None:
        real = ArchiveColumns.key_pairs

        def forged(columns: ArchiveColumns) -> ExternalSort:
            pairs = ExternalSort(np.uint64, temporary)
            pairs.add(change(np.concatenate(list(real(columns).sorted())).view(np.int64)))
            return pairs

        patch.setattr(ArchiveColumns, "key_pairs", forged)

    return forge


def no_keys(patch: Patch) -> None:
    none = np.zeros(0, np.int64)
    inside_tiering.keys_of_blocks().replace(lambda *_: (none, none), patch)


def empty_filter(patch: Patch) -> None:
    add = FilterBuilder.add
    patch.setattr(FilterBuilder, "add", lambda built, digests: add(built, digests[:1]))


def out_of_order(patch: Patch) -> None:
    inside_tiering.check_of_order().replace(lambda *_: None, patch)


def not_forged(patch: Patch) -> None:
    """Leaves the archive as it is: the fault is in the records."""


def with_bad_body() -> list[Queue]:
    (queue,) = plain_queues(topics=1, queues=1, messages=5)
    raw = bytearray(queue.records[2])
    raw[raw.index(b"paid")] ^= 1
    queue.records[2] = bytes(raw)
    return [queue]


def prepared() -> list[Queue]:
    """A queue, and a record of its topic that is in none."""
    (queue,) = plain_queues(topics=1, queues=1, messages=5)
    at = 1 << 16
    raw = record(
        at, b"half", topic=queue.topic.name, queue=0, offset=0, system_flags=PREPARED,
        properties=keyed("IDhalf"),
    )  # fmt: skip
    return [queue, Queue(queue.topic, NO_QUEUE, {at: raw})]


def backwards() -> list[Queue]:
    """The second and the third message in each other's place."""
    (queue,) = plain_queues(topics=1, queues=1, messages=5)
    order = [0, 2, 1, 3, 4]
    return [queue._replace(records={offset: queue.records[offset] for offset in order})]


RULES = [
    Rule("messages", said(messages=lambda m: m.messages + 1), "the manifest says"),
    Rule("blocks", said(blocks=lambda m: m.blocks + 1), "the manifest says"),
    Rule("raw bytes", said(raw_bytes=lambda m: m.raw_bytes - 1), "the manifest says"),
    Rule("topics", said(topics=lambda m: m.topics[:1]), "topic"),
    Rule("first position", row_says(5, -1), "the directory says"),
    Rule("last position", row_says(6), "the directory says"),
    Rule("least time", row_says(7, -1), "the directory says"),
    Rule("greatest time", row_says(8), "the directory says"),
    Rule("raw bytes of a block", row_says(9), "directory"),
    Rule("fixed part", group_says(4), "when decoded"),
    Rule("properties part", group_says(5), "when decoded"),
    Rule("bodies part", group_says(6), "when decoded"),
    Rule("offsets that fall", out_of_order, "do not rise|not the one|offset", backwards),
    Rule("a body's crc", not_forged, "body", with_bad_body),
    Rule("a record of another queue", row_says(1, -5), "not the one that the columns", prepared),
    Rule("a swapped place", placed(swapped), "says wrong where the message"),
    Rule("positions", placed(standing_still), "do not rise"),
    Rule("a place lacks", placed_without_the_last, "does not have each message once"),
    Rule(
        "a place twice, of messages that can't be read", placed(twice),
        "does not have each message once", settings=ArchiveSettings(keys=Secret()), is_read=False,
    ),
    Rule("no key index", no_keys, "there is no key index"),
    Rule("filter", empty_filter, "the filter denies"),
    Rule("a key that lacks", keyed_as(lambda pairs: pairs[1:]), "lacks 1 keys"),
    Rule("a key too many", keyed_as(lambda pairs: np.append(pairs, 7 << 40)), "has 1 others"),
    Rule("a key of nobody", keyed_as(lambda pairs: pairs | 1 << 20), "a message that is not there"),
]  # fmt: skip


@pytest.mark.parametrize("rows", [external_sort.ROWS_MAX, 16], ids=["in memory", "on disk"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_forged_archive_is_found_by_its_rule(rule: Rule, rows: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(external_sort, "ROWS_MAX", rows)
    monkeypatch.setattr(external_sort, "_BLOCK_MIN", 2)
    queues = rule.queues()
    if rule.forge is not not_forged:
        whole = make(plain_queues(topics=2, queues=1, messages=30), rule.settings)
        keys = rule.settings.keys if rule.is_read else None
        assert list(archive_problems(Archive.open(MemorySource(whole.data), keys=keys))) == []
    with monkeypatch.context() as patch:
        rule.forge(patch)
        forged = make(queues, rule.settings).data
    keys = rule.settings.keys if rule.is_read else None
    try:
        found = [
            problem.reason
            for problem in archive_problems(Archive.open(MemorySource(forged), keys=keys))
        ]
    except ArchiveDamaged as error:
        found = [str(error)]
    assert any(_is_told(rule.told, reason) for reason in found), found


def _is_told(told: str, reason: str) -> bool:
    return any(one in reason for one in told.split("|"))


def resealed(part: bytes) -> bytes:
    """A part with the checksum that it ought to have."""
    data = part[: -CRC.size]
    return data + CRC.pack(google_crc32c.value(data))


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_part_that_says_it_takes_more_than_any_does_is_not_decoded(kind: int) -> None:
    made = make(plain_queues(topics=1, queues=1, messages=30))
    archive, _ = made.open()
    at, sizes, _ = archive.directory.group(0)
    at += sum(sizes[:kind])
    part = bytearray(made.data[at : at + sizes[kind]])
    codec, _ = PART_HEAD.unpack_from(part)
    PART_HEAD.pack_into(part, 0, codec, archive.directory.decoded_max[kind] + 1)
    data = made.data[:at] + resealed(bytes(part)) + made.data[at + sizes[kind] :]
    with pytest.raises(ArchiveDamaged, match="takes more than any does"):
        Archive.open(MemorySource(data)).read_block(0)


def test_a_flipped_byte_of_what_nobody_can_decrypt_is_found_by_its_checksum() -> None:
    queues = plain_queues(topics=1, queues=1, messages=30)
    made = make(queues, ArchiveSettings(keys=Secret()))
    archive = Archive.open(MemorySource(made.data))
    assert list(archive_problems(archive)) == []
    at, sizes, _ = archive.directory.group(0)
    for kind in range(3):
        data = bytearray(made.data)
        data[at + sum(sizes[:kind]) + sizes[kind] // 2] ^= 1
        (problem,) = archive_problems(Archive.open(MemorySource(bytes(data))))
        assert f"the crc32c of the part at {at + sum(sizes[:kind])} differs" in problem.reason


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("number", range(len(Section)))
def test_sections_that_overlap_or_leave_a_gap_are_damage_even_if_all_else_fits(
    number: int, by: int, monkeypatch: Patch
) -> None:
    """A section takes a byte more, or less, than lies before the next one."""

    class Forged:
        size = FOOTER_ROW.size
        written = 0

        def pack(self, kind: int, at: int, size: int, chunks: int) -> bytes:
            self.written += 1
            return FOOTER_ROW.pack(kind, at, size + by * (self.written == number + 1), chunks)

    queues = plain_queues(topics=1, queues=1, messages=30)
    with monkeypatch.context() as patch:
        footer = Forged()
        patch.setattr(writer, "FOOTER_ROW", footer)
        forged = make(queues).data
    assert footer.written == len(Section)
    with pytest.raises(ArchiveDamaged, match="one behind the other"):
        Archive.open(MemorySource(forged))


def test_a_changed_header_is_found() -> None:
    made = make(plain_queues(topics=1, queues=1, messages=5))
    data = bytearray(made.data)
    data[9] ^= 1
    (problem,) = archive_problems(Archive.open(MemorySource(bytes(data))))
    assert "the header is not what was written" in problem.reason


def test_a_key_of_a_message_that_is_not_there_is_damage_to_who_looks_for_it(
    monkeypatch: Patch,
) -> None:
    queues = plain_queues(topics=1, queues=1, messages=30)
    with monkeypatch.context() as patch:
        keyed_as(lambda pairs: pairs | 1 << 20)(patch)
        forged = make(queues, GROUPED).data
    with pytest.raises(ArchiveDamaged, match="names a message that is not there"):
        next(Archive.open(MemorySource(forged)).find(0, (1 << 40) - 1))


NAMES = st.sampled_from(
    [b"KEYS", b"UNIQ_KEY", b"TAGS", b"x", b"", b"\xff", b"KEYS ", b"aKEYS", b"UNIQ_KEY\x01"]
)
VALUES = st.lists(
    st.sampled_from(
        [b"a", b"b", b" ", b"  ", b"\x01", b"\xff\xfe", b"KEYS\x01k", b"UNIQ_KEY", b"\0"]
    ),
    max_size=4,
).map(b"".join)
PROPERTIES = st.builds(
    lambda pairs, end, begin: begin + b"\x02".join(n + b"\x01" + v for n, v in pairs) + end,
    st.lists(st.tuples(NAMES, VALUES), max_size=5),
    st.sampled_from([b"", b"\x02", b"\x02\x02"]),
    st.sampled_from([b"", b"", b"\x02"]),
)


def queue(*properties: bytes, key_index: str = "all") -> Queue:
    records, position = {}, 0
    for offset, field in enumerate(properties):
        records[offset] = record(
            position, b"body", topic="t", queue=0, offset=offset, stored_at=NOW, properties=field
        )
        position += len(records[offset])
    return Queue(ArchivedTopic(name="t", id=5, queues=1, key_index=key_index), 0, records)


@given(
    fields=st.lists(PROPERTIES, min_size=1, max_size=6), level=st.sampled_from(["all", "unique"])
)
def test_any_keys_are_in_the_index_as_the_records_have_them(
    fields: list[bytes], level: str
) -> None:
    archive, _ = make([queue(*fields, key_index=level)]).open()
    assert list(archive_problems(archive)) == []


@pytest.mark.parametrize("at", [8, -7], ids=["the sum", "the body"])
def test_a_record_that_is_damaged_itself_is_the_only_problem(at: int) -> None:
    """Its keys are in the index, since it is kept as it is; they can't be held against it."""
    odd = queue(b"KEYS\x01a\x02", b"KEYS\x01b c\x02", b"KEYS\x01d\x02")
    raw = bytearray(odd.records[1])
    raw[raw.index(b"body") if at < 0 else at] ^= 1
    odd.records[1] = bytes(raw)
    archive, _ = make([odd]).open()
    (problem,) = archive_problems(archive)
    assert "body CRC" in problem.reason
