"""The rounds of a consumer: which calls it makes to the store, in which order, and what follows.

The idea: a round is a generator. It yields a `StoreCall`, a call of the store by its name and
arguments, and is sent the answer, so the same rounds run in a thread, which makes the call, and in
an event loop, which awaits it. Outcomes and renewals are gathered: one call for all acks, one for
all nacks, one for all renewals.

Invariant: an outcome whose call failed is told again in the next round, so a failure loses nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, NamedTuple, TypeVar

from kvstore.consume.consuming import Consuming
from kvstore.consume.hand import Hand, Held, Outcome
from kvstore.errors import (
    CallerError,
    GroupNotFound,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreReadOnly,
    TopicNotFound,
)
from kvstore.pop.nack import Nack
from kvstore.pop.several import is_pattern

WAIT: Final = 1.0
"""Seconds of one pop: a consumer in threads that is told to stop takes up to so long to hear it."""
_LOOK: Final = 0.1
"""Seconds between two checks for messages that other handlers gave back."""
FATAL: Final = (CallerError, GroupNotFound, TopicNotFound, StoreClosed, StoreForked, StoreReadOnly)
"""Errors after which another try would not help."""

T = TypeVar("T")


class StoreCall(NamedTuple):
    """A call of a store."""

    name: str
    args: tuple[Any, ...]


Round = Generator[StoreCall, Any, T]


def checking(plan: Consuming) -> Round[int]:
    """Finds the group and the topics that are named; returns the group's most attempts."""
    group = yield StoreCall("group", (plan.group,))
    names = [plan.topics] if isinstance(plan.topics, str) else plan.topics
    for name in names:
        if not is_pattern(name):
            yield StoreCall("topic", (name,))
    return int(group.max_attempts)


def fetching(hand: Hand, wait: float) -> Round[float | None]:
    """Pops messages for the room there is, into the hand. Returns in how many seconds to fetch
    again; None: when there is room again.
    """
    plan, room = hand.plan, hand.room()
    if not room:
        return None
    found = yield _pop(plan, room, 0.0 if plan.until_empty else wait)
    if found or not plan.until_empty:
        hand.take(found)
        return 0.0
    if not hand.is_empty:
        return _LOOK  # messages that run may come back
    # An empty pop may have passed messages over, or sent some to the dead letters: only one that
    # changes nothing says that there is nothing.
    before = yield StoreCall("group_stats", (plan.group,))
    found = yield _pop(plan, room, 0.0)
    after = yield StoreCall("group_stats", (plan.group,))
    if not found and _state(before) == _state(after):
        hand.is_empty_handed = True
    hand.take(found)
    return 0.0


def _pop(plan: Consuming, limit: int, wait: float) -> StoreCall:
    return StoreCall(
        "pop",
        (plan.group, plan.topics, limit, plan.invisible_for, wait, plan.filter, plan.queue),
    )


def _state(stats: list[Any]) -> list[tuple[str, int, int, int]]:
    return [(one.topic, one.taken, one.in_flight, one.dead_letters) for one in stats]


class Settled(NamedTuple):
    """Messages whose handlers ran too long, and those whose locks are lost."""

    overdue: list[Held]
    lost: list[Held]


def settling(hand: Hand) -> Round[Settled]:
    """Tells the store the outcomes that there are, and renews the locks that need it."""
    overdue = hand.overdue()
    acked = hand.unsettled(Outcome.ACK)
    if acked:
        hand.settled(acked, (yield StoreCall("ack_batch", ([h.receipt for h in acked],))))
    failed = hand.unsettled(Outcome.NACK, Outcome.CANCEL)
    if failed:
        nacks = [_nack(hand.plan, held) for held in failed]
        hand.settled(failed, (yield StoreCall("nack_batch", (nacks,))))
    undone = hand.unsettled(Outcome.UNDO)
    if undone:
        hand.settled(undone, (yield StoreCall("undo_pop", ([h.receipt for h in undone],))))
    lost: list[Held] = []
    due = hand.renewals()
    if due:
        args = [held.receipt for held in due], hand.plan.invisible_for
        lost = hand.renewed(due, (yield StoreCall("change_invisible_batch", args)))
    return Settled(overdue, lost)


def _nack(plan: Consuming, held: Held) -> Nack:
    delay = 0.0 if held.outcome is Outcome.CANCEL else plan.retry_in
    return Nack(held.receipt, delay, held.reason)


def run(store: object, round: Round[T]) -> T:
    """Runs a round in this thread."""
    answer = None
    while True:
        try:
            asked = round.send(answer)
        except StopIteration as e:
            result: T = e.value
            return result
        answer = getattr(store, asked.name)(*asked.args)


async def run_awaited(store: object, round: Round[T]) -> T:
    """Runs a round in this task."""
    answer = None
    while True:
        try:
            asked = round.send(answer)
        except StopIteration as e:
            result: T = e.value
            return result
        call: Callable[..., Awaitable[Any]] = getattr(store, asked.name)
        answer = await call(*asked.args)


def is_fatal(error: BaseException) -> bool:
    """Whether a consumer ends with an error of the store."""
    return isinstance(error, StoreError) and isinstance(error, FATAL)
