"""Which line of the input a refused message came from.

The idea: a store that refuses a batch says which of its messages is at fault, counted from 0, which
says nothing to someone who gave a file. So the verbs that put lines take that number out of the
error and put the line in.
"""

from __future__ import annotations

import re
from typing import BinaryIO, Final

from kvstore.errors import CallerError

_AT: Final = re.compile(r"message (\d+) of \d+: ")


def index_of(error: CallerError, count: int) -> int | None:
    """Which of a batch of `count` messages an error is about; None if it is about none."""
    found = _AT.match(str(error))
    if found is not None:
        return int(found[1])
    return 0 if count == 1 else None


def say_place(error: CallerError, place: str) -> None:
    """Have an error begin with a place in the input, instead of one in a batch."""
    error.args = (f"{place}: {_AT.sub('', str(error), count=1)}", *error.args[1:])


def line_of(name: str, number: int) -> str:
    """A line, counted from 1."""
    return f"{name}, line {number}"


def name_of(stream: BinaryIO) -> str:
    """What to call an input."""
    name = getattr(stream, "name", None)
    return name if isinstance(name, str) and not name.startswith(("<", "-")) else "standard input"
