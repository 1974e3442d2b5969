"""Verify: the rows of messages that wait, held against the log; the rows of schedules."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvstore
from kvstore import Message, Problem, Store, StoreConfig
from kvstore.engine.verification import verify_waits
from kvstore.index.keys import (
    META,
    TIMERS,
    TIMERS_END,
    TRANSACTIONS,
    U64,
    read_timer,
    timer_key,
)
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import read_queue
from tests.support.costs import Costs
from tests.support.stores import SEGMENT, killed, opened, settings

_FAMILIES: Final = (TIMERS, TRANSACTIONS)


@pytest.fixture
def filled(store: Store) -> Store:
    """Twenty delayed and twenty prepared messages, in two segments, of which six of each wait no
    more; all checkpointed.
    """
    put = []
    for part in range(2):
        delayed = store.put_batch([Message("t", b"x" * 50, delay=60 + n) for n in range(10)])
        prepared = store.prepare_batch([Message("t", b"y" * 50) for _ in range(10)], group="p")
        put.append((delayed, prepared))
        if not part:
            store.seal()
    for delayed, prepared in put:
        for one in delayed[:3]:
            store.cancel(one.message_id)
        store.commit_batch(prepared[:2])
        store.rollback(prepared[2])
    store.checkpoint()
    return store


def rows(store: Store, family: str) -> list[tuple[bytes, bytes]]:
    """The rows of messages."""
    return list(inside.families(store).rows(family, b"", TIMERS_END))


def problems(store: Store, *changes: tuple[str, bytes, bytes | None]) -> list[Problem]:
    """The problems that `verify` lists after rows were changed behind the store's back."""
    families = inside.families(store)
    batch = families.batch()
    for family, key, value in changes:
        if value is None:
            batch.delete(family, key)
        else:
            batch.put(family, key, value)
    families.write(batch)
    report = store.verify()
    assert {p.kind for p in report.problems} <= {"index"}
    return report.problems


def counted(family: str, count: int) -> str:
    return f"{family} counts 14 messages of topic id 1, and has {count} rows"


def test_messages_that_wait_as_their_rows_say_are_no_problem(filled: Store) -> None:
    assert [len(rows(filled, family)) for family in _FAMILIES] == [14, 14]
    assert problems(filled) == []


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_message_that_waits_without_a_row_is_found(filled: Store, family: str) -> None:
    key, value = rows(filled, family)[5]
    due, position, *_ = read_timer(key, value)
    count, lost = problems(filled, (family, key, None))
    assert (count.position, count.message) == (-1, counted(family, 13))
    assert (lost.position, lost.topic) == (position, "t")
    assert lost.message == f"the message waits until {due}, and has no row in {family}"


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_row_of_a_message_that_waits_no_more_is_found(filled: Store, family: str) -> None:
    there = {read_timer(*row)[1] for row in rows(filled, family)}
    topic = inside.topics(filled).find(
        "rmq_sys_wheel_timer" if family == TIMERS else "RMQ_SYS_TRANS_HALF_TOPIC"
    )
    assert topic is not None
    gone = next(m for m in read_queue(filled, topic.name, 0) if m.body and m.position not in there)
    due = int(gone.properties["TIMER_OUT_MS" if family == TIMERS else "TRAN_CHECK_MS"])
    value = rows(filled, family)[0][1][:4] + gone.size.to_bytes(4, "big")
    found = problems(filled, (family, timer_key(due, gone.position), value))
    assert [(p.position, p.topic) for p in found] == [(gone.position, "t"), (-1, "t")]
    assert found[0].message.endswith("; a later record ended the wait")
    assert found[1].message == counted(family, 15)


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("is_new_key", [False, True])
def test_a_row_that_says_another_thing_than_the_record_is_found(
    filled: Store, family: str, is_new_key: bool
) -> None:
    key, value = rows(filled, family)[3]
    due, position, *_ = read_timer(key, value)
    if is_new_key:
        changes: list[tuple[str, bytes, bytes | None]] = [
            (family, key, None), (family, timer_key(due + 1, position), value),
        ]  # fmt: skip
    else:
        changes = [(family, key, value[:7] + b"\x07")]
    found = problems(filled, *changes)
    assert {p.position for p in found} == {position}
    assert f"the record has due {due}, topic t, " in found[0].message
    assert len(found) == 1 + is_new_key


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("at", ["nowhere", "in a record", "at another record"])
def test_a_row_without_a_record_is_found(filled: Store, family: str, at: str) -> None:
    _, value = rows(filled, family)[0]
    other = filled.put("t", b"plain").position
    position = {"nowhere": 50 * SEGMENT, "in a record": 4, "at another record": other}[at]
    filled.checkpoint()
    found = problems(filled, (family, timer_key(1, position), value))
    assert [p.position for p in found] == [position, -1]
    assert found[-1].message == counted(family, 15)


