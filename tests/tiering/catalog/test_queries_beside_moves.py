"""A query by key finds each message once, whatever moves to another tier while it looks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvstore import Store, StoredMessage
from kvstore.errors import ArchiveDamaged
from kvstore.record.hashes import key_hash
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.catalog.gate import gated
from tests.tiering.catalog.moving import filled, hand_over, make, merge, tiers


def found(store: Store) -> list[StoredMessage]:
    return store.query("orders", "all", limit=1000)


class Asker:
    """A query in a thread of its own."""

    def __init__(self, store: Store) -> None:
        self.found: list[StoredMessage] = []
        self._thread = threading.Thread(target=self._run, args=(store,))
        self._thread.start()

    def _run(self, store: Store) -> None:
        self.found = found(store)

    def join(self) -> list[StoredMessage]:
        self._thread.join()
        return self.found


def test_what_left_the_log_before_a_query_came_to_it_and_was_not_told_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        before = found(store)
        hand_over(store, [2])
        gate = gated(store)
        gate.shut()
        asker = Asker(store)
        assert gate.waiting.acquire(timeout=60)
        forget = inside.index(store).locations.forget

        def look() -> None:
            # The batch is written: the query is over before the store says so.
            gate.open()
            asker.join()
            forget()

        monkeypatch.setattr(inside.index(store).locations, "forget", look)
        hand_over(store, [0])
        assert asker.join() == before


def test_an_archive_that_was_merged_before_a_query_came_to_it_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        rows = [hand_over(store, [n]).rows[0] for n in (0, 1, 2)]
        hashed, lost = key_hash(b"orders", b"all"), list[ArchiveDamaged]()
        looking = inside.finder(store)._candidates(hashed, hashed, None, None, lost)
        next(looking)
        merge(store, [row.number for row in rows[:2]])
        assert all(archive not in (rows[0].number, rows[1].number) for _, archive in looking)
        assert lost == []
        assert caplog.records == []


def test_what_is_in_the_log_and_in_an_archive_is_found_once(tmp_path: Path) -> None:
    with filled(tmp_path / "a", VirtualClock(), 4) as store:
        before = found(store)
        hand_over(store, [3])
        made = make(store, [1, 2])
        with store.handover._coming(made.arriving):
            assert found(store) == before
        store.handover.hand_over(made.segments, made.arriving, made.unkept)
        assert found(store) == before
        assert len(tiers(store).rows()) == 2
