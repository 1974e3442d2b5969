"""Fuzzing: calls of the core with good inputs, changed ones, and lengths that lie.

The idea: a `Fuzzer` draws good arguments for one function of the core. These are tried, and then
what is made of them by one to three changes, down to single bytes, and numbers of lists and arrays.
The function may return, or raise an error that its `.pyi` names, ValueError, TypeError, or
OverflowError for a number that its parameter cannot hold. Anything else is a failure, and so is an
answer that is not that of the plain version (`judge`).

Invariants: a seed gives the same inputs again; each public function of the core is an entry, which
`entries` reads off the `.pyi` files.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np

from kvstore import core, errors

Arguments = tuple[Any, ...]

CORE: Final = Path(core.__file__).parent
EDGES: Final = sorted(
    {sign * (1 << bits) + more for bits in (7, 8, 15, 16, 31, 32, 40, 56, 62) for sign in (-1, 1)
     for more in (-1, 0, 1)}
    | {0, -1, (1 << 63) - 1, -(1 << 63)}
)  # fmt: skip
"""Numbers at which widths end."""
_ALWAYS: Final = (ValueError, TypeError, OverflowError)
_ERROR: Final = re.compile(r"\b[A-Z]\w+\b")
_SHOWN: Final = 2000
_KEPT: Final = 64
_CHANGED: Final = 8
"""One input of so many is a new good one; the others are changed from the last `_KEPT` of those."""


def _any(*_: Any) -> Any:
    return NotImplemented


def _sane(*_: Any) -> bool:
    return True


class Fuzzer(NamedTuple):
    """How one entry is fuzzed. All functions take the entry's arguments, but `good`."""

    good: Callable[[Random], Arguments]
    judge: Callable[..., Any] = _any
    """The expected result. A class of errors: one of them is raised. An error that it raises: the
    same is, with the same text. NotImplemented: any answer will do."""
    sane: Callable[..., bool] = _sane
    """Whether callers may ask for so much: what they expect is allocated."""
    call: Callable[..., Any] | None = None
    """A function called instead of the entry, which uses its result or reads its changes."""


class Entry(NamedTuple):
    """A function of the core, or a class that can be made, and the errors that its `.pyi` names."""

    name: str
    call: Callable[..., Any]
    errors: tuple[type[Exception], ...]


def entries() -> dict[str, Entry]:
    """All of them by name: `module.function`."""
    found = {}
    for path in sorted(CORE.rglob("*.pyi")):
        within = ".".join(path.relative_to(CORE).with_suffix("").parts)
        module = importlib.import_module(f"kvstore.core.{within}")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and _is_entry(node):
                name, named = f"{within}.{node.name}", _errors(ast.unparse(node))
                found[name] = Entry(name, getattr(module, node.name), named)
    return found


def _is_entry(node: ast.FunctionDef | ast.ClassDef) -> bool:
    can_be_made = isinstance(node, ast.FunctionDef) or any(
        isinstance(part, ast.FunctionDef) and part.name == "__init__" for part in node.body
    )
    return can_be_made and not node.name.startswith("_")


def _errors(text: str) -> tuple[type[Exception], ...]:
    named = {getattr(errors, word, getattr(builtins, word, None)) for word in _ERROR.findall(text)}
    return (*_ALWAYS, *(e for e in named if isinstance(e, type) and issubclass(e, Exception)))


# --- one input after the other ---


def fuzz(entry: Entry, fuzzer: Fuzzer, inputs: int, seed: int) -> None:
    """Tries `inputs` inputs. A failure says which, and what it was."""
    rng = Random(f"{seed} {entry.name}")
    good: deque[Arguments] = deque(maxlen=_KEPT)
    for number in range(inputs):
        if number % _CHANGED:
            arguments = _changed(rng, rng.choice(good))
        else:
            arguments = fuzzer.good(rng)
            good.append(arguments)
        if not fuzzer.sane(*arguments):
            continue
        try:
            _try(entry, fuzzer, arguments)
        except Exception as e:
            raise AssertionError(
                f"{entry.name}, seed {seed}, input {number}: {arguments!r:.{_SHOWN}}"
            ) from e


