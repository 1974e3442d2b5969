"""Delayed messages: when they come, that they come once, cancelling, changing, listing."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import kvstore
from kvstore import (
    CallerError,
    DelayEnded,
    DiskFull,
    Message,
    MessageIllegal,
    MessageNotFound,
    Retention,
    Store,
    StoreConfig,
    StoreReadOnly,
    TopicNotFound,
)
from kvstore.clock import SystemClock
from kvstore.core.names import DELAY_LEVELS_MS, TIMER_TOPIC
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import SEGMENT, flip, killed, opened, settings
from tests.support.waiting import until

DAY: Final = 86_400.0


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    """All bodies of a topic's queue 0, in order."""
    return [m.body for m in store.pull(topic, 0, 0, limit=10_000).messages]


def arrives(store: Store, count: int) -> list[bytes]:
    """The bodies of queue 0, once there are so many and nothing is due any more."""
    until(lambda: store.bounds("t", 0).next_offset >= count)
    inside.deliver_due(store)
    return bodies(store)


# --- when ---


def test_a_delayed_message_comes_at_its_time_and_not_before(
    store: Store, clock: VirtualClock
) -> None:
    at = clock.now_ms() + 10_000
    put = store.put("t", b"x", queue=0, deliver_at=at, tag="a", keys=["k"], properties={"p": "q"})
    assert (put.topic, put.queue, put.offset) == ("t", 0, -1)
    clock.advance(9.999)
    inside.deliver_due(store)
    assert bodies(store) == []
    assert store.query("t", "k") == []
    clock.advance(0.001)
    inside.deliver_due(store)
    assert bodies(store) == [b"x"]
    (message,) = store.query("t", "k")
    assert (message.tag, message.user_properties, message.keys) == ("a", {"p": "q"}, ["k"])
    assert (message.message_id, message.stored_at) == (put.message_id, at)
    assert store.find(put.message_id) == message


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ({"delay": 12.5}, 12.5),
        ({"delay": 0.069}, 0.069),
        ({"delay": 40 * 365.25 * DAY}, 40 * 365.25 * DAY),
        *(({"delay_level": n + 1}, ms / 1000) for n, ms in enumerate(DELAY_LEVELS_MS)),
    ],
)
def test_a_delay_is_as_long_as_asked(
    store: Store, clock: VirtualClock, asked: dict[str, Any], seconds: float
) -> None:
    put = store.put("t", b"x", queue=0, **asked)
    assert store.timer(put.message_id).deliver_at == clock.now_ms() + round(seconds * 1000)


