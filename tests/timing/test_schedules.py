"""Schedules: messages at their times, missed times, pausing, listing, mistakes, costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import (
    CallerError,
    DiskFull,
    Message,
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLarge,
    Retention,
    ScheduleExists,
    ScheduleIllegal,
    ScheduleNotFound,
    Store,
    StoreConfig,
    StoreReadOnly,
    TopicNotFound,
)
from kvstore.timing.firing_chain import MISSED_MAX
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.costs import Costs
from tests.support.stores import SEGMENT, killed, opened, settings
from tests.support.waiting import until

DAY: Final = 86_400


def came(store: Store, topic: str = "t") -> list[int]:
    """The times of the messages in queue 0 of a topic, once nothing is due any more."""
    inside.deliver_due(store)
    found = store.pull(topic, 0, 0, limit=10_000).messages
    return [int(m.properties["SCHEDULED_AT"]) for m in found]


def pass_seconds(store: Store, clock: VirtualClock, seconds: int) -> None:
    """Lets time pass, second by second, with all that is due delivered."""
    for _ in range(seconds):
        clock.advance(1)
        inside.deliver_due(store)


# --- messages ---


def test_a_message_comes_at_each_time_with_the_fields_that_were_given(
    store: Store, clock: VirtualClock
) -> None:
    made = store.schedule(
        "s", "t", bytearray(b"body"), every=10, queue=0, tag="a", keys=("k", "l"),
        properties={"p": "q"}, message_group="g",
    )  # fmt: skip
    begin = clock.now_ms()
    assert (made.created_at, made.next_at, made.is_paused) == (begin, begin + 10_000, False)
    pass_seconds(store, clock, 9)
    assert came(store) == []
    pass_seconds(store, clock, 16)
    assert came(store) == [begin + 10_000, begin + 20_000]
    first, second = store.pull("t", 0, 0).messages
    assert (second.body, second.tag, second.keys, second.message_group) == (
        b"body", "a", ["k", "l"], "g",
    )  # fmt: skip
    assert second.user_properties == {
        "p": "q", "SCHEDULE": "s", "SCHEDULED_AT": str(begin + 20_000),
    }  # fmt: skip
    assert (second.born_at, second.stored_at) == (begin + 20_000, begin + 20_000)
    assert first.message_id != second.message_id
    assert store.schedule_info("s").next_at == begin + 30_000


def test_a_cron_schedule_comes_at_its_local_time(store: Store, clock: VirtualClock) -> None:
    """The clock begins at 2023-11-14 22:13:20 UTC, 23:13:20 in Berlin."""
    store.schedule("s", "t", b"", cron="30 23 * * *", zone="Europe/Berlin", queue=0)
    store.schedule("u", "t", b"", cron="30 23 * * *", queue=1)
    first = 1_700_001_000_000
    assert store.next_firings("s", 3) == [first, first + DAY * 1000, first + 2 * DAY * 1000]
    assert store.next_firings("u", 1) == [first + 3_600_000]
    clock.advance(1000)
    assert came(store) == [first]


def test_a_message_of_a_schedule_expires_so_long_behind_its_time(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    begin = clock.now_ms()
    made = store.schedule("s", "t", b"", every=10, queue=0, missed="all", expires_after=0.5)
    store.schedule("later", "t", b"", every=10, queue=1)
    assert (made.expires_after, store.schedule_info("later").expires_after) == (0.5, None)
    pass_seconds(store, clock, 10)
    (message,) = store.pull("t", 0, 0).messages
    assert message.expires_at == begin + 10_500
    assert store.pull("t", 1, 0).messages[0].expires_at is None
    store.close()
    clock.advance(20)
    with kvstore.open(store.path, config) as again:
        assert again.schedule_info("s").expires_after == 0.5
        assert came(again) == [begin + 30_000], "a missed time's message expired meanwhile"
        assert again.pull("t", 0, 0).expired == 2
        paused = again.pause_schedule("s")
        assert again.resume_schedule("s").expires_after == paused.expires_after == 0.5


def test_a_lifetime_that_ends_behind_2100_ends_with_the_century(tmp_path: Path) -> None:
    clock = VirtualClock(4_000_000_000_000)
    with opened(tmp_path / "s", settings(clock=clock)) as store:
        store.schedule("s", "t", b"", every=10, queue=0, expires_after=1e9)
        pass_seconds(store, clock, 10)
        assert store.pull("t", 0, 0).messages[0].expires_at == 4_102_444_799_999


def test_a_schedule_without_a_queue_spreads_its_messages(store: Store, clock: VirtualClock) -> None:
    store.schedule("s", "t", b"", every=1)
    pass_seconds(store, clock, 20)
    assert [store.bounds("t", queue).next_offset for queue in (0, 1)] == [10, 10]


def test_a_queue_that_the_topic_has_no_more_is_another(store: Store, clock: VirtualClock) -> None:
    store.schedule("s", "t", b"", every=1, queue=1)
    store.alter_topic("t", write_queues=1)
    pass_seconds(store, clock, 3)
    assert len(came(store)) == 3


def test_a_message_comes_by_itself(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_group("g")
        made = store.schedule("s", "t", b"x", every=1)
        (popped,) = store.pop("g", "t", wait=10.0)
        assert popped.message.born_at == made.next_at
        assert popped.message.stored_at >= popped.message.born_at


# --- missed times ---


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    ("missed", "seconds", "wanted"),
    [
        ("once", 35, [30]),
        ("skip", 35, [30]),
        ("all", 35, [10, 20, 30]),
        ("once", 3605, [3600]),
        ("skip", 69, [60]),
        ("skip", 10, [10]),
    ],
)
def test_missed_times_are_put_as_the_schedule_says(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock, is_clean: bool,
    missed: Any, seconds: int, wanted: list[int],
) -> None:  # fmt: skip
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0, missed=missed)
    path = store.path if is_clean else killed(store, tmp_path / "k")
    store.close()
    clock.advance(seconds)
    with kvstore.open(path, config) as again:
        assert came(again) == [begin + 1000 * one for one in wanted]
        following = begin + 1000 * (seconds // 10 + 1) * 10
        assert again.schedule_info("s").next_at == following
        assert [one.deliver_at for one in again.timers().messages] == [following]
        pass_seconds(again, clock, 10)
        assert came(again)[-1] == following
        assert again.verify().problems == []


@pytest.mark.parametrize("passed", [1, 2, 3])
def test_skip_leaves_out_times_that_are_more_than_a_minute_ago(
    store: Store, config: StoreConfig, clock: VirtualClock, passed: int
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=600, queue=0, missed="skip")
    store.close()
    clock.advance(passed * 600 + 61)
    with kvstore.open(store.path, config) as again:
        assert came(again) == []
        assert again.schedule_info("s").next_at == begin + (passed + 1) * 600_000
        assert again.timers().count == 1


def test_all_puts_the_newest_thousand_of_very_many(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    store.schedule("s", "t", b"", every=1, queue=0, missed="all")
    store.close()
    clock.advance(30 * DAY)
    with kvstore.open(store.path, config) as again:
        found = came(again)
        assert len(found) == MISSED_MAX
        assert found == list(range(clock.now_ms() - 999_000, clock.now_ms() + 1, 1000))


def test_a_full_disk_misses_times_and_the_schedule_goes_on(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0)
    full = [True]
    check = inside.log(store).check_disk

    def check_disk() -> None:
        if full[0]:
            raise DiskFull("the disk is full")
        check()

    monkeypatch.setattr(inside.log(store), "check_disk", check_disk)
    clock.advance(35)
    until(lambda: inside.thread(store, "kvmq-delivery").failure)
    with pytest.raises(DiskFull):
        store.schedule("u", "t", b"", every=10)
    with pytest.raises(DiskFull):
        store.pause_schedule("s")
    assert [one.name for one in store.schedules()] == ["s"]
    assert not store.schedule_info("s").is_paused
    full[0] = False
    clock.advance(1)
    assert came(store) == [begin + 30_000]
    assert store.timers().count == 1


def test_a_clock_that_is_stepped_doubles_nothing(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0)
    pass_seconds(store, clock, 25)
    clock.step(-15)
    pass_seconds(store, clock, 12)
    store.close()
    with kvstore.open(store.path, config) as again:
        pass_seconds(again, clock, 10)
        assert came(again) == [begin + 10_000, begin + 20_000, begin + 30_000]


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_schedule_that_is_resumed_by_a_clock_that_was_set_back_doubles_nothing(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock, missed: Any
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0, missed=missed)
    pass_seconds(store, clock, 45)
    store.pause_schedule("s")
    clock.step(-30)
    assert store.next_firings("s", 1) == [begin + 50_000]
    assert store.resume_schedule("s").next_at == begin + 50_000
    clock.step(-5)
    store.pause_schedule("s")
    path = killed(store, tmp_path / "k")
    store.close()
    with kvstore.open(path, config) as again:
        assert again.resume_schedule("s").next_at == begin + 50_000
    with kvstore.open(path, config) as again:
        pass_seconds(again, clock, 45)
        assert came(again) == [begin + n * 10_000 for n in range(1, 6)]


def test_a_schedule_that_the_store_paused_doubles_nothing_when_it_is_resumed(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"x" * 500, every=10, queue=0)
    store.close()
    with kvstore.open(store.path, settings(clock=clock, max_body=400)) as again:
        pass_seconds(again, clock, 11)
        assert again.schedule_info("s").is_paused
    clock.step(-10)
    with kvstore.open(store.path, config) as again:
        assert again.resume_schedule("s").next_at == begin + 20_000
        pass_seconds(again, clock, 20)
        assert came(again) == [begin + 10_000, begin + 20_000]


# --- pausing, deleting ---


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_paused_schedule_puts_nothing_and_goes_on_with_its_next_time(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock, is_checkpointed: bool
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0, missed="all")
    if is_checkpointed:
        store.checkpoint()
    paused = store.pause_schedule("s")
    assert (paused.is_paused, paused.next_at) == (True, None)
    assert store.pause_schedule("s") == paused
    assert store.next_firings("s", 2) == [begin + 10_000, begin + 20_000]
    assert store.timers().count == 0
    for path in (killed(store, tmp_path / "k"), store.path):
        store.close()
        with kvstore.open(path, config) as again:
            pass_seconds(again, clock, 13)
            assert came(again) == []
            assert again.schedule_info("s") == paused
    with kvstore.open(store.path, config) as again:
        resumed = again.resume_schedule("s")
        assert (resumed.is_paused, resumed.next_at) == (False, begin + 30_000)
        assert again.resume_schedule("s") == resumed
        pass_seconds(again, clock, 10)
        assert came(again) == [begin + 30_000]


def test_a_schedule_that_is_paused_and_resumed_within_a_time_puts_it_once(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0)
    for _ in range(3):
        store.pause_schedule("s")
        assert store.resume_schedule("s").next_at == begin + 10_000
    assert store.timers().count == 1
    store.close()
    kvstore.rebuild(store.path, config=config)
    with kvstore.open(store.path, config) as again:
        pass_seconds(again, clock, 25)
        assert came(again) == [begin + 10_000, begin + 20_000]


def test_a_deleted_schedule_ends_and_its_name_is_free(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0)
    pass_seconds(store, clock, 10)
    store.delete_schedule("s")
    for call in (
        store.delete_schedule, store.pause_schedule, store.resume_schedule, store.schedule_info,
        store.next_firings,
    ):  # fmt: skip
        with pytest.raises(ScheduleNotFound, match="no schedule 's'"):
            call("s")
    assert store.schedules() == []
    with kvstore.open(killed(store, tmp_path / "k"), config) as again:
        pass_seconds(again, clock, 20)
        assert came(again) == [begin + 10_000]
    store.schedule("s", "t", b"", every=7, queue=0)
    pass_seconds(store, clock, 7)
    assert came(store) == [begin + 10_000, begin + 37_000]


def test_a_deleted_topic_ends_its_schedules(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    begin = clock.now_ms()
    store.create_topic("u", queues=1)
    store.schedule("a", "u", b"", every=10)
    store.schedule("b", "u", b"", every=10)
    store.schedule("c", "t", b"", every=10, queue=0)
    store.pause_schedule("b")
    store.put("u", b"", delay=5)
    assert store.delete_topic("u") == 2, "the message of the schedule, and the other one"
    assert [one.name for one in store.schedules()] == ["c"]
    store.create_topic("u", queues=1)
    for path in (killed(store, tmp_path / "k"), store.path):
        store.close()
        with kvstore.open(path, config) as again:
            assert [one.name for one in again.schedules()] == ["c"]
            clock.advance(10)
            inside.deliver_due(again)
            assert again.bounds("u", 0).next_offset == 0
            assert came(again)[-1] == clock.now_ms()
            assert again.schedule("a", "u", b"", every=10).created_at > begin


def test_a_message_of_a_schedule_is_neither_cancelled_nor_changed_by_itself(
    store: Store, clock: VirtualClock
) -> None:
    store.schedule("s", "t", b"", every=10, queue=0)
    (waiting,) = store.timers().messages
    with pytest.raises(CallerError, match="next one of schedule 's'"):
        store.cancel(waiting.message_id)
    with pytest.raises(CallerError, match="pause the schedule, or delete it"):
        store.change_delay(waiting.message_id, delay=1)
    pass_seconds(store, clock, 10)
    assert len(came(store)) == 1
    assert not store.cancel(waiting.message_id), "it was delivered"


def test_a_message_that_says_it_is_a_schedules_and_is_not_can_be_cancelled(store: Store) -> None:
    view = store.namespace("n")
    view.create_topic("t", queues=1)
    for name in ("s", "%", "%RETRY%", "a b", "x" * 500):
        for calls in (store, view):
            put = calls.put("t", b"", delay=10, properties={"SCHEDULE": name})
            store.schedule("s", "t", b"", every=10, exist_ok=True)
            assert calls.cancel(put.message_id)


def test_a_message_that_is_due_with_a_schedules_is_not_taken_for_it(
    store: Store, clock: VirtualClock
) -> None:
    made = store.schedule("s", "t", b"", every=10, queue=0, missed="skip")
    put = store.put("t", b"mine", queue=0, deliver_at=made.next_at)
    clock.step(100)
    inside.deliver_due(store)
    assert [m.message_id for m in store.pull("t", 0, 0).messages] == [
        put.message_id, store.pull("t", 0, 1).messages[0].message_id,
    ]  # fmt: skip
    assert store.timers().count == 1


# --- segments that leave, damage ---


def test_the_message_of_a_segment_that_retention_takes_still_comes(
    tmp_path: Path, clock: VirtualClock
) -> None:
    config = settings(clock=clock, retention=Retention(max_bytes=3 * SEGMENT), delete_interval=0.0)
    with opened(tmp_path / "s", config) as store:
        begin = clock.now_ms()
        store.schedule("s", "t", b"", every=1000, queue=0)
        for part in range(2):
            for _ in range(8):
                store.put_batch([Message("t", bytes(2000), queue=1)] * 25)
            if part:
                clock.step(1000)  # it is due, and not delivered yet, when its segment goes
            store.apply_retention()
        assert inside.log(store).first > 0
        assert came(store) == [begin + 1_000_000]
        assert store.timers().count == 1
    with kvstore.open(tmp_path / "s", config) as again:
        clock.advance(1000)
        assert came(again) == [begin + 1_000_000, begin + 2_000_000]


@pytest.mark.parametrize("place", [4, 120], ids=["magic", "body"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_message_is_lost_and_the_schedule_goes_on(
    store: Store, config: StoreConfig, clock: VirtualClock, is_open: bool, place: int
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"x" * 100, every=10, queue=0)
    position = store.timers().messages[0].message.position
    store.close()
    file = store.path / "commitlog" / f"{0:020d}"
    with kvstore.open(store.path, config) as again:
        if not is_open:
            again.close()
        data = bytearray(file.read_bytes())
        data[position + place] ^= 1
        file.write_bytes(bytes(data))
        if is_open:
            pass_seconds(again, clock, 20)
            assert came(again) == [begin + 20_000], "the damaged one is not put anew"
    if not is_open:
        with kvstore.open(store.path, config) as again:
            pass_seconds(again, clock, 20)
            assert came(again) == [begin + 20_000], "the damaged one is not put anew"


def test_a_schedule_whose_message_is_refused_is_paused_and_says_why(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    store.schedule("s", "t", b"x" * 500, every=10, queue=0)
    store.schedule("u", "t", b"x", every=10, queue=1)
    store.close()
    with kvstore.open(store.path, settings(clock=clock, max_body=400)) as again:
        clock.advance(10)
        assert len(came(again)) == 1, "it waits since before"
        found = again.schedule_info("s")
        assert (found.is_paused, found.next_at) == (True, None)
        assert "limit is 400" in str(found.failure)
        with pytest.raises(MessageTooLarge):
            again.resume_schedule("s")
        assert again.schedule_info("s") == found
        assert not again.schedule_info("u").is_paused
    with kvstore.open(store.path, config) as again:
        assert again.resume_schedule("s").failure is None
        pass_seconds(again, clock, 10)
        assert len(came(again)) == 2


# --- listing ---


def test_schedules_are_listed_by_name_and_by_topic(store: Store) -> None:
    store.create_topic("u")
    made = [
        store.schedule("b", "t", b"", cron="0 4 * * *"),
        store.schedule("a", "u", b"", every=5.5, missed="all"),
        store.schedule("c", "t", b"", every=60),
    ]
    assert store.schedules() == [made[1], made[0], made[2]]
    assert store.schedules("u") == [made[1]]
    assert store.schedule_info("b") == made[0]
    assert (made[0].cron, made[0].zone, made[0].every, made[0].missed) == (
        "0 4 * * *", "UTC", None, "once",
    )  # fmt: skip
    assert (made[1].cron, made[1].every, made[1].missed) == (None, 5.5, "all")
    with pytest.raises(TopicNotFound):
        store.schedules("nowhere")
    for count in (0, 1001, "5", True):
        with pytest.raises(CallerError, match="count is"):
            store.next_firings("a", count)  # type: ignore[arg-type]


def test_a_store_that_is_read_only_lists_schedules_and_changes_none(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    made = store.schedule("s", "t", b"", every=10)
    with kvstore.open(killed(store, tmp_path / "k"), config, read_only=True) as reader:
        assert reader.schedules("t") == [made]
        assert reader.next_firings("s", 1) == [made.next_at]
        with pytest.raises(StoreReadOnly):
            reader.schedule("u", "t", b"", every=10)
        for call in (reader.pause_schedule, reader.resume_schedule, reader.delete_schedule):
            with pytest.raises(StoreReadOnly):
                call("s")


# --- mistakes ---


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"cron": "0 25 * * *"}, ScheduleIllegal, "no hour is '25'"),
        ({"every": 0.5}, ScheduleIllegal, "every is 0.5"),
        ({}, ScheduleIllegal, "neither is given"),
        ({"every": 5, "missed": "some"}, CallerError, "missed is 'some'"),
        ({"every": 5, "topic": "nowhere"}, TopicNotFound, "nowhere"),
        ({"every": 5, "topic": 7}, MessageIllegal, "topic is 7"),
        ({"every": 5, "name": ""}, CallerError, "schedule's name is ''"),
        ({"every": 5, "name": "a b"}, CallerError, "schedule's name"),
        ({"every": 5, "name": "n" * 128}, CallerError, "1 to 127"),
        ({"every": 5, "name": None}, CallerError, "schedule's name is None"),
        ({"every": 5, "name": "one%s"}, CallerError, "in the namespace of its topic"),
        ({"every": 5, "body": "text"}, MessageIllegal, "body is text"),
        ({"every": 5, "tag": ""}, MessageIllegal, "tag is ''"),
        ({"every": 5, "keys": "k"}, MessageIllegal, "keys is the text"),
        ({"every": 5, "queue": 2}, MessageIllegal, "no queue 2"),
        ({"every": 5, "properties": {"a": 1}}, MessageIllegal, "property 'a'"),
        ({"every": 5, "properties": 5}, MessageIllegal, "properties is 5"),
        ({"every": 5, "properties": {"SCHEDULE": "x"}}, MessageIllegal, "the schedule's own"),
        ({"every": 5, "properties": {"a": "x" * 32_700}}, PropertiesTooLarge, "limit"),
        ({"every": 5, "body": bytes(2 * SEGMENT)}, MessageTooLarge, "limit"),
        ({"every": 5, "message_group": 5}, MessageIllegal, "message_group is 5"),
        ({"every": 5, "expires_after": 0}, MessageIllegal, "expires_after is 0"),
        ({"every": 5, "expires_after": -1}, MessageIllegal, "expires_after is -1"),
        ({"every": 5, "expires_after": float("nan")}, MessageIllegal, "expires_after is nan"),
        ({"every": 5, "expires_after": "9"}, MessageIllegal, "expires_after is '9'"),
        ({"every": 5, "expires_after": 2e9}, MessageIllegal, "40 years"),
    ],
)
def test_a_schedule_that_is_none_is_refused_and_leaves_nothing(
    store: Store, clock: VirtualClock, asked: dict[str, Any], error: type[Exception], says: str
) -> None:
    asked = {"name": "s", "topic": "t", "body": b"x", **asked}
    with pytest.raises(error, match=says):
        store.schedule(**asked)
    assert store.schedules() == []
    assert store.timers().count == 0


def test_a_name_is_taken_once(store: Store) -> None:
    made = store.schedule("s", "t", b"x", every=10)
    with pytest.raises(ScheduleExists, match="exist_ok=True"):
        store.schedule("s", "t", b"y", every=20)
    assert store.schedule("s", "t", b"y", every=20, exist_ok=True) == made
    assert store.timers().count == 1


def test_a_cron_expression_without_a_time_that_a_message_can_wait_for_is_refused(
    tmp_path: Path,
) -> None:
    """The fifth Monday of a February is in 2072, and then in 2112."""
    with opened(tmp_path / "s", settings(clock=VirtualClock(3_300_000_000_000))) as store:
        with pytest.raises(ScheduleIllegal, match="no time in the next 40 years"):
            store.schedule("s", "t", b"", cron="0 0 * 2 MON#5")
        assert store.schedules() == []


def test_a_topic_that_takes_no_delayed_messages_takes_no_schedule(
    store: Store, clock: VirtualClock
) -> None:
    store.create_topic("ordered", kind="fifo")
    with pytest.raises(MessageIllegal, match="delayed"):
        store.schedule("s", "ordered", b"", every=5, message_group="g")
    store.create_topic("later", kind="delay", queues=1)
    store.schedule("s", "later", b"", every=5)
    pass_seconds(store, clock, 5)
    assert len(came(store, "later")) == 1


# --- costs ---


def test_a_delivery_reads_nothing_of_schedules_whose_time_has_not_come(
    tmp_path: Path, config: StoreConfig, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows are read beside 1, 10 and 100 schedules."""
    costs = Costs(monkeypatch)
    counts = []
    for count in (1, 10, 100):
        with opened(tmp_path / str(count), config) as store:
            for n in range(count):
                store.schedule(f"later-{n}", "t", bytes(1000), every=DAY)
            store.schedule("s", "t", b"", every=10, queue=0)
            # The times of new schedules are written once the disk has their messages.
            store.checkpoint()
            pass_seconds(store, clock, 10)
            with inside.rows_read("meta") as rows, costs.counting() as found:
                pass_seconds(store, clock, 30)
            assert rows == []
            counts.append(found["get"])
            assert len(came(store)) == 4
    assert counts[0] == counts[1] == counts[2]


