"""Fixtures: a door of the test's store `served`, and a client of RocketMQ's there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import Store
from tests.support.grpc_doors import OpenDoor
from tests.support.rocketmq_client import RocketmqClient


@pytest.fixture
def door(served: Store) -> Iterator[OpenDoor]:
    with OpenDoor(served) as door:
        yield door


@pytest.fixture
def client(door: OpenDoor, tmp_path: Path) -> Iterator[RocketmqClient]:
    with RocketmqClient(door.endpoint, tmp_path) as client:
        yield client
