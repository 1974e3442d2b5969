"""The pending messages of a tail, held to lists; and the records that end their waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstore.core.pending.pending_records import prepare_copies, prepare_notes
from kvstore.core.queue_offsets import QueueOffsets
from kvstore.core.scan import scan
from kvstore.core.tail import PendingTail, Tail
from kvstore.index.keys import read_timer, timer_key
from kvstore.message import Message
from tests.core.test_encoding import BORN, encoder
from tests.support.collecting import amid_collections

END = 1 << 62
DUES = st.integers(1, 6)


class PendingMachine(RuleBasedStateMachine):
    """Two tails: waits of the first may end in the second, as after a freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.active = PendingTail(), PendingTail()
        self.waiting: dict[int, tuple[int, int, int, int]] = {}
        self.before: set[int] = set()
        self.taken: set[int] = set()
        self.next = 0

    @rule(due=DUES, topic=st.integers(1, 3), is_active=st.booleans())
    def add(self, due: int, topic: int, is_active: bool) -> None:
        position, self.next = self.next, self.next + 10
        (self.active if is_active else self.frozen).add_found(
            np.array([due, position, topic, 9], np.int64)
        )
        self.waiting[position] = due, position, topic, 9
        if not is_active:
            self.before.add(position)

    @rule(data=st.data())
    def end(self, data: Any) -> None:
        if not self.waiting:
            return
        position = data.draw(st.sampled_from(sorted(self.waiting)))
        due, _, topic, _ = self.waiting.pop(position)
        ender, self.next = self.next, self.next + 10
        self.active.end_found(np.array([position, due, topic, ender], np.int64))
        assert self.active.has_ended(position)

    @rule(until=DUES, limit=st.integers(1, 4))
    def take(self, until: int, limit: int) -> None:
        for tail, later, is_before in (
            (self.active, None, False), (self.frozen, self.active, True),
        ):  # fmt: skip
            due = sorted(
                one for p, one in self.waiting.items()
                if (p in self.before) is is_before and one[0] <= until and p not in self.taken
            )  # fmt: skip
            found = tail.take_due(until, limit, END, later)
            assert found == due[:limit]
            self.taken |= {one[1] for one in found}

    @rule()
    def give_back(self) -> None:
        self.active.give_back()
        self.frozen.give_back()
        self.taken.clear()

    @invariant()
    def what_waits_is_there(self) -> None:
        for tail, is_before in ((self.active, False), (self.frozen, True)):
            mine = {p: one for p, one in self.waiting.items() if (p in self.before) is is_before}
            found = tail.pending(-1, -1, END, 1000)
            seen = [one for one in found if not self.active.has_ended(one[1])]
            assert seen == sorted(mine.values())
            assert all(p in tail for p in mine)
        both = [self.active.counts(), self.frozen.counts()]
        for topic in (1, 2, 3):
            count = sum(one[2] == topic for one in self.waiting.values())
            assert sum(counts.get(topic, 0) for counts in both) == count


TestPendingTail = PendingMachine.TestCase


def _rows(tail: Tail) -> list[tuple[int, int, int, int]]:
    return [read_timer(key, value) for key, value in zip(*tail.timers.rows(), strict=True)]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 20))
