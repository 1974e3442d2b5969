"""Stores that RocketMQ wrote, unpacked once to be read, and what must not change in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from kvstore.files import LocalFiles

Fingerprint = dict[str, tuple[str, int, int]]


@pytest.fixture
def files() -> LocalFiles:
    return LocalFiles()


def fingerprint(folder: Path) -> Fingerprint:
    """Content, time of change and size of every file below a folder, and the folders' times."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
            path.stat().st_size,
        )
        for path in sorted(folder.rglob("*"))
    }


def rows(queue_files: dict[str, Any]) -> dict[tuple[str, int], list[list[int]]]:
    """A manifest's consumeQueueFiles by (topic, queue)."""
    return {
        (topic, int(queue)): entries
        for topic, queues in queue_files.items()
        for queue, entries in queues.items()
    }
