"""A store of one queue that a test opens again, and its clock, where no other is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import Store, StoreConfig
from tests.support.clock import VirtualClock
from tests.support.stores import openings

Opens = Callable[[], Store]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def opens(tmp_path: Path, clock: VirtualClock) -> Iterator[Opens]:
    """Opens the test's store, again if need be."""
    config = StoreConfig(segment_size=64 << 10, clock=clock)
    with openings(lambda: kvstore.open(tmp_path / "s", config), one_at_a_time=True) as opening:
        yield opening


@pytest.fixture
def store(opens: Opens) -> Store:
    made = opens()
    made.create_topic("t", queues=1)
    return made
