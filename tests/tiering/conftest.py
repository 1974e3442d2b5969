"""A clock that a test sets, and a store whose messages are two days old, where no other is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import Store
from tests.support.clock import VirtualClock
from tests.tiering.worker.conftest import QUEUES, config, fill


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with kvstore.open(tmp_path / "store", config(clock)) as opened:
        for topic, queues in QUEUES.items():
            opened.create_topic(topic, queues=queues)
        fill(opened, 300)
        clock.advance(2 * 86_400.0)
        yield opened
