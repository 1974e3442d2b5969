"""Several prepared messages with one id: the result of a put ends its own transaction alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Message, MessageNotFound, PutResult, Retention, Store, TransactionEnded
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.served import serving
from tests.support.stores import SEGMENT, killed, opened, settings

BODIES: Final = (b"0", b"1", b"2")


def bodies(store: Store, topic: str = "t") -> list[bytes]:
    return [m.body for m in store.pull(topic, 0, 0, limit=10_000).messages]


def prepared(store: Store, topic: str = "t") -> list[PutResult]:
    return [store.prepare(topic, body, group="pay", queue=0, message_id="same") for body in BODIES]


def assert_each_ends_its_own(store: Store, put: list[PutResult]) -> None:
    dropped, kept, waits = put
    store.rollback(dropped)
    with pytest.raises(TransactionEnded) as e:
        store.commit(dropped)
    assert not e.value.is_committed
    store.rollback(dropped)
    assert (bodies(store), store.transactions().count) == ([], 2)
    first = store.commit(kept)
    assert store.commit(kept) == first == store.commit(first)
    with pytest.raises(TransactionEnded) as e:
        store.rollback_batch([kept])
    assert e.value.is_committed
    with pytest.raises(TransactionEnded):
        store.commit_batch([waits, dropped])
    assert (bodies(store), store.transactions().count) == ([b"1"], 1)
    assert_ended(store, put)


def assert_ended(store: Store, put: list[PutResult]) -> None:
    """The first was rolled back, the second is committed, the third waits."""
    dropped, kept = put[:2]
    assert store.prepared("same").message.body == b"2"
    for call in (lambda: store.commit(dropped), lambda: store.rollback(kept)):
        with pytest.raises(TransactionEnded):
            call()
    store.rollback(dropped)
    assert store.commit(kept).offset == 0
    assert store.transactions().count == 1


def is_asked(store: Store, clock: VirtualClock) -> None:
    checker = store.on_check("pay", lambda message: "unknown")
    for _ in range(3):
        clock.advance(31)
        inside.ask_about_transactions(store)
    checker.close()
    assert store.prepared("same").checks == 3


STEPS: Final[dict[str, Callable[[Store, VirtualClock], object]]] = {
    "at once": lambda store, clock: None,
    "checkpointed": lambda store, clock: store.checkpoint(),
    "asked about": is_asked,
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("before", ["nothing", "reopened", "rebuilt"])
def test_a_result_is_never_answered_for_another_transaction(
    tmp_path: Path, clock: VirtualClock, step: Callable[[Store, VirtualClock], object], before: str
) -> None:
    config = settings(clock=clock)
    with opened(tmp_path / "s", config) as store:
        put = prepared(store)
        step(store, clock)
        if before == "nothing":
            assert_each_ends_its_own(store, put)
        crashed = killed(store, tmp_path / "k")
    if before == "rebuilt":
        kvstore.rebuild(crashed, config=config)
    with kvstore.open(crashed, config) as again:
        if before != "nothing":
            assert_each_ends_its_own(again, put)
        again.checkpoint()
        assert_ended(again, put)
    kvstore.rebuild(crashed, config=config)
    with kvstore.open(crashed, config) as again:
        assert_ended(again, put)
        again.commit("same")
        assert bodies(again) == [b"1", b"2"]
        assert again.verify().problems == []


def test_a_result_names_its_transaction_when_its_record_has_left_the_log(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """The messages are moved, and the segments of the copies leave as well."""
    config = settings(clock=clock, retention=Retention(max_bytes=3 * SEGMENT), delete_interval=0.0)
    with opened(tmp_path / "s", config) as store:
        put = prepared(store)
        is_asked(store, clock)
        for _ in range(3):
            moved = store.prepared("same").message.position
            for _ in range(8):
                store.put_batch([Message("t", bytes(2000), queue=1)] * 25)
            store.apply_retention()
            assert store.prepared("same").message.position > moved
            assert inside.log(store).first > moved
        assert_each_ends_its_own(store, put)


def test_a_result_is_not_answered_for_one_of_a_topic_that_indexes_no_ids(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("off", queues=1, key_index="off")
        dropped, kept, _ = put = prepared(store, "off")
        store.rollback(dropped)
        store.commit(kept)
        store.commit(kept)
        for call in (lambda: store.commit(dropped), lambda: store.rollback(kept)):
            with pytest.raises(TransactionEnded):
                call()
        assert bodies(store, "off") == [b"1"]
        store.rollback(put[2])
        assert bodies(store, "off") == [b"1"]


def test_a_result_that_is_of_no_transaction_here_ends_none(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        put = prepared(store)
        wrong = [PutResult("same", "t", 0, -1, at, 1, put[0].status) for at in (-1, 5, 1 << 40)]
        other = store.put("t", b"plain", queue=0, message_id="same")
        for handle in (*wrong, other):
            for call in (store.commit, store.rollback):
                with pytest.raises(MessageNotFound):
                    call(handle)
        assert store.transactions().count == 3


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_each_result_of_a_set_ends_its_own_set_where_two_have_one_name(
    tmp_path: Path, number: int, is_checkpointed: bool
) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("u", queues=1)
        sets = []
        for n in range(3):
            messages = [
                Message(topic, b"%d" % n, queue=0, message_id="same") for topic in ("t", "u", "t")
            ]
            sets.append(store.prepare_batch(messages, group="pay", set_id="same"))
            if is_checkpointed:
                store.checkpoint()
        store.rollback(sets[0][number])
        for one in sets[0]:
            with pytest.raises(TransactionEnded):
                store.commit(one)
        assert store.transactions().count == 6
        for at, one in enumerate((*sets[1][number:], *sets[1])):
            result = store.commit(one)
            assert (result.topic, result.message_id) == (one.topic, "same"), at
        with pytest.raises(TransactionEnded):
            store.rollback(sets[1][2])
        assert (bodies(store), bodies(store, "u")) == ([b"1", b"1"], [b"1"])
        store.rollback("same")
        assert store.transactions().count == 0


def test_blocks_with_one_id_end_by_themselves(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        one, two = store.transaction(group="pay"), store.transaction(group="pay")
        for n, t in enumerate((one, two)):
            t.put("t", b"%d" % n, queue=0, message_id="same")
            t.put("t", b"%d" % n, queue=0)
            t.prepare()
        one.rollback()
        assert (bodies(store), store.transactions().count) == ([], 2)
        two.commit()
        assert bodies(store) == [b"1", b"1"]


def test_results_of_a_served_store_end_their_own_transactions(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "s") as store,
        serving(store) as server,
        kvstore.connect(server.url) as client,
    ):
        put = prepared(store)
        client.rollback(put[0])
        with pytest.raises(TransactionEnded):
            client.commit(put[0])
        client.rollback(put[0])
        assert client.commit(put[1]) == client.commit(put[1])
        with pytest.raises(TransactionEnded):
            client.rollback_batch([put[2], put[1]])
        assert client.transactions().count == 1
        client.commit("same")
        with pytest.raises(TransactionEnded):
            client.rollback(put[2])
        assert bodies(store) == [b"1", b"2"]


def test_a_namespace_ends_its_own_by_result_where_another_has_the_id(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        views = [store.namespace(name) for name in ("one", "two")]
        for view in views:
            view.create_topic("t", queues=1)
        mine, other = (view.prepare("t", b"x", group="pay", message_id="same") for view in views)
        views[0].rollback(mine)
        with pytest.raises(TransactionEnded):
            views[0].commit(mine)
        with pytest.raises(MessageNotFound):
            views[0].commit(other)
        assert views[1].commit(other).offset == 0
