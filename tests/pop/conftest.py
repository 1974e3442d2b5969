"""A store that a test opens again, with the test's clock and settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import Store, StoreConfig
from tests.support.clock import VirtualClock
from tests.support.served import opener_of
from tests.support.stores import Opens, furnish, openings, settings


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    return settings(clock=clock)


@pytest.fixture
def opens(tmp_path: Path, config: StoreConfig, request: pytest.FixtureRequest) -> Iterator[Opens]:
    """Opens the test's store, again if need be; in tests of `SERVED` a second time by a server."""
    opener = opener_of(request)
    with openings(lambda: opener(tmp_path / "store", config), one_at_a_time=True) as opening:
        yield opening


@pytest.fixture
def store(opens: Opens, request: pytest.FixtureRequest) -> Store:
    """A store with topic "t" of one queue, unless the marks `topic` and `group` say otherwise."""
    return furnish(opens(), request, queues=1)
