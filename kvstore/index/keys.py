"""Keys: every key and small value layout of the RocksDB families; no other module packs a key.

The idea: keys are big-endian, so that byte order is the order wanted. `runs` and each level of
`message_keys` begin with the segment: new keys sort behind old ones, and all rows of a segment are
one key range. See docs/keys.md.

Invariant: these layouts are on disk; a change is a new `FORMAT_VERSION` and a change of
docs/keys.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

FORMAT_VERSION: Final = 10
FORMAT_AHEAD: Final = 11
"""The version while the index has rows ahead of its checkpoint: a program that does not know the
row `AHEAD` refuses the store, since it would add these rows' entries once more.
"""

META: Final = "meta"
TOPICS: Final = "topics"
GROUPS: Final = "groups"
RUNS: Final = "runs"
PLACES: Final = "places"
MESSAGE_KEYS: Final = "message_keys"
OFFSETS: Final = "offsets"
OFFSET_HISTORY: Final = "offset_history"
LOCKS: Final = "locks"
TIMERS: Final = "timers"
TRANSACTIONS: Final = "transactions"
ARCHIVES: Final = "archives"

FAMILIES: Final = (
    META,
    TOPICS,
    GROUPS,
    RUNS,
    PLACES,
    MESSAGE_KEYS,
    OFFSETS,
    OFFSET_HISTORY,
    LOCKS,
    TIMERS,
    TRANSACTIONS,
    ARCHIVES,
)
DERIVED: Final = (RUNS, PLACES, MESSAGE_KEYS, TIMERS, TRANSACTIONS)
"""The families that `rebuild` drops and makes again from the log."""

# meta: name -> value
FORMAT: Final = b"format"  # u32
STORE_ID: Final = b"store_id"  # 16 random bytes
SEGMENT_SIZE: Final = b"segment_size"  # u64
CHECKPOINT: Final = b"checkpoint"  # see Checkpoint
AHEAD: Final = b"ahead"  # see Ahead; present while a checkpoint is being written
NEXT_TOPIC_ID: Final = b"next_topic_id"  # u32
NEXT_GROUP_ID: Final = b"next_group_id"  # u32
LOG_START: Final = b"log_start"  # u64: segments below this position were retired
TAG_CODES: Final = b"tag_codes"  # i64 each: the tag hash of code 0, 1, ...; see tags
SEALED: Final = b"sealed"  # u32: segments below this number have their index repacked
RECEIPT_SECRET: Final = b"receipt_secret"  # 32 random bytes: the secret that signs receipts
ADOPTED: Final = b"adopted"  # JSON: the import, and its source
FOREIGN_DELAYS: Final = b"foreign_delays"  # present until RocketMQ's delayed messages wait here
FOREIGN_TRANSACTIONS: Final = b"foreign_transactions"  # present until its prepared ones do
TRANSACTION_AGE: Final = b"transaction_age"  # u64, ms: no check is behind the end of this age
GONE: Final = b"gone"  # u32 each: segments above LOG_START that are in archives alone
NEXT_ARCHIVE: Final = b"next_archive"  # u32: the next archive's number
COMING: Final = b"coming"  # u32: archives with numbers from this one on are being attached
LOG_TIME: Final = b"log_time"  # u64, ms: the log's time is this or later; see Checkpoint
UNPLACED: Final = b"unplaced"  # present while locations of archived messages have to be made anew

U32: Final = Struct(">I")
U64: Final = Struct(">Q")

_RUN_KEY: Final = Struct(">IIIQ")  # segment, topic, queue, first offset
_LOCATION_KEY: Final = Struct(">IIQ")  # topic, queue, first offset
_LOCATION_VALUE: Final = Struct(">IQ")  # segment (or NOWHERE), first store time in ms
_PART: Final = Struct(">BIH")  # level, first segment, part; then a u64 that says what the row is
_ARCHIVE_KEY: Final = Struct(">QI")  # first position, archive number
_OFFSET_KEY: Final = Struct(">III")  # group, topic, queue
_HISTORY_KEY: Final = Struct(">IIIQ")  # group, topic, queue, ms at which an interval begins
_LOCK_KEY: Final = Struct(">IIQIQ")  # group, topic, due, queue, first offset
_CHECKPOINT: Final = Struct(
    ">QQQQB"
)  # position, durable end, epoch, last store time, closed cleanly

_TIMER_KEY: Final = Struct(">QQ")  # due time in ms, position
_TIMER_VALUE: Final = Struct(">II")  # topic, size of the record

_AHEAD: Final = Struct(">QQQ")  # position, queue, offset

PARKED: Final = (1 << 64) - 1
"""The due time of a row that locks nothing: messages an ordered group has passed but can't have
yet.
"""
NOWHERE: Final = 0xFFFFFFFF
"""The segment of a location that holds nothing: it only keeps a queue's next offset once all its
messages are gone.
"""

ARCHIVE_FIRST: Final = 1 << 31
"""From here on, up to `NOWHERE`, a location's number is an archive's plus this, and no segment's.
"""
NO_ARCHIVE: Final = NOWHERE - 1 - ARCHIVE_FIRST
"""The archive that is none: a location that names it says that nobody has its offsets any more."""

OFFSET_MAX: Final = (1 << 63) - 1
QUEUE_MASK: Final = 0xFFFFFFFF

PART_RANK_SHIFT: Final = 12
"""Parts of a segment that is not sealed are numbered rank << 12 | sequence; merging parts of one
rank makes one of the next.
"""
PART_SEALED: Final = 0xFFFF
"""The one part of a sealed segment, and of a generation of several segments."""
HASH_END: Final = 1 << 40
"""Hashes of keys are below this."""
BLOCK_SEQUENCES: Final = 1 << 23
"""Blocks of one part that begin with one hash."""
_FILTERS: Final = HASH_END * BLOCK_SEQUENCES
"""Rows of a part from here on are pieces of its filter."""
_HEAD: Final = (1 << 64) - 1

TIMERS_END: Final = b"\xff" * 8
"""Rows of `timers` and `transactions` from here on count the pending messages of topics; the others
are messages.
"""

run_key = _RUN_KEY.pack
timer_key = _TIMER_KEY.pack
location_key = _LOCATION_KEY.pack
location_value = _LOCATION_VALUE.pack
part_prefix = _PART.pack
offset_key = _OFFSET_KEY.pack
lock_key = _LOCK_KEY.pack
archive_key = _ARCHIVE_KEY.pack
PART_PREFIX_SIZE: Final = _PART.size


class RunKey(NamedTuple):
    """The key of a run."""

    segment: int
    topic: int
    queue: int
    first: int


class LockKey(NamedTuple):
    """The key of a lock row; `due` is ms since the epoch, or `PARKED`."""

    group: int
    topic: int
    due: int
    queue: int
    first: int


class Location(NamedTuple):
    """The location of a queue's entries from `first` on; `segment` may also be an archive's number
    plus `ARCHIVE_FIRST`, or `NOWHERE`.
    """

    first: int
    segment: int
    stored_at: int

    @property
    def is_archived(self) -> bool:
        """Whether the entries are in an archive."""
        return ARCHIVE_FIRST <= self.segment < NOWHERE

    @property
    def is_lost(self) -> bool:
        """Whether nobody has the entries any more."""
        return self.is_archived and self.archive == NO_ARCHIVE

    @property
    def archive(self) -> int:
        """The number of the archive that has the entries."""
        return self.segment - ARCHIVE_FIRST


class Checkpoint(NamedTuple):
    """A checkpoint: the index covers the log below `position`; the disk had the log up to
    `durable`.
    """

    position: int
    durable: int
    epoch: int
    stored_at: int
    clean: bool


class Ahead(NamedTuple):
    """Entries that the index has though the checkpoint does not cover them: those below `position`
    in the log, and of lower queues, or of lower offsets of `queue`. A queue is named by its key in
    memory, topic id << 32 | queue id.
    """

    position: int
    queue: int
    offset: int


def read_run_key(key: bytes) -> RunKey:
    """Takes a key of `runs` apart."""
    return RunKey(*_RUN_KEY.unpack(key))


def read_offset_key(key: bytes) -> tuple[int, int, int]:
    """Group, topic and queue of a key of `offsets`."""
    group, topic, queue = _OFFSET_KEY.unpack(key)
    return group, topic, queue


def history_key(queue: bytes, time: int) -> bytes:
    """The key of `offset_history` for a group's queue, by its key in `offsets`, and a time."""
    return queue + U64.pack(time)


