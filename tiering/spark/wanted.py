"""Wanted: the messages that a query is about, as far as archives can tell without being decoded.

The idea: the filters that Spark hands down become ranges and sets of values that a directory knows
(topic, queue, offset, store time), and of values that a key index finds (keys, message ids). Blocks
that lie outside are not read. Tags are in the blocks' properties: of a block without the tag the
bodies are not read.

Invariant: the filter is never narrower than the query. Spark applies its filters again, so that
being wider costs only time; Spark does not know the filters of the options, which are applied here,
exactly.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tiering.archive.directory import DirectoryRows
from tiering.archive.layout import NO_QUEUE
from tiering.catalog.catalog import ArchiveRow, read_topics
from tiering.spark.options import ReadOptions

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Texts = frozenset[str] | None
"""None: any."""


class NumberRange(msgspec.Struct, frozen=True):
    """Numbers from `low` to `high`, both included."""

    low: int = _MIN
    high: int = _MAX

    def meet(self, low: int, high: int) -> NumberRange:
        """The numbers that are in both."""
        return NumberRange(max(self.low, low), min(self.high, high))


class QueryFilter(msgspec.Struct, frozen=True):
    """The ranges and sets that a message must be in. Times are ms since the epoch. `keys` come from
    the options alone.
    """

    topics: Texts = None
    tags: Texts = None
    ids: Texts = None
    keys: Texts = None
    queue: NumberRange = NumberRange()
    offset: NumberRange = NumberRange()
    stored_at: NumberRange = NumberRange()
    position: NumberRange = NumberRange()

    @classmethod
    def of(cls, options: ReadOptions) -> QueryFilter:
        """The filter of the options."""
        topics, keys = options.topics, options.keys
        named = None if topics is None else frozenset(topics)
        return cls(topics=named, keys=None if keys is None else frozenset(keys))

    def narrowed(self, filters: Iterable[Filter]) -> QueryFilter:
        """A filter that passes what this one and all of `filters` pass."""
        found = self
        for one in filters:
            found = found._and(one)
        return found

    def _and(self, one: Filter) -> QueryFilter:
        if isinstance(one, (EqualTo, EqualNullSafe)):
            return self._is_in(".".join(one.attribute), [one.value])
        if isinstance(one, In):
            return self._is_in(".".join(one.attribute), list(one.value))
        if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
            return self._between(".".join(one.attribute), _number(one.value), None)
        if isinstance(one, (LessThan, LessThanOrEqual)):
            return self._between(".".join(one.attribute), None, _number(one.value))
        return self

    def _is_in(self, name: str, values: list[object]) -> QueryFilter:
        if name in _TEXTS and all(isinstance(value, str) for value in values):
            field, texts = _TEXTS[name], frozenset(map(str, values))
            before: Texts = getattr(self, field)
            return self._with(field, texts if before is None else before & texts)
        numbers = [number for value in values if (number := _number(value)) is not None]
        if not numbers or len(numbers) < len(values):
            return self
        return self._between(name, min(numbers), max(numbers))

    def _between(self, name: str, low: int | None, high: int | None) -> QueryFilter:
        """The border itself is included, since Spark filters again."""
        if name not in _RANGES:
            return self
        if high is not None and name == "stored_at":
            high += 1  # it was cut to its millisecond
        of: NumberRange = getattr(self, name)
        return self._with(
            name, of.meet(_MIN if low is None else low, _MAX if high is None else high)
        )

    def _with(self, field: str, value: object) -> QueryFilter:
        return msgspec.structs.replace(self, **{field: value})

    def blocks(self, rows: DirectoryRows, topics: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The blocks of a directory that may have wanted messages; `topics` are the wanted ones."""
        # A reader of queues does not see messages in no queue.
        found: NDArray[np.bool_] = topics[rows.topics] & (rows.queues != NO_QUEUE)
        for low, high, of in (
            (rows.queues, rows.queues, self.queue),
            (rows.first_offset, rows.last_offset, self.offset),
            (rows.least_stored_at, rows.greatest_stored_at, self.stored_at),
            (rows.first_position, rows.last_position, self.position),
        ):
            found &= (high >= of.low) & (low <= of.high)
        return found

    def may_be_in(self, row: ArchiveRow, topics: Container[int]) -> bool:
        """Whether an archive may have wanted messages, as far as its catalog's row tells; `topics`
        are the ids of those that are wanted.
        """
        if row.topics is not None and not any(one in topics for one in read_topics(row.topics)):
            return False
        return all(
            high >= of.low and low <= of.high
            for low, high, of in (
                (row.first_stored_at, row.last_stored_at, self.stored_at),
                (row.first_position, row.last_position, self.position),
            )
        )

    def has_topic(self, name: str) -> bool:
        """Whether messages of a topic may be wanted."""
        return self.topics is None or name in self.topics

    @property
    def needles(self) -> Texts:
        """The texts to look for in key indexes; None: everything."""
        return self.keys if self.keys is not None else self.ids


_TEXTS: Final = {"topic": "topics", "tag": "tags", "message_id": "ids"}
_RANGES: Final = frozenset({"queue", "offset", "stored_at", "position"})


def _number(value: object) -> int | None:
    """A number, or a time in ms since the epoch; None for another value."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.astimezone()
        return int((aware - _EPOCH).total_seconds() * 1000 // 1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
