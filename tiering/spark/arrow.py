"""Arrow: the columns that a message has in Spark, and record batches of them.

The idea: one schema, in Arrow's words, of which Spark's is made. Columns that every message has are
never null, which spares Spark looking at each value (a tenth of the time it takes). An archive has
messages in columns already, so a column of a batch is a few buffers laid side by side. Bodies are
the group's bytes as they are, times and offsets numpy arrays, a map of properties the values of
each name, interleaved. Messages are handled one by one only where a group is out of the ordinary.
Properties and bodies that nobody asked for are not decoded.

Invariants: `headers` and the other columns together are enough to give back the record byte for
byte; where map and body do that alone, its `properties` and `stored_body` are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kvstore.core.messages import unpack_host
from kvstore.core.names import KEYS, TAGS, UNIQUE_ID
from kvstore.core.records import decode_properties
from kvstore.errors import ConfigError
from tiering.archive.columns.header_fields import ConstantHeaders, host_of
from tiering.archive.columns.integers import Column, bounds_of
from tiering.archive.columns.text_columns import Joined

_always: Final = partial(pa.field, nullable=False)
HEADERS: Final = pa.struct(
    [
        _always("flags", pa.int64()),
        _always("system_flags", pa.int64()),
        _always("born_host", pa.string()),
        _always("store_host", pa.string()),
        _always("reconsume_times", pa.int32()),
        _always("prepared_position", pa.int64()),
        _always("version", pa.int32()),
        pa.field("body_crc", pa.int64()),
        pa.field("properties", pa.binary()),
        pa.field("stored_body", pa.binary()),
    ]
)
"""The rest of a record. The last three are null where the other columns say the same."""

_TIME: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        _always("topic", pa.string()),
        _always("queue", pa.int32()),
        _always("offset", pa.int64()),
        _always("message_id", pa.string()),
        _always("keys", pa.list_(_always("element", pa.string()))),
        pa.field("tag", pa.string()),
        _always("properties", pa.map_(pa.string(), _always("value", pa.string()))),
        _always("born_at", _TIME),
        _always("stored_at", _TIME),
        _always("position", pa.int64()),
        _always("body", pa.binary()),
        _always("headers", HEADERS),
    ]
)
BY_NAME: Final = pa.schema([*SCHEMA, _always("prepared_position", pa.int64())])
"""SCHEMA, with the field of `headers` that is a column where it is asked for by name: for that no
bodies are read.
"""


def columns_of(names: Sequence[str]) -> pa.Schema:
    """The schema of some columns, in that order. `ConfigError` for one that there is not."""
    wrong = [name for name in names if name not in BY_NAME.names]
    if wrong or not names:
        raise ConfigError(
            f"a message has no column {', '.join(map(repr, wrong)) or 'at all'}; its columns are "
            f"{', '.join(BY_NAME.names)}"
        )
    return pa.schema([BY_NAME.field(name) for name in names])


def spark_schema(names: Sequence[str]) -> StructType:
    """The schema of some columns, as Spark has it."""
    return from_arrow_schema(columns_of(names))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the batches that Spark wants, for the schema that it was given. `ConfigError`
    where that has columns that messages lack, or have as something else.
    """
    for name, kind, held in other_types(schema):
        raise ConfigError(
            f"column {name} is asked for as {kind}; messages have it as {held}: read it so, and "
            "cast it"
        )
    asked = to_arrow_schema(schema, timezone="UTC")
    for field in asked:
        part = _may_be_null(field, BY_NAME.field(field.name))
        if part is not None:
            raise ConfigError(
                f"{part} of column {field.name} is asked for as never null; there are messages "
                "that lack it"
            )
    return asked


def other_types(schema: StructType) -> Iterator[tuple[str, str, str]]:
    """The columns that have other types than messages have: name, type, and that of messages.
    `ConfigError` for one that messages lack.
    """
    for given, known in zip(schema.fields, spark_schema(schema.names).fields, strict=True):
        kind, held = given.dataType.simpleString(), known.dataType.simpleString()
        if kind != held:
            yield given.name, kind, held


def _may_be_null(asked: pa.Field, held: pa.Field) -> str | None:
    """The part of a field that is said to be never null, and is at times."""
    if held.nullable and not asked.nullable:
        return str(asked.name)
    inner = (
        _may_be_null(asked.type.field(i), held.type.field(i)) for i in range(held.type.num_fields)
    )
    return next((name for name in inner if name is not None), None)


