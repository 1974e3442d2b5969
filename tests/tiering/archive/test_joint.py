"""Fixed columns of several groups at one go: they are what each group by itself gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zlib_ng.zlib_ng import crc32

from kvstore.errors import ArchiveDamaged
from kvstore.record.encode import encode_record
from kvstore.record.layout import CRC_MASK
from kvstore.record.values import StoredMessage
from tests.tiering.archive.samples import TOPIC, encode, messages, read
from tiering.archive.block import BlockGroup, read_columns
from tiering.archive.coder import Coder
from tiering.archive.columns import Columns, Stretches
from tiering.archive.joint import decode_jointly
from tiering.archive.layout import PartKind

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


def test_groups_have_their_columns_once_they_were_read_together() -> None:
    groups, others = groups_of(20_000), groups_of(20_000)
    read_columns(groups)
    for group, other in zip(groups, others, strict=True):
        assert_same(group.columns, other.columns)
        assert group.records() == other.records()


def test_a_damaged_group_among_others_is_told_when_it_is_asked_for() -> None:
    groups = groups_of(0)
    bad = groups[1]
    bad._data = bad._data[:20] + bytes((bad._data[20] ^ 1,)) + bad._data[21:]
    read_columns(groups)
    with pytest.raises(ArchiveDamaged, match="block 1 of archive"):
        _ = bad.columns
    assert [groups[0].columns.is_ordinary, groups[2].columns.is_ordinary] == [True, True]
