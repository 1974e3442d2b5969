"""A write that failed has changed nothing: neither rows nor what memory knows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

import kvstore
from kvstore import DiskFull, Message, Store, StoreConfig
from kvstore.index.keys import LockKey
from kvstore.pop.inflight.lock_rows import Lock, offsets_of
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.raising import raising

Call = Callable[[Store, list[str]], object]


@contextmanager
def no_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every write of rows fails meanwhile."""
    with monkeypatch.context() as patched:
        patched.setattr(
            inside.families(store), "write_rows", raising(DiskFull("there is no room for a row"))
        )
        yield


CALLS: Final[dict[str, Call]] = {
    "a pop": lambda store, _: store.pop("g", "t", 3),
    "a pop of one": lambda store, _: store.pop("g", "t"),
    "a pop of one queue": lambda store, _: store.pop("g", "t", queue=0),
    "a pop with a filter": lambda store, _: store.pop("g", "t", 3, filter="b"),
    "a pop of some bytes": lambda store, _: store.pop("g", "t", 3, max_bytes=1),
    "a pop that can be repeated": lambda store, _: store.pop("g", "t", 3, attempt_id="x"),
    "an ack": lambda store, receipts: store.ack(receipts[0]),
    "acks": lambda store, receipts: store.ack_batch(receipts),
    "a lock that is made longer": lambda store, r: store.change_invisible(r[1], 60.0),
    "a message given back": lambda store, receipts: store.change_invisible(receipts[0], 0),
}


def rows(store: Store) -> list[tuple[LockKey, Lock]]:
    table = inside.tables(store).get(store.group("g").id, store.topic("t").id)
    return [*table.all(), *table.parked()]


def known(store: Store) -> object:
    """All that memory says of the rows."""
    table = inside.table(store)
    counted = table.rows, table.messages, table.parked_count
    following = dict(table.next), dict(table.passed), dict(table.expired)
    return counted, following, table.held_from(0, 0), table.next_due(), store.group_stats("g", "t")


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
@pytest.mark.parametrize("what", CALLS)
def test_a_write_that_fails_changes_no_row_and_nothing_that_is_known_of_rows(
    store: Store,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    ordered: bool,
) -> None:
    store.create_group("g", ordered=ordered)
    messages = [
        Message("t", b"%d" % n, 0, tag="ab"[n % 2], message_group=f"m{n}") for n in range(9)
    ]
    store.put_batch(messages)
    receipts = [p.receipt for p in store.pop("g", "t", 2)]
    before = rows(store), known(store)
    with no_room(store, monkeypatch), pytest.raises(DiskFull, match="no room for a row"):
        CALLS[what](store, receipts)
    assert (rows(store), known(store)) == before
    CALLS[what](store, receipts)
    after = rows(store), known(store)
    assert after != before
    path = store.path
    store.close()
    with kvstore.open(path, StoreConfig(clock=clock)) as again:
        assert rows(again) == after[0]
        taken = {p.message.offset for p in again.pop("g", "t", 9)}
        for key, lock in after[0]:
            if key.due > clock.now_ms():
                assert taken.isdisjoint(offsets_of(key.first, lock.locked))


def failing_at(body: bytes) -> kvstore.SqlFilter:
    """A filter that fails at a certain message."""

    def matches(message: kvstore.StoredMessage) -> bool:
        if message.body == body:
            raise RuntimeError("the filter's own")
        return True

    made = kvstore.SqlFilter(f"n = '{body.decode()}'")
    object.__setattr__(made, "matches", matches)
    return made


@pytest.mark.topic(queues=2)
@pytest.mark.group
@pytest.mark.parametrize("due", [False, True])
def test_a_filter_that_raises_changes_nothing(store: Store, clock: VirtualClock, due: bool) -> None:
    store.put_batch([Message("t", b"%d" % n, queue=q) for q in range(2) for n in range(5)])
    if due:
        store.pop("g", "t", 10, 1.0)
        clock.advance(2)
    before = store.lag("g", "t")
    for body in (b"0", b"3", b"4"):
        with pytest.raises(RuntimeError, match="the filter's own"):
            store.pop("g", "t", 10, filter=failing_at(body))
        assert store.lag("g", "t") == before
    found = store.pop("g", "t", 20)
    assert len(found) == 10
    assert {p.attempt for p in found} == {2 if due else 1}
