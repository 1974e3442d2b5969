"""Hashing many texts at once: the same numbers as one by one, whatever their lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh32_intdigest

from kvstore.record.hashes import SEPARATOR, xxh32_many

TEXTS = st.text(st.characters(exclude_characters=SEPARATOR, exclude_categories=["Cs"]))


def one_by_one(texts: list[str]) -> list[int]:
    return [xxh32_intdigest(text.encode()) for text in texts]


@given(st.lists(TEXTS, min_size=1))
def test_texts_of_any_lengths(texts: list[str]) -> None:
    assert xxh32_many(SEPARATOR.join(texts)).tolist() == one_by_one(texts)


@pytest.mark.parametrize("length", [*range(36), 64, 1000])
def test_many_of_one_length(length: int) -> None:
    """Enough for numpy, alike in some of their words and not in others."""
    rng = np.random.default_rng(length)
    letters = rng.integers(32, 127, (700, length), dtype=np.uint8)
    letters[:, length // 3 : length // 2] = 65
    texts = [row.tobytes().decode() for row in letters]
    assert xxh32_many(SEPARATOR.join(texts)).tolist() == one_by_one(texts)


def test_one_text_seven_hundred_times() -> None:
    texts = ["0A000002ABCD12345678ABCD12340001"] * 700
    assert xxh32_many(SEPARATOR.join(texts)).tolist() == one_by_one(texts)
