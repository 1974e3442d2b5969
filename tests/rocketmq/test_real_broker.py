"""RocketMQ's own broker goes on with an exported store, and a store of kvmq with what that wrote.

It comes from Maven Central; where that can't be had, this test is left out.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
import tiering
from bench.rocketmq_broker import Ports, free_ports, rocketmq_jars, rocketmq_proxy, settings_text
from kvstore import Message, Store, StoreConfig
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient
from tests.support.rocketmq_requests import code_of, request_of
from tests.support.waiting import until

GUIDE: Final = Path(__file__).parents[2] / "docs" / "outgrowing.md"
SEGMENT: Final = 64 << 10
CONFIG: Final = StoreConfig(segment_size=SEGMENT, transaction_immunity=3600.0)
MIB: Final = 512
HURRIED: Final = {
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 5000,
    "transactionOpBatchInterval": 100,
    "timerRollWindowSlot": 12,
    "recallMessageEnable": "true",
}
"""Settings by which a broker does in seconds what it else does in hours."""
TOPICS: Final = ("old", "orders", "reminders", "payments", "promises")
ORDERS: Final = 40
OLD: Final = 500
ALL: Final = ["tag", "*"]
Shown = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    try:
        rocketmq_jars()
    except RuntimeError as e:
        pytest.skip(str(e))


@pytest.mark.timeout(900)
def test_clients_go_on_in_rocketmq_where_they_were_and_here_again(tmp_path: Path) -> None:
    ports, folder, broker = free_ports(), tmp_path / "store", tmp_path / "broker"
    put_old_messages(folder, tmp_path / "warm")
    with kvstore.open(folder, CONFIG) as store:
        ids, consumed = use(store, ports, tmp_path)
        waits = {one.message_id for one in store.timers().messages}
    assert waits == {ids[body] for body in ("soon", "late", "recalled")}

    export_as_the_guide_says(folder, broker, ports)
    with (
        rocketmq_proxy(tmp_path / "home", broker / "broker.conf", ports, MIB),
        clients(ports, tmp_path) as client,
    ):
        rest = received(client, "billing", "orders", ORDERS - len(consumed))
        check_orders(consumed, rest, ids)
        old = received(client, "auditor", "old", 2 * OLD)
        wanted = Counter(f"{age} {n:04}" for age in ("old", "new") for n in range(OLD))
        assert Counter(m["body"][:8] for m in old) == wanted
        recall_in_rocketmq(client, ids["recalled"])
        assert bodies(received(client, "alarms", "reminders", 1)) == ["soon"]
        check_transactions(client)
        client.do("send", topic="orders", body="of RocketMQ")
        # RocketMQ puts the message that comes in an hour to its timer's end meanwhile.
        time.sleep(12)

    kvstore.import_rocketmq(broker, tmp_path / "back", CONFIG)
    with kvstore.open(tmp_path / "back", CONFIG) as back:
        check_back(back, ids)
    kvstore.rebuild(tmp_path / "back", CONFIG)
    with kvstore.open(tmp_path / "back", CONFIG) as back:
        check_back(back, ids)
        store_goes_on(back, ports, tmp_path)


# --- what happens in the store ---


def put_old_messages(folder: Path, warm: Path) -> None:
    """Makes the store, with the first of its segments in an archive, and groups that have begun."""
    with kvstore.open(folder, CONFIG) as store:
        store.create_topic("old", queues=2)
        store.create_topic("orders", queues=2)
        for topic in TOPICS[2:]:
            store.create_topic(topic, queues=1)
        for group in ("billing", "auditor", "alarms", "ledger"):
            store.create_group(group)
        store.put_batch([Message("old", b"old %04d" % n + bytes(200)) for n in range(OLD)])
        store.pop("auditor", "old", 1)
        store.seal()
        policy = tiering.Policy(hot_for=0, warm_for=3600, warm=str(warm))
        with tiering.Worker(store, policy) as worker:
            worker.run_once()
            assert worker.archives()
        store.put_batch([Message("old", b"new %04d" % n + bytes(200)) for n in range(OLD)])


def use(store: Store, ports: Ports, tmp_path: Path) -> tuple[dict[str, str], list[Shown]]:
    """Clients send, and a group consumes some; the ids by body, and what was consumed."""
    ids: dict[str, str] = {}
    with OpenDoor(store, ports.grpc), clients(ports, tmp_path) as client:

        def send(topic: str, body: str, **fields: Any) -> Shown:
            sent: Shown = client.do("send", topic=topic, body=body, **fields)
            ids[body] = sent["id"]
            return sent

        for n in range(ORDERS):
            send("orders", f"order {n}", tag="paid", keys=f"k{n}", properties={"region": "eu"})
        consumed = received(client, "billing", "orders", ORDERS // 4, at_once=ORDERS // 4)
        now = int(time.time())
        send("reminders", "delivered", delivery_timestamp=now + 1)
        assert bodies(received(client, "alarms", "reminders", 1)) == ["delivered"]
        send("reminders", "late", delivery_timestamp=now + 3600)
        send("reminders", "recalled", delivery_timestamp=now + 3600)
        handle = send("reminders", "cancelled", delivery_timestamp=now + 15)["handle"]
        client.do("recall", topic="reminders", handle=handle)
        for body, how in (("kept", "commit"), ("dropped", "rollback"), ("orphan", "")):
            send("payments", body, transaction=True)
            if how:
                client.do("end", how=how)
        send("promises", "promised", transaction=True)
        assert received(client, "ledger", "payments", 1, is_acked=False)
        # It is due while no server runs.
        send("reminders", "soon", delivery_timestamp=int(time.time()) + 8)
    return ids, consumed


@contextmanager
def clients(ports: Ports, tmp_path: Path) -> Iterator[RocketmqClient]:
    """A process with a producer, which commits what it is asked about."""
    with RocketmqClient(f"127.0.0.1:{ports.grpc}", tmp_path) as client:
        # A broker tells its name server of its topics some seconds after its start.
        until(lambda: all(has_route(client, topic) for topic in TOPICS), 120)
        client.do("producer", topics=["orders", "reminders", "payments"], answers="COMMIT")
        yield client


def has_route(client: RocketmqClient, topic: str) -> bool:
    return code_of(client, "QueryRoute", request_of("QueryRoute", topic)) == "OK"


def received(
    client: RocketmqClient,
    group: str,
    topic: str,
    count: int,
    *,
    at_once: int = 32,
    is_acked: bool = True,
) -> list[Shown]:
    """All that a group is given, when there are so many and no more come."""
    client.do("simple", group=group, topics={topic: ALL}, wait=5)
    found: list[Shown] = []
    is_last = False
    until_then = time.monotonic() + 60
    while not is_last and time.monotonic() < until_then:
        try:
            some = client.do("receive", count=at_once, invisible=20)
        except RuntimeError as e:
            if '"settings" is null' not in str(e):
                raise
            # RocketMQ's proxy answers so until the client's settings have come.
            time.sleep(0.1)
            continue
        found += some
        if is_acked:
            for one in some:
                client.do("ack", at=one["at"])
        is_last = len(found) >= count and (at_once < 32 or not some)
    client.do("shutdown", name="simple")
    return found


def bodies(found: list[Shown]) -> list[str]:
    return sorted(one["body"] for one in found)


# --- as the guide says ---


def export_as_the_guide_says(folder: Path, broker: Path, ports: Ports) -> None:
    """Runs the command of the guide, and completes the configuration by its lines."""
    places = {"DIR": str(folder), "TARGET": str(broker)}
    command, settings = blocks_of_the_guide()
    words = [places.get(word, word) for word in command.split()]
    assert words.pop(0) == "kvmq"
    done = subprocess.run([sys.executable, "-m", "kvstore", *words], check=False)
    assert done.returncode == 0
    added = {line.partition("=")[0] for line in settings.splitlines()}
    # A broker that is alone on a machine has its port for replicas by itself.
    assert added | {"haListenPort"} == set(ports.of_cluster)
    with (broker / "broker.conf").open("a") as conf:
        conf.write(settings_text(ports.of_cluster | HURRIED))


def blocks_of_the_guide() -> tuple[str, str]:
    """The guide's command and the lines that complete `broker.conf`."""
    found = re.findall(r"```\w*\n(.*?)\n *```", GUIDE.read_text(), re.DOTALL)
    command = next(b for b in found if b.strip().startswith("kvmq export"))
    settings = next(b for b in found if "listenPort" in b)
    return command.strip(), "\n".join(line.strip() for line in settings.splitlines())


