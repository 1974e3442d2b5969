"""Paths: how a path that a caller gives is read, wherever one is given.

The idea: everybody reads paths by the same function, so that `~` is home everywhere. A text that
is no path would make a folder of a strange name, and a store that nobody finds again: so a URL, an
empty text and what is no text are refused.

Invariant: no error shows more of a URL than its scheme; a password may be in it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from kvstore.errors import CallerError, shown

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""One slash, because a Path has lost the second."""
_WANTED: Final = "give a path on this machine, such as 'data' or '~/data'"


def local_path(given: object, what: str = "a store") -> Path:
    """The path that a caller gave, with `~` and `~user` as homes; `what` is there, for the error.

    >>> local_path("data/orders")
    PosixPath('data/orders')

    Raises CallerError for a URL, an empty text, and what is neither a text nor a Path.
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text or "\0" in text:
        raise CallerError(f"the path of {what} is {shown(given)}; {_WANTED}")
    url = _URL.match(text)
    if url is not None:
        raise CallerError(
            f"the path of {what} is a {url[1]}:// URL, and there is nothing to connect to: a store "
            f"is files in a folder; {_WANTED}"
        )
    found = os.path.expanduser(text)
    if found.startswith("~"):
        raise CallerError(
            f"the path of {what} is {shown(text)}, and nobody knows that home folder; give the "
            "whole path, or begin it with ./ if ~ is part of the name"
        )
    return Path(found)
