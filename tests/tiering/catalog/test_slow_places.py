"""A slow place holds up its own readers alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import ArchiveUnavailable, Popped, Store
from tests.support import inside_tiering
from tests.support.clock import VirtualClock
from tests.tiering.catalog.gate import Gate, gated
from tests.tiering.catalog.moving import SEGMENT, archived, config, filled, hand_over, tiers
from tiering.errors import PlaceUnavailable


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    """A store of which all but the last messages are in an archive."""
    with archived(tmp_path / "a", clock, [[0, 1]], segments=3) as opened:
        yield opened


class Consumer:
    """A pop in a thread of its own."""

    def __init__(self, store: Store, *asked: Any, **named: Any) -> None:
        self.found: list[Popped] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(store, asked, named))
        self._thread.start()

    def _run(self, store: Store, asked: Any, named: Any) -> None:
        try:
            self.found = store.pop(*asked, **named)
        except BaseException as e:
            self.error = e

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> list[Popped]:
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self.found


def hot(store: Store, queue: int) -> int:
    """The first offset of a queue of orders whose record is in the log."""
    first = store.stats().first_position
    high = store.bounds("orders", queue).next_offset
    return next(o for o in range(high) if store.get("orders", queue, o).position >= first)


@pytest.mark.parametrize("kind", [{}, {"ordered": True}, {"max_in_flight": 50}])
def test_who_pops_cold_messages_holds_up_no_pop_or_ack_of_others(
    store: Store, kind: dict[str, Any]
) -> None:
    first_hot = hot(store, 1)
    path, settings = store.path, store.config
    store.close()
    with kvstore.open(path, settings) as again:
        check_nobody_waits(again, kind, first_hot)


def check_nobody_waits(store: Store, kind: dict[str, Any], first_hot: int) -> None:
    store.create_group("g", **kind)
    store.commit_offset("g", "orders", 1, first_hot)
    held = store.pop("g", "orders", queue=1)[0]
    assert held.message.offset == first_hot
    gate = gated(store)
    gate.shut()
    waits = Consumer(store, "g", "orders")
    try:
        assert gate.waiting.acquire(timeout=60)
        store.ack(store.change_invisible(held.receipt, 60))
        more = store.pop("g", "orders", queue=1)
        assert store.ack_batch([p.receipt for p in more]) == [True]
        more += store.pop("g", "orders")
        assert [(p.message.queue, p.message.offset) for p in more] == [
            (1, first_hot + 1),
            (1, first_hot + 2),
        ]
        store.put("visits", b"new", queue=1)
        assert waits.is_waiting
    finally:
        gate.open()
    assert [(p.message.queue, p.message.offset) for p in waits.join()] == [(0, 0)]


def test_a_pop_that_was_put_off_takes_what_it_would_have_taken_at_once(
    tmp_path: Path, clock: VirtualClock
) -> None:
    taken = []
    for moved in (False, True):
        path = tmp_path / str(moved)
        with filled(path, VirtualClock(), 3) as store:
            if moved:
                hand_over(store, [0, 1])
        with kvstore.open(path, config(VirtualClock())) as store:
            store.create_group("g")
            store.create_group("o", ordered=True)
            asked: list[tuple[str, dict[str, Any]]] = [
                ("g", {}),
                ("o", {}),
                ("g", {"filter": "a"}),
                ("g", {"max_bytes": 900}),
            ]
            mine = []
            for turn in range(24):
                group, named = asked[turn % len(asked)]
                found = store.pop(group, "orders", limit=1 + turn % 5, **named)
                mine.append([(p.message.queue, p.message.offset) for p in found])
            taken.append(mine)
    assert taken[0] == taken[1]


def test_a_place_that_fails_after_a_while_is_told_and_asked_once(store: Store) -> None:
    first_hot = hot(store, 1)
    path, settings = store.path, store.config
    store.close()
    with kvstore.open(path, settings) as again:
        again.create_group("g")
        gate = gated(again)

        def fail(*_: Any) -> None:
            gate.asked.append(("", 0, 0))
            raise PlaceUnavailable("it took too long", "x")

        gate.passed = fail  # type: ignore[assignment]  # a place that is gone
        with pytest.raises(ArchiveUnavailable):
            again.pop("g", "orders", queue=0)
        assert len(gate.asked) == 1
        again.commit_offset("g", "orders", 1, first_hot)
        found = again.pop("g", "orders", limit=4)
        assert {p.message.queue for p in found} == {1}


def test_eight_threads_that_want_one_block_make_one_request(store: Store) -> None:
    gate = gated(store)
    store.get("orders", 0, 1)
    cold(store, gate)
    store.query("visits", "k-0")
    # By key: a chunk of keys, one of positions, and the blocks of what it finds.
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: store.get("orders", 0, 0), 1),
        (lambda: store.pull("orders", 0, 0, 4), 1),
        (lambda: store.query("visits", "k-0"), 8),
        (lambda: store.read_at(SEGMENT), 2),
    ]
    for call, most in calls:
        cold(store, gate)
        gate.company = threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(gate.asked) == len(set(gate.asked))
        assert len(gate.asked) <= most


def cold(store: Store, gate: Gate) -> None:
    """Have no block in memory, and no request counted."""
    inside_tiering.forget_blocks(tiers(store))
    gate.asked.clear()


def test_dead_letters_of_cold_messages_go_back_while_others_ack(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "b"
    with filled(path, clock, 2) as made:
        made.create_group("g", max_attempts=1)
        made.pop("g", "orders", queue=0, limit=4, invisible_for=1.0)
        clock.advance(5)
        assert made.pop("g", "orders", queue=0, limit=1)[0].message.offset == 4
        made.seal()
        hand_over(made, [0, 1])
    with kvstore.open(path, config(clock)) as store:
        gate = gated(store)
        held = store.put("orders", b"hot", queue=1)
        store.commit_offset("g", "orders", 1, held.offset)
        mine = store.pop("g", "orders", queue=1)
        gate.shut()
        thread = threading.Thread(target=store.redrive, args=("g",))
        thread.start()
        assert gate.waiting.acquire(timeout=60)
        store.ack(mine[0].receipt)
        gate.open()
        thread.join()
        found = store.pop("g", "orders", queue=0, limit=4)
        assert [(p.message.offset, p.attempt) for p in found] == [(n, 1) for n in range(4)]