def read_history(key: bytes) -> tuple[int, int, int, int]:
    """Group, topic, queue and time of a key of `offset_history`."""
    group, topic, queue, time = _HISTORY_KEY.unpack(key)
    return group, topic, queue, time


def read_location(key: bytes, value: bytes) -> tuple[int, int, Location]:
    """Topic, queue and location of a row of `places`."""
    topic, queue, first = _LOCATION_KEY.unpack(key)
    segment, stored_at = _LOCATION_VALUE.unpack(value)
    return topic, queue, Location(first, segment, stored_at)


def read_archive_key(key: bytes) -> tuple[int, int]:
    """First position and number of a key of `archives`."""
    first_position, number = _ARCHIVE_KEY.unpack(key)
    return first_position, number


def read_lock_key(key: bytes) -> LockKey:
    """Takes a key of `locks` apart."""
    return LockKey._make(_LOCK_KEY.unpack(key))


def lock_prefix(group: int, topic: int) -> bytes:
    """The prefix of all lock rows of a group in a topic."""
    return group.to_bytes(4, "big") + topic.to_bytes(4, "big")


def behind(prefix: bytes) -> bytes:
    """The first key behind all that begin with a prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def read_timer(key: bytes, value: bytes) -> tuple[int, int, int, int]:
    """Due time, position, topic and size of a row of `timers` or `transactions`."""
    due, position = _TIMER_KEY.unpack(key)
    topic, size = _TIMER_VALUE.unpack(value)
    return due, position, topic, size


def timer_count_key(topic: int) -> bytes:
    """The key of the row that counts the pending messages of a topic, in either family."""
    return TIMERS_END + U64.pack(topic)


def read_timer_count(key: bytes, value: bytes) -> tuple[int, int]:
    """Topic and count of such a row."""
    return U64.unpack_from(key, len(TIMERS_END))[0], U64.unpack(value)[0]


def read_part_prefix(key: bytes) -> tuple[int, int, int]:
    """Level, first segment and number of the part to which a row of `message_keys` belongs."""
    level, segment, part = _PART.unpack_from(key)
    return level, segment, part


def block_key(prefix: bytes, first: int, sequence: int) -> bytes:
    """The key of a block of a part: its first hash, and how many before it begin with the same."""
    return prefix + U64.pack(first * BLOCK_SEQUENCES + sequence)


def read_block_key(key: bytes) -> tuple[int, int]:
    """First hash and sequence of a block's key."""
    (number,) = U64.unpack_from(key, _PART.size)
    return number // BLOCK_SEQUENCES, number % BLOCK_SEQUENCES


