"""Stores for these tests, and the settings of the property tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import kvstore
from kvstore import Store, StoreConfig
from tests.store.stores import SMALL
from tests.support.stores import openings

# How long an example takes says more about a shared machine than about the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

Opens = Callable[..., Store]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    """Opens the store in `name` under the test's folder; all are closed at the end."""

    def open_store(
        config: StoreConfig = SMALL, name: str = "store", *, read_only: bool = False
    ) -> Store:
        return kvstore.open(tmp_path / name, config, read_only=read_only)

    with openings(open_store) as opening:
        yield opening


@pytest.fixture
def store(opens: Opens) -> Store:
    """A store with topic "t" of 4 queues."""
    made = opens()
    made.create_topic("t", queues=4)
    return made
