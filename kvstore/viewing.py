"""Viewing: what a store has at one moment, for whoever reads its files without it.

The idea: a store is opened for reading only, beside whoever writes to it, and asked for its
catalog, its topics and how far its log is on the disk; then it is closed. What was seen can be sent
to other machines, and read there.

Invariant: nothing is named that is not on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvstore import opening
from kvstore.archived import ArchivedTopic, LogFile, View
from kvstore.config import StoreConfig
from kvstore.log.segments import segment_name
from kvstore.stats import StoreStats
from kvstore.store import Store


def view(path: Path, config: StoreConfig) -> View:
    """See `kvstore.archived.view_store`."""
    with Store(path, config, read_only=True) as store:
        topics = [
            ArchivedTopic(info.id, info.name, msgspec.to_builtins(info)) for info in store.topics()
        ]
        return View(store.catalog(), topics, list(_log(path, store.stats(), config)))


def _log(path: Path, stats: StoreStats, config: StoreConfig) -> Iterator[LogFile]:
    size, durable = stats.segment_size, stats.durable_position
    for number in range(stats.first_position // size, -(-durable // size)):
        file = path / opening.COMMITLOG / segment_name(number * size)
        if config.files.size(file) is not None:
            yield LogFile(file, number * size, min((number + 1) * size, durable))
