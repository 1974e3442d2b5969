"""Pull in order, get and query at random: each from a store that was closed and opened again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import kvstore
from bench.figure import Figure, Options
from bench.loads import load_store
from kvstore import Store
from kvstore.cli.trial import measure
from kvstore.cli.trial.measure import Load, Timed

_READS = 100_000


def run_pull(folder: Path, options: Options) -> list[Figure]:
    """Pull every queue to its end, 32 at a time, bodies checked."""
    timed, size = _read(folder, options, measure.pull_everything)
    return [_figure(f"pull(32), {size} B, CRC checked", timed, "msg/s", size, 500_000)]


def run_get(folder: Path, options: Options) -> list[Figure]:
    """Get by queue and offset, drawn at random."""
    timed, size = _read(folder, options, lambda s, load: measure.get_at_random(s, load, _READS))
    return [_figure(f"get, random offset, {size} B", timed, "get/s", size, 60_000)]


def run_query(folder: Path, options: Options) -> list[Figure]:
    """Query by key, drawn at random, one message each."""
    timed, size = _read(folder, options, lambda s, load: measure.query_at_random(s, load, _READS))
    return [_figure(f"query, random key, {size} B", timed, "query/s", size, 20_000)]


def _read(
    folder: Path, options: Options, measured: Callable[[Store, Load], Timed]
) -> tuple[Timed, int]:
    size = 128 if options.size is None else options.size
    load = Load(
        messages=options.messages or 1_000_000,
        body=size,
        topics=options.topics or 8,
        queues=options.queues or 8,
    )
    load_store(folder / "store", load)
    with kvstore.open(folder / "store", read_only=True) as store:
        return measured(store, load), size


def _figure(name: str, timed: Timed, unit: str, size: int, target: int) -> Figure:
    return Figure(name, timed.rate, unit, target if size == 128 else None)
