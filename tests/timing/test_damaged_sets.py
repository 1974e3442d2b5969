"""Prepared messages whose records are damaged: a set of which one is lost is never committed in
part, and ends by a rollback or by its age; none of its messages is left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

import kvstore
from kvstore import (
    Message,
    MessageNotFound,
    PutResult,
    RecordDamaged,
    Retention,
    Store,
    StoreConfig,
    StoredMessage,
    TransactionEnded,
)
from kvstore.core.names import TRANSACTION_DISCARD_TOPIC
from kvstore.timing.checks import Answer
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.served import serving
from tests.support.stores import SEGMENT, flip, killed, opened, settings
from tests.support.waiting import until
from tests.timing.test_transaction_ages import upkeep
from tiering import Policy, Worker

AGE: Final = 3600.0
POLICY: Final = Policy(max_bytes=1, warm="archive", watermarks=None, clock_doubt=0.0)
DAMAGES: Final = {"body": 88, "size": 0, "magic": 4}
"""Where a byte of a record is flipped."""
WITH_ID: Final = DAMAGES["body"]
"""A record so damaged still says the message's id."""


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    if topic not in [one.name for one in store.topics()]:
        return []
    first = store.bounds(topic, 0).min_offset
    return [m.body for m in store.pull(topic, 0, first, limit=10_000).messages]


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    return settings(clock=clock, transaction_age=AGE)


@pytest.fixture
def prepared(tmp_path: Path, config: StoreConfig) -> tuple[Path, list[PutResult]]:
    """A store with a set of three, between others, that was killed."""
    with opened(tmp_path / "s", config) as store:
        store.create_topic("u", queues=1)
        store.prepare("t", b"before", group="pay", queue=0, message_id="before")
        store.prepare_batch([Message("u", b"other", queue=0)] * 2, group="pay")
        messages = [
            Message("u" if n == 1 else "t", b"%d" % n, queue=0, message_id=name)
            for n, name in enumerate(("set", "set-1", "set-2"))
        ]
        put = store.prepare_batch(messages, group="pay", set_id="set")
        store.prepare("t", b"behind", group="pay", queue=0, message_id="behind")
        others = [Message("t", b"of another", queue=0, message_id="next"), Message("t", b"", 0)]
        store.prepare_batch(others, group="pay", set_id="next")
        store.put("t", b"plain", queue=0)
        return killed(store, tmp_path / "k"), put