def before_block(key: bytes) -> bytes:
    """A key behind all that a block before this one may have, and before this one."""
    (number,) = U64.unpack_from(key, _PART.size)
    return key[: _PART.size] + U64.pack(number - 1) if number else key[: _PART.size]


def filter_key(prefix: bytes, piece: int) -> bytes:
    """The key of a piece of a part's filter; the first is behind the last block."""
    return prefix + U64.pack(_FILTERS + piece)


def head_key(prefix: bytes) -> bytes:
    """The key of a part's last row, which says that there is the part."""
    return prefix + U64.pack(_HEAD)


def queue_prefix(topic: int, queue: int) -> bytes:
    """The prefix of all keys of a queue in `places`."""
    return topic.to_bytes(4, "big") + queue.to_bytes(4, "big")


def topic_prefix(topic: int) -> bytes:
    """The prefix of all keys of a topic in `places`."""
    return topic.to_bytes(4, "big")


def segment_range(first: int, end: int) -> tuple[bytes, bytes]:
    """The key range of segments `first` to `end` - 1 in `runs`."""
    return first.to_bytes(4, "big"), min(end, NOWHERE).to_bytes(4, "big")


def checkpoint_value(c: Checkpoint) -> bytes:
    """The value under `CHECKPOINT`."""
    return _CHECKPOINT.pack(c.position, c.durable, c.epoch, c.stored_at, c.clean)


def read_checkpoint(value: bytes) -> Checkpoint:
    """The inverse of `checkpoint_value`."""
    position, durable, epoch, stored_at, clean = _CHECKPOINT.unpack(value)
    return Checkpoint(position, durable, epoch, stored_at, bool(clean))


def ahead_value(a: Ahead) -> bytes:
    """The value under `AHEAD`."""
    return _AHEAD.pack(*a)


def read_ahead(value: bytes) -> Ahead:
    """The inverse of `ahead_value`."""
    return Ahead(*_AHEAD.unpack(value))
