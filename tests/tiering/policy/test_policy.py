"""A policy that exists can be kept: what is out of range or contradicts itself is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore import ConfigError, Retention
from kvstore.clock import SystemClock
from kvstore.files import LocalFiles
from tests.tiering.policy.givens import DAY, HOUR
from tiering.errors import PolicyIllegal
from tiering.policy.policy import Policy, Prices, TierPrice, check_with_store, is_open
from tiering.worker.context import open_places

STORE = (0.75, 0.85, 0.90)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"warm_for": DAY}, ("warm_for", "neither warm nor cold", "give one")),
        ({"hot_for": 1, "cold_for": DAY}, ("cold_for", "neither warm nor cold", "give one")),
        ({"hot_for": 1, "warm": "w", "cold_for": DAY}, ("cold_for is 1d", "no place cold", "add")),
        ({"hot_for": 1, "warm": "w", "cold": "c"}, ("warm_for is not", "ever go cold", "leave")),
        ({"warm": "w", "warm_for": DAY}, ("warm_for", "hot_for is not given", "give it")),
        ({"cold": "c", "watermarks": None}, ("cold is given", "nothing would ever move", "give")),
        ({"hot_for": 1, "warm": "/a/", "cold": "/a", "warm_for": 1}, ("both '/a'", "two places")),
        ({"hot_for": 1, "warm": "s3://b/p"}, ("warm is 's3://b/p'", "an object store", "as cold")),
        ({"hours": (3, 3)}, ("hours is (3, 3)", "leave hours out")),
        ({"hours": (0, 24)}, ("hours is (0, 24)", "leave hours out")),
    ],
)
def test_a_contradiction_is_refused_naming_both_sides_and_a_way_out(
    fields: dict[str, Any], says: tuple[str, ...]
) -> None:
    with pytest.raises(PolicyIllegal) as caught:
        Policy(**fields)
    for part in says:
        assert part in str(caught.value)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    "fields",
    [
        {"hot_for": -1.0},
        {"hot_for": float("nan")},
        {"hot_for": float("inf")},
        {"hot_for": True},
        {"hot_for": "1d"},
        {"grace": None},
        {"merge_bytes": 0},
        {"merge_bytes": 1.5},
        {"merge_bytes": (4 << 30) + 1},
        {"clock_doubt": -1.0},
        {"codec": "gzip"},
        {"level": 23},
        {"level": 13, "codec": "lz4"},
        {"level": 3.0},
        {"block_bytes": 100},
        {"block_bytes": 1 << 30},
        {"max_bytes": -1},
        {"hours": (1, 25)},
        {"hours": (1,)},
        {"hours": 3},
        {"watermarks": (0.9, 0.8)},
        {"watermarks": (0.0, 0.8)},
        {"watermarks": (0.5, 1.1)},
        {"read_rate": 0},
        {"upload_rate": -3},
        {"warm": "", "hot_for": 1},
        {"warm": Path("w"), "hot_for": 1},
        {"prices": {}},
        {"prices": Prices(cold=TierPrice(gb_month=-1))},
        {"prices": Prices(hot=TierPrice(requests=float("nan")))},
    ],
)
def test_what_is_out_of_range_is_refused_naming_the_field(fields: dict[str, Any]) -> None:
    with pytest.raises(PolicyIllegal, match=next(iter(fields))):
        Policy(**fields)


def test_a_policy_without_places_moves_nothing_and_is_legal() -> None:
    assert not Policy().moves
    assert not Policy(hot_for=DAY).moves


def test_a_policy_comes_from_toml_with_durations_as_numbers_or_texts() -> None:
    text = """
        hot_for = "36h"
        warm_for = 60
        cold_for = "90d"
        warm = "archive"
        cold = "s3://bucket/prefix"
        hours = [22, 6]
        [prices.cold]
        gb_month = 0.01
    """
    policy = Policy.from_toml(text)
    assert (policy.hot_for, policy.warm_for, policy.cold_for) == (36 * HOUR, 60, 90 * DAY)
    assert policy.hours == (22, 6)
    assert policy.prices.cold.gb_month == 0.01


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hot_for =", "not TOML"),
        ("hot_fro = 3", "hot_fro"),
        ('hot_for = "soon"', "hot_for is 'soon'"),
        ("warm_for = 3", "neither warm nor cold"),
        ('codec = "gzip"', "gzip"),
        ("level = 3.5", "level"),
    ],
)
def test_toml_that_is_no_policy_is_refused(text: str, says: str) -> None:
    with pytest.raises(PolicyIllegal, match=says):
        Policy.from_toml(text)


def test_a_policy_that_was_made_can_be_changed_only_into_a_legal_one() -> None:
    policy = Policy(hot_for=DAY, warm="w")
    with pytest.raises(PolicyIllegal):
        msgspec.structs.replace(policy, warm=None, warm_for=DAY)


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ((9, 17), (9, 16), (8, 17)),
        ((22, 6), (22, 23, 0, 5), (6, 12, 21)),
        ((23, 0), (23,), (22, 0)),
        ((20, 24), (20, 23), (0, 19)),
        ((0, 6), (0, 5), (6, 23)),
    ],
)
def test_hours_go_from_the_first_to_before_the_second_also_over_midnight(
    hours: tuple[int, int], inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    policy = Policy(hours=hours)
    assert all(is_open(policy, hour, 0.0) for hour in inside)
    assert not any(is_open(policy, hour, 0.0) for hour in outside)


@given(st.integers(0, 23), st.integers(0, 23), st.integers(0, 23))
def test_hours_and_their_complement_share_the_day(first: int, end: int, hour: int) -> None:
    if first != end:
        policy, other = Policy(hours=(first, end)), Policy(hours=(end, first))
        assert is_open(policy, hour, 0.0) != is_open(other, hour, 0.0)


def test_a_disk_above_the_first_watermark_knows_no_hours() -> None:
    policy = Policy(hours=(22, 6), watermarks=(0.7, 0.8))
    assert not is_open(policy, 12, 0.69)
    assert is_open(policy, 12, 0.70)
    assert not is_open(Policy(hours=(22, 6), watermarks=None), 12, 1.0)


@pytest.mark.parametrize(
    ("retention", "watermarks", "says"),
    [
        (Retention(hot_for=HOUR), STORE, "take hot_for out of the store's retention"),
        (Retention(hot_for=DAY), STORE, "nothing would be left to move"),
        (Retention(max_bytes=10), STORE, "max_bytes"),
        (Retention(hot_for=2 * DAY), (0.5, 0.8, 0.9), "deletes segments.*watermarks"),
        (Retention(), (0.5, 0.6, 0.8), "refuses puts.*watermarks"),
    ],
)
def test_a_store_that_would_delete_before_the_policy_moves_is_a_contradiction(
    retention: Retention, watermarks: tuple[float, float, float], says: str
) -> None:
    with pytest.raises(PolicyIllegal, match=says):
        check_with_store(Policy(hot_for=DAY, warm="w"), retention, watermarks)


def test_a_store_that_deletes_after_the_policy_has_moved_is_none() -> None:
    check_with_store(Policy(hot_for=DAY, warm="w"), Retention(hot_for=2 * DAY), STORE)
    check_with_store(Policy(hot_for=DAY, warm="w"), Retention(), (0.5, 0.8, 0.9))
    check_with_store(Policy(hot_for=DAY), Retention(hot_for=HOUR, max_bytes=3), (0.1, 0.1, 0.1))


def test_paths_in_a_file_are_relative_to_it_and_all_others_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'hot_for = 1\nwarm_for = 1\nwarm = "archive"\ncold = "../cold"'
    in_file = Policy.from_toml(text, relative_to=tmp_path)
    assert (in_file.warm, in_file.cold) == (f"{tmp_path}/archive", f"{tmp_path}/../cold")
    assert Policy.from_toml(text).warm == "archive"
    for place in ("/srv/archive", "s3://bucket/prefix", "file:///srv/x"):
        whole = Policy.from_toml(f'hot_for = 1\ncold = "{place}"', relative_to=tmp_path)
        assert whole.cold == place
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = Policy.from_toml('hot_for = 1\nwarm = "~/a"', relative_to=tmp_path)
    assert home.warm == str(tmp_path / "home" / "a")
    for policy in (home, Policy(hot_for=1, warm="~/a"), Policy(hot_for=1, cold="~/a")):
        (opened,) = open_places(policy, tmp_path, {}, LocalFiles(), SystemClock()).values()
        assert opened.name == str(tmp_path / "home" / "a")
    with pytest.raises(PolicyIllegal, match="whole path"):
        Policy.from_toml('hot_for = 1\nwarm = "~nobody-of-that-name/a"', relative_to=tmp_path)
    for wrong in ("5", '""', "[]"):
        with pytest.raises(PolicyIllegal):
            Policy.from_toml(f"hot_for = 1\nwarm = {wrong}", relative_to=tmp_path)