@pytest.mark.parametrize("family", _FAMILIES)
def test_rows_of_another_form_are_found(filled: Store, family: str) -> None:
    found = problems(
        filled, (family, b"x", b"y"), (family, TIMERS_END + b"\x00" * 7 + b"\x09", b"")
    )
    assert len(found) == 2
    assert all(f"a row of {family} has " in p.message for p in found)


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_count_that_is_wrong_is_found(filled: Store, family: str) -> None:
    (found,) = problems(filled, (family, TIMERS_END + U64.pack(1), U64.pack(99)))
    assert found.message == f"{family} counts 99 messages of topic id 1, and has 14 rows"


def test_a_rebuild_mends_what_verify_finds(tmp_path: Path, config: StoreConfig) -> None:
    with opened(tmp_path / "s", config) as store:
        store.put_batch([Message("t", b"x", delay=60 + n) for n in range(10)])
        store.checkpoint()
        first, second = rows(store, TIMERS)[:2]
        assert problems(store, (TIMERS, first[0], None), (TIMERS, second[0], first[1] + b"x"))
    kvstore.rebuild(tmp_path / "s", config)
    with kvstore.open(tmp_path / "s", config) as store:
        assert (store.timers().count, store.verify().problems) == (10, [])


@pytest.fixture
def config() -> StoreConfig:
    return settings(clock=VirtualClock())


def test_it_is_found_by_one_that_only_reads_as_well(tmp_path: Path, config: StoreConfig) -> None:
    with opened(tmp_path / "s", config) as store:
        store.put_batch([Message("t", b"x", delay=60 + n) for n in range(10)])
        store.checkpoint()
        key, _ = rows(store, TIMERS)[4]
        problems(store, (TIMERS, key, None))
    with kvstore.open(tmp_path / "s", config, read_only=True) as store:
        found = store.verify().problems
        assert sorted(p.position >= 0 for p in found) == [False, True]


