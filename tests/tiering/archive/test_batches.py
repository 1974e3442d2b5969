"""Groups that are decoded together, fixed columns and properties, give the same as each alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import StoredMessage
from kvstore.errors import ArchiveDamaged
from kvstore.record.encode import encode_record
from kvstore.record.layout import CRC_MASK
from tests.tiering.archive.samples import ORDINARY, TOPIC, encode, messages, read, record
from tiering.archive.block import BlockGroup, read_columns
from tiering.archive.coder import Coder
from tiering.archive.columns.header_codec import decode_headers
from tiering.archive.columns.header_fields import HeaderColumns, OffsetRanges
from tiering.archive.columns.integers import Column
from tiering.archive.columns.properties import (
    PropertyColumns,
    decode_properties,
    shapes_part,
)
from tiering.archive.layout import PartKind

BLOCKS: Final = st.lists(st.lists(messages(), min_size=1, max_size=8), min_size=1, max_size=6)


def parts(groups: Sequence[BlockGroup]) -> tuple[list[bytes], list[OffsetRanges]]:
    """The fixed parts of groups, and the offsets of their blocks."""
    return [group._decode(PartKind.FIXED) for group in groups], [
        group.members.ranges for group in groups
    ]


def together(
    payloads: Sequence[bytes], ranges: Sequence[OffsetRanges]
) -> list[HeaderColumns] | None:
    """The columns of a batch; None if it can't be decoded as one."""
    try:
        return decode_headers(payloads, ranges)
    except ArchiveDamaged:
        return None


def properties_together(
    payloads: Sequence[bytes], born: Sequence[Column]
) -> list[PropertyColumns] | None:
    """The properties of a batch; None if it can't be decoded as one."""
    try:
        return decode_properties(payloads, born)
    except ArchiveDamaged:
        return None


def fields_alone(payload: bytes, born: Column) -> list[bytes]:
    """The properties fields of one group."""
    return decode_properties([payload], [born])[0].fields().values()


