"""The one place where a store meets `tiering`: the function that opens the reader of its archives.

The idea: a store is given this function when it opens, and calls it when it first needs an archive.
So a store without archives never imports `tiering`, and no module of either package keeps a
reference to the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvstore.config import StoreConfig
from kvstore.index.archived import Archived


def open_tiers(path: Path, rows: Iterable[tuple[bytes, bytes]], config: StoreConfig) -> Archived:
    """Opens archives through `tiering`."""
    from tiering.catalog.tiers import Tiers  # noqa: PLC0415  # see the module

    return Tiers(
        path,
        rows,
        files=config.files,
        clock=config.clock,
        check_crc=config.check_crc,
        access=config.archives,
    )
