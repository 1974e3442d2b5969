"""Frame columns: checks a frame's columns, and gives them the types that records are made of.

The idea: Spark sends record batches of the frame's schema. The schema is judged before a task runs;
a batch's columns are brought to one type each, and its numbers to numpy. `row_records` gives a row
the values that it lacks.

Invariants: a value that a record can't have is a `RowIllegal` that names the column and the row,
never something near it; a value that is brought to another type says what it said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvstore.config import QUEUES_MAX
from kvstore.errors import ConfigError, MessageIllegal, shown
from kvstore.record.validate import check_topic
from tiering.archive.columns.integers import Column
from tiering.errors import RowIllegal
from tiering.spark.arrow import HEADERS, SCHEMA, other_types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

POSITION_END: Final = 1 << 61
"""Behind the last segment that a log may have."""
_US: Final = 1000
_REQUIRED: Final = ("topic", "body")
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_LATITUDE: Final[Mapping[str, frozenset[str]]] = {
    "queue": _INTEGERS,
    "offset": _INTEGERS,
    "position": _INTEGERS,
    "body": frozenset({"binary", "string"}),
}
"""Types that say the same as the one that messages have."""
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "queue": (0, QUEUES_MAX),
    "offset": (0, (1 << 63) - 1),
    "position": (0, POSITION_END),
    "born_at": (0, 1 << 62),
    "stored_at": (0, 1 << 62),
    "headers.flags": (0, 1 << 32),
    "headers.system_flags": (0, 1 << 32),
    "headers.reconsume_times": (-(1 << 31), 1 << 31),
    "headers.version": (1, 3),
    "headers.body_crc": (0, 1 << 32),
}
"""The least value, and the first that is too large."""


def check_schema(schema: StructType) -> None:
    """Checks that rows of a schema can be messages. Raises ConfigError that names the fault."""
    names = [field.name for field in schema.fields]
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown or len(set(names)) < len(names):
        what = ", ".join(map(repr, unknown)) or "one column twice"
        raise ConfigError(
            f"the frame has {what}, which messages don't; they have {', '.join(SCHEMA.names)}: "
            "select those"
        )
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise ConfigError(f"the frame lacks {' and '.join(missing)}, which every message has")
    if ("queue" in names) != ("offset" in names):
        lacks = "queue" if "offset" in names else "offset"
        raise ConfigError(
            f"the frame lacks {lacks}: give queue and offset both, or none, and they are made"
        )
    for name, kind, held in other_types(schema):
        if kind not in _LATITUDE.get(name, ()):
            raise ConfigError(f"column {name} is {kind}; messages have it as {held}: cast it")


_TYPES: Final[Mapping[str, pa.DataType]] = {
    "message_id": pa.string(),
    "keys": pa.list_(pa.string()),
    "tag": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
}
"""Messages' own types, with nulls in lists and maps as Spark allows them."""


class Headers(NamedTuple):
    """The columns of `headers`; `there` says for which rows it is not null."""

    there: NDArray[np.bool_]
    fields: Mapping[str, pa.Array]


class FrameRows:
    """A batch of rows. Numbers are None where there is no such column."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.count = batch.num_rows
        self._columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        self.names: list[str] = []
        self.topic_of: Column = np.empty(0, np.int64)
        self.queue: Column | None = None
        self.offset: Column | None = None
        self._set_topics()
        self.queue = self._numbers("queue")
        self.offset = self._numbers("offset")
        self.position = self._numbers("position")
        for name in ("queue", "offset", "position"):
            numbers = getattr(self, name)
            if numbers is not None:
                self.check(name, numbers)
        self.body: pa.Array = self._without_nulls("body").cast(pa.binary())

    # --- columns ---

    def where(self, mask: NDArray[np.bool_]) -> FrameRows:
        """The rows where `mask` is true."""
        return FrameRows(self._batch.filter(pa.array(mask)))

    def column(self, name: str) -> pa.Array | None:
        """A column (tag, keys, message_id, properties); nulls may be in it, but for properties."""
        found = self._columns.get(name)
        if found is None:
            return None
        found = found.cast(_TYPES[name])
        if name == "properties" and found.null_count:
            found = pa.array([one or [] for one in found.to_pylist()], found.type)
        return found

    def headers(self) -> Headers | None:
        """The `headers` of rows that came from records; None if no row has any."""
        found = self._columns.get("headers")
        if found is None or found.null_count == len(found):
            return None
        there = np.asarray(found.is_valid())
        fields = {
            kind.name: part.cast(kind.type)
            for kind, part in zip(HEADERS, found.flatten(), strict=True)
        }
        return Headers(there, fields)

    def times(self, name: str, otherwise: Column) -> Column:
        """Times in ms; for rows that have none, the others."""
        found = self._columns.get(name)
        if found is None:
            return otherwise
        exact = found.cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
        nulls = np.asarray(exact.is_null())
        numbers = np.asarray(exact.fill_null(0)) // _US
        self.check(name, numbers, nulls)
        return np.where(nulls, otherwise, numbers)

    # --- faults ---

    def check(self, name: str, numbers: Column, passed: NDArray[np.bool_] | None = None) -> None:
        """Raises `RowIllegal` if a number is out of its column's bounds; not for rows `passed`."""
        low, high = _BOUNDS[name]
        wrong = (numbers < low) | (numbers >= high)
        if passed is not None:
            wrong &= ~passed
        if bool(wrong.any()):
            row = int(np.argmax(wrong))
            raise self.illegal(
                row, name, f"{int(numbers[row])}, which is not from {low} to {high - 1}; mend it, "
                "or leave the row out",
            )  # fmt: skip

    def illegal(self, row: int, column: str, problem: str) -> RowIllegal:
        """The error for a row: `problem` says what the column has, and what to do."""
        topic = self.names[int(self.topic_of[row])] if self.names else None
        queue, offset = (
            None if numbers is None else int(numbers[row]) for numbers in (self.queue, self.offset)
        )
        where = f"a row of topic {shown(topic)}" if topic is not None else "a row"
        if queue is not None and offset is not None:
            where += f", queue {queue}, offset {offset}"
        return RowIllegal(f"{where}: column {column} is {problem}", topic, queue, offset)

    # --- making ---

    def _without_nulls(self, name: str) -> Any:
        column = self._columns[name]
        if column.null_count:
            row = int(pc.index(column.is_null(), True).as_py())
            raise self.illegal(row, name, "null; give it a value, or leave the row out")
        return column

    def _set_topics(self) -> None:
        """The topics once each, and which of them a row has."""
        found = self._without_nulls("topic").cast(pa.string()).dictionary_encode()
        names: list[str] = found.dictionary.to_pylist()
        for name in names:
            try:
                check_topic(name)
            except MessageIllegal as e:
                raise RowIllegal(
                    f"a row of topic {shown(name)}: column topic is no topic's name: {e}; mend "
                    "it, or leave the row out",
                    name,
                ) from e
        self.names, self.topic_of = names, np.asarray(found.indices).astype(np.int64)

    def _numbers(self, name: str) -> Column | None:
        if name not in self._columns:
            return None
        return np.asarray(self._without_nulls(name).cast(pa.int64()))
