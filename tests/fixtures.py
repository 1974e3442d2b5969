"""Stores that RocketMQ wrote, unpacked for a test, with the manifest that says what is in them."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).resolve().parent / "data"
NAMES: Final = ("classic", "rocksdb", "flipped", "torn")


@dataclass(frozen=True, slots=True)
class Fixture:
    """An unpacked store: its folder (yours to change), and its manifest as parsed JSON."""

    name: str
    store: Path
    manifest: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that RocketMQ reads from it, in log order."""
        found: list[dict[str, Any]] = self.manifest["messages"]
        return found

    @property
    def segment_paths(self) -> list[Path]:
        """The commit log's files, in order."""
        return sorted((self.store / "commitlog").iterdir())

    def segments(self) -> list[tuple[int, bytes]]:
        """First position and content of each of them."""
        return [(int(path.name), path.read_bytes()) for path in self.segment_paths]


def unpack_fixture(name: str, into: Path) -> Fixture:
    """Unpack the store called `name` below `into`, which must not hold it already."""
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    manifest = json.loads((into / name / "manifest.json").read_text(encoding="utf-8"))
    return Fixture(name, into / name / "store", manifest)
