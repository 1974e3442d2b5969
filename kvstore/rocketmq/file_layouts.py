"""File layouts: the files that RocketMQ keeps beside the commit log; every number of them stands
here.

The idea: one Struct or constant per thing on disk, big-endian, named as `kvstore.record.layout`
names the record's. A module that reads a file imports its layout from here.

    consume queue        <root>/consumequeue/TOPIC/QUEUE/NAME        units of 20 bytes
    batch consume queue  <root>/batchconsumequeue/TOPIC/QUEUE/NAME   units of 46 bytes
    index file           <root>/index/yyyyMMddHHmmssSSS              40, slots of 4, items of 20
    checkpoint           <root>/checkpoint                           one page of 4096 bytes
    configuration        <root>/config/*.json, or RocksDB: config/{topics,subscriptionGroups,
                         consumerOffsets} (version 1), config/rdb (version 2)

Names of commit-log and queue files are 20 digits: the byte at which the file begins, in all of
them.

Invariants: pure constants; the Structs' sizes agree with the sizes RocketMQ names (checked at
import).
"""

from __future__ import annotations

import re
import struct
from typing import Final

INDEX_NAME: Final = re.compile(r"[0-9]{17}")
"""The name of an index file, whole: when it was made, to the millisecond."""

# --- folders and files below the root ----------------------------------------------------------

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
BATCH_CONSUMEQUEUE: Final = "batchconsumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
CHECKPOINT_FILE: Final = "checkpoint"
ABORT_FILE: Final = "abort"
"""Made when a broker starts, removed when it stops in order."""
ROCKSDB_CURRENT: Final = "CURRENT"
"""The file that every RocksDB has."""

# --- consume queue -----------------------------------------------------------------------------

QUEUE_UNIT: Final = struct.Struct(">qiq")
"""Position 8, size 4, tags code 8. Size 0: not written yet."""
QUEUE_UNIT_SIZE: Final = 20
SKIPPED_UNIT: Final = (0, 0x7FFF_FFFF, 0)
"""The unit that fills a file before the first offset of a queue that did not begin at its start."""

BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
"""Position 8, size 4, tags code 8, store time 8, first offset 8, messages 2, compacted 4, 4 free.
"""
BATCH_UNIT_SIZE: Final = 46

# --- index file --------------------------------------------------------------------------------

INDEX_HEADER: Final = struct.Struct(">qqqqii")
"""First and last store time 8 each, first and last position 8 each, slots used 4, item count 4."""
INDEX_SLOT: Final = struct.Struct(">i")
INDEX_ITEM: Final = struct.Struct(">iqii")
"""Key hash 4, position 8, seconds since the first store time 4, item before in its slot 4."""
INDEX_SLOTS_DEFAULT: Final = 5_000_000
INDEX_ITEMS_DEFAULT: Final = 20_000_000

# --- checkpoint --------------------------------------------------------------------------------

CHECKPOINT: Final = struct.Struct(">qqqqq")
"""Store times flushed to log, queues and index, position the master flushed, position confirmed."""
CHECKPOINT_MARGIN_MS: Final = 3000
"""RocketMQ trusts its checkpoint only up to this much before it."""

# --- the timer's checkpoint --------------------------------------------------------------------

TIMER_CHECKPOINT_FILE: Final = "timercheck"
"""In the folder of the configuration."""
TIMER_CHECKPOINT: Final = struct.Struct(">qqqqqqq")
"""Time up to which messages were delivered, end of the timer log, next offset of the timer's queue,
the same of the master, version of the state, its time, its counter."""
TIMER_CHECKPOINT_SIZE: Final = 4096

# --- configuration in RocksDB ------------------------------------------------------------------

CONFIG_TOPICS: Final = "topics"
CONFIG_GROUPS: Final = "subscriptionGroups"
CONFIG_OFFSETS: Final = "consumerOffsets"
CONFIG_V2: Final = "rdb"
DATA_VERSION_FAMILY: Final = "kvDataVersion"
"""Version 1: the column family that holds how often the table was changed."""
DATA_VERSION_KEY: Final = b"kvDataVersionKey"
TOPIC_GROUP_JOINER: Final = "@"
"""Between topic and group in the key of an offset."""

V2_PREFIX: Final = struct.Struct(">BHB")
"""Version 2, head of every key: table prefix 1, table 2, what it is 1."""
V2_TABLE_PREFIX: Final = 1
V2_CONSUMER_OFFSETS: Final = 1
V2_TOPICS: Final = 3
V2_GROUPS: Final = 4
V2_RECORD: Final = 2
"""The kind of a key: a record (1 would be the table's version)."""
V2_NAME_SIZE: Final = struct.Struct(">H")
V2_JOINER: Final = 0x01
V2_QUEUE: Final = struct.Struct(">I")
V2_OFFSET: Final = struct.Struct(">q")
V2_JSON: Final = 1
"""First byte of a topic's or group's value: JSON follows. RocketMQ writes no other so far."""

assert QUEUE_UNIT.size == QUEUE_UNIT_SIZE
assert BATCH_UNIT.size == BATCH_UNIT_SIZE
assert (INDEX_HEADER.size, INDEX_SLOT.size, INDEX_ITEM.size) == (40, 4, 20)
assert CHECKPOINT.size == 5 * 8
assert TIMER_CHECKPOINT.size == 7 * 8
