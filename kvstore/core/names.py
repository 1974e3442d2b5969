"""Names: every name and number with a meaning: properties, system topics, prefixes, delay levels,
system-flag bits.

The idea: a name or number with a meaning in RocketMQ and this store is written once, here, and
imported everywhere else. Names are those of RocketMQ (MessageConst, TopicValidator, MessageSysFlag,
MixAll), because they are on disk and on the wire; the constants are named by their meaning.

Invariant: pure constants, no behaviour, imports nothing of the project.
"""

from __future__ import annotations

from typing import Final

# --- properties every message may have -------------------------------------------------------

KEYS: Final = "KEYS"
"""The message's keys, separated by one space."""
TAGS: Final = "TAGS"
"""The tag (with the MULTI_TAG flag: several, separated by `||`)."""
UNIQUE_ID: Final = "UNIQ_KEY"
"""The unique id, made by the producer (or by the store, when it had none)."""
MESSAGE_GROUP: Final = "__SHARDINGKEY"
"""The group whose messages are consumed in order."""
EXPIRES_AT: Final = "__EXPIRES_AT"
"""When the message expires, in ms since the epoch, as 13 digits; the record's first property."""
WAIT_STORED: Final = "WAIT"
"""Whether the producer waited for the flush ("true" or "false")."""
BATCH_COUNT: Final = "INNER_NUM"
"""How many messages an inner batch holds."""
BATCH_BASE: Final = "INNER_BASE"
"""The queue offset of an inner batch's first message."""
DUPLICATION_INFO: Final = "DUP_INFO"
"""Added by a deduplicating producer."""
DEDUP_ID: Final = "__DEDUP"
"""The dedup id, by which this store knows a repeated put."""

# --- where a message belongs -----------------------------------------------------------------

