"""RocketMQ's own Java client works with the store as it is, and with Python programs through it.

It comes from Maven Central; where that can't be had, these tests are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Store, StoreConfig
from tests.support.grpc_doors import OpenDoor
from tests.support.java_programs import class_path
from tests.support.java_programs import java as java_program
from tests.support.waiting import until

PROGRAM: Final = Path(__file__).parent / "java"
Runs = Callable[..., list[str]]


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
        yield store


@pytest.fixture
def java(served: Store, classes: str, tmp_path: Path) -> Iterator[Runs]:
    """Runs steps of the program; the lines that they print."""
    with OpenDoor(served) as door:

        def run(*steps: str) -> list[str]:
            return java_program(classes, tmp_path, "Steps", door.endpoint, *steps)

        yield run


def bodies(store: Store, group: str) -> list[bytes]:
    found = store.pop(group, "t", 64)
    store.ack_batch([p.receipt for p in found])
    return sorted(p.message.body for p in found)


def test_java_consumes_what_python_put_and_python_what_java_sent(served: Store, java: Runs) -> None:
    served.put("t", b"of Python", tag="y")

    received, sent = java("simple/g/t/*/1", "send/t/of-Java")

    assert received == "[of Python y 1]"
    assert bodies(served, "g") == [b"of-Java"]
    found = served.find(sent)
    assert (found.tag, found.keys, found.user_properties) == ("x", ["k-of-Java"], {"region": "eu"})


def test_java_pushes_and_gets_a_failed_message_again(served: Store, java: Runs) -> None:
    for n in range(3):
        served.put("t", b"%d" % n)

    (pushed,) = java("push/g/t/6/once")

    assert sorted(pushed.strip("[]").split(", ")) == sorted("001122")
    until(lambda: all(one.lag == 0 for one in served.lag("g", "t")))


def test_java_consumes_message_groups_in_order(served: Store, java: Runs) -> None:
    sends = [f"fifo/ordered/user/{n}" for n in range(6)]

    *_, pushed = java(*sends, "push/in-order/ordered/6/always")

    assert pushed == "[0, 1, 2, 3, 4, 5]"


def test_java_delays_recalls_and_filters(served: Store, java: Runs) -> None:
    served.put("t", b"no", properties={"region": "us"})

    _, recalled, received = java("delay/t/late/2", "recall/t/never", "sql/g/t/region = 'eu'/1")

    assert recalled == "recalled true"
    assert received == "[late x 1]"
    assert served.timers().count == 0


def test_java_commits_rolls_back_and_is_asked_about_transactions(served: Store, java: Runs) -> None:
    found = java(
        "transaction/t/kept/commit", "transaction/t/dropped/rollback", "transaction/t/orphan/later"
    )

    assert found == ["commit", "rollback", "asked about orphan"]
    until(lambda: served.transactions().messages == [])
    assert bodies(served, "g") == [b"kept", b"orphan"]
