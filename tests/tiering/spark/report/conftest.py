"""Stores with a past: days of messages in all tiers, and what a consumer finds in them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import kvstore
from kvstore import StoredMessage
from tests.support import days
from tests.tiering.spark.conftest import by_position


class Past(NamedTuple):
    """A store's folder, its archives gone cold, the last moment (ms), and its messages."""

    folder: Path
    cold: Path
    now_ms: int
    messages: list[StoredMessage]


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder = tmp_path_factory.mktemp("past") / "store"
    now_ms = days.make(folder, 7, 500, warm_days=2)
    with kvstore.open(folder, read_only=True) as store:
        messages = list(by_position(store).values())
    return Past(folder, days.cold_of(folder), now_ms, messages)
