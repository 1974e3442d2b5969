"""The inside of objects, for tests that look for secrets: all that a debugger, a log of attributes
or a crash report would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvstore.wire.secret import Secret


def all_shown(*roots: object) -> str:
    """The representations of objects of kvmq and of all that they hold, except what a `Secret`
    hides.
    """
    seen = dict[int, object]()
    todo = list(roots)
    shown = list[str]()
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, Secret):
            continue
        seen[id(one)] = one
        shown.append(repr(one))
        todo += _held(one)
    return "\n".join(shown)


def _held(one: Any) -> Iterator[object]:
    if isinstance(one, Mapping):
        yield from one.keys()
        yield from one.values()
    elif isinstance(one, list | tuple | set | frozenset):
        yield from one
    elif type(one).__module__.startswith("kvstore"):
        yield from getattr(one, "__dict__", {}).values()
        for kind in type(one).__mro__:
            for name in getattr(kind, "__slots__", ()):
                yield getattr(one, name, None)
