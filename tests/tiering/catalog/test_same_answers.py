"""Archives change no answer: messages, groups, times and queries are the same in every tier."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvstore
import kvstore.index.archived
import tiering.catalog.tiers
from kvstore import (
    ArchiveAccess,
    GroupStats,
    Message,
    OffsetNotFound,
    PullStatus,
    Store,
    StoredMessage,
    TopicConfig,
    sql,
)
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import (
    SEGMENT,
    Limits,
    answers,
    by_topic,
    config,
    drop,
    filled,
    hand_over,
    merge,
    put_segments,
    sealed,
    tiers,
)

KEPT = (
    "SCANS_CACHED_MAX",
    "FOUND_CACHED_MAX",
    "GROUPS_CACHED_MAX",
    "GROUPS_CACHED_BYTES_MAX",
    "QUEUE_BLOCKS_CACHED_MAX",
)
SMALLEST = ArchiveAccess(cache_bytes=0, open_bytes=0, readers=1, read_ahead=0)


@pytest.fixture(params=["usual", "smallest"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cache as large as it is, or at its smallest."""
    if request.param == "smallest":
        monkeypatch.setattr(Limits, "access", SMALLEST)
        for name in KEPT:
            monkeypatch.setattr(tiering.catalog.tiers, name, 1)


def test_all_sealed_segments_in_one_archive_each(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock) as store:
        before = answers(store)
        for number in sealed(store):
            hand_over(store, [number])
            assert answers(store) == before
        assert store.stats().segments == 1
        assert store.verify().problems == []
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert answers(store) == before
        assert store.recovery.damage == []


def test_several_segments_in_archives_by_topic_then_merged(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 6) as store:
        before = answers(store)
        first = hand_over(store, [0, 1], by_topic)
        assert len(first.rows) == 2
        assert answers(store) == before
        second = hand_over(store, [2, 3], by_topic)
        assert answers(store) == before
        merge(store, [r.number for made in (first, second) for r in made.rows])
        assert answers(store) == before
        assert store.verify().problems == []
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert answers(store) == before


@pytest.mark.usefixtures("limits")
def test_few_messages_in_archives_by_topic_some_of_them_merged(tmp_path: Path) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4, 8) as store:
        before = answers(store)
        rows = hand_over(store, [0], by_topic).rows + hand_over(store, [1], by_topic).rows
        hand_over(store, [2], by_topic)
        merge(store, [row.number for row in rows])
        assert answers(store) == before
        assert store.verify().problems == []