def test_an_opening_costs_the_same_beside_1_10_and_100_schedules(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a kill, and a schedule's own cost comes when it is due; the disk's reads count."""
    costs = Costs(monkeypatch, upkeep=())
    config = settings(clock=clock, checkpoint_interval=1e9)
    counts: dict[str, list[int]] = {"closed": [], "killed": [], "due": []}
    for count in (1, 10, 100):
        with opened(tmp_path / str(count), config) as store:
            for n in range(count):
                store.schedule(f"s-{n}", "t", b"x", every=DAY + n, queue=0, missed="all")
            store.checkpoint()
            inside.deliver_due(store)
            killed(store, tmp_path / f"killed {count}")
        for name, path in (("closed", str(count)), ("killed", f"killed {count}")):
            with costs.counting() as found, opened(tmp_path / path, config) as store:
                inside.deliver_due(store)
                found_ = store.schedules()
            assert len(found_) == count
            counts[name].append(found.total() - 2 * count)  # `schedules` reads their rows
        with opened(tmp_path / str(count), config) as store:
            before = clock.now_ms()
            clock.step(DAY)
            with costs.counting() as found:
                inside.deliver_due(store)
            assert store.bounds("t", 0).next_offset == 1
            counts["due"].append(found.total())
            clock.step((before - clock.now_ms()) / 1000)
    # The thread that delivers looks once or twice.
    for name, (one, ten, hundred) in counts.items():
        assert max(ten, hundred) <= one + 8, (name, counts)


def test_a_store_whose_schedules_have_no_rows_of_their_times_gets_these(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    """As one has that a kvmq before this made."""
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0)
    families = inside.families(store)
    store.close()
    with kvstore.open(store.path, config) as again:
        families, batch = inside.families(again), inside.families(again).batch()
        for key, _ in list(families.rows("meta", b"schedule_due", b"schedule_duf")):
            batch.delete("meta", key)
        families.write(batch)
        copy = killed(again, store.path.parent / "before")
    with kvstore.open(copy, config) as again:
        pass_seconds(again, clock, 25)
        assert came(again) == [begin + 10_000, begin + 20_000]


# --- aio, namespaces ---


def test_asyncio_has_it_all(tmp_path: Path) -> None:
    async def work() -> None:
        async with kvstore.aio.open(tmp_path / "s") as store:
            await store.create_topic("t")
            made = await store.schedule("s", "t", b"x", every=60)
            assert await store.schedules() == [made]
            assert await store.next_firings("s", 1) == [made.next_at]
            assert (await store.pause_schedule("s")).is_paused
            assert not (await store.resume_schedule("s")).is_paused
            assert (await store.schedule_info("s")).topic == "t"
            await store.delete_schedule("s")
            view = store.namespace("n")
            await view.create_topic("t")
            assert (await view.schedule("s", "t", b"x", every=60)).name == "s"
            assert [one.name for one in await view.schedules("t")] == ["s"]

    asyncio.run(work())


def test_a_namespace_has_its_own_schedules_alone(store: Store, clock: VirtualClock) -> None:
    one, two = store.namespace("one"), store.namespace("two")
    for view in (one, two):
        view.create_topic("t", queues=1)
    mine = one.schedule("s", "t", b"1", every=10)
    two.schedule("s", "t", b"2", every=20)
    store.schedule("s", "t", b"0", every=30, queue=0)
    assert (mine.name, mine.topic) == ("s", "t")
    assert one.schedules() == one.schedules("t") == [mine]
    assert [info.name for info in store.schedules()] == ["one%s", "s", "two%s"]
    with pytest.raises(ScheduleNotFound, match="no schedule 'u'"):
        one.pause_schedule("u")
    pass_seconds(store, clock, 60)
    for topic, count in (("one%t", 6), ("two%t", 3), ("t", 2)):
        found = store.pull(topic, 0, 0).messages
        assert [m.properties["SCHEDULE"] for m in found] == ["s"] * count
    two.delete_schedule("s")
    store.delete_namespace("one")
    assert [info.name for info in store.schedules()] == ["s"]
