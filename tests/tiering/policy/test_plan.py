"""A plan names the moves and their costs, and its sums are those of the prices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore import Retention
from tests.tiering.policy.givens import DAY, DAY_MS, START_MS, policies, segments, topics
from tiering.errors import ExtraMissing
from tiering.policy.plan import RATIOS, Alternative, Plan, make_plan, plot_plan
from tiering.policy.policy import GB, Policy, Prices, TierPrice
from tiering.policy.retention_classes import TopicTraits, read_class
from tiering.policy.schedule import Archived, Segment, Share, segment_of

PRICES = Prices(
    hot=TierPrice(gb_month=8),
    warm=TierPrice(gb_month=4),
    cold=TierPrice(gb_month=2, requests=1, transfer=10),
)
POLICY = Policy(
    hot_for=10 * DAY, warm_for=20 * DAY, cold_for=30 * DAY, warm="w", cold="c", prices=PRICES
)
KNOWN = {
    "a": TopicTraits(name="a"),
    "slow": TopicTraits(name="slow", retention=Retention(hot_for=40 * DAY)),
}


def days(policy: Policy = POLICY, count: int = 100, topic: str = "a") -> list[Segment]:
    """A segment of a GB each day."""
    out = []
    for day in range(count):
        first, last = START_MS + day * DAY_MS, START_MS + (day + 1) * DAY_MS - 1
        shares = [Share(topic, GB, last)]
        out.append(segment_of(policy, day, GB, (first, last), shares, KNOWN))
    return out


def planned(policy: Policy = POLICY, found: list[Segment] | None = None, **more: Any) -> Plan:
    found = days(policy) if found is None else found
    settings: dict[str, Any] = {"ratio": 0.25, "hour": 0, "disk_used": 0.1} | more
    settings.setdefault("now_ms", START_MS + len(found) * DAY_MS)
    return make_plan(policy, found, settings.pop("archives", []), **settings)


def named(plan: Plan, name: str) -> Alternative:
    [found] = [a for a in plan.alternatives if a.name == name]
    return found


def test_it_says_what_would_go_where_and_what_is_left() -> None:
    plan = planned()
    by_tier = {to: sum(m.to == to for m in plan.moves) for to in ("warm", "cold", None)}
    assert by_tier == {"warm": 20, "cold": 30, None: 40}
    assert plan.before.hot == 100 * GB
    assert plan.after.hot == 10 * GB
    assert plan.after.warm == 20 * GB / 4
    assert plan.after.cold == 30 * GB / 4


def test_bytes_in_the_tiers_settle_at_what_comes_in_times_how_long_it_stays() -> None:
    last = named(planned(), "this policy").months[-1].bytes
    assert last.hot == pytest.approx(10 * GB, rel=0.02)
    assert last.warm == pytest.approx(20 * GB / 4, rel=0.02)
    assert last.cold == pytest.approx(30 * GB / 4, rel=0.02)


def test_a_month_costs_storage_requests_and_the_reading_back_of_what_is_uploaded() -> None:
    month = named(planned(), "this policy").months[-1]
    assert month.storage == pytest.approx(10 * 8 + 5 * 4 + 7.5 * 2, rel=0.02)
    assert month.transfer == pytest.approx(7.5 * 10, rel=0.02)
    assert month.requests == pytest.approx(2 * 7.5 * GB / (16 << 20) / 1000, rel=0.02)
    assert month.cost == month.storage + month.requests + month.transfer
    read = named(planned(read_share=0.5), "this policy").months[-1]
    assert read.transfer == pytest.approx(month.transfer + 0.5 * 7.5 * 10, rel=0.02)


def test_alternatives_cost_what_their_ages_say() -> None:
    plan = planned()
    assert named(plan, "all hot").months[-1].cost == pytest.approx(60 * 8, rel=0.02)
    assert named(plan, "warm only").months[-1].cost == pytest.approx(80 + 12.5 * 4, rel=0.02)
    assert named(plan, "cold only").months[-1].storage == pytest.approx(80 + 12.5 * 2, rel=0.02)
    assert named(plan, "cold sooner").months[-1].bytes.warm == pytest.approx(2.5 * GB, rel=0.02)
    assert named(plan, "hot half as long").months[-1].bytes.hot == pytest.approx(5 * GB, rel=0.02)
    twice = named(plan, "kept twice as long").months[-1].bytes
    assert twice.hot == pytest.approx(20 * GB, rel=0.02)
    mine = plan.alternatives[0]
    assert mine.name == "this policy"
    saved = named(plan, "all hot").per_month - mine.per_month
    assert mine.saves_per_month == pytest.approx(saved)
    assert saved > 0


def test_what_would_change_nothing_is_no_alternative() -> None:
    policy = Policy(hot_for=DAY, warm_for=9 * DAY, warm="w")
    names = [a.name for a in planned(policy).alternatives]
    assert "warm only" not in names
    assert "all hot" in names


def test_a_topic_that_stays_hot_for_long_costs_all_that_share_its_segments() -> None:
    found = [
        *days(count=99),
        segment_of(POLICY, 99, GB, (START_MS, START_MS + 100 * DAY_MS),
                   [Share("a", GB // 2, 0), Share("slow", GB // 2, 0)], KNOWN),
    ]  # fmt: skip
    last = named(planned(found=found), "this policy").months[-1].bytes
    assert last.hot == pytest.approx(40 * GB, rel=0.05)


def test_without_places_all_stays_hot() -> None:
    policy = Policy(hot_for=DAY)
    plan = planned(policy)
    assert plan.moves == []
    month = plan.alternatives[0].months[-1].bytes
    assert (month.warm, month.cold) == (0, 0)
    assert month.hot > 400 * GB


def test_the_ratio_is_measured_on_archives_or_assumed_for_the_codec() -> None:
    archive = Archived("k", "warm", 1 << 20, 5 << 20, START_MS, read_class("warm30d-cold60d"))
    measured = planned(ratio=None, archives=[archive])
    assert (measured.ratio, measured.is_ratio_measured) == (0.2, True)
    assumed = planned(ratio=None)
    assert (assumed.ratio, assumed.is_ratio_measured) == (RATIOS["zstd"], False)


def test_archives_that_go_cold_or_go_are_moves_too() -> None:
    kind = read_class("warm30d-cold60d")
    archives = [
        Archived("old", "cold", 100, 400, START_MS, kind),
        Archived("young", "warm", 10, 40, START_MS + 50 * DAY_MS, kind),
        Archived("new", "warm", 1, 4, START_MS + 99 * DAY_MS, kind),
    ]
    plan = planned(found=[], archives=archives, now_ms=START_MS + 100 * DAY_MS)
    assert [(m.source, m.to) for m in plan.moves] == [("old", None), ("young", "cold")]
    assert (plan.before.warm, plan.before.cold) == (11, 100)
    assert (plan.after.warm, plan.after.cold) == (1, 10)


def test_a_store_of_an_hour_says_nothing_about_what_comes_in() -> None:
    times = (START_MS, START_MS + 1000)
    one = segment_of(POLICY, 0, GB, times, [Share("a", GB, START_MS)], KNOWN)
    assert planned(found=[one]).bytes_per_month == 0
    assert planned(found=[]).bytes_per_month == 0


def test_it_says_which_topic_holds_the_oldest_segment() -> None:
    plan = planned(found=days(count=20, topic="slow"))
    assert plan.moves == []
    assert (plan.held_segment, plan.held_by) == (0, "slow")
    assert plan.held_until == START_MS + 41 * DAY_MS - 1


def test_uploading_takes_as_long_as_its_limit_says() -> None:
    policy = msgspec.structs.replace(POLICY, upload_rate=GB / 4)
    assert planned(policy).upload_seconds == pytest.approx(30)


def test_a_plan_is_json_as_it_is() -> None:
    plan = planned()
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


@given(st.data())
def test_no_plan_has_less_than_nothing_anywhere(data: st.DataObject) -> None:
    policy, known = data.draw(policies()), data.draw(topics())
    found = data.draw(segments(policy, known))
    now = START_MS + data.draw(st.integers(0, 500 * DAY_MS))
    plan = make_plan(policy, found, [], now_ms=now, hour=0, disk_used=data.draw(st.floats(0, 1)))
    assert min(plan.after.hot, plan.after.warm, plan.after.cold) >= 0
    assert plan.after.hot <= plan.before.hot
    for alternative in plan.alternatives:
        for month in alternative.months:
            assert min(month.bytes.hot, month.bytes.warm, month.bytes.cold, month.cost) >= 0


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plan_is_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"plan.{suffix}"
    plot_plan(planned(), target)
    assert target.stat().st_size > 1000


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ExtraMissing, match=r"kvmq\[plot\]") as caught:
        plot_plan(planned(), tmp_path / "plan.svg")
    assert caught.value.extra == "plot"
