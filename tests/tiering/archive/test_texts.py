"""Values as a list and side by side: both say the same."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.archive.texts import Constant, Distinct, Ids, Listed, Numbers, Pieces, Texts

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
        Ids(b"0123456789ABCDEF0123456789ABCDEF" * 3),
        Distinct([b"p", b"qq"], np.array([1, 0, 1])),
        Pieces(b"head:one:two", np.array([5, 8, 9, 12])),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_each_kind_of_values_is_the_same_either_way(texts: Texts) -> None:
    agree(texts)
