"""Carries an error from one process to another, where it is raised as the error it is.

The idea: pickle makes an error anew by calling its class with `args`. That fails, or makes another
error, wherever a constructor wants something else. So the error is unpickled once where it was
raised. If the result is not the same, class, `args` and attributes travel by themselves, and the
constructor is not called. If the other side can't import the class, the nearest base class that it
can import is taken, and the text names the class.

Invariants: packing and unpacking never raise; the class is the error's own, or one that it derives
from; the text says no less.
"""

from __future__ import annotations

import pickle
from typing import Any

from kvstore.errors import shown

_PICKLE = pickle.HIGHEST_PROTOCOL


def pack_error(error: Exception) -> bytes:
    """An error as bytes, for `unpack_error`."""
    data = _tried(error, error)
    if data is not None:
        return data
    kind, state = type(error), dict(vars(error))
    data = _tried((kind, error.args, state), error)
    if data is not None:
        return data
    args = tuple(map(_plain, error.args))
    state = {name: _plain(value) for name, value in state.items()}
    for base in kind.__mro__:
        own = args if base is kind else (f"{kind.__qualname__}: {error}",)
        data = _dumped((base, own, state))
        if data is not None and _is_error(data):
            return data
    raise AssertionError("Exception itself can be pickled, and every error has it")


def unpack_error(data: bytes) -> Exception:
    """The inverse of `pack_error`."""
    # A process of ours sends this to another; nobody else has an end of the pipe.
    found = pickle.loads(data)  # noqa: S301
    if isinstance(found, Exception):
        return found
    kind, args, state = found
    error: Exception = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


def _tried(form: object, error: Exception) -> bytes | None:
    """A form of an error as bytes, if unpickling gives the same; else None."""
    data = _dumped(form)
    if data is None:
        return None
    try:
        found = unpack_error(data)
        is_same = type(found) is type(error) and str(found) == str(error)
    except Exception:  # whatever a foreign constructor raises
        return None
    return data if is_same and vars(found).keys() == vars(error).keys() else None


def _is_error(data: bytes) -> bool:
    try:
        return isinstance(unpack_error(data), Exception)
    except Exception:  # as above
        return False


def _dumped(value: object) -> bytes | None:
    try:
        return pickle.dumps(value, _PICKLE)
    except Exception:  # pickle raises what it likes, and so does a foreign __reduce__
        return None


def _plain(value: Any) -> Any:
    """A value that can travel: itself, or how it prints."""
    data = _dumped(value)
    if data is None:
        return shown(value)
    try:
        return pickle.loads(data)  # noqa: S301 # it was made here
    except Exception:  # as above
        return shown(value)