@pytest.mark.parametrize("asked", [{"delay": 0}, {"deliver_at": 1_000_000_000_000}])
def test_a_time_that_has_passed_is_now(store: Store, asked: dict[str, Any]) -> None:
    assert store.put("t", b"x", queue=0, **asked).offset == 0
    assert bodies(store) == [b"x"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"delay": -1}, "delay is -1"),
        ({"delay": math.nan}, "delay is nan"),
        ({"delay": math.inf}, "delay is inf"),
        ({"delay": True}, "delay is True"),
        ({"delay": "5"}, "delay is '5'"),
        ({"delay": 41 * 365.25 * DAY}, "40 years"),
        ({"deliver_at": -5}, "deliver_at is -5"),
        ({"deliver_at": 1_700_000_100}, "whole milliseconds"),
        ({"deliver_at": 1_700_000_100_000_000}, "whole milliseconds"),
        ({"deliver_at": 1_700_000_100_000.0}, "whole milliseconds"),
        ({"deliver_at": 3_400_000_000_000}, "40 years"),
        ({"delay_level": 0}, "delay_level is 0"),
        ({"delay_level": 19}, "1 to 18"),
        ({"delay": 1, "delay_level": 1}, "delay and delay_level"),
        ({"delay": 1, "deliver_at": 1_700_000_100_000}, "deliver_at and delay"),
    ],
)
def test_a_time_that_is_none_is_refused(store: Store, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(MessageIllegal, match=says):
        store.put("t", b"x", **asked)
    with pytest.raises(MessageIllegal, match=f"message 1 of 2: .*{says}"):
        store.put_batch([Message("t", b"x"), Message("t", b"y", **asked)])
    assert bodies(store) == []


def test_only_the_store_puts_to_the_topic_in_which_messages_wait(store: Store) -> None:
    store.put("t", b"x", delay=1)
    with pytest.raises(MessageIllegal, match="wait in the topic"):
        store.put(TIMER_TOPIC, b"x")


def test_the_topic_in_which_messages_wait_is_not_made_by_a_callers_put(
    tmp_path: Path, config: StoreConfig
) -> None:
    auto = msgspec.structs.replace(config, auto_create_topics=True)
    with opened(tmp_path / "auto", auto) as store, pytest.raises(MessageIllegal, match="wait in"):
        store.put(TIMER_TOPIC, b"x")


def test_a_reserved_name_of_the_field_says_what_to_use(store: Store) -> None:
    with pytest.raises(MessageIllegal, match="use deliver_at="):
        store.put("t", b"x", properties={"TIMER_DELIVER_MS": "5"})


def test_messages_come_in_the_order_in_which_they_are_due(
    store: Store, clock: VirtualClock
) -> None:
    """Those of one time in the order of their puts, whether or not a checkpoint has them."""
    due = [5, 3, 9, 3, 7, 1, 9, 5]
    for n, seconds in enumerate(due):
        store.put("t", b"%d" % n, queue=0, delay=seconds)
        if n in (2, 5):
            store.checkpoint()
    clock.advance(10)
    order = sorted(range(len(due)), key=lambda n: (due[n], n))
    assert arrives(store, len(due)) == [b"%d" % n for n in order]


def test_more_messages_than_one_put_takes_come_in_order(store: Store, clock: VirtualClock) -> None:
    for part in range(3):
        store.put_batch(
            [
                Message("t", b"%d %d" % (n % 7, part * 1000 + n), queue=0, delay=1 + n % 7)
                for n in range(1000)
            ]
        )
        if part < 2:
            store.checkpoint()
    clock.advance(10)
    found = arrives(store, 3000)
    assert len(found) == 3000
    numbers = [tuple(map(int, body.split())) for body in found]
    assert numbers == sorted(numbers)


def test_a_message_group_stays_in_one_queue(store: Store, clock: VirtualClock) -> None:
    now = store.put("t", b"0", message_group="u")
    for n in range(1, 4):
        store.put("t", b"%d" % n, message_group="u", delay=n)
    clock.advance(5)
    until(lambda: store.bounds("t", now.queue).next_offset == 4)
    found = store.pull("t", now.queue, 0).messages
    assert [m.body for m in found] == [b"0", b"1", b"2", b"3"]
    assert {m.message_group for m in found} == {"u"}


def test_a_delayed_message_keeps_its_time_to_live(store: Store, clock: VirtualClock) -> None:
    now = clock.now_ms()
    for lives in (20_000, 5_000):
        store.put("t", b"%d" % lives, queue=0, delay=10.0, expires_at=now + lives)
    changed = store.put("t", b"changed", queue=0, delay=3600.0, expires_at=now + 20_000)
    assert changed.message_id is not None
    store.change_delay(changed.message_id, delay=12.0)
    clock.advance(13)
    until(lambda: store.bounds("t", 0).next_offset == 3)
    found = store.pull("t", 0, 0)
    assert [(m.body, m.expires_at) for m in found.messages] == [
        (b"20000", now + 20_000),
        (b"changed", now + 20_000),
    ]
    assert found.expired == 1, "it expired while it waited"
    clock.advance(8)
    assert store.pull("t", 0, 0).expired == 3


def test_a_queue_that_the_topic_has_no_more_is_another(store: Store, clock: VirtualClock) -> None:
    store.put("t", b"x", queue=1, delay=1)
    store.alter_topic("t", write_queues=1)
    clock.advance(1)
    assert arrives(store, 1) == [b"x"]


def test_a_pop_that_waits_gets_a_delayed_message(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_group("g")
        store.put("t", b"x", delay=0.05)
        (popped,) = store.pop("g", "t", wait=10.0)
        assert popped.message.body == b"x"
        late = popped.message.stored_at - int(popped.message.properties["TIMER_OUT_MS"])
        assert late >= 0


def test_an_earlier_message_wakes_a_thread_that_sleeps_for_a_later_one(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.put("t", b"later", queue=0, delay=3600)
        SystemClock().sleep(0.05)
        store.put("t", b"soon", queue=0, delay=0.01)
        assert arrives(store, 1) == [b"soon"]


# --- a clock that is stepped ---


def test_a_clock_that_is_stepped_delivers_nothing_twice(store: Store, clock: VirtualClock) -> None:
    for n in range(4):
        store.put("t", b"%d" % n, queue=0, delay=10 * (n + 1))
    clock.advance(20)
    assert arrives(store, 2) == [b"0", b"1"]
    clock.step(-3600)
    store.put("t", b"4", queue=0, delay=5)  # due long before what was delivered
    store.checkpoint()
    inside.deliver_due(store)
    assert len(bodies(store)) == 2
    clock.advance(5)
    assert arrives(store, 3) == [b"0", b"1", b"4"]
    clock.step(7200)
    clock.advance(1)
    assert arrives(store, 5) == [b"0", b"1", b"4", b"2", b"3"]
    assert store.timers().count == 0


# --- cancelling ---


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_cancelled_message_never_comes(
    store: Store, clock: VirtualClock, is_checkpointed: bool
) -> None:
    put = [store.put("t", b"%d" % n, queue=0, delay=5) for n in range(3)]
    if is_checkpointed:
        store.checkpoint()
    assert store.cancel(put[1].message_id)
    assert store.cancel(put[1].message_id), "it stays cancelled"
    assert store.timers("t").count == 2
    clock.advance(5)
    assert arrives(store, 2) == [b"0", b"2"]
    assert not store.cancel(put[0].message_id), "it was delivered"
    assert store.cancel(put[1].message_id)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_message_that_waits_is_cancelled_though_a_later_one_has_its_id(
    store: Store, clock: VirtualClock, is_checkpointed: bool
) -> None:
    store.put("t", b"waits", message_id="order-17", delay=5)
    store.put("t", b"later", message_id="order-17", queue=0)
    if is_checkpointed:
        store.checkpoint()
    assert store.cancel("order-17")
    clock.advance(6)
    inside.deliver_due(store)
    assert arrives(store, 1) == [b"later"]
    assert store.timers().count == 0


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_cancel_and_change_reach_all_messages_that_wait_with_an_id(
    store: Store, clock: VirtualClock, is_checkpointed: bool
) -> None:
    store.create_topic("u", queues=1)
    for topic, delay in (("t", 5), ("t", 6), ("u", 7)):
        store.put(topic, b"cancelled", message_id="twice", delay=delay)
        store.put(topic, b"changed", queue=0, message_id="moved", delay=delay)
        if is_checkpointed:
            store.checkpoint()
    store.change_delay("moved", delay=60)
    assert store.cancel("twice")
    assert store.cancel("twice"), "they stay cancelled"
    assert (store.timers().count, store.stats().delays.cancelled) == (3, 3)
    clock.advance(59)
    inside.deliver_due(store)
    assert bodies(store) == bodies(store, "u") == []
    clock.advance(1)
    inside.deliver_due(store)
    assert (bodies(store), bodies(store, "u")) == ([b"changed"] * 2, [b"changed"])


def test_a_message_that_waits_is_shown_and_cancelled_beside_a_delivered_one_with_its_id(
    store: Store, clock: VirtualClock
) -> None:
    store.put("t", b"waits", message_id="again", delay=60)
    store.put("t", b"came", queue=0, message_id="again", delay=1)
    clock.advance(2)
    assert arrives(store, 1) == [b"came"]
    assert store.timer("again").message.body == b"waits"
    assert store.cancel("again")
    clock.advance(60)
    inside.deliver_due(store)
    assert bodies(store) == [b"came"]


def test_a_cancel_of_a_message_that_was_never_delayed_says_that_it_is_delivered(
    store: Store,
) -> None:
    assert not store.cancel(store.put("t", b"x").message_id)


def test_a_cancel_of_an_unknown_message_says_so(store: Store) -> None:
    with pytest.raises(MessageNotFound):
        store.cancel("7F00000100007EE371800000")
    with pytest.raises(CallerError):
        store.cancel(7)  # type: ignore[arg-type]


def test_the_answer_of_a_cancel_is_true_beside_the_delivery(tmp_path: Path) -> None:
    """Each message was either cancelled, or delivered; never both, and one of them."""
    with opened(tmp_path / "s") as store:
        put = store.put_batch(
            [Message("t", b"%d" % n, queue=0, delay=0.03 + n * 0.0002) for n in range(400)]
        )
        cancelled: set[int] = set()

        def cancel(first: int) -> None:
            for n in range(first, 400, 2):
                if store.cancel(put[n].message_id):
                    cancelled.add(n)

        threads = [threading.Thread(target=cancel, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: store.timers().count == 0)
        delivered = {int(body) for body in bodies(store)}
        assert len(bodies(store)) == len(delivered)
        assert delivered.isdisjoint(cancelled)
        assert delivered | cancelled == set(range(400))


# --- changing ---


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_changed_message_comes_at_its_new_time_once(
    store: Store, clock: VirtualClock, is_checkpointed: bool
) -> None:
    put = store.put("t", b"x", queue=0, delay=10, keys=["k"])
    if is_checkpointed:
        store.checkpoint()
    at = clock.now_ms() + 30_000
    assert store.change_delay(put.message_id, deliver_at=at) == at
    assert store.timer(put.message_id).deliver_at == at
    assert store.timers("t").count == 1
    clock.advance(29)
    inside.deliver_due(store)
    assert bodies(store) == []
    clock.advance(1)
    assert arrives(store, 1) == [b"x"]
    clock.advance(100)
    assert arrives(store, 1) == [b"x"]
    assert [m.message_id for m in store.query("t", "k")] == [put.message_id]


def test_a_message_can_be_changed_to_come_now(store: Store) -> None:
    put = store.put("t", b"x", queue=0, delay=10)
    store.change_delay(put.message_id, delay=0)
    assert bodies(store) == [b"x"]
    assert store.timers().count == 0


def test_a_message_that_waits_no_more_can_not_be_changed(store: Store, clock: VirtualClock) -> None:
    gone, came = (store.put("t", b"x", queue=0, delay=1) for _ in range(2))
    store.cancel(gone.message_id)
    clock.advance(1)
    arrives(store, 1)
    for put, was_cancelled in ((gone, True), (came, False)):
        with pytest.raises(DelayEnded) as e:
            store.change_delay(put.message_id, delay=5)
        assert e.value.is_cancelled is was_cancelled
        with pytest.raises(DelayEnded):
            store.timer(put.message_id)
    with pytest.raises(CallerError, match="deliver_at or delay"):
        store.change_delay(came.message_id)
    with pytest.raises(MessageIllegal):
        store.change_delay(came.message_id, delay=-1)


# --- listing ---


def test_messages_that_wait_are_listed_by_page_in_due_order(
    store: Store, clock: VirtualClock
) -> None:
    store.create_topic("u", queues=1)
    due = [5, 3, 9, 3, 7, 1]
    for n, seconds in enumerate(due):
        store.put("t" if n % 2 else "u", b"%d" % n, delay=seconds)
        if n == 2:
            store.checkpoint()
    order = sorted(range(6), key=lambda n: (due[n], n))
    for topic in (None, "t", "u"):
        wanted = [n for n in order if topic is None or ("t" if n % 2 else "u") == topic]
        found, after = list[int](), None
        while True:
            page = store.timers(topic, limit=2, after=after)
            assert page.count == len(wanted)
            found += [int(one.message.body) for one in page.messages]
            after = page.next
            if after is None:
                break
        assert found == wanted
    first = store.timers(limit=1).messages[0]
    assert (first.topic, first.deliver_at) == ("t", clock.now_ms() + 1000)


def test_a_wrong_page_is_refused(store: Store) -> None:
    for limit in (0, -1, 1 << 20, "5", True):
        with pytest.raises(CallerError, match="limit is"):
            store.timers(limit=limit)  # type: ignore[arg-type]
    for after in (5, (1,), ("a", "b"), (10**400, 0), (0, 1 << 63), (-2, 0)):
        with pytest.raises(CallerError, match="after is"):
            store.timers(after=after)  # type: ignore[arg-type]
        with pytest.raises(CallerError, match="after is"):
            store.transactions(after=after)  # type: ignore[arg-type]
    with pytest.raises(TopicNotFound):
        store.timers("nowhere")


def test_a_store_that_is_read_only_lists_and_changes_nothing(
    tmp_path: Path, store: Store, config: StoreConfig
) -> None:
    put = [store.put("t", b"%d" % n, delay=5) for n in range(2)]
    store.checkpoint()
    store.put("t", b"2", delay=1)
    with kvstore.open(killed(store, tmp_path / "k"), config=config, read_only=True) as reader:
        assert [one.message.body for one in reader.timers("t").messages] == [b"2", b"0", b"1"]
        assert reader.timers("t").count == 3
        assert reader.timer(put[0].message_id).topic == "t"
        with pytest.raises(StoreReadOnly):
            reader.cancel(put[0].message_id)
        with pytest.raises(StoreReadOnly):
            reader.change_delay(put[0].message_id, delay=5)


# --- across openings ---


@pytest.mark.parametrize("is_clean", [True, False])
def test_overdue_messages_come_at_once_when_the_store_is_opened(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock, is_clean: bool
) -> None:
    for n in range(10):
        store.put("t", b"%d" % n, queue=0, delay=10 - n)
        if n == 4:
            store.checkpoint()
    path = store.path if is_clean else killed(store, tmp_path / "k")
    store.close()
    clock.advance(3600)
    with kvstore.open(path, config=config) as again:
        assert arrives(again, 10) == [b"%d" % n for n in range(9, -1, -1)]
        assert again.timers().count == 0
        assert again.verify().problems == []


def test_what_was_delivered_cancelled_and_changed_is_so_after_a_crash(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    """Of messages that a checkpoint has, and of others; after a second crash, too."""
    early = [store.put("t", b"e%d" % n, queue=0, delay=10) for n in range(4)]
    store.checkpoint()
    late = [store.put("t", b"l%d" % n, queue=0, delay=10) for n in range(4)]
    for put in (early, late):
        store.cancel(put[0].message_id)
        store.change_delay(put[1].message_id, delay=20)
        store.change_delay(put[2].message_id, delay=0)
    path = killed(store, tmp_path / "k")
    for n in range(2):
        with kvstore.open(path, config=config) as again:
            inside.deliver_due(again)
            assert bodies(again) == [b"e2", b"l2"]
            assert [one.message.body for one in again.timers().messages] == [
                b"e3", b"l3", b"e1", b"l1",
            ]  # fmt: skip
            assert again.timers("t").count == 4
            assert again.cancel(early[0].message_id)
            path = killed(again, tmp_path / f"k{n}")
    clock.advance(30)
    with kvstore.open(path, config=config) as again:
        assert arrives(again, 6) == [b"e2", b"l2", b"e3", b"l3", b"e1", b"l1"]


def test_a_rebuild_finds_what_waits_and_delivers_nothing_twice(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    put = [store.put("t", b"%d" % n, queue=0, delay=n % 4 + 1) for n in range(40)]
    store.cancel(put[3].message_id)
    store.checkpoint()
    clock.advance(2)
    arrives(store, 20)
    store.close()
    kvstore.rebuild(store.path, config=config)
    with kvstore.open(store.path, config=config) as again:
        assert again.timers("t").count == 19
        clock.advance(5)
        found = arrives(again, 39)
        assert sorted(map(int, found)) == sorted(set(range(40)) - {3})
        assert again.timers().count == 0


def test_a_message_of_a_segment_that_retention_takes_still_comes(
    tmp_path: Path, clock: VirtualClock
) -> None:
    config = settings(clock=clock, retention=Retention(max_bytes=3 * SEGMENT), delete_interval=0.0)
    with opened(tmp_path / "s", config) as store:
        put = [store.put("t", b"%d" % n, queue=0, delay=1000) for n in range(5)]
        store.cancel(put[4].message_id)
        for _ in range(8):
            store.put_batch([Message("t", bytes(2000), queue=1)] * 25)
        store.apply_retention()
        assert inside.log(store).first > 0
        assert store.timers("t").count == 4
        again_path = killed(store, tmp_path / "k")
        clock.advance(1000)
        assert arrives(store, 4) == [b"%d" % n for n in range(4)]
    with kvstore.open(again_path, config=config) as again:
        assert arrives(again, 4) == [b"%d" % n for n in range(4)]


def test_a_deleted_topic_takes_its_messages_with_it(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    store.create_topic("u", queues=1)
    for n in range(6):
        store.put("t" if n % 2 else "u", b"%d" % n, delay=1)
        if n == 3:
            store.checkpoint()
    assert store.delete_topic("u") == 3
    store.create_topic("u", queues=1)
    path = killed(store, tmp_path / "k")
    for folder in (store.path, path):
        store.close()
        with kvstore.open(folder, config=config) as again:
            assert again.timers("u").count == 0
            clock.advance(2)
            inside.deliver_due(again)
            until(lambda a=again: a.timers().count == 0)
            assert again.bounds("u", 0).next_offset == 0
    kvstore.rebuild(path, config=config)
    with kvstore.open(path, config=config) as again:
        assert again.timers().count == 0


@pytest.mark.parametrize("is_namespace", [False, True])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_message_that_went_with_its_topic_will_not_be_delivered(
    store: Store, config: StoreConfig, clock: VirtualClock, is_namespace: bool, is_made_again: bool
) -> None:
    store.create_namespace("n")
    view = store.namespace("n") if is_namespace else store
    view.create_topic("u", queues=1)
    came = view.put("u", b"came", delay=1).message_id
    clock.advance(2)
    until(lambda: view.bounds("u", 0).next_offset == 1)
    gone = view.put("u", b"gone", delay=60).message_id
    if is_namespace:
        store.delete_namespace("n")
    else:
        store.delete_topic("u")
    if is_made_again:
        view.create_topic("u", queues=1)

    def check(store: Store) -> None:
        assert store.cancel(gone)
        for call in (store.timer, lambda message_id: store.change_delay(message_id, delay=1)):
            with pytest.raises(DelayEnded, match="was deleted") as e:
                call(gone)
            assert e.value.is_cancelled
        assert not store.cancel(came), "it was delivered before"

    check(store)
    store.checkpoint()
    check(store)
    store.close()
    with kvstore.open(store.path, config=config) as again:
        check(again)


def test_a_full_disk_keeps_messages_due(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("t", b"x", queue=0, delay=1)
    full = [True]
    check = inside.log(store).check_disk

    def check_disk() -> None:
        if full[0]:
            raise DiskFull("the disk is full")
        check()

    monkeypatch.setattr(inside.log(store), "check_disk", check_disk)
    clock.advance(2)
    until(lambda: inside.thread(store, "kvmq-delivery").failure)
    assert store.timers("t").count == 1
    assert "the disk is full" in str(inside.thread(store, "kvmq-delivery").failure)
    full[0] = False
    clock.advance(1)
    until(lambda: bodies(store) == [b"x"])
    until(lambda: inside.thread(store, "kvmq-delivery").failure is None)
    assert store.timers("t").count == 0


def test_a_damaged_message_keeps_none_of_the_others(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    put = [store.put("t", b"%d" % n * 50, queue=0, delay=5) for n in range(3)]
    store.close()
    file = store.path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[put[1].position + 100] ^= 1
    file.write_bytes(bytes(data))
    with kvstore.open(store.path, config=config) as again:
        clock.advance(5)
        assert arrives(again, 2) == [b"0" * 50, b"2" * 50]
        assert [p for p in again.verify().problems if str(put[1].position) in str(p)]


def counted(store: Store) -> tuple[int, int]:
    """How many messages wait, and how many are damaged, as all calls say."""
    found = store.stats().delays
    for page in (store.timers(), store.timers("t"), store.timers(limit=1)):
        assert (page.count, page.damaged) == (found.waiting, found.damaged)
    return found.waiting, found.damaged


@pytest.mark.parametrize("place", [100, 4], ids=["body", "magic"])
def test_a_damaged_message_that_is_due_counts_as_damaged_and_comes_when_it_is_mended(
    store: Store, config: StoreConfig, clock: VirtualClock, place: int
) -> None:
    put = [store.put("t", b"%d" % n * 50, queue=0, delay=5) for n in range(3)]
    store.put("t", b"later", queue=0, delay=60)
    store.namespace("n").create_topic("t")
    store.close()
    for one in put[:2]:
        flip(store.path, one.position + place)
    with kvstore.open(store.path, config=config) as again:
        assert counted(again) == (4, 0), "they can still be mended until they are due"
        clock.advance(5)
        assert arrives(again, 1) == [b"2" * 50]
        assert counted(again) == (1, 2)
        assert again.stats().delays.next_due == clock.now_ms() + 55_000
        assert again.namespace("n").timers().damaged == 0
        again.checkpoint()
        assert counted(again) == (1, 2)
        with kvstore.open(store.path, config, read_only=True) as beside:
            assert counted(beside) == (1, 2)
            assert beside.stats().delays.next_due == clock.now_ms() + 55_000
    for one in put[:2]:
        flip(store.path, one.position + place)
    with kvstore.open(store.path, config=config) as again:
        assert sorted(arrives(again, 3)) == [b"%d" % n * 50 for n in range(3)]
        assert counted(again) == (1, 0)


def test_where_nobody_delivers_so_many_damaged_messages_are_looked_for_and_the_others_wait(
    store: Store, config: StoreConfig, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = [store.put("t", b"x" * 50, queue=0, delay=5) for _ in range(20)]
    store.close()
    for one in put:
        flip(store.path, one.position + 100)
    clock.step(6_000)
    with kvstore.open(store.path, config, read_only=True) as beside:
        assert counted(beside) == (0, 20)
        assert beside.stats().delays.next_due is None
        monkeypatch.setattr("kvstore.timing.timers._DAMAGED_MAX", 9)
        assert counted(beside) == (4, 16), "whole looks of 8"


@pytest.mark.parametrize("place", [100, 4], ids=["body", "magic"])
@pytest.mark.parametrize("is_due", [True, False])
def test_a_damaged_message_waits_no_more_when_its_segment_leaves_the_log(
    tmp_path: Path, clock: VirtualClock, place: int, *, is_due: bool
) -> None:
    config = settings(clock=clock, retention=Retention(max_bytes=3 * SEGMENT), delete_interval=0.0)
    with opened(tmp_path / "s", config) as store:
        put = [store.put("t", b"%d" % n * 50, queue=0, delay=5) for n in range(3)]
        store.checkpoint()
        for one in put[:2]:
            flip(store.path, one.position + place)
        if is_due:
            clock.advance(5)
            arrives(store, 1)
            assert counted(store) == (0, 2)
        for _ in range(12):
            store.put_batch([Message("t", bytes(2000), queue=1)] * 25)
        store.apply_retention()
        assert inside.log(store).first > 0
        assert counted(store) == (0 if is_due else 1, 0)
        if place == 100:  # the record still says its id
            with pytest.raises(DelayEnded, match="its record was damaged"):
                store.timer(put[0].message_id)
            assert store.cancel(put[1].message_id)
        assert store.verify().problems == []
    for is_rebuilt in (False, True):
        if is_rebuilt:
            kvstore.rebuild(tmp_path / "s", config)
        with kvstore.open(tmp_path / "s", config) as store:
            assert counted(store) == (0 if is_due else 1, 0)
            assert store.verify().problems == []
    with kvstore.open(tmp_path / "s", config) as store:
        if not is_due:  # else it came, and its copy left the log
            clock.advance(5)
            assert arrives(store, 1) == [b"2" * 50]


def test_stats_say_how_many_wait_and_how_late_they_came(store: Store, clock: VirtualClock) -> None:
    put = [store.put("t", b"x", queue=0, delay=n) for n in (1, 2, 50, 60)]
    store.cancel(put[2].message_id)
    clock.advance(1)
    arrives(store, 1)
    found = store.stats().delays
    assert (found.waiting, found.next_due) == (2, clock.now_ms() + 1000)
    assert (found.delivered, found.cancelled, found.late_ms) == (1, 1, 0)


# --- costs ---


def test_the_rows_of_many_messages_are_not_read_when_a_store_opens(
    tmp_path: Path, config: StoreConfig
) -> None:
    """Nor for the next due: the same number of rows at three sizes."""
    read = []
    for count in (1, 10, 100):
        with opened(tmp_path / str(count), config) as store:
            store.put_batch([Message("t", b"x", delay=100 + n) for n in range(count)])
        with inside.rows_read("timers") as rows, opened(tmp_path / str(count), config) as store:
            inside.deliver_due(store)
            read.append(len(rows))
    assert read[0] == read[1] == read[2]


# --- aio, namespaces ---


def test_asyncio_has_it_all(tmp_path: Path) -> None:
    async def work() -> None:
        async with kvstore.aio.open(tmp_path / "s") as store:
            await store.create_topic("t")
            put = await store.put("t", b"x", delay=60)
            assert (await store.timers("t")).count == 1
            await store.change_delay(put.message_id, delay=120)
            assert (await store.timer(put.message_id)).topic == "t"
            assert await store.cancel(put.message_id)

    asyncio.run(work())


def test_a_namespace_has_its_own_messages_alone(store: Store, clock: VirtualClock) -> None:
    one, two = store.namespace("one"), store.namespace("two")
    for view in (one, two):
        view.create_topic("t", queues=1)
    mine = [one.put("t", b"%d" % n, delay=5) for n in range(3)]
    other = two.put("t", b"other", delay=5)
    store.put("t", b"none's", delay=5)
    assert [m.message.body for m in one.timers().messages] == [b"0", b"1", b"2"]
    assert (one.timers().count, one.timers("t").count, two.timers().count) == (3, 3, 1)
    assert one.timers().messages[0].topic == "t"
    assert one.timer(mine[0].message_id).topic == "t"
    for call in (one.cancel, one.timer):
        with pytest.raises(MessageNotFound):
            call(other.message_id)
    with pytest.raises(MessageNotFound):
        one.change_delay(other.message_id, delay=1)
    assert one.change_delay(mine[0].message_id, delay=1) == clock.now_ms() + 1000
    assert one.cancel(mine[1].message_id)
    clock.advance(5)
    until(lambda: store.timers().count == 0)
    assert [m.body for m in one.pull("t", 0, 0).messages] == [b"0", b"2"]


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("delay", [None, 600])
def test_an_id_that_another_namespace_has_as_well_hides_no_message(
    store: Store, clock: VirtualClock, is_checkpointed: bool, delay: int | None
) -> None:
    one, two = store.namespace("one"), store.namespace("two")
    for view in (one, two):
        view.create_topic("t", queues=1)
    for message_id in ("order-1", "order-2"):
        one.put("t", b"mine", delay=5, message_id=message_id)
        two.put("t", b"other", delay=delay, message_id=message_id)
    if is_checkpointed:
        store.checkpoint()
    assert one.timer("order-1").message.body == b"mine"
    due = one.change_delay("order-1", delay=60)
    assert one.timer("order-1").deliver_at == due
    assert one.cancel("order-1")
    assert two.timers().count == (0 if delay is None else 2)
    clock.advance(61)
    until(lambda: one.timers().count == 0)
    assert [m.message_id for m in one.pull("t", 0, 0).messages] == ["order-2"]
    assert not one.cancel("order-2"), "it was delivered"
