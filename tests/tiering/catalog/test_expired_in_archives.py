"""Messages in archives expire as those in the log do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import ArchiveAccess, Store
from tests.support.clock import START_MS, VirtualClock
from tests.support.popping import offsets
from tests.tiering.catalog.moving import config, hand_over, sealed
from tests.tiering.catalog.test_same_answers import SMALLEST

SOON = START_MS + 50_000


def made(path: Path, clock: VirtualClock, access: ArchiveAccess) -> Store:
    """A store with three segments of messages of one queue, of which only each third lasts."""
    store = kvstore.open(path, config(clock, archives=access))
    store.create_topic("t", queues=1)
    for n in range(90):
        store.put("t", b"%d" % n, tag="ab"[n % 2], expires_at=SOON if n % 3 else None)
        if n % 30 == 29:
            store.seal()
    return store


def answers(store: Store) -> list[Any]:
    """The pulls of a queue, however they are asked for, and the pops of new groups."""
    found: list[Any] = []
    for asked in ({}, {"limit": 4}, {"max_bytes": 500}, {"filter": "a"}, {"limit": 900}):
        at = 0
        while at < 90:
            pulled = store.pull("t", 0, at, **asked)
            columns = store.pull_columns("t", 0, at, columns=["offset"], **asked)
            assert (columns.next_offset, columns.expired) == (pulled.next_offset, pulled.expired)
            found += [m.offset for m in pulled.messages], pulled.expired
            at = pulled.next_offset
    for number, ordered in enumerate((False, True)):
        group = f"g{number}-{len(store.groups())}"
        store.create_group(group, ordered=ordered, dead_letter_expired=True)
        for _ in range(3):
            popped = store.pop(group, "t", 9, invisible_for=1e6)
            found.append(offsets(popped))
            store.ack_batch([p.receipt for p in popped])
        found.append(store.group_stats(group, "t")[0].expired)
        letters = store.topic(f"%DLQ%{group}")
        found.append(store.bounds(letters.name, 0).next_offset)
    return found


@pytest.mark.parametrize("access", [ArchiveAccess(), SMALLEST], ids=["usual", "smallest"])
def test_archives_change_nothing_about_what_has_expired(
    tmp_path: Path, access: ArchiveAccess
) -> None:
    clock = VirtualClock()
    with made(tmp_path / "a", clock, access) as store:
        clock.advance(60)
        before = answers(store)
        assert sum(n for n in before[:12] if type(n) is int) > 0
        for number in sealed(store):
            hand_over(store, [number])
            now = answers(store)
            # How much an archive's read gives for a number of bytes is not the log's affair.
            assert merged(now) == merged(before)
        message = store.get("t", 0, 1)
        assert (message.body, message.expires_at) == (b"1", SOON)


def merged(found: list[Any]) -> list[Any]:
    """The offsets that were given and the counts, each added up for one way of asking."""
    lists = [one for one in found if isinstance(one, list)]
    counts = [one for one in found if isinstance(one, int)]
    return [[offset for one in lists for offset in one], sum(counts)]