REAL_TOPIC: Final = "REAL_TOPIC"
"""The topic a delayed or prepared message goes to in the end."""
REAL_QUEUE: Final = "REAL_QID"
"""The queue id it goes to, in decimal."""
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""The topic a message had before it went through a retry topic."""
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
"""Further queues (`%LMQ%...`) that get an entry for this record, separated by commas."""
MULTI_QUEUE_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"
"""The offsets in those queues, in the same order."""
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
"""The topic a dead letter came from."""
DLQ_ORIGIN_GROUP: Final = "DLQ_ORIGIN_GROUP"
"""The group that gave up on it (RocketMQ says so by the topic's name alone)."""
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
"""The id it had there."""
DLQ_ORIGIN_QUEUE: Final = "DLQ_ORIGIN_QUEUE_ID"
"""The queue it stood in there, in decimal."""
DLQ_ORIGIN_OFFSET: Final = "DLQ_ORIGIN_QUEUE_OFFSET"
"""Its offset there, in decimal."""
DLQ_LEFT_OUT: Final = "DLQ_LEFT_OUT"
"""On a dead letter that was too large to be copied: bytes of the original's body, in decimal."""
DLQ_ATTEMPTS: Final = "DLQ_ATTEMPTS"
"""How often it had been handed out, in decimal."""
DLQ_REASON: Final = "DLQ_REASON"
"""Why the group gave up on it, one of the next two."""
REASON_ATTEMPTS: Final = "attempts"
REASON_EXPIRED: Final = "expired"
DLQ_NACK_REASON: Final = "DLQ_NACK_REASON"
"""The reason for which it was given back last, if there was one."""

# --- consuming -------------------------------------------------------------------------------

MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
"""How often it may be handed out again."""
POP_CHECKPOINT: Final = "POP_CK"
"""RocketMQ's receipt of a popped message."""
FIRST_POP_TIME: Final = "1ST_POP_TIME"
"""When it was first popped, in ms since the epoch."""

# --- delay and timers ------------------------------------------------------------------------

DELAY_LEVEL: Final = "DELAY"
"""The delay level, 1 to 18, in decimal."""
TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""When to deliver, in ms since the epoch."""
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_BEFORE_MS: Final = "TIMER_BEFORE_MS"
"""When the message was due that this one replaces (docs/timing.md)."""
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_ID: Final = "TIMER_DEL_UNIQKEY"
"""Which timer message a delete message cancels."""
TIMER_DELETE_REASON: Final = "TIMER_DEL_REASON"
"""Why, if no caller cancelled it; kvmq's own (docs/timing.md)."""

# --- transactions ----------------------------------------------------------------------------

TRANSACTION_PREPARED: Final = "TRAN_MSG"
""" "true" on a message that is half of a transaction."""
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_PREPARED_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_POSITION: Final = "TRANS_OFFSET"
"""The position of the prepared message that an answer is about, in decimal (transactions in
RocksDB)."""
TRANSACTION_CHECKS: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_CHECK_MS: Final = "TRAN_CHECK_MS"
"""When a prepared message is asked about next; this and the names below are kvmq's own, see
docs/transactions.md.
"""
TRANSACTION_BEFORE_MS: Final = "TRAN_BEFORE_MS"
TRANSACTION_SINCE_MS: Final = "TRAN_SINCE_MS"
TRANSACTION_FIRST_POSITION: Final = "TRAN_FIRST_POSITION"
TRANSACTION_ROLLBACK: Final = "TRAN_ROLLBACK"
TRANSACTION_SET: Final = "TRAN_SET"

# --- the record itself -----------------------------------------------------------------------

PROPERTY_CRC: Final = "__CRC32#"
"""Name of the reserved property at the end of a record, whose CRC covers the whole record."""
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""Properties whose name begins so are never stored."""

RESERVED: Final[frozenset[str]] = frozenset(
    {
        KEYS,
        TAGS,
        UNIQUE_ID,
        MESSAGE_GROUP,
        EXPIRES_AT,
        WAIT_STORED,
        BATCH_COUNT,
        BATCH_BASE,
        DUPLICATION_INFO,
        DEDUP_ID,
        REAL_TOPIC,
        REAL_QUEUE,
        RETRY_TOPIC,
        MULTI_DISPATCH,
        MULTI_QUEUE_OFFSETS,
        MAX_RECONSUME_TIMES,
        POP_CHECKPOINT,
        FIRST_POP_TIME,
        DELAY_LEVEL,
        TIMER_DELAY_SECONDS,
        TIMER_DELAY_MS,
        TIMER_DELIVER_MS,
        TIMER_OUT_MS,
        TIMER_BEFORE_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_ROLL_TIMES,
        TIMER_DELETE_ID,
        TIMER_DELETE_REASON,
        TRANSACTION_PREPARED,
        PRODUCER_GROUP,
        TRANSACTION_ID,
        TRANSACTION_IMMUNITY,
        TRANSACTION_PREPARED_OFFSET,
        TRANSACTION_CHECKS,
        TRANSACTION_CHECK_MS,
        TRANSACTION_BEFORE_MS,
        TRANSACTION_SINCE_MS,
        TRANSACTION_FIRST_POSITION,
        TRANSACTION_ROLLBACK,
        TRANSACTION_SET,
        PROPERTY_CRC,
    }
)
"""Property names with a meaning of their own: not a caller's to set or to see among his own."""

DATES_BEGIN: Final = 946_684_800_000
"""2000-01-01 UTC, in ms since the epoch. Earlier times are in a wrong unit: seconds lie before."""
DATES_END: Final = 4_102_444_800_000
"""2100-01-01 UTC; from then on they are, too."""
DIGITS_END: Final = 10_000_000_000_000
"""2286-11-20 UTC: a record has 13 digits for when a message is due, or expires."""

# --- topics ----------------------------------------------------------------------------------

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Messages delayed by level wait here, in queue `level - 1`."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TRANSACTION_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_DISCARD_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
ROCKSDB_TRANSACTION_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_TRANSACTION_OP_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
ROCKSDB_PROGRESS_TOPIC: Final = "RMQ_SYS_ROCKSDB_OFFSET_TOPIC"

ROCKETMQ_PREFIX: Final = "rmq_sys_"
"""Topics whose name begins so are RocketMQ's own."""
SYSTEM_TOPICS: Final[frozenset[str]] = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_DISCARD_TOPIC,
        ROCKSDB_TRANSACTION_HALF_TOPIC,
        ROCKSDB_TRANSACTION_OP_TOPIC,
        ROCKSDB_PROGRESS_TOPIC,
    }
)
"""Topics the store writes for itself; callers do not put to them."""

PENDING_TOPICS: Final[frozenset[str]] = frozenset({TIMER_TOPIC, TRANSACTION_HALF_TOPIC})
"""Topics in which messages of this store wait; these are found by their ids."""

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"

TAG_SEPARATOR: Final = "||"

# --- delay levels ----------------------------------------------------------------------------

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

DELAY_LEVELS_MS: Final[tuple[int, ...]] = (
    1 * _SECOND,
    5 * _SECOND,
    10 * _SECOND,
    30 * _SECOND,
    *(minutes * _MINUTE for minutes in range(1, 11)),
    20 * _MINUTE,
    30 * _MINUTE,
    1 * _HOUR,
    2 * _HOUR,
)
"""Delay of level n at index n - 1, in ms (RocketMQ's default `messageDelayLevel`)."""

# --- system flags (4 bytes of every record) --------------------------------------------------

COMPRESSED: Final = 0x1
MULTI_TAG: Final = 0x2
TRANSACTION_MASK: Final = 0xC
PREPARED: Final = 0x4
COMMIT: Final = 0x8
ROLLBACK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
CODEC_MASK: Final = 0x700
"""Three bits that name the codec of a compressed body: 0 (before there were several) and 3 are
zlib."""
CODEC_LEGACY_ZLIB: Final = 0x000
CODEC_LZ4: Final = 0x100
CODEC_ZSTD: Final = 0x200
CODEC_ZLIB: Final = 0x300
