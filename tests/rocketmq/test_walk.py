"""A walk finds all that is good in a stretch of log, and names the rest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.record.layout import BLANK, BLANK_MAGIC, MAGIC_AT, POSITION_AT
from kvstore.record.walk import Extent, Kind, extents, next_good, walk
from tests.fixtures import NAMES, Fixture
from tests.rocketmq.logs import SEGMENT, record, segment

BASE = 7 * SEGMENT


def walked(data: bytes, base: int = BASE) -> list[Extent]:
    return list(extents(walk(data, base, 0, len(data))))


def kinds(found: list[Extent]) -> list[str]:
    return [one.kind.value for one in found]


def spoil(data: bytes, at: int, what: bytes = b"\xff") -> bytes:
    return data[:at] + what + data[at + len(what) :]


@pytest.mark.parametrize("name", NAMES)
def test_a_walk_finds_exactly_the_records_and_blanks_of_a_store(
    name: str, stores: Callable[[str], Fixture]
) -> None:
    fixture = stores(name)
    found = [one for base, data in fixture.segments() for one in walked(data, base)]
    records = {(one.position, one.size) for one in found if one.kind is Kind.RECORD}
    expected = {(m["physicalOffset"], m["storeSize"]) for m in fixture.messages}
    # RocketMQ can't reach the whole record behind a damaged one; a walk does.
    beyond = {(165216, 205)} if name == "torn" else set()
    assert records == expected | beyond
    if "blanks" in fixture.manifest:
        blanks = [(one.position, one.size) for one in found if one.kind is Kind.BLANK]
        assert blanks == [(b["physicalOffset"], b["size"]) for b in fixture.manifest["blanks"]]
    damage = [one.position for one in found if one.kind is Kind.DAMAGE]
    assert damage == {"torn": [165011, 165421], "flipped": [165421]}.get(name, [])


def test_unwritten_zeros_are_the_end_and_a_blank_record_is_the_last() -> None:
    assert kinds(walked(segment(BASE, [b"a", b"b"]))) == ["record", "record", "end"]
    assert kinds(walked(segment(BASE, [b"a"], full=True))) == ["record", "blank"]
    assert walked(bytes(100)) == [Extent(Kind.END, BASE, 100)]
    assert walked(b"") == []


@pytest.mark.parametrize("at", [0, 4, 8, 28, 84, 88, 90])
def test_a_walk_goes_on_behind_a_damaged_record(at: int) -> None:
    data = segment(BASE, [b"first", b"second", b"third"], full=True)
    first, second, third, _ = walked(data)
    damaged = walked(spoil(data, second.position - BASE + at))
    assert kinds(damaged) == ["record", "damage", "record", "blank"]
    assert damaged[1][1:3] == second[1:3]
    assert str(second.position) in damaged[1].reason
    assert (damaged[0], damaged[2]) == (first, third)


def test_damage_before_a_blank_record_ends_at_it() -> None:
    data = segment(BASE, [b"first", b"second"], full=True)
    second = walked(data)[1]
    assert kinds(walked(spoil(data, second.position - BASE))) == ["record", "damage", "blank"]


def test_damage_at_the_tail_ends_where_zeros_begin() -> None:
    data = segment(BASE, [b"first", b"second"])
    second = walked(data)[1]
    found = walked(spoil(data, second.position - BASE + MAGIC_AT))
    assert kinds(found) == ["record", "damage", "end"]
    assert found[1].stop <= second.stop


def test_zeros_before_a_record_are_damage_not_the_end() -> None:
    data = segment(BASE, [b"first", b"second", b"third"])
    first, second, third, _ = walked(data)
    at = second.position - BASE
    found = walked(spoil(data, at, bytes(second.size)))
    assert kinds(found) == ["record", "damage", "record", "end"]
    assert "zeros" in found[1].reason
    assert (found[0], found[2]) == (first, third)


def test_a_magic_number_or_a_whole_record_in_a_body_is_no_record() -> None:
    inner = record(0, b"inner") + record(BASE, b"inner") + b"\xda\xa3\x20\xa7" * 5
    inner += BLANK.pack(20, BLANK_MAGIC)
    data = segment(BASE, [inner, b"last"], full=True)
    outer, last, blank = walked(data)
    assert (outer.kind, last.kind) == (Kind.RECORD, Kind.RECORD)
    found = walked(spoil(data, POSITION_AT))
    assert found[1:] == [last, blank]
    assert found[0][:3] == (Kind.DAMAGE, BASE, outer.size)


def test_damage_longer_than_a_search_window_is_passed_over() -> None:
    # The magic number of the next record lies across the end of a window.
    windows = list(accumulate([4096 << n for n in range(9)] + [1 << 20]))
    for before in (window + shift for window in windows[:2] + windows[-2:] for shift in range(9)):
        junk = b"\x01" * before
        data = junk + record(BASE + before)
        assert next_good(data, BASE, 1, len(data)) == before
        assert kinds(walked(data)) == ["damage", "record"]


def test_a_record_cut_by_the_end_is_damage() -> None:
    data = segment(BASE, [b"first", b"second"])
    second = walked(data)[1]
    cut = second.stop - BASE - 3  # two zeros, the length of the properties, and a bit of the topic
    found = walked(data[:cut])
    assert kinds(found) == ["record", "damage"]
    assert found[1].stop == BASE + cut


def test_a_walk_may_begin_and_end_anywhere() -> None:
    data = segment(BASE, [b"first", b"second", b"third"])
    _, second, third, _ = walked(data)
    at = second.position - BASE
    assert list(extents(walk(data, BASE, at, third.position - BASE))) == [second]
    assert list(walk(data, BASE, len(data), len(data) + 5)) == []


def test_nothing_good_is_minus_one() -> None:
    assert next_good(bytes(1000), BASE, 0, 1000) == -1
    assert next_good(b"", BASE, 0, 0) == -1


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A segment with some stretches overwritten."""
    bodies = draw(st.lists(st.binary(max_size=60), max_size=12))
    data = bytearray(segment(BASE, bodies, full=draw(st.booleans())))
    for at, junk in draw(
        st.lists(st.tuples(st.integers(0, 1500), st.binary(min_size=1, max_size=40)), max_size=4)
    ):
        data[at : at + len(junk)] = junk
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@given(mutated() | st.binary(max_size=300))
def test_a_walk_covers_any_bytes_once_and_in_order(data: bytes) -> None:
    found = walked(data)
    assert [one.position for one in found[:1]] == ([BASE] if data else [])
    assert all(a.stop == b.position for a, b in pairwise(found))
    assert all(one.size > 0 for one in found)
    if found and found[-1].kind is not Kind.BLANK:
        assert found[-1].stop == BASE + len(data)
    for one in found:
        assert bool(one.reason) == (one.kind is Kind.DAMAGE)
        if one.kind is Kind.END:
            assert not any(data[one.position - BASE :])


@given(mutated())
def test_every_record_left_whole_is_found(data: bytes) -> None:
    """Whatever else is broken: at each place, either a record is found or there is none."""
    found = {one.position: one for one in walked(data) if one.kind is Kind.RECORD}
    at = 0
    while (at := next_good(data, BASE, at, len(data))) >= 0:
        if BASE + at not in found:
            inside = any(one.position < BASE + at < one.stop for one in found.values())
            is_blank = data[at + 4 : at + 8] == BLANK_MAGIC.to_bytes(4, "big")
            assert (
                inside
                or is_blank
                or any(one.kind is Kind.BLANK and one.position <= BASE + at for one in walked(data))
            )
        at += 1
