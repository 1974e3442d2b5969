"""A call on one message takes as many operations beside 1, 10 and 100 others that wait, or whose
ids are remembered. Counted are RocksDB's seeks, steps and gets, and maps and reads of files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import Message, Store
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.costs import Costs
from tests.support.stores import opened, settings

SIZES: Final = (1, 10, 100)
FAR: Final = 86_400.0


class Beside:
    """A store in which so many messages of each kind wait, and one more of each."""

    def __init__(self, store: Store, clock: VirtualClock, others: int) -> None:
        self.store, self.clock = store, clock
        store.create_topic("d", queues=1, dedup_window=FAR)
        self._wait(others, "other")
        store.checkpoint()
        self.one = self._wait(1, "one")
        store.checkpoint()
        self.soon = store.put("t", b"", delay=10.0)
        self.asked = store.prepare("t", b"", group="ask", immunity=10.0)

    def _wait(self, count: int, name: str) -> dict[str, str]:
        store = self.store
        delayed = store.put_batch([Message("t", b"", delay=FAR)] * count)
        prepared = store.prepare_batch([Message("t", b"")] * count, group="pay", immunity=FAR)
        store.put_batch([Message("d", b"", dedup_id=f"{name}-{n}") for n in range(count)])
        with_others = [Message("t", b"", message_id=f"{name}-set"), *[Message("t", b"")] * 3]
        store.prepare_batch(with_others, group="pay", immunity=FAR, set_id=f"{name}-set")
        return {"delayed": delayed[0].message_id, "prepared": prepared[0].message_id}

    # --- calls, each on one message or transaction ---

    def put_delayed(self) -> None:
        self.store.put("t", b"", delay=FAR)

    def cancel(self) -> None:
        assert self.store.cancel(self.soon.message_id)

    def change(self) -> None:
        self.store.change_delay(self.one["delayed"], delay=20.0)

    def show(self) -> None:
        self.store.timer(self.one["delayed"])

    def list_first(self) -> None:
        assert len(self.store.timers("t", limit=1).messages) == 1

    def prepare(self) -> None:
        self.store.prepare("t", b"", group="pay")

    def commit(self) -> None:
        self.store.commit(self.asked)

    def commit_by_id(self) -> None:
        self.store.commit(self.one["prepared"])

    def commit_again(self) -> None:
        self.store.commit(self.one["prepared"])

    def roll_back(self) -> None:
        self.store.rollback(self.store.prepare("t", b"", group="pay"))

    def commit_a_set(self) -> None:
        assert len(self.store.commit_batch(["one-set"])) == 4

    def block(self) -> None:
        with self.store.transaction(group="pay") as t:
            t.put("t", b"")
            t.put("d", b"")

    def ask(self) -> None:
        self.store.on_check("later", lambda message: "commit")
        self.store.prepare("t", b"", group="later", immunity=1.0)
        self.clock.advance(2)
        inside.ask_about_transactions(self.store)

    def put_with_an_id(self) -> None:
        assert not self.store.put("d", b"", dedup_id="new").duplicate

    def repeat(self) -> None:
        assert self.store.put("d", b"", dedup_id="one-0").duplicate

    def repeat_of_a_row(self) -> None:
        assert self.store.put("d", b"", dedup_id="other-0").duplicate


CALLS: Final[list[Callable[[Beside], None]]] = [
    Beside.put_delayed, Beside.cancel, Beside.change, Beside.show, Beside.list_first,
    Beside.prepare, Beside.commit, Beside.commit_by_id, Beside.commit_again, Beside.roll_back,
    Beside.commit_a_set, Beside.block, Beside.put_with_an_id, Beside.repeat,
    Beside.repeat_of_a_row, Beside.ask,
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_call_costs_the_same_beside_1_10_and_100_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Beside], None],
    is_reopened: bool,
) -> None:  # fmt: skip
    costs, counts = Costs(monkeypatch), list[int]()
    for others in SIZES:
        clock = VirtualClock()
        config = settings(clock=clock, checkpoint_interval=1e9, retention_interval=1e9)
        with opened(tmp_path / str(others), config) as store:
            beside = Beside(store, clock, others)
            if is_reopened:
                store.close()
                beside.store = kvstore.open(tmp_path / str(others), config)
            inside.stop_housekeepers(beside.store)
            with costs.counting() as found:
                call(beside)
            beside.store.close()
        counts.append(found.total())
    one, ten, hundred = counts
    # A look reads up to eight rows at once, and more messages have more pieces of filters.
    assert ten <= one + 8, counts
    assert hundred <= ten + 3, counts


@pytest.mark.parametrize("count", SIZES)
def test_a_delivery_of_many_costs_no_more_for_each_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A look at the rows, and a step for each: nothing is read for a message by itself."""
    costs, clock = Costs(monkeypatch, upkeep=()), VirtualClock()
    with opened(tmp_path / "s", settings(clock=clock, checkpoint_interval=1e9)) as store:
        store.put_batch([Message("t", b"", delay=10.0)] * count)
        store.checkpoint()
        inside.stop_housekeepers(store)
        clock.step(20)
        with costs.counting() as found:
            inside.deliver_due(store)
        assert store.timers().count == 0
    assert found["get"] <= 4
    assert found["seek"] <= 8
    assert found["next"] <= 3 * count + 8
