"""Indexes: which messages may have a key, and the block and row of each log position.

The idea: the messages of an archive in the order of their positions have ranks. Both indexes are
sections of chunks with `CHUNK` entries each. *Fences* (the first value of each chunk, and its size)
stay in memory and tell which chunk to read.

The key index has sorted (digest, rank) pairs; a digest is the upper 32 bits of a key's hash.
Candidates are compared with the record anyway. So only as many upper bits of each digest are kept
as tell the archive's keys apart (about one wrong candidate in 16 look-ups). The topic's 8 bits are
not kept at all, since the message's block tells its topic. So a pair takes 7 bits and a rank.

The position index turns a rank into position, block and row. In a chunk the positions are a sorted
column. Each message's block is an index into the list of the chunk's blocks: a segment has many
messages, but few queues that take them in turn. The row in the block follows by counting from the
block's first row in the chunk, since a block's positions rise; where they do not, the rows are
stored.

An archive has the same keys as the segment had: those that the topic's `key_index` chose when the
message was put (`KeyLevels`). A message that a transaction rolled back is found by no key.

Invariants: pairs rise, and positions rise strictly, over chunks too; each chunk but the last is
full; writer and verification take a message's keys from here, so they can't disagree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.core.columns.packed_texts import hash_texts
from kvstore.core.hashing import xxh32
from kvstore.core.names import DEDUP_ID, KEYS, ROLLBACK, TRANSACTION_MASK, UNIQUE_ID
from kvstore.core.records import find_property, keys_of
from kvstore.errors import FormatError
from tiering.archive.columns.packed import I64, ByteReader, Narrow, encode_column, encode_sorted
from tiering.archive.columns.properties import SplitProperties
from tiering.archive.manifest import ArchivedTopic

U64 = NDArray[np.uint64]
CHUNK: Final = 4096
"""Pairs, or messages, in a chunk."""
_DIGEST_BITS: Final = 32
_SPARE_BITS: Final = 4
"""Bits of a digest beyond those that number the keys: 2 ** -4 of look-ups see a wrong candidate."""
_KEY_HEAD: Final = Struct(">BQI")
"""The head of key fences: dropped bits of a digest, pairs, chunks."""
_POSITION_HEAD: Final = Struct(">QI")
"""The head of position fences: messages, chunks."""
_CHUNK_HEAD: Final = Struct(">BH")
"""The form of a chunk's rows (below), number of different blocks."""
_COUNTED, _STORED = 0, 1
_UNIQUE: Final = UNIQUE_ID.encode()
_KEYS: Final = KEYS.encode()
_DEDUP: Final = DEDUP_ID.encode()
_DEDUP_HEAD: Final = _DEDUP + b"\x01"
"""Before a dedup id where it is hashed, so that no key of a message is the same."""

KEY_LEVELS: Final = {"off": 0, "unique": 1, "all": 2}
"""The keys of a message that a topic's `key_index` takes: none, its unique id, its other keys as
well.
"""