def as_asked(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of a schema that `arrow_schema` gave, which may call fewer columns never null."""
    for batch in batches:
        yield batch if batch.schema.equals(schema) else batch.cast(schema)


# --- batches --------------------------------------------------------------------------------------


_TAGS: Final = TAGS.encode()
_KEYS: Final = KEYS.encode()
_UNIQUE_ID: Final = UNIQUE_ID.encode()
_US: Final = 1000
"""Microseconds of Spark's timestamps in a millisecond."""


class Hosts(NamedTuple):
    """Different hosts in bytes, and the number of each row's host among them."""

    distinct: Sequence[bytes]
    which: Column


HEADER_NUMBERS: Final = (
    "flags", "system_flags", "version", "reconsume_times", "prepared_position",
)  # fmt: skip


class HeaderFields(NamedTuple):
    """Header fields of every row; they are the same in nearly all messages. `numbers` are those of
    HEADER_NUMBERS.
    """

    numbers: Sequence[Column]
    born: Hosts
    store: Hosts


class MessageColumns:
    """Messages in columns, of which a batch is made; `topic_of` says which of the `topics` a
    message has. A kind whose messages are all ordinary has the defaults.
    """

    count: int
    topics: Sequence[str]
    topic_of: Column
    queue: Column
    offset: Column
    position: Column
    born_at: Column
    stored_at: Column

    def header_fields(self) -> ConstantHeaders | HeaderFields:
        """The rarely differing fields; once for all rows if they are known to have the same."""
        raise NotImplementedError

    def texts(self) -> Mapping[bytes, Joined] | None:
        """The values of properties by name, in the order of the names, if all rows have the same,
        each once, and nothing else; None if not.
        """
        return None

    def fields(self) -> list[bytes]:
        """The properties field of every row."""
        raise NotImplementedError

    def bodies(self) -> Joined:
        """All bodies as they were put."""
        raise NotImplementedError

    def stored_bodies(self) -> list[bytes | None] | None:
        """The bodies that the records have, where these are others; None: nowhere."""
        return None

    def wrong_crcs(self) -> list[int | None] | None:
        """The CRCs that the records have, where they are not their bodies'; None: nowhere."""
        return None


def batch_of(rows: MessageColumns, names: Sequence[str]) -> pa.RecordBatch:
    """The columns of those names, in that order."""
    if not names:
        # For a count alone Spark takes rows without columns.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.count, pa.struct([])))
    asked = _Asked(rows)
    columns = [_MAKERS[name](asked) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=columns_of(names))


class _Asked:
    """Rows, and the values that several columns are made of."""

    def __init__(self, rows: MessageColumns) -> None:
        self.rows = rows

    @cached_property
    def plain(self) -> Mapping[bytes, pa.Array] | None:
        """The values by name, in the order of the names, if all rows have the same names and all
        values are text.
        """
        if self.texts is None:
            return None
        return {name: _from_buffers(pa.string(), *one) for name, one in self.texts.items()}

    @cached_property
    def texts(self) -> Mapping[bytes, Joined] | None:
        """The values by name as `plain` has them, each name's joined side by side."""
        found = self.rows.texts()
        if found is None:
            return None
        # No map has an empty value. Joined values may be text though single ones are not.
        if not all((np.diff(one.bounds) > 0).all() for one in found.values()):
            return None
        try:
            b"\n".join(found).decode()
            if not all(one.data.isascii() for one in found.values()):
                for one in found.values():
                    _separated(one).decode()
        except UnicodeDecodeError:
            return None
        return found

    @cached_property
    def fields(self) -> list[bytes]:
        return self.rows.fields()

    @cached_property
    def maps(self) -> list[dict[str, str]]:
        return list(map(decode_properties, self.fields))

    def values(self, name: bytes) -> pa.Array:
        """One property of every row; null where there is none."""
        if self.plain is not None:
            found = self.plain.get(name)
            return pa.nulls(self.rows.count, pa.string()) if found is None else found
        text = name.decode()
        return pa.array([one.get(text) for one in self.maps], pa.string())


# --- columns --------------------------------------------------------------------------------------


def _message_id(asked: _Asked) -> pa.Array:
    found = asked.values(_UNIQUE_ID)
    if not found.null_count:
        return found
    return pc.coalesce(found, pa.array(_position_ids(asked.rows), pa.string()))


def _position_ids(rows: MessageColumns) -> list[str]:
    """The ids of messages that have no id in their properties: store host and position in hex."""
    found = rows.header_fields()
    if isinstance(found, ConstantHeaders):
        head = host_of(found.store_host).hex().upper()
        return [f"{head}{position:016X}" for position in rows.position.tolist()]
    heads = [host.hex().upper() for host in found.store.distinct]
    pairs = zip(found.store.which.tolist(), rows.position.tolist(), strict=True)
    return [f"{heads[host]}{position:016X}" for host, position in pairs]


def _keys(asked: _Asked) -> pa.Array:
    kind, count = SCHEMA.field("keys").type, asked.rows.count
    found = asked.values(_KEYS)
    if found.null_count == count:
        empty = pa.array(np.zeros(count + 1, np.int32))
        return pa.ListArray.from_arrays(empty, pa.nulls(0, pa.string()), type=kind)
    if asked.texts is not None and b" " not in asked.texts[_KEYS].data:
        # Nearly always each message has one key.
        each = pa.array(np.arange(count + 1, dtype=np.int32))
        return pa.ListArray.from_arrays(each, found, type=kind)
    lists = [[key for key in (value or "").split(" ") if key] for value in found.to_pylist()]
    return pa.array(lists, kind)


def _properties(asked: _Asked) -> pa.Array:
    kind = SCHEMA.field("properties").type
    plain, count = asked.plain, asked.rows.count
    if plain is None:
        return pa.array([list(one.items()) for one in asked.maps], kind)
    size = len(plain)
    ends = pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(size))
    if not size:
        none = pa.nulls(0, pa.string())
        return pa.MapArray.from_arrays(ends, none, none, type=kind)
    # Row by row one value of each column; the names likewise.
    turns = np.arange(count)[:, None] + np.arange(size) * count
    values = pa.concat_arrays(list(plain.values())).take(pa.array(turns.ravel()))
    each = bounds_of(list(map(len, plain)))
    bounds = np.arange(count)[:, None] * each[-1] + each[:-1]
    names = _from_buffers(
        pa.string(), b"".join(plain) * count, np.append(bounds.ravel(), count * each[-1])
    )
    return pa.MapArray.from_arrays(ends, names, values, type=kind)


