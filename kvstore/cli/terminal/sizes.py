"""Sizes: a store's bytes on disk, part by part, and the bytes of RocketMQ's queue files for it.

The idea: a closed store is looked at from outside, so that the figures owe nothing to the store's
own bookkeeping: RocksDB is asked, read-only, for the bytes of each family's table files, the file
system for everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

ROCKETMQ_ENTRY: Final = 20
"""Bytes of one entry in RocketMQ's queue files."""
ROCKETMQ_PAGE: Final = 4096
"""Bytes of disk that a queue's first file takes at least."""
ROCKETMQ_FILE: Final = 6_000_000
"""Bytes of address space (and of file, as `ls` shows it) of one queue file: 300,000 entries."""


class IndexSizes(msgspec.Struct, frozen=True):
    """Bytes on disk of a closed store's index: table files of each family, and the whole folder."""

    families: dict[str, int]
    folder: int

    def of(self, *names: str) -> int:
        """Bytes of some families together."""
        return sum(self.families.get(name, 0) for name in names)


def index_sizes(store_folder: Path) -> IndexSizes:
    """Measure the index of a store that no process has open."""
    from rocksdict import AccessType, Options, Rdict

    folder = store_folder / "index"
    raw = Options(raw_mode=True)
    names = Rdict.list_cf(str(folder), raw)
    families = {name: Options(raw_mode=True) for name in names}
    db = Rdict(str(folder), raw, column_families=families, access_type=AccessType.read_only())
    try:
        found = {name: _table_bytes(db.get_column_family(name)) for name in names}
    finally:
        db.close()
    return IndexSizes(found, disk_bytes(folder))


def _table_bytes(family: object) -> int:
    from rocksdict import Rdict

    assert isinstance(family, Rdict)
    return int(family.property_int_value("rocksdb.live-sst-files-size") or 0)


def disk_bytes(folder: Path) -> int:
    """Bytes of disk that a folder's files take (`du`): blocks, not lengths."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def rocketmq_queue_files(messages_per_queue: Iterable[int]) -> tuple[int, int]:
    """Bytes of disk and of address space that RocketMQ's queue files take for these queues."""
    disk = space = 0
    for count in messages_per_queue:
        size = max(count, 1) * ROCKETMQ_ENTRY
        disk += -(-size // ROCKETMQ_PAGE) * ROCKETMQ_PAGE
        space += -(-size // ROCKETMQ_FILE) * ROCKETMQ_FILE
    return disk, space
