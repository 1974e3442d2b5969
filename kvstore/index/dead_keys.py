"""Dead keys: removing the keys of erased segments from blocks that hold other keys as well.

The idea: a generation has the keys of several segments and stays until the last of them leaves the
log. Where a segment is erased, its keys may not wait so long. So the segment is marked, and later
its pairs are taken out of the parts, some pieces a step: blocks and filters are written anew. Each
step takes the index's write lock for itself, so a checkpoint waits for at most one step. A caller
with time calls `drop` for as long as it is `due`.

Invariants:

- A mark is written with the batch that makes it true, and goes with the last one that rewrites the
  blocks.
- A pair of a segment in the log is never dropped.
- The parts, the keys of their blocks and the order in them stay.
- The removal may stop at any step, also with the process, and begin anew later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.core.packed_pairs import pack_block, unpack_block
from kvstore.index.families import Batch, Families
from kvstore.index.handover import read_gone
from kvstore.index.key_lookup import MessageKeys, Parts
from kvstore.index.key_parts import (
    Part,
    blocks_between,
    digests_of,
    filter_piece,
    piece_start,
)
from kvstore.index.keys import MESSAGE_KEYS, META, U32, filter_key

_MARK: Final = b"dead_keys/"  # and the segment, u32
_END: Final = b"dead_keys0"
_PIECES_AT_ONCE: Final = 8
"""Pieces of a part that a step looks at: 131,072 pairs."""


def mark(batch: Batch, segment: int) -> None:
    """Puts the mark into a batch that a segment has dead keys."""
    batch.put(META, _MARK + U32.pack(segment), b"")


class DeadKeys:
    """The dead keys of one key index."""

    def __init__(
        self,
        families: Families,
        keys: MessageKeys,
        segment_size: int,
        writing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._families = families
        self._keys = keys
        self._segment_size = segment_size
        self._writing = writing
        self._marked: list[int] | None = None
        """The marked segments, in order; None until they are asked for."""
        self._dropping: Iterator[None] | None = None

    def due(self) -> bool:
        """Whether there are segments with dead keys, and no merge rewrites them now."""
        if self._marked is None:
            rows = self._families.rows(META, _MARK, _END)
            self._marked = [U32.unpack(key[-4:])[0] for key, _ in rows]
        return bool(self._marked) and not self._keys.is_merging

    def drop(self) -> None:
        """Does one step of removing the dead keys of the oldest such segment."""
        with self._writing():
            if not self.due():
                return
            assert self._marked, "it is due"
            if self._dropping is None:
                self._dropping = self._steps(self._marked[0])
            if next(self._dropping, self) is self:
                self.read_again()

    def mark_all_left(self) -> None:
        """Marks every segment that left the log and may have keys in a part."""
        with self._writing():
            gone, size = read_gone(self._families), self._segment_size
            parts = self._keys.parts()
            below = gone.below // size
            left = set(gone.segments)
            for part in (*parts, *self._keys.merging()):
                left.update(range(part.segment, min(part.end, below)))
            batch = self._families.batch()
            self.mark_left(batch, parts, sorted(left))
            self._families.write(batch, sync=True)
            self.read_again()

    # --- under the lock ---

    def read_again(self) -> None:
        """Begins anew with the marked segments: the removal under way knows no new marks."""
        self._dropping = self._marked = None

    def mark_left(self, batch: Batch, parts: Parts, segments: Iterable[int]) -> None:
        """Marks segments that left the log, if `parts`, or the part that is being merged, may have
        keys of them.
        """
        for segment in segments:
            if any(part.covers(segment) for part in (*parts, *self._keys.merging())):
                mark(batch, segment)

    def _steps(self, segment: int) -> Iterator[None]:
        """Removes a segment's dead keys, and its mark. Ends early if a part was merged meanwhile;
        the mark stays then.
        """
        size = self._segment_size
        # Older versions marked segments of deleted topics too, which are still in the log.
        has_left = read_gone(self._families).has(segment, size)
        parts = [part for part in self._keys.parts() if has_left and part.covers(segment)]
        for part in parts:
            begin = (segment - part.segment) * size
            for first in range(0, part.pieces, _PIECES_AT_ONCE):
                if self._keys.is_merging or part not in self._keys.parts():
                    return
                batch = self._families.batch()
                for piece in range(first, min(first + _PIECES_AT_ONCE, part.pieces)):
                    self._rewrite(batch, part, piece, begin, begin + size)
                self._families.write(batch)
                self._keys.forget_rows()
                yield
        batch = self._families.batch()
        batch.delete(META, _MARK + U32.pack(segment))
        self._families.write(batch)

    def _rewrite(self, batch: Batch, part: Part, piece: int, begin: int, end: int) -> None:
        """Puts a piece of a part into a batch without its pairs of positions from `begin` to before
        `end`, if it has any.
        """
        low, high = piece_start(part, piece), piece_start(part, piece + 1)
        kept_hashes = [np.zeros(0, np.int64)]
        is_changed = False
        it = self._families.iter(MESSAGE_KEYS)
        for key, first, value in blocks_between(self._families, it, part, low, high):
            if first < low:
                continue  # of the piece before
            hashes, positions = unpack_block(first, value)
            kept: NDArray[np.bool_] = (positions < begin) | (positions >= end)
            kept_hashes.append(hashes[kept])
            if kept.all():
                continue
            is_changed = True
            if kept.any():
                # Its key stays, and with it its place among the others.
                batch.put(MESSAGE_KEYS, key, pack_block(first, hashes[kept], positions[kept]))
            else:
                batch.delete(MESSAGE_KEYS, key)
        if is_changed:
            held = filter_piece(part, piece, digests_of(np.concatenate(kept_hashes)))
            batch.put(MESSAGE_KEYS, filter_key(part.prefix, piece), held)