@pytest.fixture(params=["running", "reopened", "rebuilt"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[*DAMAGES.values()], ids=[*DAMAGES])
def damage(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[0, 1, 2])
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def store(
    prepared: tuple[Path, list[PutResult]],
    config: StoreConfig,
    way: str,
    damage: int,
    number: int,
) -> Iterator[Store]:
    """The store, with damage to one record of the set."""
    path, put = prepared
    at = put[number].position + damage
    if way == "running":
        with kvstore.open(path, config) as store:
            inside.stop_housekeepers(store)
            flip(path, at)
            yield store
        return
    # Recovery reads all of the log behind the checkpoint.
    kvstore.open(path, config).close()
    flip(path, at)
    if way == "rebuilt":
        kvstore.rebuild(path, config=config)
    with kvstore.open(path, config) as store:
        inside.stop_housekeepers(store)
        yield store


def handles(put: list[PutResult], number: int, way: str) -> list[PutResult | str]:
    """By which the set can be named: a rebuild does not know the damaged record any more."""
    found: list[PutResult | str] = [*put, *(one.message_id for one in put)]
    if way == "rebuilt":
        found = [one for n, one in enumerate(found) if n % len(put) != number]
    return found


def assert_others_are_as_before(store: Store) -> None:
    assert store.transactions().count == 6
    assert len(store.transactions().messages) == 6
    store.commit("before")
    store.commit("next")
    store.rollback("behind")
    assert sorted(bodies(store)) == [b"", b"before", b"of another", b"plain"]
    assert store.transactions().count == 2


def test_a_commit_is_refused_and_a_rollback_ends_all_of_the_set(
    store: Store, prepared: tuple[Path, list[PutResult]], number: int, way: str, damage: int
) -> None:
    put = prepared[1]
    for handle in handles(put, number, way):
        with pytest.raises(RecordDamaged, match="roll it back") as e:
            store.commit(handle)
        assert e.value.position in (-1, put[number].position)
    assert (bodies(store), bodies(store, "u")) == ([b"plain"], [])
    store.rollback(handles(put, number, way)[0])
    for handle in handles(put, number, way):
        if handle in (put[number], put[number].message_id) and number and damage != WITH_ID:
            with pytest.raises(MessageNotFound):
                store.rollback(handle)
            continue
        with pytest.raises(TransactionEnded):
            store.commit(handle)
        store.rollback(handle)
    assert_others_are_as_before(store)


@pytest.mark.parametrize("at", range(6))
def test_any_result_and_id_of_the_set_rolls_it_back(
    store: Store, prepared: tuple[Path, list[PutResult]], number: int, way: str, at: int
) -> None:
    put = prepared[1]
    names: list[PutResult | str] = [*put, *(one.message_id for one in put)]
    named = names[at]
    if named not in handles(put, number, way):
        with pytest.raises((MessageNotFound, RecordDamaged)):
            store.rollback(named)
        named = handles(put, number, way)[0]
    store.rollback(named)
    assert_others_are_as_before(store)


def test_the_age_gives_it_up_and_the_log_says_so(
    store: Store, clock: VirtualClock, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    store.rollback("before")
    upkeep(store, clock, AGE / 2)
    store.commit("behind")
    upkeep(store, clock, AGE / 2)
    assert store.transactions().count == 0
    kept = [b"%d" % n for n in range(3) if n != number]
    found = bodies(store, TRANSACTION_DISCARD_TOPIC)
    assert [body for body in found if body.isdigit()] == kept
    assert "was given up" in caplog.text
    assert sorted(bodies(store)) == [b"behind", b"plain"]


def test_a_checker_that_says_commit_is_asked_no_more_and_one_that_says_rollback_ends_it(
    store: Store, clock: VirtualClock, number: int
) -> None:
    asked: list[bytes] = []
    answers: dict[bytes, Answer] = {b"0": "commit"}

    def answer(message: StoredMessage) -> Answer:
        asked.append(message.body)
        return answers.get(message.body, "unknown")

    store.on_check("pay", answer)
    for _ in range(3):
        clock.advance(31)
        inside.ask_about_transactions(store)
    assert asked.count(b"0") == (number != 0)
    assert asked.count(b"before") == 3
    answers[b"0"] = "rollback"
    store.on_check("pay", lambda message: "unknown").close()  # all are asked about again
    inside.ask_about_transactions(store)
    left = {one.message_id for one in store.transactions().messages}
    assert left & {"set", "set-1", "set-2"} == (set() if number else {"set-1", "set-2"})
    upkeep(store, clock, AGE)
    assert store.transactions().count == 0


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_it_is_given_up_before_its_segment_leaves(
    prepared: tuple[Path, list[PutResult]], clock: VirtualClock, number: int, damage: int,
    is_rebuilt: bool,
) -> None:  # fmt: skip
    path, put = prepared
    kept = Retention(max_bytes=3 * SEGMENT)
    config = settings(clock=clock, retention=kept, delete_interval=0.0, transaction_age=AGE)
    kvstore.open(path, config).close()
    flip(path, put[number].position + damage)
    if is_rebuilt:
        kvstore.rebuild(path, config=config)
    with kvstore.open(path, config) as store:
        inside.stop_housekeepers(store)
        for _ in range(8):
            store.put_batch([Message("t", bytes(2000), queue=1)] * 25)
        store.apply_retention()
        assert inside.log(store).first > put[2].position
        for n, one in enumerate(put):
            if n != number:
                with pytest.raises(TransactionEnded):
                    store.commit(one)
        found = [body for body in bodies(store, TRANSACTION_DISCARD_TOPIC) if body.isdigit()]
        assert found == [b"%d" % n for n in range(3) if n != number]
        store.commit("before")
        store.commit("next")
        assert bodies(store)[-3:] == [b"before", b"of another", b""]
        assert store.transactions().count == 3
        assert store.verify().problems == []


def test_a_segment_with_it_is_not_archived_and_it_ends_beside_archives(
    store: Store, prepared: tuple[Path, list[PutResult]], number: int, way: str, damage: int
) -> None:
    for _ in range(8):
        store.put_batch([Message("t", bytes(2000), queue=1)] * 25)
    store.seal()
    with Worker(store, POLICY) as worker:
        assert worker.run_once().failed.keys() == {"segment 0"}
    named = handles(prepared[1], number, way)
    with pytest.raises(RecordDamaged, match="roll it back"):
        store.commit(named[0])
    store.rollback(named[0])
    assert_others_are_as_before(store)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("end", ["rollback", "by id", "age", "leaves"])
def test_a_message_by_itself_ends_too(
    tmp_path: Path, clock: VirtualClock, config: StoreConfig, damage: int, is_checkpointed: bool,
    end: str,
) -> None:  # fmt: skip
    kept = Retention(max_bytes=3 * SEGMENT)
    config = msgspec.structs.replace(config, retention=kept, delete_interval=0.0)
    with opened(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        put = [store.prepare("t", b"%d" % n, group="pay", queue=0) for n in range(3)]
        if is_checkpointed:
            store.checkpoint()
        flip(store.path, put[1].position + damage)
        for handle in (put[1], put[1].message_id):
            with pytest.raises(RecordDamaged, match="roll it back"):
                store.commit(handle)
            with pytest.raises(RecordDamaged):
                store.prepared(put[1].message_id)
        if end == "age":
            upkeep(store, clock, AGE / 2)
            assert store.transactions().count == 3
            store.commit_batch([put[0], put[2]])
            upkeep(store, clock, AGE / 2 + config.transaction_immunity)
        elif end == "leaves":
            for _ in range(8):
                store.put_batch([Message("t", bytes(2000), queue=1)] * 25)
            store.apply_retention()
            assert inside.log(store).first > put[1].position
            assert store.transactions().count == 2
            store.commit_batch([put[0], put[2]])
        else:
            store.rollback(put[1] if end == "rollback" else put[1].message_id)
            store.rollback(put[1])
            store.commit_batch([put[0], put[2]])
        assert (bodies(store), store.transactions().count) == ([b"0", b"2"], 0)
        is_known = end in ("rollback", "by id") or damage == WITH_ID
        with pytest.raises(TransactionEnded if is_known else MessageNotFound):
            store.commit(put[1])
    with kvstore.open(tmp_path / "s", config) as again:
        assert again.transactions().count == 0


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_set_of_which_nothing_can_be_read_ends_by_its_age(
    prepared: tuple[Path, list[PutResult]], config: StoreConfig, clock: VirtualClock, damage: int
) -> None:
    path, put = prepared
    kvstore.open(path, config).close()
    for one in put:
        flip(path, one.position + damage)
    with kvstore.open(path, config) as store:
        inside.stop_housekeepers(store)
        for one in put:
            with pytest.raises(RecordDamaged):
                store.commit(one)
        store.commit_batch(["before", "behind", "next"])
        upkeep(store, clock, AGE / 2)
        assert store.transactions().count == 5
        upkeep(store, clock, AGE / 2 + 10)
        assert store.transactions().count == 0


def test_a_client_is_told_of_the_damage_and_rolls_back(
    prepared: tuple[Path, list[PutResult]], config: StoreConfig, number: int
) -> None:
    path, put = prepared
    with (
        kvstore.open(path, config) as store,
        serving(store) as server,
        kvstore.connect(server.url) as client,
    ):
        flip(path, put[number].position)
        names: list[PutResult | str] = [*put, *(one.message_id for one in put)]
        for handle in names:
            with pytest.raises(RecordDamaged, match="roll it back") as e:
                client.commit(handle)
            assert e.value.position == put[number].position
        client.rollback(put[number])
        assert client.transactions().count == 6


def test_a_result_whose_copy_is_damaged_is_not_taken_for_committed(
    tmp_path: Path, clock: VirtualClock, config: StoreConfig
) -> None:
    with opened(tmp_path / "s", config) as store:
        checker = store.on_check("pay", lambda message: "unknown")
        put = store.prepare("t", b"x", group="pay", queue=0)
        clock.advance(31)
        inside.ask_about_transactions(store)
        checker.close()
        copy = store.prepared(put.message_id)
        assert copy.checks == 1
        flip(store.path, copy.message.position + 88)
        for call in (store.commit, store.rollback):
            with pytest.raises(RecordDamaged, match="its id ends that"):
                call(put)
        with pytest.raises(RecordDamaged, match="roll it back"):
            store.commit(put.message_id)
        other = store.prepare("t", b"y", group="pay", message_id=put.message_id)
        store.rollback(other)
        store.rollback(other)
        forged = PutResult("other", "t", 0, -1, copy.message.position, 1, put.status)
        with pytest.raises(MessageNotFound):
            store.rollback(forged)
        assert store.transactions().count == 1
        store.rollback(put.message_id)
        store.rollback(put.message_id)
        assert store.transactions().count == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_deletion_of_a_damaged_messages_topic_ends_its_whole_set(
    prepared: tuple[Path, list[PutResult]], config: StoreConfig, number: int
) -> None:
    path, put = prepared
    kvstore.open(path, config).close()
    flip(path, put[number].position + WITH_ID)
    with kvstore.open(path, config) as store:
        inside.stop_housekeepers(store)
        # Beside the set: two to "u"; or "before", "behind", and the set "next".
        assert store.delete_topic("u" if number == 1 else "t") == (5 if number == 1 else 7)
        assert store.transactions().count == (4 if number == 1 else 2)
        for one in put:
            with pytest.raises(TransactionEnded):
                store.commit(one)
            store.rollback(one)


@pytest.mark.parametrize("ends", ["rollback", "age"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_damaged_message_that_is_the_first_of_all_keeps_no_other_from_its_end(
    tmp_path: Path, config: StoreConfig, clock: VirtualClock, ends: str, count: int
) -> None:
    with opened(tmp_path / "s", config) as store:
        set_id = None if count == 1 else "set"
        messages = [Message("t", b"%d" % n, message_id=f"set{n}"[: 3 + n]) for n in range(count)]
        first = store.prepare_batch(messages, group="pay", set_id=set_id)[0]
        store.prepare("t", b"other", group="ship", queue=0, immunity=60.0)
    flip(tmp_path / "s", first.position + WITH_ID)
    with kvstore.open(tmp_path / "s", config) as store:
        inside.stop_housekeepers(store)
        with pytest.raises(RecordDamaged):
            store.commit(first)
        store.on_check("ship", lambda message: "commit")
        if ends == "rollback":
            store.rollback(first)
            assert store.transactions().count == 1
        upkeep(store, clock, 61.0)
        until(lambda: bodies(store) == [b"other"])
        upkeep(store, clock, AGE)
        assert store.transactions().count == 0
        assert bodies(store) == [b"other"]