def test_messages_that_wait_and_end_meanwhile_are_no_problem(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the walk and the look at the rows, messages come, end, and are checkpointed."""
    plain = verify_waits.WaitsCheck.compare

    def compare(self: verify_waits.WaitsCheck) -> None:
        for one in filled.timers().messages[:5]:
            filled.cancel(one.message_id)
        filled.change_delay(filled.timers().messages[0].message_id, delay=900)
        filled.commit_batch([one.message_id for one in filled.transactions().messages[:5]])
        filled.put("t", b"new", delay=50)
        filled.prepare("t", b"new", group="p")
        filled.seal()
        filled.put("t", b"newer", delay=50)
        filled.checkpoint()
        plain(self)

    monkeypatch.setattr(verify_waits.WaitsCheck, "compare", compare)
    assert filled.verify().problems == []


def test_waits_that_ended_behind_the_checkpoint_are_no_problem(
    tmp_path: Path, config: StoreConfig
) -> None:
    with opened(tmp_path / "s", config) as store:
        put = store.put_batch([Message("t", b"x", delay=60 + n) for n in range(10)])
        prepared = store.prepare_batch([Message("t", b"x")] * 10, group="p")
        store.checkpoint()
        store.cancel(put[0].message_id)
        store.commit_batch(prepared[:2])
        crashed = killed(store, tmp_path / "k")
    with kvstore.open(crashed, config, read_only=True) as store:
        assert store.verify().problems == []
        assert (store.timers().count, store.transactions().count) == (9, 8)


def test_a_topic_that_is_deleted_meanwhile_is_no_problem(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = verify_waits.WaitsCheck.compare

    def compare(self: verify_waits.WaitsCheck) -> None:
        filled.delete_topic("t")
        plain(self)

    monkeypatch.setattr(verify_waits.WaitsCheck, "compare", compare)
    assert filled.verify().problems == []


def test_a_store_that_is_used_while_it_is_verified_has_no_problem(store: Store) -> None:
    is_over = threading.Event()

    def use() -> None:
        while not is_over.is_set():
            put = store.prepare_batch([Message("t", b"x" * 100)] * 8, group="p")
            delayed = store.put_batch([Message("t", b"x" * 100, delay=100)] * 8)
            store.commit_batch(put[:4])
            store.rollback_batch(put[4:7])
            for one in delayed[:7]:
                store.cancel(one.message_id)
            store.checkpoint()

    thread = threading.Thread(target=use)
    thread.start()
    try:
        for _ in range(20):
            assert store.verify().problems == []
    finally:
        is_over.set()
        thread.join()


def test_memory_has_the_messages_that_wait_not_those_that_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify_waits, "_FEW", 8)
    waiting = verify_waits.WaitingFound()
    for n in range(0, 1000, 2):
        waiting.add([(n, 1, 1, 1), (n + 1, 1, 1, 1)], [n])
        assert len(waiting) <= 3 * n // 2 + 40
    assert waiting.rows()[:, 0].tolist() == list(range(1, 1000, 2))


def test_a_check_asks_the_index_for_no_message_by_itself(
    tmp_path: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gets(count: int) -> int:
        with opened(tmp_path / str(count), config) as store:
            put = store.put_batch([Message("t", b"x", delay=60 + n) for n in range(count)])
            store.prepare_batch([Message("t", b"x")] * count, group="p")
            for one in put[::2]:
                store.cancel(one.message_id)
            store.checkpoint()
            with costs.counting() as found:
                assert store.verify().problems == []
        return found["get"]

    costs = Costs(monkeypatch)
    # A few for each segment.
    assert gets(1000) - gets(100) < 50


# --- schedules ---


def test_schedules_whose_rows_can_be_read_are_no_problem(store: Store) -> None:
    store.schedule("beat", "t", b"", every=30)
    store.schedule("paused", "t", b"", every=30)
    store.pause_schedule("paused")
    assert problems(store) == []


def test_a_schedule_whose_row_is_garbage_or_has_no_topic_is_found(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.schedule(name, "t", b"", every=30)
    key, value = next(iter(inside.families(store).rows(META, b"schedule/b")))
    garbage, lost = problems(
        store, (META, b"schedule/a", b"garbage"), (META, key, value.replace(b"\xa1t", b"\xa1u", 1))
    )
    assert "the row of schedule 'a' can't be read" in garbage.message
    assert (lost.message, lost.topic) == ("schedule 'b' puts to a topic that there is not", "u")


_NUMBERS: Final = st.lists(st.integers(-3, 3) | st.sampled_from([-(1 << 63), (1 << 63) - 1]))


@given(_NUMBERS, _NUMBERS)
def test_values_are_among_others_as_numpy_says(values: list[int], others: list[int]) -> None:
    columns = np.array(values, np.int64), np.array(others, np.int64)
    assert verify_waits.are_among(*columns).tolist() == np.isin(*columns).tolist()
