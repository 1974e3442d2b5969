"""Key upkeep: merging parts of the key index, and removing dead keys, a step at a time.

The idea: both may rewrite a lot, so each step takes the index's write lock for itself, and a
checkpoint waits for at most one step. A caller with time calls `merge_next` and `drop_dead_keys`
for as long as something is due; a checkpoint calls `merge_next` where parts are too many.

Invariant: both may stop at any step, also with the process, and go on or begin anew later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from kvstore.index.families import Batch, Families
from kvstore.index.handover import read_gone
from kvstore.index.keys import MESSAGE_KEYS
from kvstore.index.message_keys.dead_keys import drop_dead, mark, marked
from kvstore.index.message_keys.key_lookup import MessageKeys, Parts


class KeyUpkeep:
    """The upkeep of one key index."""

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
        self._dropping: Iterator[None] | None = None

    def merge_due(self, sealed: int) -> bool:
        """Whether there are parts to merge; segments below `sealed` get no more keys."""
        return self._keys.merge_due(sealed)

    def merge_next(self, sealed: int) -> None:
        """Do one step of a merge."""
        with self._writing():
            self._keys.merge_next(sealed)

    def dead_keys_due(self) -> bool:
        """Whether there are segments with dead keys, and no merge rewrites them now."""
        if self._marked is None:
            self._marked = marked(self._families)
        return bool(self._marked) and not self._keys.is_merging

    def drop_dead_keys(self) -> None:
        """Do one step of removing the dead keys of the oldest such segment."""
        with self._writing():
            if not self.dead_keys_due():
                return
            if self._dropping is None:
                segment = marked(self._families)[0]
                self._dropping = drop_dead(self._families, self._keys, segment, self._segment_size)
            if next(self._dropping, self) is self:
                self._dropping = self._marked = None

    # --- under the lock ---

    def has_marked(self) -> None:
        """Begin anew with the marked segments: the removal under way does not know of new marks."""
        self._dropping = self._marked = None

    def mark_left(self, batch: Batch, parts: Parts, segments: Iterable[int]) -> None:
        """Mark segments that left the log, if `parts`, or the part that is being merged, may have
        keys of them.
        """
        for segment in segments:
            if self._keys.may_have(parts, segment):
                mark(batch, segment)

    def mark_all_left(self) -> None:
        """Mark every segment that left the log and may have keys in a part."""
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
            self.has_marked()

    def forget_left(self, sealed: int) -> None:
        """Remove those keys now, and from RocksDB's files."""
        self.mark_all_left()
        while True:
            # Other threads may begin a merge at any time, and nothing is dropped beside a merge.
            if self._keys.is_merging:
                self.merge_next(sealed)
            elif self.dead_keys_due():
                self.drop_dead_keys()
            else:
                break
        self._families.compact(MESSAGE_KEYS)
