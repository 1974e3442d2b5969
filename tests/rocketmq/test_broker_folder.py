"""RocketMQ finds all of a store in the folder that is made for its broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import kvstore
import tiering
from kvstore import CallerError, Message, Store, StoreConfig, StoreError
from kvstore.files import LocalFiles
from kvstore.record.walk import Kind
from kvstore.rocketmq.configuration import read_configuration
from kvstore.rocketmq.file_layouts import TIMER_CHECKPOINT
from kvstore.rocketmq.gaps import GAP_TOPIC
from kvstore.rocketmq.log_files import log_files, read_log
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.everyfile import EveryFile, spread_faults
from tests.support.stores import openings

SEGMENT = 64 << 10
FILES = LocalFiles()


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    def opened(name: str = "store", **settings: object) -> Store:
        config = StoreConfig(segment_size=SEGMENT, **settings)  # type: ignore[arg-type]  # any setting
        return kvstore.open(tmp_path / name, config)

    with openings(opened) as opening:
        yield opening


def fill(store: Store, count: int = 1000) -> list[tuple[int, int, bytes]]:
    store.create_topic("orders", queues=4, exist_ok=True)
    bodies = [b"%d " % n + bytes(100) for n in range(count)]
    results = store.put_batch([Message("orders", body, tag="paid") for body in bodies])
    return [(r.queue, r.offset, body) for r, body in zip(results, bodies, strict=True)]


def messages(store: Store, topic: str = "orders") -> list[tuple[int, int, bytes]]:
    found = []
    for queue in range(store.topic(topic).read_queues):
        low, high = store.bounds(topic, queue)
        while low < high:
            page = store.pull(topic, queue, low, limit=500)
            found += [(queue, m.offset, m.body) for m in page.messages]
            low = page.next_offset
    return found


def test_an_export_tells_how_far_it_is_and_can_be_ended_there(
    opens: Callable[..., Store], tmp_path: Path
) -> None:
    def progress(step: str, done: int, total: int) -> None:
        steps.append(step)
        if done == 1:
            raise KeyboardInterrupt

    store, steps = opens(), list[str]()
    fill(store)
    with pytest.raises(KeyboardInterrupt):
        store.export_rocketmq_store(tmp_path / "broker", progress=progress)
    assert steps == ["linking the log"] * 2
    assert not (tmp_path / "broker").exists()
    assert store.export_rocketmq_store(tmp_path / "broker").linked_files >= 2


def test_rocketmq_finds_every_message_at_its_place(
    opens: Callable[..., Store], tmp_path: Path
) -> None:
    store = opens()
    put = fill(store)
    before = {path.name: path.read_bytes() for path in (store.path / "commitlog").iterdir()}
    report = store.export_rocketmq_store(tmp_path / "broker")

    assert report.linked_files >= 2
    assert report.copied_files == 1
    assert report.made_files == 0
    assert all(
        (store.path / "commitlog" / name).read_bytes() == was for name, was in before.items()
    )
    kvstore.import_rocketmq(tmp_path / "broker", tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert sorted(messages(back)) == sorted(put)


def test_a_broker_writes_to_no_file_of_the_store(
    opens: Callable[..., Store], tmp_path: Path
) -> None:
    store = opens()
    fill(store)
    store.export_rocketmq_store(tmp_path / "broker")
    shared = [p for p in (tmp_path / "broker").rglob("*") if p.is_file() and p.stat().st_nlink > 1]
    last = sorted((tmp_path / "broker/commitlog").iterdir())[-1]
    assert shared
    assert last not in shared
    assert {path.parent.name for path in shared} == {"commitlog"}


def test_what_is_put_meanwhile_or_later_is_not_in_the_folder(
    opens: Callable[..., Store], tmp_path: Path
) -> None:
    store = opens()
    put = fill(store, 10)
    store.export_rocketmq_store(tmp_path / "broker")
    fill(store, 2000)
    kvstore.import_rocketmq(tmp_path / "broker", tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert sorted(messages(back)) == sorted(put)


def test_messages_that_wait_stand_behind_the_offset_at_which_a_broker_begins(
    opens: Callable[..., Store], tmp_path: Path, clock: VirtualClock
) -> None:
    store = opens(clock=clock)
    fill(store, 100)
    store.put("orders", b"soon", delay=60)
    cancelled = store.put("orders", b"cancelled", delay=3600)
    late = store.put("orders", b"late", delay=7200)
    ended = store.prepare("orders", b"ended", group="pay")
    prepared = store.prepare("orders", b"prepared", group="pay")
    store.commit(ended)
    store.cancel(cancelled.message_id)
    report = store.export_rocketmq_store(tmp_path / "broker")

    assert (report.delayed, report.prepared) == (2, 1)
    page = (tmp_path / "broker/config/timercheck").read_bytes()
    _, _, timer_offset, master_offset, *_ = TIMER_CHECKPOINT.unpack_from(page)
    half_offset = offsets(tmp_path / "broker")["CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0]
    assert timer_offset == master_offset
    waiting = [
        (m.topic, m.body)
        for m in records(tmp_path / "broker")
        if is_behind(m, timer_offset, half_offset)
    ]
    assert sorted(waiting) == [
        ("RMQ_SYS_TRANS_HALF_TOPIC", b"prepared"),
        ("rmq_sys_wheel_timer", b"late"),
        ("rmq_sys_wheel_timer", b"soon"),
    ]
    assert store.timer(late.message_id).topic == "orders"
    assert store.prepared(prepared.message_id).topic == "orders"


def records(folder: Path) -> list[kvstore.StoredMessage]:
    found = read_log(log_files(folder, FILES), FILES)
    return [extent.message for extent in found if extent.message is not None]


def is_behind(message: kvstore.StoredMessage, timer_offset: int, half_offset: int) -> bool:
    first = {"rmq_sys_wheel_timer": timer_offset, "RMQ_SYS_TRANS_HALF_TOPIC": half_offset}
    return message.topic in first and message.offset >= first[message.topic]


def test_a_group_goes_on_at_its_offset_and_begins_where_it_would_have_begun(
    opens: Callable[..., Store], tmp_path: Path
) -> None:
    store = opens()
    fill(store)
    store.create_group("billing")
    store.create_group("late", start="end")
    fill(store)
    for popped in store.pop("billing", "orders", limit=32, queue=1):
        store.ack(popped.receipt)
    store.pop("late", "orders", queue=2)
    store.export_rocketmq_store(tmp_path / "broker")
    found = offsets(tmp_path / "broker")
    assert [found["billing", "orders", queue] for queue in range(4)] == [0, 32, 0, 0]
    assert [found["late", "orders", queue] for queue in range(4)] == [250] * 4


def offsets(folder: Path) -> dict[tuple[str, str, int], int]:
    found = read_configuration(folder / "config", FILES)
    return {(group, topic, queue): at for group, topic, queue, at in found.all_offsets()}


@pytest.mark.parametrize("archived", [True, False])
def test_archived_messages_are_left_out_or_written(
    opens: Callable[..., Store], tmp_path: Path, *, archived: bool
) -> None:
    store = opens()
    put = fill(store, 3000)
    store.seal()
    policy = tiering.Policy(hot_for=0, warm_for=3600, warm=str(tmp_path / "warm"))
    with tiering.Worker(store, policy) as worker:
        worker.run_once()
    rest = fill(store, 1000)
    report = store.export_rocketmq_store(tmp_path / "broker", archived=archived)

    assert bool(report.made_files) == archived
    kvstore.import_rocketmq(tmp_path / "broker", tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert sorted(messages(back)) == sorted(put + rest if archived else rest)
        assert not back.recovery.damage


def test_rocketmq_finds_a_record_at_every_byte_of_a_damaged_log(
    opens: Callable[..., Store], tmp_path: Path
) -> None:
    store = opens()
    fill(store, 3000)
    store.flush()
    damaged = sorted((store.path / "commitlog").iterdir())[1]
    with damaged.open("r+b") as file:
        for at in (500, 30_000, 30_300):
            file.seek(at)
            file.write(b"\xff" * 80)
    report = store.export_rocketmq_store(tmp_path / "broker")

    assert report.made_files == 1
    assert report.gap_bytes > 240
    found = list(read_log(log_files(tmp_path / "broker", FILES), FILES))
    assert [extent for extent in found if extent.found.kind is Kind.DAMAGE] == []
    fillers = [e.message for e in found if e.message is not None and e.message.topic == GAP_TOPIC]
    assert [message.offset for message in fillers] == list(range(len(fillers)))
    assert damaged.stat().st_nlink == 1, "a file with gaps filled is no file of the store"


@pytest.mark.parametrize("place", ["used", "store/inside"])
def test_a_folder_that_is_used_or_within_the_store_is_refused(
    opens: Callable[..., Store], tmp_path: Path, place: str
) -> None:
    store = opens()
    fill(store, 10)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("")
    with pytest.raises(CallerError):
        store.export_rocketmq_store(tmp_path / place)
    assert not (tmp_path / "used.exporting").exists()


def test_whatever_operation_fails_there_is_no_folder_and_the_next_try_makes_it(
    opens: Callable[..., Store], tmp_path: Path
) -> None:
    files = EveryFile()
    store = opens(files=files)
    put = fill(store)
    begin = len(files.effects)
    store.export_rocketmq_store(tmp_path / "counted")
    counts = Counter(effect.kind for effect in files.effects[begin:])
    for number, fault in enumerate(spread_faults(counts)):
        target = tmp_path / str(number)
        files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
        with suppress(StoreError):
            store.export_rocketmq_store(target)
        files.mend()
        if inside.log(store).failure is not None:
            store.close()
            store = opens(files=files)
        if not target.exists():
            store.export_rocketmq_store(target)
        assert not target.with_name(f"{number}.exporting").exists()
        found = read_log(log_files(target, FILES), FILES)
        assert sum(e.message is not None and e.message.topic == "orders" for e in found) == len(put)
