"""Key merge: several parts of the key index become one, a bounded step at a time.

The idea: the new part is written piece by piece beside its sources, and its head says how far it
is, in the same batch as the pieces. Readers don't see the new part before its head is whole; the
batch that completes the head removes the sources. A merge that was cut short goes on from its head.
Positions of segments that left the log stay behind.

Invariants: a step holds at most `_AT_ONCE_MAX` pairs and the memory of one piece, whatever the keys
are; a crash leaves either the sources whole, or the new part whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rocksdict import RdictIter

from kvstore.index.families import Batch, Families
from kvstore.index.handover import Gone
from kvstore.index.key_parts import (
    BlockRows,
    Part,
    digests_of,
    distinct,
    filter_piece,
    head_value,
    pairs_between,
    piece_start,
    positions_of,
)
from kvstore.index.keys import MESSAGE_KEYS, behind, block_key, filter_key, head_key

I64 = NDArray[np.int64]
_PIECES_AT_ONCE: Final = 8
"""Pieces of a step, about 131,072 pairs: enough that the sources' seeks cost little for each."""
_AT_ONCE_MAX: Final = 1 << 18
"""Pairs sorted at a time."""


class Merge:
    """A merge under way. `sources` are in the order of their positions; `done` pieces are
    written.
    """

    def __init__(
        self,
        families: Families,
        segment_size: int,
        target: Part,
        sources: Sequence[Part],
        done: int = 0,
        written: int = 0,
    ) -> None:
        self._families = families
        self._segment_size = segment_size
        self.target = target
        self.sources = tuple(sources)
        self._done = done
        self._written = written
        """Pairs of the pieces that are done."""
        self._is_begun = False

    def step(self, gone: Gone) -> bool:
        """Writes some pieces; returns whether all are written, so that `finish` may be called."""
        done, written = self._done, self._written
        try:
            self._write_some(gone)
        except BaseException:
            # Some or none of the rows may be there: the next step begins as after a crash.
            self._done, self._written, self._is_begun = done, written, False
            raise
        return self._done == self.target.pieces

    def _write_some(self, gone: Gone) -> None:
        batch = self._begun()
        it = self._families.iter(MESSAGE_KEYS)
        target, begin = self.target, self._done
        end = min(begin + _PIECES_AT_ONCE, target.pieces)
        low, high = piece_start(target, begin), piece_start(target, end)
        found = self._between(it, low, high)
        if found is None:
            # Very many messages have one of these keys, so this piece is merged alone, some
            # pairs at a time.
            batch = self._put_piece(
                batch, begin, self._pairs(it, low, piece_start(target, begin + 1)), gone
            )
        else:
            hashes, positions = found
            borders = [piece_start(target, piece) for piece in range(begin, end + 1)]
            cuts = np.searchsorted(hashes, borders).tolist()
            for piece, (a, b) in enumerate(pairwise(cuts), begin):
                batch = self._put_piece(batch, piece, [(hashes[a:b], positions[a:b])], gone)
        del it  # with it RocksDB could not be opened again, if the write finds a full disk
        self._say_how_far(batch)
        self._families.write(batch)

    def _say_how_far(self, batch: Batch) -> None:
        said = self.target._replace(pairs=self._written)
        batch.put(MESSAGE_KEYS, head_key(said.prefix), head_value(said, self._done, self.sources))

    def finish(self, batch: Batch) -> Part | None:
        """Puts into a batch that the new part replaces its sources; None if it is empty, and
        nothing replaces them.
        """
        for source in self.sources:
            batch.delete_range(MESSAGE_KEYS, source.prefix, behind(source.prefix))
        part = self.target._replace(pairs=self._written)
        if not part.pairs:
            self.abandon(batch)
            return None
        batch.put(MESSAGE_KEYS, head_key(part.prefix), head_value(part, part.pieces))
        return part

    def abandon(self, batch: Batch) -> None:
        """Puts the removal of the written pieces into a batch."""
        prefix = self.target.prefix
        batch.delete_range(MESSAGE_KEYS, prefix, behind(prefix))

    def _begun(self) -> Batch:
        """A batch; the first one removes the rest of a piece that an interrupted merge left."""
        batch, target = self._families.batch(), self.target
        if not self._is_begun:
            self._is_begun = True
            low = piece_start(target, self._done)
            first = filter_key(target.prefix, 0)
            if self._done < target.pieces:
                first = block_key(target.prefix, low, 0)
            batch.delete_range(MESSAGE_KEYS, first, filter_key(target.prefix, 0))
            rest = filter_key(target.prefix, self._done)
            batch.delete_range(MESSAGE_KEYS, rest, head_key(target.prefix))
        return batch

    def _put_piece(
        self, batch: Batch, piece: int, pairs: Iterable[tuple[I64, I64]], gone: Gone
    ) -> Batch:
        """Puts the next piece into a batch, or into several if one hash has very many pairs;
        returns the last batch.
        """
        target, base = self.target, self.target.segment * self._segment_size
        rows, digests = BlockRows(target), [np.zeros(0, np.uint32)]
        written = unwritten = 0
        for every, positions in pairs:
            alive = self._alive(positions, gone)
            hashes = every[alive]
            batch.put_many(MESSAGE_KEYS, *rows.rows(hashes, positions[alive] - base))
            digests.append(digests_of(hashes))
            written += len(hashes)
            unwritten += len(hashes)
            if unwritten > _AT_ONCE_MAX:
                # No reader sees the piece yet, and a resumed merge writes it anew.
                self._say_how_far(batch)
                self._families.write(batch)
                batch, unwritten = self._families.batch(), 0
        held = distinct(np.concatenate(digests))
        batch.put(MESSAGE_KEYS, filter_key(target.prefix, piece), filter_piece(target, piece, held))
        self._done += 1
        self._written += written
        return batch

    def _pairs(self, it: RdictIter, low: int, high: int) -> Iterator[tuple[I64, I64]]:
        """The sources' pairs with a hash from `low` to before `high`, in order, in portions that
        are each sorted at once.
        """
        found = self._between(it, low, high)
        if found is not None:
            yield found
        elif high - low > 1:
            middle = (low + high) // 2
            yield from self._pairs(it, low, middle)
            yield from self._pairs(it, middle, high)
        else:
            for source in self.sources:
                for positions in positions_of(self._families, it, source, self._segment_size, low):
                    yield np.full(len(positions), low, np.int64), positions

    def _between(self, it: RdictIter, low: int, high: int) -> tuple[I64, I64] | None:
        """All of these pairs, if they are few enough to be sorted at once."""
        return pairs_between(
            self._families, it, self.sources, self._segment_size, low, high, _AT_ONCE_MAX
        )

    def _alive(self, positions: I64, gone: Gone) -> NDArray[np.bool_]:
        """A mask of the positions whose segments have not left the log."""
        alive: NDArray[np.bool_] = positions >= gone.below
        if gone.segments:
            left = np.array(sorted(gone.segments), np.int64)
            alive &= ~np.isin(positions // self._segment_size, left)
        return alive
