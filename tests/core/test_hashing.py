"""XXH32 in the core gives the numbers of the library xxhash, whatever the texts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh32_intdigest

from kvstore.core.hashing import xxh32


@given(st.binary(max_size=100))
def test_the_hash_of_any_bytes_is_that_of_the_library(data: bytes) -> None:
    assert xxh32(data) == xxh32_intdigest(data)


@pytest.mark.parametrize("length", [*range(36), 64, 1000])
def test_the_hash_of_bytes_of_every_length_is_that_of_the_library(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert xxh32(data) == xxh32_intdigest(data)


@pytest.mark.parametrize("value", [None, "a", 5, bytearray(b"a"), memoryview(b"a")])
def test_what_is_not_bytes_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        xxh32(value)  # type: ignore[arg-type]
