"""`kvmq work`: a command for every message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Message, Popped
from kvstore.cli.message.work import environment
from tests.cli.conftest import SMALL, Kvmq

FAILS_NOW_AND_THEN: Final = """
import os, pathlib, sys
body = sys.stdin.buffer.read()
attempt = int(os.environ["KVMQ_ATTEMPT"])
if (int(body.split()[-1]) + attempt) % 5 == 0 or int(os.environ["KVMQ_OFFSET"]) == 7:
    sys.exit(3)
with open(sys.argv[1], "ab") as log:
    log.write(body + b"\\n")
"""
Process = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with 20 messages in topic "t", and a group "g" that gives up after three attempts."""
    path = tmp_path / "store"
    with kvstore.open(path, SMALL) as store:
        store.create_topic("t", queues=2)
        store.create_group("g", max_attempts=3)
        store.put_batch([Message("t", f"body {i}".encode(), queue=0) for i in range(20)])
    return path


def python(code: str, *args: object) -> list[object]:
    return ["--", sys.executable, "-c", code, *args]


def wait_for(path: Path, lines: int = 1) -> list[str]:
    """Waits until a file has so many lines, and returns all its lines."""
    until = time.monotonic() + 120
    while len(found := path.read_text().splitlines() if path.exists() else []) < lines:
        assert time.monotonic() < until, f"{path} has {len(found)} lines, wanted {lines}"
        time.sleep(0.01)
    return found


def state(store: Path) -> tuple[int, int, int]:
    """Unread, in flight and dead letters of "g" in "t"."""
    with kvstore.open(store, read_only=True) as opened:
        (found,) = opened.group_stats("g", "t")
        return found.unread, found.in_flight, found.dead_letters


