"""Messages that RocketMQ delayed and had not delivered: they are delivered here, each once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Store, StoreConfig
from kvstore.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from kvstore.index.families import Batch
from kvstore.index.keys import FOREIGN_DELAYS
from tests.fixtures import NAMES, Fixture, unpack_fixture
from tests.rocketmq.adopting import WAYS_AGAIN, adopted
from tests.rocketmq.logs import NOW, log_of, record
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import settings

_HOUR: Final = 3600


def delayed_in(fixture: Fixture) -> dict[str, dict[str, Any]]:
    """The messages of delay levels that are not in their topic in the manifest, by unique id."""
    messages = fixture.manifest["messages"]
    there = {(m["topic"], m["uniqKey"]) for m in messages}
    return {
        m["uniqKey"]: m
        for m in messages
        if m["topic"] == SCHEDULE_TOPIC and ("TopicTest", m["uniqKey"]) not in there
    }


def with_ids(store: Store, wanted: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Id, queue and hash of the body of the messages of `TopicTest` with some ids."""
    return sorted(
        (m.message_id, queue, hashlib.sha256(m.body).hexdigest())
        for queue in range(store.topic("TopicTest").read_queues)
        for m in store.pull("TopicTest", queue, 0, limit=10_000).messages
        if m.message_id in wanted
    )


@pytest.mark.parametrize("name", NAMES)
def test_messages_of_delay_levels_wait_for_their_time_and_come_once_to_their_queues(
    name: str, tmp_path: Path
) -> None:
    fixture = unpack_fixture(name, tmp_path / "source")
    wanted = delayed_in(fixture)
    clock = VirtualClock(max(m["storeTimestamp"] for m in wanted.values()) + 1000)
    assert len(wanted) == 4
    with adopted(fixture.store, tmp_path / "target", settings(clock=clock)) as store:
        waiting = {one.message_id: one for one in store.timers("TopicTest").messages}
        assert {key: one.deliver_at for key, one in waiting.items()} == {
            key: m["tagsCode"] for key, m in wanted.items()
        }
        clock.advance(3 * _HOUR)
        inside.deliver_due(store)
        assert with_ids(store, wanted) == sorted(
            (key, int(m["properties"]["REAL_QID"]), m.get("plainBodySha256") or m["bodySha256"])
            for key, m in wanted.items()
        )
        for key, m in wanted.items():
            found = store.find(key)
            assert (found.keys, found.tag) == ([m["keys"]], m["tags"])
            assert found.user_properties == {"idx": m["properties"]["idx"]}
            assert [one.message_id for one in store.query("TopicTest", m["keys"])] == [key]
        assert store.timers().count == 0
        assert store.verify().problems == []


@pytest.mark.parametrize("again", WAYS_AGAIN)
@pytest.mark.parametrize("is_delivered", [False, True])
def test_they_come_once_whatever_is_done_between(
    again: Callable[[Path, StoreConfig], None], is_delivered: bool, tmp_path: Path
) -> None:
    fixture = unpack_fixture("classic", tmp_path / "source")
    wanted = delayed_in(fixture)
    clock = VirtualClock(max(m["storeTimestamp"] for m in wanted.values()) + 1000)
    config, path = settings(clock=clock), fixture.store
    with kvstore.open(path, config) as store:
        gone = store.timers("TopicTest").messages[-1].message_id
        assert store.cancel(gone)
        if is_delivered:
            clock.advance(_HOUR)
            inside.deliver_due(store)
    again(path, config)
    clock.advance(3 * _HOUR)
    with kvstore.open(path, config) as store:
        inside.deliver_due(store)
        assert [key for key, *_ in with_ids(store, wanted)] == sorted(set(wanted) - {gone})
        assert store.timers().count == 0
        assert store.verify().problems == []


def test_they_come_once_if_the_adoption_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = unpack_fixture("classic", tmp_path / "source")
    wanted = delayed_in(fixture)
    config = settings(clock=VirtualClock(max(m["storeTimestamp"] for m in wanted.values()) + 1000))
    plain = Batch.delete

    def delete(self: Batch, name: str, key: bytes) -> None:
        if key == FOREIGN_DELAYS:
            raise RuntimeError("cut short")
        plain(self, name, key)

    monkeypatch.setattr(Batch, "delete", delete)
    with pytest.raises(RuntimeError, match="cut short"):
        kvstore.open(fixture.store, config)
    monkeypatch.undo()
    with kvstore.open(fixture.store, config, read_only=True) as store:
        assert store.timers().count == len(wanted)
    with kvstore.open(fixture.store, config) as store:
        assert sorted(one.message_id for one in store.timers().messages) == sorted(wanted)
        assert store.bounds(TIMER_TOPIC, 0).next_offset == len(wanted)


