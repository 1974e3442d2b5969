"""Fuzzers of the core's functions for dedup ids."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from kvstore.core.dedup.known_ids import KnownIds, drop_rows
from kvstore.core.put_values import Message, PutStatus
from kvstore.core.queue_offsets import QueueOffsets
from kvstore.core.tail import Tail
from tests.core.fuzzing import Arguments, Fuzzer
from tests.core.test_encoding import WINDOW, encoder
from tests.reference import records

_ENCODER: Final = encoder()
_NOW: Final = 10 * WINDOW
_IDS: Final = "abcdefgh"


def _ids(rng: Random) -> list[str | None]:
    return [rng.choice((None, *_IDS)) for _ in range(rng.choice((1, 2, 5, 100)))]


def _to_know(rng: Random) -> Arguments:
    return rng.choice((0, _NOW - WINDOW, _NOW)), rng.getrandbits(40), rng.choice((1, 3, 1000))


def _known(since: int, first_position: int, most: int) -> Any:
    """The rows that are found after a put of some ids, and of the same ones again."""
    known, tail, offsets = KnownIds(since, first_position, most), Tail(0), QueueOffsets(lambda _: 0)
    given: list[str | None] = ["a", None, "b", "a"]
    found = []
    for position in (0, 1000):
        batch = _ENCODER.prepare([Message("t", b"", dedup_id=one) for one in given], _NOW)
        known.fetch(batch)
        found.append(known.find(batch, _NOW, position))
        tail.add(batch, offsets, position, 1 << 60, _NOW)
        known.add(batch)
    return found, len(known), known.since, known.first_position


def _plain_known(since: int, first_position: int, most: int) -> Any:
    numbers = (since, first_position, most)
    if any(type(n) is not int or not -(1 << 63) <= n < 1 << 63 for n in numbers):
        return NotImplemented
    if most <= 3 or since > _NOW:
        return NotImplemented
    size = len(_record("a"))
    none = len(_record(None))
    is_behind = since > _NOW - WINDOW
    new = [(0, -1, -1, "t", "a"), (2, -1, -1, "t", "b")] if is_behind else []
    first = sorted([*new, (3, 0, -1, "t", "a")])
    again = [
        (0, -1, 2 * size + none, "t", "a"),
        (2, -1, size + none, "t", "b"),
        (3, 0, -1, "t", "a"),
    ]
    return [first, again], 2, since, first_position


def _record(dedup_id: str | None) -> bytes:
    return _ENCODER.prepare([Message("t", b"", dedup_id=dedup_id)], _NOW).records


def _to_drop(rng: Random) -> Arguments:
    ids = _ids(rng)
    return ids, rng.sample(range(len(ids) + 2), rng.randint(0, len(ids)))


def _dropped(ids: list[str | None], rows: list[int]) -> Any:
    """The bodies, and how many ids and keys there are, of the batch without the rows."""
    messages = [Message("t", b"%d" % n, dedup_id=one) for n, one in enumerate(ids)]
    batch, tail = _ENCODER.prepare(messages, _NOW), Tail(0)
    drop_rows(batch, rows)
    [(_, data)] = tail.add(batch, QueueOffsets(lambda _: 0), 0, 1 << 60, _NOW)
    positions = [result.position for result in batch.results(PutStatus.STAGED)]
    bodies = [records.read(data[position:], position).body for position in positions]
    return bodies, batch.deduped, tail.keys_held


def _left(ids: list[str | None], rows: list[int]) -> Any:
    if not isinstance(ids, list) or any(one is not None and one not in [*_IDS] for one in ids):
        return NotImplemented
    if not isinstance(rows, list) or any(type(row) is not int for row in rows):
        return NotImplemented
    gone = set(rows) if any(one is not None for one in ids) else set()
    left = [n for n in range(len(ids)) if n not in gone]
    deduped = sum(ids[n] is not None for n in left)
    return [b"%d" % n for n in left], deduped, len(left) + deduped


DEDUP_FUZZERS: Final = {
    "dedup.known_ids.KnownIds": Fuzzer(_to_know, _plain_known, call=_known),
    "dedup.known_ids.drop_rows": Fuzzer(_to_drop, _left, call=_dropped),
}
