"""Errors as values of the protocol: an error that a call raises in the server is raised in the
client.

The idea: an error is the names of its class and of the classes above it, its text, and its
attributes. The client makes the nearest class that it knows, so an error of a newer server, or of a
package that the client has not loaded, is still one of the right kind.

Invariants: only errors of a store that this process knows (`kvstore.errors`, and those of `tiering`
once it is imported), and a few of Python's own, are made; an attribute that is no plain value is
left out.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvstore import errors
from kvstore.errors import StoreError

_PLAIN: Final = (str, int, float, bool, bytes, type(None))
_OF_PYTHON: Final = frozenset({
    "ValueError", "TypeError", "OverflowError", "LookupError", "KeyError", "IndexError",
    "AttributeError", "RuntimeError", "NotImplementedError", "OSError", "FileNotFoundError",
    "FileExistsError", "PermissionError", "NotADirectoryError", "MemoryError", "RecursionError",
    "UnicodeEncodeError", "UnicodeDecodeError", "ArithmeticError", "BufferError",
})  # fmt: skip
_TEXT_MAX: Final = 16 << 10


def pack_error(error: BaseException) -> tuple[list[str], str, dict[str, Any]]:
    """The parts of an error that are sent."""
    names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, Exception)]
    carried = {
        name: value
        for name, value in vars(error).items()
        if not name.startswith("_") and isinstance(value, _PLAIN)
    }
    text = str(error)[:_TEXT_MAX].encode("utf-8", "backslashreplace").decode()
    return names, text, carried


def make_error(packed: Any) -> Exception:
    """The error that was sent; one of the protocol is a `StoreError` as well."""
    match packed:
        case [[*names], str(text), {**carried}]:
            return _made(names, text, carried)
    return StoreError(f"the server's error can't be read: {errors.shown(packed)}")


def _below(base: type[StoreError]) -> dict[str, type[StoreError]]:
    """The errors below one, by their names."""
    found: dict[str, type[StoreError]] = {}
    for kind in base.__subclasses__():
        found |= {kind.__name__: kind, **_below(kind)}
    return found


def _made(names: Sequence[Any], text: str, carried: Mapping[Any, Any]) -> Exception:
    for name in names:
        found = getattr(errors, str(name), None) or _below(StoreError).get(str(name))
        if isinstance(found, type) and issubclass(found, StoreError):
            error = found.__new__(found, text)
            error.args = (text,)
            vars(error).update({str(k): v for k, v in carried.items()})
            return error
        if name in _OF_PYTHON:
            kind: type[Exception] = getattr(builtins, name)
            made = kind.__new__(kind, text)
            made.args = (text,)
            return made
    return StoreError(text)
