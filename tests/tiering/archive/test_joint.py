"""Columns of several groups, fixed ones and properties, at one go: what each by itself gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zlib_ng.zlib_ng import crc32

from kvstore.errors import ArchiveDamaged
from kvstore.record.encode import encode_record
from kvstore.record.layout import CRC_MASK
from kvstore.record.values import StoredMessage
from tests.tiering.archive.samples import ORDINARY, TOPIC, encode, messages, read, record
from tiering.archive.block import BlockGroup, read_columns
from tiering.archive.coder import Coder
from tiering.archive.columns.header_fields import Columns, Stretches
from tiering.archive.columns.joint import decode_jointly
from tiering.archive.columns.joint_properties import decode_properties_jointly
from tiering.archive.columns.properties import decode_properties, fields_of
from tiering.archive.layout import DECODED_MAX, PartKind

BLOCKS: Final = st.lists(st.lists(messages(), min_size=1, max_size=8), min_size=1, max_size=6)


def parts(groups: Sequence[BlockGroup]) -> tuple[list[bytes], list[Stretches]]:
    """What is decoded: fixed parts, and the messages of their blocks."""
    return [group._decode(PartKind.FIXED) for group in groups], [
        group.members.stretches for group in groups
    ]


def assert_same(found: Columns, wanted: Columns) -> None:
    assert found.count == wanted.count
    assert found.is_whole is wanted.is_whole is False
    assert found.is_ordinary == wanted.is_ordinary
    assert found.has_v6 == wanted.has_v6
    for name in (
        "offset", "position", "stored_at", "born_at", "ends", "flags", "system_flags", "version",
        "reconsume_times", "prepared_position",
    ):  # fmt: skip
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist(), name
    assert found.hosts == wanted.hosts


def alone(groups: Sequence[BlockGroup]) -> list[Columns] | None:
    """What each group by itself gives; None if one is damaged."""
    try:
        return [Columns(*both) for both in zip(*parts(groups), strict=True)]
    except ArchiveDamaged:
        return None


@given(BLOCKS, st.sampled_from([0, 300, 1 << 20]))
def test_any_groups_are_decoded_together_as_they_are_alone_or_not_at_all(
    blocks: list[list[StoredMessage]], group_bytes: int
) -> None:
    coder = Coder()
    records = [[encode_record(message) for message in block] for block in blocks]
    groups = read(encode(records, coder, group_bytes=group_bytes), coder)
    found = decode_jointly(*parts(groups))
    if found is not None:
        for mine, wanted in zip(found, alone(groups) or [], strict=True):
            assert_same(mine, wanted)
    born = [group.columns.born_at for group in groups if not group.columns.is_whole]
    payloads = [
        group._decode(PartKind.PROPERTIES) for group in groups if not group.columns.is_whole
    ]
    each = decode_properties_jointly(payloads, born)
    for of_one, data, times in zip(each, payloads, born, strict=True):
        if of_one is not None:
            assert fields_of(of_one) == decode_properties(data, len(times), times, DECODED_MAX)


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
    found = decode_jointly(*parts(groups))
    assert found is not None
    for mine, wanted in zip(found, alone(groups) or [], strict=True):
        assert_same(mine, wanted)


@pytest.mark.parametrize("group_bytes", [0, 20_000])
def test_a_byte_that_changed_is_found_or_gives_what_it_gives_alone(group_bytes: int) -> None:
    payloads, stretches = parts(groups_of(group_bytes)[:3])
    for at in range(len(payloads[1])):
        for bits in (1, 0x20, 0x80, 0xFF):
            changed = bytearray(payloads[1])
            changed[at] ^= bits
            some = [payloads[0], bytes(changed), payloads[2]]
            found = decode_jointly(some, stretches)
            if found is not None:
                for mine, wanted in zip(found, map(Columns, some, stretches), strict=True):
                    assert_same(mine, wanted)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_part_that_is_cut_short_is_left_to_whoever_decodes_it_alone(which: int) -> None:
    payloads, stretches = parts(groups_of(0)[:3])
    for size in range(len(payloads[which])):
        some = [one[:size] if i == which else one for i, one in enumerate(payloads)]
        assert decode_jointly(some, stretches) is None


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


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_are_decoded_together_as_they_are_alone(name: str) -> None:
    groups = with_properties(name)
    payloads = [group._decode(PartKind.PROPERTIES) for group in groups]
    found = decode_properties_jointly(payloads, [group.columns.born_at for group in groups])
    assert (None in found) is (name in {"a name twice", "two shapes"})
    for mine, group in zip(found, groups, strict=True):
        if mine is not None:
            assert fields_of(mine) == group.properties
            assert mine.plain_names == group.property_columns().plain_names


@pytest.mark.parametrize("name", list(PROPERTIES)[:4])
def test_a_changed_byte_of_properties_is_found_or_gives_what_it_gives_alone(name: str) -> None:
    groups = with_properties(name)[:3]
    payloads = [group._decode(PartKind.PROPERTIES) for group in groups]
    born = [group.columns.born_at for group in groups]
    for at in range(len(payloads[1])):
        for bits in (1, 0x80, 0xFF):
            changed = bytearray(payloads[1])
            changed[at] ^= bits
            some = [payloads[0], bytes(changed), payloads[2]]
            found = decode_properties_jointly(some, born)
            for i, mine in enumerate(found):
                if mine is not None:
                    wanted = decode_properties(some[i], len(born[i]), born[i], DECODED_MAX)
                    assert fields_of(mine) == wanted


def test_of_groups_with_several_kinds_of_properties_those_of_a_kind_are_decoded_together() -> None:
    text, none, numbers = map(with_properties, ("any text", "none", "few, leading zeros"))
    groups = [text[0], none[0], text[1], numbers[0], none[1]]
    payloads = [group._decode(PartKind.PROPERTIES) for group in groups]
    found = decode_properties_jointly(payloads, [one.columns.born_at for one in groups])
    assert [one is None for one in found] == [False, False, False, True, False]
    for mine, group in zip(found, groups, strict=True):
        if mine is not None:
            assert fields_of(mine) == group.properties


def test_groups_have_their_columns_once_they_were_read_together() -> None:
    groups, others = groups_of(20_000), groups_of(20_000)
    read_columns(groups, properties=True)
    for group, other in zip(groups, others, strict=True):
        assert_same(group.columns, other.columns)
        assert group.property_columns().columns.keys() == other.property_columns().columns.keys()
        assert group.records() == other.records()


def test_a_damaged_group_among_others_is_told_when_it_is_asked_for() -> None:
    groups = groups_of(0)
    bad = groups[1]
    bad._data = bad._data[:20] + bytes((bad._data[20] ^ 1,)) + bad._data[21:]
    read_columns(groups)
    with pytest.raises(ArchiveDamaged, match="block 1 of archive"):
        _ = bad.columns
    assert [groups[0].columns.is_ordinary, groups[2].columns.is_ordinary] == [True, True]
