"""Rows of Arrow record batches put as columns, against `put_batch` of the same messages.

The idea: a store is given the same messages in turn, as messages (32 at once) and as columns (1,024
at once). Both are made before the clock starts. The clock is the processor time of the thread that
puts, so the checkpoints of other threads do not decide the ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa

import kvstore
from bench.figure import Figure, Options
from kvstore import Message
from kvstore.cli.trial.measure import Load, create_topics, messages, topic_of

_ROWS: Final = 1024
_CHUNK: Final = 8 * _ROWS
_TARGET: Final = 2.0


def columns_of(chunk: list[Message]) -> Any:
    """The messages of one topic as a record batch."""
    return pa.record_batch(
        {
            "body": pa.array([m.body for m in chunk], pa.binary()),
            "queue": pa.array([m.queue for m in chunk], pa.int32()),
            "tag": pa.array([m.tag for m in chunk], pa.string()),
            "keys": pa.array([list(m.keys) for m in chunk], pa.list_(pa.string())),
            "properties": pa.array(
                [list(m.properties.items()) for m in chunk], pa.map_(pa.string(), pa.string())
            ),
        }
    )


def _seconds(put: Callable[[Any], object], parts: list[Any]) -> float:
    begin = time.thread_time()
    for part in parts:
        put(part)
    return time.thread_time() - begin


def run(folder: Path, options: Options) -> list[Figure]:
    """Put columns and messages in turn into a new store."""
    size = 128 if options.size is None else options.size
    load = Load(messages=options.messages or 500_000, body=size, topics=1)
    coming, topic = messages(load), topic_of(0)
    by_batch, by_columns = list[float](), list[float]()
    with kvstore.open(folder / "store") as store:
        create_topics(store, load)
        while chunk := list(islice(coming, _CHUNK)):
            batches = [chunk[at : at + load.batch] for at in range(0, len(chunk), load.batch)]
            rows = [columns_of(chunk[at : at + _ROWS]) for at in range(0, len(chunk), _ROWS)]
            by_batch.append(_seconds(store.put_batch, batches) / len(chunk))
            by_columns.append(
                _seconds(lambda part: store.put_columns(topic, part), rows) / len(chunk)
            )
    batch, columns = median(by_batch), median(by_columns)
    return [
        Figure(f"put_columns, {size} B, of processor time", 1 / columns, "msg/s"),
        Figure(f"put_batch(32), {size} B, of processor time", 1 / batch, "msg/s"),
        Figure(f"put_columns against put_batch(32), {size} B", batch / columns, "x", _TARGET),
    ]
