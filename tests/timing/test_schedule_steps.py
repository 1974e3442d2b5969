"""Steps of schedules that something crosses: a power cut, a refused put, a deleted topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import DiskFull, ScheduleNotFound, Store, StoreConfig, TopicNotFound
from kvstore.index.keys import META
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import cut_to, killed, opened, settings
from tests.support.waiting import PATIENCE, until


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    return settings(clock=clock, flush_interval=3600.0)


@pytest.fixture
def store(tmp_path: Path, config: StoreConfig) -> Iterator[Store]:
    """Its messages are delivered by the test alone, and on the disk when the test says so."""
    with opened(tmp_path / "s", config) as store:
        inside.engine(store).delivery.stop()
        yield store


def came(store: Store) -> list[int]:
    """The times of the messages in queue 0, once nothing is due any more."""
    inside.deliver_due(store)
    return [int(m.properties["SCHEDULED_AT"]) for m in store.pull("t", 0, 0).messages]


def rows_of_schedules(store: Store) -> list[bytes]:
    rows = inside.families(store).rows(META, b"schedule", b"schedulf")
    return [key for key, _ in rows if key != b"schedule_due"]


# --- a power cut ---


def test_a_power_cut_that_takes_two_deliveries_of_a_schedule_takes_no_time(
    tmp_path: Path, store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    begin = clock.now_ms()
    store.schedule("s", "t", b"", every=10, queue=0, missed="all")
    store.flush()
    durable = inside.log(store).durable
    for _ in range(2):
        clock.step(10)
        inside.deliver_due(store)
    assert inside.log(store).durable == durable
    path = killed(store, tmp_path / "k")
    cut_to(path, durable)
    with kvstore.open(path, config) as again:
        clock.step(10)
        assert came(again) == [begin + 10_000, begin + 20_000, begin + 30_000]
        assert again.timers().count == 1
        assert again.verify().problems == []


def test_the_disk_has_the_times_behind_a_missed_one_before_that_is_passed_over(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.schedule("s", "t", b"", every=10, queue=0)
    families, pending = inside.families(store), inside.engine(store).timers.pending
    write, note = families.write, pending.note
    done: list[str] = []

    def write_rows(batch: Any, *, sync: bool = False) -> None:
        done.append("synced" if sync else "written")
        write(batch, sync=sync)

    def note_ends(*args: Any, **more: Any) -> None:
        done.append("passed over")
        note(*args, **more)

    clock.step(35)
    monkeypatch.setattr(families, "write", write_rows)
    monkeypatch.setattr(pending, "note", note_ends)
    inside.deliver_due(store)
    assert done[: done.index("passed over")] == ["synced"]


# --- a refused put ---


def make(store: Store) -> None:
    store.schedule("s", "t", b"", every=10, queue=0)


def resume(store: Store) -> None:
    store.resume_schedule("s")


@pytest.mark.parametrize("begin", [make, resume])
def test_a_schedule_whose_first_message_can_not_be_put_is_as_it_was_before(
    store: Store,
    config: StoreConfig,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[Store], None],
) -> None:
    if begin is resume:
        make(store)
        store.pause_schedule("s")
    before = store.schedules()
    put, refused = inside.writer(store).put, [True]

    def put_second(*args: Any) -> Any:
        if refused.pop() if refused else False:
            raise DiskFull("the disk is full")
        return put(*args)

    monkeypatch.setattr(inside.writer(store), "put", put_second)
    with pytest.raises(DiskFull):
        begin(store)
    assert not refused
    clock.step(30)
    assert came(store) == []
    assert store.schedules() == before
    store.close()
    with kvstore.open(store.path, config) as again:
        clock.step(30)
        assert came(again) == []
        assert again.schedules() == before
        assert again.timers().count == 0
        assert again.verify().problems == []


# --- resuming ---


def test_the_message_of_a_paused_schedule_stays_cancelled_when_it_is_resumed(store: Store) -> None:
    store.schedule("s", "t", b"", every=10, queue=0)
    first = store.timers().messages[0].message_id
    store.pause_schedule("s")
    store.resume_schedule("s")
    assert store.timers().messages[0].message_id != first
    assert store.cancel(first), "it will not be delivered"


def test_a_schedule_that_goes_with_its_topic_is_not_resumed_in_a_topic_of_that_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store)
    store.pause_schedule("s")
    writer = inside.writer(store)
    encode = writer.encode

    def make_the_topic_anew(*args: Any) -> Any:
        monkeypatch.undo()
        store.delete_topic("t")
        store.create_topic("t", queues=2)
        return encode(*args)

    monkeypatch.setattr(writer, "encode", make_the_topic_anew)
    with pytest.raises(ScheduleNotFound):
        store.resume_schedule("s")
    assert store.schedules() == []
    assert store.timers().count == 0
    assert rows_of_schedules(store) == []


# --- a topic that is deleted at the same time ---


def fire(store: Store, clock: VirtualClock) -> None:
    clock.step(10)
    with suppress(TopicNotFound):
        inside.deliver_due(store)


def pause(store: Store, _: VirtualClock) -> None:
    with pytest.raises(ScheduleNotFound):
        store.pause_schedule("s")


def tidy(store: Store, _: VirtualClock) -> None:
    """Takes the time of a delivered message out of the row."""
    inside.deliver_due(store)


STEPS: Final = pytest.mark.parametrize("step", [fire, pause, tidy])
Step = Callable[[Store, VirtualClock], None]


def fired_once(store: Store, clock: VirtualClock, *, is_tidied: bool) -> None:
    """A schedule of topic "t", whose first message was delivered, and is on the disk."""
    store.schedule("s", "t", b"", every=10)
    clock.step(10)
    inside.deliver_due(store)
    store.checkpoint()
    if is_tidied:
        inside.deliver_due(store)


@STEPS
def test_a_topic_that_is_deleted_amid_a_step_leaves_no_row_of_its_schedule(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """The step has read the schedule's row, and writes its times behind the deletion."""
    fired_once(store, clock, is_tidied=step is not tidy)
    writing = inside.writing_of_times(store)
    write = writing.now

    def delete_and_write(*args: Any, **more: Any) -> None:
        monkeypatch.undo()
        store.delete_topic("t")
        write(*args, **more)

    writing.replace(delete_and_write, monkeypatch)
    step(store, clock)
    assert "t" not in {info.name for info in store.topics()}
    assert rows_of_schedules(store) == []
    assert store.verify().problems == []


@STEPS
def test_a_step_amid_the_deletion_of_a_topic_leaves_no_row_of_its_schedule(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """The deletion has gathered the schedule's rows, and removes them behind the step's write."""
    fired_once(store, clock, is_tidied=step is not tidy)
    steps = threading.Thread(target=step, args=(store, clock))
    reached = threading.Event()
    writing = inside.writing_of_times(store)
    write = writing.now

    def tell_and_write(*args: Any, **more: Any) -> None:
        reached.set()
        write(*args, **more)

    writing.replace(tell_and_write, monkeypatch)

    def meanwhile(*_: object) -> None:
        steps.start()
        # A firing writes nothing: the deletion has ended the wait of its message.
        until(lambda: reached.is_set() or not steps.is_alive())
        steps.join(0.2)  # it is over, unless it waits for this thread

    inside.engine(store).topics.removing.append(meanwhile)
    store.delete_topic("t")
    steps.join(PATIENCE)
    assert not steps.is_alive()
    assert rows_of_schedules(store) == []
    assert store.verify().problems == []
