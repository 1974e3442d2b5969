"""Fixtures: a store that is served in the test's process, and its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kvstore
from kvstore import ServedStore, Store
from tests.support.served import ServerThread, serving


@pytest.fixture
def server(store: Store) -> Iterator[ServerThread]:
    """A server of the test's store."""
    with serving(store) as server:
        yield server


@pytest.fixture
def client(server: ServerThread) -> Iterator[ServedStore]:
    """A connection to it."""
    with kvstore.connect(server.url) as client:
        yield client
