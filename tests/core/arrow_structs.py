"""Arrays of Arrow's C data interface made by hand, so that they may lie.

The idea: a `Made` says all that a structure says: format, lengths, buffers, children. Buffers get
as many bytes as the lengths, and the ends of texts, ask for: a consumer cannot know them. All else
may be wrong.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int64, c_void_p
from itertools import count
from typing import Any, Final

Made = list[Any]
"""Format, name, length, offset, nulls, buffers, children, dictionary ([] or [Made])."""

_ROWS_MAX: Final = 1 << 12
_BYTES_MAX: Final = 1 << 16
_WIDTHS: Final = {"c": 1, "C": 1, "s": 2, "S": 2, "i": 4, "I": 4, "l": 8, "L": 8}


class Schema(Structure):
    """`ArrowSchema`."""


class Array(Structure):
    """`ArrowArray`."""


_RELEASE: Final = ctypes.CFUNCTYPE(None, c_void_p)
Schema._fields_ = [
    ("format", c_char_p), ("name", c_char_p), ("metadata", c_char_p), ("flags", c_int64),
    ("n_children", c_int64), ("children", POINTER(POINTER(Schema))),
    ("dictionary", POINTER(Schema)), ("release", _RELEASE), ("private_data", c_void_p),
]  # fmt: skip
Array._fields_ = [
    ("length", c_int64), ("null_count", c_int64), ("offset", c_int64), ("n_buffers", c_int64),
    ("n_children", c_int64), ("buffers", POINTER(c_void_p)), ("children", POINTER(POINTER(Array))),
    ("dictionary", POINTER(Array)), ("release", _RELEASE), ("private_data", c_void_p),
]  # fmt: skip
_GET: Final = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p)
_LAST_ERROR: Final = ctypes.CFUNCTYPE(c_char_p, c_void_p)


class Stream(Structure):
    """`ArrowArrayStream`."""

    _fields_ = (
        ("get_schema", _GET), ("get_next", _GET), ("get_last_error", _LAST_ERROR),
        ("release", _RELEASE), ("private_data", c_void_p),
    )  # fmt: skip


_capsule: Callable[..., Any] = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object  # type: ignore[attr-defined] # a function of ctypes has it
_capsule.argtypes = [c_void_p, c_char_p, c_void_p]  # type: ignore[attr-defined] # as above


_NUMBERS: Final = count(1)
_RELEASED: Final = Counter[int]()


def _count_release(array: int) -> None:
    _RELEASED[Array.from_address(array).private_data] += 1


# It lives as long as all arrays.
_ON_RELEASE: Final = _RELEASE(_count_release)
_NOT_COUNTED: Final = _RELEASE(lambda schema: None)


class _Counted:
    """An array; counts how often it was released."""

    def __init__(self, made: Made) -> None:
        self._number = next(_NUMBERS)
        self._kept: list[Any] = []
        self._schema, self._array = self._structures(made)
        self._array.private_data = self._number
        self._schema.release, self._array.release = _NOT_COUNTED, _ON_RELEASE

    def released(self) -> int:
        """How often."""
        return _RELEASED[self._number]

    def _structures(self, made: Made) -> tuple[Schema, Array]:
        form, name, length, offset, nulls, buffers, children, dictionary = made
        schema, array = Schema(), Array()
        schema.format = None if form is None else form.encode("utf-8", "surrogatepass")
        schema.name = name.encode("utf-8", "surrogatepass")
        array.length, array.offset, array.null_count = length, offset, nulls
        parts = self._buffers(
            form, length, offset, [None if b is None else bytes(b) for b in buffers]
        )
        array.n_buffers = len(parts)
        array.buffers = (c_void_p * (len(parts) + 1))(*[self._pointer(part) for part in parts])
        inner = [self._structures(child) for child in children]
        schema.n_children = array.n_children = len(inner)
        schema.children = (POINTER(Schema) * (len(inner) + 1))(
            *[ctypes.pointer(one) for one, _ in inner]
        )
        array.children = (POINTER(Array) * (len(inner) + 1))(
            *[ctypes.pointer(one) for _, one in inner]
        )
        if dictionary:
            its_schema, its_array = self._structures(dictionary[0])
            schema.dictionary, array.dictionary = (
                ctypes.pointer(its_schema),
                ctypes.pointer(its_array),
            )
        self._kept.append((schema, array))
        return schema, array

    def _pointer(self, part: bytes | None) -> int | None:
        if part is None:
            return None
        # Of exactly so many bytes, so that a sanitizer sees a read behind them.
        room = (ctypes.c_char * max(len(part), 1)).from_buffer_copy(part or b"\0")
        self._kept.append(room)
        return ctypes.addressof(room)

    def _buffers(
        self, form: str | None, length: int, offset: int, buffers: list[bytes | None]
    ) -> list[bytes | None]:
        """As long as they must be. ValueError if that is too long to be tried."""
        rows = length + offset
        if form in (None, "n", "+s") or length < 0 or offset < 0:
            return buffers
        if rows > _ROWS_MAX:
            raise ValueError("too many rows")
        longer = form in ("Z", "U", "+L")
        bounds = 8 if longer else 4
        texts = form in ("z", "Z", "u", "U")
        if texts or form in ("+l", "+L", "+m"):
            need = [(rows + 7) // 8, (rows + 1) * bounds]
        elif form in ("vz", "vu"):
            need = [(rows + 7) // 8, 16 * rows]
        else:
            need = [(rows + 7) // 8, rows * _WIDTHS.get(str(form), 8)]
        padded = [_longer(b, n) for b, n in zip(buffers, need, strict=False)] + buffers[len(need) :]
        if texts and len(padded) > 2 and padded[1] is not None:
            last = int.from_bytes(padded[1][rows * bounds :][:bounds], "little", signed=True)
            padded[2] = _longer(padded[2], last)
        if form in ("vz", "vu") and len(padded) > 3:
            longs = len(padded) - 3
            sizes = padded[-1] = _longer(padded[-1], 8 * longs)
            for i in range(longs if sizes else 0):
                assert sizes
                size = int.from_bytes(sizes[8 * i : 8 * i + 8], "little", signed=True)
                padded[2 + i] = _longer(padded[2 + i], size)
        return padded


class Handed(_Counted):
    """An array that is handed over as an Arrow library would."""

    def __arrow_c_array__(self, requested: object = None) -> tuple[Any, Any]:
        return (
            _capsule(ctypes.addressof(self._schema), b"arrow_schema", None),
            _capsule(ctypes.addressof(self._array), b"arrow_array", None),
        )


class Streamed(_Counted):
    """An array that is the first of a stream, whose schema is handed over or, as no producer
    should have it, released.
    """

    def __init__(self, made: Made, *, has_schema: bool) -> None:
        super().__init__(made)
        if not has_schema:
            self._schema.release = _RELEASE()
        self._is_read = False
        self._functions = (_GET(self._get_schema), _GET(self._get_next))
        self._stream = Stream(*self._functions, _LAST_ERROR(), _NOT_COUNTED, None)

    def __arrow_c_stream__(self, requested: object = None) -> Any:
        return _capsule(ctypes.addressof(self._stream), b"arrow_array_stream", None)

    def _get_schema(self, stream: int, out: int) -> int:
        ctypes.memmove(out, ctypes.addressof(self._schema), ctypes.sizeof(Schema))
        return 0

    def _get_next(self, stream: int, out: int) -> int:
        if not self._is_read:
            ctypes.memmove(out, ctypes.addressof(self._array), ctypes.sizeof(Array))
        self._is_read = True
        return 0


def _longer(data: bytes | None, size: int) -> bytes | None:
    if size > _BYTES_MAX:
        raise ValueError("too long")
    return None if data is None else data + bytes(max(size - len(data), 0))
