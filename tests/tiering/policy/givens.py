"""Shared by the tests of policies: policies, topics and segments drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hypothesis import strategies as st

from kvstore.config import Retention
from tiering.policy.policy import Policy
from tiering.policy.retention_classes import TopicTraits
from tiering.policy.schedule import Segment, Share, segment_of

START_MS: Final = 1_700_000_000_000
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

durations: Final = st.one_of(
    st.sampled_from([0.0, 1.0, 90.5, HOUR, DAY, 36 * HOUR, 40.3 * DAY]),
    st.floats(0, 400 * DAY, allow_nan=False),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Any policy with a place for archives that moves by age."""
    warm, cold = draw(st.sampled_from([("w", None), (None, "c"), ("w", "c")]))
    return Policy(
        hot_for=draw(durations),
        warm_for=draw(durations if warm and cold else st.none() | durations),
        cold_for=draw(st.none() | durations) if cold else None,
        warm=warm,
        cold=cold,
        max_bytes=draw(st.none() | st.integers(0, 6_000)),
        dead_letters_for=draw(st.none() | durations),
    )


retentions: Final = st.builds(
    Retention,
    hot_for=st.none() | durations,
    warm_for=st.none() | durations,
    cold_for=st.none() | durations,
)


@st.composite
def topics(draw: st.DrawFn) -> dict[str, TopicTraits]:
    """Up to four topics, one of them maybe of dead letters."""
    names = draw(st.lists(st.sampled_from(["a", "b", "%DLQ%g", "d"]), min_size=1, unique=True))
    return {
        name: TopicTraits(
            name=name,
            kind=draw(st.sampled_from(["normal", "normal", "compacted"])),
            retention=draw(retentions),
            encrypted=draw(st.booleans()),
        )
        for name in names
    }


@st.composite
def segments(draw: st.DrawFn, policy: Policy, known: Mapping[str, TopicTraits]) -> list[Segment]:
    """Up to four segments, store times rising."""
    out = []
    at = START_MS
    for number in range(draw(st.integers(1, 4))):
        oldest = at
        at += draw(st.integers(0, 3 * DAY_MS))
        held = draw(st.lists(st.sampled_from(sorted(known)), unique=True))
        shares = [Share(name, 100, draw(st.integers(oldest, at))) for name in held]
        out.append(segment_of(policy, number, 1000, (oldest, at), shares, known))
    return out
