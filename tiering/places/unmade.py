"""Unmade: clears the worker's folders of half-made archives that an interrupted process left.

The idea: archives are made, and copied, in folders of their own. The next process that works in
such a folder clears it. A half-made archive may hold messages that are to be erased, so files are
overwritten.

Invariant: no file that a catalog names lies in such a folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from kvstore.files import Files

ATTACH: Final = "attach/made"
"""The folder where an attach makes archives, within the worker's folder."""


def overwrite_all(folder: Path, files: Files) -> list[str]:
    """Overwrites and removes every file in a folder, and the folder; returns their names there."""
    removed = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            files.erase(path)
            removed.append(str(path.relative_to(folder)))
    shutil.rmtree(folder, ignore_errors=True)
    return removed
