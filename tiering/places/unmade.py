"""Unmade: what a process that was cut off has half made, in the worker's folder.

The idea: archives are made, and copied, in folders of their own, which the next one who works there
clears. What lies there may hold messages that are to be erased, so files are overwritten.

Invariant: nothing that a catalog names lies there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from kvstore.files import Files

ATTACH: Final = "attach/made"
"""Where an attach makes archives, in the worker's folder."""


def overwrite_all(folder: Path, files: Files) -> list[str]:
    """Overwrite and remove every file in a folder, and the folder; returns their names there."""
    removed = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            files.erase(path)
            removed.append(str(path.relative_to(folder)))
    shutil.rmtree(folder, ignore_errors=True)
    return removed