def test_what_a_failed_put_added_and_ended_is_as_before(delays: list[int], kept: int) -> None:
    tail, offsets, made = Tail(0), QueueOffsets(lambda queue: 0), encoder()
    batch = made.prepare([Message("t", b"x", delay=float(n)) for n in delays], BORN)
    [(_, data)] = tail.add(batch, offsets, 0, 1 << 40, BORN)
    rows = _rows(tail)
    assert rows == sorted(rows)
    assert [row[0] for row in rows] == sorted(BORN + 1000 * n for n in delays)
    held = [(data, position, len(data), position, due, "t", 2) for due, position, *_ in rows]
    again = [int(n < kept) * (BORN + 1_000_000) for n in range(len(held))]
    for ending in (
        prepare_copies(made, held, again, check_crc=True),
        prepare_notes(made, held),
    ):
        tail.add(ending, offsets, len(data), 1 << 40, BORN)
        assert all(tail.timers.has_ended(position) for _, position, *_ in rows)
        tail.take_back(ending, offsets, len(data))
        assert _rows(tail) == rows
        assert tail.timers.ended_keys() == []
        assert tail.timers.take_due(BORN + 60_000, 100, END, None) == rows
        tail.timers.give_back()
    tail.add(prepare_copies(made, held, again, check_crc=True), offsets, len(data), 1 << 40, BORN)
    assert len(_rows(tail)) == min(kept, len(held))
    assert tail.timers.ended_keys() == [], "no row of them was ever written"


def test_a_wait_that_ended_behind_a_freeze_has_its_row_removed() -> None:
    first, second = Tail(0), Tail(1000)
    offsets, made = QueueOffsets(lambda queue: 0), encoder()
    [(_, data)] = first.add(
        made.prepare([Message("t", b"x", delay=1)], BORN), offsets, 0, 1 << 40, BORN
    )
    held = [(data, 0, len(data), 0, BORN + 1000, "t", 2)]
    ending = prepare_copies(made, held, [0], check_crc=True)
    second.add(ending, offsets, 1000, 1 << 40, BORN)
    assert second.timers.ended_keys() == [timer_key(BORN + 1000, 0)]
    assert first.timers.take_due(BORN + 1000, 5, END, second.timers) == []


def test_a_message_beyond_the_visible_end_is_not_taken() -> None:
    tail = PendingTail()
    tail.add_found(np.array([5, 100, 1, 9], np.int64))
    assert tail.take_due(5, 1, 100, None) == []
    assert tail.take_due(5, 1, 101, None) == [(5, 100, 1, 9)]
    assert tail.first_due() is None


@pytest.mark.parametrize("width", [1, 3, 5])
def test_rows_of_another_width_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match="four numbers"):
        PendingTail().add_found(np.zeros(width, np.int64))
    with pytest.raises(ValueError, match="four numbers"):
        PendingTail().end_found(np.zeros(width, np.int64))


def test_messages_that_are_added_while_others_are_taken_are_taken_too() -> None:
    """Garbage that is collected amid a look lets other threads add some that are due before."""

    def add() -> None:
        position = 10 * len(added)
        if len(added) < 400:
            added.append(position)
            tail.add_found(np.array([1000 - len(added), position, 1, 9], np.int64))

    tail, added, taken = PendingTail(), list[int](), list[int]()
    for _ in range(200):
        add()
    with amid_collections(add):
        while found := tail.take_due(1000, 7, END, None):
            taken += [position for _, position, *_ in found]
    taken += [position for _, position, *_ in tail.take_due(1000, 1000, END, None)]
    assert sorted(taken) == added


@pytest.mark.parametrize(
    "tag", [b"abc\xc3", b"ab\xe2\x82", b"a\xf0\x9f\x98", b"\xf0abc", b"\xff|||"]
)
def test_the_copy_of_a_tag_that_is_no_text_has_the_hash_that_a_scan_finds(tag: bytes) -> None:
    tail, offsets, made = Tail(0), QueueOffsets(lambda queue: 0), encoder()
    batch = made.prepare([Message("t", b"x", tag="1234", delay=1)], BORN)
    [(_, data)] = Tail(0).add(batch, offsets, 0, 1 << 40, BORN)
    held = [(data.replace(b"\x011234\x02", b"\x01" + tag + b"\x02"), 0, len(data), 0, 1, "t", 2)]
    copies = prepare_copies(made, held, [0], check_crc=True)
    [(_, copy)] = tail.add(copies, offsets, 0, 1 << 40, BORN)
    found = scan(copy, 0, len(copy), 0, 1, with_names=True)
    assert tail.entry_columns()[4].tolist() == found.tag_hashes.tolist()
