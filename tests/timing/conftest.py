"""A store with the test's clock and settings."""

from __future__ import annotations

import pytest

from kvstore import Store, StoreConfig
from tests.support.clock import VirtualClock
from tests.support.stores import Opens, furnish, settings


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    return settings(clock=clock)


@pytest.fixture
def store(opens: Opens, config: StoreConfig, request: pytest.FixtureRequest) -> Store:
    """A store with topic "t" of two queues, unless the mark `topic` says otherwise."""
    return furnish(opens(config), request, queues=2)
