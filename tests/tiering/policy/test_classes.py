"""Which topics share archives, what their class is called, and how long it lasts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore import Retention
from tests.tiering.policy.givens import (
    DAY,
    DAY_MS,
    HOUR,
    HOUR_MS,
    durations,
    policies,
    retentions,
    topics,
)
from tiering.errors import PolicyIllegal
from tiering.policy.policy import Policy, format_duration, parse_duration
from tiering.policy.retention_classes import (
    Life,
    RetentionClass,
    TopicTraits,
    class_of_archive,
    life_of,
    read_class,
)

BOTH = Policy(hot_for=DAY, warm_for=7 * DAY, cold_for=20 * DAY, warm="w", cold="c")


def name_of(policy: Policy, topic: TopicTraits) -> str:
    kind = life_of(policy, topic).kind
    assert kind is not None
    return kind.name


def topic(
    name: str = "t", kind: str = "normal", encrypted: bool = False, **own: float
) -> TopicTraits:
    return TopicTraits(name=name, kind=kind, retention=Retention(**own), encrypted=encrypted)  # type: ignore[arg-type]  # durations only


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (BOTH, "warm8d-cold28d"),
        (Policy(hot_for=DAY, warm_for=DAY, warm="w", cold="c"), "warm2d-coldever"),
        (Policy(hot_for=DAY, warm_for=DAY, warm="w"), "warm2d"),
        (Policy(hot_for=DAY, warm="w"), "warmever"),
        (Policy(hot_for=DAY, warm_for=DAY, cold_for=DAY, cold="c"), "cold3d"),
        (Policy(hot_for=DAY, cold="c"), "coldever"),
        (Policy(cold="c"), "coldever"),
        (Policy(hot_for=0, warm_for=0.25, warm="w"), "warm250ms"),
    ],
)
def test_a_class_is_called_by_the_ages_at_which_its_archives_move(
    policy: Policy, name: str
) -> None:
    assert name_of(policy, topic()) == name


def test_without_a_place_there_is_no_class() -> None:
    assert life_of(Policy(hot_for=HOUR), topic()) == Life(HOUR_MS, None)


def test_a_topic_says_otherwise_field_by_field() -> None:
    assert name_of(BOTH, topic(cold_for=DAY)) == "warm8d-cold9d"
    assert name_of(BOTH, topic(hot_for=2 * DAY)) == "warm9d-cold29d"
    assert life_of(BOTH, topic(hot_for=2 * DAY)).leaves_hot == 2 * DAY_MS


def test_topics_that_differ_only_in_how_long_they_are_hot_may_share_an_archive() -> None:
    longer = topic(hot_for=2 * DAY, warm_for=6 * DAY)
    assert life_of(BOTH, longer).kind == life_of(BOTH, topic()).kind


def test_compacted_and_encrypted_topics_are_apart() -> None:
    assert name_of(BOTH, topic(encrypted=True)) == "warm8d-cold28d-encrypted"
    assert name_of(BOTH, topic(kind="compacted")) == "warm8d-coldever-compacted"
    both = topic(kind="compacted", encrypted=True)
    assert name_of(BOTH, both) == "warm8d-coldever-compacted-encrypted"


def test_a_compacted_topic_ends_only_if_it_says_so_itself() -> None:
    assert name_of(BOTH, topic(kind="compacted", cold_for=DAY)) == "warm8d-cold9d-compacted"
    assert name_of(BOTH, topic(kind="compacted", warm_for=DAY)) == "warm2d-coldever-compacted"


def test_what_the_store_wrote_for_itself_never_ends_and_never_holds_others_back() -> None:
    timers = topic("rmq_sys_wheel_timer", hot_for=99 * DAY, cold_for=1)
    assert name_of(BOTH, timers) == "warm8d-coldever"
    assert life_of(BOTH, timers).leaves_hot == DAY_MS


def test_dead_letters_are_kept_longer_unless_they_have_a_retention_of_their_own() -> None:
    assert name_of(BOTH, topic("%DLQ%g")) == "warm8d-cold30d"
    assert name_of(BOTH, topic("%DLQ%g", cold_for=0)) == "warm8d-cold8d"
    for_ever = Policy(hot_for=0, warm_for=0, warm="w", dead_letters_for=None)
    assert name_of(for_ever, topic("%DLQ%g")) == "warmever"


def test_near_neighbours_share_a_class() -> None:
    policy = Policy(hot_for=0, warm="w")
    near = {name_of(policy, topic(warm_for=DAY * n)) for n in (40.1, 40.5, 41)}
    assert near == {"warm41d"}
    assert name_of(policy, topic(warm_for=30.2 * HOUR)) == "warm31h"


@given(policies(), topics())
def test_a_class_never_ends_before_hot_and_warm_and_cold_together(
    policy: Policy, known: dict[str, TopicTraits]
) -> None:
    for traits in known.values():
        kind = life_of(policy, traits).kind
        assert kind is not None
        own = traits.retention
        times = [
            theirs if theirs is not None else ours
            for theirs, ours in (
                (own.hot_for, policy.hot_for),
                (own.warm_for, policy.warm_for),
                (own.cold_for, policy.cold_for),
            )
        ]
        if kind.ends is not None:
            assert kind.ends >= sum(t or 0 for t in times) * 1000 - 1e-3


@given(policies(), retentions, st.booleans(), st.booleans())
def test_a_class_is_read_back_from_its_name(
    policy: Policy, own: Retention, encrypted: bool, compacted: bool
) -> None:
    traits = TopicTraits(
        name="t", kind="compacted" if compacted else "normal", retention=own, encrypted=encrypted
    )
    kind = life_of(policy, traits).kind
    assert kind is not None
    assert read_class(kind.name) == kind


@pytest.mark.parametrize(
    "name", ["", "warm", "cold", "8d", "warm8d-", "warm8dcold9d", "-cold9d", "warm8x", "warm8d-hot"]
)
def test_what_is_no_class_is_refused(name: str) -> None:
    with pytest.raises(PolicyIllegal, match="no retention class"):
        read_class(name)


def test_an_archive_is_judged_by_its_topics_as_they_are_now() -> None:
    known = {"a": topic("a"), "b": topic("b", cold_for=50 * DAY)}
    assert class_of_archive(BOTH, "warm2d-cold3d", ["a"], known).name == "warm8d-cold28d"
    assert class_of_archive(BOTH, "warm2d-cold3d", ["a", "b"], known).name == "warm8d-cold58d"


def test_an_archive_of_topics_that_are_gone_is_judged_by_its_name() -> None:
    made_as = "warm2d-cold3d-encrypted"
    assert class_of_archive(BOTH, made_as, ["gone"], {}) == RetentionClass(
        "warm", 2 * DAY_MS, 3 * DAY_MS, encrypted=True
    )


@given(st.integers(0, 1 << 62))
def test_durations_are_read_back_from_their_text(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@given(durations)
def test_a_duration_is_never_shortened_to_whole_milliseconds(seconds: float) -> None:
    kind = life_of(Policy(hot_for=0, warm_for=seconds, warm="w"), topic()).kind
    assert kind is not None
    assert kind.ends is not None
    assert kind.ends / 1000 >= seconds - 1e-6
