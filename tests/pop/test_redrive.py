"""Redrive: dead letters go back to the group that gave up on them, once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import pytest

from kvstore import (
    CallerError,
    GroupNotFound,
    Message,
    PutResult,
    Retention,
    Store,
    StoreConfig,
    TopicNotFound,
)
from kvstore.pop.inflight.table import Waiter
from tests.pop.test_costs import locks_read
from tests.support import inside, inside_pops
from tests.support.clock import VirtualClock
from tests.support.popping import bodies, put
from tests.support.raising import raising
from tests.support.stores import Opens, settings

HOT_FOR: Final = 3600.0


pytestmark = [pytest.mark.topic(queues=2), pytest.mark.group(max_attempts=1)]


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    return settings(clock=clock, retention=Retention(hot_for=HOT_FOR))


def give_up(
    store: Store, clock: VirtualClock, count: int, group: str = "g", topic: str = "t"
) -> None:
    """Let a group take messages and not ack them, so that they are dead letters."""
    taken = store.pop(group, topic, limit=count, invisible_for=1)
    assert len(taken) == count
    clock.advance(2)
    for _ in range(0, count, 256):  # so many are buried at once
        assert store.pop(group, topic) == []


def test_a_redriven_message_is_the_original_with_no_attempts(
    store: Store, clock: VirtualClock
) -> None:
    ids = [result.message_id for result in put(store, 3)]
    give_up(store, clock, 3)
    assert store.redrive("g") == 3
    found = store.pop("g", "t", limit=10)
    assert [p.message.message_id for p in found] == ids
    assert [(p.message.topic, p.message.offset, p.attempt) for p in found] == [
        ("t", 0, 1),
        ("t", 1, 1),
        ("t", 2, 1),
    ]
    assert store.ack_batch([p.receipt for p in found]) == [True] * 3
    assert store.bounds("t", 0).next_offset == 3


@pytest.mark.parametrize("ordered", [False, True])
def test_what_a_group_gave_up_on_is_redriven_though_nobody_popped_since_its_last_lock_ended(
    store: Store, clock: VirtualClock, ordered: bool
) -> None:
    store.create_group("o", max_attempts=1, ordered=ordered)
    put(store, 3)
    for _ in range(3):
        if not store.pop("o", "t", limit=3, invisible_for=1):
            break
    clock.advance(0.5)
    assert store.redrive("o") == 0
    clock.advance(1)
    given_up = store.redrive("o")
    assert given_up == (1 if ordered else 3)
    found = store.pop("o", "t", limit=1)
    assert [(p.message.offset, p.attempt) for p in found] == [(0, 1)]
    assert store.redrive("o") == 0


def test_only_the_group_that_gave_up_gets_it(store: Store, clock: VirtualClock) -> None:
    store.create_group("other")
    put(store, 1)
    store.ack(store.pop("other", "t")[0].receipt)
    give_up(store, clock, 1)
    store.redrive("g")
    assert store.pop("other", "t") == []
    assert bodies(store.pop("g", "t")) == [b"0"]


def test_each_letter_is_put_back_once(store: Store, clock: VirtualClock, opens: Opens) -> None:
    put(store, 2)
    give_up(store, clock, 2)
    assert [store.redrive("g"), store.redrive("g")] == [2, 0]
    store = opens()
    assert store.redrive("g") == 0
    found = store.pop("g", "t", limit=10)
    assert bodies(found) == [b"0", b"1"]
    assert store.pop("g", "t", limit=10) == []
    store.ack_batch([p.receipt for p in found])
    store = opens()
    assert store.redrive("g") == 0
    assert store.pop("g", "t", limit=10) == []


@pytest.mark.parametrize("acks", [True, False])
def test_of_two_redrives_at_once_each_letter_is_put_back_by_one(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, acks: bool
) -> None:
    """Also where what the first put back is done by the time that the second goes on."""
    put(store, 3)
    give_up(store, clock, 3)
    step = inside_pops.look_of_redrive(store)
    look, others, acked = step.now, list[int](), list[bytes]()

    def look_while_another_comes(*given: Any) -> Any:
        found = look(*given)
        if not others:
            others.append(0)
            others.append(store.redrive("g"))
            if acks:
                popped = store.pop("g", "t", limit=10)
                acked.extend(bodies(popped))
                store.ack_batch([p.receipt for p in popped])
        return found

    step.replace(look_while_another_comes, monkeypatch)
    assert store.redrive("g") == 0
    assert others == [0, 3]
    acked += bodies(store.pop("g", "t", limit=10))
    assert acked == [b"0", b"1", b"2"]
    assert store.redrive("g") == 0


def test_redriving_costs_no_look_at_what_else_is_locked(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 3)
    give_up(store, clock, 3)
    put(store, 400, queue=1)
    read = []
    for size in (4, 40, 350):
        while store.lag("g", "t")[1].in_flight < size:
            assert len(store.pop("g", "t", invisible_for=3600)) == 1
            clock.advance(0.001)
        with locks_read(store, monkeypatch) as seen:
            assert store.redrive("g", limit=1) == 1
            read.append(seen())
    assert read[0] == read[1] == read[2] <= 4


def test_what_was_put_back_survives_a_reopening(
    store: Store, clock: VirtualClock, opens: Opens
) -> None:
    put(store, 300)
    give_up(store, clock, 300)
    assert store.redrive("g") == 300
    found = opens().pop("g", "t", limit=400)
    assert [p.message.offset for p in found] == list(range(300))
    assert {p.attempt for p in found} == {1}


def test_a_limit_goes_on_where_the_last_one_ended(store: Store, clock: VirtualClock) -> None:
    put(store, 5)
    give_up(store, clock, 5)
    assert store.redrive("g", limit=2) == 2
    assert bodies(store.pop("g", "t", limit=10)) == [b"0", b"1"]
    assert store.redrive("g", limit=2) == 2
    assert store.redrive("g", limit=2) == 1
    assert bodies(store.pop("g", "t", limit=10)) == [b"2", b"3", b"4"]


def test_more_letters_than_go_into_one_batch(store: Store, clock: VirtualClock) -> None:
    put(store, 600, queue=0)
    put(store, 600, queue=1)
    give_up(store, clock, 1200)
    assert store.redrive("g") == 1200
    found = store.pop("g", "t", limit=2000)
    assert len({(p.message.queue, p.message.offset) for p in found}) == 1200


def test_what_dies_again_can_be_put_back_again(store: Store, clock: VirtualClock) -> None:
    put(store, 1)
    for _ in range(3):
        give_up(store, clock, 1)
        assert store.redrive("g") == 1
    assert store.bounds("%DLQ%g", 0).next_offset == 3
    assert bodies(store.pop("g", "t")) == [b"0"]


def test_where_the_original_is_gone_its_letter_is_put(store: Store, clock: VirtualClock) -> None:
    store.put("t", b"lost", queue=1, tag="x", keys=["k"], properties={"a": "b"}, message_id="M1")
    lose(store, clock)
    assert store.bounds("t", 1).min_offset == 1
    assert store.redrive("g") == 1
    assert store.redrive("g") == 0
    (found,) = store.pop("g", "t", limit=10)
    message = found.message
    assert (message.body, message.topic, message.queue, message.tag) == (b"lost", "t", 1, "x")
    assert message.user_properties == {"a": "b", "DLQ_ORIGIN_MESSAGE_ID": "M1"}
    assert (message.keys, message.offset, found.attempt) == (["k"], 1, 1)


def test_a_letter_that_was_put_before_a_crash_is_not_put_again(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 1)
    lose(store, clock)
    with monkeypatch.context() as patched:
        patched.setattr(
            inside.offsets(store),
            "put_offset",
            raising(KeyError("between the copy and the offset")),
        )
        with pytest.raises(KeyError):
            store.redrive("g")
    assert store.bounds("t", 0) == (1, 2)
    assert store.redrive("g") == 1
    assert store.bounds("t", 0) == (1, 2)
    assert bodies(store.pop("g", "t", limit=10)) == [b"0"]


def test_another_message_at_the_place_of_the_original_is_not_taken_for_it(
    store: Store, clock: VirtualClock
) -> None:
    (old,) = (result.message_id for result in put(store, 1))
    give_up(store, clock, 1)
    store.delete_topic("t")
    with pytest.raises(TopicNotFound, match=r"commit offset 1 there for group 'g'"):
        store.redrive("g")
    store.create_topic("t", queues=1)
    put(store, 1)
    assert store.redrive("g") == 1
    found = [p.message for p in store.pop("g", "t", limit=10)]
    assert [m.offset for m in found] == [0, 1]
    assert old not in {m.message_id for m in found}


def test_groups_that_share_a_topic_get_their_own(store: Store, clock: VirtualClock) -> None:
    for name in ("a", "b"):
        store.create_group(name, max_attempts=1, dead_letter_topic="dead")
    put(store, 2)
    give_up(store, clock, 2, "a")
    give_up(store, clock, 2, "b")
    assert store.bounds("dead", 0).next_offset == 4
    assert store.redrive("b", limit=1) == 1
    assert store.pop("a", "t", limit=10) == []
    assert bodies(store.pop("b", "t", limit=10)) == [b"0"]
    assert store.redrive("a") == 2
    assert bodies(store.pop("a", "t", limit=10)) == [b"0", b"1"]
    assert store.redrive("b") == 1
    assert bodies(store.pop("b", "t", limit=10)) == [b"1"]


def test_what_nobody_gave_up_on_is_passed_over(store: Store, clock: VirtualClock) -> None:
    store.create_topic("%DLQ%g", queues=1)
    store.put("%DLQ%g", b"by hand")
    store.put("%DLQ%g", b"from afar", properties={"DLQ_ORIGIN_TOPIC": "t"})
    assert store.redrive("g") == 1
    assert bodies(store.pop("g", "t", limit=10)) == [b"from afar"]


def test_what_the_group_popped_from_its_dead_letters_is_taken(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 3)
    give_up(store, clock, 3)
    letter = store.pop("g", "%DLQ%g")[0]
    assert store.redrive("g") == 2
    assert bodies(store.pop("g", "t", limit=10)) == [b"1", b"2"]
    assert store.pop("g", "%DLQ%g", limit=10) == []
    store.ack(letter.receipt)


def test_a_message_that_a_reset_made_unread_comes_once(store: Store, clock: VirtualClock) -> None:
    put(store, 3)
    give_up(store, clock, 3)
    store.reset_offset("g", "t", to="begin")
    assert bodies(store.pop("g", "t", queue=0)) == [b"0"]  # locked again
    assert store.redrive("g") == 3
    assert bodies(store.pop("g", "t", limit=10)) == [b"1", b"2"]
    assert store.pop("g", "t", limit=10) == []


def test_redrive_wakes_who_waits(store: Store, clock: VirtualClock) -> None:
    put(store, 1)
    give_up(store, clock, 1)
    woken: list[int] = []
    table = inside.tables(store).get(store.group("g").id, store.topic("t").id)
    waiter = Waiter(lambda: woken.append(1), 1, selective=False)
    inside.waiting(store).enter(table, waiter)
    store.redrive("g")
    assert woken == [1]
    inside.waiting(store).leave(table, waiter)


def test_namespaces_get_their_own(store: Store, clock: VirtualClock) -> None:
    view = store.namespace("ns")
    view.create_topic("t", queues=1)
    view.create_group("g", max_attempts=1)
    view.put("t", b"x")
    give_up(store, clock, 1, "ns%g", "ns%t")
    assert store.redrive("g") == 0
    assert store.redrive("ns%g") == 1
    assert bodies(view.pop("g", "t")) == [b"x"]


def test_wrong_calls_change_nothing(store: Store, clock: VirtualClock) -> None:
    assert store.redrive("g") == 0
    with pytest.raises(GroupNotFound):
        store.redrive("nobody")
    for limit in (0, -1, True, 1.5, "1"):
        with pytest.raises(CallerError, match="limit"):
            store.redrive("g", limit)  # type: ignore[arg-type]  # the point


def lose(store: Store, clock: VirtualClock) -> None:
    """Let a group give up on the only message, and retention take it, but not its dead letter."""
    store.seal()
    store.create_topic("behind_it")
    store.put("behind_it", b"says how old the segment is")
    clock.advance(HOT_FOR - 10)
    give_up(store, clock, 1)
    clock.advance(60)
    store.apply_retention()


def test_a_groups_dead_letters_are_in_its_lag_neither_before_a_redrive_nor_after_it(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 3)
    give_up(store, clock, 3)
    for redriven in (0, 2):
        assert store.redrive("g", redriven) == redriven if redriven else True
        assert {one.topic for one in store.lag("g")} == {"t"}
        (stats,) = store.group_stats("g")
        assert (stats.lag, stats.dead_letters) == (redriven, 3 - redriven)
        assert sum(one.lag for one in store.lag("g", "%DLQ%g")) == 3 - redriven


# --- another dead-letter topic ---


def letters(store: Store, group: str = "g") -> int:
    return store.group_stats(group, "t")[0].dead_letters


@pytest.mark.parametrize("after", ["at once", "a restart"])
def test_dead_letters_in_a_former_topic_are_counted_and_redriven(
    store: Store, opens: Opens, clock: VirtualClock, after: str
) -> None:
    put(store, 3)
    give_up(store, clock, 3)
    store.alter_group("g", dead_letter_topic="dead")
    put(store, 2, queue=1)
    give_up(store, clock, 2)
    assert [store.bounds(name, 0).next_offset for name in ("%DLQ%g", "dead")] == [3, 2]
    if after == "a restart":
        store.close()
        store = opens()
    assert letters(store) == 5
    assert store.redrive("g", 4) == 4
    assert letters(store) == 1
    assert store.redrive("g") == 1
    assert letters(store) == store.redrive("g") == 0
    found = store.pop("g", "t", limit=9)
    assert [(p.message.queue, p.message.offset) for p in found] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1),
    ]  # fmt: skip
    assert {one.topic for one in store.lag("g")} == {"t"}


def test_what_is_put_to_a_former_topic_afterwards_is_no_dead_letter(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 2)
    give_up(store, clock, 2)
    store.alter_group("g", dead_letter_topic="dead")
    put(store, 4, topic="%DLQ%g")
    assert letters(store) == 2
    assert store.redrive("g") == 2
    assert letters(store) == 0
    assert store.lag("g", "%DLQ%g")[0].unread == 4
    assert bodies(store.pop("g", "%DLQ%g", limit=9)) == [b"0", b"1", b"2", b"3"]


def test_a_topic_of_a_former_ones_name_has_no_dead_letters(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 2)
    give_up(store, clock, 2)
    store.alter_group("g", dead_letter_topic="dead")
    store.delete_topic("%DLQ%g")
    assert letters(store) == store.redrive("g") == 0
    store.create_topic("%DLQ%g", queues=1)
    put(store, 2, topic="%DLQ%g")
    assert letters(store) == store.redrive("g") == 0


def test_a_group_may_have_its_former_topic_again(store: Store, clock: VirtualClock) -> None:
    for name in ("dead", None, "dead", None):
        put(store, 1)
        give_up(store, clock, 1)
        store.alter_group("g", dead_letter_topic=name)
    assert list(store.group("g").former_dead_letters) == ["dead"]
    assert letters(store) == store.redrive("g") == 4


def test_former_topics_are_bounded_and_those_without_dead_letters_are_forgotten(
    store: Store, clock: VirtualClock
) -> None:
    for number in range(30):
        store.alter_group("g", dead_letter_topic=f"empty-{number}")
    assert len(store.group("g").former_dead_letters) == 1
    store.alter_group("g", dead_letter_topic="dead-0")
    for number in range(1, 17):
        put(store, 1)
        give_up(store, clock, 1)
        store.alter_group("g", dead_letter_topic=f"dead-{number}")
    put(store, 1)
    give_up(store, clock, 1)
    before = store.group("g")
    with pytest.raises(CallerError, match="delete one of them"):
        store.alter_group("g", dead_letter_topic="dead-17")
    assert store.group("g") == before
    store.alter_group("g", max_in_flight=7)
    assert letters(store) == 17
    store.delete_topic("dead-0")
    store.alter_group("g", dead_letter_topic="dead-17")
    assert letters(store) == store.redrive("g") == 16


def test_a_dead_letter_that_is_copied_while_its_topic_is_changed_is_not_lost(
    store: Store, clock: VirtualClock
) -> None:
    put(store, 1)
    store.pop("g", "t", invisible_for=1)
    clock.advance(2)
    writer = inside.writer(store)
    put_batch = writer.put_batch
    changing = threading.Thread(
        target=store.alter_group, args=("g",), kwargs={"dead_letter_topic": "dead"}
    )

    def slowly(messages: Sequence[Message], *, any_kind: bool = False) -> list[PutResult]:
        changing.start()
        while store.group("g").dead_letters != "dead":
            changing.join(0.001)
        changing.join(0.1)  # it waits for this pop
        return put_batch(messages, any_kind=any_kind)

    writer.put_batch = slowly  # type: ignore[method-assign]  # to stand between two steps
    assert store.pop("g", "t") == []
    changing.join()
    assert store.bounds("%DLQ%g", 0).next_offset == 1
    assert letters(store) == store.redrive("g") == 1
