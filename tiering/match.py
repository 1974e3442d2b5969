"""Match: which messages an erasure is about.

The idea: a topic, a key, a time, or several of these, which must all be true. Messages live on as
copies in other topics (to be retried, dead letters, delayed ones), which say in their properties
where they come from; they are meant too, since whoever asks for a topic's data to be erased asks
for its data, wherever it lies.

Invariants: what is asked of a record in a segment and of one in an archive is the same; what was
stored after the erasure began is never meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvstore.errors import CallerError
from kvstore.record.facts import facts, keys_of, unique_id_of
from kvstore.record.names import DLQ_ORIGIN_TOPIC, REAL_TOPIC, RETRY_TOPIC
from kvstore.record.properties import find_property
from tiering.archive.records import Fields, RecordBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

Mask = NDArray[np.bool_]
_FROM: Final = tuple(name.encode() for name in (REAL_TOPIC, RETRY_TOPIC, DLQ_ORIGIN_TOPIC))
_EVER: Final = 1 << 62


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of `topic` (and copies of them elsewhere), that have `key` among their keys or as
    their unique id, stored before `before` (ms), at a position of the log below `below`. What is
    None does not matter; one of the first three must be given.
    """

    topic: str | None = None
    key: str | None = None
    before: int | None = None
    below: int | None = None

    def __post_init__(self) -> None:
        if self.topic is None and self.key is None and self.before is None:
            raise CallerError("nothing says what is to be erased: give a topic, a key or a time")
        if self.topic == "" or self.key == "":
            raise CallerError("the topic, or the key, that is to be erased is empty")
        if self.key is not None and " " in self.key:
            raise CallerError(f"{self.key!r} is several keys, which a space separates; erase each")

    def __str__(self) -> str:
        parts = []
        if self.topic is not None:
            parts.append(f"topic {self.topic}")
        if self.key is not None:
            parts.append(f"key {self.key}")
        if self.before is not None:
            parts.append(f"stored before {self.before}")
        return ", ".join(parts)

    def is_all_of(self, topic: str, last_stored_at: int, last_position: int) -> bool:
        """Whether every message of a topic is meant, of which none is later than that."""
        return (
            self.key is None
            and self.topic in (None, topic)
            and last_stored_at < (self.before if self.before is not None else _EVER)
            and last_position < (self.below if self.below is not None else _EVER)
        )

    def rows(self, records: Sequence[bytes]) -> Mask:
        """Which of some records are meant."""
        return self.rows_of(RecordBatch.of_records(records))

    def rows_of(self, batch: RecordBatch) -> Mask:
        """Which records of a batch are meant."""
        fields = Fields(batch)
        meant = np.ones(fields.count, np.bool_)
        if self.before is not None:
            meant &= fields.stored_at < self.before
        if self.below is not None:
            meant &= fields.positions < self.below
        if self.topic is None and self.key is None:
            return meant
        for row in np.flatnonzero(meant).tolist():
            raw = fields.records(row, row + 1)[0]
            found = facts(raw, 0, len(raw))
            meant[row] = self._is_of(found.topic, found.properties) and self._has_key(
                found.properties
            )
        return meant

    def _is_of(self, topic: bytes, properties: bytes) -> bool:
        if self.topic is None:
            return True
        wanted = self.topic.encode("utf-8", "surrogateescape")
        return topic == wanted or any(find_property(properties, n) == wanted for n in _FROM)

    def _has_key(self, properties: bytes) -> bool:
        if self.key is None:
            return True
        wanted = self.key.encode("utf-8", "surrogateescape")
        return wanted in keys_of(properties) or wanted == unique_id_of(properties)
