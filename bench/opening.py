"""How long a store takes to open: with a million queues, and after a kill, with log to index."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import kvstore
from bench.figure import Figure, Options
from bench.isolated import isolated, killed
from kvstore import Message, StoreConfig
from kvstore.cli.trial import measure
from kvstore.cli.trial.measure import Load
from kvstore.log.commitlog import CommitLog
from kvstore.log.recovery_scan import LogScan

_UNINDEXED = 64 << 20


def run_queues(folder: Path, options: Options) -> list[Figure]:
    """A million queues, each with one message; opened by a process that knows nothing of them."""
    load = Load(messages=0, body=16, topics=options.topics or 10_000, queues=options.queues or 100)
    built = isolated(_build, folder / "store", load)
    seconds, first = isolated(_open, folder / "store", load)
    name = f"open, {load.topics * load.queues:,} queues"
    return [
        Figure(name, seconds, "s", 1.0, "lower"),
        Figure(f"{name}: then get from one of them", first * 1000, "ms", None, "lower"),
        Figure(f"{name}: building it, put", built, "msg/s"),
    ]


def _build(folder: Path, load: Load) -> float:
    with kvstore.open(folder) as store:
        measure.create_topics(store, load)
        begin = time.perf_counter()
        for topic in map(measure.topic_of, range(load.topics)):
            store.put_batch([Message(topic, b"one", queue=queue) for queue in range(load.queues)])
        store.checkpoint()
        return load.topics * load.queues / (time.perf_counter() - begin)


def _open(folder: Path, load: Load) -> tuple[float, float]:
    begin = time.perf_counter()
    with kvstore.open(folder) as store:
        opened = time.perf_counter()
        topic, queue = measure.topic_of(load.topics // 2), load.queues // 2
        assert store.get(topic, queue=queue, offset=0).body == b"one"
        return opened - begin, time.perf_counter() - opened


def run_killed(folder: Path, options: Options) -> list[Figure]:
    """A writer killed with 64 MiB of log that no checkpoint covers."""
    load = Load(messages=options.messages or 1 << 40, body=options.size or 128)
    killed(_write_and_die, folder / "store", load)
    seconds, records, size = isolated(_recover, folder / "store", load)
    scan = isolated(_scan, folder / "store", records)
    unindexed = f"{size / (1 << 20):.0f} MiB unindexed"
    return [
        Figure(f"open after kill -9, {unindexed}", seconds, "s", 3.0, "lower",
               f"{records:,} records"),
        Figure(f"recovery: scan alone, {load.body} B", scan, "records/s", 1_000_000),
        Figure("recovery: scan, index, checkpoint", records / seconds, "records/s"),
    ]  # fmt: skip


def _write_and_die(folder: Path, load: Load) -> None:
    config = StoreConfig(checkpoint_bytes=1 << 40, checkpoint_interval=1e9)
    store = kvstore.open(folder, config=config)
    measure.create_topics(store, load)
    topics = [measure.topic_of(number) for number in range(load.topics)]
    body = bytes(load.body)
    at = number = 0
    while at < _UNINDEXED and number < load.messages:
        batch = [
            Message(topics[n % load.topics], body, queue=n // 8 % load.queues, tag="paid",
                    keys=(measure.key_of(n),), properties={"region": "eu"})
            for n in range(number, number + 32)
        ]  # fmt: skip
        last = store.put_batch(batch)[-1]
        at = last.position + last.size
        number += len(batch)
    (folder / "written").write_text(f"{number} {at}")
    os.kill(os.getpid(), signal.SIGKILL)


def _recover(folder: Path, load: Load) -> tuple[float, int, int]:
    """Seconds of the opening, and records and bytes that were not indexed."""
    records, size = map(int, (folder / "written").read_text().split())
    begin = time.perf_counter()
    with kvstore.open(folder) as store:
        seconds = time.perf_counter() - begin
        held = sum(
            store.bounds(topic.name, queue=queue).next_offset
            for topic in store.topics()
            for queue in range(topic.read_queues)
        )
    assert held == records, f"{held} of {records} messages are there"
    return seconds, records, size


def _scan(folder: Path, records: int) -> float:
    """Records a second of recovery's reading half alone: every record checked, none indexed."""
    log = CommitLog(folder / "commitlog", StoreConfig(), writable=False)
    begin = time.perf_counter()
    scan = LogScan(log.segments, 0, 0)
    for _ in scan.chunks():
        pass
    seconds = time.perf_counter() - begin
    assert scan.records == records, f"{scan.records} of {records} records were seen"
    return records / seconds
