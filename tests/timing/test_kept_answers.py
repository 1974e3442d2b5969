"""Answers about messages whose wait has ended: they stay as they are when the messages' topic is
deleted, at a checkpoint, and when the index is made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import (
    DelayEnded,
    DiskFull,
    MessageNotFound,
    PutResult,
    RecordDamaged,
    Store,
    StoreConfig,
    TransactionEnded,
)
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import killed
from tests.support.waiting import until

pytestmark = [pytest.mark.topic("t", queues=2), pytest.mark.topic("gone", queues=1)]

Put = Callable[[Store], PutResult]


def said(call: Callable[[], Any]) -> object:
    """The answer of a call, or its error."""
    try:
        return call()
    except (DelayEnded, TransactionEnded, MessageNotFound) as e:
        return type(e), str(e)


def in_every_state(store: Store, config: StoreConfig, look: Callable[[Store], Any]) -> list[Any]:
    """Answers after a checkpoint, an opening, a rebuild, and where the topic is made again."""
    found = [look(store)]
    store.checkpoint()
    found.append(look(store))
    store.close()
    with kvstore.open(store.path, config) as again:
        found.append(look(again))
    kvstore.rebuild(store.path, config=config)
    with kvstore.open(store.path, config) as again:
        found.append(look(again))
        again.create_topic("gone", queues=1)
        found.append(look(again))
    return found


# --- delays ---


def answers_of_delays(store: Store, ids: dict[str, str]) -> dict[str, object]:
    """The answers of `cancel`, `timer` and `change_delay` about messages."""
    return {
        name: (
            said(lambda i=one: store.cancel(i)),  # type: ignore[misc]
            said(lambda i=one: store.timer(i)),  # type: ignore[misc]
            said(lambda i=one: store.change_delay(i, delay=1)),  # type: ignore[misc]
        )
        for name, one in ids.items()
    }


@pytest.mark.parametrize("key_index", ["all", "off"])
def test_whether_a_delayed_message_was_delivered_stays_known_without_its_topic(
    store: Store, config: StoreConfig, clock: VirtualClock, key_index: Any
) -> None:
    store.alter_topic("gone", key_index=key_index)
    delays = {"delivered": 1.0, "changed": 50.0, "cancelled": 60.0, "waits": 60.0}
    ids = {name: store.put("gone", b"", delay=s).message_id for name, s in delays.items()}
    store.change_delay(ids["changed"], delay=0)
    store.cancel(ids["cancelled"])
    clock.advance(2)
    until(lambda: store.bounds("gone", 0).next_offset == 2)
    ended = {name: one for name, one in ids.items() if name != "waits"}
    before = answers_of_delays(store, ended)
    assert [one[0] for one in before.values()] == [False, False, True]  # type: ignore[index]
    store.delete_topic("gone")

    first, *others = in_every_state(store, config, lambda store: answers_of_delays(store, ids))
    assert first == before | {"waits": first["waits"]}
    assert first["waits"][0] is True
    assert "its topic 'gone' was deleted" in first["waits"][1][1]
    assert others == [first] * 4


def test_a_message_of_a_transaction_is_no_delayed_one_however_it_ends(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    ids = [store.prepare("gone", b"", group="pay").message_id for _ in range(3)]
    store.commit(ids[0])
    store.rollback(ids[1])
    clock.advance(config.transaction_age + 1)
    inside.ask_about_transactions(store)
    waits = store.prepare("gone", b"", group="pay").message_id
    assert [one.message_id for one in store.transactions().messages] == [waits]
    named = dict(zip("abcd", (*ids, waits), strict=True))

    def look(store: Store) -> dict[str, object]:
        return answers_of_delays(store, named)

    for answer in look(store).values():
        for kind, text in answer:  # type: ignore[attr-defined]
            assert kind is MessageNotFound
            assert "without a delay" in text
    before = look(store)
    store.delete_topic("gone")
    assert in_every_state(store, config, look) == [before] * 5


def test_a_position_id_leads_to_what_became_of_the_message(
    store: Store, config: StoreConfig, clock: VirtualClock
) -> None:
    ids, at = dict[str, str](), dict[str, str]()
    for name in ("cancelled", "delivered", "moved"):
        ids[name] = store.put("gone", b"", delay=60).message_id
        at[name] = store.timer(ids[name]).message.position_id
    store.cancel(ids["cancelled"])
    store.change_delay(ids["delivered"], delay=0)
    for _ in range(2):
        store.change_delay(ids["moved"], delay=90)
    assert store.timer(at["moved"]) == store.timer(ids["moved"])
    prepared = {name: store.prepare("gone", b"", group="pay") for name in ("commit", "rollback")}
    places = {n: store.prepared(p.message_id).message.position_id for n, p in prepared.items()}
    for name, put in prepared.items():
        getattr(store, name)(put)

    def look(store: Store) -> None:
        assert (store.cancel(at["cancelled"]), store.cancel(at["delivered"])) == (True, False)
        for name, other in (("commit", "rollback"), ("rollback", "commit")):
            getattr(store, name)(places[name])
            with pytest.raises(TransactionEnded):
                getattr(store, other)(places[name])

    look(store)
    assert store.cancel(at["moved"])
    assert store.timers().count == 0
    store.delete_topic("gone")
    in_every_state(store, config, look)


# --- transactions ---


def set_of(store: Store, *topics: str) -> PutResult:
    """The first of several messages that are prepared together."""
    t = store.transaction(group="pay")
    for topic in topics:
        t.put(topic, topic.encode())
    return t.prepare()[0]


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize(
    "prepared",
    [
        lambda store: store.prepare("gone", b"x", group="pay"),
        lambda store: set_of(store, "gone", "t"),
        lambda store: set_of(store, "t", "gone"),
    ],
    ids=["alone", "first of a set", "last of a set"],
)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_how_a_transaction_ended_stays_known_without_its_topic(
    store: Store, config: StoreConfig, prepared: Put, end: str, *, by_id: bool
) -> None:
    put = prepared(store)
    getattr(store, end)(put)
    store.delete_topic("gone")
    handle = put.message_id if by_id else put
    other = "rollback" if end == "commit" else "commit"

    def look(store: Store) -> object:
        with pytest.raises(TransactionEnded) as e:
            getattr(store, other)(handle)
        assert e.value.is_committed is (end == "commit")
        with pytest.raises(TransactionEnded) as e:
            store.prepared(put.message_id)
        assert e.value.is_committed is (end == "commit")
        return getattr(store, end)(handle)

    first, *others = in_every_state(store, config, look)
    assert others == [first] * 4
    if end == "commit":
        place = first.message_id, first.topic, first.queue
        assert place == (put.message_id, put.topic, put.queue)
        assert first.offset == (-1 if put.topic == "gone" else 0), "it is gone with its topic"


def test_a_transaction_that_went_with_its_topic_is_rolled_back_for_good(
    store: Store, config: StoreConfig
) -> None:
    puts = [
        store.prepare("gone", b"x", group="pay"), set_of(store, "gone", "t"),
        set_of(store, "t", "gone"),
    ]  # fmt: skip
    assert store.delete_topic("gone") == 5

    def look(store: Store) -> None:
        for put in puts:
            store.rollback(put)
            with pytest.raises(TransactionEnded, match="rolled back"):
                store.commit(put)
        assert store.bounds("t", 0).next_offset == 0

    in_every_state(store, config, look)


# --- the deletion itself ---


def test_a_topic_is_deleted_on_a_full_disk_with_what_waits(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("gone", b"", delay=60)
    store.prepare("gone", b"", group="pay")

    def full() -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr(inside.log(store), "check_disk", full)
    clock.advance(10)
    with pytest.raises(DiskFull):
        store.put("gone", b"")
    assert store.delete_topic("gone") == 2
    assert (store.timers().count, store.transactions().count) == (0, 0)


def test_a_deletion_that_a_crash_cuts_leaves_the_topic_or_none_of_it(
    tmp_path: Path, store: Store, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes are there before the topic goes: its messages are cancelled, and it can be deleted
    again.
    """
    one = store.put("gone", b"", delay=60).message_id
    removal = inside.removals_of_topics(store)
    found: list[Path] = []

    def crash(*args: Any) -> None:
        found.append(killed(store, tmp_path / "k"))
        raise RecordDamaged("a crash", 0)

    removal.replace(crash, monkeypatch)
    with pytest.raises(RecordDamaged):
        store.delete_topic("gone")
    with kvstore.open(found[0], config) as again:
        assert again.cancel(one)
        assert again.verify().problems == []
        assert again.delete_topic("gone") == 0
