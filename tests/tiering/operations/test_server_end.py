"""The end of a server while an archive's place does not answer: within 10 s, with a checkpoint."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import kvstore
import tiering
from kvstore import StoreConfig
from kvstore.errors import StoreError
from tests.support.waiting import until
from tests.tiering.places.buckets import SECRET
from tests.tiering.places.faulty import Fault, FaultyServer
from tests.tiering.stores import QUEUES, fill

ENDS_WITHIN: Final = 15
"""Seconds; the place's own time for an answer is 30."""


@pytest.fixture
def folder(tmp_path: Path, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of sealed segments; the server that it asks for a bucket can be made to stall."""
    for name, value in (
        ("ENDPOINT_URL", faulty.url), ("ACCESS_KEY_ID", "tester"), ("SECRET_ACCESS_KEY", SECRET),
        ("REGION", "us-east-1"), ("ALLOW_HTTP", "true"),
    ):  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    with kvstore.open(tmp_path / "s", StoreConfig(segment_size=64 << 10)) as store:
        for topic, queues in QUEUES.items():
            store.create_topic(topic, queues=queues)
        fill(store)
    return tmp_path / "s"


def to_bucket(bucket: str) -> tiering.Policy:
    return tiering.Policy(hot_for=0, cold=f"s3://{bucket}/a", watermarks=None, clock_doubt=0.0)


@contextlib.contextmanager
def ending(folder: Path) -> Iterator[kvstore.ServedStore]:
    """A connection to a server, which is told to end behind the block, and does."""
    words = [sys.executable, "-m", "kvstore", "serve", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert b"kvmq+unix" in process.stdout.readline()
            with kvstore.connect(folder, reconnect_for=0) as client:
                yield client
                process.send_signal(signal.SIGTERM)
                assert process.wait(ENDS_WITHIN) == 0
            assert b"can't be stopped; the store is checkpointed" in process.stderr.read()
        finally:
            process.kill()


def stalled(faulty: FaultyServer, call: Callable[[], object]) -> threading.Thread:
    """A thread with a call that waits for the place."""

    def fails() -> None:
        with pytest.raises(StoreError):
            call()

    asked = len(faulty.asked)
    thread = threading.Thread(target=fails)
    thread.start()
    until(lambda: len(faulty.asked) > asked)
    return thread


def test_calls_that_get_no_answer_do_not_hold_up_the_end(
    folder: Path, faulty: FaultyServer, bucket: str
) -> None:
    with kvstore.open(folder) as store:
        with tiering.Worker(store, to_bucket(bucket)) as worker:
            assert worker.run_once().failed == {}
        fill(store)
    with ending(folder) as client:
        faulty.faults = [Fault("stall", "*", times=10**6)]
        reading = stalled(faulty, lambda: client.query("orders", "n8"))
        job = stalled(faulty, tiering.ServedWorker(client, to_bucket(bucket)).run_once)
        put = client.put("orders", b"put beside them")
    reading.join(ENDS_WITHIN)
    job.join(ENDS_WITHIN)
    with kvstore.open(folder) as store:
        assert store.recovery.clean
        assert store.find(put.message_id).body == b"put beside them"
