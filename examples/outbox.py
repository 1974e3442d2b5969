"""An order that is written to a database and announced: both, or neither.

The database's own transaction has the announcement in a table; a relay puts it from there. A relay
that dies between its put and its deletion puts a message again, whose dedup id makes that nothing.

    python -m examples.outbox
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

import kvstore


def take_order(db: sqlite3.Connection, order: str, cents: int) -> None:
    """Writes an order and its announcement, in one transaction."""
    with db:
        db.execute("insert into orders values (?, ?)", (order, cents))
        db.execute("insert into outbox (dedup_id, body) values (?, ?)", (order, f"{cents}"))


def relay(db: sqlite3.Connection, store: kvstore.Store) -> int:
    """Puts what stands in the outbox, oldest first, and removes it."""
    rows = db.execute("select id, dedup_id, body from outbox order by id limit 100").fetchall()
    store.put_batch(
        [
            kvstore.Message("orders", body.encode(), keys=[key], dedup_id=key)
            for _, key, body in rows
        ]
    )
    with db:
        db.executemany("delete from outbox where id = ?", [(row[0],) for row in rows])
    return len(rows)


def main() -> None:
    """Takes two orders and a wrong one, and announces those that were taken."""
    with tempfile.TemporaryDirectory() as folder, kvstore.open(Path(folder, "store")) as store:
        store.create_topic("orders", queues=1, dedup_window=3600)
        db = sqlite3.connect(Path(folder, "orders.db"))
        db.execute("create table orders (id text primary key, cents integer not null)")
        db.execute("create table outbox (id integer primary key, dedup_id text, body text)")
        take_order(db, "o-1", 1200)
        take_order(db, "o-2", 80)
        try:
            take_order(db, "o-1", 5)
        except sqlite3.IntegrityError:
            sys.stdout.write("o-1 is there already\n")
        while relay(db, store):
            pass
        for message in store.pull("orders", 0, 0).messages:
            sys.stdout.write(f"{message.keys[0]}: {message.body.decode()} cents\n")
        db.close()


if __name__ == "__main__":
    main()
