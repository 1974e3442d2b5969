"""Unique ids: their form, and that none comes twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.core.unique_ids import UniqueIds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = st.datetimes(timezones=st.just(UTC)).map(lambda t: (t - EPOCH) // timedelta(milliseconds=1))


def ids(address: bytes = bytes(4)) -> UniqueIds:
    return UniqueIds(address, 1, 2)


def test_a_prefix_is_address_process_and_token() -> None:
    found = UniqueIds(bytes([10, 0, 0, 1]), 0x1_2345, 0x1_89AB_CDEF)
    assert found.prefix == "0A000001234589ABCDEF"
    assert len(ids(bytes(16)).prefix) == 44
    for size in (0, 5, 8, 20):
        with pytest.raises(ValueError, match="4 or 16 bytes"):
            ids(bytes(size))


@given(TIMES)
@example(-1)
@example(31 * 86_400_000)
@example(1_709_164_800_000)  # 2024-02-29
def test_an_id_has_the_milliseconds_since_its_month_began_in_utc(now: int) -> None:
    time = EPOCH + timedelta(milliseconds=now)
    start = time.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    [found] = ids().make(now, 1)
    assert int(found[20:28], 16) == (time - start) // timedelta(milliseconds=1)
    assert found[28:] == "0000"


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 70_000)), max_size=6))
def test_no_id_comes_twice_while_the_clock_goes_forth_and_back(
    steps: list[tuple[int, int]],
) -> None:
    source, now, found = ids(), 1_700_000_000_000, list[str]()
    for step, count in steps:
        now += step
        found += source.make(now, count)
    assert len(set(found)) == len(found)
    assert all(len(one) == 32 and one.startswith(source.prefix) for one in found)


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_is_a_time(now: int) -> None:
    [found] = ids().make(now, 1)
    assert len(found) == 32
