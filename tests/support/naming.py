"""Names of test cases: what a value looks like, wherever in memory it is."""

from __future__ import annotations

import re


def named(value: object) -> str:
    """A value's name, equal in every process, so that several can share the cases out."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
