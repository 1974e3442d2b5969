"""Pieces: the rows of a checkpoint, as batches of bounded size that are written in turn.

The idea: RocksDB takes a batch without letting another thread of Python run, so a large one would
make puts stand still. Rows are in the order of queues and offsets, and each batch but the last has
a note, `Ahead`, of how far they came; the key index comes behind them, and nobody sees its rows
before their head. The last piece goes with the checkpoint, which removes the note. So a checkpoint
that fits into one piece is a single batch.

Invariants:

- Rows that are ahead of their checkpoint are true: the disk has their records, and the first piece
  raises the durable end over them, so that no opening cuts these and gives their places to others.
- The note names exactly the entries that are there ahead: a replay leaves them out.
- There is one note at a time. A checkpoint to another position than that of the note is one batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from kvstore.index.checkpoint import CutRows, CutValues, KeysValues, TagCodes
from kvstore.index.families import Batch, Families
from kvstore.index.keys import (
    AHEAD,
    CHECKPOINT,
    FORMAT,
    FORMAT_AHEAD,
    FORMAT_VERSION,
    META,
    OFFSET_MAX,
    PLACES,
    RUNS,
    U32,
    Ahead,
    Checkpoint,
    ahead_value,
    checkpoint_value,
    location_key,
    read_run_key,
)

_PIECE: Final = 1 << 18
_ROW: Final = 512
"""The size of a piece, in bytes of values and so many for each row: RocksDB takes it in some ms, in
which no other thread runs.
"""


Rows = tuple[str, Sequence[bytes], Sequence[bytes]]
"""Family, keys and values of rows."""


class Piece(NamedTuple):
    """Rows of a checkpoint that go in one batch, by family. With the pieces before it they are the
    rows of all entries of lower queues, and of lower offsets of `queue`.
    """

    rows: list[Rows]
    queue: int
    offset: int


def pieces_of(runs: CutRows, locations: KeysValues, others: Iterable[Rows]) -> list[Piece]:
    """The pieces of a checkpoint, at least one. A location goes with the run that begins it.
    `others` are rows that may be written twice: of message keys and pending messages.
    """
    found: list[Piece] = []
    run_keys, run_values = runs
    places, placed = locations[0], 0
    for a, b in pairwise(_cuts(run_values)):
        end, queue, offset = len(places), OFFSET_MAX, 0
        if b < len(run_keys):
            _, topic, number, offset = read_run_key(run_keys[b])
            queue = topic << 32 | number
            end = bisect_left(places, location_key(topic, number, offset))
        rows: list[Rows] = [
            (RUNS, run_keys[a:b], run_values[a:b]),
            (PLACES, places[placed:end], locations[1][placed:end]),
        ]
        placed = end
        found.append(Piece(rows, queue, offset))
    weight = _weight(found[-1].rows[0][2]) if found else 0
    for rows_of_others in others:
        values = rows_of_others[2]
        weight += _weight(values)
        if weight > _PIECE or not found:
            found.append(Piece([], OFFSET_MAX, 0))
            weight = _weight(values)
        found[-1].rows.append(rows_of_others)
    return found or [Piece([], OFFSET_MAX, 0)]


def _rest_of(pieces: list[Piece], ahead: Ahead) -> list[Piece]:
    """The pieces of a checkpoint that was cut short, without the entries that are there. Its keys
    and pending messages are written anew.
    """
    rest = []
    for piece in pieces:
        rows = piece.rows
        if (piece.queue, piece.offset) <= (ahead.queue, ahead.offset):
            rows = [row for row in rows if row[0] not in (RUNS, PLACES)]
        if rows:
            rest.append(piece._replace(rows=rows))
    return rest


def _cuts(values: CutValues) -> list[int]:
    """Where pieces of rows with these values begin, and where the last one ends."""
    numbers = np.cumsum(values.sizes() + _ROW) // _PIECE
    return [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(values)] if values else []


def _weight(values: Sequence[bytes]) -> int:
    return sum(map(len, values)) + _ROW * len(values)


def put_rows(batch: Batch, piece: Piece) -> None:
    """Puts the rows of a piece into a batch."""
    for family, keys, values in piece.rows:
        batch.put_many(family, keys, values)


def write_ahead(
    families: Families,
    tags: TagCodes,
    pieces: list[Piece],
    before: Checkpoint,
    checkpoint: Checkpoint,
    ahead: Ahead | None,
    note: Callable[[Ahead], None],
) -> list[Piece]:
    """Writes all pieces but the last ahead of their checkpoint, and returns those that are to be
    written with it. `before` is the checkpoint until then, `ahead` its note. Each note is told
    before it is written.
    """
    if ahead is not None:
        if ahead.position != checkpoint.position:
            return pieces
        pieces = _rest_of(pieces, ahead)
    durable = max(before.durable, checkpoint.durable)
    for piece in pieces[:-1]:
        ahead = Ahead(checkpoint.position, piece.queue, piece.offset)
        note(ahead)
        batch = families.batch()
        put_rows(batch, piece)
        batch.put(META, AHEAD, ahead_value(ahead))
        batch.put(META, FORMAT, U32.pack(FORMAT_AHEAD))
        batch.put(META, CHECKPOINT, checkpoint_value(before._replace(durable=durable, clean=False)))
        tags.put_new(batch)
        families.write(batch)
        tags.written()
    return pieces[-1:]


def forget_ahead(batch: Batch) -> None:
    """Puts into a batch that no rows are ahead of the checkpoint any more."""
    batch.delete(META, AHEAD)
    batch.put(META, FORMAT, U32.pack(FORMAT_VERSION))