# --- messages with a time of their own, in logs made by hand ---


def timer(
    position: int, name: str, offset: int, *, due: int = NOW + 60_000, more: str = ""
) -> bytes:
    """A message that RocketMQ's timer topic has; it goes to queue 1 of `T`."""
    pairs = f"UNIQ_KEY\x01{name}\x02KEYS\x01k\x02TIMER_OUT_MS\x01{due}\x02REAL_TOPIC\x01T\x02"
    properties = f"{pairs}REAL_QID\x011\x02RETRY_TOPIC\x01R\x02{more}".encode()
    return record(position, name.encode(), topic=TIMER_TOPIC, offset=offset, properties=properties)


def delivered(position: int, name: str) -> bytes:
    return record(position, b"", topic="T", queue=1, properties=f"UNIQ_KEY\x01{name}\x02".encode())


def waiting_of(path: Path) -> dict[str, tuple[int, int]]:
    """Due time and queue of what waits, by id."""
    with kvstore.open(path, settings(clock=VirtualClock(NOW))) as store:
        return {m.message_id: (m.deliver_at, m.queue) for m in store.timers().messages}


def test_a_message_that_rocketmq_has_not_delivered_waits_and_one_that_it_has_does_not(
    tmp_path: Path,
) -> None:
    path = log_of(
        tmp_path,
        lambda at: timer(at, "a", 0),
        lambda at: timer(at, "b", 1, due=NOW + 5000),
        lambda at: delivered(at, "a"),
    )
    assert waiting_of(path) == {"b": (NOW + 5000, 1)}


def test_a_message_that_rocketmq_rolled_waits_once(tmp_path: Path) -> None:
    path = log_of(
        tmp_path,
        lambda at: timer(at, "a", 0),
        lambda at: timer(at, "a", 1, more="TIMER_ROLL_TIMES\x011\x02"),
    )
    assert waiting_of(path) == {"a": (NOW + 60_000, 1)}


@pytest.mark.parametrize("named", ["T+a", "a"])
@pytest.mark.parametrize("more", ["", "TIMER_ROLL_TIMES\x011\x02"])
def test_a_message_that_a_delete_message_names_does_not_wait_also_where_it_is_rolled_then(
    named: str, more: str, tmp_path: Path
) -> None:
    rolled = [partial(timer, name="a", offset=3, more=more)] if more else []
    path = log_of(
        tmp_path,
        lambda at: timer(at, "a", 0),
        lambda at: timer(at, "b", 1),
        lambda at: timer(at, "c", 2, more=f"TIMER_DEL_UNIQKEY\x01{named}\x02"),
        *rolled,
    )
    assert set(waiting_of(path)) == {"b"}


def test_what_names_no_time_no_topic_or_no_queue_is_left_alone(tmp_path: Path) -> None:
    path = log_of(
        tmp_path,
        lambda at: timer(at, "a", 0, due=0),
        lambda at: record(at, b"x", topic=TIMER_TOPIC, offset=1),
        lambda at: timer(at, "b", 2, more="REAL_QID\x01none\x02"),
        lambda at: timer(at, "c", 3, more=f"REAL_TOPIC\x01{SCHEDULE_TOPIC}\x02"),
        lambda at: timer(at, "d", 4, more="REAL_TOPIC\x01rmq_sys_REVIVE_LOG_DefaultCluster\x02"),
    )
    assert waiting_of(path) == {}


def test_its_other_properties_stay_and_its_topic_is_made(tmp_path: Path) -> None:
    path = log_of(tmp_path, lambda at: timer(at, "a", 0))
    clock = VirtualClock(NOW + 120_000)
    with kvstore.open(path, settings(clock=clock)) as store:
        inside.deliver_due(store)
        found = store.get("T", 1, 0)
    assert (found.body, found.keys, found.message_id) == (b"a", ["k"], "a")
    assert found.properties["RETRY_TOPIC"] == "R"
    assert found.properties["TIMER_OUT_MS"] == str(NOW + 60_000)


@pytest.mark.parametrize("kind", ["DELAY", "FIFO", "TRANSACTION", "NORMAL"])
def test_topics_of_every_kind_get_their_messages(kind: str, tmp_path: Path) -> None:
    path = log_of(tmp_path, lambda at: timer(at, "a", 0))
    topic = {"topicName": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    table = {"T": {**topic, "attributes": {"message.type": kind}}}
    (path / "config").mkdir()
    (path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    with kvstore.open(path, settings(clock=VirtualClock(NOW + 120_000))) as store:
        inside.deliver_due(store)
        assert store.get("T", 1, 0).body == b"a"
