"""Which archives are merged: neighbours of one class, none of which outweighs the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import CallerError
from tiering.archive.coder import CodecName
from tiering.catalog.catalog import ArchiveRow
from tiering.merge.merge import INPUTS_MAX, choose
from tiering.policy.retention_classes import read_class

DAY = 86_400_000
CLASS = "warm8d-cold100d"


def row(number: int, size: int = 10, at: int = 0, **changed: object) -> ArchiveRow:
    facts: dict[str, object] = {
        "number": number, "place": "p", "key": str(number), "tier": "cold", "size": size, "crc": 0,
        "first_position": number * 100, "last_position": number * 100 + 99,
        "first_stored_at": at, "last_stored_at": at, "messages": 1, "raw_bytes": size,
        "retention_class": CLASS,
    }  # fmt: skip
    return ArchiveRow(**(facts | changed))  # type: ignore[arg-type]


def chosen(rows: list[ArchiveRow], target: int = 100) -> list[list[int]]:
    return [[r.number for r in group] for group in choose(rows, target)]


def test_neighbours_are_merged_as_many_as_fit() -> None:
    assert chosen([row(n) for n in range(12)]) == [list(range(10)), [10, 11]]


def test_one_alone_is_not_merged() -> None:
    assert chosen([row(1)]) == []
    assert chosen([]) == []


def test_a_large_one_is_not_rewritten_for_small_ones() -> None:
    rows = [row(1, 61), row(2), row(3), row(4)]
    assert chosen(rows) == [[2, 3, 4]]


def test_a_large_one_in_between_parts_what_is_beside_it() -> None:
    rows = [row(1), row(2), row(3, 500), row(4), row(5)]
    assert chosen(rows) == [[1, 2], [4, 5]]


def test_classes_tiers_and_places_are_not_mixed() -> None:
    rows = [
        row(1), row(2, retention_class="warm8d-coldever"), row(3, tier="warm"), row(4, place="q"),
        row(5),
    ]  # fmt: skip
    assert chosen(rows) == [[1, 5]]


def test_what_is_retired_is_left_alone() -> None:
    assert chosen([row(1), row(2, state="retired")]) == []


def test_a_merge_keeps_nothing_much_longer() -> None:
    rows = [row(n, at=n * 4 * DAY) for n in range(6)]
    assert chosen(rows) == [[0, 1, 2], [3, 4, 5]]
    in_warm = [row(n, at=n * DAY // 2, tier="warm") for n in range(4)]
    assert chosen(in_warm) == [[0, 1], [2, 3]]
    without_end = [row(n, at=n * 40 * DAY, retention_class="coldever") for n in range(6)]
    assert chosen(without_end) == [[0, 1, 2, 3, 4, 5]]


def test_compacted_ones_are_merged_beyond_the_target() -> None:
    rows = [row(n, 60, retention_class="coldever-compacted") for n in range(4)]
    assert chosen(rows) == [[0, 1, 2, 3]]


def test_what_may_grow_by_another_codec_counts_with_the_bytes_of_its_records() -> None:
    """A merge by lz4 of what zstd had made was 1.6 times as large as it may be."""
    rows = [row(n, raw_bytes=30, codec="zstd", level=9) for n in range(9)]

    def merged(codec: CodecName, level: int) -> list[int]:
        return [len(group) for group in choose(rows, 90, written_as=(codec, level))]

    assert merged("zstd", 9) == merged("zstd", 19) == [9]
    assert merged("lz4", 9) == merged("zstd", 3) == [3, 3, 3]
    rows = [row(n, 30, raw_bytes=20, codec="zstd", level=9) for n in range(9)]
    assert merged("lz4", 9) == [3, 3, 3], "what does not compress is larger than its records"


def test_a_target_that_is_no_size_is_refused() -> None:
    with pytest.raises(CallerError, match="target_bytes"):
        choose([], 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 30)), max_size=40))
def test_merging_again_and_again_ends_with_each_message_rewritten_a_few_times(
    drawn: list[tuple[int, int]],
) -> None:
    rows = [row(n, size, at=day * DAY) for n, (size, day) in enumerate(drawn)]
    total = sum(r.size for r in rows)
    written = 0
    rounds = 0
    while groups := choose(rows, 150):
        for group in groups:
            assert 2 <= len(group) <= INPUTS_MAX
            size = sum(r.size for r in group)
            assert size <= 150
            assert 3 * max(r.size for r in group) <= 2 * size
            written += size
            at = [r.first_stored_at for r in group] + [r.last_stored_at for r in group]
            assert max(at) - min(at) <= 10 * DAY
            merged = row(group[0].number, size, first_stored_at=min(at), last_stored_at=max(at))
            rows = [r for r in rows if r not in group] + [merged]
        rounds += 1
        assert rounds < 20
    assert written <= 14 * total


def test_those_that_end_at_another_time_by_the_policy_of_today_are_not_mixed() -> None:
    rows = [row(n) for n in range(6)]
    other = read_class("warm8d-cold200d")
    found = choose(rows, 100, {"2": other, "3": other})
    assert [[r.number for r in group] for group in found] == [[0, 1], [2, 3], [4, 5]]


def test_a_merge_keeps_nothing_much_longer_than_the_policy_of_today() -> None:
    rows = [row(n, at=n * 4 * DAY) for n in range(6)]
    longer = {r.key: read_class("warm8d-cold400d") for r in rows}
    assert len(choose(rows, 100, longer)) == 1
    shorter = {r.key: read_class("warm8d-cold39d") for r in rows}
    assert choose(rows, 100, shorter) == []


def test_archives_are_not_merged_over_a_segment_that_is_in_the_log() -> None:
    rows = [row(n) for n in (0, 1, 3, 4)]
    assert [[r.number for r in g] for g in choose(rows, 100, hot=[200, 500])] == [[0, 1], [3, 4]]
    assert [[r.number for r in g] for g in choose(rows, 100, hot=[500])] == [[0, 1, 3, 4]]
