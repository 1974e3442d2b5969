"""kvmq: an embeddable message store with a RocketMQ-compatible commit log and its index in RocksDB.

Everything public is here. `open` opens or creates a store; `rebuild` makes a store's index anew;
`import_rocketmq` adopts a store that Apache RocketMQ wrote.

    import kvstore

    with kvstore.open("data") as store:
        store.create_topic("orders", queues=8)
        store.put("orders", b"...", tag="paid", keys=["o-17"])
"""

from __future__ import annotations

from pathlib import Path

from kvstore.config import Retention, StoreConfig
from kvstore.errors import (
    CallerError,
    ConfigError,
    Damaged,
    DiskFull,
    FlushFailed,
    FormatError,
    FormatTooNew,
    GroupExists,
    GroupNotFound,
    IndexDamaged,
    LogDamaged,
    MessageIllegal,
    MessageNotFound,
    MessageTooLarge,
    OffsetNotFound,
    PropertiesTooLarge,
    PutRefused,
    QueueNotFound,
    RecordDamaged,
    SegmentDamaged,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreNotFound,
    StoreReadOnly,
    TopicExists,
    TopicNotFound,
)
from kvstore.importing import ImportReport, import_rocketmq
from kvstore.message import (
    Bounds,
    Message,
    PullResult,
    PullStatus,
    PutResult,
    PutStatus,
    StoredMessage,
)
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import TopicConfig, TopicInfo
from kvstore.rebuild import RebuildReport, rebuild
from kvstore.recovery import Progress, RecoveryReport
from kvstore.stats import StoreStats
from kvstore.store import Store
from kvstore.verify import Problem, VerifyReport

__version__ = "0.1.0"


def open(
    path: str | Path,
    config: StoreConfig | None = None,
    *,
    read_only: bool = False,
    progress: Progress | None = None,
) -> Store:
    """Open the store in a folder; create it if there is none, adopt it if RocketMQ wrote it.

    `config` holds for this opening; what is fixed in an existing store (segment size) comes from
    the store. `progress` is called with (what, done, total) while a long recovery runs. Raises
    `StoreLocked` (with the holder's pid), `StoreNotFound`, `FormatTooNew`, `IndexDamaged`, and
    `LogDamaged` if damage is to fail the opening.

    >>> import kvstore
    >>> with kvstore.open("data") as store:  # doctest: +SKIP
    ...     store.create_topic("orders")
    """
    return Store(path, config, read_only=read_only, progress=progress)


__all__ = [
    "Bounds",
    "CallerError",
    "ConfigError",
    "Damaged",
    "DiskFull",
    "FlushFailed",
    "FormatError",
    "FormatTooNew",
    "GroupExists",
    "GroupInfo",
    "GroupNotFound",
    "ImportReport",
    "IndexDamaged",
    "LogDamaged",
    "Message",
    "MessageIllegal",
    "MessageNotFound",
    "MessageTooLarge",
    "OffsetNotFound",
    "Problem",
    "Progress",
    "PropertiesTooLarge",
    "PullResult",
    "PullStatus",
    "PutRefused",
    "PutResult",
    "PutStatus",
    "QueueNotFound",
    "RebuildReport",
    "RecordDamaged",
    "RecoveryReport",
    "Retention",
    "SegmentDamaged",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreConfig",
    "StoreError",
    "StoreLocked",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreStats",
    "StoredMessage",
    "TopicConfig",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "VerifyReport",
    "import_rocketmq",
    "open",
    "rebuild",
]
