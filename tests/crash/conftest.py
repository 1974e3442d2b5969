"""Fixtures: a real disk that is small enough to be filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(  # a fixed command
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip(f"mounting is not permitted here: {made.stderr.decode()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=False)
