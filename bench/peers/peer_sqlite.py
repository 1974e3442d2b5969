"""A lease table by hand, in SQLite: WAL, indexes by queue, by key and by the end of the lease."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from bench.peers.peer import Item, Peer

_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, topic INTEGER, queue INTEGER, body BLOB, tag TEXT, key TEXT,
    region TEXT, uniq TEXT, free_at REAL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS by_queue ON messages (topic, queue, id);
CREATE INDEX IF NOT EXISTS by_key ON messages (topic, key);
CREATE INDEX IF NOT EXISTS by_lease ON messages (topic, free_at, id);
"""
_INSERT = "INSERT INTO messages (topic, queue, body, tag, key, region, uniq) VALUES (?,?,?,?,?,?,?)"
_INSERT_DELAYED = (
    "INSERT INTO messages (topic, queue, body, tag, key, region, uniq, free_at)"
    " VALUES (?,?,?,?,?,?,?,?)"
)
_LEASE = """
UPDATE messages SET free_at = ? WHERE id IN (
    SELECT id FROM messages WHERE topic = 0 AND free_at < ? ORDER BY free_at, id LIMIT ?
) RETURNING id, body
"""
_LEASE_S = 30.0


def _values(item: Item) -> tuple[Any, ...]:
    return item.topic, item.queue, item.body, item.tag, item.key, item.region, item.unique


class LeaseTable(Peer):
    """A connection a thread; an acked message is deleted."""

    def __init__(self, folder: Path, sync: bool) -> None:
        super().__init__(folder, sync)
        self._db = sqlite3.connect(
            folder / "queue.sqlite", timeout=60, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
        self._db.executescript(_SCHEMA)

    def put_batch(self, batch: list[Item]) -> list[Any]:
        """One transaction; ids rise by one."""
        rows = list(map(_values, batch))
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(_INSERT, rows)
        (last,) = self._db.execute("SELECT last_insert_rowid()").fetchone()
        self._db.execute("COMMIT")
        return list(range(last - len(batch) + 1, last + 1))

    def pull(self, topic: int, queue: int, after: Any) -> tuple[list[tuple[Any, ...]], Any]:
        """The cursor is an id."""
        rows = self._db.execute(
            "SELECT id, body, tag, key, region, uniq FROM messages"
            " WHERE topic = ? AND queue = ? AND id > ? ORDER BY id LIMIT 32",
            (topic, queue, after or 0),
        ).fetchall()
        return rows, rows[-1][0] if rows else after

    def get(self, place: Any) -> bytes:
        """By id."""
        (body,) = self._db.execute("SELECT body FROM messages WHERE id = ?", (place,)).fetchone()
        return bytes(body)

    def query(self, topic: int, key: str) -> int:
        """By its index."""
        query = "SELECT body FROM messages WHERE topic = ? AND key = ?"
        return len(self._db.execute(query, (topic, key)).fetchall())

    def pop(self, limit: int) -> list[Any]:
        """Rows with a new lease."""
        now = time.time()
        return self._db.execute(_LEASE, (now + _LEASE_S, now, limit)).fetchall()

    def ack(self, handles: list[Any]) -> None:
        """Delete them."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("DELETE FROM messages WHERE id = ?", [(h[0],) for h in handles])
        self._db.execute("COMMIT")

    def put_delayed(self, item: Item, due: int) -> Any:
        """A row that nobody may lease before its time. So it needs no delivery."""
        row = (*_values(item), due / 1000)
        return self._db.execute(_INSERT_DELAYED, row).lastrowid

    def cancel(self, handle: Any) -> None:
        """Deletes the row."""
        self._db.execute("DELETE FROM messages WHERE id = ?", (handle,))

    def another(self) -> Peer:
        """A connection of its own."""
        return LeaseTable(self.folder, self.sync)

    def close(self) -> None:
        """Closes the file."""
        self._db.close()
