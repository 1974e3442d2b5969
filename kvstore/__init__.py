"""kvmq: an embeddable message store with a RocketMQ-compatible commit log and its index in RocksDB.

Everything public is here; `aio` has it for asyncio. `open` opens or creates a store;
`rebuild` makes a store's index anew; `import_rocketmq` adopts a store that Apache RocketMQ wrote.

    import kvstore

    with kvstore.open("data") as store:
        store.create_topic("orders", queues=8)
        store.put("orders", b"...", tag="paid", keys=["o-17"])
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvstore.api.founding import ImportReport, RebuildReport, import_rocketmq, rebuild
from kvstore.api.namespace_view import Namespace
from kvstore.api.store import Store
from kvstore.config import ArchiveAccess, Retention, StoreConfig
from kvstore.consume.consumer import Consumer
from kvstore.consume.consuming import ConsumerStats
from kvstore.core.popping.receipts import Popped
from kvstore.engine.broker_folder import BrokerExport
from kvstore.engine.config_exchange import ConfigImport
from kvstore.engine.stats import SegmentStats, StoreStats, TopicShare
from kvstore.engine.verification.verify import Problem, VerifyReport
from kvstore.errors import (
    AcrossShards,
    AddressInUse,
    ArchiveDamaged,
    ArchiveMissing,
    ArchiveUnavailable,
    CallerError,
    Cancelled,
    ConfigError,
    ConnectionLost,
    Damaged,
    DelayEnded,
    DiskFull,
    ExposureRefused,
    FilterIllegal,
    FlushFailed,
    FormatError,
    FormatTooNew,
    FormatTooOld,
    GroupExists,
    GroupNotFound,
    IndexDamaged,
    IndexUnavailable,
    InFlight,
    KeyDestroyed,
    KeyMissing,
    LimitExceeded,
    LogDamaged,
    MessageIllegal,
    MessageNotFound,
    MessageTooLarge,
    NamespaceExists,
    NamespaceNotFound,
    NotAllowed,
    NotAuthenticated,
    OffsetNotFound,
    PartlyDone,
    PropertiesTooLarge,
    ProtocolMismatch,
    PutRefused,
    QueueNotEmpty,
    QueueNotFound,
    ReceiptExpired,
    ReceiptIllegal,
    RecordDamaged,
    ScheduleExists,
    ScheduleIllegal,
    ScheduleNotFound,
    SegmentDamaged,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreLocked,
    StoreNotFound,
    StoreReadOnly,
    StoreServed,
    TopicExists,
    TopicNotFound,
    TransactionEnded,
)
from kvstore.message import (
    Bounds,
    ColumnBatch,
    ColumnsPut,
    Message,
    PulledBatch,
    PullResult,
    PullStatus,
    PutResult,
    PutStatus,
    StoredMessage,
)
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.history import OffsetCommit
from kvstore.meta.offsets import Lag
from kvstore.meta.topics import TopicConfig, TopicInfo
from kvstore.opening.recovery import Progress, RecoveryReport
from kvstore.pop.inflight.listing import InFlightMessage, InFlightPage
from kvstore.pop.nack import Nack
from kvstore.pop.progress import GroupStats
from kvstore.read.sql import SqlFilter, sql
from kvstore.rocketmq.export import ExportReport
from kvstore.timing.checks import Checker
from kvstore.timing.delayed_message import DelayedMessage, DelayedPage, DelayStats
from kvstore.timing.prepared_message import PreparedMessage, PreparedPage
from kvstore.timing.schedule_rows import ScheduleInfo
from kvstore.timing.transaction import Transaction

__version__ = "0.1.0"


def open(
    path: str | Path,
    config: StoreConfig | None = None,
    *,
    read_only: bool = False,
    progress: Progress | None = None,
) -> Store:
    """Opens the store in a folder; creates it if there is none, adopts it if RocketMQ wrote it.

    `path` is the folder's, `~` being the home folder; a URL is a `CallerError`. `config` holds for
    this opening; what is fixed in an existing store (segment size) comes from the store.
    `progress` is called with (what, done, total) while a long recovery runs. Raises `StoreLocked`
    (with the holder's pid), `StoreNotFound`, `FormatTooNew`, `FormatTooOld`, `IndexDamaged`, and
    `LogDamaged` if damage is to fail the opening.

    >>> import kvstore
    >>> with kvstore.open("data") as store:  # doctest: +SKIP
    ...     store.create_topic("orders")
    """
    return Store(path, config, read_only=read_only, progress=progress)


if TYPE_CHECKING:
    from kvstore.client.served_store import ServedStore
    from kvstore.sharding.connecting import connect
    from kvstore.sharding.sharded_store import ShardedStore

_ELSEWHERE: Final = {
    "ServedStore": "kvstore.client.served_store",
    "ShardedStore": "kvstore.sharding.sharded_store",
    "connect": "kvstore.sharding.connecting",
}


def __getattr__(name: str) -> Any:
    # Who needs no asyncio and no connection doesn't wait for their modules, or keep them in memory.
    if name == "aio":
        return importlib.import_module("kvstore.aio")
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'kvstore' has no attribute {name!r}")


__all__ = [
    "AcrossShards",
    "AddressInUse",
    "ArchiveAccess",
    "ArchiveDamaged",
    "ArchiveMissing",
    "ArchiveUnavailable",
    "Bounds",
    "BrokerExport",
    "CallerError",
    "Cancelled",
    "Checker",
    "ColumnBatch",
    "ColumnsPut",
    "ConfigError",
    "ConfigImport",
    "ConnectionLost",
    "Consumer",
    "ConsumerStats",
    "Damaged",
    "DelayEnded",
    "DelayStats",
    "DelayedMessage",
    "DelayedPage",
    "DiskFull",
    "ExportReport",
    "ExposureRefused",
    "FilterIllegal",
    "FlushFailed",
    "FormatError",
    "FormatTooNew",
    "FormatTooOld",
    "GroupConfig",
    "GroupExists",
    "GroupInfo",
    "GroupNotFound",
    "GroupStats",
    "ImportReport",
    "InFlight",
    "InFlightMessage",
    "InFlightPage",
    "IndexDamaged",
    "IndexUnavailable",
    "KeyDestroyed",
    "KeyMissing",
    "Lag",
    "LimitExceeded",
    "LogDamaged",
    "Message",
    "MessageIllegal",
    "MessageNotFound",
    "MessageTooLarge",
    "Nack",
    "Namespace",
    "NamespaceExists",
    "NamespaceNotFound",
    "NotAllowed",
    "NotAuthenticated",
    "OffsetCommit",
    "OffsetNotFound",
    "PartlyDone",
    "Popped",
    "PreparedMessage",
    "PreparedPage",
    "Problem",
    "Progress",
    "PropertiesTooLarge",
    "ProtocolMismatch",
    "PullResult",
    "PullStatus",
    "PulledBatch",
    "PutRefused",
    "PutResult",
    "PutStatus",
    "QueueNotEmpty",
    "QueueNotFound",
    "RebuildReport",
    "ReceiptExpired",
    "ReceiptIllegal",
    "RecordDamaged",
    "RecoveryReport",
    "Retention",
    "ScheduleExists",
    "ScheduleIllegal",
    "ScheduleInfo",
    "ScheduleNotFound",
    "SegmentDamaged",
    "SegmentStats",
    "ServedStore",
    "ShardedStore",
    "SqlFilter",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreConfig",
    "StoreError",
    "StoreForked",
    "StoreLocked",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreServed",
    "StoreStats",
    "StoredMessage",
    "TopicConfig",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicShare",
    "Transaction",
    "TransactionEnded",
    "VerifyReport",
    "connect",
    "import_rocketmq",
    "open",
    "rebuild",
    "sql",
]