def test_a_command_that_fails_now_and_then(kvmq: Kvmq, store: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = python(FAILS_NOW_AND_THEN, log)
    ran = kvmq("work", store, "g", "t", "--parallel", 4, "--until-empty", "--json", *command)
    assert ran.code == 0, ran.err
    found = ran.json
    assert (found["done"], found["dead"], found["lost"]) == (19, 1, 0)
    assert found["failed"] >= 3
    assert found["runs"] == found["done"] + found["failed"]
    done = log.read_bytes().splitlines()
    assert sorted(done) == sorted(f"body {i}".encode() for i in range(20) if i != 7)
    assert state(store) == (0, 0, 1)
    with kvstore.open(store) as opened:
        assert opened.get("%DLQ%g", 0, 0).body == b"body 7"


def test_the_command_finds_the_message(kvmq: Kvmq, store: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    code = """
import json, os, pathlib, sys
own = {k: v for k, v in os.environ.items() if k.startswith("KVMQ_")}
pathlib.Path(sys.argv[1]).write_text(json.dumps([own, sys.stdin.read()]))
"""
    with kvstore.open(store) as opened:
        opened.create_topic("u", queues=3)
        put = opened.put(
            "u", b"\xc3\xa4\nb", queue=2, tag="paid", keys=["a", "b"], message_group="m",
            properties={"region": "eu", "odd-name=": "ü"},
        )  # fmt: skip
    ran = kvmq("work", store, "g", "u", "--count", 1, *python(code, seen))
    assert (ran.code, ran.out.split()[-7]) == (0, "1")
    own, body = json.loads(seen.read_text())
    assert body == "ä\nb"
    assert own.pop("KVMQ_BORN_AT").isdigit()
    assert own.pop("KVMQ_STORED_AT").isdigit()
    assert own == {
        "KVMQ_GROUP": "g",
        "KVMQ_TOPIC": "u",
        "KVMQ_QUEUE": "2",
        "KVMQ_OFFSET": "0",
        "KVMQ_ATTEMPT": "1",
        "KVMQ_MESSAGE_ID": put.message_id,
        "KVMQ_TAG": "paid",
        "KVMQ_KEYS": "a b",
        "KVMQ_MESSAGE_GROUP": "m",
        "KVMQ_PROPERTY_region": "eu",
        "KVMQ_PROPERTY_odd_name_": "ü",
    }


def test_what_was_said_about_an_outer_message_is_not_passed_on(store: Path) -> None:
    with kvstore.open(store) as opened:
        (popped,) = opened.pop("g", "t")
    popped = Popped(popped.message, popped.receipt, 1, 0)
    found = environment("g", popped, {b"KVMQ_TAG": b"old", b"PATH": b"/bin"})
    assert b"KVMQ_TAG" not in found
    assert found[b"PATH"] == b"/bin"


def test_a_count_ends_it(kvmq: Kvmq, store: Path) -> None:
    ran = kvmq("work", store, "g", "t", "--count", 5, "--parallel", 3, "--json", *python("pass"))
    assert ran.json["done"] == 5
    assert state(store) == (15, 0, 0)


def test_a_failed_message_waits_as_it_was_asked(
    kvmq: Kvmq, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fails = python("raise SystemExit(1)")
    ran = kvmq("work", store, "g", "t", "--count", 2, "--retry-in", 600, "--json", *fails)
    assert (ran.json["failed"], ran.json["dead"]) == (2, 0)
    assert "offset 0 of queue 0 of t, attempt 1: failed with exit code 1" in ran.err
    assert caplog.text == "", "it is told once"
    ran = kvmq("work", store, "g", "t", "--until-empty", "--json", *python("pass"))
    assert ran.json["done"] == 18
    assert state(store) == (0, 2, 0)


def test_a_filter_and_a_queue(kvmq: Kvmq, store: Path) -> None:
    with kvstore.open(store) as opened:
        many = [Message("t", b"x", queue=1, properties={"n": str(i)}) for i in range(2000)]
        opened.put_batch(many)
    command = python("pass")
    asked = ("--queue", 1, "--sql", "n > 1997", "--until-empty", "--json")
    assert kvmq("work", store, "g", "t", *asked, *command).json["done"] == 2
    assert state(store) == (20, 0, 0)
    both = kvmq("work", store, "g", "t", "--sql", "a = 1", "--filter", "a", *command)
    assert both.code == 2


def test_a_namespace(kvmq: Kvmq, store: Path) -> None:
    with kvstore.open(store) as opened:
        view = opened.namespace("ns")
        view.create_topic("t")
        view.create_group("g")
        view.put("t", b"x")
    asked = ("--namespace", "ns", "--until-empty", "--json")
    assert kvmq("work", store, "g", "t", *asked, *python("pass")).json["done"] == 1
    assert state(store) == (20, 0, 0)


def test_the_lock_is_extended_while_the_command_runs(kvmq: Kvmq, store: Path) -> None:
    slow = python("import time; time.sleep(1.2)")
    asked = ("--count", 2, "--parallel", 2, "--invisible", 0.3, "--json")
    ran = kvmq("work", store, "g", "t", *asked, *slow)
    assert (ran.json["done"], ran.json["lost"]) == (2, 0)
    assert state(store) == (18, 0, 0)


def test_a_command_whose_message_is_lost_is_killed(
    kvmq: Kvmq, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(_: object, receipts: list[str], *__: object) -> list[kvstore.ReceiptExpired]:
        return [kvstore.ReceiptExpired("somebody reset the offset")] * len(receipts)

    monkeypatch.setattr(kvstore.Store, "change_invisible_batch", expired)
    begin = time.monotonic()
    slow = python("import time; time.sleep(60)")
    ran = kvmq("work", store, "g", "t", "--count", 1, "--invisible", 0.3, "--json", *slow)
    assert (ran.json["lost"], ran.json["done"]) == (1, 0)
    assert time.monotonic() - begin < 30


SLOW: Final = """
import os, sys, time
with open(sys.argv[1], "a") as log:
    log.write(str(os.getpid()) + "\\n")
time.sleep(float(sys.argv[2]))
with open(sys.argv[1], "a") as log:
    log.write("end\\n")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_what_runs_end(
    process: Process, store: Path, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    worker = process("work", store, "g", "t", "--json", *python(SLOW, log, 0.7))
    wait_for(log)
    worker.send_signal(number)
    out, err = worker.communicate(timeout=30)
    assert worker.returncode == 0, err
    assert json.loads(out)["done"] == 1
    assert wait_for(log)[-1] == "end"
    assert state(store) == (19, 0, 0)


def test_a_signal_ends_one_that_waits(process: Process, store: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = process("work", store, "g", "t", "--json", *python(SLOW, log, 0))
    wait_for(log, 40)
    time.sleep(0.2)
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=30)
    assert (worker.returncode, json.loads(out)["done"]) == (0, 20)


def test_the_second_signal_kills_and_gives_back(
    process: Process, store: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    worker = process("work", store, "g", "t", "--json", "--parallel", 2, *python(SLOW, log, 60))
    pids = [int(line) for line in wait_for(log, 2)]
    worker.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert worker.poll() is None
    worker.send_signal(signal.SIGINT)
    out, _ = worker.communicate(timeout=30)
    assert worker.returncode == 130
    assert json.loads(out)["given_back"] == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with kvstore.open(store) as opened:
        assert [p.attempt for p in opened.pop("g", "t", limit=2)] == [2, 2]


def test_a_command_that_reads_nothing_and_a_large_body(kvmq: Kvmq, store: Path) -> None:
    with kvstore.open(store) as opened:
        opened.create_topic("u")
        opened.put("u", bytes(500_000))
    ran = kvmq("work", store, "g", "u", "--until-empty", "--json", *python("pass"))
    assert ran.json["done"] == 1


def test_with_json_the_commands_output_goes_elsewhere(process: Process, store: Path) -> None:
    hello = python("print('hello')")
    out, err = process("work", store, "g", "t", "--count", 1, "--json", *hello).communicate()
    assert json.loads(out)["done"] == 1
    assert b"hello" in err
    out, _ = process("work", store, "g", "t", "--count", 1, *hello).communicate()
    assert out.splitlines()[0] == b"hello"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("nobody", "t", "--", "true"), 1, "no group"),
        (("g", "nowhere", "--", "true"), 1, "nowhere"),
        (("g", "t", "--", "no-such-command"), 2, "no command 'no-such-command'"),
        (("g", "t"), 2, "COMMAND"),
        (("g", "t", "--sql", "a >", "--", "true"), 1, "a >"),
        (("g", "t", "--filter", "a > 5", "--", "true"), 1, "--sql"),
        (("g", "t", "--count", "0", "--", "true"), 2, "count"),
    ],
)
def test_what_can_not_be_done_is_said(
    kvmq: Kvmq, store: Path, words: tuple[Any, ...], code: int, says: str
) -> None:
    ran = kvmq("work", store, *words)
    assert (ran.code, says in ran.err) == (code, True), ran.err
    assert state(store) == (20, 0, 0)


@pytest.mark.parametrize("option", ["--retry-in", "--invisible"])
@pytest.mark.parametrize("seconds", ["nan", "-NaN", "inf", "1e12", "-1"])
def test_a_time_that_is_none_is_refused_before_anything_runs(
    kvmq: Kvmq, store: Path, option: str, seconds: str
) -> None:
    ran = kvmq("work", store, "g", "t", f"{option}={seconds}", "--count", 1, "--", "false")
    assert (ran.code, option in ran.err) == (2, True)
    assert state(store) == (20, 0, 0)
