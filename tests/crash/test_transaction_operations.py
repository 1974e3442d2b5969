"""Every file operation fails once while transactions are prepared, committed and rolled back, and
the power is cut before each: a transaction has ended or it waits, as a whole, and its messages are
never there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kvstore import Message, MessageNotFound, Store, TransactionEnded
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole
from tests.support.stores import killed, opened, settings
from tests.support.striking import Work, cut_at_each_effect, strike_each_operation

SIZE: Final = 5000
"""Bytes of a body: what is done with many messages needs two more segments."""
COUNTS: Final = {"one": 1, "few": 4, "many": 20}
"""The messages of each transaction that waits at first."""
COMMITTED: Final = "committed"
WAITS: Final = "waits"
GONE: Final = "gone"
AT_FIRST: Final = dict.fromkeys(COUNTS, WAITS) | {"new": GONE}


def messages(name: str, count: int) -> list[Message]:
    """The messages of a transaction, of two topics in turn; each says which it is."""
    return [
        Message(
            "tu"[n % 2],
            (f"{name} {n} {count} ").encode().ljust(SIZE, b"x"),
            queue=0,
            message_id=f"{name}-{n}" if n else name,
        )
        for n in range(count)
    ]


def prepare(store: Store, name: str, count: int) -> None:
    store.prepare_batch(
        messages(name, count), group="pay", immunity=86_400, set_id=name if count > 1 else None
    )


def block(store: Store, clock: VirtualClock) -> None:
    """Several messages of several topics."""
    with store.transaction(group="pay") as t:
        t.put_batch(messages("new", 20))


def mixed(store: Store, clock: VirtualClock) -> None:
    """A commit and a rollback, and the index has it all."""
    store.commit("few")
    store.rollback("one")
    store.checkpoint()


class Asked(NamedTuple):
    """Some work, and how it leaves the transactions that it changes."""

    work: Work
    ends: dict[str, str]
    steps: int = 1
    """Puts that the work makes: of several, the first ones may be done."""


PATHS: Final = {
    "prepare one": Asked(lambda store, clock: prepare(store, "new", 1), {"new": WAITS}),
    "prepare many": Asked(lambda store, clock: prepare(store, "new", 20), {"new": WAITS}),
    "commit one": Asked(lambda store, clock: store.commit("one"), {"one": COMMITTED}),
    "commit many": Asked(lambda store, clock: store.commit("many"), {"many": COMMITTED}),
    "commit all": Asked(
        lambda store, clock: store.commit_batch(list(COUNTS)), dict.fromkeys(COUNTS, COMMITTED)
    ),
    "roll back one": Asked(lambda store, clock: store.rollback("one"), {"one": GONE}),
    "roll back many": Asked(lambda store, clock: store.rollback("many"), {"many": GONE}),
    "a block": Asked(block, {"new": COMMITTED}, steps=2),
    "mixed": Asked(mixed, {"few": COMMITTED, "one": GONE}, steps=3),
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a kill leaves it: some transactions wait in rows, others only in the log."""
    path = tmp_path_factory.mktemp("before")
    with opened(path / "a", settings(clock=VirtualClock())) as store:
        store.create_topic("u", queues=1)
        for name, count in COUNTS.items():
            prepare(store, name, count)
            if name == "one":
                store.checkpoint()
        return killed(store, path / "b")


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("strike", [strike_each_operation, cut_at_each_effect])
def test_whatever_operation_fails_a_transaction_has_ended_as_a_whole_or_waits(
    tmp_path: Path, before: Path, name: str, strike: Callable[..., None]
) -> None:
    strike(before, tmp_path, PATHS[name].work, partial(check, PATHS[name]))


def _numbers(bodies: list[bytes]) -> dict[str, list[tuple[int, int]]]:
    """By transaction: the messages, each its number and how many there are."""
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in AT_FIRST}
    for body in bodies:
        name, number, count = body.decode().split()[:3]
        found[name].append((int(number), int(count)))
    return found


def states(store: Store) -> dict[str, str]:
    """How each transaction is; fails if one is half there, or twice."""
    held = assert_whole(store)
    there = _numbers([m.body for queue in (("t", 0), ("u", 0)) for m in held.get(queue, [])])
    page = store.transactions(limit=1000)
    waiting = _numbers([one.message.body for one in page.messages])
    assert page.count == len(page.messages)
    found = {}
    for name in AT_FIRST:
        some = sorted(there[name] + waiting[name])
        assert some == [(n, some[0][1]) for n in range(some[0][1] if some else 0)], name
        assert not (there[name] and waiting[name]), f"{name} is half there"
        found[name] = COMMITTED if there[name] else WAITS if waiting[name] else GONE
    return found


def check(
    path: Asked, store: Store, clock: VirtualClock, *, was_done: bool | None, is_last: bool
) -> None:
    """Each transaction is as the work left it, or, if it was not done, as before."""
    found = states(store)
    if was_done:
        assert found == AT_FIRST | path.ends
    elif was_done is False and path.steps == 1:
        assert found == AT_FIRST
    for name, state in found.items():
        between = {WAITS} if path.steps == 2 and name == "new" else set()
        assert state in {AT_FIRST[name], path.ends.get(name, AT_FIRST[name]), *between}, name
    if is_last:
        _end_all(store, found)


def _end_all(store: Store, found: dict[str, str]) -> None:
    """Those that wait can be committed, once; the others can't end in the other way."""
    for name, state in found.items():
        if state == GONE:
            with pytest.raises((TransactionEnded, MessageNotFound)):
                store.commit(name)
            continue
        store.commit(name)
        with pytest.raises(TransactionEnded):
            store.rollback(name)
    wanted = {name: GONE if state == GONE else COMMITTED for name, state in found.items()}
    assert states(store) == wanted
