"""Fixtures and helpers of the index's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.index.families import Families


@pytest.fixture
def families(tmp_path: Path) -> Iterator[Families]:
    opened = Families(tmp_path / "index", read_only=False, create=True)
    yield opened
    opened.close()
