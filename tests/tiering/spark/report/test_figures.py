"""What follows from the volume of days: sums, ages, what keeping less would save."""

from __future__ import annotations

from datetime import date

import pytest

from tests.tiering.spark.report.figuring import NOW_MS, ago, volume
from tiering.spark.report.figures import Sums, age_of, curve_of, freed_of, topics_of, total_of

ROWS = [
    volume("a", "cold", 100, 4000),
    volume("a", "warm", 8, 2000),
    volume("b", "hot", 0, 1000),
    volume(None, "warm", 8, 500),
]


def test_topics_are_in_the_order_that_is_asked_for_with_the_others_last() -> None:
    topics = topics_of(ROWS, ["b", "a", "none"])
    assert [topic.topic for topic in topics] == ["b", "a", None]
    assert list(topics[1].tiers) == ["warm", "cold"]
    assert topics[1].sums == Sums(600, 30_000, 6000, 0.006)


def test_all_topics_as_one_are_the_sum_of_each() -> None:
    total = total_of(topics_of(ROWS, ["a", "b"]))
    assert total.sums.stored_bytes == 7500
    assert {tier: sums.stored_bytes for tier, sums in total.tiers.items()} == {
        "hot": 1000, "warm": 2500, "cold": 4000,
    }  # fmt: skip
    assert list(total.tiers) == ["hot", "warm", "cold"]


def test_a_day_is_as_old_as_its_end() -> None:
    assert age_of(ago(0), NOW_MS) == -0.5
    assert age_of(ago(1), NOW_MS) == 0.5
    assert age_of(date(1970, 1, 1), 86_400_000) == 0.0


def test_what_would_go_is_what_is_over_by_then() -> None:
    topics = topics_of(ROWS, ["a", "b"])
    freed = {
        (f.topic, f.kept_days): f.sums.stored_bytes
        for f in freed_of(ROWS, topics, NOW_MS, (1, 7, 30, 365))
    }
    assert freed == {
        ("a", 1): 6000, ("a", 7): 6000, ("a", 30): 4000, (None, 1): 500, (None, 7): 500,
    }  # fmt: skip


def test_a_day_goes_in_the_moment_it_is_old_enough_and_not_before() -> None:
    row = [volume("a", "hot", 8)]
    topics = topics_of(row, ["a"])
    midnight = NOW_MS - 43_200_000
    assert list(freed_of(row, topics, midnight - 1, (7,))) == []
    assert len(list(freed_of(row, topics, midnight, (7,)))) == 1


def test_the_curve_rises_from_nothing_to_what_is_paid_now() -> None:
    curve = curve_of(ROWS, NOW_MS)
    assert curve[0] == (0.0, 0.0)
    assert [x for x, _ in curve] == sorted(x for x, _ in curve)
    assert [y for _, y in curve] == sorted(y for _, y in curve)
    assert curve[-1][0] == 100.5
    assert curve[-1][1] == pytest.approx(0.0075)
