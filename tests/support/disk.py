"""A disk that is half full, whatever this machine's is.

Puts are refused on a disk above its watermark, so the suite would fail where disks are nearly full.
Tests of watermarks bring file layers of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # else the site's hook, which runs inside that import, comes here too early
    from kvstore.files import LocalFiles


def half_full(files: type[LocalFiles]) -> None:
    """From here on, in this process, disks are half full."""
    files.disk_used = _half  # type: ignore[method-assign, assignment]  # that is the purpose


def _half(_: LocalFiles, path: Path) -> float:
    path.stat()
    return 0.5
