"""Wire: the protocol's messages as classes, which protobuf's compiled reader fills and packs.

The idea: `protocol_tables` is read once and becomes one `FileDescriptorProto`. It goes into a pool
of its own, so that a program which has RocketMQ's client loaded as well can't get the two mixed up.
`message_class(name)` gives a class; `code("OK")` the number of a name. The requests and answers of
SendMessage never become objects of these: the core has them (`core.transport.send_calls`).

Invariants: a request that can't be read is `CallerError`, whatever is in it; the reader refuses
lengths that point behind the end, so nothing is allocated that was not received.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)
from google.protobuf.message import DecodeError

from kvstore.clock import whole_ms
from kvstore.errors import CallerError
from kvstore.serve.grpc.protocol.protocol_tables import ENUMS, MESSAGES, PACKAGE

Wire = Any
"""A message of the protocol. Its class is made when the program runs, so no type has its fields."""

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "float": _FIELD.TYPE_FLOAT,
}
_OWN_OF_PROTOBUF: Final = {
    "timestamp": ".google.protobuf.Timestamp",
    "duration": ".google.protobuf.Duration",
}
_FILE: Final = "kvmq/rocketmq_v2.proto"


def _table(text: str) -> dict[str, list[list[str]]]:
    """The lines of a table: a name, and the words of each of its entries."""
    joined = re.sub(r"\n +", " ", text)
    lines = (line.split(":", 1) for line in joined.splitlines() if line)
    return {name: [entry.split() for entry in rest.split(",")] for name, rest in lines}


NUMBERS: Final[dict[str, dict[str, int]]] = {
    name: {word: int(number) for word, number in entries} for name, entries in _table(ENUMS).items()
}
"""Enumeration -> name -> number."""
_CODES: Final = NUMBERS["Code"]


def code(name: str) -> int:
    """The number of a status code's name."""
    return _CODES[name]


def _add_field(message: Any, words: list[str], unions: dict[str, int]) -> None:
    number, name, kind = words[:3]
    mark = words[3] if len(words) > 3 else ""
    label = _FIELD.LABEL_REPEATED if mark == "*" or kind == "map" else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind in NUMBERS:
        field.type, field.type_name = _FIELD.TYPE_ENUM, f".{PACKAGE}.{kind}"
    elif kind == "map":
        entry = "".join(part.title() for part in name.split("_")) + "Entry"
        nested = message.nested_type.add(name=entry)
        nested.options.map_entry = True
        for at, part in enumerate(("key", "value"), 1):
            nested.field.add(
                name=part, number=at, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING
            )
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{message.name}.{entry}"
    else:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = _OWN_OF_PROTOBUF.get(kind, f".{PACKAGE}.{kind}")
    if mark.startswith("|"):
        union = mark[1:]
        if union not in unions:
            unions[union] = len(message.oneof_decl)
            message.oneof_decl.add(name=union)
        field.oneof_index = unions[union]


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=PACKAGE, syntax="proto3")
    file.dependency.extend([timestamp_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name])
    optional: list[tuple[Any, list[str]]] = []
    by_name = {}
    for name, fields in _table(MESSAGES).items():
        message = by_name[name] = file.message_type.add(name=name)
        unions: dict[str, int] = {}
        for words in fields:
            _add_field(message, words, unions)
            if words[-1] == "?":
                optional.append((message, words))
    for message, words in optional:
        # Protobuf shows the absence of a field by a union with one member, which stands behind the
        # others.
        field = next(one for one in message.field if one.name == words[1])
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")
    for name, numbers in NUMBERS.items():
        outer, _, inner = name.rpartition(".")
        kind = (by_name[outer] if outer else file).enum_type.add(name=inner)
        for word, number in numbers.items():
            kind.value.add(name=word, number=number)
    return file


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for own in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(own.DESCRIPTOR.serialized_pb)
    pool.Add(_file())
    return pool


POOL: Final = _pool()


@functools.cache
def message_class(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def parse(kind: Any, raw: bytes | bytearray | memoryview) -> Wire:
    """The message that the bytes are; `CallerError` if they are none."""
    try:
        return kind.FromString(bytes(raw))
    except DecodeError as e:
        raise unreadable(raw, kind.DESCRIPTOR.name, e) from None


def unreadable(raw: bytes | bytearray | memoryview, name: str, error: Exception) -> CallerError:
    """The error for bytes that are no message of a name."""
    return CallerError(
        f"{len(raw)} bytes can't be read as a {name}: {error}; send it as the protocol {PACKAGE} "
        "says"
    )


def set_ms(timestamp: Wire, ms: int) -> None:
    """Sets a timestamp from milliseconds since the epoch."""
    timestamp.seconds, rest = divmod(ms, 1000)
    timestamp.nanos = rest * 1_000_000


def ms_of(timestamp: Wire) -> int:
    """Milliseconds since the epoch of a timestamp, or of a duration its length, cut."""
    return int(timestamp.seconds) * 1000 + int(timestamp.nanos) // 1_000_000


def set_seconds(duration: Wire, seconds: float) -> None:
    """Sets a duration, rounded up to a millisecond."""
    set_ms(duration, whole_ms(seconds))
