"""Transactions: prepared, committed, rolled back, asked about, given up; of several messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import (
    CallerError,
    DiskFull,
    Message,
    MessageIllegal,
    MessageNotFound,
    PutResult,
    RecordDamaged,
    Retention,
    Store,
    StoreConfig,
    StoredMessage,
    StoreReadOnly,
    Transaction,
    TransactionEnded,
    rebuild,
)
from kvstore.core.names import TRANSACTION_DISCARD_TOPIC, TRANSACTION_HALF_TOPIC
from kvstore.timing import checks
from kvstore.timing.checks import Answer
from kvstore.timing.prepared_message import SET_MAX
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import read_all
from tests.support.files import copy_folder
from tests.support.segment_files import segment_path
from tests.support.stores import SEGMENT, cut_to, killed, opened, settings
from tests.support.waiting import until

pytestmark = [pytest.mark.topic("t", queues=2), pytest.mark.topic("u", queues=1)]

UNKNOWN: Final = "7F00000100007EE371800000"


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [m.body for m in store.pull(topic, 0, 0, limit=10_000).messages]


def asked(store: Store, clock: VirtualClock, seconds: float = 0) -> None:
    """Lets time pass, and has all questions asked and answered."""
    clock.advance(seconds)
    inside.ask_about_transactions(store)


def records(store: Store) -> list[StoredMessage]:
    """All records of the log, in order."""
    found = [m for messages in read_all(store).values() for m in messages]
    return sorted(found, key=lambda m: m.position)


def begun(store: Store) -> Transaction:
    """A block of four messages, of two topics, that has not ended."""
    t = store.transaction(group="pay")
    for n in range(4):
        t.put("t" if n % 2 else "u", b"%d" % n, queue=0)
    return t


# --- prepare, commit, rollback ---


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
def test_a_prepared_message_is_nowhere_before_its_commit_and_there_behind_it(
    store: Store, is_checkpointed: bool, by_id: bool
) -> None:
    store.create_group("g")
    put = store.prepare("t", b"x", group="pay", queue=0, keys=["k"], tag="a", properties={"p": "q"})
    assert (put.topic, put.queue, put.offset) == ("t", 0, -1)
    if is_checkpointed:
        store.checkpoint()
    assert (bodies(store), store.query("t", "k"), store.pop("g", "t")) == ([], [], [])
    assert store.transactions().count == 1
    result = store.commit(put.message_id if by_id else put)
    assert (result.topic, result.queue, result.offset) == ("t", 0, 0)
    (found,) = store.query("t", "k")
    assert (found.body, found.tag, found.user_properties) == (b"x", "a", {"p": "q"})
    assert (found.message_id, found.position) == (put.message_id, result.position)
    assert [p.message.body for p in store.pop("g", "t")] == [b"x"]
    assert store.transactions().count == 0


def test_to_end_a_transaction_again_in_the_same_way_changes_nothing(store: Store) -> None:
    one, two = (store.prepare("t", b"x", group="pay", queue=0) for _ in range(2))
    assert store.commit(one) == store.commit(one) == store.commit(one.message_id)
    store.rollback(two)
    store.rollback(two)
    store.rollback(two.message_id)
    assert bodies(store) == [b"x"]


def test_to_end_a_transaction_in_the_other_way_is_refused(store: Store) -> None:
    one, two = (store.prepare("t", b"x", group="pay", queue=0) for _ in range(2))
    store.commit(one)
    store.rollback(two)
    for calls, put, is_committed in (
        (store.rollback, one, True), (store.commit, two, False),
    ):  # fmt: skip
        for handle in (put, put.message_id):
            with pytest.raises(TransactionEnded) as e:
                calls(handle)
            assert e.value.is_committed is is_committed
    with pytest.raises(TransactionEnded):
        store.prepared(one.message_id)


def test_a_batch_is_ended_whole_or_not_at_all(store: Store) -> None:
    put = store.prepare_batch([Message("t", b"%d" % n, queue=0) for n in range(5)], group="pay")
    store.rollback(put[4])
    with pytest.raises(TransactionEnded):
        store.commit_batch(put)
    assert bodies(store) == []
    store.commit_batch(put[:3])
    with pytest.raises(TransactionEnded):
        store.rollback_batch(put[2:])
    assert store.transactions().count == 1
    assert bodies(store) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("handle", [UNKNOWN, "nonsense"])
def test_an_unknown_transaction_is_refused(store: Store, handle: str) -> None:
    for call in (store.commit, store.rollback, store.prepared):
        with pytest.raises(MessageNotFound):
            call(handle)


def test_a_commit_to_a_topic_that_indexes_no_ids_is_known_as_one(store: Store) -> None:
    store.create_topic("off", queues=1, key_index="off")
    put = store.prepare("off", b"x", group="pay")
    store.commit(put)
    store.commit(put.message_id)
    with pytest.raises(TransactionEnded) as e:
        store.rollback(put)
    assert e.value.is_committed
    assert bodies(store, "off") == [b"x"]


def test_a_message_that_was_put_has_no_transaction(store: Store) -> None:
    put = store.put("t", b"x")
    for call in (store.commit, store.rollback):
        with pytest.raises(MessageNotFound, match="without a transaction"):
            call(put)
    with pytest.raises(MessageIllegal):
        store.commit(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [{"group": ""}, {"group": "a b"}, {"group": 5}, {"immunity": -1}, {"immunity": float("nan")},
     {"immunity": "5"}, {"immunity": 1e9}],
)  # fmt: skip
def test_a_wrong_group_or_immunity_is_refused(store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        store.prepare("t", b"x", **{"group": "pay", **wrong})
    assert store.transactions().count == 0


def test_a_prepared_message_can_not_be_delayed(store: Store) -> None:
    with pytest.raises(MessageIllegal, match=r"message 1 of 2: .*delayed"):
        store.prepare_batch([Message("t", b"x"), Message("t", b"y", delay=1)], group="pay")
    with pytest.raises(MessageIllegal, match=r"message 1 of 2: .*tag"):
        store.prepare_batch([Message("t", b"x"), Message("t", b"y", tag="")], group="pay")
    store.prepare("t", b"x", group="pay")
    with pytest.raises(MessageIllegal, match="only the store puts"):
        store.put(TRANSACTION_HALF_TOPIC, b"x")


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_an_id_ends_all_open_transactions_that_have_it(store: Store, is_checkpointed: bool) -> None:
    for message_id in ("kept", "dropped"):
        for n, topic in enumerate(("t", "t", "u")):
            store.prepare(topic, b"%d" % n, group="pay", queue=0, message_id=message_id)
            if is_checkpointed:
                store.checkpoint()
    store.rollback("dropped")
    assert store.transactions().count == 3
    assert store.commit("kept") == store.commit("kept")
    assert store.transactions().count == 0
    assert (bodies(store), bodies(store, "u")) == ([b"0", b"1"], [b"2"])


def test_a_result_ends_its_own_transaction_and_the_id_the_one_that_is_still_open(
    store: Store,
) -> None:
    _, newer = [
        store.prepare("t", body, group="pay", queue=0, message_id="twice") for body in (b"0", b"1")
    ]
    store.rollback(newer)
    store.rollback(newer)
    assert store.prepared("twice").message.body == b"0"
    assert store.commit("twice") == store.commit("twice")
    assert bodies(store) == [b"0"]


# --- several messages ---


@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_messages_of_a_block_become_visible_together(store: Store, is_prepared: bool) -> None:
    with store.transaction(group="pay") as t:
        t.put("t", b"1", queue=0)
        t.put_batch([Message("u", b"2", keys=["k"]), Message("t", b"3", queue=0)])
        if is_prepared:
            prepared = t.prepare()
            assert store.transactions().count == 3
            assert store.prepared(prepared[2].message_id).message.body == b"1"
        assert (bodies(store), bodies(store, "u")) == ([], [])
    assert (bodies(store), bodies(store, "u")) == ([b"1", b"3"], [b"2"])
    assert [r.offset for r in t.results] == [0, 0, 1]
    assert store.transactions().count == 0


@pytest.mark.parametrize("is_prepared", [False, True])
def test_an_exception_in_a_block_rolls_it_back(store: Store, is_prepared: bool) -> None:
    def work() -> None:
        with store.transaction(group="pay") as t:
            t.put("t", b"1")
            t.put("u", b"2")
            if is_prepared:
                t.prepare()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert (bodies(store), bodies(store, "u"), store.transactions().count) == ([], [], 0)


def test_a_block_with_a_wrong_message_puts_none(store: Store) -> None:
    t = store.transaction(group="pay")
    t.put("t", b"1", queue=0)
    t.put("nowhere", b"2")
    with pytest.raises(kvstore.TopicNotFound):
        t.commit()
    assert (bodies(store), store.transactions().count) == ([], 0)


def test_a_block_has_a_limited_number_of_messages(store: Store) -> None:
    t = store.transaction(group="pay")
    t.put_batch([Message("t", b"x", queue=0)] * SET_MAX)
    with pytest.raises(CallerError, match=f"up to {SET_MAX} messages"):
        t.put("t", b"x")
    t.commit()
    assert store.bounds("t", 0).next_offset == len(t.results) == SET_MAX


def test_an_ended_block_takes_no_more(store: Store) -> None:
    with store.transaction(group="pay") as t:
        t.put("t", b"1", queue=0)
        t.commit()
        with pytest.raises(CallerError, match="no more messages"):
            t.put("t", b"2")
    assert bodies(store) == [b"1"]
    with store.transaction(group="pay") as empty:
        pass
    assert empty.results == []
    with store.transaction(group="pay") as undone:
        undone.put("t", b"3")
        undone.rollback()
    assert bodies(store) == [b"1"]


def test_a_reader_never_sees_a_part_of_a_block(tmp_path: Path) -> None:
    with opened(tmp_path / "s", settings(checkpoint_bytes=10_000)) as store:
        store.create_topic("u", queues=1)
        stop = threading.Event()
        seen: list[tuple[int, int]] = []

        def look() -> None:
            while not stop.is_set():
                # The one read first has no more than the other, or the block was not whole.
                first = store.bounds("u", 0).next_offset
                seen.append((first, store.bounds("t", 0).next_offset))

        reader = threading.Thread(target=look)
        reader.start()
        for n in range(150):
            with store.transaction(group="pay") as t:
                t.put("t", b"%d" % n, queue=0)
                t.put("u", b"%d" % n)
        stop.set()
        reader.join()
        assert all(first <= second for first, second in seen)
        assert bodies(store) == bodies(store, "u") == [b"%d" % n for n in range(150)]


def test_a_block_that_has_ended_is_not_ended_otherwise(store: Store) -> None:
    t = begun(store)
    t.rollback()
    for call in (t.prepare, t.commit):
        with pytest.raises(TransactionEnded) as e:
            call()
        assert not e.value.is_committed
    t.rollback()

    def fail_behind_the_commit() -> None:
        with store.transaction(group="pay") as done:
            done.put("t", b"1", queue=0)
            assert done.commit() == done.commit()
            with pytest.raises(TransactionEnded):
                done.rollback()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_behind_the_commit()
    assert (store.transactions().count, bodies(store)) == (0, [b"1"])


def test_each_message_of_a_set_ends_it_and_its_commit_says_where_that_message_went(
    store: Store,
) -> None:
    for by_id in (False, True):
        put = begun(store).prepare()
        for _ in range(2):
            result = store.commit(put[2].message_id if by_id else put[2])
            assert (result.topic, result.message_id) == ("u", put[2].message_id)


@pytest.mark.parametrize("deleted", ["t", "u"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_deleted_topic_takes_the_sets_along_that_have_a_message_of_it(
    store: Store, config: StoreConfig, tmp_path: Path, deleted: str, *, is_checkpointed: bool
) -> None:
    kept = store.prepare("u" if deleted == "t" else "t", b"alone", group="pay")
    put = begun(store).prepare()
    if is_checkpointed:
        store.checkpoint()
    assert store.delete_topic(deleted) == len(put) == 4
    asked: list[bytes] = []
    store.on_check("pay", lambda m: asked.append(m.body) or "commit")  # type: ignore[func-returns-value]
    for one in put:
        with pytest.raises(TransactionEnded, match="rolled back"):
            store.commit(one)
        store.rollback(one)
    assert [one.message_id for one in store.transactions().messages] == [kept.message_id]
    crashed = killed(store, tmp_path / "k")
    for is_read_only in (True, False):
        with kvstore.open(crashed, config, read_only=is_read_only) as again:
            assert again.transactions().count == 1
            assert again.verify().problems == []
    rebuild(crashed, config)
    with kvstore.open(crashed, config) as again:
        assert again.transactions().count == 1
        again.commit(kept.message_id)
        assert bodies(again, kept.topic) == [b"alone"]
    assert asked == []


def test_a_set_that_is_prepared_while_its_topic_is_being_deleted_goes_along(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = inside.ending_of_prepared(store)
    end = step.now
    came: list[PutResult] = []

    def prepare_behind(topics: dict[int, str]) -> int:
        found: int = end(topics)
        if not came:
            came.extend(begun(store).prepare())
        return found

    step.replace(prepare_behind, monkeypatch)
    assert store.delete_topic("t") == len(came) == 4
    assert store.transactions().count == 0
    assert store.verify().problems == []
    for one in came:
        with pytest.raises(TransactionEnded, match="rolled back"):
            store.commit(one)


@pytest.mark.parametrize("is_delayed", [False, True])
def test_messages_that_are_put_amid_a_deletion_wait_no_longer_than_their_topic(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, is_delayed: bool
) -> None:
    """Behind the checkpoint before the deletion: they are in the tail when the topic is closed."""
    step = inside.ending_of_prepared(store)
    end = step.now
    came: list[PutResult] = []

    def put_behind(topics: dict[int, str]) -> int:
        found: int = end(topics)
        if not came and is_delayed:
            came.append(store.put("t", b"x", delay=3600))
        elif not came:
            came.append(store.prepare("t", b"x", group="pay"))
        return found

    step.replace(put_behind, monkeypatch)
    assert store.delete_topic("t") == 1
    assert (store.transactions().messages, store.timers().messages) == ([], [])
    assert store.verify().problems == []
    store.create_topic("t")
    assert (store.transactions().messages, store.timers().messages) == ([], [])


def test_a_set_with_a_damaged_message_is_not_committed_in_part(store: Store) -> None:
    put = begun(store).prepare()
    path = segment_path(store.path, 0)
    with path.open("r+b") as file:
        file.seek(put[1].position + 88)
        assert file.read(1) == b"1", "its body"
        file.seek(put[1].position + 88)
        file.write(b"X")
    for handle in (put[0], put[3], put[2].message_id):
        with pytest.raises(RecordDamaged, match="number 1") as e:
            store.commit(handle)
        assert e.value.position == put[1].position
    assert (bodies(store), bodies(store, "u")) == ([], [])
    store.rollback(put[0])
    with pytest.raises(TransactionEnded):
        store.commit(put[3])


def test_a_set_of_too_many_messages_is_refused(store: Store) -> None:
    many = [Message("t", b"x", message_id="a")] + [Message("t", b"x")] * SET_MAX
    with pytest.raises(CallerError, match="up to 4096 messages"):
        store.prepare_batch(many, group="pay", set_id="a")
    assert store.transactions().count == 0


# --- a crash ---


def test_open_transactions_wait_across_openings_and_rebuilds(
    tmp_path: Path, store: Store, config: StoreConfig
) -> None:
    put = store.prepare_batch([Message("t", b"%d" % n, queue=0) for n in range(6)], group="pay")
    store.checkpoint()
    put += store.prepare_batch([Message("t", b"%d" % n, queue=0) for n in range(6, 9)], group="pay")
    t = begun(store)
    t.prepare()
    store.commit(put[0])
    store.rollback(put[1])
    crashed = killed(store, tmp_path / "k")
    t.rollback()
    for is_rebuilt in (False, True):
        folder = copy_folder(crashed, tmp_path / str(is_rebuilt))
        if is_rebuilt:
            kvstore.rebuild(folder, config=config)
        with kvstore.open(folder, config=config) as again:
            assert again.transactions().count == 11
            assert again.commit(put[0]).offset == 0
            again.rollback(put[1])
            again.commit_batch([*put[2:5], *put[6:8]])
            first = next(one for one in again.transactions().messages if one.set_id)
            again.commit(first.message_id)
            assert bodies(again, "u") == [b"0", b"2"]
            assert bodies(again) == [b"0", b"2", b"3", b"4", b"6", b"7", b"1", b"3"]
            assert again.transactions().count == 2
            assert again.verify().problems == []


@pytest.mark.parametrize("act", ["prepare", "commit", "rollback", "ask", "give up"])
@pytest.mark.parametrize("rest", [1, 2, 3])
def test_a_put_of_a_set_that_a_crash_cut_is_finished_by_the_next_opening(
    tmp_path: Path, clock: VirtualClock, act: str, rest: int
) -> None:
    """Its messages are all there, or none is: whichever part of the put reached the disk."""
    config = settings(clock=clock, transaction_checks=1)
    with opened(tmp_path / "s", config) as store:
        store.create_topic("u", queues=1)
        t = begun(store)
        begin = inside.log(store).end
        first = t.prepare()[0]
        if act == "commit":
            begin = inside.log(store).end
            store.commit(first)
        elif act == "rollback":
            begin = inside.log(store).end
            store.rollback(first)
        elif act in ("ask", "give up"):
            store.on_check("pay", lambda message: "unknown")
            begin = inside.log(store).end
            asked(store, clock, 7)
            if act == "give up":
                begin = inside.log(store).end
                asked(store, clock, 31)
        whole = killed(store, tmp_path / "k")
        starts = [m.position for m in records(store) if m.position >= begin]
        assert len(starts) == 4
        cut_to(whole, starts[-rest])
    with kvstore.open(whole, config=config, read_only=True) as reader:
        assert (bodies(reader), bodies(reader, "u")) == ([], []), "a reader sees no part"
    with kvstore.open(whole, config=config) as again:
        delivered = {"t": bodies(again), "u": bodies(again, "u")}
        if act == "commit":
            assert delivered == {"t": [b"1", b"3"], "u": [b"0", b"2"]}
        else:
            assert delivered == {"t": [], "u": []}
        if act == "ask":
            assert again.transactions().count == 4
            again.commit(first)
            assert (bodies(again), bodies(again, "u")) == ([b"1", b"3"], [b"0", b"2"])
        elif act == "prepare":
            with pytest.raises(TransactionEnded):
                again.commit(first.message_id)
        elif act == "give up":
            assert sorted(bodies(again, TRANSACTION_DISCARD_TOPIC)) == [b"0", b"1", b"2", b"3"]
        assert again.transactions().count == 0
        assert again.verify().problems == []


def test_prepared_messages_of_a_segment_that_retention_takes_wait_on(
    tmp_path: Path, clock: VirtualClock
) -> None:
    config = settings(clock=clock, retention=Retention(max_bytes=3 * SEGMENT), delete_interval=0.0)
    with opened(tmp_path / "s", config) as store:
        store.create_topic("u", queues=1)
        single = store.prepare("t", b"x", group="pay", queue=0)
        begun(store).prepare()
        for _ in range(8):
            store.put_batch([Message("t", bytes(2000), queue=1)] * 25)
        store.apply_retention()
        assert inside.log(store).first > 0
        path = killed(store, tmp_path / "k")
    with kvstore.open(path, config=config) as again:
        assert again.transactions().count == 5
        again.commit(single)
        again.commit(next(one.set_id for one in again.transactions().messages if one.set_id) or "")
        assert (bodies(again), bodies(again, "u")) == ([b"x", b"1", b"3"], [b"0", b"2"])


# --- checks ---


def checker(answers: list[Any]) -> tuple[Callable[[StoredMessage], Any], list[StoredMessage]]:
    questions: list[StoredMessage] = []

    def ask(message: StoredMessage) -> Any:
        questions.append(message)
        answer = answers[min(len(questions), len(answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return ask, questions


@pytest.mark.parametrize("answer", ["commit", "rollback"])
def test_a_checker_ends_a_transaction_that_nobody_ended(
    store: Store, clock: VirtualClock, answer: str
) -> None:
    ask, questions = checker([answer])
    store.on_check("pay", ask)
    put = store.prepare("t", b"x", group="pay", queue=0, immunity=60, keys=["k"])
    other = store.prepare("t", b"other", group="ship", queue=0)
    asked(store, clock, 59)
    assert questions == []
    asked(store, clock, 2)
    (question,) = questions
    assert (question.topic, question.body, question.message_id) == ("t", b"x", put.message_id)
    assert bodies(store) == ([b"x"] if answer == "commit" else [])
    assert [one.message_id for one in store.transactions().messages] == [other.message_id]


def test_a_transaction_that_nobody_can_answer_for_is_given_up(
    store: Store, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After fifteen checks, thirty seconds apart; its messages are kept in RocketMQ's topic."""
    ask, questions = checker([ValueError("lost"), SystemExit(1), 7, "unknown"])
    store.on_check("pay", ask)
    put = store.prepare("t", b"x", group="pay", queue=0)
    asked(store, clock, 7)
    for n in range(1, 15):
        assert len(questions) == n
        assert store.prepared(put.message_id).checks == n
        asked(store, clock, 29)
        assert len(questions) == n
        asked(store, clock, 2)
    assert len(questions) == 15
    asked(store, clock, 31)
    assert len(questions) == 15
    assert bodies(store) == []
    (kept,) = store.pull(TRANSACTION_DISCARD_TOPIC, 0, 0).messages
    assert (kept.body, kept.properties["REAL_TOPIC"]) == (b"x", "t")
    assert "was given up after 15 checks" in caplog.text
    with pytest.raises(TransactionEnded):
        store.commit(put)
    store.rollback(put)


