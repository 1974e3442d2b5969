"""Properties fields come back byte for byte; bad bytes are damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.columns.text_forms import decode_texts
from kvstore.errors import ArchiveDamaged
from tests.tiering.archive.samples import ORDINARY, PROPERTY_FIELDS
from tiering.archive.columns.integers import bounds_of, encode_column, write_bytes
from tiering.archive.columns.properties import (
    SplitProperties,
    decode_properties,
    encode_properties,
    split_properties,
)
from tiering.archive.columns.text_columns import Joined

LIMIT = 1 << 20


def split(fields: list[bytes]) -> SplitProperties:
    ends = bounds_of(list(map(len, fields)))
    return split_properties(b"".join(fields), ends[:-1], ends[1:])


STRETCH = st.lists(PROPERTY_FIELDS, min_size=1, max_size=30)


def roundtrip(stretches: list[list[bytes]], born_at: int = 10**12) -> list[list[bytes]]:
    fields = [field for stretch in stretches for field in stretch]
    bounds = bounds_of([len(stretch) for stretch in stretches])
    times = np.arange(len(fields), dtype=np.int64) + born_at
    payloads = encode_properties(split(fields), bounds, times)
    born = np.split(times, bounds[1:-1])
    return [
        decode_properties(payload, mine, LIMIT).fields().values()
        for payload, mine in zip(payloads, born, strict=True)
    ]


@given(st.lists(STRETCH, min_size=1, max_size=4), st.integers(-(2**63), 2**62))
def test_any_properties_fields_come_back(stretches: list[list[bytes]], born_at: int) -> None:
    assert roundtrip(stretches, born_at) == stretches


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b"A\x01b",
        b"A\x01b\x02",
        b"A\x01b\x02\x02",
        b"A\x01b\x02A\x01c\x02",
        b"\x01\x02",
        b"A\x01\x01\x02",
        b"no separators",
        b"\x02",
        b"N\x01007\x02",
        b"N\x0100\x02",
        b"N\x01" + b"9" * 30 + b"\x02",
        b"I\x01" + b"ab" * 16 + b"\x02",
        b"I\x01" + b"A " * 16 + b"\x02",
        b"%d\x01%b\x02",
        bytes(range(256)),
    ],
)
@pytest.mark.parametrize("among", [[], [ORDINARY % (1, 2, 3)], [b"", b"A\x01zz\x02"]])
def test_odd_fields_come_back_alone_and_among_others(field: bytes, among: list[bytes]) -> None:
    stretches = [[*among, field, *among, field], [field]]
    assert roundtrip(stretches) == stretches


def test_fields_that_only_together_look_alike_come_back() -> None:
    # As many pieces as two of one shape would have, cut in other places.
    stretches = [[b"A\x01b\x02", b"A\x01b\x02A\x01c\x02", b"xx\x01"]]
    assert roundtrip(stretches) == stretches


def test_a_field_whose_end_is_as_long_as_the_names_that_it_lacks_comes_back() -> None:
    stretches = [[b"A\x01b\x02KEY\x01c\x02", b"A\x01b\x02\x02...."]]
    assert roundtrip(stretches) == stretches


def test_unique_ids_keys_and_tags_take_a_few_bytes() -> None:
    fields = [ORDINARY % (0x7F00_0001_1234 << 80 | i, i, i % 3) for i in range(500)]
    (payload,) = encode_properties(split(fields), bounds_of([500]), np.zeros(500, np.int64))
    assert len(payload) < 500


@given(st.binary(max_size=80), st.integers(1, 20))
def test_any_bytes_are_properties_or_damage(data: bytes, count: int) -> None:
    try:
        found = decode_properties(b"\x01" + data, np.zeros(count, np.int64), LIMIT)
    except ArchiveDamaged:
        return
    assert len(found.fields().values()) == count


def test_fields_above_the_limit_are_damage_before_they_are_made() -> None:
    (payload,) = encode_properties(
        split([b"A\x01" + b"x" * 1000 + b"\x02"] * 1000),
        bounds_of([1000]),
        np.zeros(1000, np.int64),
    )
    with pytest.raises(ArchiveDamaged, match="more than"):
        decode_properties(payload, np.zeros(1000, np.int64), 100_000)


BITS = st.integers(-(1 << 63), (1 << 63) - 1)
FEW = st.lists(st.one_of(st.integers(0, 1200), BITS), min_size=1, max_size=20)


@given(st.binary(max_size=5), st.integers(0, 18), FEW)
def test_numbers_are_written_with_as_many_digits_as_are_said(
    prefix: bytes, width: int, numbers: list[int]
) -> None:
    column = encode_column(np.array(numbers, np.int64))
    data = b"\2" + write_bytes(prefix) + bytes((width,)) + column
    found, bounds, at, _ = decode_texts(data, 0, np.zeros(len(numbers), np.int64), LIMIT)
    assert at == len(data)
    assert Joined(found, bounds).values() == [
        prefix + (str(n).zfill(width) if width else str(n)).encode() for n in numbers
    ]