def assert_same(found: HeaderColumns, wanted: HeaderColumns) -> None:
    assert found.count == wanted.count
    assert found.is_whole == wanted.is_whole
    for name in ("offset", "position", "stored_at", "ends"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name
    if wanted.is_whole:
        return
    assert found.is_ordinary == wanted.is_ordinary
    assert found.has_v6 == wanted.has_v6
    for name in (
        "born_at", "flags", "system_flags", "version", "reconsume_times", "prepared_position",
    ):  # fmt: skip
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name
    for mine, host in zip(found.host_numbers, wanted.host_numbers, strict=True):
        assert mine.tolist() == host.tolist()
    if wanted.has_v6:
        assert found._born_more == wanted._born_more
        assert found._store_more == wanted._store_more
    crcs = found.body_crc, wanted.body_crc
    assert [None if one is None else one.tolist() for one in crcs] == [
        None if wanted.body_crc is None else wanted.body_crc.tolist()
    ] * 2


def alone(groups: Sequence[BlockGroup]) -> list[HeaderColumns]:
    """The columns that each group by itself gives."""
    return [decode_headers([a], [b])[0] for a, b in zip(*parts(groups), strict=True)]


@given(BLOCKS, st.sampled_from([0, 300, 1 << 20]))
def test_any_groups_are_decoded_together_as_they_are_alone_or_not_at_all(
    blocks: list[list[StoredMessage]], group_bytes: int
) -> None:
    coder = Coder()
    records = [[encode_record(message) for message in block] for block in blocks]
    groups = read(encode(records, coder, group_bytes=group_bytes), coder)
    found = together(*parts(groups))
    if found is not None:
        for mine, wanted in zip(found, alone(groups), strict=True):
            assert_same(mine, wanted)
    alike: dict[bytes, list[tuple[bytes, Column]]] = {}
    for group in groups:
        if not group.columns.is_whole:
            payload = group._decode(PartKind.PROPERTIES)
            shapes = shapes_part(payload, group.count)
            alike.setdefault(shapes, []).append((payload, group.columns.born_at))
    for some in alike.values():
        each = properties_together(*map(list, zip(*some, strict=True)))
        for of_one, (payload, times) in zip(each or [], some, strict=each is not None):
            assert of_one.fields().values() == fields_alone(payload, times)


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
def test_ordinary_groups_are_decoded_together(hosts: int, widest: int, group_bytes: int) -> None:
    groups = groups_of(group_bytes, hosts, widest)
    found = decode_headers(*parts(groups))
    for mine, wanted in zip(found, alone(groups), strict=True):
        assert_same(mine, wanted)


@pytest.mark.parametrize(("group_bytes", "step"), [(0, 1), (20_000, 7)])
def test_a_byte_that_changed_is_found_or_gives_what_it_gives_alone(
    group_bytes: int, step: int
) -> None:
    payloads, ranges = parts(groups_of(group_bytes)[:3])
    for at in range(0, len(payloads[1]), step):
        for bits in (1, 0x20, 0x80, 0xFF):
            changed = bytearray(payloads[1])
            changed[at] ^= bits
            some = [payloads[0], bytes(changed), payloads[2]]
            found = together(some, ranges)
            for i, mine in enumerate(found or []):
                assert_same(mine, decode_headers([some[i]], [ranges[i]])[0])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_part_that_is_cut_short_is_damage_alone_and_among_others(which: int) -> None:
    payloads, ranges = parts(groups_of(0)[:3])
    for size in range(len(payloads[which])):
        some = [one[:size] if i == which else one for i, one in enumerate(payloads)]
        assert together(some, ranges) is None
        assert together([some[which]], [ranges[which]]) is None


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


def properties_of(groups: Sequence[BlockGroup]) -> tuple[list[bytes], list[Column]]:
    """The properties parts of groups, and when their records were born."""
    return [group._decode(PartKind.PROPERTIES) for group in groups], [
        group.columns.born_at for group in groups
    ]


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_are_decoded_together_as_they_are_alone(name: str) -> None:
    groups = with_properties(name)
    payloads, born = properties_of(groups)
    assert len({shapes_part(payload, 40) for payload in payloads}) == 1
    for mine, group in zip(decode_properties(payloads, born), groups, strict=True):
        assert mine.fields().values() == group.property_columns().fields().values()
        assert mine.plain_names == group.property_columns().plain_names


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_changed_byte_of_properties_is_found_or_gives_what_it_gives_alone(name: str) -> None:
    payloads, born = properties_of(with_properties(name)[:3])
    shapes = len(shapes_part(payloads[1], 40))
    for at in range(shapes, len(payloads[1])):
        for bits in (1, 0x80, 0xFF):
            changed = bytearray(payloads[1])
            changed[at] ^= bits
            some = [payloads[0], bytes(changed), payloads[2]]
            for i, mine in enumerate(properties_together(some, born) or []):
                assert mine.fields().values() == fields_alone(some[i], born[i])


def test_groups_with_several_kinds_of_properties_have_them_once_they_were_read_together() -> None:
    text, none, numbers = map(with_properties, ("any text", "none", "few, leading zeros"))
    groups = [text[0], none[0], text[1], numbers[0], none[1]]
    wanted = [group.property_columns().fields().values() for group in groups]
    read_columns(groups, properties=True)
    assert [group._property_columns is None for group in groups] == [False] * 5
    assert [group.property_columns().fields().values() for group in groups] == wanted


def test_groups_that_hold_whole_records_are_decoded_together() -> None:
    coder = Coder()
    blocks = [[record(n, queue=2) for n in range(at, at + 9)] for at in range(0, 45, 9)]
    groups = read(encode(blocks, coder), coder)
    for mine, wanted in zip(decode_headers(*parts(groups)), alone(groups), strict=True):
        assert mine.is_whole
        assert_same(mine, wanted)
    read_columns(groups, properties=True)
    assert [group.records().values() for group in groups] == blocks


def test_groups_have_their_columns_once_they_were_read_together() -> None:
    groups, others = groups_of(20_000), groups_of(20_000)
    read_columns(groups, properties=True)
    for group, other in zip(groups, others, strict=True):
        assert_same(group.columns, other.columns)
        assert group.property_columns().columns.keys() == other.property_columns().columns.keys()
        assert group.records().values() == other.records().values()


def test_a_damaged_group_among_others_is_told_when_it_is_asked_for() -> None:
    groups = groups_of(0)
    bad = groups[1]
    bad._data = bad._data[:20] + bytes((bad._data[20] ^ 1,)) + bad._data[21:]
    read_columns(groups)
    with pytest.raises(ArchiveDamaged, match="block 1 of archive"):
        _ = bad.columns
    assert [groups[0].columns.is_ordinary, groups[2].columns.is_ordinary] == [True, True]
