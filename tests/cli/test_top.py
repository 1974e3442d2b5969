"""`kvmq top`: rates and what is left to do, beside a process that writes."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, StoreConfig
from kvstore.cli.admin.top import take_snapshot
from kvstore.clock import SystemClock
from tests.cli.conftest import SMALL, Kvmq
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.served import serving
from tests.support.waiting import until

Process = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def store(folder: Path) -> Path:
    """A store in which group "g" has 3 in flight, 2 of them twice, one dead letter, 4 done."""
    with kvstore.open(folder) as opened:
        opened.create_group("g", max_attempts=2)
        opened.create_topic("t", queues=1)
        opened.put_batch([Message("t", b"x") for _ in range(10)])
        opened.ack_batch([p.receipt for p in opened.pop("g", "t", limit=4)])
        for count in (1, 2):
            for popped in opened.pop("g", "t", limit=count):
                opened.change_invisible(popped.receipt, 0)
            time.sleep(0.01)
        opened.pop("g", "t", limit=4, invisible_for=600)
    return folder


def test_a_look_counts_what_rows_say(store: Path) -> None:
    found = take_snapshot(store)
    (group,) = found.groups
    assert (group.group, group.topic, group.end) == ("g", "t", 10)
    assert group.lag == group.unread + group.in_flight
    with kvstore.open(store) as opened:
        assert opened.group_stats("g") == [group]
        assert take_snapshot(store).groups == [group]
        assert opened.namespace("ns").groups() == []
        with pytest.raises(kvstore.GroupNotFound):
            opened.group_stats("nobody")
        with pytest.raises(kvstore.TopicNotFound):
            opened.group_stats("g", "nowhere")
        assert opened.group_stats("g", "orders")[0].unread == 41


def test_unread_locked_due_redelivered_and_dead(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_topic("t", queues=2)
        store.create_group("g", max_attempts=2)
        store.put_batch([Message("t", b"x", queue=i % 2) for i in range(10)])

        def figures() -> tuple[int, ...]:
            (s,) = store.group_stats("g", "t")
            assert s.lag == s.unread + s.in_flight
            return s.taken, s.unread, s.in_flight, s.due, s.redelivered, s.dead_letters

        assert figures() == (0, 10, 0, 0, 0, 0)
        assert store.group_stats("g") == []
        taken = store.pop("g", "t", limit=5, invisible_for=600)
        assert figures() == (5, 5, 5, 0, 0, 0)
        assert store.group_stats("g")[0].oldest_due == taken[0].due_at
        store.ack_batch([p.receipt for p in taken[:2]])
        assert figures() == (5, 5, 3, 0, 0, 0)
        receipt = store.change_invisible(taken[2].receipt, 0)
        time.sleep(0.005)
        assert figures() == (5, 5, 3, 1, 0, 0)
        (again,) = store.pop("g", "t", invisible_for=600)
        assert figures() == (5, 5, 3, 0, 1, 0)
        with pytest.raises(kvstore.ReceiptExpired):
            store.ack(receipt)
        store.change_invisible(again.receipt, 0)
        time.sleep(0.005)
        store.pop("g", "t", invisible_for=600)
        assert figures() == (6, 4, 3, 0, 0, 1)
        store.redrive("g")
        assert figures() == (6, 4, 4, 1, 0, 0)


def test_groups_that_begin_elsewhere(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_topic("t", queues=1)
        store.put_batch([Message("t", b"x") for _ in range(10)])
        store.create_group("end", start="end")
        store.create_group("time", start=0)
        assert store.group_stats("end", "t")[0].unread == 0
        assert store.group_stats("time", "t")[0].unread == 10


def test_messages_that_wait_are_counted_and_the_next_due_is_told(kvmq: Kvmq, store: Path) -> None:
    once = ("top", store, "--once", "--interval", 0.05)
    untold = {"late_ms": 0, "last_late_ms": None}
    assert kvmq(*once, "--json").json["delays"] == {"waiting": 0, "next_due": None, **untold}
    assert "no delayed message waits" in kvmq(*once).out
    now = SystemClock().now_ms()
    in_an_hour, overdue = now + 3_600_000, now - 30_000
    # By this store's clock neither is due.
    with kvstore.open(store, StoreConfig(clock=VirtualClock(now - 60_000))) as opened:
        opened.put("t", b"x", deliver_at=in_an_hour)
        found = kvmq(*once, "--json").json["delays"]
        assert found == {"waiting": 1, "next_due": in_an_hour, **untold}
        assert "1 delayed wait, the next is due in 3," in kvmq(*once).out
        opened.put("t", b"x", deliver_at=overdue)
    # Nobody has the store open, so nobody delivers.
    found = kvmq(*once, "--json").json["delays"]
    assert (found["waiting"], found["next_due"]) == (2, overdue)
    assert found["late_ms"] >= 30_000
    assert "2 delayed wait, the next is due late by " in kvmq(*once).out


def test_the_server_of_a_store_tells_how_late_the_last_message_came(
    kvmq: Kvmq, tmp_path: Path
) -> None:
    clock, once = VirtualClock(), ("top", tmp_path / "s", "--once", "--interval", 0.05)
    with kvstore.open(tmp_path / "s", StoreConfig(clock=clock)) as store:
        store.create_topic("t", queues=1)
        store.put("t", b"x", delay=1)
        with serving(store):
            assert kvmq(*once, "--json").json["delays"]["last_late_ms"] is None
            clock.advance(3.314)
            inside.deliver_due(store)
            until(lambda: store.stats().delays.delivered == 1)
            assert kvmq(*once, "--json").json["delays"]["last_late_ms"] == 2314
            assert "no delayed message waits; the last came 2.314 s late" in kvmq(*once).out
        # Nobody can be asked.
        assert kvmq(*once, "--json").json["delays"]["last_late_ms"] is None


def test_once_shows_one_interval(kvmq: Kvmq, store: Path) -> None:
    ran = kvmq("top", store, "--once", "--interval", 0.05)
    assert ran.code == 0
    assert ran.out.splitlines()[0].split("  ")[0] == "group"
    found = kvmq("top", store, "--once", "--interval", 0.05, "--json").json
    (group,) = found["groups"]
    assert (group["group"], group["pop_per_second"], group["ack_per_second"]) == ("g", 0, 0)
    topics = {t["topic"]: (t["messages"], t["put_per_second"]) for t in found["topics"]}
    assert topics == {"orders": (41, 0), "t": (10, 0), "%DLQ%g": (1, 0)}


def test_rates_beside_a_writer_that_is_busy(process: Process, tmp_path: Path) -> None:
    """Also while segments, checkpoints and RocksDB's files come and go."""
    config = StoreConfig(segment_size=1 << 20, checkpoint_bytes=1 << 20)
    with kvstore.open(tmp_path / "s", config) as store:
        store.create_topic("t", queues=2)
        store.create_group("g")
        top = process("top", tmp_path / "s", "--interval", 0.1, "--json")
        lines: list[bytes] = []
        batch = [Message("t", bytes(100)) for _ in range(64)]
        assert top.stdout is not None
        deadline = time.monotonic() + 30
        while len(lines) < 8 and time.monotonic() < deadline:
            for _ in range(20):
                store.put_batch(batch)
                store.ack_batch([p.receipt for p in store.pop("g", "t", limit=64)])
            inside.families(store).flush("locks", "offsets")
            while select.select([top.stdout], [], [], 0)[0]:
                lines.append(top.stdout.readline())
        top.send_signal(signal.SIGINT)
        _, err = top.communicate(timeout=30)
        assert (top.returncode, err) == (0, b"")
    found = [json.loads(line) for line in lines]
    assert len(found) >= 8
    assert any(f["topics"][0]["put_per_second"] > 0 for f in found)
    busy = [f["groups"][0] for f in found if f["groups"]]
    assert any(g["pop_per_second"] > 0 and g["ack_per_second"] > 0 for g in busy)
    assert [g["end"] for g in busy] == sorted(g["end"] for g in busy)


