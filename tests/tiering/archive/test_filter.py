"""The filter: never denies what it holds, seldom grants what it doesn't, at few bits."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import FormatError
from tiering.archive.filter import BITS_A_MESSAGE, Filter, build

DIGESTS = st.sets(st.integers(0, (1 << 32) - 1), min_size=1, max_size=200)


def drawn(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.unique(np.random.default_rng(count).integers(0, 1 << 32, count, dtype=np.uint32))


@given(DIGESTS, st.integers(1, 200))
def test_what_was_added_is_never_denied(digests: set[int], messages: int) -> None:
    held = Filter(build(np.array(sorted(digests), np.uint32), messages))
    assert all(map(held.may_hold, digests))


def test_many_digests_are_added_piece_by_piece_and_none_is_denied() -> None:
    digests = drawn(200_000)
    held = Filter(build(digests, len(digests)))
    assert all(map(held.may_hold, digests.tolist()))


@pytest.mark.parametrize(("keys_a_message", "wrong"), [(1, 0.02), (3, 0.2)])
def test_few_of_those_that_were_not_added_are_granted(keys_a_message: int, wrong: float) -> None:
    digests = drawn(60_000)
    held = Filter(build(digests, len(digests) // keys_a_message))
    asked = set(drawn(20_001).tolist()) - set(digests.tolist())
    assert sum(map(held.may_hold, asked)) / len(asked) < wrong


@pytest.mark.parametrize("keys_a_message", [1, 2, 5, 30])
def test_it_takes_at_most_twelve_bits_a_message(keys_a_message: int) -> None:
    digests = drawn(90_000)
    messages = len(digests) // keys_a_message
    assert Filter(build(digests, messages)).memory_bytes * 8 / messages <= BITS_A_MESSAGE + 0.1


@given(st.binary(max_size=200))
def test_any_bytes_are_a_filter_or_a_format_error(data: bytes) -> None:
    with suppress(FormatError):
        Filter(data).may_hold(12345)
