"""Places of the input: the line from which a refused message came.

The idea: a store that refuses a batch gives the number of the message at fault, counted from 0,
which means nothing to a user who gave a file. So the verbs that put lines replace that number in
the error by the line.
"""

from __future__ import annotations

import re
from typing import BinaryIO, Final

from kvstore.errors import CallerError

_AT: Final = re.compile(r"message (\d+) of \d+: ")


def index_of(error: CallerError, count: int) -> int | None:
    """The index of the message in a batch of `count` that an error is about; None if it is about
    none.
    """
    found = _AT.match(str(error))
    if found is not None:
        return int(found[1])
    return 0 if count == 1 else None


def say_place(error: CallerError, place: str) -> None:
    """Make an error begin with a place in the input, instead of one in a batch."""
    error.args = (f"{place}: {_AT.sub('', str(error), count=1)}", *error.args[1:])


def line_of(name: str, number: int) -> str:
    """A line, counted from 1."""
    return f"{name}, line {number}"


def name_of(stream: BinaryIO) -> str:
    """The name of an input."""
    name = getattr(stream, "name", None)
    return name if isinstance(name, str) and not name.startswith(("<", "-")) else "standard input"
