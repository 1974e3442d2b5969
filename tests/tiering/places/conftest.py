"""Places to test: folders, and buckets of an S3 server on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiering.places.buckets import make_bucket, open_bucket
from tiering.places.place import Place, open_place


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place of each kind."""
    if request.param == "folder":
        root = tmp_path / "archives"
        root.mkdir()
        return open_place(root)
    s3 = request.getfixturevalue("s3")
    return open_bucket(s3, make_bucket(s3))
