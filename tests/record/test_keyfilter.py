"""The filter: never denies what it holds, seldom grants what it doesn't, at few bits."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvstore.core.hashing import add_digests, count_denied, masks_of, may_hold
from kvstore.errors import FormatError
from kvstore.record.key_filter import (
    BLOCK_BITS,
    BLOCK_BYTES,
    Filter,
    FilterBuilder,
    fill,
)
from tests.reference.packing import filter_mask
from tiering.archive.writer import BITS_A_MESSAGE, filter_bits

DIGESTS = st.sets(st.integers(0, (1 << 32) - 1), min_size=1, max_size=200)


def drawn(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.unique(np.random.default_rng(count).integers(0, 1 << 32, count, dtype=np.uint32))


def filter_of(digests: NDArray[np.uint32], bits: int, portion: int = 1 << 20) -> Filter:
    """The filter of sorted, distinct digests, of about so many bits."""
    built = FilterBuilder(len(digests), bits)
    for at in range(0, len(digests), portion):
        built.add(digests[at : at + portion])
    return Filter(built.payload())


@given(DIGESTS, st.integers(1, 4000), st.integers(1, 99))
def test_what_was_added_is_never_denied(digests: set[int], bits: int, portion: int) -> None:
    held = filter_of(np.array(sorted(digests), np.uint32), bits, portion)
    assert all(map(held.may_hold, digests))


def test_many_digests_are_added_piece_by_piece_and_none_is_denied() -> None:
    digests = drawn(200_000)
    held = filter_of(digests, 10 * len(digests))
    assert all(map(held.may_hold, digests.tolist()))


@pytest.mark.parametrize(("keys_a_message", "wrong"), [(1, 0.02), (2, 0.07), (3, 0.2)])
def test_few_of_those_that_were_not_added_are_granted(keys_a_message: int, wrong: float) -> None:
    digests = drawn(60_000)
    messages = len(digests) // keys_a_message
    held = filter_of(digests, filter_bits(len(digests), messages))
    asked = set(drawn(20_001).tolist()) - set(digests.tolist())
    assert sum(map(held.may_hold, asked)) / len(asked) < wrong


@pytest.mark.parametrize("keys_a_message", [1, 2, 5, 30])
def test_it_takes_at_most_twelve_bits_a_message(keys_a_message: int) -> None:
    digests = drawn(90_000)
    messages = len(digests) // keys_a_message
    held = filter_of(digests, filter_bits(len(digests), messages))
    assert held.memory_bytes * 8 / messages <= BITS_A_MESSAGE + 0.1


@given(st.binary(max_size=200))
def test_any_bytes_are_a_filter_or_a_format_error(data: bytes) -> None:
    with suppress(FormatError):
        Filter(data).may_hold(12345)


@given(DIGESTS, st.integers(1, 9), st.integers(1, 3))
def test_a_filter_cut_into_pieces_never_denies_what_was_added(
    digests: set[int], blocks: int, a_piece: int
) -> None:
    found = sorted(digests)
    for first in range(0, blocks, a_piece):
        count = min(a_piece, blocks - first)
        mine = [d for d in found if first <= d * blocks >> 32 < first + count]
        data = fill(np.array(mine, np.uint32), blocks, first, count, 5)
        assert len(data) == count * BLOCK_BYTES == count * BLOCK_BITS // 8
        assert all(may_hold(data, 0, blocks, first, digest, 5) for digest in mine)
        # And it has their bits alone.
        bits = int.from_bytes(data, "little")
        for digest in mine:
            at = ((digest * blocks >> 32) - first) * BLOCK_BITS
            assert bits >> at & filter_mask(digest, 5) == filter_mask(digest, 5)
        assert bits == reduce(
            or_, (filter_mask(d, 5) << ((d * blocks >> 32) - first) * BLOCK_BITS for d in mine), 0
        )


def test_a_filter_without_a_digests_block_does_not_deny_it() -> None:
    assert may_hold(b"", 0, 1, 0, 7, 5)
    assert may_hold(bytes(BLOCK_BYTES), 1, 1, 0, 7, 5)
    assert may_hold(bytes(BLOCK_BYTES), -BLOCK_BYTES, 1, 0, 7, 5)
    assert may_hold(bytes(BLOCK_BYTES), 0, 4, 2, 7, 5)
    assert not may_hold(bytes(BLOCK_BYTES), 0, 1, 0, 7, 5)


def test_a_digest_of_another_piece_is_refused_and_nothing_is_added() -> None:
    filled = bytearray(BLOCK_BYTES)
    with pytest.raises(ValueError, match="another part"):
        add_digests(filled, np.array([1, 1 << 31], np.uint32), 2, 0, 5)
    assert not any(filled)


@given(DIGESTS, DIGESTS, st.integers(1, 9), st.integers(0, 7))
def test_as_many_digests_are_denied_as_are_not_granted_one_by_one(
    digests: set[int], asked: set[int], blocks: int, hashes: int
) -> None:
    data = b"head" + fill(np.array(list(digests), np.uint32), blocks, 0, blocks, hashes)
    wanted = np.array(list(asked), np.uint32)
    granted = [may_hold(data, 4, blocks, 0, digest, hashes) for digest in asked]
    assert count_denied(data, 4, blocks, wanted, hashes) == granted.count(False)


@given(st.integers(0, (1 << 32) - 1))
def test_the_masks_of_a_digest_are_the_blocks_that_have_it_alone(digest: int) -> None:
    masks = masks_of(digest)
    for hashes in range(8):
        mask = masks[BLOCK_BYTES * hashes : BLOCK_BYTES * (hashes + 1)]
        assert int.from_bytes(mask, "little") == filter_mask(digest, hashes)
        assert mask == fill(np.array([digest], np.uint32), 1, 0, 1, hashes)
