"""Steps are due at their time; nothing goes early, out of order, or because a clock leapt."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import Retention
from tests.tiering.policy.givens import (
    DAY,
    DAY_MS,
    HOUR,
    HOUR_MS,
    START_MS,
    policies,
    segments,
    topics,
)
from tiering.policy.policy import Policy
from tiering.policy.retention_classes import TopicTraits, life_of, read_class
from tiering.policy.schedule import (
    Agenda,
    Archived,
    Segment,
    SegmentDue,
    Share,
    schedule,
    segment_of,
)
from tiering.policy.trusted_clock import JITTER_MS, Trusted, observe

POLICY = Policy(hot_for=DAY, warm_for=7 * DAY, cold_for=20 * DAY, warm="w", cold="c")
SLOW = TopicTraits(name="slow", retention=Retention(hot_for=3 * DAY))
SHORT = TopicTraits(name="short", retention=Retention(hot_for=0, warm_for=0, cold_for=0))
KNOWN = {"a": TopicTraits(name="a"), "slow": SLOW, "short": SHORT}
END = START_MS + 1000 * DAY_MS


def segment(
    number: int = 0, *names: str, newest: int | None = START_MS, policy: Policy = POLICY
) -> Segment:
    shares = [Share(name, 100, newest or 0) for name in names or ("a",)]
    return segment_of(policy, number, 1000, (newest, newest), shares, KNOWN)


def ask(
    *found: Segment,
    at: int,
    policy: Policy = POLICY,
    hour: int = 12,
    disk_used: float = 0.1,
    archives: tuple[Archived, ...] = (),
) -> Agenda:
    return schedule(policy, found, archives, now_ms=START_MS + at, hour=hour, disk_used=disk_used)


def test_a_segment_whose_messages_wait_stays_and_so_do_those_behind_it() -> None:
    found = [segment(n) for n in range(5)]

    def of(at: int, *stuck: int) -> Agenda:
        return schedule(
            POLICY, found, (), now_ms=START_MS + at, hour=12, disk_used=0.1, stuck=lambda: stuck
        )

    agenda = of(2 * DAY_MS, 2, 3)
    assert [due.number for due in agenda.segments] == [0, 1]
    assert agenda.held is not None
    assert (agenda.held.number, agenda.held.until, agenda.held.topic) == (2, None, "")
    assert of(2 * DAY_MS, 0).segments == ()
    assert len(of(2 * DAY_MS).segments) == 5

    def unasked() -> tuple[int, ...]:
        raise AssertionError("nothing is due")

    schedule(POLICY, found, (), now_ms=START_MS, hour=12, disk_used=0.1, stuck=unasked)


def is_deleted(found: SegmentDue) -> bool:
    return all(part.to is None for part in found.parts)


def archive(tier: str, name: str) -> Archived:
    return Archived("k", tier, 10, 40, START_MS, read_class(name))  # type: ignore[arg-type]  # a tier


def test_a_segment_leaves_hot_once_its_newest_message_is_older_than_hot_for() -> None:
    assert ask(segment(), at=DAY_MS).is_empty
    [found] = ask(segment(), at=DAY_MS + 1).segments
    assert (found.number, found.why, found.parts[0].to) == (0, "age", "warm")
    assert "1d" in found.reason


def test_a_segment_waits_for_the_topic_that_is_to_stay_hot_the_longest() -> None:
    agenda = ask(segment(0, "a", "slow", "short"), at=2 * DAY_MS)
    assert agenda.segments == ()
    assert agenda.held is not None
    assert (agenda.held.topic, agenda.held.until) == ("slow", START_MS + 3 * DAY_MS)


def test_classes_part_when_the_segment_leaves_and_what_is_over_is_not_archived() -> None:
    [found] = ask(segment(0, "a", "slow", "short"), at=3 * DAY_MS + 1).segments
    assert {p.retention_class: p.to for p in found.parts} == {
        "warm8d-cold28d": "warm",
        "warm10d-cold30d": "warm",
        "warm0-cold0": None,
    }


def test_a_segment_of_nothing_that_is_kept_is_deleted_without_an_archive() -> None:
    [found] = ask(segment(0, "short"), at=1).segments
    assert is_deleted(found)


def test_a_segment_that_leaves_late_goes_where_its_age_belongs() -> None:
    [found] = ask(segment(), at=9 * DAY_MS).segments
    assert found.parts[0].to == "cold"
    [found] = ask(segment(), at=29 * DAY_MS).segments
    assert is_deleted(found)


def test_without_a_place_warm_a_segment_goes_cold_at_once_and_stays_as_long() -> None:
    policy = Policy(hot_for=DAY, warm_for=7 * DAY, cold_for=20 * DAY, cold="c")
    [found] = ask(segment(policy=policy), at=DAY_MS + 1, policy=policy).segments
    assert [(p.to, p.retention_class) for p in found.parts] == [("cold", "cold28d")]


def test_without_any_place_nothing_is_ever_due() -> None:
    policy = Policy(hot_for=1, max_bytes=0)
    assert ask(segment(policy=policy), at=END, policy=policy, disk_used=1.0).is_empty


def test_segments_leave_in_order_without_a_hole() -> None:
    agenda = ask(segment(0, "slow"), segment(1, "a"), at=2 * DAY_MS)
    assert agenda.segments == ()
    agenda = ask(segment(0, "slow"), segment(1, "a"), at=4 * DAY_MS)
    assert [s.number for s in agenda.segments] == [0, 1]


def test_above_max_bytes_the_oldest_leave_until_the_rest_fits() -> None:
    policy = Policy(hot_for=DAY, warm="w", max_bytes=2500)
    found = [segment(n, policy=policy) for n in range(4)]
    agenda = ask(*found, at=0, policy=policy)
    assert [(s.number, s.why) for s in agenda.segments] == [(0, "size"), (1, "size")]


def test_at_the_second_watermark_the_oldest_leaves_and_one_at_a_time() -> None:
    found = (segment(0), segment(1))
    assert ask(*found, at=0, disk_used=0.79).is_empty
    agenda = ask(*found, at=0, disk_used=0.80)
    assert [(s.number, s.why) for s in agenda.segments] == [(0, "disk")]


def test_outside_its_hours_what_is_due_is_named_and_waits() -> None:
    policy = Policy(hot_for=DAY, warm="w", hours=(22, 6))
    one = segment(policy=policy)
    at_noon = ask(one, at=2 * DAY_MS, policy=policy, hour=12)
    assert at_noon.waits_for_hours
    assert len(at_noon.segments) == 1
    assert not ask(one, at=2 * DAY_MS, policy=policy, hour=23).waits_for_hours
    assert not ask(one, at=2 * DAY_MS, policy=policy, hour=12, disk_used=0.7).waits_for_hours
    assert not ask(one, at=0, policy=policy, hour=12).waits_for_hours


def test_an_archive_goes_cold_and_goes_by_its_last_message() -> None:
    warm, cold = archive("warm", "warm8d-cold28d"), archive("cold", "warm8d-cold28d")
    assert ask(at=8 * DAY_MS, archives=(warm, cold)).is_empty
    [moved] = ask(at=8 * DAY_MS + 1, archives=(warm, cold)).archives
    assert (moved.to, "8d" in moved.reason) == ("cold", True)
    gone = ask(at=28 * DAY_MS + 1, archives=(warm, cold)).archives
    assert [a.to for a in gone] == [None, None]


def test_an_archive_without_an_end_stays() -> None:
    archives = (archive("cold", "warm8d-coldever"), archive("warm", "warmever"))
    assert ask(at=END, archives=archives).is_empty


def test_warm_archives_go_cold_when_there_is_no_place_warm_any_more() -> None:
    policy = Policy(hot_for=DAY, cold="c")
    [found] = ask(at=0, policy=policy, archives=(archive("warm", "coldever"),)).archives
    assert (found.to, found.reason) == ("cold", "there is no place warm any more")


def test_a_segment_whose_times_cant_be_told_is_as_old_as_the_one_behind_it() -> None:
    unknown = segment(0, newest=None)
    assert ask(unknown, at=END).is_empty
    found = ask(unknown, segment(1), at=DAY_MS + 1).segments
    assert [s.number for s in found] == [0, 1]


def test_a_topic_that_was_deleted_is_archived_nowhere() -> None:
    found = segment_of(POLICY, 0, 1000, (START_MS, START_MS), [Share("gone", 9, START_MS)], KNOWN)
    [left] = ask(found, at=DAY_MS + 1).segments
    assert is_deleted(left)


@settings(deadline=None)
@given(st.data())
def test_nothing_is_deleted_before_its_whole_time_is_over(data: st.DataObject) -> None:
    policy, known = data.draw(policies()), data.draw(topics())
    found = data.draw(segments(policy, known))
    now = data.draw(st.integers(START_MS, END))
    disk = data.draw(st.floats(0, 1))
    agenda = schedule(policy, found, [], now_ms=now, hour=0, disk_used=disk)
    for left in agenda.segments:
        held = {part.kind.name: part for part in found[left.number].parts}
        for part in left.parts:
            for name in part.topics if part.to is None else ():
                kind = life_of(policy, known[name]).kind
                assert kind is not None
                assert kind.ends is not None
                assert now - held[part.retention_class].newest > kind.ends


@settings(deadline=None)
@given(st.data())
def test_age_takes_no_segment_from_a_topic_that_is_to_be_hot_still(data: st.DataObject) -> None:
    policy, known = data.draw(policies()), data.draw(topics())
    found = data.draw(segments(policy, known))
    now = data.draw(st.integers(START_MS, END))
    for left in schedule(policy, found, [], now_ms=now, hour=0, disk_used=0).segments:
        for part in found[left.number].parts if left.why == "age" else ():
            for name in part.topics:
                leaves_hot = life_of(policy, known[name]).leaves_hot
                assert leaves_hot is not None
                assert now - part.newest > leaves_hot


@settings(deadline=None)
@given(st.data())
def test_what_is_due_stays_due_as_time_passes(data: st.DataObject) -> None:
    policy, known = data.draw(policies()), data.draw(topics())
    found = data.draw(segments(policy, known))
    archives = [
        Archived(
            f"{s.number}-{i}", data.draw(st.sampled_from(["warm", "cold"])), 1, 4, p.newest, p.kind
        )
        for s in found
        for i, p in enumerate(s.parts)
    ]
    first, second = sorted(data.draw(st.lists(st.integers(START_MS, END), min_size=2, max_size=2)))
    disk = data.draw(st.floats(0, 1))
    before, after = (
        schedule(policy, found, archives, now_ms=t, hour=0, disk_used=disk) for t in (first, second)
    )
    assert {s.number for s in before.segments} <= {s.number for s in after.segments}
    assert {a.key for a in before.archives} <= {a.key for a in after.archives}
    gone = {a.key for a in before.archives if a.to is None}
    assert gone <= {a.key for a in after.archives if a.to is None}


@settings(deadline=None)
@given(st.data())
def test_segments_that_leave_are_the_oldest_ones(data: st.DataObject) -> None:
    policy, known = data.draw(policies()), data.draw(topics())
    found = data.draw(segments(policy, known))
    now, disk = data.draw(st.integers(START_MS, END)), data.draw(st.floats(0, 1))
    left = schedule(policy, found, [], now_ms=now, hour=0, disk_used=disk).segments
    assert [s.number for s in left] == list(range(len(left)))


@settings(deadline=None)
@given(
    st.data(),
    st.lists(st.tuples(st.floats(1, 6 * HOUR), st.sampled_from([0, 0, HOUR_MS, -HOUR_MS]))),
)
def test_a_clock_stepped_an_hour_back_and_forth_deletes_nothing_early(
    data: st.DataObject, looks: list[tuple[float, int]]
) -> None:
    """True time counts; the clock may be an hour behind true time, or be ahead for 18 hours."""
    policy, known = data.draw(policies()), data.draw(topics())
    found = data.draw(segments(policy, known))
    archives = [
        Archived(f"{s.number}-{i}", "warm", 1, 4, p.newest, p.kind)
        for s in found
        for i, p in enumerate(s.parts)
    ]
    kinds = {a.key: a for a in archives}
    true = START_MS + data.draw(st.integers(0, 40 * DAY_MS))
    seen, ahead_for, slack = Trusted(true, true), 0.0, 0
    for passed, off in looks:
        true += int(passed * 1000)
        slack += JITTER_MS
        ahead_for = ahead_for + passed if off > 0 else 0.0
        wall = true + (off if ahead_for < 18 * HOUR else 0)
        ahead_for = 0.0 if wall == true else ahead_for
        seen = observe(seen, wall, passed, policy.clock_doubt)
        agenda = schedule(policy, found, archives, now_ms=seen.now_ms, hour=0, disk_used=0)
        for gone in (a for a in agenda.archives if a.to is None):
            ends = kinds[gone.key].kind.ends
            assert ends is not None
            assert true + slack - kinds[gone.key].last_stored_at > ends
