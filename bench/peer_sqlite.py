"""A peer in the same run: a queue in SQLite, the same messages, also found by queue and by key.

WAL, synchronous=NORMAL, 32 messages a transaction: like `flush="async"`, what is committed survives
the process, and the last transactions may be lost in a power cut.
"""

from __future__ import annotations

import sqlite3
import time
from itertools import islice
from pathlib import Path

from bench.figure import Figure, Options
from bench.loads import load_store
from kvstore.cli.trial.measure import Load, messages

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, topic TEXT, queue INTEGER, tag TEXT, key TEXT, properties TEXT,
    body BLOB
);
CREATE INDEX by_queue ON messages (topic, queue, id);
CREATE INDEX by_key ON messages (topic, key);
"""
_INSERT = (
    "INSERT INTO messages (topic, queue, tag, key, properties, body) VALUES (?, ?, ?, ?, ?, ?)"
)


def run(folder: Path, options: Options) -> list[Figure]:
    """Put the same load into both, and compare."""
    size = 128 if options.size is None else options.size
    load = Load(messages=options.messages or 300_000, body=size)
    ours = load_store(folder / "store", load).rate
    theirs = _sqlite(folder / "queue.sqlite", load)
    name = f"batches of 32, {size} B"
    return [
        Figure(f"SQLite, {name}", theirs, "msg/s"),
        Figure(f"kvmq / SQLite, {name}", ours / theirs, "x"),
    ]


def _sqlite(path: Path, load: Load) -> float:
    db = sqlite3.connect(path)
    try:
        db.executescript(_SCHEMA)
        seconds = 0.0
        coming = messages(load)
        while batch := list(islice(coming, load.batch)):
            rows = [(m.topic, m.queue, m.tag, m.keys[0], "region=eu", m.body) for m in batch]
            begin = time.perf_counter()
            with db:
                db.executemany(_INSERT, rows)
            seconds += time.perf_counter() - begin
    finally:
        db.close()
    return load.messages / seconds
