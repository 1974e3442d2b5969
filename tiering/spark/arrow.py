"""Arrow: rows of messages -> record batches of Spark's schema.

The idea: an archive has messages in columns already, so a column of a batch is a few buffers laid
side by side: bodies are the group's bytes as they are, times and offsets numpy arrays, a map of
properties the values of each name, interleaved. Nothing is done message by message but where a
group is out of the ordinary. A column that nobody asked for is not decoded.

Invariants: what `headers` holds beside the other columns is enough to give back the record byte for
byte; where map and body do that alone, its `properties` and `stored_body` are null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Final, Protocol, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvstore.record.hosts import unpack_host
from kvstore.record.names import KEYS, TAGS, UNIQUE_ID
from kvstore.record.properties import decode_properties
from tiering.archive.integers import Column
from tiering.archive.properties import PropertyColumns
from tiering.spark.schema import HEADERS, SCHEMA, columns_of

I32 = NDArray[np.int32]
_TAGS: Final = TAGS.encode()
_KEYS: Final = KEYS.encode()
_UNIQUE_ID: Final = UNIQUE_ID.encode()
_US: Final = 1000
"""Microseconds of Spark's timestamps in a millisecond."""


class Rows(Protocol):
    """Messages in columns: what there is to make a batch of; `topic_of` says which of the `topics`
    a message has. `property_columns` gives None where properties are to be had as fields alone.
    """

    count: int
    topics: Sequence[str]
    topic_of: Column
    queue: Column
    offset: Column
    position: Column
    born_at: Column
    stored_at: Column
    flags: Column
    system_flags: Column
    reconsume_times: Column
    prepared_position: Column
    version: Column

    @property
    def hosts(self) -> tuple[list[bytes], list[bytes]]:
        """Every row's born host and store host."""
        ...

    def property_columns(self) -> PropertyColumns | None:
        """The properties by name."""
        ...

    def fields(self) -> list[bytes]:
        """The properties field of every row."""
        ...

    def bodies(self) -> tuple[bytes, Column]:
        """All bodies as they were put, and where each begins and the last ends."""
        ...

    def stored_bodies(self) -> list[bytes | None] | None:
        """The bodies that the records have, where these are others; None: nowhere."""
        ...

    def wrong_crcs(self) -> list[int | None] | None:
        """The CRCs that the records have, where they are not their bodies'; None: nowhere."""
        ...


def batch_of(rows: Rows, names: Sequence[str]) -> pa.RecordBatch:
    """The columns of those names, in that order."""
    if not names:
        # A count alone: Spark takes rows without columns.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.count, pa.struct([])))
    asked = _Asked(rows)
    columns = [_MAKERS[name](asked) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=columns_of(names))


