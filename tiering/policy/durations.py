"""Durations as text: "36h" and back.

The idea: a policy's file, the name of a retention class and a plan all write durations with the
same units: ms, s, m, h, d.

Invariant: `parse_duration(format_duration(n)) == n` for every whole number of milliseconds, 0 or
more.
"""

from __future__ import annotations

import re
from typing import Final

from kvstore.clock import whole_ms

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[dhms])")


def format_duration(milliseconds: int) -> str:
    """The shortest exact text: 129,600,000 is "36h"."""
    if milliseconds == 0:
        return "0"
    unit = next(u for u, size in _UNITS.items() if milliseconds % size == 0)
    return f"{milliseconds // _UNITS[unit]}{unit}"


def parse_duration(text: str) -> int | None:
    """Milliseconds of a text; None if it is no duration."""
    if text == "0":
        return 0
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        return None
    size = _UNITS[found[2]]
    # Whole numbers stay whole, however large: a float has 53 bits only.
    return int(found[1]) * size if found[1].isdigit() else whole_ms(float(found[1]) * size / 1000)
