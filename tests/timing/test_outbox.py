"""The outboxes that docs/transactions.md shows: each message is put once, and none is lost."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import kvstore
from tests.support.stores import opened

PAGE: Final = Path(__file__).parents[2] / "docs/transactions.md"


def example(name: str) -> dict[str, Any]:
    """The functions of an example of the page."""
    found = re.search(rf"^```python {name}\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    assert found is not None
    names: dict[str, Any] = {"__name__": name}
    exec(compile(found[1], name, "exec", dont_inherit=True), names)
    return names


def put_order(db: sqlite3.Connection, outbox: dict[str, Any], number: int, *, fails: bool) -> None:
    with db:
        db.execute("insert into orders values (?)", (number,))
        outbox["announce"](db, f"order-{number}", "t", b"%d" % number)
        if fails:
            raise ZeroDivisionError


def test_the_outbox_in_sqlite_puts_what_was_written_and_nothing_else(tmp_path: Path) -> None:
    outbox = example("outbox-sqlite")
    db = sqlite3.connect(tmp_path / "orders.db")
    outbox["make_outbox"](db)
    db.execute("create table orders (number integer)")
    for number in range(6):
        if number % 3 == 2:
            with pytest.raises(ZeroDivisionError):
                put_order(db, outbox, number, fails=True)
        else:
            put_order(db, outbox, number, fails=False)
    with opened(tmp_path / "s") as store:
        store.alter_topic("t", write_queues=1)
        while outbox["relay"](db, store, 2):
            pass
        assert [m.body for m in store.pull("t", 0, 0).messages] == [b"0", b"1", b"3", b"4"]
        assert store.find("order-4").body == b"4"


def test_the_outbox_in_sqlalchemy_puts_what_was_written_and_nothing_else(tmp_path: Path) -> None:
    outbox = example("outbox-sqlalchemy")
    engine = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    outbox["Base"].metadata.create_all(engine)
    for number in range(6):
        with Session(engine) as session:
            outbox["announce"](session, f"order-{number}", "t", b"%d" % number)
            if number % 3 == 2:
                session.rollback()
            else:
                session.commit()
    with opened(tmp_path / "s") as store, Session(engine) as session:
        store.alter_topic("t", write_queues=1)
        while outbox["relay"](session, store, 2):
            pass
        assert [m.body for m in store.pull("t", 0, 0).messages] == [b"0", b"1", b"3", b"4"]
        assert store.find("order-4").body == b"4"
    engine.dispose()


def test_a_relay_that_dies_behind_its_put_puts_the_message_again_with_its_id(
    tmp_path: Path,
) -> None:
    outbox = example("outbox-sqlite")
    db = sqlite3.connect(tmp_path / "orders.db")
    outbox["make_outbox"](db)
    with db:
        outbox["announce"](db, "order-1", "t", b"1")
    with opened(tmp_path / "s") as store:
        copy = sqlite3.connect(tmp_path / "before.db")
        db.backup(copy)
        assert outbox["relay"](db, store) == outbox["relay"](copy, store) == 1
        found = [m for q in (0, 1) for m in store.pull("t", q, 0).messages]
        assert {m.message_id for m in found} == {"order-1"}
        assert isinstance(store, kvstore.Store)