class _Asked:
    """Rows, with what several columns are made of."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @cached_property
    def plain(self) -> Mapping[bytes, list[bytes]] | None:
        """The values by name, in the order of the names, if all rows have the same names and all
        values are text.
        """
        found = self.rows.property_columns()
        names = found.plain_names if found is not None else None
        if found is None or names is None:
            return None
        columns = {name: found.columns[name] for name in names}
        try:
            b"\n".join(chain(names, *columns.values())).decode()
        except UnicodeDecodeError:
            return None
        return columns if all(map(all, columns.values())) else None

    @cached_property
    def fields(self) -> list[bytes]:
        return self.rows.fields()

    @cached_property
    def maps(self) -> list[dict[str, str]]:
        return list(map(decode_properties, self.fields))

    def values(self, name: bytes) -> Sequence[bytes | None]:
        """One property of every row."""
        if self.plain is not None:
            return self.plain.get(name) or [None] * self.rows.count
        text = name.decode()
        found = [one.get(text) for one in self.maps]
        return [None if value is None else value.encode() for value in found]


# --- columns --------------------------------------------------------------------------------------


def _topic(asked: _Asked) -> pa.Array:
    return pa.array(asked.rows.topics, pa.string()).take(pa.array(asked.rows.topic_of))


def _queue(asked: _Asked) -> pa.Array:
    return pa.array(asked.rows.queue.astype(np.int32))


def _message_id(asked: _Asked) -> pa.Array:
    found = asked.values(_UNIQUE_ID)
    if None not in found:
        return _text(found)
    made = _position_ids(asked.rows)
    return _text([a or b for a, b in zip(found, made, strict=True)])


def _position_ids(rows: Rows) -> list[bytes]:
    """The ids of messages that have none of their own: store host and position in hex."""
    positions = rows.position.tolist()
    hosts = rows.hosts[1]
    return [
        (host + position.to_bytes(8, "big")).hex().upper().encode()
        for host, position in zip(hosts, positions, strict=True)
    ]


def _keys(asked: _Asked) -> pa.Array:
    found = asked.values(_KEYS)
    if not any(found):
        lists: list[list[bytes]] = [[]] * len(found)
    else:
        lists = [[key for key in (value or b"").split(b" ") if key] for value in found]
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(keys) for keys in lists], out=ends[1:])
    return pa.ListArray.from_arrays(
        pa.array(ends), _text(list(chain.from_iterable(lists))), type=SCHEMA.field("keys").type
    )


def _tag(asked: _Asked) -> pa.Array:
    return _text(asked.values(_TAGS))


def _properties(asked: _Asked) -> pa.Array:
    kind = SCHEMA.field("properties").type
    plain, count = asked.plain, asked.rows.count
    if plain is None:
        return pa.array([list(one.items()) for one in asked.maps], kind)
    names = list(plain)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(names))
    flat = list(chain.from_iterable(zip(*plain.values(), strict=True)))
    sizes = np.tile(np.array([len(name) for name in names], np.int64), count)
    keys = _from_buffers(pa.string(), b"".join(names) * count, _bounds(sizes))
    return pa.MapArray.from_arrays(pa.array(ends), keys, _text(flat), type=kind)


def _body(asked: _Asked) -> pa.Array:
    data, ends = asked.rows.bodies()
    return _from_buffers(pa.binary(), data, ends.astype(np.int32))


def _headers(asked: _Asked) -> pa.Array:
    rows = asked.rows
    born, store = (_hosts(hosts) for hosts in rows.hosts)
    odd: list[bytes | None] | None = None
    if asked.plain is None:
        odd = [
            None if _joined(found) == field else field
            for field, found in zip(asked.fields, asked.maps, strict=True)
        ]
    children = {
        "flags": pa.array(rows.flags),
        "system_flags": pa.array(rows.system_flags),
        "born_host": born,
        "store_host": store,
        "reconsume_times": pa.array(rows.reconsume_times.astype(np.int32)),
        "prepared_position": pa.array(rows.prepared_position),
        "version": pa.array(rows.version.astype(np.int32)),
        "body_crc": _or_nulls(rows.wrong_crcs(), pa.int64(), rows.count),
        "properties": _or_nulls(odd, pa.binary(), rows.count),
        "stored_body": _or_nulls(rows.stored_bodies(), pa.binary(), rows.count),
    }
    return pa.StructArray.from_arrays(list(children.values()), fields=list(HEADERS))


def _joined(properties: Mapping[str, str]) -> bytes:
    """The field that a map of properties gives."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def _hosts(hosts: list[bytes]) -> pa.Array:
    distinct = {host: host_text(host) for host in set(hosts)}
    if len(distinct) == 1:
        return pa.repeat(pa.scalar(distinct[hosts[0]], pa.string()), len(hosts))
    return pa.array([distinct[host] for host in hosts], pa.string())


def host_text(raw: bytes) -> str:
    """A host as text: `address:port`, an IPv6 address in brackets."""
    address, port = unpack_host(raw)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _or_nulls(values: Sequence[object] | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if values is None else pa.array(values, kind)


def _time(of: Callable[[Rows], Column]) -> Callable[[_Asked], pa.Array]:
    def make(asked: _Asked) -> pa.Array:
        return pa.array(of(asked.rows) * _US).view(SCHEMA.field("stored_at").type)

    return make


_MAKERS: Final[Mapping[str, Callable[[_Asked], pa.Array]]] = {
    "topic": _topic,
    "queue": _queue,
    "offset": lambda asked: pa.array(asked.rows.offset),
    "message_id": _message_id,
    "keys": _keys,
    "tag": _tag,
    "properties": _properties,
    "born_at": _time(lambda rows: rows.born_at),
    "stored_at": _time(lambda rows: rows.stored_at),
    "position": lambda asked: pa.array(asked.rows.position),
    "body": _body,
    "headers": _headers,
}
assert list(_MAKERS) == SCHEMA.names


# --- buffers --------------------------------------------------------------------------------------


def _bounds(sizes: Column) -> I32:
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _text(values: Sequence[bytes | None]) -> pa.Array:
    """Text of values that are UTF-8; None is null."""
    if None in values:
        return pa.array(values, pa.binary()).cast(pa.string())
    whole = cast("Sequence[bytes]", values)
    sizes = np.fromiter(map(len, whole), np.int64, len(whole))
    return _from_buffers(pa.string(), b"".join(whole), _bounds(sizes))


def _from_buffers(kind: pa.DataType, data: bytes, ends: I32) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ends)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(ends) - 1, buffers)