class _Fences:
    """The first value of each chunk of a section, and where the chunk lies there. Raises
    FormatError for a payload that is no fences.
    """

    __slots__ = ("_ends", "_firsts", "chunks", "entries")

    def __init__(self, cursor: ByteReader, entries: int, chunks: int, section_size: int) -> None:
        if chunks != -(-entries // CHUNK) or chunks > section_size:
            raise FormatError(f"fences of {entries} entries in {chunks} chunks")
        self.entries, self.chunks = entries, chunks
        self._firsts = Narrow(cursor.sorted(chunks))
        sizes = cursor.column(chunks)
        if chunks and (int(sizes.min()) <= 0 or int(sizes.max()) > section_size):
            raise FormatError("a chunk's size is none")
        ends = np.cumsum(sizes)
        if (int(ends[-1]) if chunks else 0) != section_size:
            raise FormatError(f"chunks do not fill the {section_size} bytes of their section")
        self._ends = Narrow(ends)
        cursor.end()

    def extent(self, chunk: int) -> tuple[int, int]:
        """The begin and end of a chunk in its section."""
        return (self._ends[chunk - 1] if chunk else 0), self._ends[chunk]

    def count(self, chunk: int) -> int:
        """The entries of a chunk."""
        return min(CHUNK, self.entries - chunk * CHUNK)

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the fences take."""
        return self._firsts.memory_bytes + self._ends.memory_bytes


# --- keys --------------------------------------------------------------------------------------


def dropped_bits(keys: int) -> int:
    """The number of lower bits of a digest that an archive with that many keys does not keep."""
    return max(_DIGEST_BITS - keys.bit_length() - _SPARE_BITS, 0)


def encode_key_chunks(pairs: Iterable[U64], count: int) -> Iterator[tuple[int, bytes]]:
    """The first kept digest and the payload of each chunk of the `count` pairs (digest << 32 |
    rank), which rise; whole chunks come at a time.
    """
    drop = dropped_bits(count)
    for many in pairs:
        for at in range(0, len(many), CHUNK):
            some = many[at : at + CHUNK]
            kept = (some >> np.uint64(32 + drop)).astype(np.int64)
            ranks = (some & np.uint64(0xFFFF_FFFF)).astype(np.int64)
            yield int(kept[0]), encode_sorted(kept) + encode_column(ranks)


def encode_key_fences(pairs: int, firsts: I64, sizes: I64) -> bytes:
    """The payload of the fences: first kept digest and size of each chunk."""
    head = _KEY_HEAD.pack(dropped_bits(pairs), pairs, len(firsts))
    return head + encode_sorted(firsts) + encode_column(sizes)


class KeyFences(_Fences):
    """The digests of each chunk."""

    __slots__ = ("drop",)

    def __init__(self, payload: bytes, section_size: int) -> None:
        cursor = ByteReader(payload)
        self.drop, pairs, chunks = cursor.head(_KEY_HEAD)
        if self.drop > _DIGEST_BITS:
            raise FormatError(f"key fences drop {self.drop} bits of a digest")
        super().__init__(cursor, pairs, chunks, section_size)

    def chunks_of(self, low: int, high: int) -> range:
        """The chunks that may have digests from `low` to `high`, both included."""
        every = range(self.chunks)
        first = bisect_left(every, low >> self.drop, key=self._firsts.__getitem__)
        stop = bisect_right(every, high >> self.drop, key=self._firsts.__getitem__)
        # A digest's pairs may begin in the chunk before the first one that begins with it.
        return range(max(first - 1, 0), stop)

    def decode(self, chunk: int, payload: bytes) -> tuple[I64, I64]:
        """Kept digests and ranks of a chunk."""
        count = self.count(chunk)
        cursor = ByteReader(payload)
        kept, ranks = cursor.sorted(count), cursor.column(count)
        cursor.end()
        return kept, ranks

    def find(self, chunk: int, payload: bytes, low: int, high: int) -> I64:
        """The ranks of a chunk's pairs whose digest may be from `low` to `high`."""
        kept, ranks = self.decode(chunk, payload)
        first = np.searchsorted(kept, low >> self.drop, side="left")
        stop = np.searchsorted(kept, high >> self.drop, side="right")
        return ranks[first:stop]


def digests_of(properties: bytes, level: int) -> set[int]:
    """The digests by which a message is found, given its properties and its `key_index` level; -1:
    by none, not even by its dedup id.
    """
    if level < 0:
        return set()
    dedup_id = find_property(properties, _DEDUP)
    unique = find_property(properties, _UNIQUE) if level else None
    names = keys_of(properties) if level > 1 else []
    dedup = None if dedup_id is None else _DEDUP_HEAD + dedup_id
    return {xxh32(name) for name in (dedup, unique, *names) if name}


def digests_of_many(
    fields: SplitProperties, field_of: Callable[[int], bytes], levels: I64
) -> tuple[I64, I64]:
    """The digests by which many messages are found, from their properties and their levels, and the
    row of each. `field_of` gives the properties field of a row.
    """
    plain = fields.plain_rows()
    found = []
    if _DEDUP in fields.columns:
        data, starts, stops, rows = fields.columns[_DEDUP]
        some = plain[rows] & (levels[rows] >= 0)
        view = memoryview(data)
        texts = zip(starts[some].tolist(), stops[some].tolist(), strict=True)
        each = [xxh32(_DEDUP_HEAD + bytes(view[start:stop])) for start, stop in texts]
        found.append((np.array(each, np.uint32), rows[some]))
    for name, least in ((_UNIQUE, 1), (_KEYS, 2)):
        if name in fields.columns:
            data, starts, stops, rows = fields.columns[name]
            some = plain[rows] & (levels[rows] >= least)
            digests, at = hash_texts(data, starts[some], stops[some], by_word=least > 1)
            found.append((digests, rows[some][at]))
    odd = np.flatnonzero(~plain & (levels >= 0)).tolist()
    pairs = [(digest, row) for row in odd for digest in digests_of(field_of(row), int(levels[row]))]
    digests_of_odd, at = np.array(pairs, np.int64).reshape(-1, 2).T
    return (
        np.concatenate([digests_of_odd, *(digests for digests, _ in found)]),
        np.concatenate([at, *(rows for _, rows in found)]),
    )


def is_rolled_back(system_flags: I64) -> NDArray[np.bool_]:
    """The messages, by their system flags, that a transaction rolled back."""
    found: NDArray[np.bool_] = (system_flags & TRANSACTION_MASK) == ROLLBACK
    return found


class KeyLevels:
    """The `key_index` levels of a topic's messages, by position, as they were at the put."""

    def __init__(self, topic: ArchivedTopic) -> None:
        history = topic.key_history or ((-(1 << 63), topic.key_index),)
        self._history = [(since, KEY_LEVELS.get(setting, 2)) for since, setting in history]
        self.changes = bool(topic.key_history)
        self.only = self._history[0][1] if not topic.key_history else 0

    def of(self, positions: I64) -> I64:
        """The levels of messages at some positions."""
        if not self.changes:
            return np.full(len(positions), self.only, np.int64)
        return np.array([self.at(position) for position in positions.tolist()], np.int64)

    def at(self, position: int) -> int:
        """The level of a message at a position."""
        level = 0
        for since, setting in self._history:
            if since > position:
                break
            level = setting
        return level


# --- positions ---------------------------------------------------------------------------------


class PositionColumns(NamedTuple):
    """Some messages in the order of their positions."""

    positions: I64
    blocks: I64
    rows: I64


def encode_position_chunks(
    placed: Iterable[tuple[I64, I64]], starts: I64
) -> Iterator[tuple[int, bytes]]:
    """The first position and the payload of each chunk.

    `placed` are positions, which rise, and the messages' numbers in the order of blocks and rows;
    whole chunks come at a time. `starts` are the numbers of each block's first message.
    """
    for positions, numbers in placed:
        for at in range(0, len(positions), CHUNK):
            some = numbers[at : at + CHUNK]
            blocks = np.searchsorted(starts, some, side="right") - 1
            rows = some - starts[blocks]
            distinct, first, index = np.unique(blocks, return_index=True, return_inverse=True)
            index = index.reshape(-1).astype(np.int64)
            is_counted = bool(np.array_equal(_counted(index, rows[first]), rows))
            payload = [
                _CHUNK_HEAD.pack(_COUNTED if is_counted else _STORED, len(distinct)),
                encode_sorted(positions[at : at + CHUNK]),
                encode_sorted(distinct),
                encode_column(index),
                encode_column(rows[first] if is_counted else rows),
            ]
            yield int(positions[at]), b"".join(payload)


def _counted(index: I64, first_rows: I64) -> I64:
    """The rows, where each block's rows follow one another from its first row on."""
    order = np.argsort(index, kind="stable")
    grouped = index[order]
    begins = np.searchsorted(grouped, np.arange(len(first_rows)))
    rows = np.empty(len(index), np.int64)
    rows[order] = np.arange(len(index)) - begins[grouped] + first_rows[grouped]
    return rows


def encode_position_fences(messages: int, firsts: I64, sizes: I64) -> bytes:
    """The payload of the fences: first position and size of each chunk."""
    return _POSITION_HEAD.pack(messages, len(firsts)) + encode_sorted(firsts) + encode_column(sizes)


def decode_position_chunk(payload: bytes, count: int) -> PositionColumns:
    """A chunk of `count` messages; FormatError if the payload is no such chunk."""
    cursor = ByteReader(payload)
    kind, distinct = cursor.head(_CHUNK_HEAD)
    positions = cursor.sorted(count)
    blocks = cursor.sorted(distinct)
    index = cursor.column(count)
    if kind > _STORED or (count and not 0 <= int(index.min()) <= int(index.max()) < distinct):
        raise FormatError("a chunk of positions names a block it does not have")
    rows = cursor.column(count if kind == _STORED else distinct)
    cursor.end()
    return PositionColumns(
        positions, blocks[index], rows if kind == _STORED else _counted(index, rows)
    )


class PositionFences(_Fences):
    """The positions of each chunk."""

    __slots__ = ()

    def __init__(self, payload: bytes, section_size: int) -> None:
        cursor = ByteReader(payload)
        messages, chunks = cursor.head(_POSITION_HEAD)
        super().__init__(cursor, messages, chunks, section_size)

    def chunk_of(self, position: int) -> int | None:
        """The chunk that has a position, if any chunk has it."""
        at = bisect_right(range(self.chunks), position, key=self._firsts.__getitem__)
        return at - 1 if at else None