def test_without_a_checker_nothing_is_counted_and_age_ends_it(
    store: Store, clock: VirtualClock
) -> None:
    put = store.prepare("t", b"x", group="pay", queue=0)
    for _ in range(71):
        asked(store, clock, 3600)
    assert store.prepared(put.message_id).checks == 0
    ask, questions = checker(["unknown"])
    store.on_check("pay", ask)
    asked(store, clock)
    assert len(questions) == 1
    asked(store, clock, 7200)
    assert store.transactions().count == 0


def test_a_checker_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    config = settings(transaction_check_interval=0.1)
    with opened(tmp_path / "s", config) as store:
        hangs = threading.Event()
        has_begun = threading.Event()

        def hang(message: StoredMessage) -> Answer:
            has_begun.set()
            hangs.wait(30)
            return "commit"

        store.on_check("pay", hang)
        put = [store.prepare("t", b"%d" % n, group="pay", queue=0, immunity=0) for n in range(4)]
        until(has_begun.is_set)
        store.on_check("pay", lambda message: "commit")
        until(lambda: store.transactions().count == 0)
        hangs.set()
        assert sorted(bodies(store)) == [b"%d" % n for n in range(len(put))]


def test_an_answer_that_could_not_be_kept_is_asked_for_again(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, questions = checker(["commit", "commit"])
    store.on_check("pay", ask)
    store.prepare("t", b"x", group="pay", queue=0)
    transactions = inside.engine(store).transactions
    answered = transactions.answered

    def refuse(*_: Any) -> None:
        monkeypatch.setattr(transactions, "answered", answered)
        raise DiskFull("the disk is full")

    monkeypatch.setattr(transactions, "answered", refuse)
    asked(store, clock, 7)
    assert len(questions) == 2
    assert bodies(store) == [b"x"]


def test_several_checkers_of_a_group_share_the_questions(store: Store, clock: VirtualClock) -> None:
    asked_of: list[int] = []
    everybody = threading.Barrier(3)

    def answer(number: int, message: StoredMessage) -> Answer:
        if number not in asked_of:
            asked_of.append(number)
            everybody.wait(30)
        return "commit"

    for n in range(3):
        store.on_check("pay", partial(answer, n))
    for n in range(9):
        store.prepare("t", b"%d" % n, group="pay", queue=0)
    asked(store, clock, 7)
    assert len(bodies(store)) == 9
    assert sorted(asked_of) == [0, 1, 2]


def test_a_message_that_waits_in_line_is_not_counted_as_asked_about(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Answers take longer than questions come: each is asked once, and none is given up."""
    config = settings(clock=clock, transaction_checks=1)
    with opened(tmp_path / "s", config) as store:
        seen: list[str] = []

        def answer(message: StoredMessage) -> Answer:
            seen.append(message.message_id)
            clock.advance(7)
            inside.look_for_questions(store)
            return "commit"

        put = store.prepare_batch([Message("t", b"x", queue=0)] * 20, group="pay")
        store.on_check("pay", answer)
        asked(store, clock, 7)
        assert seen == [one.message_id for one in put]
        assert store.bounds("t", 0).next_offset == len(put)


def test_a_message_that_a_checker_is_at_is_not_given_to_another(
    store: Store, clock: VirtualClock
) -> None:
    has_begun, hangs = threading.Event(), threading.Event()

    def hang(message: StoredMessage) -> Answer:
        has_begun.set()
        hangs.wait(30)
        return "commit"

    store.on_check("pay", hang)
    store.prepare("t", b"0", group="pay", queue=0)
    clock.advance(7)
    inside.look_for_questions(store)
    until(has_begun.is_set)
    ask, questions = checker(["commit"] * 2)
    store.on_check("pay", ask)
    store.prepare("t", b"1", group="pay", queue=0)
    clock.advance(7)
    inside.look_for_questions(store)
    until(lambda: bodies(store) == [b"1"])
    hangs.set()
    until(lambda: bodies(store) == [b"1", b"0"])
    assert [m.body for m in questions] == [b"1"]


def test_more_messages_than_a_line_takes_are_asked_about_each_once(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "LINE_MAX", 3)
    ask, questions = checker(["commit"] * 20)
    put = store.prepare_batch([Message("t", b"x", queue=0)] * 20, group="pay")
    store.on_check("pay", ask)
    asked(store, clock, 7)
    assert sorted(m.message_id for m in questions) == sorted(one.message_id for one in put)
    assert store.bounds("t", 0).next_offset == 20


def test_a_closed_checker_is_asked_no_more(store: Store, clock: VirtualClock) -> None:
    ask, questions = checker(["commit"])
    threads = len(store.threads)

    def is_remembered_alone() -> bool:
        store.on_check("pay", ask).close()
        return len(store.threads) == threads + 1

    for _ in range(3):
        is_remembered_alone()
    # A server may hear of a checker's end behind the beginning of the next.
    until(is_remembered_alone)
    store.prepare("t", b"x", group="pay")
    asked(store, clock, 7)
    assert questions == []
    with pytest.raises(CallerError, match="must be a function"):
        store.on_check("pay", "commit")  # type: ignore[arg-type]


# --- listing, read-only, aio, namespaces ---


def test_transactions_are_listed_by_group_and_page(store: Store) -> None:
    for n in range(5):
        store.prepare("t", b"%d" % n, group="pay" if n % 2 else "ship", immunity=10 - n)
        if n == 2:
            store.checkpoint()
    found, after = list[bytes](), None
    while True:
        page = store.transactions(limit=2, after=after)
        assert page.count == 5
        found += [one.message.body for one in page.messages]
        if (after := page.next) is None:
            break
    assert found == [b"4", b"3", b"2", b"1", b"0"]
    assert [one.message.body for one in store.transactions("pay").messages] == [b"3", b"1"]
    with pytest.raises(CallerError):
        store.transactions(limit=0)


def test_a_store_that_is_read_only_lists_and_ends_nothing(
    tmp_path: Path, store: Store, config: StoreConfig
) -> None:
    put = store.prepare("t", b"x", group="pay")
    with kvstore.open(killed(store, tmp_path / "k"), config=config, read_only=True) as reader:
        assert reader.transactions().count == 1
        assert reader.prepared(put.message_id).group == "pay"
        for call in (reader.commit, reader.rollback):
            with pytest.raises(StoreReadOnly):
                call(put)
        with pytest.raises(StoreReadOnly):
            reader.prepare("t", b"x", group="pay")


def test_a_deleted_topic_takes_its_prepared_messages_with_it(store: Store) -> None:
    put = store.prepare("u", b"x", group="pay")
    assert store.delete_topic("u") == 1
    assert store.transactions().count == 0
    store.create_topic("u", queues=1)
    with pytest.raises((TransactionEnded, MessageNotFound)):
        store.commit(put)
    assert bodies(store, "u") == []


def test_asyncio_has_it_all(tmp_path: Path) -> None:
    async def work() -> None:
        async with kvstore.aio.open(tmp_path / "s") as store:
            await store.create_topic("t", queues=1)
            put = await store.prepare("t", b"x", group="pay")
            assert (await store.transactions()).count == 1
            assert (await store.prepared(put.message_id)).topic == "t"
            await store.commit(put)
            await store.rollback((await store.prepare_batch([Message("t", b"y")], group="p"))[0])
            async with store.transaction(group="pay") as t:
                t.put("t", b"1")
                t.put("t", b"2")
                await t.prepare()
            undone = store.transaction(group="pay")
            undone.put("t", b"3")
            await undone.rollback()
            found = await store.pull("t", 0, 0)
            assert [m.body for m in found.messages] == [b"x", b"1", b"2"]
            (await store.on_check("pay", lambda message: "commit")).close()

    asyncio.run(work())


def test_a_namespace_has_its_own_transactions_alone(store: Store, clock: VirtualClock) -> None:
    one, two = store.namespace("one"), store.namespace("two")
    for view in (one, two):
        view.create_topic("t", queues=1)
    mine, other = one.prepare("t", b"1", group="pay"), two.prepare("t", b"2", group="pay")
    assert (mine.topic, one.transactions().count, two.transactions("pay").count) == ("t", 1, 1)
    assert one.prepared(mine.message_id).group == "pay"
    for call in (one.commit, one.rollback):
        for handle in (other, other.message_id):
            with pytest.raises(MessageNotFound):
                call(handle)
    assert one.commit(mine).topic == "t"
    with one.transaction(group="pay") as t:
        t.put("t", b"3")
        t.put("t", b"4")
    assert [m.body for m in one.pull("t", 0, 0).messages] == [b"1", b"3", b"4"]
    ask, questions = checker(["rollback"])
    two.on_check("pay", ask)
    asked(store, clock, 7)
    assert [(m.topic, m.body) for m in questions] == [("t", b"2")]
    assert two.transactions().count == 0


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_an_id_that_another_namespace_has_as_well_hides_no_transaction(
    store: Store, is_checkpointed: bool, is_prepared: bool
) -> None:
    one, two = store.namespace("one"), store.namespace("two")
    for view in (one, two):
        view.create_topic("t", queues=1)
    for message_id in ("tx-1", "tx-2"):
        one.prepare("t", b"mine", group="pay", message_id=message_id)
        if is_prepared:
            two.prepare("t", b"other", group="pay", message_id=message_id)
        else:
            two.put("t", b"other", message_id=message_id)
    if is_checkpointed:
        store.checkpoint()
    assert one.prepared("tx-1").message.body == b"mine"
    one.commit("tx-1")
    one.commit("tx-1")
    one.rollback("tx-2")
    with pytest.raises(TransactionEnded):
        one.commit("tx-2")
    assert [m.body for m in one.pull("t", 0, 0).messages] == [b"mine"]
    assert two.transactions().count == (2 if is_prepared else 0)
