"""XXH32 in the core gives the numbers of the library xxhash, whatever the texts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh32_intdigest

from kvstore.core.hashing import SEPARATOR, xxh32, xxh32_many

TEXTS = st.text(st.characters(exclude_characters=SEPARATOR, exclude_categories=["Cs"]))


def one_by_one(texts: list[str]) -> list[int]:
    return [xxh32_intdigest(text.encode()) for text in texts]


@given(st.binary(max_size=100))
def test_the_hash_of_any_bytes_is_that_of_the_library(data: bytes) -> None:
    assert xxh32(data) == xxh32_intdigest(data)


@pytest.mark.parametrize("length", [*range(36), 64, 1000])
def test_the_hash_of_bytes_of_every_length_is_that_of_the_library(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert xxh32(data) == xxh32_intdigest(data)


@given(st.lists(TEXTS, min_size=1))
def test_many_texts_get_the_hash_that_each_gets_alone(texts: list[str]) -> None:
    assert xxh32_many(SEPARATOR.join(texts)).tolist() == one_by_one(texts)


@pytest.mark.parametrize("texts", [[""], ["", ""], ["a", ""], ["", "a", "é" * 40]])
def test_empty_texts_count(texts: list[str]) -> None:
    assert xxh32_many(SEPARATOR.join(texts)).tolist() == one_by_one(texts)


def test_a_text_without_utf8_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        xxh32_many(f"a{SEPARATOR}\ud800")


@pytest.mark.parametrize("value", [None, "a", 5, bytearray(b"a"), memoryview(b"a")])
def test_what_is_not_bytes_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        xxh32(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, b"a", 5])
def test_what_is_not_a_text_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        xxh32_many(value)  # type: ignore[arg-type]
