"""Values of the protocol: arguments and results of calls as MessagePack.

The idea: arguments may be wrong, and the store is to say so. So they travel as they are, and types
of kvmq as extensions; the server makes the same values of them. Results are right, so they travel
without saying their types: the table of calls knows them. The core writes and reads the values that
most bytes belong to, messages and results of puts; a message that holds a value of another type
than messages have goes the way of all other values.

Invariants: an argument arrives as an equal value (a sequence as a list, bytes of any kind as
bytes), or the client raises `CallerError`; any bytes give a value or `FormatError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike, fspath
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.msgpack import Encoder, Ext

from kvstore.config import Retention
from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.arrow.packed_columns import pack_columns, unpack_columns
from kvstore.core.messages import StoredMessage, stored_of
from kvstore.core.popping.receipts import Popped
from kvstore.core.put_values import NO_PROPERTIES, Message, PutResult, PutStatus
from kvstore.core.transport.local_packing import (
    frame_of_columns,
    frame_of_popped,
    frame_of_results,
    frame_of_stored,
    pack_messages,
)
from kvstore.core.transport.local_reading import read_messages, read_popped, read_results
from kvstore.core.unique_ids import UniqueIds
from kvstore.errors import CallerError, FormatError, StoreError, shown
from kvstore.message import PulledBatch, PullResult
from kvstore.meta.groups import GroupConfig
from kvstore.meta.topics import TopicConfig
from kvstore.pop.nack import Nack
from kvstore.read.sql import SqlFilter, sql
from kvstore.wire.failures import make_error, pack_error
from kvstore.wire.frames import frame

MESSAGE: Final = 1
PUT_RESULT: Final = 2
SQL: Final = 3
TOPIC_CONFIG: Final = 4
GROUP_CONFIG: Final = 5
RETENTION: Final = 6
TUPLE: Final = 7
NOT_GIVEN: Final = 8
LONG_NUMBER: Final = 9
BROKEN_TEXT: Final = 10
PAIRS: Final = 11
UNSENT: Final = 12
NACK: Final = 13
COLUMNS: Final = 14

_STRUCTS: Final[dict[int, type[msgspec.Struct]]] = {
    TOPIC_CONFIG: TopicConfig,
    GROUP_CONFIG: GroupConfig,
    RETENTION: Retention,
    NACK: Nack,
}
_NUMBERS: Final[dict[type, int]] = {kind: number for number, kind in _STRUCTS.items()}
_ROWS: Final = (PutResult, StoredMessage, Popped, Message)
_DEPTH_MAX: Final = 8
_CONTAINERS: Final = (tuple, list, dict)

_plain: Final = Encoder()


# --- arguments ---


def pack_argument(value: Any, depth: int = 0) -> Any:
    """A value that an encoder takes."""
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    if depth > _DEPTH_MAX:
        raise CallerError(f"{shown(value)} is nested too deeply to be sent to a server")
    if isinstance(value, Message):
        return Ext(MESSAGE, _encoded(message_row(value, value.message_id)))
    if isinstance(value, PutResult):
        return Ext(PUT_RESULT, _encoded(_fields(value)))
    if isinstance(value, SqlFilter):
        return Ext(SQL, _encoded(value.expression))
    if isinstance(value, UnsetType):
        return Ext(NOT_GIVEN, _encoded(None))
    if isinstance(value, ColumnBatch):
        return Ext(COLUMNS, _encoded(pack_columns(value)))
    number = _NUMBERS.get(type(value))
    if number is not None:
        named = {n: pack_argument(getattr(value, n), depth + 1) for n in value.__struct_fields__}
        return Ext(number, _encoded(named))
    return _pack_builtin(value, depth)


def _pack_builtin(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {pack_argument(k, depth + 1): pack_argument(v, depth + 1) for k, v in value.items()}
    if isinstance(value, tuple):
        return Ext(TUPLE, _encoded([pack_argument(one, depth + 1) for one in value]))
    with suppress(TypeError, ValueError, BufferError):
        return bytes(memoryview(value))
    if isinstance(value, Iterable) and not isinstance(value, memoryview):
        return [pack_argument(one, depth + 1) for one in value]
    return Ext(UNSENT, _plain.encode((type(value).__name__, shown(value))))


def message_row(message: Message, message_id: Any) -> list[Any]:
    """The fields of a message, with an id in the place of its own; `CallerError` for a field that
    can't be sent.
    """
    row = [_pack_field(getattr(message, name)) for name in Message.__match_args__]
    row[_ID_AT] = _pack_field(message_id)
    return row


_ID_AT: Final = Message.__match_args__.index("message_id")


def _pack_field(value: Any) -> Any:
    if value is NO_PROPERTIES:
        return {}
    # Sequences of keys are as good as lists.
    return pack_argument(list(value) if type(value) is tuple else value)


def _encoded(value: Any) -> bytes:
    try:
        return _plain.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return _plain.encode(_widened(value))


def _widened(value: Any) -> Any:
    """A value with extensions where MessagePack has no form: the store is to say what is wrong."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return Ext(LONG_NUMBER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return Ext(BROKEN_TEXT, data) if data.decode("utf-8", "replace") != value else value
    if isinstance(value, list | tuple):
        return [_widened(one) for one in value]
    if isinstance(value, dict):
        return Ext(PAIRS, _plain.encode([[_widened(k), _widened(v)] for k, v in value.items()]))
    return value


def encode_batch(messages: Sequence[Any], ids: UniqueIds, now_ms: int) -> msgspec.Raw:
    """Messages as an argument that `encode` takes; each gets an id of its own if it has none.
    `CallerError` for a value that can't be sent.
    """
    return msgspec.Raw(pack_messages(messages, ids, now_ms, _other_message))


