"""kombu's calls over a served store: nothing is lost, and order, time and priority are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.simple import SimpleQueue

import kombu_kvmq
import kvstore
from kvstore import Store, StoreConfig
from tests.support.clock import VirtualClock
from tests.support.served import serving
from tests.support.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kvstore.open(tmp_path / "store") as opened:
        yield opened


Connects = Callable[..., Connection]


@pytest.fixture
def connects(store: Store) -> Iterator[Connects]:
    connections: list[Connection] = []
    with serving(store) as server:

        def connect(**options: Any) -> Connection:
            connections.append(Connection(server.url, transport_options=options))
            return connections[-1]

        yield connect
        for connection in connections:
            connection.release()


def take(queue: SimpleQueue, timeout: float = 5) -> Any:
    return queue.get(timeout=timeout)


def test_a_message_comes_as_it_was_sent(connects: Connects) -> None:
    with connects() as connection, connection.SimpleQueue("tasks") as queue:
        queue.put({"order": 17, "text": "ü"}, headers={"h": 1})
        message = take(queue)
        assert message.payload == {"order": 17, "text": "ü"}
        assert message.headers["h"] == 1
        assert not message.delivery_info["redelivered"]
        message.ack()
        assert queue.qsize() == 0
        with pytest.raises(Empty):
            take(queue, 0.05)


@pytest.mark.parametrize("name", ["a.b", "reply@host", "Ümlaut/x", "%41", "A"])
def test_a_queue_of_any_name_is_a_topic_of_its_own(connects: Connects, name: str) -> None:
    with connects() as connection:
        others = [connection.SimpleQueue(other) for other in ("a_b", "a%2Eb", "reply_host")]
        with connection.SimpleQueue(name) as queue:
            queue.put(name)
            assert take(queue).payload == name
        for other in others:
            assert other.qsize() == 0


def test_higher_priorities_come_first(connects: Connects) -> None:
    with connects() as connection, connection.SimpleQueue("tasks") as queue:
        for priority in (0, 9, 5, 3):
            queue.put(priority, priority=priority)
        assert [take(queue).payload for _ in range(4)] == [9, 5, 3, 0]


def test_a_task_is_taken_at_its_time_and_not_behind_its_expiry(
    store: Store, connects: Connects
) -> None:
    now = datetime.now(UTC)
    with connects() as connection, connection.SimpleQueue("tasks") as queue:
        soon = (now + timedelta(seconds=0.4)).isoformat()
        queue.put("expired", headers={"expires": (now - timedelta(seconds=9)).isoformat()})
        queue.put("soon", headers={"eta": soon})
        queue.put("now")
        assert store.timers("tasks").count == 1
        assert take(queue).payload == "now"
        message = take(queue)
        assert message.payload == "soon"
        assert time.time() >= now.timestamp() + 0.4
        assert message.headers["eta"] is None, "a worker would wait for it once more"


def test_a_message_that_nobody_acks_comes_to_another_when_its_lock_ends(
    connects: Connects,
) -> None:
    dead, other = connects(lock=0.6), connects()
    lost = dead.SimpleQueue("tasks")
    lost.put("task")
    assert take(lost).payload == "task"
    lost.channel.held.end()  # as a worker that died: nothing renews its lock
    with other.SimpleQueue("tasks") as queue:
        message = take(queue)
        assert message.payload == "task"
        assert message.delivery_info["redelivered"]


def test_a_lock_is_renewed_while_the_worker_lives(tmp_path: Path, clock: VirtualClock) -> None:
    with (
        kvstore.open(tmp_path / "store", StoreConfig(clock=clock)) as store,
        serving(store) as server,
        Connection(server.url, transport_options={"lock": 0.6}) as connection,
        connection.SimpleQueue("tasks") as queue,
    ):
        queue.put("long")
        message = take(queue)
        for _ in range(3):
            clock.advance(0.5)
            until(lambda: store.in_flight("celery").messages[0].due_at == clock.now_ms() + 600)
        (stats,) = store.group_stats("celery", "tasks")
        assert (stats.in_flight, stats.due) == (1, 0)
        message.ack()
        assert store.group_stats("celery", "tasks")[0].in_flight == 0


def test_a_message_that_is_requeued_or_left_by_a_closed_worker_comes_again(
    connects: Connects,
) -> None:
    with connects() as connection, connection.SimpleQueue("tasks") as queue:
        queue.put("task")
        take(queue).requeue()
        message = take(queue)
        assert message.delivery_info["redelivered"]
    with connects() as connection, connection.SimpleQueue("tasks") as queue:
        message = take(queue)
        assert message.payload == "task"
        message.reject()
    with connects() as connection, connection.SimpleQueue("tasks") as queue:
        assert queue.qsize() == 0


def test_a_purge_leaves_nothing_and_says_how_many_went(connects: Connects) -> None:
    with connects() as connection, connection.SimpleQueue("tasks") as queue:
        for n in range(3):
            queue.put(n)
        assert queue.clear() == 3
        assert queue.qsize() == 0


def test_importing_the_package_registers_the_transport() -> None:
    assert Connection("kvmq+unix:///nowhere").get_transport_cls() is kombu_kvmq.Transport
    assert Connection("kvmq://localhost:1").get_transport_cls() is kombu_kvmq.Transport


def test_a_url_with_credentials_is_shown_without_them() -> None:
    for credentials in ("a-token", "a-key:a-secret"):
        connection = Connection(f"kvmq+tls://{credentials}@localhost:7")
        for shown in (connection.as_uri(), repr(connection)):
            assert "a-" not in shown
            assert "localhost:7" in shown