def _headers(asked: _Asked) -> pa.Array:
    rows = asked.rows
    odd: list[bytes | None] | None = None
    if asked.plain is None:
        odd = [
            None if joined_properties(found) == field else field
            for field, found in zip(asked.fields, asked.maps, strict=True)
        ]
    found = rows.header_fields()
    if isinstance(found, ConstantHeaders):
        known = _constant_arrays(found, 1 << (rows.count - 1).bit_length())
        arrays = [column[: rows.count] for column in known]
    else:
        arrays = _header_arrays(found)
    children = [
        *arrays,
        _or_nulls(rows.wrong_crcs(), pa.int64(), rows.count),
        _or_nulls(odd, pa.binary(), rows.count),
        _or_nulls(rows.stored_bodies(), pa.binary(), rows.count),
    ]
    return pa.StructArray.from_arrays(children, fields=list(HEADERS))


def _prepared_position(asked: _Asked) -> pa.Array:
    found = asked.rows.header_fields()
    if isinstance(found, ConstantHeaders):
        return pa.repeat(pa.scalar(found.prepared_position, pa.int64()), asked.rows.count)
    return pa.array(found.numbers[HEADER_NUMBERS.index("prepared_position")])


def _header_arrays(found: HeaderFields) -> list[pa.Array]:
    """The first fields of HEADERS, of each row."""
    flags, system_flags, version, reconsume_times, prepared_position = found.numbers
    return [
        pa.array(flags),
        pa.array(system_flags),
        _hosts(found.born),
        _hosts(found.store),
        pa.array(reconsume_times.astype(np.int32)),
        pa.array(prepared_position),
        pa.array(version.astype(np.int32)),
    ]


@lru_cache(maxsize=4)
def _constant_arrays(found: ConstantHeaders, count: int) -> Sequence[pa.Array]:
    """The first fields of HEADERS, of rows that all have these values, as in nearly all batches."""
    which = np.zeros(count, np.int64)
    return _header_arrays(
        HeaderFields(
            [which + getattr(found, name) for name in HEADER_NUMBERS],
            Hosts([host_of(found.born_host)], which),
            Hosts([host_of(found.store_host)], which),
        )
    )


def joined_properties(properties: Mapping[str, str]) -> bytes:
    """The field that a map of properties gives, every pair as it is."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def _hosts(hosts: Hosts) -> pa.Array:
    texts = [host_text(host) for host in hosts.distinct]
    if len(texts) == 1:
        return pa.repeat(pa.scalar(texts[0], pa.string()), len(hosts.which))
    return pa.array(texts, pa.string()).take(pa.array(hosts.which))


def host_text(raw: bytes) -> str:
    """A host as text: `address:port`, an IPv6 address in brackets."""
    address, port = unpack_host(raw)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _or_nulls(values: Sequence[object] | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if values is None else pa.array(values, kind)


def _time(of: Callable[[MessageColumns], Column]) -> Callable[[_Asked], pa.Array]:
    def make(asked: _Asked) -> pa.Array:
        return pa.array(of(asked.rows) * _US).view(SCHEMA.field("stored_at").type)

    return make


_MAKERS: Final[Mapping[str, Callable[[_Asked], pa.Array]]] = {
    "topic": lambda asked: pa.array(asked.rows.topics, pa.string()).take(
        pa.array(asked.rows.topic_of)
    ),
    "queue": lambda asked: pa.array(asked.rows.queue.astype(np.int32)),
    "offset": lambda asked: pa.array(asked.rows.offset),
    "message_id": _message_id,
    "keys": _keys,
    "tag": lambda asked: asked.values(_TAGS),
    "properties": _properties,
    "born_at": _time(lambda rows: rows.born_at),
    "stored_at": _time(lambda rows: rows.stored_at),
    "position": lambda asked: pa.array(asked.rows.position),
    "body": lambda asked: _from_buffers(pa.binary(), *asked.rows.bodies()),
    "headers": _headers,
    "prepared_position": _prepared_position,
}
assert list(_MAKERS) == BY_NAME.names


# --- buffers --------------------------------------------------------------------------------------


def _separated(texts: Joined) -> bytes:
    """All values with a line end between each two."""
    data = texts.data
    return b"\n".join(data[a:b] for a, b in pairwise(texts.bounds.tolist()))


def _from_buffers(kind: pa.DataType, data: bytes, bounds: Column) -> pa.Array:
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(bounds) - 1, buffers)
