"""The core splits, numbers and parses texts in a buffer as the plain versions do one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.core.columns.packed_texts import (
    crc_texts,
    gather,
    hash_texts,
    number_texts,
    parse_ids,
    parse_numbers,
    split_fields,
)
from tests.reference import texts as plain

PIECES = st.sampled_from(
    [b"", b"A", b"A\1", b"\1", b"\2", b"KEYS\1a b\2", b"A\1b\2", b"\xff", b"T"]
)
FIELDS = st.lists(st.one_of(st.lists(PIECES, max_size=6).map(b"".join), st.binary(max_size=9)))
IDS = st.binary(min_size=16, max_size=16).map(lambda raw: raw.hex().upper().encode())
NUMBERS = st.tuples(
    st.sampled_from([b"", b"n-", b"1x"]),
    st.sampled_from([b"", b"0", b"00"]),
    st.integers(0, 10**19),
).map(lambda parts: b"%b%b%d" % parts)
TEXTS = st.one_of(
    FIELDS,
    st.lists(IDS),
    st.lists(st.one_of(IDS, st.binary(min_size=32, max_size=32))),
    st.lists(NUMBERS),
    st.lists(st.integers(0, 10**19).map(lambda n: b"n-%d" % n)),
    st.lists(st.integers(0, 10**5).map(lambda n: b"n-%06d" % n)),
    st.lists(st.sampled_from([b"a b", b" ", b" a  bc ", b"", b"x"])),
    st.lists(st.binary(max_size=40)),
)


def laid(some: list[bytes], gap: int = 3) -> tuple[bytes, Any, Any]:
    """The texts in a buffer, from the last to the first, with other bytes between them."""
    data, starts = b"", []
    for text in reversed(some):
        data += b"\1" * gap
        starts.append(len(data))
        data += text
    starts.reverse()
    begins = np.array(starts, np.int64)
    return data, begins, begins + np.array(list(map(len, some)), np.int64)


@given(FIELDS)
@example(
    [b"A\1b\2", b"A\1b", b"A\1b\2\2", b"B\1b\2", b"AA\1b\2", b"A\1", b"", b"\2", b"no", b"A\1\1"]
)
def test_fields_are_split_as_the_plain_version_does(fields: list[bytes]) -> None:
    data, starts, stops = laid(fields)
    shapes, shape_of, names, (name_of, rows, begins, ends) = split_fields(data, starts, stops)
    found: list[list[tuple[int, bytes]]] = [[] for _ in names]
    for name, row, a, b in zip(name_of, rows, begins, ends, strict=True):
        found[name].append((row, data[a:b]))
    assert (shapes, shape_of.tolist(), names, found) == plain.split_fields(fields)


@given(TEXTS, st.integers(-1, 12))
def test_texts_are_numbered_as_the_plain_version_does(some: list[bytes], most: int) -> None:
    found = number_texts(*laid(some), most)
    wanted = plain.number_texts(some, most)
    assert (None if found is None else tuple(one.tolist() for one in found)) == wanted


@given(TEXTS)
@example([b"n1" + b"0" * 17, b"n5"])
@example([b"n1" + b"0" * 18])
@example([b"n01", b"n1", b"n02"])
@example([b"n1", b"n02", b"n03"])
def test_ids_and_numbers_are_read_as_the_plain_version_does(some: list[bytes]) -> None:
    parts = parse_ids(*laid(some))
    assert (None if parts is None else parts.tolist()) == plain.parse_ids(some)
    numbers = parse_numbers(*laid(some))
    found = None if numbers is None else (numbers[0].tolist(), *numbers[1:])
    assert found == plain.parse_numbers(some)


@given(TEXTS, st.booleans())
def test_texts_are_joined_hashed_and_summed_up_as_the_plain_version_does(
    some: list[bytes], by_word: bool
) -> None:
    assert gather(*laid(some)) == b"".join(some)
    assert crc_texts(*laid(some)).tolist() == plain.crc_texts(some)
    hashes, rows = hash_texts(*laid(some), by_word)
    assert (hashes.tolist(), rows.tolist()) == plain.hash_texts(some, by_word)


@pytest.mark.parametrize(
    ("starts", "stops"),
    [([-1], [1]), ([0], [5]), ([3], [2]), ([1, 2], [2]), ([1 << 62], [1 << 63])],
)
def test_texts_outside_of_their_buffer_are_refused(starts: list[int], stops: list[int]) -> None:
    slices = np.array(starts, np.int64), np.array(stops, np.uint64).view(np.int64)
    for call in (
        gather,
        crc_texts,
        split_fields,
        parse_ids,
    ):
        with pytest.raises(ValueError, match="lie in their buffer"):
            call(b"abcd", *slices)
    with pytest.raises(ValueError, match="lie in their buffer"):
        number_texts(b"abcd", *slices, 9)
    with pytest.raises(ValueError, match="lie in their buffer"):
        hash_texts(b"abcd", *slices, True)
    with pytest.raises(ValueError, match="lie in their buffer"):
        parse_numbers(b"abcd", *slices)
