"""Values as a list and side by side: both say the same."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.archive.columns.text_columns import (
    Constant,
    Distinct,
    Ids,
    Listed,
    Numbers,
    Pieces,
    Texts,
    concat_columns,
)

BITS = st.integers(-(1 << 63), (1 << 63) - 1)
FEW = st.lists(st.one_of(st.integers(0, 1200), BITS), min_size=1, max_size=20)


def agree(texts: Texts) -> None:
    data, bounds = texts.joined()
    assert [data[a:b] for a, b in pairwise(bounds.tolist())] == texts.values()
    assert int(bounds[0]) == 0
    assert int(bounds[-1]) == len(data)


@given(st.binary(max_size=5), st.integers(0, 18), FEW)
def test_numbers_are_the_same_one_by_one_and_side_by_side(
    prefix: bytes, width: int, numbers: list[int]
) -> None:
    texts = Numbers(prefix, width, np.array(numbers, np.int64))
    agree(texts)
    assert texts.values() == [
        prefix + (str(n).zfill(width) if width else str(n)).encode() for n in numbers
    ]


@pytest.mark.parametrize(
    "texts",
    [
        Listed([b"a", b"", b"bc"]),
        Listed([]),
        Constant(b"xy", 3),
        Constant(b"", 2),
        Ids(bytes(range(160, 208))),
        Distinct([b"p", b"qq"], np.array([1, 0, 1])),
        Pieces(b"head:one:two", np.array([5, 8, 9, 12])),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_each_kind_of_values_is_the_same_either_way(texts: Texts) -> None:
    agree(texts)


@pytest.mark.parametrize(
    "parts",
    [
        [Ids(bytes(range(16))), Ids(b""), Ids(bytes(range(200, 232)))],
        [Constant(b"xy", 3), Constant(b"xy", 2)],
        [Constant(b"xy", 3), Constant(b"z", 2)],
        [Numbers(b"k", 0, np.array([7, 12_345])), Numbers(b"k", 0, np.array([100]))],
        [Numbers(b"k", 3, np.array([7])), Numbers(b"k", 0, np.array([7]))],
        [Numbers(b"k", 0, np.array([7])), Listed([b"x"]), Constant(b"", 2)],
        [Listed([b"a", b""])],
    ],
    ids=lambda parts: "-".join(type(part).__name__ for part in parts),
)
def test_values_of_several_come_side_by_side_however_each_is_said(parts: list[Texts]) -> None:
    data, bounds = concat_columns(parts)
    found = [data[a:b] for a, b in pairwise(bounds.tolist())]
    assert found == [value for part in parts for value in part.values()]
