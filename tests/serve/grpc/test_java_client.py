"""RocketMQ's own Java client works with the store as it is, and with Python programs through it.

It comes from Maven Central; where that can't be had, these tests are left out.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Message, Store, StoreConfig
from kvstore.files import LocalFiles
from kvstore.serve.access.exposure import tls_context
from tests.support.certificates import make_certificate
from tests.support.grpc_doors import OpenDoor
from tests.support.java_programs import class_path, java, started
from tests.support.private_files import private_file
from tests.support.waiting import until

PROGRAM: Final = Path(__file__).parent / "java"
CREDENTIALS: Final = """
[[clients]]
name = "shop"
access_key = "shop-1"
secret = "a secret of the shop"
produce = ["t"]

[[clients]]
name = "billing"
access_key = "billing-1"
secret = "a secret of billing"
consume = ["t"]
groups = ["g"]
"""
SHOP: Final = {"key": "shop-1", "secret": "a secret of the shop"}
BILLING: Final = {"key": "billing-1", "secret": "a secret of billing"}


class Steps:
    """Runs steps of the program at an endpoint; `settings` are the client's."""

    def __init__(self, classes: str, home: Path, endpoint: str) -> None:
        self._classes = classes
        self._home = home
        self._endpoint = endpoint

    def __call__(self, *steps: str, **settings: str) -> list[str]:
        """The lines that the steps print."""
        return java(self._classes, self._home, "Steps", self._endpoint, *steps, **settings)

    def begin(self, step: str) -> subprocess.Popen[str]:
        """The process of a step that waits for a line."""
        return started(self._classes, self._home, "Steps", self._endpoint, step)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the program, compiled once."""
    return class_path(PROGRAM, tmp_path_factory.mktemp("java") / "program")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig(transaction_immunity=0.5, transaction_check_interval=1.0)
    with kvstore.open(tmp_path / "served", config) as store:
        store.create_topic("t", queues=4)
        store.create_topic("ordered", queues=2, kind="fifo")
        store.create_group("g", backoff=[0.1])
        store.create_group("in-order", ordered=True, backoff=[0.1])
        store.create_group("strict", backoff=[0.1], max_attempts=2)
        store.create_group("strict-in-order", ordered=True, backoff=[0.1], max_attempts=2)
        yield store


@pytest.fixture
def steps(classes: str, door: OpenDoor, tmp_path: Path) -> Steps:
    return Steps(classes, tmp_path, door.endpoint)


def bodies(store: Store, group: str) -> list[bytes]:
    found = store.pop(group, "t", 64)
    store.ack_batch([p.receipt for p in found])
    return sorted(p.message.body for p in found)


def test_java_consumes_what_python_put_and_python_what_java_sent(
    served: Store, steps: Steps
) -> None:
    served.put("t", b"of Python", tag="y")

    received, sent = steps("simple/g/t/*/1", "send/t/of-Java")

    assert received == "[of Python y 1]"
    assert bodies(served, "g") == [b"of-Java"]
    found = served.find(sent)
    assert (found.tag, found.keys, found.user_properties) == ("x", ["k-of-Java"], {"region": "eu"})


def test_java_takes_every_body_for_whole(served: Store, steps: Steps) -> None:
    # One in 16 has a CRC with a zero before it.
    served.put_batch([Message("t", b"%d" % n) for n in range(200)])

    (pushed,) = steps("push/g/t/200/always")

    assert sorted(map(int, pushed.strip("[]").split(", "))) == list(range(200))


def test_java_pushes_and_gets_a_failed_message_again(served: Store, steps: Steps) -> None:
    for n in range(3):
        served.put("t", b"%d" % n)

    (pushed,) = steps("push/g/t/6/once")

    assert sorted(pushed.strip("[]").split(", ")) == sorted("001122")
    until(lambda: all(one.lag == 0 for one in served.lag("g", "t")))


def test_java_consumes_message_groups_in_order(served: Store, steps: Steps) -> None:
    sent = [f"fifo/ordered/user/{n}" for n in range(6)]

    *_, pushed = steps(*sent, "push/in-order/ordered/6/always")

    assert pushed == "[0, 1, 2, 3, 4, 5]"


def test_java_delays_recalls_and_filters(served: Store, steps: Steps) -> None:
    served.put("t", b"no", properties={"region": "us"})

    _, recalled, received = steps("delay/t/late/2", "recall/t/never", "sql/g/t/region = 'eu'/1")

    assert recalled == "recalled true"
    assert received == "[late x 1]"
    assert served.timers().count == 0


def test_java_commits_rolls_back_and_is_asked_about_transactions(
    served: Store, steps: Steps
) -> None:
    found = steps(
        "transaction/t/kept/commit", "transaction/t/dropped/rollback", "transaction/t/orphan/later"
    )

    assert found == ["commit", "rollback", "asked about orphan"]
    until(lambda: served.transactions().messages == [])
    assert bodies(served, "g") == [b"kept", b"orphan"]


def test_java_reads_dead_letters_as_a_topic(served: Store, steps: Steps) -> None:
    served.put("t", b"poison")

    assert steps("push/strict/t/2/never") == ["[poison, poison]"]

    def has_dead_letter() -> bool:
        served.pop("strict", "t")
        return served.group_stats("strict", "t")[0].dead_letters == 1

    until(has_dead_letter)
    assert steps("simple/undertaker/%DLQ%strict/*/1") == ["[poison - 1]"]


def test_java_forwards_the_dead_letter_of_an_ordered_group_by_itself(
    served: Store, steps: Steps
) -> None:
    found = steps(
        "fifo/ordered/user/poison", "fifo/ordered/user/next",
        "push/strict-in-order/ordered/4/never", "simple/undertaker/%DLQ%strict-in-order/*/2",
    )  # fmt: skip

    assert found[2:] == ["[poison, poison, next, next]", "[next x 1, poison x 1]"]


def test_java_sees_the_topics_of_its_namespace_alone(served: Store, steps: Steps) -> None:
    served.create_topic("tenant%t", queues=1)
    served.put("t", b"of nobody")

    _, received, pushed = steps(
        "send/t/mine", "simple/g/t/*/1", "push/pushed/t/1/always", namespace="tenant"
    )

    assert (received, pushed) == ("[mine x 1]", "[mine]")
    assert served.group("tenant%g").name == "tenant%g"
    assert served.bounds("tenant%t", 0).next_offset == 1


def test_java_talks_tls_through_the_port_of_plaintext(
    served: Store, classes: str, tmp_path: Path
) -> None:
    chain, key = map(Path, make_certificate(tmp_path))
    with OpenDoor(served, tls=tls_context(LocalFiles(), chain, key)) as door:
        steps = Steps(classes, tmp_path, door.endpoint)

        secret = steps("send/t/secret", "simple/g/t/*/1", ssl="true")
        plain = steps("send/t/plain", "push/g/t/1/always")

    assert (secret[1], plain[1]) == ("[secret x 1]", "[plain]")


def test_java_does_what_its_access_key_may_and_nothing_else(
    served: Store, classes: str, tmp_path: Path
) -> None:
    path = private_file(tmp_path / "credentials.toml", CREDENTIALS)
    with OpenDoor(served, credentials=path) as door:
        steps = Steps(classes, tmp_path, door.endpoint)

        _, forbidden = steps("send/t/sold", "simple/g/t/*/1", **SHOP)
        received, unsent = steps("simple/g/t/*/1", "send/t/forged", **BILLING)
        refused = steps("send/t/forged", **{**SHOP, "secret": "guessed"})
        unknown = steps("send/t/forged", key="nobody", secret="none")
        unsigned = steps("send/t/forged", "simple/g/t/*/1")

    assert received == "[sold x 1]"
    # The settings of a client that has no right are refused, and its start is cancelled then.
    assert (forbidden, unsent) == ("refused CancellationException",) * 2
    assert {*refused, *unknown, *unsigned} == {"refused UnauthorizedException"}
    assert sum(served.bounds("t", queue).next_offset for queue in range(4)) == 1


@pytest.mark.parametrize("step", ["outlive", "outlive-pushed"])
def test_java_goes_on_when_the_server_is_restarted_under_it(
    step: str, classes: str, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    with ExitStack() as running:
        with kvstore.open(folder) as store:
            store.create_topic("t", queues=1)
            if step == "outlive-pushed":
                store.put("t", b"before")
            with OpenDoor(store) as door:
                steps = Steps(classes, tmp_path, door.endpoint)
                client = running.enter_context(steps.begin(f"{step}/g/t"))
                running.callback(client.kill)
                assert client.stdin is not None
                assert client.stdout is not None
                assert client.stdout.readline().split()[1] == "before"
                if step == "outlive-pushed":
                    until(lambda: store.lag("g", "t")[0].lag == 0)
        with kvstore.open(folder) as store, OpenDoor(store, door.port):
            client.stdin.write("on\n")
            client.stdin.flush()
            if step == "outlive-pushed":
                store.put("t", b"after")

            assert client.stdout.readline().split()[1] == "after"
            assert client.wait(60) == 0
            assert store.lag("g", "t")[0].lag == 0