def test_segments_go_out_of_order_and_the_ones_between_stay_readable(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 6) as store:
        before = answers(store)
        hand_over(store, [1, 3])
        assert answers(store) == before
        merge(store, [0])
        assert answers(store) == before
        assert store.verify().problems == []
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert store.recovery.damage == []
        assert answers(store) == before
        hand_over(store, [0, 2])
        assert answers(store) == before
        put_segments(store, clock, 1, 10)
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert store.recovery.damage == []
        assert store.stats().first_position == 4 * SEGMENT


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_order_of_puts_hand_overs_merges_and_openings(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("any")
    clock = VirtualClock()
    store = filled(path / "a", clock, 2, 12)
    try:
        before = answers(store)
        steps = st.lists(
            st.sampled_from(["put", "move", "move all", "by topic", "merge", "open"]), max_size=8
        )
        for step in data.draw(steps):
            if step == "put":
                put_segments(store, clock, data.draw(st.integers(1, 2)), 12)
                before = answers(store)
            elif step == "merge":
                live = [r.number for r in tiers(store).rows()]
                if live:
                    merge(store, data.draw(st.sets(st.sampled_from(live), min_size=1)))
            elif step == "open":
                store.close()
                store = kvstore.open(path / "a", config(clock))
                assert store.recovery.damage == []
            else:
                numbers = sealed(store)
                if step == "move" and numbers:
                    numbers = list(data.draw(st.sets(st.sampled_from(numbers))))
                if numbers:
                    hand_over(store, numbers, by_topic if step == "by topic" else lambda t: "all")
            assert answers(store) == before
        assert store.verify().problems == []
    finally:
        store.close()
        shutil.rmtree(path)


def popped(store: Store, group: str, **asked: Any) -> list[tuple[Any, ...]]:
    """The messages that a group gets until none is left; some are acked, some given back."""
    out = []
    for turn in range(1000):
        found = store.pop(group, "orders", limit=7, invisible_for=30.0, **asked)
        if not found:
            break
        out += [(p.message, p.attempt, p.due_at) for p in found]
        if turn % 3 == 2:
            store.change_invisible(found[0].receipt, 0)
            found = found[1:]
        store.ack_batch([p.receipt for p in found])
    return out


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("ordered", [False, True])
def test_groups_pop_the_same_messages(tmp_path: Path, ordered: bool) -> None:
    clock = VirtualClock()
    start = clock.now_ms()
    with filled(tmp_path / "a", clock, 5) as store:
        store.create_group("g", ordered=ordered)
        store.create_group("f", ordered=ordered)
        store.pop("g", "orders", limit=20, invisible_for=5.0)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    results = []
    now = clock.now_ms()
    for name in ("a", "b"):
        again = VirtualClock()
        again.advance((now - start) / 1000 + 10)
        with kvstore.open(tmp_path / name, config(again)) as store:
            if name == "b":
                hand_over(store, [0, 1])
                hand_over(store, [3])
            results.append(
                (
                    popped(store, "g"),
                    popped(store, "f", filter="a"),
                    store.lag("g", "orders"),
                    answers(store),
                )
            )
    assert results[0] == results[1]
    assert len(results[0][0]) > 100


@pytest.mark.usefixtures("limits")
def test_what_a_merge_left_out_is_passed_over(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        hand_over(store, [0])
        hand_over(store, [1])
        high = store.bounds("orders", 0).next_offset
        there = {m.offset for m in store.pull("orders", 0, 0, 1000).messages}
        hot = store.pull("orders", 0, max(there)).messages[0].offset
        archived = {o for o in there if store.get("orders", 0, o).position < 2 * SEGMENT}
        keep = {o for o in archived if o % 5 == 3}
        merge(store, [0, 1], lambda queue, offset: queue[1] != 0 or offset in keep)
        left = sorted(keep | (there - archived))
        assert store.bounds("orders", 0) == (min(left), high)
        found = store.pull("orders", 0, min(left), 1000)
        assert [m.offset for m in found.messages] == left
        assert found.next_offset == high
        assert store.pull("orders", 0, left[0] + 1, 1).messages[0].offset == left[1]
        with pytest.raises(OffsetNotFound) as raised:
            store.get("orders", 0, left[0] + 1)
        assert (raised.value.min_offset, raised.value.max_offset) == (left[0], high)
        store.create_group("g")
        got: list[int] = []
        while more := store.pop("g", "orders", limit=1, queue=0):
            got += [p.message.offset for p in more]
            store.ack_batch([p.receipt for p in more])
        assert got == left
        assert hot in got
        assert store.verify().problems == []


def test_a_queue_whose_end_was_erased_is_empty_and_goes_on_where_it_was(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 2) as store:
        high = store.bounds("visits", 1).next_offset
        row = hand_over(store, [0, 1]).rows[0]
        merge(store, [row.number], lambda queue, offset: offset < 2)
        found = store.pull("visits", 1, 0)
        assert [m.offset for m in found.messages] == [0, 1]
        found = store.pull("visits", 1, found.next_offset)
        assert (found.messages, found.next_offset) == ([], high)
        assert found.status is PullStatus.NO_MATCHED_MESSAGE
        for group, ordered in (("g", False), ("o", True)):
            store.create_group(group, ordered=ordered)
            got: list[int] = []
            while more := store.pop(group, "visits", limit=10, queue=1):
                got += [p.message.offset for p in more]
                store.ack_batch([p.receipt for p in more])
            assert got == [0, 1]
        assert store.put("visits", b"next", queue=1).offset == high


def test_an_archive_that_expires_takes_its_messages_along_and_no_offset_comes_twice(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        ends = {q: store.bounds("orders", q).next_offset for q in (0, 1)}
        made = [hand_over(store, [n]).rows[0] for n in (0, 1, 2)]
        first = next(o for o in range(ends[0]) if store.get("orders", 0, o).position >= SEGMENT)
        drop(store, made[0].number)
        assert store.bounds("orders", 0).min_offset == first
        assert store.get("orders", 0, first).offset == first
        for row in made[1:]:
            drop(store, row.number)
        assert store.bounds("orders", 0) == (ends[0], ends[0])
        assert store.query("orders", "all") == []
        assert store.put("orders", b"x", queue=0).offset == ends[0]
    with kvstore.open(tmp_path / "a", config(clock)) as store:
        assert store.put("orders", b"x", queue=1).offset == ends[1]


def test_topics_that_are_not_kept_are_gone_with_their_segment(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 2) as store:
        before = answers(store)
        high = store.bounds("visits", 0).next_offset
        hand_over(store, [0, 1], lambda info: None if info.name == "visits" else "all")
        assert store.bounds("visits", 0) == (high, high)
        orders = [k for k in before if k[0] == "orders"]
        after = answers(store)
        assert {k: after[k] for k in orders} == {k: before[k] for k in orders}


def test_a_deleted_topic_is_gone_from_archives_too(tmp_path: Path) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 3) as store:
        hand_over(store, [0, 1])
        store.delete_topic("orders")
        store.create_topic("orders", queues=2)
        assert store.bounds("orders", 0) == (0, 0)
        assert store.query("orders", "all") == []
        store.put("orders", b"new", queue=0, keys=["all"])
        assert [m.body for m in store.query("orders", "all")] == [b"new"]
        assert store.verify().problems == []


def test_a_message_put_after_its_queue_went_to_archives_follows_the_ones_there(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, 2) as store:
        hand_over(store, sealed(store))
        high = store.bounds("orders", 0).next_offset
        for n in range(3):
            placed = store.put_batch([Message("orders", b"x", queue=0)])[0]
            assert placed.offset == high + n
        found = store.pull("orders", 0, high - 2, 10)
        assert [m.offset for m in found.messages] == list(range(high - 2, high + 3))
        store.checkpoint()
        assert store.pull("orders", 0, high - 2, 10) == found


TOPICS = [
    TopicConfig(name="plain", queues=2),
    TopicConfig(name="urgent", queues=2, kind="priority"),
    TopicConfig(name="latest", queues=2, kind="compacted"),
    TopicConfig(name="again", queues=2),
]
FILTER = "color = 'red' AND n > 10"


def filled_with_kinds(path: Path, clock: VirtualClock) -> Store:
    """Topics of each kind in three sealed segments, one of them deleted and made again between."""
    store = kvstore.open(path, config(clock))
    store.create_topics(TOPICS)
    for n in range(60):
        for name in ("plain", "urgent", "latest", "again"):
            message = Message(
                name, b"%d " % n * (n % 9), queue=n // 2 % 2, tag="ab"[n % 2],
                keys=(f"k{n % 7}", "all"), message_group=f"m{n % 5}",
                properties={"n": str(n), "color": ("red", "blue")[n % 3 == 0]},
            )  # fmt: skip
            store.put_batch([message])
            clock.advance(0.25)
        if n == 25:
            store.delete_topic("again")
            store.create_topic("again", queues=2)
        if n % 20 == 19:
            store.seal()
    store.create_group("plain", max_attempts=2)
    store.create_group("ordered", ordered=True, max_attempts=2)
    for group in ("plain", "ordered"):
        # Under lock, and partly given up on, when segments leave the log.
        store.pop(group, "plain", limit=6, invisible_for=3.0)
    return store


def rounds(
    store: Store, clock: VirtualClock, group: str, topic: str, most: int, **asked: Any
) -> list[Any]:
    """Pops, of which some are acked, some given back, and some forgotten."""
    out: list[Any] = []
    for turn in range(most):
        found = store.pop(group, topic, limit=3 + turn % 4, invisible_for=2.0, **asked)
        out.append([(p.message, p.attempt, p.due_at) for p in found])
        done = [p for i, p in enumerate(found) if (i + turn) % 4]
        left = [p for i, p in enumerate(found) if not (i + turn) % 4]
        store.ack_batch([p.receipt for p in done])
        if left and turn % 2:
            store.change_invisible(left[0].receipt, 0)
        clock.advance(0.7)
    return out


def life(store: Store, clock: VirtualClock, between: Callable[[], None]) -> list[Any]:
    """All that groups are told, with what happens to segments and archives `between` the calls."""
    start = store.get("plain", 0, 10).stored_at
    out: list[Any] = []
    for group in ("plain", "ordered"):
        out.append(rounds(store, clock, group, "plain", 6))
        between()
        clock.advance(10)
        out.append(rounds(store, clock, group, "plain", 6))
        clock.advance(10)
        out.append(rounds(store, clock, group, "plain", 3))
        out.append(store.group_stats(group))
        out.append(store.redrive(group, limit=3))
        out.append(rounds(store, clock, group, "plain", 4))
        out.append(store.redrive(group))
        between()
        out.append(store.reset_offset(group, "plain", time=start + 1))
        out.append(rounds(store, clock, group, "plain", 4, filter=sql(FILTER)))
        out.append(store.reset_offset(group, "plain", offset=3, queue=1))
        out.append(rounds(store, clock, group, "plain", 3, queue=1, filter="b"))
        out.append(store.lag(group))
        out += [rounds(store, clock, group, topic, 6) for topic in ("urgent", "latest", "again")]
    store.create_group("late", start=start + 3)
    out.append(rounds(store, clock, "late", "plain", 2))
    out.append(rounds(store, clock, "late", "again", 2, max_bytes=400))
    again = store.pop("late", "plain", limit=4, attempt_id="one")
    between()
    more = store.pop("late", "plain", limit=4, attempt_id="one")
    out.append([(p.message, p.attempt) for p in again] == [(p.message, p.attempt) for p in more])
    out.append([p.message for p in again])
    # Dead letters have ids of their own each time.
    out.append({k: v for k, v in answers(store).items() if not _is_copy(k, v)})
    return out


def _is_copy(asked: Any, answer: Any) -> bool:
    topic = answer.topic if isinstance(answer, StoredMessage) else str(asked[0])
    return topic.startswith("%DLQ%")


def with_ages_of_archives(hot: Any, moved: Any) -> Any:
    """Figures of a store in which nothing moved, with the ages of one in which messages moved: an
    archived message counts as old as the first of its archive, which is not read for it.
    """
    if not isinstance(hot, list) or not hot or not isinstance(hot[0], GroupStats):
        return hot
    return [
        msgspec.structs.replace(a, oldest_at=b.oldest_at)
        if a.oldest_at is not None and b.oldest_at is not None and b.oldest_at <= a.oldest_at
        else a
        for a, b in zip(hot, moved, strict=True)
    ]


@pytest.mark.parametrize("fetched", [kvstore.index.archived.FETCHED_MAX, 1])
def test_groups_of_all_kinds_live_as_if_nothing_had_moved_however_little_a_call_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: int
) -> None:
    monkeypatch.setattr(kvstore.index.archived, "FETCHED_MAX", fetched)
    clock = VirtualClock()
    begun = clock.now_ms()
    with filled_with_kinds(tmp_path / "a", clock):
        pass
    spent = (clock.now_ms() - begun) / 1000
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = []
    for name in ("a", "b"):
        clock = VirtualClock()
        clock.advance(spent)
        with kvstore.open(tmp_path / name, config(clock)) as store:

            def between(store: Store = store, is_moved: bool = name == "b") -> None:
                store.seal()
                if not is_moved:
                    return
                hand_over(store, sealed(store)[:2])
                rows = tiers(store).rows()
                if len(rows) > 2:
                    merge(store, [row.number for row in rows])

            found.append(life(store, clock, between))
            assert (len(tiers(store).rows()) > 0) == (name == "b")
    for a, b in zip(*found, strict=True):
        assert with_ages_of_archives(a, b) == b
