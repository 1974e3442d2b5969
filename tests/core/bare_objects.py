"""Objects of the core that were never made, used in every way: a program for a process of its own,
which a fault may end.

The idea: `kind.__new__(kind)` gives an object without its beginning, and so does a copy or a pickle
of some. Each class of the core is found by itself, so none has to be listed. A class may refuse
that; any other object has each of its attributes read, and each of its methods called with values
and with other bare objects; then it is handed to each function of the core. Errors are expected.
The last line of the output names the step that ended the process.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import pickle
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import kvstore.core

_VALUES: Final[list[Any]] = [0, 1, b"x" * 64, "t", [], {}, None]
_WAYS: Final[list[Callable[[Any], object]]] = [
    len, repr, hash, bool, list, bytes, memoryview, copy.copy, copy.deepcopy, pickle.dumps,
]  # fmt: skip
_WRITTEN_IN_PYTHON: Final = 1 << 9
"""A flag of a class (`Py_TPFLAGS_HEAPTYPE`)."""
_WAITS: Final = frozenset({"sleep"})


def modules() -> list[ModuleType]:
    """The compiled modules of the core, of which there are sources."""
    core = Path(kvstore.core.__path__[0])
    sources = [path.relative_to(core).with_suffix("") for path in sorted(core.rglob("*.pyx"))]
    return [importlib.import_module(".".join(("kvstore.core", *one.parts))) for one in sources]


def kinds() -> list[type]:
    """The compiled classes of the core, also those that only the core itself names."""
    return [
        one
        for module in modules()
        for one in vars(module).values()
        if isinstance(one, type)
        and one.__module__ == module.__name__
        and not one.__flags__ & _WRITTEN_IN_PYTHON
    ]


def bare(kind: Any) -> Any:
    """An object that was not made; None if its class refuses that."""
    try:
        return kind.__new__(kind)
    except TypeError:
        return None


def _try(step: str, call: Callable[..., object], *given: object) -> None:
    print(step, [type(one).__name__ for one in given], flush=True)
    with contextlib.suppress(Exception):
        call(*given)


def _arguments(others: list[Any]) -> Iterator[tuple[Any, ...]]:
    values = [*_VALUES, *others]
    yield ()
    for one in values:
        yield (one,)
        yield ([one],)
    yield from product(values, _VALUES)
    yield from product(_VALUES, others)
    for one in others:
        yield from product(others, [one], [[0]])


def use(kind: type) -> None:
    """Uses bare objects of a class."""
    for way in _WAYS:
        _try(f"{way.__name__} of", way, bare(kind))
    _try("equality of", lambda one: one == bare(kind), bare(kind))
    others = [one for one in map(bare, kinds()) if one is not None]
    for name in dir(kind):
        if (name.startswith("__") and name != "__reduce__") or name in _WAITS:
            continue
        print(kind.__name__, name, flush=True)
        found = None
        with contextlib.suppress(Exception):
            found = getattr(bare(kind), name)
        for given in _arguments(others) if callable(found) else ():
            _try(f"{kind.__name__}.{name}", getattr(bare(kind), name), *given)


def hand_over(kind: type) -> None:
    """Hands a bare object, alone and in a list or table, to each function of the core."""
    for module in modules():
        for name, function in vars(module).items():
            if not inspect.isroutine(function) or module.__name__ not in str(function.__module__):
                continue
            for size, fill in product(range(1, 5), (0, b"x" * 64, [])):
                for at in range(size):
                    for one in (bare(kind), [bare(kind)], {"t": bare(kind)}):
                        given: list[object] = [fill] * size
                        given[at] = one
                        _try(f"{module.__name__}.{name} of {kind.__name__}", function, *given)


def main() -> None:
    """Uses them all."""
    for kind in kinds():
        if bare(kind) is not None:
            use(kind)
            hand_over(kind)


if __name__ == "__main__":
    main()
