"""Key parts: the rows of one part of the key index, and reading the pairs of several.

The idea: a part is sorted pairs of one segment, or of a generation of them: blocks, a filter, and a
head, without which the part does not exist. The filter is cut into pieces, each for a range of
hashes, so that a part of any size is written, read and filtered a piece at a time. A hash that very
many messages have fills blocks of its own, in the order of positions, so that the newest are found
without the others. Layout in docs/keys.md; `kvstore.core.packed_pairs` makes the bytes of blocks
and searches them.

Nearly every hash lies between the first hash and the last of one block, and then no other block of
its part has it. So a block that was read answers for most of its hashes without RocksDB. Blocks are
kept by the piece of the part that they are in; where they take too much memory, those of the piece
that was read first go.

Invariants: inside a part pairs rise by hash and position; a filter denies nothing that the blocks
of its piece have; a block has pairs of one piece only. An answer of `KnownBlocks` is that of the
rows as they were when they were read; `forget` drops what was read before it, also by a look that
goes on.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rocksdict import RdictIter

from kvstore.core.packed_pairs import (
    count_in,
    pack_blocks,
    sort_pairs,
    unpack_blocks,
)
from kvstore.errors import FormatError
from kvstore.index.families import Families
from kvstore.index.keys import (
    HASH_END,
    PART_PREFIX_SIZE,
    before_block,
    behind,
    block_key,
    filter_key,
    head_key,
    part_prefix,
    read_block_key,
    read_part_prefix,
)
from kvstore.record.key_filter import BLOCK_BITS, fill

I64 = NDArray[np.int64]

BLOCK: Final = 256
"""Pairs in a block."""
GENERATION: Final = 8
"""Generations of a level that become one of the next."""
PIECE_BLOCKS: Final = 256
"""Blocks of a filter in one row: 16 KiB, for 16,384 keys."""
BITS_A_KEY: Final = 8
FILTER_HASHES: Final = 5
"""With 8 bits a key, one in 40 keys that are nowhere costs a block."""
_TOPIC_BITS: Final = 8
"""Bits of a hash that are the topic's, and not in a filter."""
_READ_AT_ONCE: Final = 1024
"""Blocks decoded at a time if one hash has many."""

BLOCKS_CACHED_BYTES_MAX: Final = 32 << 20
"""Blocks in memory."""
_OVERHEAD: Final = 150
"""Bytes that a block takes in memory beside its own."""

Block = tuple[int, bytes]
"""The first hash and the value."""

HEAD: Final = Struct("<QIQII")
"""Pairs, blocks of the filter, lowest position, pieces that are written, zero; then, while the part
is being made, the row prefixes of its sources.
"""


_serials = count()


