"""The holder of a folder's lock, as the lock's file says, and the error for others.

Invariant: the text of a file that is damaged, or another program's, gives no holder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kvstore.errors import StoreLocked, StoreServed

_HOLDER_MAX: Final = 8192
"""Characters of a lock's file that count."""


def locked_error(path: Path, pid: int | None, url: str) -> StoreLocked:
    """The error of an opening while another has the lock."""
    who = f"process {pid}" if pid else "another process"
    if pid == os.getpid():
        who = f"this process ({pid}) already"
    if url:
        return StoreServed(
            f"{path.parent} is served by {who}; use kvstore.connect({url!r}), or open it here with "
            "read_only=True",
            pid,
            url,
        )
    return StoreLocked(
        f"{path.parent} is held open by {who}; close it there, or open it here with read_only=True",
        pid,
    )


def lock_holder(path: Path) -> tuple[int | None, str]:
    """The process that holds a lock, and where it serves the folder (nothing if it does not), as
    the lock's file says.
    """
    words = path.read_text("utf-8", "replace")[:_HOLDER_MAX].split()
    pid = int(words[1]) if len(words) > 1 and words[1].isdigit() else None
    return pid, words[2] if len(words) == 3 else ""
