"""Schema: what a message is to Spark.

The idea: one schema, in Arrow's words, of which Spark's is made. Whoever wants fewer columns gives
a schema of fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kvstore.errors import ConfigError

HEADERS: Final = pa.struct(
    [
        pa.field("flags", pa.int64()),
        pa.field("system_flags", pa.int64()),
        pa.field("born_host", pa.string()),
        pa.field("store_host", pa.string()),
        pa.field("reconsume_times", pa.int32()),
        pa.field("prepared_position", pa.int64()),
        pa.field("version", pa.int32()),
        pa.field("body_crc", pa.int64()),
        pa.field("properties", pa.binary()),
        pa.field("stored_body", pa.binary()),
    ]
)
"""What is left of a record. The last three are null where the other columns say the same."""

_TIME: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("queue", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("keys", pa.list_(pa.field("element", pa.string()))),
        pa.field("tag", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("born_at", _TIME),
        pa.field("stored_at", _TIME),
        pa.field("position", pa.int64()),
        pa.field("body", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)


def columns_of(names: Sequence[str]) -> pa.Schema:
    """The schema of some columns, in that order. `ConfigError` for one that there is not."""
    wrong = [name for name in names if name not in SCHEMA.names]
    if wrong or not names:
        raise ConfigError(
            f"a message has no column {', '.join(map(repr, wrong)) or 'at all'}; its columns are "
            f"{', '.join(SCHEMA.names)}"
        )
    return pa.schema([SCHEMA.field(name) for name in names])


def spark_schema(names: Sequence[str]) -> StructType:
    """The same as Spark has it."""
    return from_arrow_schema(columns_of(names))
