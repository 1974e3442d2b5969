"""Derived families: dropping everything that the index derives from log and archives, which is the
first step of a rebuild.

The idea: with the derived families empty and the checkpoint at the log's beginning, the next
opening makes everything anew. It takes the places of archived messages from the archives first, so
that offsets go on behind them, and the log's entries after that.

Invariants: facts that neither the log nor a readable archive tells stay: the durable end, the next
offsets of empty queues, and the places of archived messages until their archive itself says what it
holds.
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
    read_place,
)


def drop_derived(index: Index) -> None:
    """Empty the derived families and go back to position 0."""
    families = index.families
    # The durable end stays: damage below it is still corruption, not the end of the log.
    back = index.checkpoint._replace(position=0, stored_at=0, clean=False)
    batch = families.batch()
    for name in DERIVED:
        batch.delete_range(name, b"", b"\xff" * 32)
    for key, value in kept_places(families):
        batch.put(PLACES, key, value)
    batch.delete(META, SEALED)
    batch.put(META, CHECKPOINT, checkpoint_value(back))
    if next(families.rows(ARCHIVES, b""), None) is not None:
        mark_unplaced(batch)
    batch.put(META, FORMAT, U32.pack(FORMAT_VERSION))
    families.write(batch, sync=True)
    index.keys.forget()


def kept_places(families: Families) -> Iterator[tuple[bytes, bytes]]:
    """The rows of places that the log can't tell."""
    for key, value in families.rows(PLACES, b""):
        place = read_place(key, value)[2]
        if place.segment == NOWHERE or place.is_archived:
            yield key, value


def mark_unplaced(batch: Batch) -> None:
    """Put into a batch that the places of archived messages have to be made anew."""
    batch.put(META, UNPLACED, b"\x01")
