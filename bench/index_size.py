"""The index on disk, the store in memory, and the rate of puts with many queues.

The idea: bodies of 128 B go to queues drawn at random, the hardest case for packed runs. The store
is closed and nothing is compacted by hand; RocksDB then says what each family's files take.
"""

from __future__ import annotations

from pathlib import Path

import kvstore
from bench.figure import Figure, Options
from bench.loads import load_of, load_store
from bench.memory import Peak
from kvstore.cli.trial.measure import Load, index_sizes

_MEMORY_TARGET = 400.0
_KEY_TARGET = 9.0
_RATIO_TARGET = 0.8


def run_many(folder: Path, options: Options) -> list[Figure]:
    """5,000 x 8 queues, 2 M messages."""
    return _run(folder, options, Load(2_000_000, topics=5_000, queues=8), 6.0)


def run_sparse(folder: Path, options: Options) -> list[Figure]:
    """5,000 x 8 queues, 200 k messages: five in a queue."""
    return _run(folder, options, Load(200_000, topics=5_000, queues=8), 10.0)


def run_few(folder: Path, options: Options) -> list[Figure]:
    """8 x 8 queues, 2 M messages."""
    return _run(folder, options, Load(2_000_000, topics=8, queues=8), 3.0)


def _run(folder: Path, options: Options, load: Load, target: float) -> list[Figure]:
    load = load_of(options, load)
    with Peak() as peak:
        timed = load_store(folder / "store", load)
    with kvstore.open(folder / "store", read_only=True) as store:
        left = store.recovery.records
    assert left == 0, f"{left:,} records were not indexed by the close: the sizes would say nothing"
    sizes = index_sizes(folder / "store")
    families = ", ".join(
        f"{name} {size:,}" for name, size in sorted(sizes.families.items()) if size
    )
    name = f"{load.topics:,} x {load.queues} queues, {load.messages:,} messages"
    per_message = sizes.of("runs", "places") / load.messages
    per_key = sizes.of("message_keys") / (2 * load.messages)  # the key and the unique id
    return [
        Figure(f"{name}: queue index", per_message, "B/msg", target, "lower", families),
        Figure(f"{name}: key index", per_key, "B/key", _KEY_TARGET, "lower"),
        Figure(f"{name}: index folder", sizes.folder / load.messages, "B/msg", None, "lower"),
        Figure(f"{name}: memory", peak.bytes / 1e6, "MB", _MEMORY_TARGET, "lower",
               f"RssAnon at its peak; {peak.before / 1e6:.0f} before the store was opened"),
        Figure(f"{name}: put_batch(32)", timed.rate, "msg/s"),
    ]  # fmt: skip


def compare(many: list[Figure], few: list[Figure]) -> list[Figure]:
    """The put rate with 40,000 queues as a share of that with 64."""
    ratio = many[-1].value / few[-1].value
    return [Figure("put with 40,000 queues / with 64", ratio, "", _RATIO_TARGET)]
