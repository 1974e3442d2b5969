"""The columns of a group are those of its records, and what the plain version reads."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zlib_ng.zlib_ng import crc32

from kvstore.core.columns.group_heads import decode_heads
from kvstore.core.messages import StoredMessage
from kvstore.errors import ArchiveDamaged
from kvstore.record.layout import CRC_MASK
from tests.reference import group_columns as plain
from tests.reference.encode import encode_record
from tests.tiering.archive.samples import ORDINARY, TOPIC, encode, messages, read, record
from tiering.archive.block import BlockGroup
from tiering.archive.coder import Coder
from tiering.archive.columns.integers import Column
from tiering.archive.columns.properties import decode_properties
from tiering.archive.layout import DECODED_MAX, PartKind

BLOCKS: Final = st.lists(st.lists(messages(), min_size=1, max_size=8), min_size=1, max_size=6)


def heads(group: BlockGroup, data: bytes) -> tuple[Any, Any]:
    """The results of the core and the plain version for a group's fixed part; None for damage."""
    columns = [np.array(group.members.queues, np.int64), *group.members.ranges]
    found = wanted = None
    with contextlib.suppress(ArchiveDamaged):
        numbers, ends, *rest = decode_heads(data, *columns)
        found = numbers.tolist(), ends.tolist(), *rest
    with contextlib.suppress(ArchiveDamaged):
        wanted = plain.decode_heads(data, *(column.tolist() for column in columns))
    return found, wanted


@given(BLOCKS, st.sampled_from([0, 300, 1 << 20]))
def test_columns_of_any_group_are_those_that_the_plain_version_reads(
    blocks: list[list[StoredMessage]], group_bytes: int
) -> None:
    coder = Coder()
    records = [[encode_record(message) for message in block] for block in blocks]
    for group in read(encode(records, coder, group_bytes=group_bytes), coder):
        found, wanted = heads(group, group.decoded(PartKind.FIXED))
        assert found is not None
        assert found == wanted


def in_a_log(draw: random.Random, rows: int, hosts: int, widest: int) -> list[bytes]:
    """Ordinary records of one block, a few of its offsets missing, up to `widest` bytes apart."""
    out, offset, position = [], draw.randrange(widest), draw.randrange(widest)
    for _ in range(rows):
        offset += draw.choice((1, 1, 1, 3))
        position += 200 + draw.randrange(widest)
        body = bytes(draw.randrange(50))
        stored_at = 1_700_000_000_000 + position // 50
        host = bytes((10, 0, 0, 7, 0, 0, 0, draw.randrange(hosts)))
        message = StoredMessage(
            TOPIC, 7, offset, position, 0, body, b"TAGS\x01t\x02", 0, 0,
            stored_at - draw.randrange(5), stored_at, host,
            bytes(8), 0, 0, crc32(body) & CRC_MASK,
        )  # fmt: skip
        out.append(encode_record(message))
    return out


def groups_of(group_bytes: int, hosts: int = 1, widest: int = 900) -> list[BlockGroup]:
    draw, coder = random.Random(3), Coder()
    blocks = [in_a_log(draw, draw.choice((1, 2, 60, 90)), hosts, widest) for _ in range(40)]
    return read(encode(blocks, coder, group_bytes=group_bytes), coder)


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("widest", [1, 900, 1 << 40])
@pytest.mark.parametrize("group_bytes", [0, 20_000])
def test_ordinary_groups_have_the_columns_of_their_records(
    hosts: int, widest: int, group_bytes: int
) -> None:
    for group in groups_of(group_bytes, hosts, widest):
        found, wanted = heads(group, group.decoded(PartKind.FIXED))
        assert found == wanted
        assert group.columns.is_ordinary
        each = [m for i in range(group.blocks) for m in group.block(i).messages(0, 99)]
        assert [m.offset for m in each] == group.columns.offset.tolist()
        assert [m.born_at for m in each] == group.columns.born_at.tolist()


@pytest.mark.parametrize(("group_bytes", "step"), [(0, 1), (20_000, 7)])
def test_a_byte_that_changed_is_found_or_gives_what_the_plain_version_reads(
    group_bytes: int, step: int
) -> None:
    group = groups_of(group_bytes)[1]
    payload = group.decoded(PartKind.FIXED)
    for at in range(0, len(payload), step):
        for bits in (1, 0x20, 0x80, 0xFF):
            changed = bytearray(payload)
            changed[at] ^= bits
            found, wanted = heads(group, bytes(changed))
            assert found == wanted


def test_a_fixed_part_that_is_cut_short_is_damage() -> None:
    group = groups_of(0)[1]
    payload = group.decoded(PartKind.FIXED)
    *_, behind = heads(group, payload)[0]
    for size in range(behind):
        assert heads(group, payload[:size]) == (None, None)


PROPERTIES: Final[dict[str, Callable[[int], bytes]]] = {
    "ids, numbers, the same": lambda n: ORDINARY % (n * 7919, n, 4),
    "few, leading zeros": lambda n: b"KEYS\x01o-%06d\x02TAGS\x01t%d\x02" % (n, n % 3),
    "any text": lambda n: b"note\x01%b\x02" % (b"<%d>" % n * (n % 5)),
    "none": lambda n: b"",
    "whole": lambda n: b"\x02%d" % n,
    "a name twice": lambda n: b"a\x01%d\x02a\x01%d\x02" % (n, n + 1),
    "two shapes": lambda n: b"a\x01%d\x02b\x01x\x02" % n if n % 2 else b"a\x01%d\x02" % n,
}


def with_properties(name: str, group_bytes: int = 0) -> list[BlockGroup]:
    of, coder = PROPERTIES[name], Coder()
    blocks = [
        [record(n, queue=7, properties=of(n)) for n in range(at, at + 40)]
        for at in range(0, 400, 40)
    ]
    return read(encode(blocks, coder, group_bytes=group_bytes), coder)


def fields_of(payload: bytes, born: Column) -> list[bytes] | None:
    """The properties fields of a part; None for damage."""
    try:
        return decode_properties(payload, born, DECODED_MAX).fields().values()
    except ArchiveDamaged:
        return None


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("group_bytes", [0, 20_000])
def test_properties_of_every_kind_come_back(name: str, group_bytes: int) -> None:
    found = [
        field
        for group in with_properties(name, group_bytes)
        for field in group.property_columns().fields().values()
    ]
    assert found == list(map(PROPERTIES[name], range(400)))


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_changed_byte_of_properties_is_found_or_gives_as_many(name: str) -> None:
    group = with_properties(name)[1]
    payload, born = group.decoded(PartKind.PROPERTIES), group.columns.born_at
    for at in range(len(payload)):
        for bits in (1, 0x80, 0xFF):
            changed = bytearray(payload)
            changed[at] ^= bits
            found = fields_of(bytes(changed), born)
            assert found is None or len(found) == group.count
        assert fields_of(payload[:at], born) is None


def test_groups_that_hold_whole_records_have_these_alone() -> None:
    coder = Coder()
    blocks = [[record(n, queue=2) for n in range(at, at + 9)] for at in range(0, 45, 9)]
    groups = read(encode(blocks, coder), coder)
    for group in groups:
        found, wanted = heads(group, group.decoded(PartKind.FIXED))
        assert found == wanted
        assert group.columns.is_whole
    assert [group.records().values() for group in groups] == blocks