class Part(NamedTuple):
    """A part: `segment` is the first of its level's segments, `first` the log position of the first
    record that it has a pair of. No two parts of one process have the same `serial`.
    """

    level: int
    segment: int
    number: int
    pairs: int
    filter_blocks: int
    first: int
    prefix: bytes
    serial: int
    end: int
    """The segment behind the last one that it may have pairs of."""

    @property
    def pieces(self) -> int:
        """How many pieces its filter has."""
        return -(-self.filter_blocks // PIECE_BLOCKS)

    def covers(self, segment: int) -> bool:
        """Whether it may have pairs of a segment."""
        return self.segment <= segment < self.end


class Unfinished(NamedTuple):
    """A part that is being made, and how many of its pieces are written."""

    part: Part
    done: int
    sources: tuple[bytes, ...]
    """The prefixes of the rows of its sources, one for each part."""


def span(level: int) -> int:
    """How many segments a generation of a level has."""
    return int(GENERATION**level)


def new_part(level: int, segment: int, number: int, pairs: int, first: int) -> Part:
    """A part for so many pairs."""
    blocks = max(-(-pairs * BITS_A_KEY // BLOCK_BITS), 1)
    prefix = part_prefix(level, segment, number)
    end = segment + span(level)
    return Part(level, segment, number, pairs, blocks, first, prefix, next(_serials), end)


# --- pieces ---


def piece_of(filter_blocks: int, digest: int) -> int:
    """The piece of a part's filter that a digest belongs to: the upper 32 bits of a key's hash."""
    return (digest * filter_blocks >> 32) // PIECE_BLOCKS


def piece_start(part: Part, piece: int) -> int:
    """The first hash of a piece; behind the last piece the end of all hashes."""
    if piece >= part.pieces:
        return HASH_END
    return -(-(piece * PIECE_BLOCKS << 32) // part.filter_blocks) << _TOPIC_BITS


def filter_piece(part: Part, piece: int, digests: NDArray[np.uint32]) -> bytes:
    """A piece of a part's filter, for sorted, distinct digests."""
    first = piece * PIECE_BLOCKS
    count = min(PIECE_BLOCKS, part.filter_blocks - first)
    return fill(digests, part.filter_blocks, first, count, FILTER_HASHES)


def digests_of(hashes: I64) -> NDArray[np.uint32]:
    """The distinct digests of sorted hashes."""
    return distinct((hashes >> _TOPIC_BITS).astype(np.uint32))


def distinct(digests: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Sorted digests, each once."""
    if not len(digests):
        return digests
    return digests[np.concatenate(([True], digests[1:] != digests[:-1]))]


# --- writing ---


class BlockRows:
    """The blocks of one piece and their keys, however many chunks its pairs come in."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._first = self._sequence = -1

    def rows(self, hashes: I64, positions: I64) -> tuple[list[bytes], list[bytes]]:
        """Keys and values for the next of the piece's pairs; positions are behind the part's
        beginning.
        """
        keys, values = [], []
        for first, value in pack_blocks(hashes, positions, BLOCK):
            self._sequence = self._sequence + 1 if first == self._first else 0
            self._first = first
            keys.append(block_key(self._part.prefix, first, self._sequence))
            values.append(value)
        return keys, values


def part_rows(part: Part, hashes: I64, positions: I64) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """All rows of a part of sorted pairs but its head, as keys and values, a piece at a time."""
    for piece in range(part.pieces):
        low, high = piece_start(part, piece), piece_start(part, piece + 1)
        a, b = np.searchsorted(hashes, [low, high])
        keys, values = BlockRows(part).rows(hashes[a:b], positions[a:b])
        yield (
            [*keys, filter_key(part.prefix, piece)],
            [*values, filter_piece(part, piece, digests_of(hashes[a:b]))],
        )


def head_value(part: Part, done: int, sources: Iterable[Part] = ()) -> bytes:
    """The value of a part's head."""
    head = HEAD.pack(part.pairs, part.filter_blocks, part.first, done, 0)
    return head + b"".join(source.prefix for source in sources)


# --- reading ---


def read_parts(
    families: Families, it: RdictIter
) -> tuple[list[Part], list[Unfinished], list[bytes]]:
    """The parts that an iterator of `MESSAGE_KEYS` sees, the parts that are being made, and the
    prefixes of rows without a head.
    """
    headless: list[bytes] = []
    found: list[Part] = []
    unfinished: list[Unfinished] = []
    it.seek(b"")
    while families.valid(it):
        prefix = it.key()[:PART_PREFIX_SIZE]
        head = head_key(prefix)
        it.seek(head)
        if families.valid(it) and it.key() == head:
            one = _read_head(prefix, it.value())
            if one.done < one.part.pieces or one.sources:
                unfinished.append(one)
            else:
                found.append(one.part)
        else:
            headless.append(prefix)
        it.seek(behind(prefix))
    return found, unfinished, headless


def _read_head(prefix: bytes, value: bytes) -> Unfinished:
    if len(value) < HEAD.size or (len(value) - HEAD.size) % PART_PREFIX_SIZE:
        raise FormatError(f"the head of a part of the key index has {len(value)} bytes")
    pairs, blocks, first, done, _ = HEAD.unpack_from(value)
    if not blocks:
        raise FormatError("the head of a part of the key index says that it has no filter")
    level, segment, number = read_part_prefix(prefix)
    end = segment + span(level)
    part = Part(level, segment, number, pairs, blocks, first, prefix, next(_serials), end)
    ends = range(HEAD.size, len(value), PART_PREFIX_SIZE)
    return Unfinished(part, done, tuple(value[at : at + PART_PREFIX_SIZE] for at in ends))


def blocks_between(
    families: Families, it: RdictIter, part: Part, low: int, high: int
) -> Iterator[tuple[bytes, int, bytes]]:
    """The blocks of a part that may have hashes from `low` to before `high`: key, first hash,
    value. No other caller may move `it` meanwhile.
    """
    prefix = part.prefix
    start = block_key(prefix, low, 0)
    # The pairs of a hash may begin in the block before the first one that begins with it.
    it.seek_for_prev(before_block(start))
    if not families.valid(it) or not it.key().startswith(prefix):
        it.seek(start)
    end = filter_key(prefix, 0) if high >= HASH_END else block_key(prefix, high, 0)
    while families.valid(it):
        key = it.key()
        if not key.startswith(prefix) or key >= end:
            return
        yield key, read_block_key(key)[0], it.value()
        it.next()


def pairs_between(
    families: Families,
    it: RdictIter,
    parts: Sequence[Part],
    segment_size: int,
    low: int,
    high: int,
    limit: int,
) -> tuple[I64, I64] | None:
    """The pairs of parts with a hash from `low` to before `high`, sorted: hashes and log positions;
    None if there are more than about `limit`.

    Parts are in the order of their positions, so the pairs of a hash are as well.
    """
    total = 0
    all_hashes, all_positions = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for part in parts:
        firsts: list[int] = []
        values: list[bytes] = []
        for _, first, value in blocks_between(families, it, part, low, high):
            # The block before the range is read as well, and does not count.
            total += count_in(value) if first >= low else 0
            if total > limit:
                return None
            firsts.append(first)
            values.append(value)
        hashes, positions = unpack_blocks(firsts, values)
        mine = (hashes >= low) & (hashes < high)
        all_hashes.append(hashes[mine])
        all_positions.append(positions[mine] + part.segment * segment_size)
    return sort_pairs(np.concatenate(all_hashes), np.concatenate(all_positions))


def positions_of(
    families: Families, it: RdictIter, part: Part, segment_size: int, wanted: int
) -> Iterator[I64]:
    """The log positions of one hash, rising, some at a time."""
    firsts: list[int] = []
    values: list[bytes] = []

    def taken() -> I64:
        hashes, positions = unpack_blocks(firsts, values)
        firsts.clear()
        values.clear()
        mine: I64 = positions[hashes == wanted]
        return mine + part.segment * segment_size

    for _, first, value in blocks_between(families, it, part, wanted, wanted + 1):
        firsts.append(first)
        values.append(value)
        if len(values) == _READ_AT_ONCE:
            yield taken()
    yield taken()


class KnownBlocks:
    """The blocks of a store's key index that memory has; see the module."""

    def __init__(self) -> None:
        self.pieces: dict[tuple[int, int], list[Block]] = {}
        """By the serial of the part, and the piece; sorted."""
        self._bytes = 0
        self._lock = threading.Lock()
        self.version = 0
        """Rises when blocks are forgotten."""

    def __len__(self) -> int:
        return sum(map(len, self.pieces.values()))

    def add(self, version: int, serial: int, piece: int, block: Block) -> None:
        """Keeps a block, which was read when the version was this one."""
        with self._lock:
            blocks = self.pieces.get((serial, piece), [])
            if version != self.version or block in blocks:
                return
            # A copy: readers look at the old list.
            blocks = blocks.copy()
            insort(blocks, block)
            self.pieces[serial, piece] = blocks
            self._bytes += len(block[1]) + _OVERHEAD
            while self._bytes > BLOCKS_CACHED_BYTES_MAX:
                oldest = self.pieces.pop(next(iter(self.pieces)))
                self._bytes -= sum(len(value) + _OVERHEAD for _, value in oldest)

    def forget(self) -> None:
        """Drops all, since blocks changed."""
        with self._lock:
            self.version += 1
            self.pieces.clear()
            self._bytes = 0