# --- what comes in RocketMQ ---


def check_orders(consumed: list[Shown], rest: list[Shown], ids: dict[str, str]) -> None:
    """The group went on: each message came once, with all it carries."""
    assert bodies(consumed + rest) == sorted(f"order {n}" for n in range(ORDERS))
    for one in rest:
        assert (one["tag"], one["id"]) == ("paid", ids[one["body"]])
        assert one["keys"] == ["k" + one["body"].removeprefix("order ")]
        assert one["properties"]["region"] == "eu"


def recall_in_rocketmq(client: RocketmqClient, message_id: str) -> None:
    due = int(time.time() + 3600) * 1000
    text = f"v1 reminders broker-a {due} {message_id}"
    client.do("recall", topic="reminders", handle=base64.urlsafe_b64encode(text.encode()).decode())


def check_transactions(client: RocketmqClient) -> None:
    """A producer is asked about the transaction that nobody ended, and its message comes then."""
    assert set(client.do("asked", count=1)) == {"orphan"}
    assert bodies(received(client, "ledger", "payments", 2)) == ["kept", "orphan"]


# --- what is here again ---


def check_back(back: Store, ids: dict[str, str]) -> None:
    """Messages that RocketMQ delivered or ended wait no more; those that waited there wait here."""
    assert [one.message_id for one in back.timers().messages] == [ids["late"]]
    assert back.timer(ids["late"]).topic == "reminders"
    assert [one.message_id for one in back.transactions().messages] == [ids["promised"]]
    assert back.prepared(ids["promised"]).topic == "promises"
    assert in_queues(back, "reminders") == ["delivered", "soon"]
    assert in_queues(back, "payments") == ["kept", "orphan"]
    assert in_queues(back, "promises") == []
    assert len(in_queues(back, "orders")) == ORDERS + 1
    assert back.find(ids["soon"]).topic == "reminders"
    assert back.verify().problems == []


def in_queues(store: Store, topic: str) -> list[str]:
    found = []
    for queue in range(store.topic(topic).read_queues):
        at = store.bounds(topic, queue).min_offset
        while at < store.bounds(topic, queue).next_offset:
            page = store.pull(topic, queue, at, limit=1000)
            found += [m.body.decode() for m in page.messages]
            at = page.next_offset
    return sorted(found)


def store_goes_on(back: Store, ports: Ports, tmp_path: Path) -> None:
    """The group that consumed in RocketMQ goes on here."""
    with OpenDoor(back, ports.grpc), clients(ports, tmp_path) as client:
        assert bodies(received(client, "billing", "orders", 1)) == ["of RocketMQ"]
        back.commit(back.transactions().messages[0].message_id)
        until(lambda: in_queues(back, "promises") == ["promised"])