def on_terminal(store: Path, end: bytes | signal.Signals) -> tuple[int, bytes]:
    """Run it on a terminal for two intervals; returns its exit code and what it drew."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "kvstore", "top", str(store), "--interval", "0.1"]
    child = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    )
    os.close(follower)
    drawn, ended = b"", False
    while True:
        try:
            drawn += os.read(leader, 65536)
        except OSError:  # it has closed the terminal
            break
        if drawn.count(b"\x1b[2J") >= 3 and not ended:
            ended = True
            if isinstance(end, bytes):
                os.write(leader, end)
            else:
                child.send_signal(end)
    os.close(leader)
    return child.wait(timeout=30), drawn


@pytest.mark.parametrize("end", [b"q", signal.SIGINT])
def test_a_screen_that_is_left_as_it_was(store: Path, end: bytes | signal.Signals) -> None:
    code, drawn = on_terminal(store, end)
    assert code == 0
    assert drawn.startswith(b"\x1b[?1049h\x1b[?25l")
    assert drawn.endswith(b"\x1b[?25h\x1b[?1049l")
    for word in (b"lag", b"in flight", b"retried", b"dead", b"put/s", b"orders"):
        assert word in drawn.replace(b"\x1b[1;36m", b"").replace(b"\x1b[0m", b""), drawn[-3000:]


_STRUCK = """
import gc, signal, sys
from kvstore.cli import main

def collected(phase, info):
    # Python passes over an exception that comes here.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        gc.callbacks.clear()
        signal.raise_signal(signal.SIGINT)

gc.set_threshold(100, 2, 2)
gc.callbacks.append(collected)
sys.argv = ["kvmq", "top", sys.argv[1], "--interval", "0.1", "--json"]
main()
"""


def test_an_interrupt_that_python_passes_over_ends_it_at_its_next_pause(store: Path) -> None:
    command = [sys.executable, "-c", _STRUCK, str(store)]
    ran = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr.count(b"Exception ignored")) == (0, 1), ran.stderr


def test_no_store_is_an_error(kvmq: Kvmq, tmp_path: Path) -> None:
    assert kvmq("top", tmp_path, "--once").code == 1
    assert kvmq("top", tmp_path, "--interval", 0).code == 2


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "1e9"])
def test_an_interval_that_is_none_is_refused_as_usage(
    kvmq: Kvmq, store: Path, seconds: str
) -> None:
    ran = kvmq("top", store, "--once", f"--interval={seconds}")
    assert (ran.code, "--interval" in ran.err) == (2, True)
