"""Sets of prepared messages whose records name other sets than they should, as damage or a hostile
log has them: each call ends, with an error that has a type, and what else is there goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import Message, Retention, Store, StoreError
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import killed, overwrite, settings
from tests.support.waiting import until

SETS: Final = ("aaaa", "bbbb", "cccc")
IDS: Final = [f"{name}{number}" for name in SETS for number in ("", 1, 2)]


def prepare_sets(store: Store) -> None:
    """Three sets of three messages; the other ids are `aaaa1`, `aaaa2` ..."""
    store.create_topic("t", queues=1)
    for name in SETS:
        ids = [name, f"{name}1", f"{name}2"]
        batch = [Message("t", one.encode(), message_id=one) for one in ids]
        store.prepare_batch(batch, group="pay", set_id=name, immunity=60)


def rename(path: Path, names: dict[str, str], *, numbers: str = "012") -> None:
    """Lets records of sets say that they are of others: the members with these numbers."""
    for file in sorted((path / "commitlog").iterdir()):
        data = file.read_bytes()
        found = data
        for name, other in names.items():
            for number in numbers:
                was, now = (f"TRAN_SET\x01{one} {number} 3\x02".encode() for one in (name, other))
                assert data.count(was) == 1
                assert len(was) == len(now)
                at = data.index(was)
                found = found[:at] + now + found[at + len(was) :]
        file.write_bytes(found)


_OFFSET_AT: Final = 20
"""Where a record has its offset."""
RENAMED: Final[dict[str, Callable[[Path], None]]] = {
    "a circle of two": lambda path: rename(path, {"aaaa": "bbbb", "bbbb": "aaaa"}),
    "a circle of three": lambda path: rename(
        path, {"aaaa": "bbbb", "bbbb": "cccc", "cccc": "aaaa"}
    ),
    "a chain": lambda path: rename(path, {"aaaa": "bbbb", "bbbb": "cccc"}),
    "a set that is not there": lambda path: rename(path, {"aaaa": "zzzz", "bbbb": "zzzz"}),
    "the first of another": lambda path: rename(path, {"aaaa": "bbbb"}, numbers="0"),
    "a member of itself": lambda path: rename(path, {"aaaa": "bbbb"}, numbers="12"),
    "a first of another place": lambda path: overwrite(path, _OFFSET_AT, (7).to_bytes(8, "big")),
}


@pytest.mark.parametrize("is_rebuilt", [False, True], ids=["index kept", "index rebuilt"])
@pytest.mark.parametrize("renamed", RENAMED.values(), ids=RENAMED)
def test_a_log_whose_sets_lead_to_each_other_is_worked_with(
    tmp_path: Path, clock: VirtualClock, renamed: Callable[[Path], None], is_rebuilt: bool
) -> None:
    config = settings(clock=clock, transaction_checks=1, transaction_check_interval=30.0)
    path = tmp_path / "s"
    with kvstore.open(path, config) as store:
        prepare_sets(store)
        store.put("t", b"plain", queue=0)
    renamed(path)
    if is_rebuilt:
        kvstore.rebuild(path, config=config)
    with kvstore.open(path, config) as store:
        ended = {name: outcome(partial(store.commit, name)) for name in (*SETS, "aaaa1")}
        if renamed is not RENAMED["a member of itself"]:
            ends = ended["aaaa"], ended["aaaa1"]
            assert "PutResult" not in ends, "it would be committed without the others"
        for name in SETS:
            for call in (store.prepared, store.rollback):
                outcome(partial(call, name))
        with kvstore.open(path, config, read_only=True) as reader:
            assert reader.transactions().count == store.transactions().count
            outcome(lambda: reader.prepared("aaaa"))
        store.on_check("pay", lambda message: "unknown")
        for _ in range(4):
            clock.advance(100)
            inside.ask_about_transactions(store)
        assert b"plain" in [m.body for m in store.pull("t", 0, 0).messages]


def outcome(call: Callable[[], Any]) -> str:
    """The name of the result's class, or that of the error, which is one of the store's."""
    try:
        return type(call()).__name__
    except StoreError as e:
        return type(e).__name__


@pytest.mark.parametrize("renamed", RENAMED.values(), ids=RENAMED)
def test_segments_with_such_sets_leave_the_log(
    tmp_path: Path, clock: VirtualClock, renamed: Callable[[Path], None]
) -> None:
    config = settings(clock=clock, retention=Retention(hot_for=1000.0))
    path = tmp_path / "s"
    with kvstore.open(path, config) as store:
        prepare_sets(store)
    renamed(path)
    with kvstore.open(path, config) as store:
        before = store.transactions().count
        store.seal()
        store.checkpoint()
        clock.advance(2000)
        until(lambda: store.stats().first_position > 0)
        assert store.transactions().count == before
        assert {m.message_id for m in store.transactions().messages} == set(IDS)


def test_an_id_that_was_given_twice_ends_no_other_transaction(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", settings()) as store:
        prepare_sets(store)
        plain = store.prepare_batch([Message("t", b"plain", message_id="aaaa")], group="pay")[0]
        assert store.prepared("aaaa1").message.body == b"aaaa"
        store.rollback("aaaa1")
        assert store.transactions().count == 7
        store.commit(plain)
        assert [m.body for m in store.pull("t", 0, 0).messages] == [b"plain"]


_PREPARED_AT: Final = 76
"""Where a record has its prepared position."""


@pytest.mark.parametrize("end", ["commit", "rollback", "give up", "wait"])
@pytest.mark.parametrize("position", [0, 1, 2, 200, 60_000, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_a_last_record_that_seems_cut_and_names_no_message_before_it_lets_the_store_open(
    tmp_path: Path, clock: VirtualClock, end: str, position: int
) -> None:
    config = settings(clock=clock, transaction_checks=1)
    with kvstore.open(tmp_path / "s", config) as store:
        prepare_sets(store)
        store.checkpoint()
        if end in ("commit", "rollback"):
            getattr(store, end)("cccc")
        else:
            store.on_check("pay", lambda message: "unknown")
            for _ in range(1 + (end == "give up")):
                clock.advance(61)
                inside.ask_about_transactions(store)
        path = killed(store, tmp_path / "killed")
    (file,) = (path / "commitlog").glob("*0")
    data = bytearray(file.read_bytes())
    last = data.rfind(b"TRAN_SET\x01")
    assert data[last + 14 : last + 17] == b"2 3"
    data[last + 14] = ord("1")
    begin = data.rfind(bytes.fromhex("daa320a7"), 0, last) - 4
    data[begin + _PREPARED_AT : begin + _PREPARED_AT + 8] = position.to_bytes(8, "big")
    file.write_bytes(bytes(data))
    with kvstore.open(path, config, read_only=True) as reader:
        before = reader.transactions().count
    with kvstore.open(path, config) as store:
        assert store.transactions().count <= before
        store.put("t", b"plain", queue=0)
        assert b"plain" in [m.body for m in store.pull("t", 0, 0).messages]
