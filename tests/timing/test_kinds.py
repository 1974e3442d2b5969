"""Kinds of topics: which messages each takes, by every way to put one, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest

from kvstore import CallerError, Message, MessageIllegal, Store, TopicConfig
from kvstore.meta.topic import KINDS
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import Opens, settings

LATER: Final = 2_000_000_000_000
REFUSED: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("fifo", {}, "is of kind 'fifo', .* give the message_group, or the queue"),
    ("fifo", {"message_group": "g", "deliver_at": LATER}, "is of kind 'fifo', .* without a delay"),
    ("delay", {}, "is of kind 'delay', for delayed messages only: give deliver_at, delay"),
    ("delay", {"message_group": "g", "queue": 0}, "is of kind 'delay'"),
    ("transaction", {}, "is of kind 'transaction', for prepared messages only: prepare it"),
    ("transaction", {"deliver_at": LATER}, "is of kind 'transaction'"),
    (
        "compacted",
        {},
        "is of kind 'compacted', which keeps the newest message of each key: give keys",
    ),
    ("compacted", {"deliver_at": LATER, "queue": 1}, "is of kind 'compacted'"),
    ("compacted", {"keys": [], "message_id": "id"}, "is of kind 'compacted'"),
    ("undelayed", {"deliver_at": LATER}, "takes_delays=False: put it without a delay, or use"),
    ("undelayed", {"deliver_at": 1_000_000_000_000}, "takes_delays=False"),
]
TAKEN: Final[list[tuple[str, dict[str, Any]]]] = [
    ("fifo", {"message_group": "g"}),
    ("fifo", {"queue": 1}),
    ("delay", {"deliver_at": LATER}),
    ("delay", {"deliver_at": 1_000_000_000_000}),
    ("delay", {"message_group": "g", "deliver_at": LATER}),
    ("undelayed", {}),
    *((kind, fields) for kind in ("normal", "priority")
      for fields in ({}, {"message_group": "g"}, {"queue": 1}, {"deliver_at": LATER})),
    *(("compacted", {"keys": ["k"]} | fields)
      for fields in ({}, {"message_group": "g"}, {"queue": 1}, {"deliver_at": LATER})),
]  # fmt: skip


@pytest.fixture
def store(opens: Opens) -> Store:
    """A store with a topic of each kind, named by it, and "undelayed", a normal one."""
    store = opens(settings(clock=VirtualClock()))
    kinds: list[Any] = list(KINDS)
    store.create_topics([TopicConfig(name=kind, kind=kind, queues=2) for kind in kinds])
    store.create_topic("undelayed", queues=2, takes_delays=False)
    return store


def columns(fields: dict[str, Any], count: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"body": [b"x"] * count} | {n: [v] * count for n, v in fields.items()})


def puts(store: Store) -> int:
    return store.stats().end_position


@pytest.mark.parametrize(("topic", "fields", "says"), REFUSED)
def test_a_put_that_the_kind_does_not_take_is_refused_and_named(
    store: Store, topic: str, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(MessageIllegal, match=f"^topic '{topic}' .*{says}"):
        store.put(topic, b"x", **fields)
    good = [Message("normal", b"x"), Message("normal", b"x", delay=5)]
    with pytest.raises(MessageIllegal, match=f"^message 2 of 4: topic '{topic}' .*{says}"):
        store.put_batch([*good, Message(topic, b"x", **fields), *good[:1]])
    with pytest.raises(MessageIllegal, match=f"^row 0 of 2: topic '{topic}' .*{says}"):
        store.put_columns(topic, columns(fields, 2))
    assert puts(store) == 0


@pytest.mark.parametrize(("topic", "fields"), TAKEN)
def test_a_put_that_the_kind_takes_is_put(store: Store, topic: str, fields: dict[str, Any]) -> None:
    is_later = fields.get("deliver_at") == LATER
    for result in (
        store.put(topic, b"x", **fields),
        store.put_batch([Message(topic, b"x", **fields)])[0],
        store.put_columns(topic, columns(fields)).results()[0],
    ):
        assert (result.offset < 0) == is_later


@pytest.mark.parametrize("asked", [{"delay": 0}, {"delay": 5.0}, {"delay_level": 1}])
def test_a_delay_of_any_sort_is_one_for_the_kind(store: Store, asked: dict[str, Any]) -> None:
    assert store.put("delay", b"x", **asked).topic == "delay"
    for topic in ("fifo", "undelayed"):
        with pytest.raises(MessageIllegal, match="without a delay"):
            store.put(topic, b"x", queue=0, **asked)


def test_an_id_of_its_own_is_no_key(store: Store) -> None:
    """Nor is a dedup id, in a batch in which the message before has keys."""
    store.alter_topic("compacted", dedup_window=60.0)
    keyed = Message("compacted", b"x", keys=["a", "b"], dedup_id="1")
    for one in (Message("compacted", b"x", dedup_id="2"), Message("compacted", b"", keys=[])):
        with pytest.raises(MessageIllegal, match=r"^message 1 of 2: .* give keys"):
            store.put_batch([keyed, one])
    assert len(store.put_batch([keyed, keyed])) == 2


def test_the_first_row_that_the_kind_does_not_take_is_named(store: Store) -> None:
    rows = pa.record_batch({"body": [b"x"] * 3, "deliver_at": [LATER, LATER, None]})
    with pytest.raises(MessageIllegal, match=r"^row 2 of 3: topic 'delay'"):
        store.put_columns("delay", rows)
    keys = pa.record_batch({"body": [b"x"] * 3, "keys": [["k"], ["k", "l"], []]})
    with pytest.raises(MessageIllegal, match=r"^row 2 of 3: topic 'compacted'"):
        store.put_columns("compacted", keys)
    groups = pa.record_batch({"body": [b"x"] * 3, "message_group": ["g", None, "g"]})
    with pytest.raises(MessageIllegal, match=r"^row 1 of 3: topic 'fifo'"):
        store.put_columns("fifo", groups)


@pytest.mark.parametrize("kind", ["normal", "priority", "compacted", "transaction"])
def test_a_prepared_message_is_taken_and_committed(store: Store, kind: str) -> None:
    prepared = store.prepare(kind, b"x", group="pay", keys=["k"])
    assert store.commit(prepared).offset == 0


@pytest.mark.parametrize(
    ("kind", "says"),
    [("fifo", "none is prepared"), ("delay", "delayed"), ("compacted", "give keys")],
)
def test_a_prepared_message_that_the_kind_does_not_take_is_refused(
    store: Store, kind: str, says: str
) -> None:
    for fields in ({}, {"message_group": "g"}):
        with pytest.raises(MessageIllegal, match=f"^topic '{kind}' is of kind '{kind}', .*{says}"):
            store.prepare(kind, b"x", group="pay", **fields)  # type: ignore[arg-type]  # a text
    messages = [Message("normal", b"x"), Message(kind, b"x", queue=0)]
    with pytest.raises(MessageIllegal, match=f"^message 1 of 2: topic '{kind}'"):
        store.prepare_batch(messages, group="pay")
    block = store.transaction(group="pay")
    block.put("normal", b"x")
    block.put(kind, b"x")
    with pytest.raises(MessageIllegal, match=f"topic '{kind}' is of kind"):
        block.prepare()
    assert puts(store) == 0


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("normal", {}, ""),
        ("fifo", {"message_group": "g"}, "none is delayed"),
        ("delay", {}, ""),
        ("transaction", {}, "for prepared messages only"),
        ("priority", {}, ""),
        ("compacted", {}, "give keys"),
        ("compacted", {"keys": ["k"]}, ""),
        ("undelayed", {}, "takes_delays=False"),
    ],
)
def test_a_kind_that_takes_the_message_of_a_schedule_takes_the_schedule(
    store: Store, kind: str, fields: dict[str, Any], says: str
) -> None:
    if says:
        with pytest.raises(MessageIllegal, match=f"^topic '{kind}' .*{says}"):
            store.schedule("s", kind, b"x", every=5, **fields)
        assert store.schedules() == []
    else:
        assert store.schedule("s", kind, b"x", every=5, **fields).topic == kind


def test_a_delayed_message_has_the_priority_of_the_queue_it_was_put_to(opens: Opens) -> None:
    clock = VirtualClock()
    store = opens(settings(clock=clock))
    store.create_topic("p", queues=3, kind="priority")
    store.create_group("g")
    for queue in (0, 2, 1):
        store.put("p", b"%d" % queue, queue=queue, delay=5)
    store.put("p", b"at once", queue=1)
    clock.advance(6)
    inside.deliver_due(store)
    assert [p.message.body for p in store.pop("g", "p", 2)] == [b"2", b"at once"]


def test_a_message_of_a_compacted_topic_has_its_place_when_it_is_to_be_seen(opens: Opens) -> None:
    """Merging keeps the one with the highest offset of each key."""
    clock = VirtualClock()
    store = opens(settings(clock=clock))
    store.create_topic("c", queues=1, kind="compacted")
    store.put("c", b"delayed", keys=["k"], delay=5)
    prepared = store.prepare("c", b"prepared", keys=["k"], group="pay")
    store.put("c", b"put", keys=["k"])
    store.commit(prepared)
    clock.advance(6)
    inside.deliver_due(store)
    bodies = [m.body for m in store.pull("c", 0, 0).messages]
    assert bodies == [b"put", b"prepared", b"delayed"]


def test_delayed_messages_are_delivered_to_a_topic_for_them(opens: Opens) -> None:
    clock = VirtualClock()
    store = opens(settings(clock=clock))
    store.create_topic("d", queues=1, kind="delay")
    store.put("d", b"x", delay=5)
    changed = store.put("d", b"y", delay=5)
    store.change_delay(changed.message_id, delay=0)
    clock.advance(6)
    inside.deliver_due(store)
    assert {m.body for m in store.pull("d", 0, 0).messages} == {b"x", b"y"}


def test_what_waits_is_delivered_also_when_the_topic_takes_no_delays_any_more(
    opens: Opens,
) -> None:
    clock = VirtualClock()
    store = opens(settings(clock=clock))
    store.create_topic("t", queues=1)
    store.put("t", b"x", delay=5)
    assert not store.alter_topic("t", takes_delays=False).takes_delays
    with pytest.raises(MessageIllegal, match="takes_delays=False"):
        store.put("t", b"y", delay=5)
    clock.advance(6)
    inside.deliver_due(store)
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"x"]


def test_the_setting_is_kept_and_changed(opens: Opens) -> None:
    store = opens()
    store.create_topic("t", takes_delays=False)
    store.close()
    store = opens()
    assert not store.topic("t").takes_delays
    assert not store.alter_topic("t", queues=7).takes_delays
    assert store.alter_topic("t", takes_delays=True).takes_delays
    assert store.put("t", b"x", delay=5).offset == -1


def test_settings_that_contradict_the_kind_are_refused(store: Store) -> None:
    makes: list[Callable[[], object]] = [
        lambda: store.create_topic("n", kind="delay", takes_delays=False),
        lambda: store.alter_topic("delay", takes_delays=False),
        lambda: store.create_topic("n", takes_delays=1),  # type: ignore[arg-type]  # on purpose
    ]
    for make in makes:
        with pytest.raises(CallerError, match="takes_delays is "):
            make()


def test_dead_letters_go_to_a_topic_of_any_kind_and_back(store: Store) -> None:
    store.put("fifo", b"x", queue=0)
    store.create_group("g", max_attempts=1, dead_letter_topic="delay")
    (popped,) = store.pop("g", "fifo")
    store.change_invisible(popped.receipt, 0)
    assert store.pop("g", "fifo") == []
    assert store.group_stats("g", "fifo")[0].dead_letters == 1
    assert store.redrive("g") == 1