def _changed(rng: Random, values: Arguments) -> Arguments:
    changed = list(values)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed))
        changed[at] = change(rng, changed[at])
    return tuple(changed)


def _try(entry: Entry, fuzzer: Fuzzer, arguments: Arguments) -> None:
    expected = _outcome(fuzzer.judge, arguments, (errors.StoreError,))
    found = _outcome(fuzzer.call or entry.call, arguments, entry.errors)
    if isinstance(found, OverflowError) and any(map(_is_wide, arguments)):
        return
    if isinstance(expected, type):
        assert isinstance(found, expected), f"{found!r:.{_SHOWN}}, not {expected.__name__}"
    elif isinstance(expected, Exception):
        assert (type(found), str(found)) == (type(expected), str(expected))
    elif expected is not NotImplemented:
        assert _plain(found) == _plain(expected), f"{found!r:.{_SHOWN}}, not {expected!r:.{_SHOWN}}"


def _outcome(
    call: Callable[..., Any], arguments: Arguments, raises: tuple[type[Exception], ...]
) -> Any:
    """The result, or the error."""
    try:
        # Lists are copied because calls may change them.
        return call(*(list(a) if isinstance(a, list) else a for a in arguments))
    except raises as e:
        return e


def _is_wide(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_wide, value))
    return isinstance(value, int) and not 0 <= value < 1 << 31


def _plain(value: Any) -> Any:
    """A result without arrays and tuples, to compare."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


# --- changes ---


def change(rng: Random, value: Any) -> Any:
    """Another value of the same kind, most often one like it."""
    match value:
        case bool():
            return not value
        case int():
            return rng.choice((value + 1, value - 1, rng.randint(-5, 300), rng.choice(EDGES)))
        case bytes() | bytearray() | memoryview():
            return _change_bytes(rng, bytes(value))
        case str():
            at = rng.randint(0, len(value))
            return value[:at] + chr(rng.choice((1, 2, 65, 233, 8364, 0xD800, 0x1F600))) + value[at:]
        case np.ndarray():
            return _change_array(rng, value)
        case tuple():
            return tuple(_change_list(rng, list(value)))
        case list():
            return _change_list(rng, value)
    return value


def _change_bytes(rng: Random, data: bytes) -> Any:
    at = rng.randint(0, len(data))
    width = rng.choice((1, 1, 2, 4, 8))
    number = rng.choice((rng.getrandbits(64), rng.choice(EDGES), rng.randint(0, 20)))
    number &= (1 << 8 * width) - 1
    match rng.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[at:]
        case 2:
            return data + rng.randbytes(rng.randint(1, 12))
        case 3:
            return rng.randbytes(rng.randint(0, 60))
        case 4:
            return rng.choice((bytearray, memoryview))(data)
        case 5:
            return data[:at] + rng.randbytes(1) + data[at + 1 :]
    return data[:at] + number.to_bytes(width, rng.choice(("big", "little"))) + data[at + width :]


def _change_array(rng: Random, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    match rng.randrange(6):
        case 0:
            return values[:: rng.choice((-1, 2))]
        case 1:
            return values[: rng.randint(0, len(values))]
        case 2:
            return np.concatenate((values, values[: rng.randint(0, 3)]))
        case 3:
            return values.astype(rng.choice((np.int64, np.uint64, np.int32, np.uint8)))
    values = values.copy()
    if len(values):
        mask = (1 << 8 * values.itemsize) - 1
        at = rng.randrange(len(values))
        number = int(change(rng, int(values[at]))) & mask
        values[at] = np.array(number, np.uint64).astype(values.dtype)
    return values


def _change_list(rng: Random, values: list[Any]) -> list[Any]:
    values = list(values)
    at = rng.randint(0, len(values))
    match rng.randrange(4):
        case 0:
            return values[:at]
        case 1 if values:
            return [*values, values[at - 1]]
    if values:
        values[at - 1] = change(rng, values[at - 1])
    return values
