"""How long single puts stand still while checkpoints are written beside them.

The idea: one thread puts message after message and times each call; the housekeeper checkpoints
meanwhile, at the default size of tail. The same is put into a store whose tail is never full: what
checkpoints take of the rate is the difference.
"""

from __future__ import annotations

import time
from pathlib import Path

import kvstore
from bench.figure import Figure, Options
from bench.loads import load_of
from kvstore import StoreConfig
from kvstore.cli.trial.measure import Load, create_topics, messages

_NEVER = 1 << 40


def run_few(folder: Path, options: Options) -> list[Figure]:
    """8 x 8 queues, 600 k messages one by one, each call timed."""
    return _run(folder, options, Load(600_000, topics=8, queues=8))


def run_many(folder: Path, options: Options) -> list[Figure]:
    """5,000 x 8 queues, 600 k messages one by one, each call timed."""
    return _run(folder, options, Load(600_000, topics=5_000, queues=8))


def _run(folder: Path, options: Options, load: Load) -> list[Figure]:
    load = load_of(options, load)
    times = _put(folder / "with", load, StoreConfig())
    alone = _put(folder / "without", load, StoreConfig(checkpoint_bytes=_NEVER))
    name = f"put, {load.topics:,} x {load.queues} queues"
    count = len(times)
    return [
        Figure(f"{name}: p50", times[count // 2] / 1e3, "us", None, "lower"),
        Figure(f"{name}: p99", times[count * 99 // 100] / 1e3, "us", None, "lower"),
        Figure(f"{name}: p99.99", times[count * 9999 // 10_000] / 1e6, "ms", None, "lower"),
        Figure(f"{name}: longest", times[-1] / 1e6, "ms", None, "lower"),
        Figure(f"{name}: longest without checkpoints", alone[-1] / 1e6, "ms", None, "lower"),
        Figure(f"{name}: rate with / without checkpoints", sum(alone) / sum(times), ""),
    ]


def _put(folder: Path, load: Load, config: StoreConfig) -> list[int]:
    """The nanoseconds that each put took, sorted."""
    times = []
    with kvstore.open(folder, config=config) as store:
        create_topics(store, load)
        for m in messages(load):
            begin = time.perf_counter_ns()
            store.put(
                m.topic, m.body, queue=m.queue, tag=m.tag, keys=m.keys, properties=m.properties
            )
            times.append(time.perf_counter_ns() - begin)
    return sorted(times)
