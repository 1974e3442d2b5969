"""Fixtures: a server for the programs of an example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from tests.support.served import ServerThread, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with kvstore.open(tmp_path / "store") as store, serving(store) as serving_it:
        yield serving_it