def _other_message(message: Any, own: str) -> bytes:
    """A message that has a value which is not sent as it is, or what is no message at all."""
    if not isinstance(message, Message):
        return encode(pack_argument(message))  # the store refuses it
    return encode(message_row(message, own if message.message_id is None else message.message_id))


def encode(value: Any) -> bytes:
    """Packed arguments as bytes; `CallerError` for a value that MessagePack can't hold."""
    try:
        return _encoded(value)
    except (TypeError, RecursionError) as e:
        raise CallerError(f"an argument can't be sent to a server: {e}") from None


_READERS: Final[dict[int, Callable[[Any], Any]]] = {SQL: sql, COLUMNS: unpack_columns}


class Unsent:
    """Stands for a value that could not be sent: the store is to say what is wrong with it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _read_extension(code: int, data: memoryview) -> Any:
    if code == LONG_NUMBER:
        return int.from_bytes(data, "big", signed=True)
    if code == BROKEN_TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    inner = _arguments.decode(data)
    if code == NOT_GIVEN:
        return UNSET
    if code in _READERS:
        return _READERS[code](inner)
    if code == PAIRS and type(inner) is list:
        return dict(inner)
    if code == UNSENT and type(inner) is list:
        name, text = inner
        return type(str(name), (Unsent,), {})(str(text))
    if code == TUPLE and type(inner) is list:
        return tuple(inner)
    if code in (MESSAGE, PUT_RESULT) and type(inner) is list:
        return _made(Message if code == MESSAGE else PutResult, inner)
    kind = _STRUCTS.get(code)
    if kind is not None and type(inner) is dict:
        return kind(**inner)
    raise FormatError(f"there is no extension {code} of {shown(inner)}")


_arguments: Final = msgspec.msgpack.Decoder(ext_hook=_read_extension)


def _made(kind: type[Any], row: Sequence[Any]) -> Any:
    try:
        return kind(*row)
    except (TypeError, OverflowError) as e:
        raise FormatError(f"{shown(row)} is no {kind.__name__}: {e}") from None


def read_arguments(data: bytes | memoryview | msgspec.Raw) -> Any:
    """Arguments of a call; `FormatError`, and `FilterIllegal` for a filter that is none."""
    try:
        return _arguments.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as e:
        if isinstance(e, StoreError):
            raise
        raise FormatError(f"the arguments can't be read: {e}") from None


def read_batch(data: bytes | memoryview | msgspec.Raw) -> Any:
    """The arguments of a call whose first one is messages; `FormatError`."""
    try:
        return [read_messages(data)]
    except (ValueError, TypeError, OverflowError):
        arguments = read_arguments(data)
    if type(arguments) is list and arguments:
        arguments[0] = _messages_of(arguments[0])
    return arguments


def _messages_of(rows: Any) -> list[Message]:
    """The messages of their fields."""
    if type(rows) is not list:
        raise FormatError(f"the messages are {shown(rows)}; they must be an array")
    return [_made(Message, row) if type(row) is list else row for row in rows]


# --- results ---


def _fields(value: Any) -> tuple[Any, ...]:
    return tuple([getattr(value, name) for name in value.__match_args__])


def _pack_result(value: Any) -> Any:
    if isinstance(value, _ROWS):
        return _fields(value)
    if isinstance(value, StoreError):
        return pack_error(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in the protocol")


_FRAMES_OF: Final[dict[type, Callable[[int, int, list[Any]], bytes]]] = {
    PutResult: frame_of_results,
    Popped: frame_of_popped,
    StoredMessage: frame_of_stored,
}
_EMPTY_ARRAY: Final = b"\x90"
_results: Final = Encoder(enc_hook=_pack_result)


def frame_of_result(kind: int, number: int, result: Any) -> bytes:
    """The frame that carries a result."""
    if type(result) is list and result:
        frame_of = _FRAMES_OF.get(type(result[0]))
        if frame_of is not None:
            return frame_of(kind, number, result)
    elif type(result) is PullResult:
        # The messages are its first field, and its name has no such byte; so are columns below.
        rest = _results.encode(msgspec.structs.replace(result, messages=[]))
        before, _, after = rest.partition(_EMPTY_ARRAY)
        return frame_of_stored(kind, number, result.messages, before, after)
    elif type(result) is PulledBatch:
        rest = _results.encode(msgspec.structs.replace(result, columns=[]))
        before, _, after = rest.partition(_EMPTY_ARRAY)
        packed: Any = result.columns  # see `column_values.pulled_columns`
        return frame_of_columns(kind, number, packed, before, after)
    return frame(_results.encode((kind, number, result)))


def _read_result(kind: type[Any], row: Any) -> Any:
    if kind is ColumnBatch:
        return unpack_columns(row)
    if kind is StoredMessage:
        return stored_of(row)
    message_id, topic, queue, offset, position, size, status, duplicate = row
    place = (message_id, topic, queue, offset, position, size)
    return PutResult(*place, PutStatus(status), duplicate)


def result_reader(kind: Any) -> Callable[[Any], Any]:
    """Reads results of a type."""
    if kind == list[PutResult]:
        return read_results
    if kind == list[Popped]:
        return read_popped
    return msgspec.msgpack.Decoder(kind, dec_hook=_read_result).decode


def receipt_results(found: list[Any]) -> list[Any]:
    """For each receipt True, the receipt that holds from now on, or the error."""
    return [one if one is True or isinstance(one, str) else make_error(one) for one in found]


_question: Final = result_reader(tuple[int, StoredMessage] | None)


def read_question(data: Any) -> tuple[int, StoredMessage] | None:
    """A checker's event: a question's number and message; None for the first event."""
    found: tuple[int, StoredMessage] | None = _question(data)
    return found
