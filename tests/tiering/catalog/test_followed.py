"""A reader beside a store whose segments go to archives: what it keeps of that has a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore.index import queue_locations
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import answers, config, filled, hand_over, sealed

QUEUES = 4
"""Of the store that is read."""
SEGMENTS = 10


@pytest.mark.parametrize("bound", [queue_locations._FOLLOWED_CACHED_MAX, 1, 0])
def test_a_reader_gets_the_same_answers_however_few_places_it_keeps_of_what_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(queue_locations, "_FOLLOWED_CACHED_MAX", bound)
    clock = VirtualClock()
    with filled(tmp_path / "a", clock, SEGMENTS, 8) as store:
        with kvstore.open(tmp_path / "a", config(clock), read_only=True) as reader:
            before = answers(reader)
            for number in sealed(store)[: SEGMENTS // 2]:
                hand_over(store, [number])
            assert answers(reader) == before
            index = inside.index(reader).locations
            kept = index._followed
            # Of one queue more than that, since that is what was asked for last.
            assert index._followed_kept == sum(map(len, kept.values()))
            if bound < QUEUES:
                assert len(kept) == 1
            else:
                assert len(kept) == QUEUES
        assert answers(store) == before
