"""Derived families: dropping everything that the index derives from log and archives, which is the
first step of a rebuild.

The idea: with the derived families empty and the checkpoint at the log's beginning, the next
opening makes everything anew. It takes the places of archived messages from the archives first, so
that offsets go on behind them, and the log's entries after that.

Invariants: facts that neither the log nor a readable archive tells stay: the durable end, the next
offsets of empty queues, and the locations of archived messages until their archive itself says what
it holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.index.families import Batch, Families
from kvstore.index.index import Index
from kvstore.index.keys import (
    ARCHIVES,
    CHECKPOINT,
    DERIVED,
    FORMAT,
    FORMAT_VERSION,
    META,
    NOWHERE,
    PLACES,
    SEALED,
    U32,
    UNPLACED,
    checkpoint_value,
    read_location,
)


def drop_derived(index: Index) -> None:
    """Empty the derived families and go back to position 0."""
    families = index.families
    # The durable end stays: damage below it is still corruption, not the end of the log.
    back = index.checkpoint._replace(position=0, stored_at=0, clean=False)
    batch = families.batch()
    for name in DERIVED:
        batch.delete_range(name, b"", b"\xff" * 32)
    for key, value in kept_locations(families):
        batch.put(PLACES, key, value)
    batch.delete(META, SEALED)
    batch.put(META, CHECKPOINT, checkpoint_value(back))
    if next(families.rows(ARCHIVES, b""), None) is not None:
        mark_unlocated(batch)
    batch.put(META, FORMAT, U32.pack(FORMAT_VERSION))
    families.write(batch, sync=True)
    index.keys.forget()


def kept_locations(families: Families) -> Iterator[tuple[bytes, bytes]]:
    """The rows of locations that the log can't tell."""
    for key, value in families.rows(PLACES, b""):
        location = read_location(key, value)[2]
        if location.segment == NOWHERE or location.is_archived:
            yield key, value


def mark_unlocated(batch: Batch) -> None:
    """Put into a batch that the locations of archived messages have to be made anew."""
    batch.put(META, UNPLACED, b"\x01")
