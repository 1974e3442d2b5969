"""CRC-32 in the core is the number of the library zlib, whatever the bytes."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.crc import crc32


@given(st.binary(max_size=300))
def test_the_checksum_of_any_bytes_is_that_of_the_library(data: bytes) -> None:
    assert crc32(data) == zlib.crc32(data)


@pytest.mark.parametrize("length", [*range(210), 1023, 1024, 4097, 1 << 20])
def test_the_checksum_of_every_length_and_alignment_is_that_of_the_library(length: int) -> None:
    data = random.Random(length).randbytes(length + 7)
    for begin in range(min(length, 7) + 1):
        with memoryview(data)[begin : begin + length] as view:
            assert crc32(view) == zlib.crc32(view)
